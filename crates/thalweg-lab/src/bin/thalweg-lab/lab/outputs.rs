//! The option `--out` of the laboratory: files whose ending gives their format, or a directory for everything.

use crate::bench::files::{Target, write_targets};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use thalweg::terminal::Failure;
use thalweg_text::{FileFormat, FileFormatError, OutputFile};

/// Value of `--out`.
#[derive(Debug, Clone)]
pub(super) enum OutputPath {
    /// A file in the format that its ending gives.
    File(OutputFile),
    /// A directory for everything.
    Directory(PathBuf),
}

impl FromStr for OutputPath {
    type Err = FileFormatError;

    fn from_str(text: &str) -> Result<Self, FileFormatError> {
        let path = Path::new(text);
        // Letters after a dot are meant as an ending; `run.1` and `out/` are directories.
        let has_ending = path.extension().is_some_and(|end| end.to_string_lossy().starts_with(char::is_alphabetic));
        match has_ending && !path.is_dir() && !text.ends_with('/') {
            true => text.parse().map(Self::File),
            false => Ok(Self::Directory(path.to_owned())),
        }
    }
}

/// Files that are open for the results, and the directory for everything.
pub(super) struct Outputs {
    targets: Vec<Target>,
    /// Directory, if one was given.
    pub(super) directory: Option<PathBuf>,
}

impl Outputs {
    /// Opens all files: a file that cannot be written must be known before the measurement, not after.
    pub(super) fn open_all(paths: &[OutputPath]) -> Result<Self, Failure> {
        let mut outputs = Self { targets: Vec::new(), directory: None };
        for path in paths {
            match path {
                OutputPath::File(file) => {
                    outputs.targets.push(Target::open_for_writing(&file.path, file.format)?);
                }
                OutputPath::Directory(directory) if outputs.directory.is_some() => {
                    let text = format!("--out {}: only one of them may be a directory", directory.display());
                    return Err(Failure::Usage(text));
                }
                OutputPath::Directory(directory) => outputs.directory = Some(directory.clone()),
            }
        }
        Ok(outputs)
    }

    /// Writes each file with the text of its format.
    pub(super) fn write_files(self, text: impl Fn(FileFormat) -> Result<String, Failure>) -> Result<(), Failure> {
        write_targets(self.targets, text)
    }
}
