//! An installed ns-3, and the scenario's program compiled against it.

use super::process;
use crate::LabError;
use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Source of the scenario's program.
const SOURCE: &str = include_str!("../../ns3/incast.cc");
/// Parts of ns-3 that it uses.
const PARTS: [&str; 4] = ["core", "network", "internet", "point-to-point"];
/// Time limits of the compiler, and of the interpreter that reports where its packages are.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(600);
const PACKAGE_QUERY_TIMEOUT: Duration = Duration::from_secs(30);
const INSTALL_HELP: &str = "on Debian: apt install g++ libns3-dev; elsewhere: pip install ns3 (with its python3 first in PATH); \
                            or THALWEG_NS3=PREFIX, where PREFIX/include/ns3 and PREFIX/lib are";

/// An installed ns-3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ns3 {
    /// Version, such as `3.44`.
    pub(super) version: String,
    minor: u32,
    include: PathBuf,
    libraries: PathBuf,
    /// Text before and after a part's name in the name of its library: `ns3.44` and nothing.
    around: (String, String),
}

impl Ns3 {
    /// Returns the newest installation that is found, or the one that `THALWEG_NS3` names.
    pub(super) fn find_installation(stop: &AtomicBool) -> Result<Self, LabError> {
        let found = match env::var_os("THALWEG_NS3") {
            Some(prefix) => Self::installed_below(Path::new(&prefix)),
            None => {
                let mut places = vec![PathBuf::from("/usr"), PathBuf::from("/usr/local")];
                places.extend(python_package_paths(stop));
                places.iter().filter_map(|prefix| Self::installed_below(prefix)).max_by_key(|ns3| ns3.minor)
            }
        };
        found.ok_or_else(|| LabError::Unavailable {
            what: "ns-3".into(),
            why: format!("its headers and libraries were not found; {INSTALL_HELP}"),
        })
    }

    /// Returns the installation whose headers and libraries are below this directory, or `None`.
    fn installed_below(prefix: &Path) -> Option<Self> {
        let include = prefix.join("include");
        if !include.join("ns3/core-module.h").is_file() {
            return None;
        }
        let debian = format!("lib/{}-linux-gnu", env::consts::ARCH);
        [debian.as_str(), "lib64", "lib"].iter().find_map(|name| {
            let libraries = prefix.join(name);
            let mut files = fs::read_dir(&libraries).ok()?.flatten();
            let (around, version) = files.find_map(|file| {
                let name = file.file_name().into_string().ok()?;
                let around = parse_library_name(&name)?;
                let version = around.0.strip_prefix("ns3.").map(str::to_owned);
                let version = version.or_else(|| linked_version(&file.path()))?;
                Some((around, version))
            })?;
            let minor = version.split(['.', '-']).next()?.parse().ok()?;
            Some(Self { version: format!("3.{version}"), minor, include: include.clone(), libraries, around })
        })
    }

    /// True if it is older than 3.`minor`.
    pub(super) fn is_older_than(&self, minor: u32) -> bool {
        self.minor < minor
    }

    /// Returns the path of the program, which is compiled if it was not before.
    pub(super) fn compiled_program(&self, stop: &AtomicBool) -> Result<PathBuf, LabError> {
        let directory = thalweg_bench::cache_directory("ns3");
        fs::create_dir_all(&directory).map_err(LabError::file_error(&directory))?;
        let mut hash = DefaultHasher::new();
        (SOURCE, &self.version, &self.include, self.compiler_arguments()).hash(&mut hash);
        let name = format!("incast-{:016x}", hash.finish());
        let program = directory.join(&name);
        if program.is_file() {
            return Ok(program);
        }
        // Others may do the same at this moment, in this process too: each has its own files, and the last one's
        // program stays.
        let own = tempfile::tempdir_in(&directory).map_err(LabError::file_error(&directory))?;
        let (source, built) = (own.path().join("incast.cc"), own.path().join("incast"));
        fs::write(&source, SOURCE).map_err(LabError::file_error(&source))?;
        let mut compiler = Command::new("c++");
        compiler.arg(&source).arg("-o").arg(&built).args(self.compiler_arguments());
        let ended = process::run_to_end("c++", &mut compiler, COMPILE_TIMEOUT, stop);
        let ended = ended.map_err(|error| match error {
            LabError::Os { error, .. } if error.kind() == std::io::ErrorKind::NotFound => {
                LabError::Unavailable { what: "a C++ compiler (c++)".into(), why: format!("{error}; {INSTALL_HELP}") }
            }
            other => other,
        })?;
        if ended.status.success() {
            fs::rename(&built, &program).map_err(LabError::file_error(&program))?;
            return Ok(program);
        }
        let log = directory.join(format!("{name}.log"));
        fs::write(&log, &ended.err).map_err(LabError::file_error(&log))?;
        let first = ended.err.lines().find(|line| line.contains("error:") || line.contains("undefined reference"));
        let first = first.map_or_else(|| ended.status.to_string(), str::to_owned);
        let version = &self.version;
        Err(LabError::Command {
            command: format!("compiling the scenario's program with ns-3 {version}"),
            output: format!("{first}; all of it: {}", log.display()),
        })
    }

