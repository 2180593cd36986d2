//! Comparison of Thalweg with the tools that laboratories measure with, and the libraries they would use instead.
//!
//! For each pairing of a table, a peer's program and the line of `thalweg bench` that does the same work take turns,
//! each going first every other time: absolute figures on a shared machine drift, and a disk may give more to the one
//! that comes first; ratios within one run do so less. Every turn of both is kept, in the order taken; the ratio is the
//! median of the ratios turn by turn.
//!
//! Everything stays on this host, on a loopback of its own if that is possible.

mod install;
pub(crate) mod loopback;
pub(crate) mod parse;
pub(crate) mod program;
mod table;

use crate::building::Scratch;
use crate::doubt::{Warning, Watch, worst_warnings};
use crate::drive::{PROGRAM_TIMEOUT, Stop};
use crate::options::min_time;
use crate::point::{Key, Point, median_value};
use crate::{BenchError, Host, Plan};
use install::Shelf;
use program::Program;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};
use table::{Figure, PEERS, ROWS, Row, Server};
use thalweg_text::plot::Provenance;

/// Options of `thalweg bench peers`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Only these peers or pairings, by name
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    only: Vec<String>,
    /// Number of turns of each side
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// Duration of each turn; peers that count whole seconds take the next one
    #[arg(short = 't', long, visible_alias = "duration", value_name = "TIME", default_value = "2s", value_parser = min_time)]
    min_time: Duration,
    /// Two turns of one second: a first look, not a figure
    #[arg(long, conflicts_with_all = ["repeat", "min_time"])]
    quick: bool,
    /// Install the peers that are missing: with apt-get, or with pip into a directory of our own
    #[arg(long)]
    install: bool,
    /// Directory on the disk that is measured
    #[arg(long, value_name = "DIR", default_value = ".")]
    path: PathBuf,
}

/// Everything that one comparison measured.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PeersReport {
    /// File format: [`PeersReport::FORMAT`].
    pub format: String,
    /// Command line as it was given.
    #[serde(default)]
    pub command_line: Vec<String>,
    /// Time at which the comparison began, UTC (RFC 3339).
    pub began: String,
    /// Machine on which it was taken.
    pub host: Host,
    /// Number of turns of each side.
    pub repeat: u32,
    /// Intended duration of a turn, in seconds.
    pub min_time: f64,
    /// Network of the measurement.
    pub network: String,
    /// Pairings, in the order in which they were taken.
    pub pairings: Vec<Pairing>,
    /// Peers that are missing on this machine.
    pub missing: Vec<Missing>,
    /// Conditions that make the figures less certain.
    pub warnings: Vec<String>,
}

impl PeersReport {
    /// Value of [`PeersReport::format`].
    pub const FORMAT: &str = "thalweg-peers/1";

    /// Returns the origin of its figures.
    pub fn provenance(&self) -> Provenance {
        self.host.provenance(&format!("bench peers over {}", self.network), &self.began, &self.command_line)
    }
}

/// One piece of work, done by a peer and by Thalweg in turns.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Pairing {
    /// Name, as `--only` takes it.
    pub name: String,
    /// Description of the work.
    pub work: String,
    /// Name of the peer.
    pub peer: String,
    /// Version of the peer, as it prints it.
    pub version: String,
    /// Command lines of the peer, server first, as in the last turn.
    pub commands: Vec<String>,
    /// Command line of Thalweg, `thalweg bench` and its words.
    pub ours: String,
    /// Remark on the ratio.
    pub note: String,
    /// Compared figures, the most important first. Empty if no figure could be measured.
    pub figures: Vec<Compared>,
    /// Conditions that make the figures less certain, the worst of each kind, with the program and the turn.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub warnings: Vec<Warning>,
    /// Reason why figures, or some of their turns, are missing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// One figure of both sides.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// Name: `goodput`, `messages`, `half a round trip, median`, `processor time`, …
    pub name: String,
    /// Unit: `Gbit/s`, `1/s`, `µs`, `s/GB`.
    pub unit: String,
    /// Whether a ratio above 1 is in favour of Thalweg.
    pub higher_is_better: bool,
    /// Thalweg's turns, in the order taken.
    pub ours: Vec<f64>,
    /// Peer's turns, taken alternately just before and just after Thalweg's.
    pub theirs: Vec<f64>,
    /// Median of Thalweg's turns.
    pub ours_median: f64,
    /// Median of the peer's turns.
    pub theirs_median: f64,
    /// Thalweg's figures divided by the peer's.
    pub ratio: Ratio,
}

