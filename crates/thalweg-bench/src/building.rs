//! Events built from N sources: the whole path, by the same processes that `thalweg run` starts.

use crate::drive::{Instrument, PROGRAM_TIMEOUT, Stop};
use crate::options::Timing;
use crate::peers::program::{Ended, Program};
use crate::plan::InstrumentOptions;
use crate::{BenchError, Cpu, Figures, Key, Sizes, Usage};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Deserialize;
use std::fs::File;
use std::io::Write;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use thalweg_device::ModelAdcConfig;
use thalweg_link::{Address, LinkKind};
use thalweg_node::{BuilderNodeConfig, CheckConfig, DEFAULT_SLOT, Policy, SourceNodeConfig, Topology, WINDOW, Wait};
use thalweg_text::ByteSize;
use thalweg_wire::{SourceId, record_bytes};

/// Options of `thalweg bench build`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) timing: Timing,
    /// Bytes in each fragment's payload
    #[arg(short = 'l', long, visible_alias = "size", value_name = "BYTES", default_value = "1KiB,64KiB,1MiB")]
    sizes: Sizes,
    /// Number of sources, each a process of its own
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=256))]
    sources: u16,
    /// Number of builders, each a process of its own: event e is built by builder e modulo this number
    #[arg(long, value_name = "M", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    builders: u16,
    /// Links that carry the fragments
    #[arg(long, value_name = "tcp|udp|shm|rdma|rdma-efe", value_delimiter = ',', default_value = "tcp,shm")]
    link: Vec<LinkKind>,
    /// TCP congestion control of the sources' links, or 'system' for the system's default. Without it: cubic
    #[arg(short = 'C', long, value_name = "NAME")]
    congestion: Option<String>,
    /// Part of each fragment that is checked before it counts as built
    #[arg(long, value_name = "header|payload", default_value = "header")]
    check: CheckConfig,
    /// The same as --check payload
    #[arg(long, conflicts_with = "check")]
    check_data: bool,
    /// Waiting method of the hot threads: sleep, poll, or the time to poll before sleeping, as 50us
    #[arg(long, value_name = "HOW", default_value = "sleep")]
    wait: Wait,
    /// Record the events below this directory, and delete them when they are counted. Without it they are let go
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// The program to run, where it is not this one.
    #[arg(skip)]
    program: Option<PathBuf>,
}

impl InstrumentOptions for Options {
    fn timing(&self) -> Timing {
        self.timing
    }

    fn create_instrument(&self) -> Result<Box<dyn Instrument>, BenchError> {
        if let Some(wrong) = self.sizes.0.iter().find(|size| !(1..=1 << 29).contains(*size)) {
            return Err(BenchError::Usage(format!("--sizes {wrong}: fragments of 1 byte to 512 MiB are possible")));
        }
        self.check_processors()?;
        let program = match &self.program {
            Some(program) => program.clone(),
            None => crate::readout_program().map_err(BenchError::os_error("finding the program thalweg"))?,
        };
        let record = match &self.record {
            // The nodes may run in another working directory.
            Some(directory) => Some(std::path::absolute(directory).map_err(BenchError::file_error(directory))?),
            None => None,
        };
        let check = if self.check_data { CheckConfig::Payload } else { self.check };
        Ok(Box::new(Building { options: Self { record, check, ..self.clone() }, program, recorder: None }))
    }
}

impl Options {
    /// Checks that each node that polls has a processor: two on one processor would take turns of the scheduler.
    fn check_processors(&self) -> Result<(), BenchError> {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let nodes = usize::from(self.sources) + usize::from(self.builders);
        if self.wait != Wait::Poll || nodes <= processors {
            return Ok(());
        }
        Err(BenchError::Unavailable {
            what: format!("a processor for each of {nodes} nodes that poll"),
            why: format!(
                "this process may use {processors}; let the nodes sleep (--wait sleep), or poll for a time before they \
                 sleep (--wait 50us)"
            ),
        })
    }

    fn point_key(&self, link: LinkKind, size: u64) -> Key {
        let mut key = Key::new(link.name, "build", size)
            .with_setting("sources", self.sources)
            .with_setting("builders", self.builders)
            .with_setting("recorded", if self.record.is_some() { "yes" } else { "no" });
        if let Some(congestion) = self.congestion.as_ref().filter(|_| link.congestion) {
            key = key.with_setting("congestion", congestion);
        }
        if self.wait != Wait::default() {
            key = key.with_setting("wait", self.wait);
        }
        if self.check == CheckConfig::Payload { key.with_setting("checked", "header and payload") } else { key }
    }
}

struct Building {
    options: Options,
    program: PathBuf,
    /// Write method of the last run.
    recorder: Option<String>,
}

