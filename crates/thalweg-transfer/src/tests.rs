//! Tests that the bytes that arrive are the bytes that were sent, with every method.

use crate::{Incoming, ReceiveMethod, Receiver, SendMethod, Sender, Stored, TransferError, cached_bytes};
use crc_fast::{CrcAlgorithm, Digest, checksum};
use proptest::prelude::*;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Arc, LazyLock};
use thalweg_testing::skip::skipped;

/// Returns a file on the disk that this is built on: /tmp may be memory, which has no `O_DIRECT` everywhere.
fn file() -> File {
    tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap()
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length as u64).flat_map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).take(length).collect()
}

fn stored(bytes: &[u8]) -> Arc<Stored> {
    let mut file = file();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
    Arc::new(Stored::new(file))
}

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

/// Returns the bytes that the peer receives of these ranges, sent in sequence, and the result of sending.
fn sent(method: SendMethod, from: &Arc<Stored>, ranges: &[Range<u64>]) -> (Vec<u8>, std::io::Result<()>) {
    let (here, mut there) = connection();
    std::thread::scope(|scope| {
        let received = scope.spawn(move || {
            let mut received = Vec::new();
            there.read_to_end(&mut received).unwrap();
            received
        });
        let mut sender = Sender::new();
        let mut each = ranges.iter().map(|range| sender.send_range(method, from, range.clone(), here.as_fd(), true));
        let result = each.find(Result::is_err).unwrap_or(Ok(()));
        drop(here);
        (received.join().unwrap(), result)
    })
}

/// Returns true, and reports a skipped test, if the error means that this kernel or file system does not have the
/// method.
fn unsupported(method: impl std::fmt::Display, error: &std::io::Error) -> bool {
    let without = matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM));
    if without {
        skipped(format_args!("{method} cannot be had here: {error}"));
    }
    without
}

