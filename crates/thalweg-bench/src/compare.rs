//! Comparison of two reports, point by point.

use crate::point::{Figures, Key, Point, Report};
use crate::principal::{Principal, goodput_unit};
use crate::render::columns::group_title;
use crate::render::markdown::{format_list, format_table};
use crate::render::sections::host_facts;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use thalweg_text::{NOTHING, format_number, format_size, replace_controls, wrap_words};
use thiserror::Error;

/// Reason why two reports cannot be compared.
#[derive(Debug, Error)]
pub enum CompareError {
    /// File that cannot be read.
    #[error("{}: {error}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of opening or reading it.
        #[source]
        error: io::Error,
    },
    /// File that is longer than any report.
    #[error("{}: more than {MAX_REPORT_BYTES} bytes, which is not a report of `thalweg bench`", path.display())]
    TooLong {
        /// Path of the file.
        path: PathBuf,
    },
    /// File that holds something other than a report.
    #[error("{}: not a report of `thalweg bench … --out FILE.json`: {error}", path.display())]
    Garbage {
        /// Path of the file.
        path: PathBuf,
        /// Place where it departs from the format.
        #[source]
        error: serde_json::Error,
    },
    /// Report in the format of another version of Thalweg.
    #[error("{}: its format is '{format}', this Thalweg reads '{}'", path.display(), Report::FORMAT)]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// Format named in the file.
        format: String,
    },
    /// Reports of two instruments, which measure different things.
    #[error("one is a report of '{a}', the other of '{b}'; they measure different things")]
    Instruments {
        /// Instrument of the first report.
        a: String,
        /// Instrument of the second report.
        b: String,
    },
}

/// Longest file that is read, in bytes. A thousand points of a thousand repeats each are less.
const MAX_REPORT_BYTES: u64 = 1 << 30;

/// Reads a report: a file that `--out FILE.json` wrote, or a copy of standard output, of which the report is the last line.
///
/// # Errors
/// If the file cannot be read, holds no report, or holds one in a format that this Thalweg does not read.
pub fn read_report(path: &Path) -> Result<Report, CompareError> {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_REPORT_BYTES + 1).read_to_end(&mut text));
    read.map_err(|error| CompareError::File { path: path.to_owned(), error })?;
    if text.len() as u64 > MAX_REPORT_BYTES {
        return Err(CompareError::TooLong { path: path.to_owned() });
    }
    let report: Report = match serde_json::from_slice(&text) {
        Ok(report) => report,
        Err(error) => {
            let lines = text.trim_ascii_end();
            let last = lines.iter().rposition(|byte| *byte == b'\n').map(|at| &lines[at + 1..]);
            let last = last.and_then(|line| serde_json::from_slice(line).ok());
            last.ok_or_else(|| CompareError::Garbage { path: path.to_owned(), error })?
        }
    };
    match report.format.as_str() {
        Report::FORMAT => Ok(report),
        other => Err(CompareError::Format { path: path.to_owned(), format: replace_controls(other).into_owned() }),
    }
}

/// Changes from report A to report B.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// Instrument of both reports.
    pub instrument: String,
    /// Differences between the two machines and commands.
    pub differences: Vec<Difference>,
    /// Points that both reports have.
    pub pairs: Vec<Pair>,
    /// Points that cannot be paired, with the reason.
    pub unpaired: Vec<Unpaired>,
}

/// Property that differs between the reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Name of the property.
    pub what: String,
    /// Value in A; empty if A does not have it.
    pub a: String,
    /// Value in B; empty if B does not have it.
    pub b: String,
}

/// Point that both reports have.
#[derive(Debug, Clone, Serialize)]
pub struct Pair {
    /// Identity of the point.
    #[serde(flatten)]
    pub key: Key,
    /// Name and unit of the compared figure.
    pub figure: &'static str,
    /// Figure in A.
    pub a: f64,
    /// Figure in B.
    pub b: f64,
    /// B / A; absent where A is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// Distance from the least to the greatest repeat in A, in percent of the median; absent for a single repeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread_a_percent: Option<f64>,
    /// Distance from the least to the greatest repeat in B, in percent of the median; absent for a single repeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread_b_percent: Option<f64>,
    /// Assessment of the change.
    pub verdict: Verdict,
    /// Deterioration in percent of A; 0 if there was none.
    pub worse_percent: f64,
}

/// Assessment of a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Overlapping ranges over the repeats: no difference that the measurement could distinguish from chance.
    Same,
    /// Improvement in B by more than the spread of the repeats.
    Better,
    /// Deterioration in B by more than the spread of the repeats.
    Worse,
}

