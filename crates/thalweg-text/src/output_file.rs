//! Files of results whose ending gives their format, as the option `--out` of the instruments takes them.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use thiserror::Error;

/// Format of a file of results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileFormat {
    /// Picture (`.svg`).
    Svg,
    /// All data, for programs (`.json`).
    Json,
    /// Data of the picture or the table, for programs (`.csv`).
    Csv,
    /// Tables in Markdown (`.md`).
    Markdown,
    /// Self-contained page with pictures and tables (`.html`).
    Html,
}

/// File of results, to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Format, by the path's ending.
    pub format: FileFormat,
}

/// Error of a path whose ending is no format.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "the ending of '{0}' gives no format: use .svg (picture), .html (page), .json or .csv (data), or .md (Markdown)"
)]
pub struct FileFormatError(String);

impl FileFormat {
    /// Returns the format that a path's ending gives.
    ///
    /// # Errors
    /// The path has no ending, or an unknown one; the text lists the known ones.
    pub fn from_path(path: &Path) -> Result<Self, FileFormatError> {
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
        match ending.as_deref() {
            Some("svg") => Ok(Self::Svg),
            Some("json") => Ok(Self::Json),
            Some("csv") => Ok(Self::Csv),
            Some("md") => Ok(Self::Markdown),
            Some("html") => Ok(Self::Html),
            _ => Err(FileFormatError(path.display().to_string())),
        }
    }
}

impl FromStr for OutputFile {
    type Err = FileFormatError;

    fn from_str(text: &str) -> Result<Self, FileFormatError> {
        let path = PathBuf::from(text);
        Ok(Self { format: FileFormat::from_path(&path)?, path })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_gives_the_format_and_others_are_refused_with_a_list() {
        let known = ["a.svg", "b/c.json", "d.csv", "e.f.md", "G.HTML"].map(|text| text.parse::<OutputFile>().unwrap());
        assert_eq!(known[4].format, FileFormat::Html);
        for text in ["", "figure", "figure.png", ".svg", "svg"] {
            let error = text.parse::<OutputFile>().unwrap_err().to_string();
            assert!(error.contains(".svg (picture)") && error.contains(text), "{error}");
        }
    }
}
