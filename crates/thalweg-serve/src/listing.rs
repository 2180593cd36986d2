//! Listings of directories and runs, for people and for programs.

use http::HeaderMap;
use http::header::ACCEPT;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::fs::{Dir, FileType, Mode, OFlags};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use thalweg_core::build::Verdict;
use thalweg_store::{Listed, RunInfo, RunState, WriterLife, check_writer_life};
use thalweg_text::html::{escape_html, render_page};
use thalweg_text::tone::Tone;
use thalweg_text::{format_count, format_volume};

use crate::run_page;
use crate::tree::Tree;

/// Listing of a directory, or of the runs in a directory.
#[derive(Debug, Serialize)]
pub(crate) struct Listing {
    /// Path as it was requested, with a slash at its end.
    pub(crate) path: String,
    pub(crate) entries: Vec<Entry>,
    /// Content of `run.json`, if the directory is a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) info: Option<RunInfo>,
    /// State of the writer, if the directory is an open run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) writer: Option<WriterLife>,
    /// Rates that were offered and carried, and the stage that limited the run, if the directory is a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) verdict: Option<Verdict>,
    /// Sentences about the builders of an open run that died.
    #[serde(skip)]
    pub(crate) died: Vec<String>,
    /// Names of the parts that the builders of a run wrote, which are runs beside it; for a run of several builders.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) parts: Vec<String>,
}

/// Entry of a directory.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) kind: Kind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) modified: Option<String>,
}

/// Kind of an entry, with the facts shown for it.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Kind {
    File {
        bytes: u64,
    },
    Directory,
    Run {
        run: u32,
        builder: u32,
        state: Option<RunState>,
        /// Name of the run's directory.
        #[serde(skip)]
        directory: String,
        /// State of the writer, if the run is open.
        #[serde(skip_serializing_if = "Option::is_none")]
        writer: Option<WriterLife>,
        /// State as it is shown to people.
        #[serde(skip)]
        word: &'static str,
        /// Number of events on disk; `None` for an open run, whose events are counted when it ends.
        events: Option<u64>,
        bytes: u64,
        /// Comment on the run.
        #[serde(skip_serializing_if = "String::is_empty")]
        comment: String,
        /// Facts that the laboratory keeps with the run.
        #[serde(skip_serializing_if = "Option::is_none")]
        metadata: Option<serde_json::Map<String, serde_json::Value>>,
        /// Comment and metadata as they are shown to people.
        #[serde(skip)]
        summary: String,
    },
}

/// Format of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Html,
    Json,
}

impl Format {
    /// Returns the format that the query or the `Accept` field asks for: HTML if the client accepts it, as browsers do
    /// and programs rarely do.
    pub(crate) fn preferred_format(fields: &HeaderMap, query: &str) -> Self {
        match query_parameter(query, "format").next().as_deref() {
            Some("html") => return Self::Html,
            Some("json") => return Self::Json,
            _ => {}
        }
        let mut accept = fields.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        if accept.any(|value| value.contains("text/html")) { Self::Html } else { Self::Json }
    }
}

/// Returns the decoded values of a query parameter.
pub(crate) fn query_parameter<'a>(query: &'a str, name: &'a str) -> impl Iterator<Item = String> + 'a {
    query.split('&').filter_map(move |pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_encoding::percent_decode_str(value).decode_utf8().ok()?;
        (key == name).then(|| value.into_owned())
    })
}