impl Instrument for Building {
    fn point_keys(&self) -> Vec<Key> {
        let Options { link: links, sizes, .. } = &self.options;
        links.iter().flat_map(|link| sizes.0.iter().map(|size| self.options.point_key(*link, *size))).collect()
    }

    fn measure_point(&mut self, key: &Key, timing: &Timing, stop: &Stop) -> Result<Figures, BenchError> {
        let link: LinkKind = key.link.parse().map_err(BenchError::Usage)?;
        let directory = match &self.options.record {
            Some(directory) => Some(Scratch::create_below(directory, "build")?),
            None => None,
        };
        let mut topology = build_topology(&self.options, link, key.size)?;
        topology.run.duration = Some(timing.min_time);
        topology.run.record = directory.is_some();
        topology.run.directory = directory.as_ref().map_or_else(std::env::temp_dir, |scratch| scratch.0.clone());
        let text = toml::to_string(&topology).map_err(|error| BenchError::Usage(error.to_string()))?;

        let before = Usage::read_counters();
        let mut command = Command::new(&self.program);
        command.args(["--json", "run", "/dev/stdin"]).stdin(text_memory_file(&text)?);
        let mut program = Program::start("thalweg run", &mut command)?;
        // The program itself has timeouts for its nodes, at the beginning and at the end.
        let ended = program.wait_for_end(timing.min_time + 3 * PROGRAM_TIMEOUT, stop)?;
        let used = before.used_since();

        let run = parse_run_figures(&ended)?;
        self.recorder = run.recorder.clone();
        let seconds_per_gigabyte = run.cpu_seconds_per_gigabyte.sum();
        let process_percent = seconds_per_gigabyte.map(|cost| 100.0 * cost * run.bytes as f64 / 1e9 / run.seconds);
        Ok(Figures {
            goodput_bits_per_second: Some(run.goodput_bits_per_second),
            messages_per_second: Some(run.fragments_per_second),
            copies_per_byte: run.copies_per_byte.sum(),
            // Without the sources' share there is no figure.
            cpu: process_percent.map(|process_percent| Cpu {
                process_percent,
                system_percent: used.percent_of_wall(used.system),
                seconds_per_gigabyte,
                ..Cpu::default()
            }),
            seconds: run.seconds,
            steal_percent: used.steal_percent(),
            ..Figures::default()
        })
    }

    fn point_notes(&self, key: &Key) -> Vec<String> {
        let mut notes = vec![
            "a run is measured from its start to its end: there is no warm-up to leave out; processor time is that of \
             the nodes' whole lives, with the allocation of their memory"
                .to_owned(),
        ];
        if key.link == "shm" && self.options.record.is_none() && self.options.check == CheckConfig::Header {
            notes.push(
                "payloads are handed over where they lie: no process reads them, unless with --check-data".to_owned(),
            );
        }
        notes.extend(self.recorder.iter().map(|recorder| format!("written by {recorder}")));
        notes
    }
}

/// Fields used of the last line that `thalweg --json run` prints ([`thalweg_node::RunReport`]).
#[derive(Debug, Deserialize)]
struct RunFigures {
    state: String,
    reasons: Vec<String>,
    seconds: f64,
    bytes: u64,
    fragments_per_second: f64,
    goodput_bits_per_second: f64,
    copies_per_byte: PerSide,
    cpu_seconds_per_gigabyte: PerSide,
    recorder: Option<String>,
}

#[derive(Debug, Deserialize)]
struct PerSide {
    /// `None` if a source sent no final counters.
    source: Option<f64>,
    builder: f64,
}

impl PerSide {
    fn sum(&self) -> Option<f64> {
        self.source.map(|source| source + self.builder)
    }
}

/// Parses the report of a run. A run that is incomplete, or built nothing, is no measurement.
fn parse_run_figures(ended: &Ended) -> Result<RunFigures, BenchError> {
    let line = ended.out.trim_end().lines().last().unwrap_or_default();
    let why = match serde_json::from_str::<RunFigures>(line) {
        Ok(run) if run.state != "COMPLETE" => format!("the run ended {}: {}", run.state, run.reasons.join("; ")),
        Ok(run) if run.bytes == 0 || run.seconds <= 0.0 => {
            "the run was over before anything was built: give it longer with --min-time".to_owned()
        }
        Ok(run) => return Ok(run),
        Err(_) => ended.last_output_lines(),
    };
    Err(BenchError::Program { program: "thalweg run".to_owned(), why })
}