/// Point that only one report has, or that has no figures in one of them.
#[derive(Debug, Clone, Serialize)]
pub struct Unpaired {
    /// Identity of the point.
    #[serde(flatten)]
    pub key: Key,
    /// Reason: `only in A`, `only in B`, `failed in A: …`, `failed in B: …`.
    pub why: String,
    /// Whether a point that A could measure failed in B.
    pub lost: bool,
}

/// Compares the principal figures of the points that two reports of one instrument have in common.
///
/// # Errors
/// If they are of two instruments.
pub fn compare_reports(a: &Report, b: &Report) -> Result<Comparison, CompareError> {
    if a.instrument != b.instrument {
        let [a, b] = [a, b].map(|report| replace_controls(&report.instrument).into_owned());
        return Err(CompareError::Instruments { a, b });
    }
    let mut others: BTreeMap<&Key, &Point> = BTreeMap::new();
    for point in &b.points {
        others.entry(&point.key).or_insert(point);
    }
    let (mut pairs, mut unpaired) = (Vec::new(), Vec::new());
    for point in &a.points {
        match others.remove(&point.key) {
            Some(other) => match pair_points(&a.instrument, point, other) {
                Ok(pair) => pairs.push(pair),
                Err(one) => unpaired.push(one),
            },
            None => unpaired.push(Unpaired { key: point.key.clone(), why: "only in A".to_owned(), lost: false }),
        }
    }
    let only_b = b.points.iter().filter(|point| others.remove(&point.key).is_some());
    unpaired.extend(only_b.map(|point| Unpaired { key: point.key.clone(), why: "only in B".to_owned(), lost: false }));
    Ok(Comparison { instrument: a.instrument.clone(), differences: report_differences(a, b), pairs, unpaired })
}

impl Comparison {
    /// Returns whether a figure got worse by more than `percent`, or a point cannot be measured any more.
    pub fn is_worse_than(&self, percent: f64) -> bool {
        self.pairs.iter().any(|pair| pair.verdict == Verdict::Worse && pair.worse_percent > percent)
            || self.unpaired.iter().any(|one| one.lost)
    }

    /// Formats the comparison for a terminal.
    pub fn format_text(&self) -> String {
        let mut out = String::new();
        for difference in &self.differences {
            out.push_str(&wrap_words("differs: ", &difference.to_string()));
        }
        if !self.differences.is_empty() {
            out.push('\n');
        }
        if self.pairs.is_empty() {
            out.push_str("no point is in both\n");
        } else {
            let _ = writeln!(
                out,
                "  {:>9}  {:>9}  {:>9}  {:>7}  {:>8}  {:>8}  verdict\n  {:>9}  {:>9}  {:>9}  {:>7}  {:>8}  {:>8}",
                "", "", "", "", "spread A", "spread B", "size", "A", "B", "B/A", "%", "%"
            );
        }
        let mut last = None;
        for pair in &self.pairs {
            let group = self.group_title(pair);
            if last.as_ref() != Some(&group) {
                out.push_str(&wrap_words("", &group));
                last = Some(group);
            }
            let [size, a, b, ratio, spread_a, spread_b, verdict] = pair.table_cells();
            let _ = writeln!(out, "  {size:>9}  {a:>9}  {b:>9}  {ratio:>7}  {spread_a:>8}  {spread_b:>8}  {verdict}");
        }
        if !self.unpaired.is_empty() {
            out.push('\n');
        }
        for one in &self.unpaired {
            out.push_str(&wrap_words("not compared: ", &one.to_string()));
        }
        out
    }

    /// Formats the comparison in Markdown.
    pub fn format_markdown(&self) -> String {
        let mut out =
            format!("# thalweg bench compare: {}\n\n", crate::render::markdown::escape_text(&self.instrument));
        let differences: Vec<String> = self.differences.iter().map(|one| format!("Differs: {one}")).collect();
        out.push_str(&format_list(&differences));
        let headings = ["", "size", "A", "B", "B/A", "spread A %", "spread B %", "verdict"].map(str::to_owned);
        let rows =
            self.pairs.iter().map(|pair| [self.group_title(pair)].into_iter().chain(pair.table_cells()).collect());
        out.push_str(&format_table(&headings, "--:", rows));
        out.push_str(&format_list(&self.unpaired.iter().map(|one| format!("Not compared: {one}")).collect::<Vec<_>>()));
        out.truncate(out.trim_end().len());
        out.push('\n');
        out
    }

