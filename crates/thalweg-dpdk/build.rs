//! Builds the shim, if DPDK is installed: a shared object whose bytes go into the program.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=shim");
    for variable in ["PKG_CONFIG", "PKG_CONFIG_PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    watch_descriptions();
    let object = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("shim.so");
    match (pkg_config("--cflags"), pkg_config("--libs-only-L")) {
        (Some(flags), Some(places)) => build(&object, &flags, &places),
        // An empty file means that there is no shim.
        _ => fs::write(&object, []).unwrap_or_else(|error| panic!("{}: {error}", object.display())),
    }
}

/// Places of pkg-config's descriptions where pkg-config itself is not installed.
const DESCRIPTION_PLACES: &str = "/usr/local/lib/pkgconfig:/usr/lib/x86_64-linux-gnu/pkgconfig:\
                                  /usr/lib/aarch64-linux-gnu/pkgconfig:/usr/lib64/pkgconfig:/usr/lib/pkgconfig";

/// Has this script run again when DPDK is installed, or removed: the directory changes in which its description is.
fn watch_descriptions() {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let asked = Command::new(program).args(["--variable", "pc_path", "pkg-config"]).output().ok();
    let places = asked.map_or_else(String::new, |output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let places = if places.is_empty() { DESCRIPTION_PLACES } else { &places };
    for place in places.split(':').filter(|place| Path::new(place).is_dir()) {
        println!("cargo::rerun-if-changed={place}");
    }
}

/// Returns flags for compilers and linkers. `None` if DPDK is not installed, or too old: 20.11 is the first whose
/// threads can be registered (`rte_thread_register`), and 22.11 the first that hides its bus structures.
fn pkg_config(what: &str) -> Option<Vec<String>> {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let output = Command::new(program).args([what, "libdpdk >= 22.11"]).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).split_whitespace().map(Into::into).collect())
}

fn build(object: &Path, flags: &[String], places: &[String]) {
    let compiler = cc::Build::new().opt_level(3).pic(true).debug(true).cargo_metadata(false).get_compiler();
    let mut command = compiler.to_command();
    command.args(["-shared", "-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]);
    // Warnings that DPDK's own headers cause.
    command.args(["-Wno-unused-parameter", "-Wno-sign-compare", "-Wno-deprecated-declarations"]);
    command.args(flags).arg("shim/shim.c").arg("-o").arg(object).args(places);
    command.args(["-Wl,--as-needed", "-Wl,-z,defs"]);
    command.args(["-lrte_ethdev", "-lrte_mbuf", "-lrte_mempool", "-lrte_ring", "-lrte_eal"]);
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("the compiler did not make the shim for DPDK: {status}"),
        Err(error) => panic!("{}: {error}", compiler.path().display()),
    }
}