/// Returns a topology of N model sources and M builders with the defaults of `thalweg demo`.
fn build_topology(options: &Options, link: LinkKind, size: u64) -> Result<Topology, BenchError> {
    let payload = usize::try_from(size).unwrap_or(usize::MAX);
    // Enough to keep the link busy, few enough to stay in the cache, and the same number for each builder.
    let slots = if record_bytes(payload) > DEFAULT_SLOT { 4 } else { 6u32 }.next_multiple_of(options.builders.into());
    let sources: Vec<_> =
        (0..options.sources).map(|index| source_node_config(options, link, size, slots, index)).collect();
    let slot_bytes = sources[0].slot_bytes(payload) as u64;
    let builders = (0..options.builders).map(|index| builder_node_config(options, link, slot_bytes, index));
    let builders = builders.collect::<Result<_, BenchError>>()?;
    let topology = Topology { builders, sources, ..Topology::default() };
    topology.check_values().map_err(|(field, problem)| BenchError::Usage(format!("{field}: {problem}")))?;
    Ok(topology)
}

fn source_node_config(options: &Options, link: LinkKind, size: u64, slots: u32, index: u16) -> SourceNodeConfig {
    // One waveform: each slot holds its content from its first use on, whichever slot is free, as in the ring of
    // buffers that a digitizer writes by DMA, and the model costs nothing.
    let model = ModelAdcConfig { size: ByteSize(size), size_from: None, seed: 1, source: None, period: 1 };
    SourceNodeConfig {
        name: format!("source-{index}"),
        id: SourceId::new(1, index).to_string(),
        device: Some(model.into()),
        beat: None,
        link,
        adapter: None,
        congestion: options.congestion.clone().filter(|_| link.congestion),
        rate: None,
        burst: 1,
        policy: Policy::Block,
        slots,
        slot: None,
        wait: options.wait,
        cpu: None,
    }
}

fn builder_node_config(
    options: &Options,
    link: LinkKind,
    slot_bytes: u64,
    index: u16,
) -> Result<BuilderNodeConfig, BenchError> {
    let name = format!("thalweg-bench-{}-{index}.sock", std::process::id());
    let listen = Address::on_this_host(link, &std::env::temp_dir(), &name).map_err(BenchError::Usage)?;
    let mut builder = BuilderNodeConfig::new(&format!("builder-{index}"), vec![listen]);
    builder.check = options.check;
    builder.wait = options.wait;
    builder.block = ByteSize(builder.block.0.max((slot_bytes + (1 << 17)).next_multiple_of(1 << 20)));
    // Several fetches in flight, however large they are.
    builder.window = Some(ByteSize(WINDOW.max(4 * slot_bytes)));
    Ok(builder)
}

/// Temporary directory, deleted with its content on drop.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn create_below(parent: &Path, what: &str) -> Result<Self, BenchError> {
        std::fs::create_dir_all(parent).map_err(BenchError::file_error(parent))?;
        let path = parent.join(format!("thalweg-{what}-{}", std::process::id()));
        std::fs::create_dir(&path).map_err(BenchError::file_error(&path))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Makes a file without a name that holds `text`.
