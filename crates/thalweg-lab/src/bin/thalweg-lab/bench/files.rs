//! Files that a report is written to, in addition to the terminal.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use thalweg::terminal::{Failure, outlet};

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct Files {
    /// Write the report as JSON
    #[arg(long, global = true, value_name = "FILE")]
    json_file: Option<PathBuf>,
    /// Write the report as Markdown
    #[arg(long, global = true, value_name = "FILE")]
    markdown_file: Option<PathBuf>,
    /// Write a picture of the report, as SVG
    #[arg(long, global = true, value_name = "FILE")]
    plot_file: Option<PathBuf>,
    /// Write the report as a page with pictures, which needs nothing else
    #[arg(long, global = true, value_name = "FILE")]
    html_file: Option<PathBuf>,
}

impl Files {
    /// Opens all files: a file that cannot be written must be known before the measurement, not after.
    pub(crate) fn open_targets(&self) -> Result<Open, Failure> {
        Ok(Open {
            json: self.json_file.as_deref().map(Target::open_for_writing).transpose()?,
            markdown: self.markdown_file.as_deref().map(Target::open_for_writing).transpose()?,
            plot: self.plot_file.as_deref().map(Target::open_for_writing).transpose()?,
            html: self.html_file.as_deref().map(Target::open_for_writing).transpose()?,
        })
    }
}

/// Files that can be written.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) json: Option<Target>,
    pub(crate) markdown: Option<Target>,
    pub(crate) plot: Option<Target>,
    pub(crate) html: Option<Target>,
}

impl Open {
    /// Returns true if no file was requested.
    pub(crate) fn is_empty(&self) -> bool {
        [&self.json, &self.markdown, &self.plot, &self.html].iter().all(|target| target.is_none())
    }
}

/// A file that was opened to be written later. It keeps its contents until then; if it was created for this and is
/// never written, it is removed.
#[derive(Debug)]
pub(crate) struct Target {
    path: PathBuf,
    file: File,
    made: bool,
}

impl Target {
    pub(crate) fn open_for_writing(path: &Path) -> Result<Self, Failure> {
        let (opened, made) = match OpenOptions::new().write(true).create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                (OpenOptions::new().write(true).open(path), false)
            }
            created => (created, true),
        };
        let file = opened.map_err(|error| Failure::file_usage(path, error))?;
        Ok(Self { path: path.to_owned(), file, made })
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