/// Thalweg's figure divided by the peer's, turn by turn.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Median of the ratios.
    pub median: f64,
    /// Least ratio.
    pub least: f64,
    /// Greatest ratio.
    pub greatest: f64,
}

/// Peer that is missing on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Name of the peer.
    pub peer: String,
    /// Missing program, or another reason.
    pub why: String,
    /// Command that would install it.
    pub install: String,
}

/// Receiver of the progress of a comparison, called on a thread of its own.
pub trait Observer: Send {
    /// Reports that `done` of `of` pairings are complete, and `turn` turns of the pairing named.
    fn on_progress(&mut self, done: usize, of: usize, pairing: &str, turn: u32);

    /// Reports a completed pairing.
    fn on_pairing_completed(&mut self, pairing: &Pairing);
}

/// Measures all pairings whose peers are present. A pairing that fails keeps its error and the others are measured; a
/// [stopped](Stop) comparison holds what was done until then.
///
/// # Errors
/// If `options.only` has an unknown name, or no directory can be made for the peers' programs.
pub fn compare_with_peers(
    options: &Options,
    command_line: Vec<String>,
    observer: &mut dyn Observer,
    stop: &Stop,
) -> Result<PeersReport, BenchError> {
    let rows = choose_rows(&options.only)?;
    let (repeat, min_time) = options.turn_settings();
    let mut report = PeersReport {
        format: PeersReport::FORMAT.to_owned(),
        command_line,
        began: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        host: Host::probe_this_machine(None),
        repeat,
        min_time: min_time.as_secs_f64(),
        network: String::new(),
        pairings: Vec::new(),
        missing: Vec::new(),
        warnings: Vec::new(),
    };

    let shelf = Shelf::open_cache()?;
    let rows = prepare_rows(rows, options.install, &shelf, &mut report, stop);
    // A thread, because it stays in a network of its own for the rest of its life.
    std::thread::scope(|scope| {
        let worker = std::thread::Builder::new()
            .name("peers".to_owned())
            .spawn_scoped(scope, || measure_pairings(options, &rows, &shelf, &mut report, observer, stop));
        worker.map_err(BenchError::os_error("starting a thread"))?.join().map_err(|_| BenchError::Program {
            program: "thalweg bench peers".to_owned(),
            why: "its thread panicked".to_owned(),
        })
    })?;
    add_warnings(&mut report, rows.len(), stop);
    Ok(report)
}

impl Options {
    /// Returns the number and the duration of the turns of each side.
    fn turn_settings(&self) -> (u32, Duration) {
        if self.quick { (2, Duration::from_secs(1)) } else { (self.repeat, self.min_time) }
    }
}

/// Returns the rows whose peers are present, with the peers' versions, and reports the missing peers.
fn prepare_rows(
    rows: Vec<&'static Row>,
    install: bool,
    shelf: &Shelf,
    report: &mut PeersReport,
    stop: &Stop,
) -> Vec<(&'static Row, String)> {
    let peers: Vec<_> = PEERS.into_iter().filter(|peer| rows.iter().any(|row| row.peer.name == peer.name)).collect();
    if install {
        report.warnings.extend(shelf.install_missing(&peers, stop));
    }
    let mut versions = BTreeMap::new();
    for peer in peers.into_iter().take_while(|_| !stop.is_requested()) {
        match shelf.prepare_peer(peer, stop) {
            Ok(version) => drop(versions.insert(peer.name, version)),
            Err(missing) => report.missing.push(missing),
        }
    }
    rows.into_iter().filter_map(|row| Some((row, versions.get(row.peer.name)?.clone()))).collect()
}

