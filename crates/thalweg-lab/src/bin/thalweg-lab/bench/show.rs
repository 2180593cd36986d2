//! Display of a measurement in progress: a table for people, lines of JSON for programs.

use indicatif::ProgressBar;
use serde::Serialize;
use thalweg::terminal::{Failure, Output, progress};
use thalweg_bench::render::Table;
use thalweg_bench::{Key, Observer, Plan, Point, Report, Stop};

/// Shows points as they are done on standard output, and the present measurement on standard error.
#[derive(Debug)]
pub(crate) struct Show {
    out: Output,
    table: Option<Table>,
    bar: ProgressBar,
    repeats: u32,
    /// First error while printing.
    failed: Option<Failure>,
    /// True if only the reader of standard output is interested in the result.
    only: bool,
    stop: Stop,
}

/// One line of output for a program.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Line<'a> {
    Point(&'a Point),
    Report(&'a Report),
}

impl Show {
    /// Starts the display. `only`: no file is to be written either, so that the measurement may end when the reader
    /// leaves.
    pub(crate) fn new(plan: &Plan, json: bool, only: bool, stop: Stop) -> Self {
        let bar = progress::bar("{pos}/{len} {bar:20} {wide_msg}");
        Self {
            out: Output::new(),
            table: (!json).then(|| Table::new(plan.instrument_name())),
            bar,
            repeats: plan.timing().repeat,
            failed: None,
            only,
            stop,
        }
    }

    /// Returns true if the measurement ended because no one reads it any more.
    pub(crate) fn has_no_reader(&self) -> bool {
        self.only && !self.out.is_read()
    }

    /// Ends the display: warnings for people, the whole report for programs.
    pub(crate) fn finish_display(mut self, report: &Report) -> Result<(), Failure> {
        self.bar.finish_and_clear();
        match self.table {
            Some(_) => self.out.text(&Table::format_end(report))?,
            None => self.out.json(&Line::Report(report))?,
        }
        self.out.flush()?;
        self.failed.take().map_or(Ok(()), Err)
    }
}

impl Drop for Show {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl Observer for Show {
    fn on_progress(&mut self, done: usize, of: usize, now: &Key, repeat: u32) {
        self.bar.set_length(of as u64);
        self.bar.set_position(done as u64);
        let what = format!("{} {} {}", now.link, now.method, thalweg_text::format_size(now.size));
        self.bar.set_message(match self.repeats {
            1 => what,
            repeats => format!("{what}, repeat {} of {repeats}", repeat + 1),
        });
        // Drawn now, and not by a thread that would be measured too.
        self.bar.tick();
    }

    fn on_point_completed(&mut self, point: &Point) {
        let Self { out, table, bar, .. } = self;
        let written = bar.suspend(|| {
            match table {
                Some(table) => out.text(&table.format_point(point)),
                None => out.json(&Line::Point(point)),
            }?;
            out.flush()
        });
        if let Err(failure) = written {
            self.failed.get_or_insert(failure);
        }
        if self.has_no_reader() {
            self.stop.request_stop();
        }
    }
}
