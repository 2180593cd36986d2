//! Compiles the congestion controls in `bpf/` for the kernel's virtual machine.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// Names of the controls: each is `bpf/NAME.c`, which includes `bpf/cc.h` and no other file of this project.
const CONTROLS: [&str; 10] =
    ["thalweg", "bic", "highspeed", "htcp", "hybla", "lp", "scalable", "vegas", "veno", "westwood"];

fn main() {
    let sources = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo")).join("../../bpf");
    println!("cargo::rerun-if-changed={}", sources.join("cc.h").display());
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    // libbpf's headers, of the version that will load the objects.
    let headers = env::var_os("DEP_BPF_INCLUDE").expect("libbpf-sys says where its headers are");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let architecture = match env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "-D__TARGET_ARCH_x86",
        Ok("aarch64") => "-D__TARGET_ARCH_arm64",
        other => panic!("the congestion controls are not known to work on {other:?}"),
    };

    for name in CONTROLS {
        let source = sources.join(name).with_extension("c");
        println!("cargo::rerun-if-changed={}", source.display());
        let object = out.join(name).with_extension("o");
        let status = Command::new(&clang)
            .args([
                "-O2",
                "-g",
                "-target",
                "bpf",
                "-mcpu=v3",
                "-Wall",
                "-Werror",
                "-fdebug-compilation-dir=.",
                architecture,
            ])
            .arg("-I")
            .arg(&headers)
            .arg("-c")
            .arg(&source)
            .arg("-o")
            .arg(&object)
            .status();
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => panic!("{} did not compile {}: {status}", clang.display(), source.display()),
            Err(error) => panic!(
                "{}: {error}. The congestion controls are compiled with clang: apt-get install clang (or name it in CLANG)",
                clang.display()
            ),
        }
    }
}