    fn group_title(&self, pair: &Pair) -> String {
        format!("{}: {}", group_title("", &pair.key), pair.figure)
    }
}

impl Pair {
    fn table_cells(&self) -> [String; 7] {
        let optional = [self.ratio, self.spread_a_percent, self.spread_b_percent];
        let [ratio, spread_a, spread_b] = optional.map(|value| value.map_or_else(|| NOTHING.to_owned(), format_number));
        let verdict = match self.verdict {
            Verdict::Same => "same",
            Verdict::Better => "better",
            Verdict::Worse => "worse",
        };
        [
            format_size(self.key.size),
            format_number(self.a),
            format_number(self.b),
            ratio,
            spread_a,
            spread_b,
            verdict.to_owned(),
        ]
    }
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b] = [&self.a, &self.b].map(|value| if value.is_empty() { NOTHING } else { value });
        write!(f, "{}: {a} in A, {b} in B", self.what)
    }
}

impl std::fmt::Display for Unpaired {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}: {}", group_title("", &self.key), format_size(self.key.size), self.why)
    }
}

fn pair_points(instrument: &str, a: &Point, b: &Point) -> Result<Pair, Unpaired> {
    let values = Principal::order_for(instrument).into_iter().find_map(|principal| {
        let (figure, unit) = match principal {
            Principal::Latency => ("p50, µs", 1.0),
            Principal::Goodput => goodput_unit(instrument),
            Principal::Rate => ("1/s", 1.0),
        };
        let get = |figures: &Figures| Some(principal.value_of(figures)? / unit);
        Some((figure, principal, Repeated::from_point(a, get)?, Repeated::from_point(b, get)?))
    });
    let Some((figure, principal, in_a, in_b)) = values else {
        let (why, lost) = match (&a.error, &b.error) {
            (Some(error), _) => (format!("failed in A: {error}"), false),
            (None, Some(error)) => (format!("failed in B: {error}"), true),
            (None, None) => ("they have no figure in common".to_owned(), false),
        };
        return Err(Unpaired { key: a.key.clone(), why, lost });
    };
    let less_is_better = principal.is_better_if_less();
    let verdict = match in_a.least <= in_b.greatest && in_b.least <= in_a.greatest {
        true => Verdict::Same,
        false if (in_b.value < in_a.value) == less_is_better => Verdict::Better,
        false => Verdict::Worse,
    };
    let ratio = (in_a.value > 0.0).then(|| in_b.value / in_a.value);
    let change = ratio.map_or(0.0, |ratio| 100.0 * if less_is_better { ratio - 1.0 } else { 1.0 - ratio });
    Ok(Pair {
        key: a.key.clone(),
        figure,
        a: in_a.value,
        b: in_b.value,
        ratio,
        spread_a_percent: in_a.spread_percent(),
        spread_b_percent: in_b.spread_percent(),
        verdict,
        worse_percent: change.max(0.0),
    })
}

/// Figure of a point, and its range over the repeats.
struct Repeated {
    value: f64,
    least: f64,
    greatest: f64,
    repeats: usize,
}

impl Repeated {
    fn from_point(point: &Point, get: impl Fn(&Figures) -> Option<f64>) -> Option<Self> {
        let value = get(&point.figures)?;
        let repeats = point.repeats.iter().filter_map(&get);
        let (least, greatest) =
            repeats.fold((value, value), |(least, greatest), one| (least.min(one), greatest.max(one)));
        Some(Self { value, least, greatest, repeats: point.repeats.len() })
    }

    /// Returns the width of the range in percent of the value, or `None` for a single repeat.
    fn spread_percent(&self) -> Option<f64> {
        (self.repeats > 1 && self.value > 0.0).then(|| 100.0 * (self.greatest - self.least) / self.value)
    }
}

/// Returns the differences between hosts and between commands.
fn report_differences(a: &Report, b: &Report) -> Vec<Difference> {
    let (a, b) = (report_properties(a), report_properties(b));
    let only_b = b.iter().filter(|(name, _)| a.iter().all(|(own, _)| own != name));
    let names = a.iter().chain(only_b).map(|(name, _)| name);
    let both =
        names.map(|name| Difference { what: name.clone(), a: property_value(&a, name), b: property_value(&b, name) });
    both.filter(|difference| difference.a != difference.b).collect()
}

