//! Recorded runs as files: `thalweg mount` of a `thalweg serve`, read by programs that know of neither.

use crate::common::node::Ended;
use crate::common::served::{Machines, Served, assert_same, big, record, start};
use crate::common::*;
use rustix::io::Errno;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;
use thalweg_testing::skip::skipped;
use thalweg_testing::wait::wait_until;

/// A directory that shows what a server has, as long as this lives.
struct Mounted {
    /// Nothing once it has ended.
    node: Option<Node>,
    at: PathBuf,
}

impl Mounted {
    /// Nothing where this machine has no FUSE, which it says.
    fn start(url: &str, at: &Path) -> Option<Self> {
        Self::start_for(url, at, "60s")
    }

    /// The same, which waits so long for a server that does not answer.
    fn start_for(url: &str, at: &Path, timeout: &str) -> Option<Self> {
        if let Some(reason) = cannot_mount() {
            skipped(format_args!("mount: {reason}"));
            return None;
        }
        let mut node = start(&["mount", "--timeout", timeout, url], &[at]);
        node.wait_for("\"directory\"");
        Some(Self { node: Some(node), at: at.to_owned() })
    }

    fn path(&self, path: &str) -> PathBuf {
        self.at.join(path)
    }

    /// Ends it as Ctrl-C does.
    fn stop(mut self) -> Ended {
        let node = self.node.take().unwrap();
        node.interrupt();
        node.finish()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.node.is_some() {
            unmount(&self.at);
        }
    }
}

/// Why this machine, or this user of it, cannot mount.
fn cannot_mount() -> Option<String> {
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        return Some(format!("/dev/fuse: {error}"));
    }
    let helped = || Command::new("fusermount3").arg("-V").output().is_ok();
    (!rustix::process::geteuid().is_root() && !helped()).then(|| "neither root nor fusermount3".to_owned())
}

#[track_caller]
fn fails_with<T: std::fmt::Debug>(result: std::io::Result<T>, errno: Errno) {
    let error = result.unwrap_err();
    assert_eq!(Errno::from_io_error(&error), Some(errno), "{error}");
}

/// As any user may, and as root may.
fn unmount(at: &Path) -> bool {
    let done = |command: &mut Command| command.arg(at).status().is_ok_and(|status| status.success());
    done(Command::new("umount").arg("-l")) || done(Command::new("fusermount3").arg("-uz"))
}