#[test]
fn what_a_socket_does_not_take_now_it_takes_later() {
    let bytes = pattern((9 << 20) + 12345);
    let from = stored(&bytes);
    let whole = 4097..bytes.len() as u64;
    let mut sender = Sender::new();
    for method in SendMethod::ALL.into_iter().filter(|method| Sender::supports_send_some(*method)) {
        let (here, mut there) = connection();
        here.set_nonblocking(true).unwrap();
        there.set_nonblocking(true).unwrap();
        let (mut left, mut received, mut waited) = (whole.clone(), Vec::new(), 0);
        while received.len() as u64 + whole.start < whole.end {
            if !left.is_empty() {
                match sender.send_some(method, &from, &mut left, 1 << 20, here.as_fd()) {
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => waited += 1,
                    result => {
                        result.unwrap();
                        continue;
                    }
                }
            }
            let mut buffer = vec![0; 100_000];
            if let Ok(read) = there.read(&mut buffer) {
                received.extend_from_slice(&buffer[..read]);
            }
        }
        assert!(received == bytes[whole.start as usize..], "{method}: {} bytes", received.len());
        assert!(waited > 0, "{method}: the socket took all of it at once");
        let mut behind = whole.end..whole.end + 1;
        let error = sender.send_some(method, &from, &mut behind, 1 << 20, here.as_fd()).unwrap_err();
        assert_eq!((error.kind(), behind.start), (std::io::ErrorKind::UnexpectedEof, whole.end), "{method}");
    }
    let (here, _there) = connection();
    let error = sender.send_some(SendMethod::Uring, &from, &mut whole.clone(), 1, here.as_fd()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
}

#[test]
fn what_is_read_to_be_worked_on_comes_whole_and_does_not_stay() {
    let bytes = pattern((3 << 20) + 12345);
    let from = stored(&bytes);
    let length = bytes.len() as u64;
    let forget = || rustix::fs::fadvise(from.buffered_file(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
    for range in [0..length, 5..6, 4095..1 << 20, 77..77] {
        forget();
        let mut read = Vec::new();
        let each = |bytes: &[u8]| {
            read.extend_from_slice(bytes);
            Ok(())
        };
        crate::read_in_parts(from.buffered_file(), range.clone(), &mut [0; 70_000], each).unwrap();
        assert!(read == bytes[range.start as usize..range.end as usize], "{range:?}");
    }
    let error =
        crate::read_in_parts(from.buffered_file(), length - 1..length + 1, &mut [0; 10], |_| Ok(())).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    forget();
    let first =
        crate::read_in_parts(from.buffered_file(), 0..length, &mut [0; 10], |_| Err(std::io::Error::other("enough")))
            .unwrap_err();
    assert_eq!(first.to_string(), "enough");
    let (_, result) = sent(SendMethod::DontCache, &from, &[0..1]);
    match (result, cached_bytes(from.buffered_file(), &(0..length))) {
        (Err(error), _) if unsupported("dontcache", &error) => {}
        (Ok(()), Ok(before)) => {
            crate::read_in_parts(from.buffered_file(), 0..length, &mut [0; 70_000], |_| Ok(())).unwrap();
            let after = cached_bytes(from.buffered_file(), &(0..length)).unwrap();
            assert!(after <= before + (1 << 20), "{before} {after}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_system_that_cannot_go_past_the_cache_is_found_out_before() {
    let here = stored(b"1");
    let of_the_kernel = Stored::new(std::fs::File::open("/proc/self/status").unwrap());
    for method in SendMethod::ALL {
        let needs = matches!(method, SendMethod::Direct | SendMethod::Uring);
        assert_eq!(Sender::can_send(method, &of_the_kernel), !needs, "{method:?}");
        assert!(Sender::can_send(method, &here) || needs, "{method:?}");
    }
}

#[test]
fn every_way_sends_the_bytes_that_were_asked_for() {
    let bytes = pattern((9 << 20) + 12345);
    let from = stored(&bytes);
    let length = bytes.len() as u64;
    let ranges = [0..length, 5..6, 4095..4097, 1 << 20..(3 << 20) + 1, length - 1..length, 4096..8192, 77..77];
    let expected: Vec<u8> =
        ranges.iter().flat_map(|range| &bytes[range.start as usize..range.end as usize]).copied().collect();
    for method in SendMethod::ALL {
        let (received, result) = sent(method, &from, &ranges);
        match result {
            Err(error) if unsupported(method, &error) => {}
            result => {
                result.unwrap();
                assert!(received == expected, "{method}: {} bytes of {}", received.len(), expected.len());
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn every_way_sends_any_range(start in 0_u64..300_000, length in 0_u64..300_000) {
        static STORED: LazyLock<(Vec<u8>, Arc<Stored>)> = LazyLock::new(|| {
            let bytes = pattern(600_000);
            let stored = stored(&bytes);
            (bytes, stored)
        });
        let (bytes, from) = &*STORED;
        for method in SendMethod::ALL {
            let (received, result) = sent(method, from, &[start..start + length]);
            if result.as_ref().is_err_and(|error| unsupported(method, error)) {
                continue;
            }
            prop_assert!(result.is_ok(), "{method}: {result:?}");
            prop_assert!(received == bytes[start as usize..(start + length) as usize], "{method}");
        }
    }
}

#[test]
fn a_file_that_ends_within_the_range_is_an_error() {
    let from = stored(&pattern(10_000));
    for method in SendMethod::ALL {
        let (received, result) = sent(method, &from, &[8000..20_000]);
        let error = result.unwrap_err();
        if !unsupported(method, &error) {
            assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof, "{method}");
            assert!(received.len() <= 2000, "{method}");
        }
    }
}

#[test]
fn what_was_not_in_the_page_cache_is_not_there_afterwards() {
    let bytes = pattern(24 << 20);
    let from = stored(&bytes);
    let range = 0..bytes.len() as u64;
    if let Err(error) = cached_bytes(from.buffered_file(), &range) {
        return skipped(format_args!("cachestat: {error}"));
    }
    for method in SendMethod::ALL.into_iter().filter(|method| method.is_uncached()) {
        rustix::fs::fadvise(from.buffered_file(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let (received, result) = sent(method, &from, std::slice::from_ref(&range));
        if result.as_ref().is_err_and(|error| unsupported(method, error)) {
            continue;
        }
        assert!(received == bytes, "{method}");
        let left = cached_bytes(from.buffered_file(), &range).unwrap();
        assert!(left <= 8 << 20, "{method} leaves {left} bytes");
    }
}

#[test]
fn what_others_have_in_the_page_cache_stays_there() {
    let bytes = pattern(4 << 20);
    let from = stored(&bytes);
    let range = 0..bytes.len() as u64;
    let Ok(before) = cached_bytes(from.buffered_file(), &range) else {
        return skipped("this kernel has no cachestat");
    };
    assert_eq!(before, bytes.len() as u64, "just written");
    sent(SendMethod::Ahead, &from, std::slice::from_ref(&range)).1.unwrap();
    assert_eq!(cached_bytes(from.buffered_file(), &range).unwrap(), before);
}

/// Receives `length` bytes at `at`, of which `first` were read with something else already.
fn received(method: ReceiveMethod, bytes: &[u8], first: usize, at: u64, length: u64) -> (File, crate::Written, u64) {
    let (mut here, there) = connection();
    let file = file();
    let mut crc = Digest::new(CrcAlgorithm::Crc32Iscsi);
    let written = std::thread::scope(|scope| {
        scope.spawn(move || here.write_all(&bytes[first..]));
        let mut rest = &there;
        let mut incoming = Incoming { first: &bytes[..first], rest: &mut rest, socket: Some(there.as_fd()) };
        Receiver::new().receive_file(method, &mut incoming, &file, at, length, &mut crc)
    });
    (file, written, crc.finalize())
}

fn content(file: &File, at: u64, length: usize) -> Vec<u8> {
    let mut content = vec![0; length];
    std::os::unix::fs::FileExt::read_exact_at(file, &mut content, at).unwrap();
    content
}

#[test]
fn every_way_writes_the_bytes_that_came() {
    let bytes = pattern((6 << 20) + 4321);
    for (first, at) in [(0, 0), (1000, 0), (0, 4095), (700, 123_457)] {
        for method in ReceiveMethod::ALL {
            let (file, written, crc) = received(method, &bytes, first, at, bytes.len() as u64);
            if let Err(TransferError::File(error)) = &written.end
                && unsupported(method, error)
            {
                continue;
            }
            written.end.unwrap();
            assert_eq!(written.bytes, bytes.len() as u64, "{method}");
            assert!(content(&file, at, bytes.len()) == bytes, "{method}, {first} bytes first, at {at}");
            assert_eq!(crc, checksum(CrcAlgorithm::Crc32Iscsi, &bytes), "{method}");
        }
    }
}

#[test]
fn a_directory_that_cannot_be_written_past_the_cache_is_known_before_the_first_upload() {
    assert!(Receiver::try_uring(std::path::Path::new("/proc")).is_err());
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    match Receiver::try_uring(directory.path()) {
        Err(error) if unsupported(ReceiveMethod::Uring, &error) => {}
        tried => tried.unwrap(),
    }
}

#[test]
fn what_came_before_the_sender_went_is_in_the_file() {
    let bytes = pattern((2 << 20) + 77);
    for method in ReceiveMethod::ALL {
        let (file, written, _) = received(method, &bytes, 10, 0, 5 << 20);
        match written.end {
            Err(TransferError::File(error)) => assert!(unsupported(method, &error), "{method}: {error}"),
            end => {
                assert!(matches!(end, Err(TransferError::Network(_))), "{method}: {end:?}");
                assert_eq!(written.bytes, bytes.len() as u64, "{method}");
                assert!(content(&file, 0, bytes.len()) == bytes, "{method}");
            }
        }
    }
}
