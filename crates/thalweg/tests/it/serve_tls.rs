//! `thalweg serve` through TLS: in the program itself, and by the kernel where that knows how to.
//!
//! What this host's kernel does not know, the laboratory's does: the last test runs the others in a machine.

use crate::common::dialogue::{Dialogue, all_of, trickle};
use crate::common::served::big;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedCipherSuite};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tempfile::TempDir;
use thalweg_lab::kernel::{self, Kernel, Machine};
use thalweg_testing::skip::skipped;
use thalweg_text::ByteSize;

#[test]
fn bytes_go_both_ways_whatever_cipher_was_agreed() {
    let Some(served) = Served::start(&[]) else { return };
    let bytes = big(&served.dialogue.path("big"), 1);
    let suites = rustls::crypto::ring::default_provider().cipher_suites;
    // The certificate's key is an elliptic curve's.
    let suites = suites.into_iter().filter(|suite| !format!("{:?}", suite.suite()).contains("RSA"));
    let tried = suites.map(|suite| {
        let mut client = served.client(&[suite]);
        let name = format!("{:?}", suite.suite());
        let put = client.put(&name, &bytes);
        assert!(put.starts_with("HTTP/1.1 201 "), "{name}: {put}");
        assert_eq!(std::fs::read(served.dialogue.path(&name)).unwrap(), bytes, "{name}");
        assert!(client.get("big", None).1 == bytes, "{name}");
        let (head, part) = client.get("big", Some(70_000..500_001));
        assert!(head.starts_with("HTTP/1.1 206 ") && part == bytes[70_000..500_001], "{name}: {head}");
        assert_eq!(client.get("digits", None).1, b"0123456789");
    });
    assert_eq!(tried.count(), 6);
}

#[test]
fn each_way_sends_the_same() {
    for way in ["read", "sendfile", "splice", "ahead"] {
        let Some(served) = Served::start(&["--path", way]) else { return };
        let bytes = big(&served.dialogue.path("big"), 3);
        let mut client = served.client(&[]);
        assert!(client.get("big", None).1 == bytes, "{way}");
        assert!(client.get("big", Some(1..2_000_003)).1 == bytes[1..2_000_003], "{way}");
    }
}

#[test]
fn many_clients_at_once_each_get_what_they_asked_for() {
    let Some(served) = Served::start(&[]) else { return };
    let bytes = big(&served.dialogue.path("big"), 4);
    std::thread::scope(|scope| {
        for number in 0..16 {
            let (mut client, bytes) = (served.client(&[]), &bytes);
            scope.spawn(move || {
                for turn in 0..10 {
                    let start = (number * 131_071 + turn * 65_537) % (3 << 20);
                    let range = start..start + (1 << (10 + turn));
                    assert!(client.get("big", Some(range.clone())).1 == bytes[range]);
                }
            });
        }
    });
}

