//! `thalweg bench peers`: the same work by Thalweg and by the programs that people use today, in turns.

use super::files::{Files, write_targets};
use super::{INTERRUPTED, command_line, failure, stop_on_signals};
use indicatif::ProgressBar;
use serde::Serialize;
use std::process::ExitCode;
use thalweg::terminal::{Failure, Output, progress};
use thalweg_bench::peers::{Observer, Options, Pairing, PeersReport, compare_with_peers};
use thalweg_bench::render;
use thalweg_text::FileFormat;

pub(crate) fn run_peers(options: &Options, files: &Files, json: bool) -> Result<ExitCode, Failure> {
    let open = files.open_targets()?;
    let stop = stop_on_signals()?;
    let mut show = Show::new(json);
    let report = compare_with_peers(options, command_line(), &mut show, &stop).map_err(failure)?;
    show.bar.finish_and_clear();
    let mut out = Output::new();
    match json {
        true => out.json(&Line::Peers(&report)),
        false => out.text(&render::format_peers_end(&report)),
    }?;
    out.flush()?;
    show.failed.map_or(Ok(()), Err)?;
    write_targets(open, |format| match format {
        FileFormat::Json => serde_json::to_string_pretty(&report).map(|text| text + "\n").map_err(Failure::broken),
        FileFormat::Csv => Ok(render::peers_csv(&report)),
        FileFormat::Markdown => Ok(render::peers_markdown(&report)),
        FileFormat::Svg => render::peers_svg(&report).map_err(Failure::broken),
        FileFormat::Html => render::peers_html(&report).map_err(Failure::broken),
    })?;
    let failed = report.pairings.iter().any(|pairing| pairing.error.is_some());
    Ok(match stop.is_requested() {
        true => ExitCode::from(INTERRUPTED),
        false => ExitCode::from(u8::from(failed)),
    })
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum Line<'a> {
    Pairing(&'a Pairing),
    Peers(&'a PeersReport),
}

/// Shows pairings as they are done, from any thread.
struct Show {
    json: bool,
    first: bool,
    bar: ProgressBar,
    failed: Option<Failure>,
}

impl Show {
    fn new(json: bool) -> Self {
        let bar = progress::bar("{pos}/{len} {bar:20} {wide_msg}");
        Self { json, first: true, bar, failed: None }
    }
}

impl Observer for Show {
    fn on_progress(&mut self, done: usize, of: usize, pairing: &str, turn: u32) {
        self.bar.set_length(of as u64);
        self.bar.set_position(done as u64);
        self.bar.set_message(format!("{pairing}, turn {}", turn + 1));
        self.bar.tick();
    }

    fn on_pairing_completed(&mut self, pairing: &Pairing) {
        let written = self.bar.suspend(|| {
            let mut out = Output::new();
            match self.json {
                true => out.json(&Line::Pairing(pairing)),
                false => out.text(&render::format_pairing(pairing, self.first)),
            }?;
            out.flush()
        });
        self.first = false;
        if let Err(failure) = written {
            self.failed.get_or_insert(failure);
        }
    }
}