/// Measures the pairings, in a network of this thread's own if that is possible.
fn measure_pairings(
    options: &Options,
    rows: &[(&'static Row, String)],
    shelf: &Shelf,
    report: &mut PeersReport,
    observer: &mut dyn Observer,
    stop: &Stop,
) {
    let separate = thalweg_sys::netns::enter_private_network();
    let congestion = loopback::default_congestion_control();
    report.network = match &separate {
        Ok(()) => format!("a loopback of its own, TCP congestion control {congestion} unless chosen"),
        Err(error) => format!("the host's loopback, TCP congestion control {congestion} unless chosen; {error}"),
    };
    let (repeat, min_time) = options.turn_settings();
    let turns = Turns { shelf, separate: separate.is_ok(), congestion, repeat, min_time, path: &options.path, stop };
    for (done, (row, version)) in rows.iter().enumerate() {
        let pairing = turns.take_pairing(row, version, |turn| observer.on_progress(done, rows.len(), row.name, turn));
        if stop.is_requested() && pairing.figures.is_empty() {
            break;
        }
        observer.on_pairing_completed(&pairing);
        report.pairings.push(pairing);
    }
}

/// Adds the warnings about a comparison, which was to have `rows` pairings.
fn add_warnings(report: &mut PeersReport, rows: usize, stop: &Stop) {
    if stop.is_requested() {
        report.warnings.push(format!("stopped after {} of {} pairings", report.pairings.len(), rows));
    }
    if report.repeat == 1 {
        report.warnings.push("each program took one turn: the spread over the turns is not known".to_owned());
    }
    let pairings = report.pairings.iter();
    let worst = worst_warnings(pairings.clone().flat_map(|pairing| pairing.warnings.iter().cloned()));
    let worst = worst.into_iter().map(|worst| {
        let count =
            pairings.clone().filter(|pairing| pairing.warnings.iter().any(|one| one.kind == worst.kind)).count();
        let at = pairings.clone().find(|pairing| pairing.warnings.contains(&worst));
        let name = at.map_or("", |pairing| pairing.name.as_str());
        format!("{} ({name}; {count} of {} pairings)", worst.text, pairings.len())
    });
    let worst: Vec<String> = worst.collect();
    report.warnings.extend(worst);
    let failed = report.pairings.iter().filter(|pairing| pairing.error.is_some());
    let names: Vec<&str> = failed.map(|pairing| pairing.name.as_str()).collect();
    if !names.is_empty() {
        let of = report.pairings.len();
        report.warnings.push(format!("{} of {of} pairings failed: {}", names.len(), names.join(", ")));
    }
}

/// Returns the rows of these peers or with these names; all rows if there are no names.
fn choose_rows(only: &[String]) -> Result<Vec<&'static Row>, BenchError> {
    if let Some(unknown) = only.iter().find(|name| !ROWS.iter().any(|row| row.has_name(name))) {
        let mut names: Vec<&str> = PEERS.iter().map(|peer| peer.name).collect();
        names.extend(ROWS.iter().map(|row| row.name));
        names.dedup();
        return Err(BenchError::Usage(format!("--only {unknown}: there are {}", names.join(", "))));
    }
    Ok(ROWS.iter().filter(|row| only.is_empty() || only.iter().any(|name| row.has_name(name))).collect())
}

/// Settings of the turns.
struct Turns<'a> {
    shelf: &'a Shelf,
    /// Whether this thread has a network of its own.
    separate: bool,
    congestion: String,
    repeat: u32,
    min_time: Duration,
    path: &'a Path,
    stop: &'a Stop,
}

/// One turn of one side.
#[derive(Debug, Clone, Copy)]
struct Turn {
    value: f64,
    /// Processor seconds for 10⁹ payload bytes, both ends.
    cpu: Option<f64>,
}