    /// Returns the compiler's arguments, without the files.
    fn compiler_arguments(&self) -> Vec<String> {
        // The headers of each version compile with its own standard only.
        let standard = if self.is_older_than(CXX_20) { "c++17" } else { "c++20" };
        let libraries = self.libraries.display();
        let mut all = vec![
            format!("-std={standard}"),
            "-O2".into(),
            // Not -isystem: /usr/include must stay where the compiler has it.
            format!("-I{}", self.include.display()),
            format!("-L{libraries}"),
            format!("-Wl,-rpath,{libraries}"),
        ];
        let (before, after) = &self.around;
        all.extend(PARTS.iter().map(|part| format!("-l{before}-{part}{after}")));
        all
    }
}

/// Minor version from which on C++20 is needed: 3.41 (CHANGES.md).
const CXX_20: u32 = 41;

/// Returns the text before and after `-core` in the name of its library: `libns3-core.so` (Debian),
/// `libns3.44-core.so` (PyPI), `libns3.44-core-optimized.so` (built from source).
fn parse_library_name(file: &str) -> Option<(String, String)> {
    let (before, after) = file.strip_prefix("lib")?.strip_suffix(".so")?.split_once("-core")?;
    let ours =
        before == "ns3" || before.strip_prefix("ns3.").is_some_and(|version| version.starts_with(char::is_numeric));
    (ours && (after.is_empty() || after.starts_with('-'))).then(|| (before.to_owned(), after.to_owned()))
}

/// Returns the version to which a library's link leads. Debian's name has none, but is a link to one that has:
/// `libns3-core.so.37`.
fn linked_version(library: &Path) -> Option<String> {
    fs::read_link(library).ok()?.to_str()?.rsplit_once(".so.").map(|(_, version)| version.to_owned())
}

/// Returns the directories of Python's package `ns3`: the wheel has headers and libraries below it.
fn python_package_paths(stop: &AtomicBool) -> Vec<PathBuf> {
    const QUERY: &str = "import importlib.util as u; s = u.find_spec('ns3'); print(*(s.submodule_search_locations if s else []), sep='\\n')";
    let mut python = Command::new("python3");
    // Not here: a directory `ns3` in the working directory would count as a package.
    python.args(["-c", QUERY]).current_dir("/");
    let output = process::run_to_end("python3", &mut python, PACKAGE_QUERY_TIMEOUT, stop);
    let out = output.map(|output| output.out).unwrap_or_default();
    out.lines().map(PathBuf::from).filter(|path| path.is_absolute()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_known_by_any_of_its_names() {
        let found = |file| parse_library_name(file).map(|(before, after)| format!("{before}|{after}"));
        assert_eq!(found("libns3-core.so").as_deref(), Some("ns3|"));
        assert_eq!(found("libns3.44-core.so").as_deref(), Some("ns3.44|"));
        assert_eq!(found("libns3.44-core-optimized.so").as_deref(), Some("ns3.44|-optimized"));
        for other in ["libns3-core.so.37", "libns3.44-core.a", "libns3-network.so", "libxyz-core.so", "libns3x-core.so"]
        {
            assert_eq!(found(other), None, "{other}");
        }
    }

    #[test]
    fn an_installation_is_recognised_by_its_files() {
        let directory = tempfile::tempdir().unwrap();
        let prefix = directory.path();
        assert_eq!(Ns3::installed_below(prefix), None);
        let file = |name: &str| {
            let path = prefix.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        };
        file("include/ns3/core-module.h");
        file("lib64/unrelated.so");
        assert_eq!(Ns3::installed_below(prefix), None);
        file("lib64/libns3.40.1-core-default.so");
        let ns3 = Ns3::installed_below(prefix).unwrap();
        assert_eq!((ns3.version.as_str(), ns3.minor), ("3.40.1", 40));
        assert!(ns3.compiler_arguments().contains(&"-lns3.40.1-point-to-point-default".to_owned()));
        assert!(ns3.compiler_arguments().contains(&"-std=c++17".to_owned()));
    }
}
