//! `thalweg check`: checks a topology, and what its nodes need here, before a run.

use crate::node::check_node_name;
use crate::preflight::OpenSource;
use crate::print;
use crate::terminal::{Failure, Output};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::process::ExitCode;
use thalweg_device::{Contents, Description};
use thalweg_node::{BuilderNodeConfig, Feed, Setting, SourceNodeConfig, Topology};
use thalweg_text::{
    format_count, format_quantity, format_seconds, format_size, format_tai, replace_controls, wrap_words,
};

#[derive(Debug, clap::Args)]
pub(crate) struct CheckOptions {
    /// The topology
    file: PathBuf,
    /// Only what this node of the topology needs here; without it, all of its nodes run on this machine
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Check only the file and nothing of this machine: for a topology of other hosts
    #[arg(long, conflicts_with = "node")]
    file_only: bool,
    /// Any key of the topology, as `run` and `node` take it
    #[arg(long, value_name = "KEY=VALUE", value_parser = Setting::parse_assignment)]
    set: Vec<Setting>,
}

pub(crate) fn run_check(options: &CheckOptions, json: bool) -> Result<ExitCode, Failure> {
    let (file, node) = (&options.file, options.node.as_deref());
    let topology = Topology::load_with_settings(file, node, &options.set)?;
    node.map_or(Ok(()), |name| check_node_name(&topology, name))?;
    if !options.file_only {
        crate::preflight::run_preflight(&topology, node).map_err(|error| Failure::file_usage(file, error))?;
    }
    let mut text = format!("{}: {}\n", file.display(), print::paint_verdict("ok"));
    for builder in topology.builders.iter().filter(|builder| node.is_none_or(|node| node == builder.name)) {
        if !options.file_only {
            thalweg_node::try_programs(builder).map_err(|error| Failure::file_usage(file, error))?;
        }
        text.push_str(&builder_text(builder));
    }
    crate::terminal::raise_open_file_limit();
    let mut sources = Vec::new();
    for source in topology.sources.iter().filter(|source| node.is_none_or(|node| node == source.name)) {
        let mut opened = match options.file_only {
            true => None,
            // The device is opened with the source of its images.
            false if source.fitted_source().is_some() => continue,
            // A program that writes into the pipe would lose its reader when this command ends.
            false if is_pipe(source) => None,
            false => crate::preflight::open_device(&topology, source)
                .map_err(|error| Failure::file_usage(file, format_args!("source '{}': {error}", source.name)))?,
        };
        let fits = opened.as_mut().map(|opened| std::mem::take(&mut opened.fits)).unwrap_or_default();
        sources.push(Checked::new(source, opened));
        sources.extend(fits.into_iter().map(|(index, fit)| Checked::new(&topology.sources[index], Some(fit))));
    }
    text.push_str(&sources_text(&sources));
    text.push_str(&different_rates_text(&topology.sources));
    let sources: Vec<_> = sources.into_iter().map(|source| source.json).collect();
    let mut output = Output::new();
    if json {
        output.json(&serde_json::json!({ "file": file, "ok": true, "sources": sources, "topology": topology }))?;
    } else {
        output.text(&text)?;
    }
    output.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn builder_text(builder: &BuilderNodeConfig) -> String {
    let listen: Vec<String> = builder.listen.iter().map(ToString::to_string).collect();
    let blocks = format!("{} blocks of {}", format_count(builder.blocks), format_size(builder.block.0));
    let head = format!("  builder {}: ", replace_controls(&builder.name));
    let mut out = wrap_words(&head, &format!("{}; {blocks}", listen.join(", ")));
    if let Some(kept) = builder.known_calibration() {
        let link = format!("{}, buffer {}, {}", kept.link.rate, kept.link.buffer, kept.date_text());
        out.push_str(&wrap_words("    ", &format!("link as calibrated: {link} ({})", kept.file.display())));
        for doubt in kept.doubts(std::time::SystemTime::now()) {
            out.push_str(&wrap_words("    warning: ", &doubt));
        }
    }
    out
}

/// Result of checking one source of a topology.
struct Checked {
    name: String,
    id: String,
    what: String,
    notes: Vec<String>,
    json: serde_json::Value,
    /// Open device, kept while others are checked: two sources may want the same one.
    _device: Option<Feed>,
}

impl Checked {
    fn new(source: &SourceNodeConfig, opened: Option<OpenSource>) -> Self {
        let SourceNodeConfig { name, id, device, slots, .. } = source;
        let (what, notes, json) = match &opened {
            None => (
                device.as_ref().map_or("pushed by another program", |device| device.kind_name()).to_owned(),
                Vec::new(),
                serde_json::json!({ "name": name, "id": id, "device": null }),
            ),
            Some(OpenSource { feed, slot_bytes: slot, .. }) => {
                let description = feed.device_description().cloned().unwrap_or_default();
                let truth = match (description.simulated, description.replayed) {
                    (true, _) => "simulated",
                    (_, true) => "replayed",
                    _ => "live",
                };
                let most = format_size(feed.max_payload() as u64);
                let contents = match feed {
                    Feed::Device(device) => device.recording_contents(),
                    _ => None,
                };
                let mut notes: Vec<String> = contents.iter().map(|held| contents_text(held, &description)).collect();
                notes.extend(description.notes.iter().cloned());
                let slots_text = format!("{slots} slots of {}", format_size(*slot as u64));
                (
                    format!("{}, {truth}; fragments of up to {most}, {slots_text}", description.kind),
                    notes,
                    serde_json::json!({
                        "name": name, "id": id, "slot_bytes": slot, "slots": slots, "device": description,
                        "recording": contents.as_ref().map(contents_json),
                    }),
                )
            }
        };
        let device = opened.map(|opened| opened.feed).filter(|feed| matches!(feed, Feed::Acquisition(_)));
        Self { name: name.clone(), id: id.clone(), what, notes, json, _device: device }
    }
}

/// Returns the contents of a recording in one line: the number and kind of records, their files, and their times.
fn contents_text(contents: &Contents, description: &Description) -> String {
    let Contents { records, first, last, nanos, files, invalid, missing } = contents;
    let what =
        format_quantity(*records, if description.payload_type.starts_with("image") { "image" } else { "record" });
    let shape = description.shape.as_ref().map(|axes| axes.iter().map(ToString::to_string).collect::<Vec<_>>());
    let shape = shape.map(|axes| format!(" of {} ({})", axes.join(" × "), description.payload_type));
    let files =
        files.as_ref().map(|[first, last]| format!(", from {} to {}", replace_controls(first), replace_controls(last)));
    let length = match *nanos {
        short if short < 1_000_000_000 => format!("{:.3} ms", short as f64 / 1e6),
        long => format_seconds(long as f64 / 1e9),
    };
    let time = match (*nanos, first.0) {
        (0, _) => String::new(),
        (_, 0) => format!(", {length}"),
        (_, first) => {
            let [first, last] = [first, last.0].map(format_tai);
            format!(", {length}, TAI {first} to {last}")
        }
    };
    let marked = [(invalid, "marked invalid"), (missing, "missing")];
    let marked = marked.iter().filter(|(records, _)| **records > 0);
    let marked: String = marked.map(|(records, how)| format!("; {} {how}", format_count(records))).collect();
    format!("{what}{}{}{time}{marked}", shape.unwrap_or_default(), files.unwrap_or_default())
}

fn contents_json(contents: &Contents) -> serde_json::Value {
    let Contents { records, first, last, nanos, files, invalid, missing } = contents;
    let [first_tai, last_tai] = [first, last].map(|time| (first.0 > 0).then(|| format_tai(time.0)));
    serde_json::json!({
        "records": records, "seconds": *nanos as f64 / 1e9, "first_tai": first_tai, "last_tai": last_tai,
        "files": files, "invalid": invalid, "missing": missing,
    })
}

/// Returns a line for each source, and one line for consecutive sources that are alike.
fn sources_text(sources: &[Checked]) -> String {
    let mut out = String::new();
    for alike in sources.chunk_by(|one, next| (&one.what, &one.notes) == (&next.what, &next.notes)) {
        let (first, last) = (&alike[0], &alike[alike.len() - 1]);
        let names = match alike.len() {
            1 => format!("source {} ({})", first.name, first.id),
            many => {
                format!("{} sources {} ({}) to {} ({})", format_count(many), first.name, first.id, last.name, last.id)
            }
        };
        out.push_str(&wrap_words("  ", &format!("{names}: {}", first.what)));
        out.extend(first.notes.iter().map(|note| wrap_words("    ", note)));
    }
    out
}

/// Returns a warning if sources have different rates: an event has fragments with the same number, so the times of its
/// fragments move apart. Empty where events are numbered by time.
fn different_rates_text(sources: &[SourceNodeConfig]) -> String {
    let numbered = sources.iter().filter(|source| source.beat.is_none());
    let mut rates = numbered.filter_map(|source| Some((source, source.rate?.events_per_second())));
    let Some((first, rate)) = rates.next() else { return String::new() };
    let Some((other, other_rate)) = rates.find(|(_, other)| *other != rate) else { return String::new() };
    wrap_words(
        "  warning: ",
        &format!(
            "the rates of the sources differ ({} {rate} Hz, {} {other_rate} Hz): the fragments of an event have one \
             number, and their times move apart",
            replace_controls(&first.name),
            replace_controls(&other.name)
        ),
    )
}

/// Returns true if the source's device is a named pipe.
fn is_pipe(source: &SourceNodeConfig) -> bool {
    let mut paths = source.device.iter().flat_map(|device| device.input_paths());
    paths.any(|path| path.metadata().is_ok_and(|data| data.file_type().is_fifo()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_wire::TaiNanos;

    #[test]
    fn different_rates_are_a_warning() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let source =
            "[[source]]\nname = \"adc-N\"\nid = \"1.N\"\nrate = N\ndevice = { kind = \"model-adc\", size = 8 }\n";
        let builder = "[[builder]]\nname = \"eb\"\nlisten = [\"tcp:127.0.0.1:7400\"]\n";
        let text = [builder, &source.replace('N', "50"), &source.replace('N', "200")].concat();
        std::fs::write(file.path(), text).unwrap();
        let sources = Topology::load(file.path(), None).unwrap().sources;
        let warning = different_rates_text(&sources);
        assert!(warning.contains("(adc-50 50 Hz, adc-200 200 Hz)"), "{warning}");
    }

    #[test]
    fn what_a_recording_holds_is_one_line() {
        let images =
            Description { shape: Some(vec![480, 640]), payload_type: "image-u16".into(), ..Description::default() };
        let contents = Contents {
            records: 12,
            first: TaiNanos(0),
            last: TaiNanos(11_000_000),
            nanos: 12_000_000,
            files: Some(["img1.pgm", "img12.pgm"].map(Into::into)),
            invalid: 0,
            missing: 0,
        };
        let text = contents_text(&contents, &images);
        assert_eq!(text, "12 images of 480 × 640 (image-u16), from img1.pgm to img12.pgm, 12.000 ms");
        let frames = Contents {
            records: 1600,
            first: TaiNanos(1_700_000_000_000_000_000),
            last: TaiNanos(1_700_000_001_999_000_000),
            nanos: 2_000_000_000,
            files: None,
            invalid: 3,
            missing: 1,
        };
        let text = contents_text(&frames, &Description::default());
        let times = "TAI 2023-11-14T22:13:20.000000000 to 2023-11-14T22:13:21.999000000";
        assert_eq!(text, format!("1,600 records, 2.00 s, {times}; 3 marked invalid; 1 missing"));
        assert_eq!(contents_json(&contents)["last_tai"], serde_json::Value::Null, "it has no date");
    }
}
