//! Installation of the peers: finds them on this machine, installs them on request, and reads their versions.

use super::parse;
use super::program::{Ended, Program};
use super::table::{Origin, Peer};
use crate::drive::Stop;
use crate::programs::{cache_directory, find_program, is_program};
use crate::{BenchError, peers::Missing};
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Longest time that a package manager or a compiler may take.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(600);
/// Longest time that a program may take to print its version.
const VERSION_QUERY_TIMEOUT: Duration = Duration::from_secs(30);

/// Place where peers are looked for and installed.
#[derive(Debug)]
pub(super) struct Shelf {
    /// Directory of the programs that we built or installed, kept for the next run.
    cache: PathBuf,
}

impl Shelf {
    /// Opens `$XDG_CACHE_HOME/thalweg/peers`, or the same below `~/.cache`.
    pub(super) fn open_cache() -> Result<Self, BenchError> {
        let cache = cache_directory("peers");
        fs::create_dir_all(&cache).map_err(BenchError::file_error(&cache))?;
        Ok(Self { cache })
    }

    /// Returns the path of a peer's program; `None` if it is not installed.
    pub(super) fn find_program(&self, program: &str) -> Option<PathBuf> {
        let own = [self.cache.clone(), self.cache.join("venv").join("bin")];
        let own = own.into_iter().map(|directory| directory.join(program)).find(|file| is_program(file));
        own.or_else(|| find_program(program))
    }

    /// Returns the path of a program that belongs to a peer. There may be several called `pip`: the one beside the
    /// peer's own program belongs to it.
    fn find_program_of(&self, peer: &Peer, program: &str) -> Option<PathBuf> {
        let own = self.find_program(peer.programs[0]).filter(|_| matches!(peer.origin, Origin::Pip(_)));
        let beside = own.and_then(|own| Some(fs::canonicalize(own).ok()?.with_file_name(program)));
        beside.filter(|file| is_program(file)).or_else(|| self.find_program(program))
    }

    /// Makes a peer ready and returns its version, or the reason why it is missing.
    pub(super) fn prepare_peer(&self, peer: &Peer, stop: &Stop) -> Result<String, Missing> {
        self.query_version(peer, stop).map_err(|why| Missing {
            peer: peer.name.to_owned(),
            why,
            install: install_command(peer.origin),
        })
    }

    fn query_version(&self, peer: &Peer, stop: &Stop) -> Result<String, String> {
        if let Origin::Source { text, library, .. } = peer.origin {
            self.compile_source(peer.programs[0], text, library, stop).map_err(|error| error.to_string())?;
        }
        if let Some(absent) = peer.programs.iter().find(|program| self.find_program(program).is_none()) {
            return Err(format!("{absent} is not installed"));
        }
        let mut words = peer.version.split_whitespace();
        let program = words.next().and_then(|program| self.find_program_of(peer, program)).unwrap_or_default();
        let ended = run_program(peer.name, Command::new(program).args(words), VERSION_QUERY_TIMEOUT, stop);
        let ended = ended.map_err(|error| error.to_string())?;
        // Some programs exit with an error after printing it, some print it on standard error.
        parse::find_version(&ended.out)
            .or_else(|| parse::find_version(&ended.err))
            .ok_or_else(|| ended.last_output_lines())
    }

    /// Installs the missing peers; returns warnings. A peer that cannot be installed is reported missing later.
    pub(super) fn install_missing(&self, peers: &[&Peer], stop: &Stop) -> Vec<String> {
        let mut packages = BTreeSet::new();
        let mut wheels = BTreeSet::new();
        for peer in peers {
            let absent = peer.programs.iter().any(|program| self.find_program(program).is_none());
            match peer.origin {
                Origin::Debian(package) if absent => drop(packages.insert(package)),
                Origin::Source { package, .. } if absent => packages.extend([package, "gcc", "libc6-dev"]),
                Origin::Pip(package) if absent => drop(wheels.insert(package)),
                _ => {}
            }
        }
        let mut errors = Vec::new();
        if !packages.is_empty() {
            let mut command = if rustix::process::geteuid().is_root() {
                Command::new("apt-get")
            } else {
                let mut sudo = Command::new("sudo");
                // There is no one to type a password.
                sudo.args(["--non-interactive", "apt-get"]);
                sudo
            };
            command.args(["install", "-y", "--no-install-recommends"]).args(packages);
            errors.extend(run_installer("apt-get", command.env("DEBIAN_FRONTEND", "noninteractive"), stop).err());
        }
        if !wheels.is_empty() {
            let venv = self.cache.join("venv");
            let pip = venv.join("bin").join("pip");
            let made = run_installer("python3 -m venv", Command::new("python3").args(["-m", "venv"]).arg(&venv), stop);
            let installed = made
                .and_then(|()| run_installer("pip", Command::new(pip).args(["install", "--quiet"]).args(wheels), stop));
            errors.extend(installed.err());
        }
        errors.iter().map(ToString::to_string).collect()
    }

