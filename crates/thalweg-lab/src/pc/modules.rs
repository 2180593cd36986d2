//! Kernel modules that Debian leaves out, compiled for its kernel, without building a kernel.

use crate::pc::setup::{PrepareError, Setup};
use crate::steps::StepError;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// A part of Linux's source that is compiled to modules.
struct Source {
    name: &'static str,
    /// Directories, all of whose `*.c` and `*.h` are taken, and single files.
    from: &'static [&'static str],
    /// Name and text of a file of this crate that is compiled with them.
    own: Option<(&'static str, &'static str)>,
    kbuild: &'static str,
}

/// Source files in Linux 6.1. Each configuration symbol is defined by hand, as Debian's configuration has it off.
const SOURCES: &[Source] = &[
    // CONFIG_VFIO_NOIOMMU changes vfio.ko only: Debian's vfio-pci.ko loads on top of this one.
    Source {
        name: "vfio",
        from: &["drivers/vfio"],
        own: None,
        kbuild: "ccflags-y += -DCONFIG_VFIO_NOIOMMU=1\n\
                 obj-m += vfio.o\n\
                 vfio-y := vfio_main.o iova_bitmap.o container.o\n",
    },
    Source {
        name: "siw",
        from: &["drivers/infiniband/sw/siw"],
        own: None,
        kbuild: "obj-m += siw.o\n\
                 siw-y := siw_cm.o siw_cq.o siw_main.o siw_mem.o siw_qp.o siw_qp_tx.o siw_qp_rx.o siw_verbs.o\n",
    },
    Source {
        name: "iio",
        from: &["drivers/iio/dummy", "drivers/iio/industrialio-configfs.c", "drivers/iio/industrialio-sw-device.c"],
        own: None,
        kbuild: "ccflags-y += -DCONFIG_IIO_CONFIGFS=1 -DCONFIG_IIO_SW_DEVICE=1 -DCONFIG_IIO_SIMPLE_DUMMY_BUFFER=1\n\
                 ccflags-y += -I$(src)\n\
                 obj-m += industrialio-configfs.o industrialio-sw-device.o iio_dummy.o\n\
                 iio_dummy-y := iio_simple_dummy.o iio_simple_dummy_buffer.o\n",
    },
    Source {
        name: "udmabuf",
        from: &["drivers/dma-buf/udmabuf.c"],
        own: Some(("module.c", include_str!("../../pc/udmabuf.c"))),
        kbuild: "obj-m += udmabuf.o\n\
                 udmabuf-y := module.o\n",
    },
];

/// Returns all texts that the modules are made of, apart from the packages.
pub(crate) fn recipe_texts() -> impl Iterator<Item = &'static str> {
    SOURCES.iter().flat_map(|source| {
        let own = source.own.into_iter().flat_map(|(name, text)| [name, text]);
        [source.name, source.kbuild].into_iter().chain(source.from.iter().copied()).chain(own)
    })
}

/// Returns the names of the packages that compiling for a kernel of this version needs.
pub(crate) fn required_packages(setup: &Setup, version: &str) -> Result<Vec<String>, PrepareError> {
    let headers = format!("linux-headers-{version}");
    let mut all = setup.package_dependencies(&headers)?;
    all.extend([headers, source_package(version)]);
    Ok(all)
}

/// Compiles the modules into a directory. `unpacked` has the packages.
pub(crate) fn compile_modules(setup: &Setup, unpacked: &Path, version: &str, into: &Path) -> Result<(), StepError> {
    let headers = unpacked.join("usr/src").join(format!("linux-headers-{version}"));
    // The headers refer to their common part by the path at which it would be installed.
    let makefile = headers.join("Makefile");
    let text = fs::read_to_string(&makefile).map_err(StepError::file_error(&makefile))?;
    let unpacked_src = unpacked.join("usr/src");
    let text = text.replace("include /usr/src", &format!("include {}", unpacked_src.display()));
    fs::write(&makefile, text).map_err(StepError::file_error(&makefile))?;

    let name = source_package(version);
    let mut tar = Command::new("tar");
    tar.arg("-xJf").arg(unpacked_src.join(format!("{name}.tar.xz"))).arg("-C").arg(unpacked);
    tar.args(SOURCES.iter().flat_map(|source| source.from).map(|path| format!("{name}/{path}")));
    setup.run_step("unpacking the kernel's source", "tar", &mut tar)?;

    let cores = thread::available_parallelism().map_or(1, usize::from);
    for source in SOURCES {
        let room = unpacked.join("modules").join(source.name);
        fs::create_dir_all(&room).map_err(StepError::file_error(&room))?;
        for from in source.from {
            copy_sources(&unpacked.join(&name).join(from), &room)?;
        }
        for (name, text) in source.own.into_iter().chain([("Kbuild", source.kbuild)]) {
            let path = room.join(name);
            fs::write(&path, text).map_err(StepError::file_error(&path))?;
        }
        let mut make = Command::new("make");
        make.arg(format!("-j{cores}")).arg("-C").arg(&headers);
        make.arg(format!("M={}", room.display())).arg("modules");
        setup.run_step("compiling kernel modules", "make", &mut make)?;
        for module in directory_files(&room)?.iter().filter(|path| path.extension().is_some_and(|end| end == "ko")) {
            let mut strip = Command::new("strip");
            strip.arg("-g").arg(module).arg("-o").arg(into.join(module.file_name().unwrap_or_default()));
            setup.run_step("stripping a kernel module", "strip", &mut strip)?;
        }
    }
    Ok(())
}

/// Returns the package of a kernel's source: `linux-source-6.1` for `6.1.0-41-amd64`.
fn source_package(version: &str) -> String {
    let numbers: Vec<&str> = version.splitn(3, '.').take(2).collect();
    format!("linux-source-{}", numbers.join("."))
}

/// Copies one file, or the C files of a directory.
fn copy_sources(from: &Path, into: &Path) -> Result<(), StepError> {
    let all = if from.is_dir() { directory_files(from)? } else { vec![from.to_owned()] };
    for path in all.iter().filter(|path| path.extension().is_some_and(|end| end == "c" || end == "h")) {
        fs::copy(path, into.join(path.file_name().unwrap_or_default())).map_err(StepError::file_error(path))?;
    }
    Ok(())
}

fn directory_files(directory: &Path) -> Result<Vec<PathBuf>, StepError> {
    let list = fs::read_dir(directory).map_err(StepError::file_error(directory))?;
    list.map(|entry| entry.map(|entry| entry.path()).map_err(StepError::file_error(directory))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_compiled_from_its_own_source() {
        assert_eq!(source_package("6.1.0-41-amd64"), "linux-source-6.1");
    }
}
