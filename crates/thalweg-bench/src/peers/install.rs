//! Installation of the peers: finds them on this machine, installs them on request, and reads their versions.

use super::parse;
use super::program::{Ended, Program};
use super::table::{From, Peer};
use crate::drive::Stop;
use crate::{BenchError, peers::Missing};
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
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
    pub(super) fn open() -> Result<Self, BenchError> {
        let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
        let cache = cache.unwrap_or_else(env::temp_dir).join("thalweg").join("peers");
        fs::create_dir_all(&cache).map_err(|error| BenchError::File { path: cache.clone(), error })?;
        Ok(Self { cache })
    }

    /// Returns the path of a peer's program; `None` if it is not installed.
    pub(super) fn find(&self, program: &str) -> Option<PathBuf> {
        let own = [self.cache.clone(), self.cache.join("venv").join("bin")];
        let path = env::var_os("PATH").unwrap_or_default();
        own.into_iter().chain(env::split_paths(&path)).map(|directory| directory.join(program)).find(|file| runs(file))
    }

    /// Returns the path of a program that belongs to a peer. There may be several called `pip`: the one beside the
    /// peer's own program belongs to it.
    fn find_for(&self, peer: &Peer, program: &str) -> Option<PathBuf> {
        let beside = || Some(fs::canonicalize(self.find(peer.programs[0])?).ok()?.with_file_name(program));
        beside().filter(|file| matches!(peer.from, From::Pip(_)) && runs(file)).or_else(|| self.find(program))
    }

    /// Makes a peer ready and returns its version, or the reason why it is missing.
    pub(super) fn ready(&self, peer: &Peer, stop: &Stop) -> Result<String, Missing> {
        let missing = |why: String| Missing { peer: peer.name.to_owned(), why, install: command_for(peer.from) };
        if let From::Source { text, library, .. } = peer.from {
            self.compile(peer.programs[0], text, library, stop).map_err(|error| missing(error.to_string()))?;
        }
        if let Some(absent) = peer.programs.iter().find(|program| self.find(program).is_none()) {
            return Err(missing(format!("{absent} is not installed")));
        }
        let mut words = peer.version.split_whitespace();
        let program = words.next().and_then(|program| self.find_for(peer, program)).unwrap_or_default();
        let said = finish(peer.name, Command::new(program).args(words), VERSION_QUERY_TIMEOUT, stop);
        let said = said.map_err(|error| missing(error.to_string()))?;
        // Some programs exit with an error after printing it, some print it on standard error.
        parse::version(&said.out).or_else(|| parse::version(&said.err)).ok_or_else(|| missing(said.last_words()))
    }

    /// Installs the missing ones of the peers; returns warnings. A peer that cannot be installed is found missing
    /// later.
    pub(super) fn install(&self, peers: &[&Peer], stop: &Stop) -> Vec<String> {
        let mut packages = BTreeSet::new();
        let mut wheels = BTreeSet::new();
        for peer in peers {
            let absent = peer.programs.iter().any(|program| self.find(program).is_none());
            match peer.from {
                From::Debian(package) if absent => drop(packages.insert(package)),
                From::Source { package, .. } if absent => packages.extend([package, "gcc", "libc6-dev"]),
                From::Pip(package) if absent => drop(wheels.insert(package)),
                _ => {}
            }
        }
        let mut troubles = Vec::new();
        let mut run = |name: &str, command: &mut Command| match finish(name, command, INSTALL_TIMEOUT, stop) {
            Ok(ended) if ended.status.success() => true,
            Ok(ended) => {
                troubles.push(ended.failed(name).to_string());
                false
            }
            Err(error) => {
                troubles.push(error.to_string());
                false
            }
        };
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
            run("apt-get", command.env("DEBIAN_FRONTEND", "noninteractive"));
        }
        if !wheels.is_empty() {
            let venv = self.cache.join("venv");
            if run("python3 -m venv", Command::new("python3").args(["-m", "venv"]).arg(&venv)) {
                run("pip", Command::new(venv.join("bin").join("pip")).args(["install", "--quiet"]).args(wheels));
            }
        }
        troubles
    }

    /// Builds one of our sources anew: that is quick, and an existing program may be of another version.
    fn compile(&self, program: &str, text: &str, library: &str, stop: &Stop) -> Result<(), BenchError> {
        let file = |ending: &str| self.cache.join(format!("{program}.{}{ending}", std::process::id()));
        let (source, built) = (file(".c"), file(""));
        let write = |path: &Path| fs::write(path, text);
        write(&source).map_err(|error| BenchError::File { path: source.clone(), error })?;
        let mut compiler = Command::new("cc");
        compiler.args(["-O3", "-march=native", "-o"]).arg(&built).arg(&source).arg(library);
        let ended = finish("cc", &mut compiler, INSTALL_TIMEOUT, stop);
        let _ = fs::remove_file(&source);
        match ended? {
            ended if ended.status.success() => {
                let path = self.cache.join(program);
                fs::rename(&built, &path).map_err(|error| BenchError::File { path, error })
            }
            ended => Err(ended.failed("cc")),
        }
    }
}