fn text_memory_file(text: &str) -> Result<File, BenchError> {
    let file = memfd_create("topology", MemfdFlags::CLOEXEC).map_err(BenchError::os_error("memfd_create"))?;
    let mut file = File::from(file);
    file.write_all(text.as_bytes()).map_err(BenchError::os_error("writing the topology"))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;
    use std::time::Duration;
    use thalweg_testing::skip::skipped;

    fn options(words: &[&str]) -> Options {
        let words: Vec<String> = ["build"].iter().chain(words).map(ToString::to_string).collect();
        match Plan::parse_words(&words).unwrap() {
            Plan::Build(options) => options,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the program, if it was built into the same folder as this test.
    fn thalweg() -> Option<PathBuf> {
        let test = std::env::current_exe().unwrap();
        test.ancestors().nth(2).map(|folder| folder.join("thalweg")).filter(|program| program.exists())
    }

    #[test]
    fn more_nodes_that_poll_than_processors_are_refused_with_a_remedy() {
        let processors = std::thread::available_parallelism().unwrap().get();
        let sources = processors.to_string();
        let error = options(&["--wait", "poll", "--sources", &sources]).check_processors().unwrap_err().to_string();
        assert!(error.starts_with(&format!("a processor for each of {} nodes that poll: ", processors + 1)), "{error}");
        assert!(error.ends_with("(--wait 50us)"), "{error}");
        options(&["--wait", "50us", "--sources", &sources]).check_processors().unwrap();
        options(&["--sources", &sources]).check_processors().unwrap();
    }

    fn measure(words: &[&str], timing: Duration) -> Option<Result<Figures, BenchError>> {
        let Some(program) = thalweg() else {
            skipped("the program thalweg is not built");
            return None;
        };
        let mut options = options(words);
        (options.program, options.timing.min_time) = (Some(program), timing);
        let mut building = options.create_instrument().unwrap();
        let key = building.point_keys().remove(0);
        Some(building.measure_point(&key, &options.timing, &Stop::default()))
    }

    #[test]
    fn every_link_and_size_is_a_point() {
        let building = options(&["--sizes", "1KiB,1MiB", "-C", "cubic", "--check-data", "--builders", "2"]);
        let keys = building.create_instrument().unwrap().point_keys();
        let names: Vec<_> = keys.iter().map(|key| (key.link.as_str(), key.size)).collect();
        assert_eq!(names, [("tcp", 1024), ("tcp", 1 << 20), ("shm", 1024), ("shm", 1 << 20)]);
        let settings = |index: usize| keys[index].settings.iter().map(|(name, value)| format!("{name} {value}"));
        assert_eq!(
            settings(0).collect::<Vec<_>>(),
            ["builders 2", "checked header and payload", "congestion cubic", "recorded no", "sources 3"]
        );
        assert!(!settings(2).any(|setting| setting.starts_with("congestion")));
    }

    #[test]
    fn impossible_fragment_sizes_are_refused_at_once() {
        for size in ["0", "1GiB"] {
            let refused = options(&["--sizes", size]).create_instrument().err().unwrap();
            assert!(refused.is_usage_error() && refused.to_string().contains("512 MiB"), "{refused}");
        }
    }

    #[test]
    fn topologies_of_any_shape_are_sound() {
        for (sources, builders, size) in
            [("1", "1", 1), ("3", "2", 64 << 10), ("256", "64", 1 << 20), ("2", "5", 64 << 20)]
        {
            let options = options(&["--sources", sources, "--builders", builders]);
            for link in [LinkKind::TCP, LinkKind::SHM] {
                build_topology(&options, link, size).unwrap();
            }
        }
    }

    #[test]
    fn a_run_is_measured_by_its_own_report() {
        let Some(figures) =
            measure(&["--link", "shm", "--sizes", "64KiB", "--builders", "2"], Duration::from_millis(300))
        else {
            return;
        };
        let figures = figures.unwrap();
        assert!(figures.goodput_bits_per_second > Some(0.0) && figures.messages_per_second > Some(0.0));
        assert_eq!(figures.copies_per_byte, Some(0.0));
        assert!(figures.cpu.unwrap().seconds_per_gigabyte > Some(0.0));
    }

    #[test]
    fn recorded_events_are_deleted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let words = ["--link", "tcp", "--sizes", "64KiB", "--record", path];
        let Some(figures) = measure(&words, Duration::from_millis(300)) else { return };
        assert!(figures.unwrap().copies_per_byte >= Some(1.0));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_impossible_run_is_reported_with_its_own_error() {
        let words = ["--link", "tcp", "-C", "no-such-control"];
        let Some(figures) = measure(&words, Duration::from_millis(300)) else { return };
        let error = figures.unwrap_err().to_string();
        assert!(error.starts_with("thalweg run: ") && error.contains("no-such-control"), "{error}");
    }

    #[test]
    fn only_a_complete_run_is_a_measurement() {
        let ended =
            |out: &str, err: &str| Ended { status: Default::default(), out: out.into(), err: err.into(), cpu: 0.0 };
        let error = |out: &str, err: &str| parse_run_figures(&ended(out, err)).unwrap_err().to_string();
        let report = r#"{"state":"COMPLETE","reasons":[],"seconds":2.0,"bytes":8,"fragments_per_second":1.0,
            "goodput_bits_per_second":32.0,"copies_per_byte":{"source":0.0,"builder":1.0},
            "cpu_seconds_per_gigabyte":{"source":0.1,"builder":0.2},"recorder":null,"run":1}"#
            .replace('\n', "");
        assert_eq!(parse_run_figures(&ended(&report, "")).unwrap().bytes, 8);
        let incomplete =
            report.replace("COMPLETE", "INCOMPLETE").replace("[]", r#"["source 1.0: 5 fragments lost","the disk"]"#);
        assert_eq!(
            error(&incomplete, ""),
            "thalweg run: the run ended INCOMPLETE: source 1.0: 5 fragments lost; the disk"
        );
        assert!(error(&report.replace(r#""bytes":8"#, r#""bytes":0"#), "").contains("--min-time"));
        assert_eq!(error("", "thalweg: no more memory\n"), "thalweg run: thalweg: no more memory");
        assert_eq!(error("{", ""), "thalweg run: {");
    }
}