impl Turns<'_> {
    /// Takes all turns of one pairing.
    fn take_pairing(&self, row: &Row, version: &str, progress: impl FnMut(u32)) -> Pairing {
        let mut pairing = Pairing {
            name: row.name.to_owned(),
            work: row.work.to_owned(),
            peer: row.peer.name.to_owned(),
            version: version.to_owned(),
            commands: Vec::new(),
            ours: String::new(),
            note: row.note.to_owned(),
            figures: Vec::new(),
            warnings: Vec::new(),
            error: None,
        };
        let mut turns = Vec::new();
        match self.take_turns(row, &mut pairing, &mut turns, progress) {
            Ok(()) | Err(BenchError::Stopped) => {}
            Err(error) => pairing.error = Some(error.to_string()),
        }
        let (theirs, ours): (Vec<Turn>, Vec<Turn>) = turns.into_iter().unzip();
        let (name, unit, one) = row.figure.name_unit_and_factor();
        let [our_values, their_values] =
            [&ours, &theirs].map(|turns| turns.iter().map(|turn| turn.value / one).collect());
        pairing.figures.extend(compare_turns(name, unit, row.figure.higher_is_better(), our_values, their_values));
        let costs = [&ours, &theirs].map(|turns| turns.iter().map(|turn| turn.cpu).collect::<Option<Vec<f64>>>());
        if let [Some(ours), Some(theirs)] = costs {
            pairing.figures.extend(compare_turns("processor time", "s/GB", false, ours, theirs));
        }
        pairing
    }

    /// Takes the peer's turn and then Thalweg's, the next time in the opposite order, and so on.
    fn take_turns(
        &self,
        row: &Row,
        pairing: &mut Pairing,
        turns: &mut Vec<(Turn, Turn)>,
        mut progress: impl FnMut(u32),
    ) -> Result<(), BenchError> {
        if !self.separate && !row.peer.loopback_only {
            return Err(BenchError::Unavailable {
                what: row.peer.name.to_owned(),
                why: format!(
                    "it listens on every address, and there is no network of its own for it: {}",
                    thalweg_sys::netns::REMEDY
                ),
            });
        }
        let scratch = Scratch::create_below(self.path, "peers")?;
        for turn in 0..if row.once { 1 } else { self.repeat } {
            if self.stop.is_requested() {
                return Err(BenchError::Stopped);
            }
            progress(turn);
            let ports = loopback::find_free_ports()?;
            let values = self.placeholder_values(row, ports, &scratch.0);
            let processors = first_two_processors().filter(|_| row.bound);
            let bound = processors.map(|[asking, serving]| format!(" --cpu {asking}/{serving}")).unwrap_or_default();
            let words = values.fill_command_line(&format!("{}{bound} --repeat 1 --min-time {{time}}", row.ours));
            pairing.ours = words.join(" ");
            let Pairing { commands, warnings, peer, .. } = pairing;
            let mut take_theirs = || self.take_peer_turn(row, ports[0], processors, &values, commands);
            let take_ours = || take_own_turn(row.figure, &words, self.stop);
            turns.push(if turn % 2 == 0 {
                let theirs = watch_turn(peer, turn, warnings, &mut take_theirs)?;
                (theirs, watch_turn("Thalweg", turn, warnings, take_ours)?)
            } else {
                let ours = watch_turn("Thalweg", turn, warnings, take_ours)?;
                (watch_turn(peer, turn, warnings, &mut take_theirs)?, ours)
            });
        }
        Ok(())
    }

    /// Takes one turn of the peer's.
    fn take_peer_turn(
        &self,
        row: &Row,
        port: u16,
        processors: Option<[usize; 2]>,
        values: &Placeholders,
        commands: &mut Vec<String>,
    ) -> Result<Turn, BenchError> {
        commands.clear();
        let server = match row.server {
            Server::None => None,
            Server::Once(line, transport) | Server::Lasting(line, transport) => {
                let processor = processors.map(|[_, serving]| serving);
                let mut server = self.start_peer_program(row, &values.fill_command_line(line), processor, commands)?;
                server.wait_until_listening(port, transport, self.stop)?;
                Some(server)
            }
        };
        // Peers that take a count instead of a time are slower where their ends have to share a processor.
        let timeout = Duration::from_secs(180) + 10 * self.min_time;
        let processor = processors.map(|[asking, _]| asking);
        let client = self
            .start_peer_program(row, &values.fill_command_line(row.client), processor, commands)?
            .wait_for_end(timeout, self.stop)?;
        let measured = (row.parse)(&client.out).filter(|_| client.status.success());
        let measured = measured.ok_or_else(|| client.failure_error(row.peer.name))?;
        let server_cpu = match (server, row.server) {
            (Some(mut server), Server::Once(..)) => server.wait_for_end(PROGRAM_TIMEOUT, self.stop)?.cpu,
            (Some(mut server), _) => server.end_or_kill()?.cpu,
            (None, _) => 0.0,
        };
        let cpu = measured.cpu.unwrap_or(client.cpu + server_cpu);
        Ok(Turn { value: measured.value, cpu: measured.bytes.map(|bytes| cpu * 1e9 / bytes) })
    }

    /// Starts a program of the peer's, bound to a processor if one is given, and adds its command line to `commands`.
    fn start_peer_program(
        &self,
        row: &Row,
        words: &[String],
        processor: Option<usize>,
        commands: &mut Vec<String>,
    ) -> Result<Program, BenchError> {
        let bound = processor.map(|processor| ["taskset".to_owned(), "-c".to_owned(), processor.to_string()]);
        let all = row.environment.iter().copied().chain(bound.iter().flatten().chain(words).map(String::as_str));
        commands.push(all.collect::<Vec<_>>().join(" "));
        let program = self.shelf.find_program(&words[0]).unwrap_or_else(|| PathBuf::from(&words[0]));
        let mut command = Command::new(bound.as_ref().map_or(program.as_path(), |_| Path::new("taskset")));
        if let Some([_, flag, processor]) = &bound {
            command.args([flag, processor]).arg(&program);
        }
        command.args(&words[1..]).envs(row.environment.iter().filter_map(|one| one.split_once('=')));
        Program::start(&words[0], &mut command)
    }

    fn placeholder_values(&self, row: &Row, [port, port2]: [u16; 2], directory: &Path) -> Placeholders {
        // Peers that count whole seconds take the next one.
        let seconds = self.min_time.as_secs_f64().ceil().max(1.0);
        let free = rustix::fs::statvfs(directory).map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        Placeholders([
            ("{port}", port.to_string()),
            ("{port2}", port2.to_string()),
            ("{seconds}", seconds.to_string()),
            ("{time}", format!("{}s", self.min_time.as_secs_f64())),
            ("{count}", (f64::from(row.per_second) * seconds).to_string()),
            ("{most}", (free / 2).to_string()),
            ("{congestion}", self.congestion.clone()),
            ("{directory}", directory.to_string_lossy().into_owned()),
        ])
    }
}

