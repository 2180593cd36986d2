//! Ingredients of the kernel besides Linux: the configuration, changes to its text, our modules.

use crate::steps;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The configuration, as a list of additions to `allnoconfig`.
pub(super) const CONFIG: &str = include_str!("../../kernel/config");

/// Names and texts of the files that are compiled in, see the [module's documentation](super).
pub(super) const MODULES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// Additional directories for an `#include` in our files, and the strictness of the compiler with them.
const MODULES_FLAGS: &str = "ccflags-y := -I$(srctree)/net/ipv4 -I$(srctree)/$(src) -Werror\n";

/// A change to one file of Linux: every `from` becomes `to`.
struct Change {
    file: &'static str,
    from: &'static str,
    to: &'static str,
}

const CHANGES: &[Change] = &[
    // User-Mode Linux offers no choice of HZ, which is 100. TCP's timers count in jiffies: a tail loss probe waits for
    // two of them at least, and bic and cubic measure their epochs in them. RHEL and Ubuntu run at 1000.
    Change {
        file: "arch/um/Kconfig",
        from: "config HZ\n\tint\n\tdefault 100\n",
        to: "config HZ\n\tint\n\tdefault 1000\n",
    },
    // Each address space inside is a process of the host that this kernel traces. If the kernel is killed, its
    // programs must die with it: released from the trace, they would go on and make their system calls to the host.
    Change {
        file: "arch/um/os-Linux/skas/process.c",
        from: "PTRACE_O_TRACESYSGOOD",
        to: "(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)",
    },
    // Room for the registers of the programs inside, of which the host takes all or none (xstateregs_set() in its
    // arch/x86/kernel/fpu/regset.c). Those of AVX-512 are 2696 bytes; with those of AMX, which the hosts of some clouds
    // have, 11008.
    Change {
        file: "arch/x86/um/user-offsets.c",
        from: "DEFINE_LONGS(HOST_FP_SIZE, 2696);",
        to: "DEFINE_LONGS(HOST_FP_SIZE, 12288);",
    },
    // Every query of the clock takes 256 ns of the virtual time, so that a program that waits by polling it makes
    // progress. All hosts share one processor here, and query it some ten times for each packet: with eight links full
    // of packets that was more time than there is, and programs waited for the processor for milliseconds. Therefore a
    // program pays only from the 256th query on, if it has not slept since the first.
    Change {
        file: "arch/um/kernel/time.c",
        from: "\t\t    !time_travel_ext_waiting)\n\t\t\ttime_travel_update_time_rel(TIMER_MULTIPLIER);\n",
        to: "\t\t    !time_travel_ext_waiting) {\n\
\t\t\tstatic struct task_struct *looker;\n\t\t\tstatic unsigned long slept;\n\t\t\tstatic int looks;\n\n\
\t\t\tif (looker != current || slept != current->nvcsw) {\n\t\t\t\tlooker = current;\n\
\t\t\t\tslept = current->nvcsw;\n\t\t\t\tlooks = 0;\n\t\t\t}\n\
\t\t\tif (++looks > 256)\n\t\t\t\ttime_travel_update_time_rel(TIMER_MULTIPLIER);\n\t\t}\n",
    },
    // The machine is switched off by this key, where the host has no `poweroff` (containers).
    Change {
        file: "lib/Kconfig.debug",
        from: "config MAGIC_SYSRQ\n\tbool \"Magic SysRq key\"\n\tdepends on !UML\n",
        to: "config MAGIC_SYSRQ\n\tbool \"Magic SysRq key\"\n",
    },
    Change {
        file: "net/ipv4/Makefile",
        from: "obj-$(CONFIG_INET_DIAG) +=",
        to: "obj-y += thalweg/\nobj-$(CONFIG_INET_DIAG) +=",
    },
];

/// Reason why Linux's source cannot be changed as needed.
#[derive(Debug, Error)]
pub enum RecipeError {
    /// The source is not the version of Linux that the changes are written for.
    #[error(
        "{file} of this version of Linux does not contain the text to be changed ({text:?}): this version is not \
         supported"
    )]
    Unknown {
        /// The file, relative to the top of the source.
        file: &'static str,
        /// The text that it lacks.
        text: &'static str,
    },
    /// A file of the source cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
}

/// Returns a hash of everything that is built into the kernel besides Linux itself.
pub(super) fn recipe_hash() -> u64 {
    let changes = CHANGES.iter().flat_map(|change| [change.file, change.from, change.to]);
    let modules = MODULES.iter().flat_map(|&(name, text)| [name, text]);
    steps::fnv1a_hash([CONFIG, MODULES_FLAGS].into_iter().chain(changes).chain(modules), 0)
}

/// Changes the unpacked source, and adds our modules to it.
pub(super) fn apply_changes(source: &Path) -> Result<(), RecipeError> {
    for change in CHANGES {
        let path = source.join(change.file);
        let text = fs::read_to_string(&path).map_err(file_error(&path))?;
        if !text.contains(change.from) {
            return Err(RecipeError::Unknown { file: change.file, text: change.from });
        }
        fs::write(&path, text.replace(change.from, change.to)).map_err(file_error(&path))?;
    }
    let ours = source.join("net/ipv4/thalweg");
    let bpf = ours.join("bpf");
    fs::create_dir_all(&bpf).map_err(file_error(&bpf))?;
    for (name, text) in MODULES {
        let path = ours.join(name);
        fs::write(&path, text).map_err(file_error(&path))?;
    }
    let path = ours.join("Makefile");
    fs::write(&path, modules_makefile(MODULES.iter().map(|&(name, _)| name))).map_err(file_error(&path))
}

/// Returns the lines of the [configuration](CONFIG) that the kernel's own rules removed from the resulting `.config`.
pub(super) fn rejected_config_lines<'a>(wanted: &'a str, config: &str) -> Vec<&'a str> {
    let wanted = wanted.lines().filter(|line| line.starts_with("CONFIG_"));
    wanted
        .filter(|line| match line.strip_suffix("=n") {
            Some(name) => config.lines().any(|have| have.strip_prefix(name).is_some_and(|rest| rest.starts_with('='))),
            None => !config.lines().any(|have| have == *line),
        })
        .collect()
}

/// Returns the Makefile of our modules: every C file is an object of its own, except those that others include.
pub(super) fn modules_makefile<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let objects = names.filter_map(|name| name.strip_suffix(".c")).filter(|name| !name.starts_with("bpf/"));
    objects.fold(MODULES_FLAGS.to_owned(), |text, name| text + "obj-y += " + name + ".o\n")
}

fn file_error(path: &Path) -> impl FnOnce(io::Error) -> RecipeError {
    let path = path.to_owned();
    |error| RecipeError::File { path, error }
}