/// Returns the name and value of each property of the command and of the hosts.
fn report_properties(report: &Report) -> Vec<(String, String)> {
    let mut properties = vec![("options".to_owned(), measurement_options(&report.command_line))];
    properties.extend(host_facts(&report.host).into_iter().map(|(name, value)| (name.to_owned(), value)));
    let peer = report.peer.iter().flat_map(host_facts);
    properties.extend(peer.map(|(name, value)| (format!("{name} of the other end"), value)));
    properties
}

fn property_value(properties: &[(String, String)], name: &str) -> String {
    properties.iter().find(|(own, _)| own == name).map(|(_, value)| value.clone()).unwrap_or_default()
}

/// Returns the words of a command after `bench`, without the options that name output files.
fn measurement_options(command_line: &[String]) -> String {
    const OUTPUT: [&str; 5] = ["--out", "--json-file", "--markdown-file", "--plot-file", "--html-file"];
    let mut words = command_line.iter().skip_while(|word| *word != "bench").skip(1);
    let mut out = Vec::new();
    while let Some(word) = words.next() {
        match word.split_once('=') {
            Some((name, _)) if OUTPUT.contains(&name) => {}
            None if word == "--json" => {}
            None if OUTPUT.contains(&word.as_str()) => {
                words.next();
            }
            _ => out.push(word.as_str()),
        }
    }
    out.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Host, Latency};

    fn point(key: Key, latencies: &[f64]) -> Point {
        let figures = |p50: &f64| Figures {
            latency_us: Some(Latency { p50: *p50, ..Latency::default() }),
            seconds: 1.0,
            ..Figures::default()
        };
        Point::new("latency", key, latencies.iter().map(figures).collect(), vec![], None)
    }

    fn failed(key: Key, why: &str) -> Point {
        Point::new("latency", key, vec![], vec![], Some(why.to_owned()))
    }

    /// Made-up report.
    fn report(kernel: &str, command: &str, points: Vec<Point>) -> Report {
        Report {
            format: Report::FORMAT.to_owned(),
            instrument: "latency".to_owned(),
            command_line: command.split(' ').map(str::to_owned).collect(),
            began: "2026-11-21T00:00:00Z".to_owned(),
            host: Host { name: "made-up".to_owned(), kernel: kernel.to_owned(), ..Host::default() },
            peer: None,
            points,
            warnings: vec![],
        }
    }

    #[test]
    fn changes_are_shown_with_other_differences() {
        let key = |size| Key::new("tcp", "write", size);
        let a = report(
            "6.1",
            "thalweg bench latency --out a.json -t 1s",
            vec![
                point(key(1), &[10.0, 10.5, 11.0]),
                point(key(64), &[10.0, 10.5, 11.0]),
                point(key(1024), &[20.0, 20.5, 21.0]),
                point(key(4096), &[30.0]),
                point(key(65536), &[60.0, 61.0]),
            ],
        );
        let b = report(
            "6.18",
            "thalweg bench latency -t 1s --json-file=b.json -w 64KiB",
            vec![
                point(key(1), &[10.9, 11.5, 12.0]),
                point(key(64), &[12.0, 12.5, 13.0]),
                point(key(1024), &[18.0, 18.5, 19.0]),
                failed(key(65536), "the other end is gone"),
                point(key(1 << 20), &[100.0]),
            ],
        );
        let both = compare_reports(&a, &b).unwrap();
        insta::assert_snapshot!(both.format_text(), @r"
        differs: options: latency -t 1s in A, latency -t 1s -w 64KiB in B
        differs: kernel: 6.1 in A, 6.18 in B

                                                    spread A  spread B  verdict
               size          A          B      B/A         %         %
        tcp write: p50, µs
                1 B       10.5       11.5     1.10      9.52      9.57  same
               64 B       10.5       12.5     1.19      9.52      8.00  worse
              1 KiB       20.5       18.5    0.902      4.88      5.41  better

        not compared: tcp write 4 KiB: only in A
        not compared: tcp write 64 KiB: failed in B: the other end is gone
        not compared: tcp write 1 MiB: only in B
        ");
        assert!(both.is_worse_than(1000.0), "a point that fails now");
        let only_slower = compare_reports(&a, &report("6.1", "", b.points[..3].to_vec())).unwrap();
        assert!(only_slower.is_worse_than(19.0) && !only_slower.is_worse_than(20.0));
        insta::assert_snapshot!(only_slower.format_markdown(), @r"
        # thalweg bench compare: latency

        - Differs: options: latency -t 1s in A, - in B

        |  | size | A | B | B/A | spread A % | spread B % | verdict |
        | --: | --: | --: | --: | --: | --: | --: | --: |
        | tcp write: p50, µs | 1 B | 10.5 | 11.5 | 1.10 | 9.52 | 9.57 | same |
        | tcp write: p50, µs | 64 B | 10.5 | 12.5 | 1.19 | 9.52 | 8.00 | worse |
        | tcp write: p50, µs | 1 KiB | 20.5 | 18.5 | 0.902 | 4.88 | 5.41 | better |

        - Not compared: tcp write 4 KiB: only in A
        - Not compared: tcp write 64 KiB: only in A
        ");
    }

    #[test]
    fn more_goodput_is_better() {
        let point = |gbps: f64| {
            let figures = Figures { goodput_bits_per_second: Some(gbps * 1e9), ..Figures::default() };
            Point::new("bandwidth", Key::new("tcp", "write", 1), vec![figures], vec![], None)
        };
        let verdict = |a, b| pair_points("bandwidth", &point(a), &point(b)).unwrap().verdict;
        assert_eq!(verdict(10.0, 11.0), Verdict::Better);
        assert_eq!(verdict(10.0, 9.0), Verdict::Worse);
        assert_eq!(verdict(10.0, 10.0), Verdict::Same);
        assert_eq!(pair_points("bandwidth", &point(0.0), &point(9.0)).unwrap().ratio, None);
    }

    #[test]
    fn instruments_that_measure_different_things_are_not_compared() {
        let a = report("6.1", "", vec![]);
        let b = Report { instrument: "copy\u{1b}[2J".to_owned(), ..a.clone() };
        let error = compare_reports(&a, &b).unwrap_err().to_string();
        assert_eq!(
            error,
            "one is a report of 'latency', the other of 'copy\u{fffd}[2J'; they measure different things"
        );
    }

    #[test]
    fn a_report_is_found_in_a_file_or_at_the_end_of_printed_output() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        let error = |text: &[u8]| {
            std::fs::write(&path, text).unwrap();
            let points = read_report(&path).map(|report| report.points.len()).map_err(|error| error.to_string());
            points.map_err(|error| error.replace(&*directory.path().to_string_lossy(), ""))
        };
        let good = serde_json::to_string(&report("6.1", "", vec![point(Key::new("tcp", "write", 1), &[1.0])])).unwrap();
        assert_eq!(error(good.as_bytes()), Ok(1));
        assert_eq!(error(format!("{{\"type\":\"point\"}}\n{good}\n").as_bytes()), Ok(1));
        let other = good.replace(Report::FORMAT, "thalweg-bench/9\u{7}");
        assert_eq!(error(other.as_bytes()).unwrap_err().lines().count(), 1);
        for nonsense in
            [&b""[..], b"\n", b"{}", b"null", b"\xff\xfe", b"{\"format\":1}\n{\"format\":", &[b'['; 100_000]]
        {
            assert!(error(nonsense).unwrap_err().starts_with("/a.json: not a report of"), "{nonsense:?}");
        }
        assert!(read_report(directory.path()).is_err());
    }

    /// Report with one point of this goodput in Gbit/s and this median in µs.
    fn point_report(instrument: &str, gbps: f64, p50: f64) -> Report {
        let figures = Figures {
            goodput_bits_per_second: Some(gbps * 1e9),
            latency_us: Some(Latency { p50, ..Latency::default() }),
            ..Figures::default()
        };
        let point = Point::new(instrument, Key::new("file", "read", 4096), vec![figures], vec![], None);
        Report { instrument: instrument.to_owned(), ..report("6.1", "thalweg bench file", vec![point]) }
    }

    /// Twice the goodput, with a longer latency.
    #[test]
    fn instruments_are_judged_by_their_own_principal_figure() {
        for (instrument, unit, ratio, verdict) in [
            ("file", "MB/s", 2.0, Verdict::Better),
            ("serve", "MB/s", 2.0, Verdict::Better),
            ("copy", "GB/s", 2.0, Verdict::Better),
            ("latency", "p50, µs", 1.5, Verdict::Worse),
        ] {
            let [a, b] = [(8.0, 6.0), (16.0, 9.0)].map(|(gbps, p50)| point_report(instrument, gbps, p50));
            let pair = &compare_reports(&a, &b).unwrap().pairs[0];
            assert_eq!((pair.figure, pair.ratio, pair.verdict), (unit, Some(ratio), verdict), "{instrument}");
        }
    }
}