/// What a program says on its standard output.
#[track_caller]
fn said(program: &str, arguments: &[&Path]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_program_reads_what_was_recorded() {
    let Machines { here, there, .. } = &Machines::new();
    let recorded = record(there);
    let whole = big(&there.join("export.h5"), 48);
    std::fs::create_dir(there.join("a b")).unwrap();
    std::fs::write(there.join("a b/50% é?.txt"), "text").unwrap();
    std::fs::write(there.join("empty"), "").unwrap();
    std::fs::write(there.join(".hidden"), "secret").unwrap();
    let served = Served::start(there, &[]);
    let Some(mounted) = Mounted::start(&served.url(""), here) else { return };

    let digest = |path: &Path| said("sha256sum", &[path]).split(' ').next().unwrap().to_owned();
    assert_eq!(digest(&mounted.path("export.h5")), digest(&there.join("export.h5")));
    assert_eq!(std::fs::read(mounted.path("a b/50% é?.txt")).unwrap(), b"text");
    assert_eq!(std::fs::read(mounted.path("empty")).unwrap(), b"");
    assert_same(&recorded, &mounted.path("run-000001"));
    check_intact(&mounted.path("run-000001"));

    // What `stat` shows, and what `ls -l` prints.
    let (copy, original) = (mounted.path("export.h5").metadata().unwrap(), there.join("export.h5").metadata().unwrap());
    assert_eq!((copy.len(), copy.mtime(), copy.mode() & 0o777), (original.len(), original.mtime(), 0o444));
    let listed = said("ls", &[Path::new("-l"), here]);
    assert!(listed.contains(&format!(" {} ", whole.len())) && !listed.contains("hidden"), "{listed}");
    assert_eq!(listed.lines().count(), 1 + 4, "{listed}");
    fails_with(mounted.path(".hidden").metadata(), Errno::NOENT);
    fails_with(mounted.path("nothing").metadata(), Errno::NOENT);
    fails_with(File::create(mounted.path("new")), Errno::ROFS);
    fails_with(std::fs::remove_file(mounted.path("empty")), Errno::ROFS);

    let report = mounted.stop().report(0);
    assert_eq!(number(&report, "/errors"), 0, "{report:#}");
    assert!(number(&report, "/read_bytes") >= whole.len() as u64, "{report:#}");
    assert_eq!(std::fs::read_dir(here).unwrap().count(), 0, "nothing is mounted any more");
}

#[test]
fn threads_that_jump_about_get_their_bytes_and_fetch_little_more() {
    let Machines { here, there, .. } = &Machines::new();
    let whole = &big(&there.join("export.h5"), 64);
    let served = Served::start(there, &[]);
    let Some(mounted) = Mounted::start(&served.url(""), here) else { return };
    let file = &File::open(mounted.path("export.h5")).unwrap();
    thread::scope(|scope| {
        for thread in 0..8_u64 {
            scope.spawn(move || {
                for read in 0..50 {
                    let at = (thread * 50 + read).wrapping_mul(0x9e37_79b9_7f4a_7c15) % (whole.len() as u64 - 5000);
                    let mut bytes = vec![0; 1 + (at % 5000) as usize];
                    file.read_exact_at(&mut bytes, at).unwrap();
                    assert!(bytes == whole[at as usize..][..bytes.len()], "{at}");
                }
            });
        }
    });
    let report = mounted.stop().report(0);
    let (read, fetched) = (number(&report, "/read_bytes"), number(&report, "/fetched_bytes"));
    assert!(fetched <= read + read / 2, "{report:#}");
}

#[test]
fn a_run_that_is_being_recorded_is_seen_to_grow() {
    let system = System::new(&Plan { source: "rate = 200.0", ..PLAN });
    let mut recording = system.run();
    recording.wait_for("recording");
    let Machines { here, .. } = &Machines::new();
    let served = Served::start(&system.path("runs"), &[]);
    let Some(mounted) = Mounted::start(&served.url("runs/1"), here) else { return };
    let segment = mounted.path("00000.seg");
    wait_until("the first block", || segment.metadata().is_ok_and(|segment| segment.len() > 0));
    // A file that is open gets longer, block by block, and what was read stays.
    let mut file = File::open(&segment).unwrap();
    let mut bytes = Vec::new();
    wait_until("8 MiB", || {
        file.by_ref().take(1 << 20).read_to_end(&mut bytes).unwrap();
        bytes.len() >= 8 << 20
    });
    // The lock that its writer holds is not seen from here.
    assert_eq!(thalweg_store::check_writer_life(&mounted.path(".")), thalweg_store::WriterLife::Unknown);
    let age = segment.metadata().unwrap().modified().unwrap().elapsed();
    assert!(age.as_ref().is_ok_and(|age| *age < Duration::from_secs(3600)), "{age:?}");
    recording.interrupt();
    recording.finish().report(0);
    let recorded = std::fs::read(system.run_directory().join("00000.seg")).unwrap();
    assert!(recorded.starts_with(&bytes), "{} bytes of {}", bytes.len(), recorded.len());

    // When it has ended all of it is there, also for who looked while it was being written.
    let info = system.run_directory().join("run.json");
    wait_until("the whole run", || {
        std::fs::read(mounted.path("run.json")).unwrap() == std::fs::read(&info).unwrap()
            && segment.metadata().unwrap().len() == recorded.len() as u64
    });
    file.read_to_end(&mut bytes).unwrap();
    assert!(bytes == recorded);
    assert_same(&system.run_directory(), here);
    check_intact(here);
    mounted.stop().report(0);
}

#[test]
fn no_reader_gets_bytes_of_two_files() {
    let Machines { here, there, .. } = &Machines::new();
    let before = big(&there.join("export.h5"), 8);
    let served = Served::start(there, &[]);
    let Some(mounted) = Mounted::start(&served.url(""), here) else { return };
    let file = File::open(mounted.path("export.h5")).unwrap();
    let mut bytes = [0; 4096];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == before[..4096]);

    // Another file of the same name, length and date.
    let dated = there.join("export.h5").metadata().unwrap().modified().unwrap();
    let after: Vec<u8> = before.iter().rev().copied().collect();
    std::fs::write(there.join("other"), &after).unwrap();
    File::options().write(true).open(there.join("other")).unwrap().set_modified(dated).unwrap();
    std::fs::rename(there.join("other"), there.join("export.h5")).unwrap();
    fails_with(file.read_exact_at(&mut bytes, 4 << 20), Errno::STALE);
    // Who opens it gets the new one, whole.
    assert!(std::fs::read(mounted.path("export.h5")).unwrap() == after);

    // One that was looked at and becomes longer before it is opened is not cut off.
    std::fs::write(there.join("notes.txt"), "one").unwrap();
    wait_until("the new file", || mounted.path("notes.txt").metadata().is_ok());
    std::fs::write(there.join("notes.txt"), "one, and two").unwrap();
    assert_eq!(std::fs::read(mounted.path("notes.txt")).unwrap(), b"one, and two");

    std::fs::remove_file(there.join("export.h5")).unwrap();
    fails_with(File::open(mounted.path("export.h5")), Errno::NOENT);
    mounted.stop().report(0);
}

