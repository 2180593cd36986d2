//! Lists the sources that are built into the laboratory's kernel, so that an installed `thalweg` carries them: every
//! `kernel/modules/*.c` and `*.h`, and the files of the repository's `bpf/` directory that they include.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
    let modules = here.join("kernel/modules");
    let bpf = here.join("../../bpf");
    println!("cargo::rerun-if-changed={}", modules.display());

    let mut files = BTreeMap::new();
    // Without the directory there are no modules: the kernel is then Linux unchanged.
    for entry in fs::read_dir(&modules).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
        if name.ends_with(".c") || name.ends_with(".h") {
            add_included(&path, "", &bpf, &mut files);
            files.insert(name, path);
        }
    }

    let mut list = String::from("&[\n");
    for (name, path) in files {
        let path = path.canonicalize().expect("it was just read");
        writeln!(list, "    ({name:?}, include_str!({path:?})),").expect("a string takes everything");
    }
    list.push_str("]\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
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
