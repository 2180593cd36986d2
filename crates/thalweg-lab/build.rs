//! Compiles the congestion controls, and lists the sources of the laboratory's kernel modules.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Names of the controls: each is `bpf/NAME.c`, which includes `bpf/cc.h` and no other file of this project.
const CONTROLS: [&str; 10] =
    ["thalweg", "bic", "highspeed", "htcp", "hybla", "lp", "scalable", "vegas", "veno", "westwood"];

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let bpf = here.join("../../bpf");
    list_kernel_modules(&here, &bpf, &out);
    if env::var_os("CARGO_FEATURE_CONGESTION_CONTROLS").is_some() {
        compile_controls(&bpf, &out);
    }
}

/// Lists the sources that are built into the laboratory's kernel, so that an installed `thalweg-lab` carries them: every
/// `kernel/modules/*.c` and `*.h`, and the files of the repository's `bpf/` directory that they include.
fn list_kernel_modules(here: &Path, bpf: &Path, out: &Path) {
    let modules = here.join("kernel/modules");
    println!("cargo::rerun-if-changed={}", modules.display());

    let mut files = BTreeMap::new();
    // Without the directory there are no modules: the kernel is then Linux unchanged.
    for entry in fs::read_dir(&modules).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
        if name.ends_with(".c") || name.ends_with(".h") {
            add_included(&path, "", bpf, &mut files);
            files.insert(name, path);
        }
    }

    let mut list = String::from("&[\n");
    for (name, path) in files {
        let path = path.canonicalize().expect("it was just read");
        writeln!(list, "    ({name:?}, include_str!({path:?})),").expect("a string takes everything");
    }
    list.push_str("]\n");
    fs::write(out.join("modules.rs"), list).expect("OUT_DIR can be written");
}

/// Adds the files from `bpf/` that `file` includes, directly or indirectly. `within` is the directory of `file` itself.
fn add_included(file: &Path, within: &str, bpf: &Path, files: &mut BTreeMap<String, PathBuf>) {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    for line in text.lines() {
        let Some(quoted) = line.trim().strip_prefix("#include \"").and_then(|rest| rest.split('"').next()) else {
            continue;
        };
        let name = format!("{within}{quoted}");
        let Some(path) = name.strip_prefix("bpf/").map(|name| bpf.join(name)) else { continue };
        // Not for the kernel's own headers, nor those that only another compiler's branch includes.
        if path.is_file() && files.insert(name, path.clone()).is_none() {
            println!("cargo::rerun-if-changed={}", path.display());
            add_included(&path, "bpf/", bpf, files);
        }
    }
}

/// Compiles the congestion controls in `bpf/` for the kernel's virtual machine.
fn compile_controls(sources: &Path, out: &Path) {
    println!("cargo::rerun-if-changed={}", sources.join("cc.h").display());
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    // libbpf's headers, of the version that will load the objects.
    let headers = env::var_os("DEP_BPF_INCLUDE").expect("libbpf-sys says where its headers are");
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