/// Takes a turn of a program, and adds the conditions on the machine that make it less certain.
fn watch_turn(
    program: &str,
    turn: u32,
    warnings: &mut Vec<Warning>,
    take: impl FnOnce() -> Result<Turn, BenchError>,
) -> Result<Turn, BenchError> {
    let watch = Watch::begin();
    let taken = take()?;
    let new = watch.end(&[]).warnings().into_iter();
    let new = new.map(|one| Warning { text: format!("{program}, turn {}: {}", turn + 1, one.text), ..one });
    *warnings = worst_warnings(std::mem::take(warnings).into_iter().chain(new));
    Ok(taken)
}

/// Placeholders in braces, and their values for one turn.
struct Placeholders([(&'static str, String); 8]);

impl Placeholders {
    /// Returns the words of a command line with the placeholders replaced, word by word: values may have spaces.
    fn fill_command_line(&self, line: &str) -> Vec<String> {
        let words = line.split_whitespace().map(str::to_owned);
        words.map(|word| self.0.iter().fold(word, |word, (name, value)| word.replace(name, value))).collect()
    }
}

/// Returns the first two processors that this program may run on; `None` if it has only one.
pub(crate) fn first_two_processors() -> Option<[usize; 2]> {
    let allowed = rustix::thread::sched_getaffinity(None).ok()?;
    let mut allowed = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    Some([allowed.next()?, allowed.next()?])
}

/// Takes one turn of Thalweg's.
fn take_own_turn(figure: Figure, words: &[String], stop: &Stop) -> Result<Turn, BenchError> {
    let report = crate::measure_plan(&Plan::parse_words(words)?, words.to_vec(), &mut Quiet, stop)?;
    let Some(Point { figures, error, .. }) = report.points.first() else { return Err(BenchError::Stopped) };
    let value = match figure {
        Figure::Goodput => figures.goodput_bits_per_second,
        Figure::Messages => figures.messages_per_second,
        Figure::MedianLatency => figures.latency_us.map(|latency| latency.p50),
        Figure::MeanLatency => figures.latency_us.map(|latency| latency.mean),
    };
    let why = match (error, value) {
        (None, Some(value)) => {
            return Ok(Turn { value, cpu: figures.cpu.and_then(|cpu| cpu.seconds_per_gigabyte) });
        }
        (Some(error), _) => error.clone(),
        (None, None) => "it measured no such figure".to_owned(),
    };
    Err(BenchError::Program { program: "thalweg bench".to_owned(), why })
}

/// Compares a figure of both sides, turn by turn; `None` if there was no turn.
fn compare_turns(name: &str, unit: &str, higher_is_better: bool, ours: Vec<f64>, theirs: Vec<f64>) -> Option<Compared> {
    let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
    Some(Compared {
        name: name.to_owned(),
        unit: unit.to_owned(),
        higher_is_better,
        ours_median: median_value(ours.clone())?,
        theirs_median: median_value(theirs.clone())?,
        ratio: Ratio {
            least: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            greatest: ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            median: median_value(ratios)?,
        },
        ours,
        theirs,
    })
}

/// Observer that ignores the progress of a turn.
struct Quiet;

impl crate::Observer for Quiet {
    fn on_progress(&mut self, _done: usize, _of: usize, _now: &Key, _repeat: u32) {}
    fn on_point_completed(&mut self, _point: &Point) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn every_command_line_of_ours_is_valid() {
        let stop = Stop::default();
        let shelf = Shelf::open_cache().unwrap();
        let turns = Turns {
            shelf: &shelf,
            separate: true,
            congestion: "cubic".to_owned(),
            repeat: 1,
            min_time: Duration::from_millis(1500),
            path: Path::new("."),
            stop: &stop,
        };
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().join("a directory");
        std::fs::create_dir(&directory).unwrap();
        for row in ROWS {
            let values = turns.placeholder_values(row, [1, 2], &directory);
            let words = values.fill_command_line(row.ours);
            let plan = Plan::parse_words(&words).unwrap_or_else(|error| panic!("{}: {error}", row.name));
            let keys = plan.create_instrument().map(|instrument| instrument.point_keys().len());
            assert_eq!(keys.unwrap_or_else(|error| panic!("{}: {error}", row.name)), 1, "{}", row.name);
            for line in [row.client, row.ours] {
                let words = values.fill_command_line(line);
                assert!(!words.iter().any(|word| word.contains(['{', '}'])), "{}: {words:?}", row.name);
            }
        }
        let [row] = choose_rows(&["ucx-tcp-tag".to_owned()]).unwrap()[..] else { panic!() };
        assert_eq!(
            turns.placeholder_values(row, [1, 2], Path::new("")).fill_command_line(row.client).join(" "),
            "ucx_perftest 127.0.0.1 -p 1 -t tag_lat -s 1 -n 100000 -f"
        );
    }

    #[test]
    fn peers_and_pairings_are_chosen_by_name() {
        let names = |only: &[&str]| -> Vec<&str> {
            let only: Vec<String> = only.iter().map(ToString::to_string).collect();
            choose_rows(&only).unwrap().iter().map(|row| row.name).collect()
        };
        assert_eq!(names(&[]).len(), ROWS.len());
        assert_eq!(names(&["sockperf", "qperf-tcp-latency"]), ["qperf-tcp-latency", "sockperf-tcp", "sockperf-udp"]);
        let unknown = choose_rows(&["netperf".to_owned()]).unwrap_err();
        assert!(unknown.is_usage_error() && unknown.to_string().contains("iperf3-128k"), "{unknown}");
    }

    #[test]
    fn pairings_have_unique_names_and_explain_their_figure() {
        let mut names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ROWS.len());
        for row in ROWS {
            assert!(
                !row.note.is_empty()
                    && !row.work.is_empty()
                    && row.peer.programs.iter().any(|p| row.client.starts_with(p)),
                "{}",
                row.name
            );
            assert_eq!(row.client.contains("{count}"), row.per_second > 0, "{}", row.name);
        }
    }

    #[test]
    fn the_ratio_is_the_median_turn_by_turn_not_that_of_the_medians() {
        let compared =
            compare_turns("goodput", "Gbit/s", true, vec![10.0, 30.0, 20.0], vec![10.0, 20.0, 40.0]).unwrap();
        assert_eq!((compared.ours_median, compared.theirs_median), (20.0, 20.0));
        assert_eq!(compared.ratio, Ratio { median: 1.0, least: 0.5, greatest: 1.5 });
        assert_eq!(super::compare_turns("goodput", "Gbit/s", true, vec![], vec![]), None);
    }

    #[test]
    fn options_have_the_letters_of_the_other_instruments() {
        let options = Line::try_parse_from(["peers", "-t", "500ms", "--only", "fio", "qperf"]).unwrap().options;
        assert_eq!((options.min_time, options.repeat), (Duration::from_millis(500), 5));
        assert_eq!(options.only, ["fio", "qperf"]);
        assert!(Line::try_parse_from(["peers", "--quick", "-t", "3"]).is_err());
    }

    /// A peer that is on every machine, and prints at once what spead2 prints after a minute.
    const ECHO: Row = Row {
        name: "echo",
        peer: &table::Peer {
            name: "echo",
            origin: table::Origin::Debian("coreutils"),
            programs: &["echo"],
            version: "echo 1.0",
            loopback_only: true,
        },
        work: "",
        environment: &["HOW=quickly"],
        server: Server::None,
        client: "echo Sustainable rate: 8 Gbps",
        per_second: 0,
        parse: parse::parse_spead2,
        ours: "file --path {directory} --file-size 1MiB --method buffered --cache warm --direction read --sizes 64KiB",
        figure: Figure::Goodput,
        note: "",
        once: false,
        bound: false,
    };

    fn turns_below<'a>(path: &'a Path, shelf: &'a Shelf, stop: &'a Stop) -> Turns<'a> {
        let min_time = Duration::from_millis(1);
        Turns { shelf, separate: false, congestion: "cubic".to_owned(), repeat: 3, min_time, path, stop }
    }

    #[test]
    fn both_take_turns_and_nothing_is_left_behind() {
        let (directory, shelf, stop) = (tempfile::tempdir().unwrap(), Shelf::open_cache().unwrap(), Stop::default());
        let mut seen = Vec::new();
        let pairing = turns_below(directory.path(), &shelf, &stop).take_pairing(&ECHO, "1.0", |turn| seen.push(turn));
        assert_eq!((pairing.error.as_deref(), seen), (None, vec![0, 1, 2]));
        assert_eq!(pairing.commands, ["HOW=quickly echo Sustainable rate: 8 Gbps"]);
        assert!(pairing.ours.ends_with("--sizes 64KiB --repeat 1 --min-time 0.001s"), "{}", pairing.ours);
        let [goodput] = &pairing.figures[..] else { panic!("{pairing:?}") };
        assert_eq!((goodput.theirs.as_slice(), goodput.ours.len()), ([8.0; 3].as_slice(), 3));
        assert!(goodput.ratio.least > 0.0 && goodput.ratio.least <= goodput.ratio.greatest);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        let text = serde_json::to_string(&pairing).unwrap();
        let back = serde_json::from_str::<Pairing>(&text).unwrap();
        assert_eq!((&back.figures[0].name, &back.figures[0].theirs), (&goodput.name, &goodput.theirs));
    }

    #[test]
    fn output_of_a_failed_peer_is_shown_and_earlier_turns_count() {
        let (directory, shelf, stop) = (tempfile::tempdir().unwrap(), Shelf::open_cache().unwrap(), Stop::default());
        let turns = turns_below(directory.path(), &shelf, &stop);
        let silent = turns.take_pairing(&Row { client: "echo no heap arrived", ..ECHO }, "1.0", |_| {});
        assert_eq!(silent.error.as_deref(), Some("echo: no heap arrived (exit status: 0)"));
        assert!(silent.figures.is_empty());
        let wrong = turns.take_pairing(&Row { ours: "file --sizes nonsense", ..ECHO }, "1.0", |_| {});
        assert!(wrong.error.unwrap().contains("nonsense"));
        let listening = PEERS.into_iter().find(|peer| !peer.loopback_only).unwrap();
        let refused = turns.take_pairing(&Row { peer: listening, ..ECHO }, "1.0", |_| {});
        assert!(refused.error.unwrap().contains("it listens on every address"));
    }

    #[test]
    fn a_comparison_that_is_stopped_keeps_what_was_done() {
        let (directory, shelf, stop) = (tempfile::tempdir().unwrap(), Shelf::open_cache().unwrap(), Stop::default());
        let press_in_the_second = |turn| {
            if turn == 1 {
                stop.request_stop();
            }
        };
        let pairing = turns_below(directory.path(), &shelf, &stop).take_pairing(&ECHO, "1.0", press_in_the_second);
        assert_eq!((pairing.error, pairing.figures[0].theirs.len()), (None, 1));

        struct Nobody;
        impl Observer for Nobody {
            fn on_progress(&mut self, _done: usize, _of: usize, pairing: &str, _turn: u32) {
                panic!("{pairing} is taken after the end");
            }
            fn on_pairing_completed(&mut self, _pairing: &Pairing) {}
        }
        let options = Line::try_parse_from(["peers", "--quick"]).unwrap().options;
        let report = compare_with_peers(&options, Vec::new(), &mut Nobody, &stop).unwrap();
        assert_eq!((report.pairings.len(), report.missing.len()), (0, 0));
        assert!(report.warnings[0].starts_with("stopped after 0 of"), "{:?}", report.warnings);
    }
}
