//! Compiles the program in `bpf/xdp/` that steers datagrams, for the kernel's virtual machine.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=CLANG");
    let source = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo")).join("../../bpf/xdp/steer.c");
    println!("cargo::rerun-if-changed={}", source.display());
    // Without the feature neither libbpf's headers nor clang need to be here.
    if env::var_os("CARGO_FEATURE_AF_XDP").is_none() {
        return;
    }
    let clang = env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    // libbpf's headers, from the very version that will load the object.
    let headers = env::var_os("DEP_BPF_INCLUDE").expect("libbpf-sys says where its headers are");
    let object = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("steer.o");
    // The kernel and the program agree on the order of bytes.
    let target = match env::var("CARGO_CFG_TARGET_ENDIAN").as_deref() {
        Ok("little") => "bpfel",
        other => panic!("the program that steers datagrams is not known to work with bytes in order {other:?}"),
    };
    let status = Command::new(&clang)
        .args(["-O2", "-g", "-target", target, "-mcpu=v3", "-Wall", "-Werror", "-fdebug-compilation-dir=."])
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
            "{}: {error}. The program that steers datagrams is compiled with clang: apt-get install clang (or name it \
             in CLANG), or leave it out: --no-default-features",
            clang.display()
        ),
    }
}