impl Listing {
    /// Lists a directory of the tree, without hidden names.
    pub(crate) fn list_directory(tree: &Tree, path: &Path, shown: String) -> rustix::io::Result<Self> {
        let directory = tree.open_within(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let runs = runs_in_directory(tree, path);
        let mut entries = Vec::new();
        for entry in Dir::new(directory)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name.starts_with('.') || name == crate::tree::RUNS {
                continue;
            }
            if let Some(run) = runs.iter().find(|run| run.path.file_name().is_some_and(|run| run == name)) {
                entries.push(run_entry(run, name.to_owned()));
            } else if let Some(entry) = directory_entry(tree, &path.join(name), name) {
                entries.push(entry);
            }
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let here = tree.root_path().join(path);
        let info = is_run_directory(tree, path).then(|| RunInfo::read_run_json(&here).ok()).flatten();
        let writer = info.as_ref().filter(|info| info.state == RunState::Open).map(|_| check_writer_life(&here));
        let verdict = info.as_ref().and_then(RunInfo::find_verdict);
        let died = info.iter().filter_map(|info| run_page::died_text(info, writer)).collect();
        Ok(Self { path: shown, entries, info, writer, verdict, died, parts: Vec::new() })
    }

    /// Lists the runs in a directory of the tree, by their numbers.
    pub(crate) fn list_runs(tree: &Tree, path: &Path, shown: String) -> rustix::io::Result<Self> {
        tree.open_within(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        let mut runs = runs_in_directory(tree, path);
        // The number in the address is that of the directory's name: a copy with another name is not found by it.
        runs.retain(Listed::has_numbered_name);
        let entries = runs.iter().map(|run| {
            let several = run.path.file_name().is_some_and(|name| name.to_string_lossy().contains("-b"));
            run_entry(run, if several { format!("{}-b{}", run.run, run.builder) } else { run.run.to_string() })
        });
        let entries = entries.collect();
        Ok(Self { path: shown, entries, info: None, writer: None, verdict: None, died: Vec::new(), parts: Vec::new() })
    }

    /// Lists the parts of a run that several builders wrote into directories of the tree and that has no directory of
    /// its own. Returns `None` if there are none.
    pub(crate) fn list_parts(tree: &Tree, path: &Path, shown: String) -> Option<Self> {
        let parts = builder_directories(tree, path);
        let mut infos = Vec::new();
        let mut died = Vec::new();
        for directory in parts.iter().map(|part| tree.root_path().join(part)) {
            let Ok(info) = RunInfo::read_run_json(&directory) else { continue };
            let writer = (info.state == RunState::Open).then(|| check_writer_life(&directory));
            died.extend(run_page::died_text(&info, writer));
            infos.push(info);
        }
        let info = RunInfo::combine_parts(&infos.iter().collect::<Vec<_>>())?;
        // The name as it was requested: `42` or `run-000042`.
        let asked = shown.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        let builders = parts.iter().filter_map(|part| Some(part.file_name()?.to_str()?.rsplit_once("-b")?.1));
        let parts = builders.map(|builder| format!("{asked}-b{builder}")).collect();
        let verdict = info.find_verdict();
        Some(Self { path: shown, entries: Vec::new(), info: Some(info), writer: None, verdict, died, parts })
    }

    /// Returns the listing as JSON, in one line.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).unwrap_or_default();
        text.push(b'\n');
        text
    }

    /// Returns the listing as an HTML page.
    pub(crate) fn to_html(&self) -> Vec<u8> {
        let mut body = String::new();
        if self.path != "/" {
            body.push_str("<p><a href=\"../\">up</a></p>\n");
        }
        if let Some(info) = &self.info {
            body.push_str(&run_page::run_html(info, self.writer, &self.died));
            body.push_str("<h2>Files</h2>\n");
        }
        if !self.parts.is_empty() {
            body.push_str("<p>Each builder has a directory of its own:</p>\n<ul>\n");
            for part in &self.parts {
                let link = utf8_percent_encode(part, IN_PATH);
                body.push_str(&format!("<li><a href=\"../{link}/\">{}/</a></li>\n", escape_html(part)));
            }
            body.push_str("</ul>\n");
            return render_page(&self.path, "", &body).into_bytes();
        }
        body.push_str(&self.entries_html());
        let style = ".files .figure{text-align:right}.files td,.files th{padding-right:1.5em}";
        render_page(&self.path, style, &body).into_bytes()
    }
}

impl Listing {
    /// Returns the table of the entries.
    fn entries_html(&self) -> String {
        // Only runs have a state and events: without runs, these columns are omitted.
        let runs = self.entries.iter().any(|entry| matches!(entry.kind, Kind::Run { .. }));
        let words =
            self.entries.iter().any(|entry| matches!(&entry.kind, Kind::Run { summary, .. } if !summary.is_empty()));
        let of_runs = if runs { "<th>state</th><th class=\"figure\">events</th>" } else { "" };
        let of_words = if words { "<th>comment, metadata</th>" } else { "" };
        let mut out = format!(
            "<div class=\"wide\"><table class=\"files\">\n<thead><tr><th>name</th>{of_runs}\
             <th class=\"figure\">size</th><th>modified (UTC)</th>{of_words}</tr></thead>\n<tbody>\n"
        );
        for entry in &self.entries {
            let (slash, word, events, bytes, summary) = match &entry.kind {
                Kind::File { bytes } => ("", "", None, Some(bytes), ""),
                Kind::Directory => ("/", "", None, None, ""),
                Kind::Run { word, events, bytes, summary, .. } => ("/", *word, *events, Some(bytes), &summary[..]),
            };
            let link = utf8_percent_encode(&entry.name, IN_PATH);
            let name = escape_html(&entry.name);
            let of_run = if runs {
                let class = Tone::from_verdict(word).map_or("", Tone::css_class);
                let events = events.map_or(String::new(), format_count);
                format!("<td class=\"{class}\">{word}</td><td class=\"figure\">{events}</td>")
            } else {
                String::new()
            };
            let of_words = if words { format!("<td>{}</td>", escape_html(summary)) } else { String::new() };
            let bytes = bytes.map_or(String::new(), |bytes| format_volume(*bytes));
            let modified = entry.modified.as_deref().unwrap_or_default().replace('T', " ").replace('Z', "");
            out.push_str(&format!(
                "<tr><td><a href=\"{link}{slash}\">{name}{slash}</a></td>{of_run}\
                 <td class=\"figure\">{bytes}</td><td>{modified}</td>{of_words}</tr>\n"
            ));
        }
        out.push_str("</tbody>\n</table></div>\n");
        if self.entries.is_empty() {
            out.push_str("<p class=\"quiet\">Nothing is here.</p>\n");
        }
        out
    }
}

/// Returns the runs in a directory of the tree, without those that a symbolic link leads to outside the tree.
fn runs_in_directory(tree: &Tree, path: &Path) -> Vec<Listed> {
    let mut runs = thalweg_store::list_runs(&tree.root_path().join(path)).unwrap_or_default();
    runs.retain(|run| run.path.file_name().is_some_and(|name| is_run_directory(tree, &path.join(name))));
    runs
}

/// Returns the directories of all builders of a run that lie in the tree; empty if the run has a directory of its own.
pub(crate) fn builder_directories(tree: &Tree, path: &Path) -> Vec<PathBuf> {
    let parts = thalweg_store::builder_directories(&tree.root_path().join(path));
    let here = parts.iter().filter_map(|part| Some(path.with_file_name(part.file_name()?)));
    here.filter(|part| is_run_directory(tree, part)).collect()
}

/// Returns whether the `run.json` in this directory lies in the tree.
fn is_run_directory(tree: &Tree, path: &Path) -> bool {
    tree.open_file(&path.join("run.json")).is_ok()
}

fn run_entry(run: &Listed, name: String) -> Entry {
    let directory = run.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let modified = std::fs::metadata(run.path.join("run.json")).ok().and_then(|data| data.modified().ok());
    let info = run.info.as_ref();
    let kind = Kind::Run {
        directory,
        run: run.run,
        builder: run.builder,
        state: info.map(|info| info.state),
        writer: run.writer,
        word: run.state_text(),
        events: info.filter(|info| info.state != RunState::Open).map(|info| info.totals.events),
        bytes: run.bytes,
        comment: info.map_or_else(String::new, |info| info.comment.clone()),
        metadata: info.and_then(run_page::some_metadata),
        summary: info.map_or_else(String::new, run_page::words_summary),
    };
    Entry { name, kind, modified: modified.map(format_time) }
}

/// Returns the entry of a file or a directory, or `None` if it is something else or leads out of the tree.
fn directory_entry(tree: &Tree, path: &Path, name: &str) -> Option<Entry> {
    let handle = tree.open_within(path, OFlags::PATH, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&handle).ok()?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::File { bytes: u64::try_from(stat.st_size).unwrap_or(0) },
        FileType::Directory => Kind::Directory,
        _ => return None,
    };
    let modified = UNIX_EPOCH + Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or(0));
    Some(Entry { name: name.to_owned(), kind, modified: Some(format_time(modified)) })
}

fn format_time(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

/// Characters that are not encoded in a segment of a path (RFC 3986, `unreserved`).
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
