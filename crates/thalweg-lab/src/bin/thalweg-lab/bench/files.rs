//! Files that a report is written to, in addition to the terminal.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use thalweg::terminal::{Failure, outlet};
use thalweg_text::{FileFormat, OutputFile};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Files {
    /// Write the results to this file, too; its ending gives the format: .svg (picture), .html (page), .json or .csv
    /// (data), .md (Markdown). May be given several times
    #[arg(long, global = true, value_name = "FILE")]
    out: Vec<OutputFile>,
    // Names of earlier versions.
    #[arg(long, global = true, value_name = "FILE", hide = true)]
    json_file: Option<PathBuf>,
    #[arg(long, global = true, value_name = "FILE", hide = true)]
    markdown_file: Option<PathBuf>,
    #[arg(long, global = true, value_name = "FILE", hide = true)]
    plot_file: Option<PathBuf>,
    #[arg(long, global = true, value_name = "FILE", hide = true)]
    html_file: Option<PathBuf>,
}

impl Files {
    /// Opens all files: a file that cannot be written must be known before the measurement, not after.
    pub(crate) fn open_targets(&self) -> Result<Vec<Target>, Failure> {
        let earlier = [
            (&self.json_file, FileFormat::Json),
            (&self.markdown_file, FileFormat::Markdown),
            (&self.plot_file, FileFormat::Svg),
            (&self.html_file, FileFormat::Html),
        ];
        let earlier = earlier.into_iter().filter_map(|(path, format)| Some((path.as_deref()?, format)));
        let files = self.out.iter().map(|file| (file.path.as_path(), file.format));
        files.chain(earlier).map(|(path, format)| Target::open_for_writing(path, format)).collect()
    }
}

/// Writes each file with the text of its format; a file that cannot be written does not keep the others from being
/// written.
pub(crate) fn write_targets(
    targets: Vec<Target>,
    text: impl Fn(FileFormat) -> Result<String, Failure>,
) -> Result<(), Failure> {
    let written = targets.into_iter().map(|target| {
        let text = text(target.format)?;
        target.write_report(&text)
    });
    written.collect::<Vec<_>>().into_iter().collect()
}

/// A file that was opened to be written later. It keeps its contents until then; if it was created for this and is
/// never written, it is removed.
#[derive(Debug)]
pub(crate) struct Target {
    path: PathBuf,
    format: FileFormat,
    file: File,
    made: bool,
}

impl Target {
    /// Opens a file for a report in this format.
    pub(crate) fn open_for_writing(path: &Path, format: FileFormat) -> Result<Self, Failure> {
        let (opened, made) = match OpenOptions::new().write(true).create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                (OpenOptions::new().write(true).open(path), false)
            }
            created => (created, true),
        };
        let file = opened.map_err(|error| Failure::file_usage(path, error))?;
        Ok(Self { path: path.to_owned(), format, file, made })
    }

    /// Returns the format of its report.
    pub(crate) fn format(&self) -> FileFormat {
        self.format
    }

    /// Writes the file, and reports it on standard error.
    pub(crate) fn write_report(mut self, text: &str) -> Result<(), Failure> {
        self.replace_content(text)
            .map_err(|error| Failure::Broken(format!("writing {}: {error}", self.path.display())))?;
        self.made = false;
        outlet::stderr().put_text(format!("written to {}\n", self.path.display()));
        Ok(())
    }

    fn replace_content(&mut self, text: &str) -> io::Result<()> {
        // Devices and pipes have no length.
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(text.as_bytes())?;
        self.file.flush()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.made {
            // An empty file that is left over does no harm.
            let _ = fs::remove_file(&self.path);
        }
    }
}