#[test]
fn a_server_that_is_gone_is_an_error_and_one_that_is_back_is_none() {
    let Machines { here, there, .. } = &Machines::new();
    let whole = big(&there.join("export.h5"), 8);
    let (_port, address) = reserve_port();
    let served = Served::start_at(&address.to_string(), there, &[]);
    let Some(mut mounted) = Mounted::start_for(&served.url(""), here, "3s") else { return };
    let file = File::open(mounted.path("export.h5")).unwrap();
    let mut bytes = [0; 4096];
    file.read_exact_at(&mut bytes, 0).unwrap();
    served.node.kill();
    // Each of many reads, without waiting for each: reads that are under way when the server is given up wait together.
    for read in 1..100 {
        fails_with(file.read_exact_at(&mut bytes, read << 16), Errno::IO);
    }
    mounted.node.as_mut().unwrap().wait_for("trying again for 3s");
    let _served = Served::start_at(&address.to_string(), there, &[]);
    file.read_exact_at(&mut bytes, 4 << 20).unwrap();
    assert!(bytes == whole[4 << 20..][..4096]);
    let ended = mounted.stop();
    assert!(ended.stderr.contains("responds again"), "{ended:?}");
    assert!(ended.stderr.lines().count() < 10, "it is said once: {ended:?}");
    assert!(number(&ended.report(0), "/errors") >= 99, "{ended:?}");
}

#[test]
fn it_ends_when_somebody_unmounts_it_and_when_it_is_in_use() {
    let Machines { here, there, .. } = &Machines::new();
    std::fs::write(there.join("a.txt"), "text").unwrap();
    let served = Served::start(there, &[]);
    let Some(mut mounted) = Mounted::start(&served.url(""), here) else { return };
    assert_eq!(std::fs::read(mounted.path("a.txt")).unwrap(), b"text");
    assert!(unmount(here));
    mounted.node.take().unwrap().finish().report(0);

    let Some(mounted) = Mounted::start(&served.url(""), here) else { return };
    let file = File::open(mounted.path("a.txt")).unwrap();
    mounted.stop().report(0);
    assert_eq!(std::fs::read_dir(here).unwrap().count(), 0);
    fails_with(file.read_at(&mut [0; 4], 0), Errno::NOTCONN);
}

#[test]
fn what_a_program_leaves_that_was_killed_is_said_to_be_that() {
    let Machines { here, there, .. } = &Machines::new();
    let served = Served::start(there, &[]);
    let Some(mut mounted) = Mounted::start(&served.url(""), here) else { return };
    mounted.node.take().unwrap().kill();
    let ended = start(&["mount", &served.url("")], &[here]).finish();
    assert!(ended.report(2)["error"].as_str().unwrap().contains("fusermount3 -u"), "{ended:?}");
    assert!(unmount(here));
    Mounted::start(&served.url(""), here).unwrap().stop().report(0);
}

#[test]
fn what_cannot_be_mounted_is_said_before_anything_is() {
    let Machines { here, there, .. } = &Machines::new();
    std::fs::write(there.join("a.txt"), "text").unwrap();
    let (_port, address) = reserve_port();
    let served = Served::start_at(&address.to_string(), there, &[]);
    let mount = |url: &str, at: &Path| start(&["mount", "--timeout", "0s", url], &[at]).finish();
    for (url, at) in [
        (served.url("absent"), here.clone()),
        (served.url("a.txt"), here.clone()),
        (served.url(""), here.join("absent")),
        (served.url(""), there.join("a.txt")),
        ("ftp://host/".to_owned(), here.clone()),
    ] {
        let ended = mount(&url, &at);
        assert!(ended.report(2)["error"].is_string(), "{ended:?}");
    }
    let url = served.url("");
    served.node.kill();
    mount(&url, here).failed_saying("Connection refused");
    assert_eq!(std::fs::read_dir(here).unwrap().count(), 0);
}
