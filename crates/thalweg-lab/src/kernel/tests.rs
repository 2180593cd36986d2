use super::boot::{self, BootError, Machine, boot_machine};
use super::build::{Build, Source};
use super::recipe;
use super::*;
use crate::steps::{StepError, fnv1a_hash};
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use thalweg_testing::skip::skipped;
use thalweg_testing::wait::wait_until;
use thalweg_text::ByteSize;

static NEVER: AtomicBool = AtomicBool::new(false);

/// A machine with little memory and much time.
fn machine<'a>(kernel: &'a Kernel, args: &'a [OsString], directory: &'a Path) -> Machine<'a> {
    Machine {
        kernel,
        memory: ByteSize(128 << 20),
        program: Path::new("/bin/sh"),
        args,
        directory,
        wall_limit: Duration::from_secs(600),
        stop: &NEVER,
    }
}

fn shell_args(script: &str) -> [OsString; 2] {
    ["-c".into(), script.into()]
}

fn built() -> Option<Kernel> {
    let kernel = Kernel::find_cached();
    if kernel.is_none() {
        skipped("no kernel is built (`thalweg lab build`)");
    }
    kernel
}

/// Returns a copy of the kernel, by which its processes differ from those of other tests.
fn copied(kernel: &Kernel, directory: &Path) -> Kernel {
    let copy = directory.join("linux");
    fs::copy(kernel.path(), &copy).unwrap();
    Kernel::at_path(copy.canonicalize().unwrap())
}

/// Returns the number of the host's processes of machines with this kernel: itself, and each program inside.
fn processes(kernel: &Kernel) -> usize {
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter(|entry| fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == kernel.path())).count()
}

#[test]
fn the_hash_is_fnv1a_and_tells_where_texts_end() {
    // "foobar", from the reference's test vectors, without the zero byte that ends each text here.
    let foobar = 0x8594_4171_f739_67e8_u64;
    assert_eq!(fnv1a_hash(["foobar"].into_iter(), 0), foobar.wrapping_mul(0x0100_0000_01b3));
    assert_ne!(fnv1a_hash(["ab", "c"].into_iter(), 0), fnv1a_hash(["a", "bc"].into_iter(), 0));
}

#[test]
fn a_configuration_line_that_did_not_survive_is_named() {
    let wanted = "# why\nCONFIG_INET=y\nCONFIG_BLOCK=n\nCONFIG_HZ=1000\n";
    let good = "CONFIG_INET=y\n# CONFIG_BLOCK is not set\nCONFIG_BLOCKER=y\nCONFIG_HZ=1000\n";
    assert!(recipe::rejected_config_lines(wanted, good).is_empty());
    let bad = "# CONFIG_INET is not set\nCONFIG_BLOCK=y\nCONFIG_HZ=100\n";
    assert_eq!(recipe::rejected_config_lines(wanted, bad), ["CONFIG_INET=y", "CONFIG_BLOCK=n", "CONFIG_HZ=1000"]);
}

#[test]
fn each_module_is_an_object_and_what_it_includes_is_not() {
    let text = recipe::modules_makefile(["bpf/cc.h", "bpf/thalweg.c", "record.c", "record.h"].into_iter());
    let objects: Vec<_> = text.lines().filter(|line| line.starts_with("obj-y")).collect();
    assert_eq!(objects, ["obj-y += record.o"]);
}

#[test]
fn a_linux_that_is_not_as_expected_is_refused() {
    let source = tempfile::tempdir().unwrap();
    fs::create_dir_all(source.path().join("arch/um")).unwrap();
    fs::write(source.path().join("arch/um/Kconfig"), "config HZ\n\tint \"choose\"\n").unwrap();
    let error = recipe::apply_changes(source.path()).unwrap_err().to_string();
    assert!(error.contains("arch/um/Kconfig") && error.contains("not supported"), "{error}");
}

fn best_after_adding(directory: &Path, name: &str) -> String {
    let path = directory.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "xz").unwrap();
    Source::find_best_in(directory).unwrap().version
}