#[test]
fn tls_ends_with_a_goodbye_and_a_handshake_has_its_time() {
    // Clients of this server are not waited for long.
    let Some(served) = Served::start(&["--idle-timeout", "3s"]) else { return };
    std::thread::scope(|scope| {
        // rustls calls an end without a goodbye an error.
        scope.spawn(|| {
            let mut client = served.client(&[]);
            client.tell("GET /digits HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
            let answer = client.rest().unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\n0123456789"), "{answer}");
        });
        // One who says goodbye first, and one who asks for nothing.
        scope.spawn(|| {
            let mut client = served.client(&[]);
            assert_eq!(client.get("digits", None).1, b"0123456789");
            client.0.conn.send_close_notify();
            assert_eq!(client.rest().unwrap(), "");
        });
        scope.spawn(|| assert_eq!(served.client(&[]).rest().unwrap(), ""));
        // A hello that announces 512 bytes, and trickles.
        scope.spawn(|| {
            let hello = [22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3].into_iter().chain(std::iter::repeat(0));
            assert_eq!(trickle(&mut served.dialogue.connect(), hello), "");
        });
        // A record behind the handshake that announces 16 KiB, and trickles.
        scope.spawn(|| {
            let mut client = served.client(&[]);
            client.shake_hands();
            trickle(&mut client.0.sock, [23, 3, 3, 64, 0].into_iter().chain(std::iter::repeat(0)));
        });
        // Somebody who speaks no TLS at all, or says hello in two messages the first of which is none, is told so by an
        // alert.
        for nonsense in [&b"GET /digits HTTP/1.1\r\nHost: here\r\n\r\n"[..], b"\x16\x03\x01\0\x08\x01\0\0\0\x0e\0\0\0"]
        {
            let served = &served;
            scope.spawn(move || {
                let mut socket = served.dialogue.connect();
                socket.write_all(nonsense).unwrap();
                let told = all_of(&mut socket);
                assert!(told.starts_with("\u{15}\u{3}"), "{told:?}");
            });
        }
    });
}

#[test]
fn a_slow_client_gets_all_of_an_answer_that_ends_with_the_connection() {
    let Some(served) = Served::start(&[]) else { return };
    let buffers = "/proc/sys/net/ipv4/tcp_wmem";
    let before = std::env::var_os(WHO).map(|_| std::fs::read_to_string(buffers).unwrap());
    if before.is_some() {
        // The machine's own: a socket that holds little has parts of a record to send when the last byte is handed to
        // it.
        std::fs::write(buffers, "4096 16384 32768").unwrap();
    }
    // Elsewhere each of them takes a second.
    let rounds = if before.is_some() { 50 } else { 2 };
    for number in 0..400 + rounds {
        std::fs::write(served.dialogue.path(&format!("{number:0240}")), "").unwrap();
        if number < 400 {
            continue;
        }
        let mut client = served.client(&[]);
        rustix::net::sockopt::set_socket_recv_buffer_size(&client.0.sock, 8192).unwrap();
        client.tell("GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
        // All of it is on its way before any of it is taken.
        client.0.sock.peek(&mut [0]).unwrap();
        let answer = client.rest().unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let (_, length) = head.split_once("content-length: ").unwrap();
        assert_eq!(length.split_once('\r').unwrap().0, body.len().to_string(), "{number}");
    }
    if let Some(before) = before {
        std::fs::write(buffers, before).unwrap();
    }
}

#[test]
fn what_nobody_encrypted_is_not_answered() {
    let Some(served) = Served::start(&[]) else { return };
    for forged in [23, 22, 21, 20, 0] {
        let mut client = served.client(&[]);
        assert_eq!(client.get("digits", None).1, b"0123456789");
        client.0.sock.write_all(&[&[forged, 3, 3, 0, 32], &[7; 32][..]].concat()).unwrap();
        let end = client.rest();
        assert!(!end.as_ref().is_ok_and(|answer| answer.contains("HTTP")), "{end:?}");
    }
    assert_eq!(served.client(&[]).get("digits", None).1, b"0123456789");
}

#[test]
fn a_client_may_ask_for_new_keys() {
    let Some(served) = Served::start(&[]) else { return };
    let mut client = served.client(&[]);
    assert_eq!(client.get("digits", None).1, b"0123456789");
    client.0.conn.refresh_traffic_keys().unwrap();
    if served.by_kernel() && kernel_version() < (6, 14) {
        // Such a kernel keeps the keys it has: the client is told, and begins anew.
        client.tell("GET /digits HTTP/1.1\r\nHost: here\r\n\r\n");
        let end = client.rest();
        assert!(end.as_ref().is_err_and(|error| error.to_string().contains("InternalError")), "{end:?}");
    } else {
        assert_eq!(client.get("digits", None).1, b"0123456789");
        client.0.conn.refresh_traffic_keys().unwrap();
        assert_eq!(client.get("digits", Some(2..5)).1, b"234");
    }
    assert_eq!(served.client(&[]).get("digits", None).1, b"0123456789");
}

#[test]
fn where_the_kernel_encrypts_all_of_this_is_the_same() {
    if std::env::var_os(WHO).is_some() {
        return;
    }
    let Some(kernel) = Kernel::find_cached() else {
        return skipped("no kernel in the cache; `thalweg lab build` makes one");
    };
    let test = std::env::current_exe().unwrap();
    let args = [format!("{WHO}=kernel").into(), test.into(), "serve_tls::".into(), "--test-threads=1".into()];
    let machine = Machine {
        kernel: &kernel,
        memory: ByteSize(768 << 20),
        program: Path::new("/usr/bin/env"),
        args: &args,
        directory: Path::new(env!("CARGO_MANIFEST_DIR")),
        wall_limit: Duration::from_secs(1200),
        stop: &AtomicBool::new(false),
    };
    let outcome = kernel::boot_machine(&machine).unwrap();
    let none = outcome.console.contains("skipped:") || outcome.console.contains(" 0 passed");
    assert!(outcome.code == 0 && !none, "{}", outcome.console);
}

/// Who has to encrypt: said to the tests that run in a machine.
const WHO: &str = "THALWEG_TLS_BY";

/// A server with a certificate.
struct Served {
    dialogue: Dialogue,
    roots: RootCertStore,
    _certificate: TempDir,
}

impl Served {
    fn start(more: &[&str]) -> Option<Self> {
        let directory = TempDir::new().unwrap();
        let Some((certificate, key)) = certificate(directory.path()) else {
            skipped("no openssl to make a certificate with");
            return None;
        };
        let tls = ["--certificate", certificate.to_str().unwrap(), "--key", key.to_str().unwrap()];
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(certificate.as_path()).unwrap()).unwrap();
        let served = Self { dialogue: Dialogue::start(&[&tls, more].concat()), roots, _certificate: directory };
        let who = std::env::var(WHO);
        assert!(who.is_err() || served.dialogue.ready["tls"] == who.unwrap(), "{}", served.dialogue.ready);
        Some(served)
    }

    fn by_kernel(&self) -> bool {
        self.dialogue.ready["tls"] == "kernel"
    }

    /// A client that knows these ciphers, or all.
    fn client(&self, suites: &[SupportedCipherSuite]) -> Client {
        let mut provider = rustls::crypto::ring::default_provider();
        if !suites.is_empty() {
            provider.cipher_suites = suites.to_vec();
        }
        let versions: Vec<_> = rustls::ALL_VERSIONS
            .iter()
            .filter(|version| suites.iter().all(|suite| suite.version().version == version.version))
            .copied()
            .collect();
        let config = ClientConfig::builder_with_provider(Arc::new(provider)).with_protocol_versions(&versions).unwrap();
        let config = config.with_root_certificates(self.roots.clone()).with_no_client_auth();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        Client(StreamOwned::new(connection, self.dialogue.connect()))
    }
}

struct Client(StreamOwned<ClientConnection, TcpStream>);

impl Client {
    fn shake_hands(&mut self) {
        while self.0.conn.is_handshaking() {
            self.0.conn.complete_io(&mut self.0.sock).unwrap();
        }
    }

    fn tell(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap();
        self.0.flush().unwrap();
    }

    fn get(&mut self, name: &str, range: Option<Range<usize>>) -> (String, Vec<u8>) {
        let range = range.map(|range| format!("Range: bytes={}-{}\r\n", range.start, range.end - 1));
        self.tell(&format!("GET /{name} HTTP/1.1\r\nHost: here\r\n{}\r\n", range.unwrap_or_default()));
        let head = self.head();
        let (_, length) = head.split_once("Content-Length: ").or_else(|| head.split_once("content-length: ")).unwrap();
        let mut body = vec![0; length.split_once('\r').unwrap().0.parse().unwrap()];
        self.0.read_exact(&mut body).unwrap();
        (head, body)
    }

    fn put(&mut self, name: &str, bytes: &[u8]) -> String {
        self.tell(&format!("PUT /{name} HTTP/1.1\r\nHost: here\r\nContent-Length: {}\r\n\r\n", bytes.len()));
        self.0.write_all(bytes).unwrap();
        self.0.flush().unwrap();
        self.head()
    }

    fn head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        String::from_utf8(head).unwrap()
    }

    /// All that still comes.
    fn rest(&mut self) -> std::io::Result<String> {
        self.shake_hands();
        let mut rest = String::new();
        self.0.read_to_string(&mut rest).map(|_| rest)
    }
}

fn kernel_version() -> (u32, u32) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse().ok());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

fn certificate(directory: &Path) -> Option<(PathBuf, PathBuf)> {
    let (certificate, key) = (directory.join("server.pem"), directory.join("server.key"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]);
    openssl.args([
        "-subj",
        "/CN=test",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
    ]);
    openssl.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
    let made = openssl.output().ok()?;
    assert!(made.status.success(), "{made:?}");
    Some((certificate, key))
}