    /// Builds one of our sources anew: that is quick, and an existing program may be of another version.
    fn compile_source(&self, program: &str, text: &str, library: &str, stop: &Stop) -> Result<(), BenchError> {
        let built = self.cache.join(format!("{program}.{}", std::process::id()));
        let source = self.cache.join(format!("{program}.{}.c", std::process::id()));
        fs::write(&source, text).map_err(BenchError::file_error(&source))?;
        let mut compiler = Command::new("cc");
        compiler.args(["-O3", "-march=native", "-o"]).arg(&built).arg(&source).arg(library);
        let compiled = run_installer("cc", &mut compiler, stop);
        let _ = fs::remove_file(&source);
        compiled?;
        let path = self.cache.join(program);
        fs::rename(&built, &path).map_err(BenchError::file_error(path))
    }
}

/// Returns the command with which a person installs a peer.
fn install_command(from: Origin) -> String {
    match from {
        Origin::Debian(package) => format!("apt-get install {package}"),
        Origin::Pip(package) => format!("thalweg bench peers --install, or: pip install {package}"),
        Origin::Source { package, .. } => format!("apt-get install {package} gcc"),
    }
}

/// Runs a program that installs or compiles, which must succeed.
fn run_installer(name: &str, command: &mut Command, stop: &Stop) -> Result<(), BenchError> {
    let ended = run_program(name, command, INSTALL_TIMEOUT, stop)?;
    if ended.status.success() { Ok(()) } else { Err(ended.failure_error(name)) }
}

fn run_program(name: &str, command: &mut Command, timeout: Duration, stop: &Stop) -> Result<Ended, BenchError> {
    Program::start(name, command)?.wait_for_end(timeout, stop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::table::PEERS;
    use std::os::unix::fs::PermissionsExt;
    use thalweg_testing::skip::skipped;

    fn shelf() -> (tempfile::TempDir, Shelf) {
        let directory = tempfile::tempdir().unwrap();
        let cache = directory.path().to_owned();
        (directory, Shelf { cache })
    }

    #[test]
    fn programs_in_the_cache_come_before_installed_ones() {
        let (directory, shelf) = shelf();
        assert_ne!(shelf.find_program("sh"), None);
        let own = directory.path().join("sh");
        fs::write(&own, "#!/bin/sh\n").unwrap();
        assert_ne!(shelf.find_program("sh").as_ref(), Some(&own), "it is not executable yet");
        fs::set_permissions(&own, PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(shelf.find_program("sh"), Some(own));
        assert_eq!(shelf.find_program("no such program"), None);
    }

    #[test]
    fn pip_is_taken_from_the_directory_of_the_program() {
        let (directory, shelf) = shelf();
        let elsewhere = tempfile::tempdir().unwrap();
        for file in [directory.path().join("pip"), elsewhere.path().join("wheel"), elsewhere.path().join("pip")] {
            fs::write(&file, "#!/bin/sh\n").unwrap();
            fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        }
        std::os::unix::fs::symlink(elsewhere.path().join("wheel"), directory.path().join("wheel")).unwrap();
        let wheel = Peer {
            name: "wheel",
            origin: Origin::Pip("wheel"),
            programs: &["wheel"],
            version: "pip show wheel",
            loopback_only: true,
        };
        let pip = shelf.find_program_of(&wheel, "pip").unwrap();
        assert_eq!(pip, fs::canonicalize(elsewhere.path()).unwrap().join("pip"));
    }

    #[test]
    fn a_missing_peer_is_named_with_the_command_that_installs_it() {
        let (_directory, shelf) = shelf();
        let peer = Peer {
            name: "absent",
            origin: Origin::Debian("absent-utils"),
            programs: &["absent_program"],
            version: "absent_program -V",
            loopback_only: true,
        };
        let missing = shelf.prepare_peer(&peer, &Stop::default()).unwrap_err();
        assert_eq!(missing.why, "absent_program is not installed");
        assert_eq!(missing.install, "apt-get install absent-utils");
    }

    #[test]
    fn errors_of_the_compiler_are_reported() {
        let (directory, shelf) = shelf();
        let peer = Peer {
            name: "absent",
            origin: Origin::Source { text: "#include <absent.h>\n", library: "-lm", package: "libabsent-dev" },
            programs: &["absent"],
            version: "absent",
            loopback_only: true,
        };
        let missing = shelf.prepare_peer(&peer, &Stop::default()).unwrap_err();
        assert!(missing.why.starts_with("cc: "), "{missing:?}");
        assert_eq!(missing.install, "apt-get install libabsent-dev gcc");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "the source was left behind");
    }

    #[test]
    fn installed_peers_print_their_versions() {
        let (_directory, shelf) = shelf();
        for peer in PEERS {
            match shelf.prepare_peer(peer, &Stop::default()) {
                Ok(version) => assert!(version.contains('.'), "{}: {version}", peer.name),
                Err(missing) => skipped(format_args!("{missing:?}")),
            }
        }
    }
}