#[test]
fn of_several_sources_the_one_that_was_tried_is_taken() {
    let usr_src = tempfile::tempdir().unwrap();
    assert_eq!(Source::find_best_in(usr_src.path()), None);
    fs::write(usr_src.path().join("linux-config-6.1.tar.xz"), "").unwrap();
    assert_eq!(best_after_adding(usr_src.path(), "linux-source-6.8.0/linux-source-6.8.0.tar.bz2"), "6.8.0");
    assert_eq!(best_after_adding(usr_src.path(), "linux-source-6.16.tar.xz"), "6.16");
    assert_eq!(best_after_adding(usr_src.path(), "linux-source-6.12.tar.xz"), "6.12");
    assert_eq!(best_after_adding(usr_src.path(), "linux-source-6.1.tar.xz"), "6.1");
}

#[test]
fn a_step_that_fails_says_why_and_where_the_rest_is() {
    let room = tempfile::tempdir().unwrap();
    let source = Source { path: room.path().join("linux-source-6.1.tar.xz"), version: "6.1".into(), length: 0 };
    let build = Build { source: &source, room: room.path(), log: room.path().join("build.log") };
    let mut seen = Vec::new();
    let mut make = build.build_command("sh");
    make.args([
        "-c",
        "echo '  CC a.o'; echo 'a.c:1:2: error: no such thing' >&2; echo 'make: *** [a.o] Error 1'; exit 2",
    ]);
    let error = build.run_step("compiling", "sh", &mut make, |line| seen.push(line.to_vec())).unwrap_err();
    let StepError::Failed { step: "compiling", last, log, .. } = error else { panic!("{error}") };
    assert_eq!(last, "a.c:1:2: error: no such thing");
    assert_eq!(seen.concat(), fs::read(log).unwrap());
    assert!(seen[0].starts_with(b"  CC "));
}

#[test]
fn the_script_keeps_every_byte_of_a_name() {
    let odd = OsString::from_vec(b"it's $HOME\n\xff".to_vec());
    let args = ["-c".into(), "printf %s \"$1\" >&2; exit 7".into(), "sh".into(), odd.clone()];
    let script = boot::init_script(Path::new("sh"), &args, Path::new("/a b"), Path::new("/r"), "</dev/null");
    let line = script.windows(4).position(|bytes| bytes == b"'sh'").unwrap();
    let end = line + script[line..].windows(10).position(|bytes| bytes == b"</dev/null").unwrap();
    let output = Command::new("sh").arg("-c").arg(OsString::from_vec(script[line..end].to_vec())).output().unwrap();
    assert_eq!((output.status.code(), OsString::from_vec(output.stderr)), (Some(7), odd));
}

#[test]
fn a_result_is_an_exit_code_and_a_time() {
    assert_eq!(boot::parse_result("3 12.34\n"), Some((3, Duration::from_millis(12_340))));
    for broken in ["", "3", "x 1.0", "3 -1", "3 NaN", "3 1e300"] {
        assert_eq!(boot::parse_result(broken), None, "{broken}");
    }
}

#[test]
fn what_is_no_kernel_is_not_started() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("linux");
    let kernel = Kernel::at_path(&path);
    assert!(matches!(boot_machine(&machine(&kernel, &[], directory.path())).unwrap_err(), BootError::File { .. }));
    for text in ["", "#!/bin/sh\ntouch oops\n"] {
        fs::write(&path, text).unwrap();
        assert!(
            matches!(boot_machine(&machine(&kernel, &[], directory.path())).unwrap_err(), BootError::NotAKernel(_)),
            "{text}"
        );
    }
}

#[test]
fn a_program_that_is_no_kernel_leaves_no_result() {
    let directory = tempfile::tempdir().unwrap();
    let error = boot_machine(&machine(&Kernel::at_path("/bin/echo"), &[], directory.path())).unwrap_err();
    let BootError::Died { status, console } = error else { panic!("{error}") };
    assert!(status.success() && console.contains("rootfstype=hostfs"), "{console}");
}

#[test]
fn memory_that_no_place_has_room_for_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let kernel = Kernel::at_path("/bin/echo");
    let error =
        boot_machine(&Machine { memory: ByteSize(1 << 60), ..machine(&kernel, &[], directory.path()) }).unwrap_err();
    assert!(error.to_string().contains("/dev/shm: "), "{error}");
}