/// Returns the command with which a person installs a peer.
fn command_for(from: From) -> String {
    match from {
        From::Debian(package) => format!("apt-get install {package}"),
        From::Pip(package) => format!("thalweg bench peers --install, or: pip install {package}"),
        From::Source { package, .. } => format!("apt-get install {package} gcc"),
    }
}

fn finish(name: &str, command: &mut Command, timeout: Duration, stop: &Stop) -> Result<Ended, BenchError> {
    Program::start(name, command)?.wait(timeout, stop)
}

fn runs(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::table::PEERS;
    use thalweg_testing::skip::skipped;

    fn shelf() -> (tempfile::TempDir, Shelf) {
        let directory = tempfile::tempdir().unwrap();
        let cache = directory.path().to_owned();
        (directory, Shelf { cache })
    }

    #[test]
    fn what_was_put_on_the_shelf_comes_before_what_is_installed() {
        let (directory, shelf) = shelf();
        assert_ne!(shelf.find("sh"), None);
        let own = directory.path().join("sh");
        fs::write(&own, "#!/bin/sh\n").unwrap();
        assert_ne!(shelf.find("sh").as_ref(), Some(&own), "nobody may run it yet");
        fs::set_permissions(&own, PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(shelf.find("sh"), Some(own));
        assert_eq!(shelf.find("no such program"), None);
    }

    #[test]
    fn the_pip_that_is_asked_lies_where_the_program_does() {
        let (directory, shelf) = shelf();
        let elsewhere = tempfile::tempdir().unwrap();
        for file in [directory.path().join("pip"), elsewhere.path().join("wheel"), elsewhere.path().join("pip")] {
            fs::write(&file, "#!/bin/sh\n").unwrap();
            fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        }
        std::os::unix::fs::symlink(elsewhere.path().join("wheel"), directory.path().join("wheel")).unwrap();
        let wheel = Peer {
            name: "wheel",
            from: From::Pip("wheel"),
            programs: &["wheel"],
            version: "pip show wheel",
            stays_at_home: true,
        };
        let pip = shelf.find_for(&wheel, "pip").unwrap();
        assert_eq!(pip, fs::canonicalize(elsewhere.path()).unwrap().join("pip"));
    }

    #[test]
    fn a_missing_peer_is_named_with_the_command_that_installs_it() {
        let (_directory, shelf) = shelf();
        let peer = Peer {
            name: "nobody",
            from: From::Debian("nobody-utils"),
            programs: &["nobody_knows_me"],
            version: "nobody_knows_me -V",
            stays_at_home: true,
        };
        let missing = shelf.ready(&peer, &Stop::default()).unwrap_err();
        assert_eq!(missing.why, "nobody_knows_me is not installed");
        assert_eq!(missing.install, "apt-get install nobody-utils");
    }

    #[test]
    fn a_source_that_cannot_be_compiled_says_what_the_compiler_said() {
        let (directory, shelf) = shelf();
        let peer = Peer {
            name: "nobody",
            from: From::Source { text: "#include <nobody.h>\n", library: "-lm", package: "libnobody-dev" },
            programs: &["nobody"],
            version: "nobody",
            stays_at_home: true,
        };
        let missing = shelf.ready(&peer, &Stop::default()).unwrap_err();
        assert!(missing.why.starts_with("cc: "), "{missing:?}");
        assert_eq!(missing.install, "apt-get install libnobody-dev gcc");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "the source was left behind");
    }

    #[test]
    fn those_that_are_here_say_their_versions() {
        let (_directory, shelf) = shelf();
        for peer in PEERS {
            match shelf.ready(peer, &Stop::default()) {
                Ok(version) => assert!(version.contains('.'), "{}: {version}", peer.name),
                Err(missing) => skipped(format_args!("{missing:?}")),
            }
        }
    }
}