#[test]
fn a_program_runs_under_virtual_time_and_its_end_is_known() {
    let Some(kernel) = built() else { return };
    let directory = tempfile::tempdir().unwrap();
    let args = shell_args("sleep 1000; ip link show lo; echo text >file; echo done; exit 42");
    let outcome = boot_machine(&machine(&kernel, &args, directory.path())).unwrap();
    assert_eq!(outcome.code, 42, "{}", outcome.console);
    assert!(outcome.console.contains("<LOOPBACK,UP,LOWER_UP>"), "{}", outcome.console);
    assert!(outcome.console.contains("\ndone\n"), "{}", outcome.console);
    assert_eq!(fs::read_to_string(directory.path().join("file")).unwrap(), "text\n");
    assert!(outcome.virtual_time >= Duration::from_secs(1000), "{:?}", outcome.virtual_time);
    assert!(outcome.wall_time < outcome.virtual_time);
}

#[test]
fn the_kernel_has_what_the_laboratory_is_made_of() {
    let Some(kernel) = built() else { return };
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let args = shell_args(
        "set -e
        cat /proc/sys/net/ipv4/tcp_available_congestion_control
        ip netns add a; ip netns add b
        ip link add e0 netns a type veth peer name e0 netns b
        ip link add switch type bridge
        ip -n a link set e0 mtu 9000 up
        tc -n a qdisc add dev e0 root handle 1: netem delay 1ms
        tc -n b qdisc add dev e0 root tbf rate 1gbit burst 9100 limit 340000
        tc -n a qdisc replace dev e0 root fq
        pwd >here",
    );
    let outcome = boot_machine(&machine(&kernel, &args, directory.path())).unwrap();
    assert_eq!(outcome.code, 0, "{}", outcome.console);
    for name in "reno bbr bic cubic dctcp westwood highspeed hybla htcp vegas veno scalable lp".split(' ') {
        assert!(outcome.console.split_whitespace().any(|word| word == name), "{name}: {}", outcome.console);
    }
    // The machine's own /dev/shm hides the host's, but not the directory.
    let here = fs::read_to_string(directory.path().join("here")).unwrap();
    assert_eq!(here.trim(), directory.path().to_str().unwrap());
}

#[test]
fn two_runs_of_the_same_program_are_the_same() {
    let Some(kernel) = built() else { return };
    let directory = tempfile::tempdir().unwrap();
    let args = shell_args("ip netns add a; cat /proc/sys/kernel/random/uuid; cat /proc/uptime");
    let machine = machine(&kernel, &args, directory.path());
    let (first, second) = (boot_machine(&machine).unwrap(), boot_machine(&machine).unwrap());
    assert_eq!(first.virtual_time, second.virtual_time);
}

#[test]
fn a_program_that_never_waits_is_ended_by_the_wall_limit_and_nothing_is_left() {
    let Some(kernel) = built() else { return };
    let directory = tempfile::tempdir().unwrap();
    let kernel = copied(&kernel, directory.path());
    let args = shell_args("sh -c 'while :; do :; done' & while :; do :; done");
    let limit = Duration::from_secs(10);
    let error = boot_machine(&Machine { wall_limit: limit, ..machine(&kernel, &args, directory.path()) }).unwrap_err();
    assert!(matches!(error, BootError::WallLimit { .. }), "{error}");
    assert_eq!(processes(&kernel), 0);
}

#[test]
fn a_machine_can_be_stopped() {
    let Some(kernel) = built() else { return };
    let directory = tempfile::tempdir().unwrap();
    let kernel = copied(&kernel, directory.path());
    let args = shell_args("echo begun >begun; sync; while :; do :; done");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let machine = Machine { stop: &stop, ..machine(&kernel, &args, directory.path()) };
        let booted = scope.spawn(move || boot_machine(&machine));
        wait_until("the kernel", || directory.path().join("begun").exists());
        assert!(processes(&kernel) > 1);
        stop.store(true, Ordering::Relaxed);
        assert!(matches!(booted.join().unwrap(), Err(BootError::Stopped)));
        assert_eq!(processes(&kernel), 0);
    });
}

#[test]
fn a_kernel_that_panics_shows_its_last_words() {
    let Some(kernel) = built() else { return };
    let directory = tempfile::tempdir().unwrap();
    let args = shell_args("echo c >/proc/sysrq-trigger; sleep 1");
    let error = boot_machine(&machine(&kernel, &args, directory.path())).unwrap_err();
    assert!(matches!(error, BootError::Died { .. }), "{error}");
    assert!(error.to_string().contains("Kernel panic"), "{error}");
}
