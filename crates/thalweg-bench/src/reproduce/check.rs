//! Figures by name, and a paper's statements about them: data structures, no language of their own.

use crate::doubt::worst_warnings;
use crate::point::{Figures, Key, Point, Report};
use serde::Deserialize;
use std::collections::BTreeMap;
use thalweg_text::{ByteSize, format_number, format_size};

type Measured = super::Measured<Report>;

/// Selects a figure of a point by properties of the point. A property left open in one place may be set in another.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Selector {
    measure: Option<String>,
    link: Option<String>,
    method: Option<String>,
    size: Option<ByteSize>,
    #[serde(default)]
    settings: BTreeMap<String, String>,
    figure: Option<Figure>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Figure {
    /// Mean time of one operation, µs: the figure of papers that divide a time by a count.
    MeanLatency,
    /// Median time of one operation, µs.
    MedianLatency,
    /// Size divided by mean latency, 10⁶ bytes per second: throughput of a ping-pong.
    PingPong,
    /// 10⁶ payload bytes per second.
    Goodput,
    /// 10⁶ payload bits per second.
    Megabits,
    /// 10⁶ payload bits per second that were sent, whether they arrived or not.
    Sent,
    /// Loss, in percent of what was sent.
    Loss,
    /// Processor use of the sending end's process, in percent of one processor.
    SenderCpu,
    /// Processor use of the receiving end's process, in percent of one processor.
    ReceiverCpu,
    /// Processor seconds of the sending end for 10⁹ payload bytes.
    SenderCost,
    /// Processor seconds of all that was measured, for 10⁹ payload bytes.
    Cost,
    /// Capacity of the interface, 10⁶ bytes per second.
    LineRate,
}

/// Number to show or to judge.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub(super) enum Quantity {
    /// One figure in percent of another, or of the first available of several.
    Percent { percent: Box<Selector>, of: Vec<Selector> },
    /// Single figure.
    Figure(Box<Selector>),
}

/// Finding of a paper.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Check {
    /// `a` is at most `by` times `b`.
    Less { a: Quantity, b: Quantity, by: f64 },
    /// `a` is between `from` and `to` times `b`.
    RatioBetween { a: Quantity, b: Quantity, from: f64, to: f64 },
    /// The time is proportional to the size, from this size up: the times per byte differ by at most a factor of
    /// `within`.
    Proportional { of: Selector, from: ByteSize, within: f64 },
    /// `a` is at least `value`, in its unit.
    AtLeast { a: Quantity, value: f64 },
    /// `a` is at most `value`, in its unit.
    AtMost { a: Quantity, value: f64 },
    /// The finding cannot be tested here, for this reason.
    Cannot(String),
}

/// Number with its unit and the name of its figure.
#[derive(Debug, Clone)]
pub(super) struct Value {
    value: f64,
    unit: &'static str,
    of: String,
}

impl Value {
    pub(super) fn formatted_number(&self) -> String {
        format_number(self.value)
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ({})", format_number(self.value), self.unit, self.of)
    }
}

/// Reason why there is no number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoValue {
    /// The run has no such point.
    NoPoint(String),
    /// The point failed, or lacks this figure.
    Because(String),
}

impl std::fmt::Display for NoValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoPoint(name) => write!(f, "{name}: this run did not measure it"),
            Self::Because(why) => f.write_str(why),
        }
    }
}

impl NoValue {
    /// Returns the reason in words; `lacks` is why there may be no such point.
    pub(super) fn reason_text(&self, lacks: Option<&str>) -> String {
        match (self, lacks) {
            (Self::NoPoint(_), Some(lacks)) => lacks.to_owned(),
            _ => self.to_string(),
        }
    }
}

impl Check {
    /// Returns whether the finding holds, with the figures that show it, or why that cannot be known; `lacks` is why
    /// there may be no such points.
    pub(super) fn test_outcome(&self, measured: &[Measured], lacks: Option<&str>) -> Result<(bool, String), String> {
        self.judge_figures(measured).map_err(|why| why.reason_text(lacks))
    }

    /// Returns the warnings about the points on which the outcome rests, the worst of each kind.
    pub(super) fn doubts(&self, measured: &[Measured]) -> Vec<String> {
        let selectors = match self {
            Self::Less { a, b, .. } | Self::RatioBetween { a, b, .. } => {
                a.selectors().into_iter().chain(b.selectors()).collect()
            }
            Self::AtLeast { a, .. } | Self::AtMost { a, .. } => a.selectors(),
            Self::Proportional { of, .. } => vec![of],
            Self::Cannot(_) => Vec::new(),
        };
        let points = selectors.into_iter().flat_map(|selector| selector.points_of(measured));
        let warnings = worst_warnings(points.flat_map(|point| point.warnings.iter().cloned()));
        warnings.into_iter().map(|warning| warning.text).collect()
    }

    fn judge_figures(&self, measured: &[Measured]) -> Result<(bool, String), NoValue> {
        match self {
            Self::Less { a, b, by } => {
                let (ratio, text) = compute_ratio(a, b, measured)?;
                Ok((ratio <= *by, format!("{text}; asked for: at most {} times", format_number(*by))))
            }
            Self::RatioBetween { a, b, from, to } => {
                let (ratio, text) = compute_ratio(a, b, measured)?;
                let text = format!("{text}; asked for: {} to {} times", format_number(*from), format_number(*to));
                Ok(((*from..=*to).contains(&ratio), text))
            }
            Self::Proportional { of, from, within } => {
                let series = of.times_by_size(measured, from.0)?;
                let per_byte = series.iter().map(|(size, time)| time / *size as f64);
                let least = per_byte.clone().fold(f64::INFINITY, f64::min);
                let most = per_byte.fold(0.0, f64::max);
                let times: Vec<String> = series
                    .iter()
                    .map(|(bytes, time)| format!("{} µs for {}", format_number(*time), format_size(*bytes)))
                    .collect();
                let ratio = most / least;
                let figures = format!(
                    "{}; the time per byte differs by a factor of {}; asked for: at most {}",
                    times.join(", "),
                    format_number(ratio),
                    format_number(*within)
                );
                Ok((ratio <= *within, figures))
            }
            Self::AtLeast { a, value } => {
                let a = a.measured_value(measured)?;
                Ok((a.value >= *value, format!("{a}; asked for: at least {}", format_number(*value))))
            }
            Self::AtMost { a, value } => {
                let a = a.measured_value(measured)?;
                Ok((a.value <= *value, format!("{a}; asked for: at most {}", format_number(*value))))
            }
            Self::Cannot(why) => Err(NoValue::Because(why.clone())),
        }
    }
}

/// Returns `a` divided by `b`, and a sentence that states it.
fn compute_ratio(a: &Quantity, b: &Quantity, measured: &[Measured]) -> Result<(f64, String), NoValue> {
    let (a, b) = (a.measured_value(measured)?, b.measured_value(measured)?);
    if b.value <= 0.0 {
        return Err(NoValue::Because(format!("{b}: nothing can be divided by it")));
    }
    let ratio = a.value / b.value;
    Ok((ratio, format!("{a} is {} times {b}", format_number(ratio))))
}

impl Quantity {
    fn selectors(&self) -> Vec<&Selector> {
        match self {
            Self::Percent { percent, of } => std::iter::once(&**percent).chain(of).collect(),
            Self::Figure(selector) => vec![selector],
        }
    }

    /// Returns a copy with the open properties set from `at`.
    pub(super) fn with_defaults(&self, at: &Selector) -> Self {
        match self {
            Self::Percent { percent, of } => Self::Percent {
                percent: Box::new(percent.with_defaults(at)),
                of: of.iter().map(|selector| selector.with_defaults(at)).collect(),
            },
            Self::Figure(selector) => Self::Figure(Box::new(selector.with_defaults(at))),
        }
    }

    /// Returns the number, or why there is none.
    pub(super) fn measured_value(&self, measured: &[Measured]) -> Result<Value, NoValue> {
        let (percent, of) = match self {
            Self::Figure(selector) => return selector.measured_value(measured),
            Self::Percent { percent, of } => (percent.measured_value(measured)?, of),
        };
        let mut why = NoValue::Because("the check names no quantity of which it is a part".to_owned());
        for selector in of {
            match selector.measured_value(measured) {
                Ok(whole) if whole.value > 0.0 => {
                    let value = 100.0 * percent.value / whole.value;
                    return Ok(Value { value, unit: "%", of: format!("{percent} of {whole}") });
                }
                Ok(nothing) => why = NoValue::Because(format!("{nothing}: nothing can be a part of it")),
                Err(error) => why = error,
            }
        }
        Err(why)
    }
}

impl Selector {
    fn with_defaults(&self, at: &Self) -> Self {
        let mut settings = at.settings.clone();
        settings.extend(self.settings.clone());
        Self {
            measure: self.measure.clone().or_else(|| at.measure.clone()),
            link: self.link.clone().or_else(|| at.link.clone()),
            method: self.method.clone().or_else(|| at.method.clone()),
            size: self.size.or(at.size),
            settings,
            figure: self.figure.or(at.figure),
        }
    }

    fn matches_key(&self, key: &Key) -> bool {
        self.link.as_ref().is_none_or(|link| *link == key.link)
            && self.method.as_ref().is_none_or(|method| *method == key.method)
            && self.size.is_none_or(|size| size.0 == key.size)
            && self.settings.iter().all(|(name, value)| key.settings.get(name) == Some(value))
    }

    /// Returns the points that are selected.
    fn points_of<'a>(&'a self, measured: &'a [Measured]) -> impl Iterator<Item = &'a Point> {
        let points = self.find_measured(measured).ok().and_then(|one| one.report.as_ref());
        points.into_iter().flat_map(|report| &report.points).filter(|point| self.matches_key(&point.key))
    }

    /// Returns the name in words.
    fn description(&self) -> String {
        let mut parts: Vec<String> = [&self.link, &self.method].into_iter().flatten().cloned().collect();
        parts.extend(self.settings.iter().map(|(name, value)| format!("{} {value}", name.replace('_', " "))));
        parts.extend(self.size.map(|bytes| format_size(bytes.0)));
        parts.join(", ")
    }

    fn find_measured<'a>(&self, measured: &'a [Measured]) -> Result<&'a Measured, NoValue> {
        let id = self.measure.as_deref().unwrap_or_default();
        let one = measured.iter().find(|one| one.id == id);
        one.ok_or_else(|| NoValue::Because(format!("{}: '{id}' was not measured", self.description())))
    }

    fn measured_value(&self, measured: &[Measured]) -> Result<Value, NoValue> {
        let name = self.description();
        let one = self.find_measured(measured)?;
        let report = one.report.as_ref().ok_or_else(|| {
            NoValue::Because(format!("{name}: {}", one.error.as_deref().unwrap_or("nothing was measured")))
        })?;
        if self.figure == Some(Figure::LineRate) {
            let rate = report.host.interface.as_ref().and_then(|interface| interface.bits_per_second);
            let rate = rate.ok_or_else(|| NoValue::Because("the interface has no line rate".to_owned()))?;
            return Ok(Value { value: rate / 8e6, unit: "MB/s", of: "line rate".to_owned() });
        }
        let point = report.points.iter().find(|point| self.matches_key(&point.key));
        let point = point.ok_or_else(|| NoValue::NoPoint(name.clone()))?;
        if point.repeats.is_empty() {
            let why = point.error.as_deref().unwrap_or("nothing was measured");
            return Err(NoValue::Because(format!("{name}: {why}")));
        }
        let figure = self.figure.unwrap_or(Figure::MedianLatency);
        let (value, unit) = figure
            .value_and_unit(point)
            .ok_or_else(|| NoValue::Because(format!("{name}: this figure was not measured")))?;
        Ok(Value { value, unit, of: name })
    }

    /// Returns the times by size, from a size up.
    fn times_by_size(&self, measured: &[Measured], from: u64) -> Result<Vec<(u64, f64)>, NoValue> {
        let one = self.find_measured(measured)?;
        let figure = self.figure.unwrap_or(Figure::MedianLatency);
        let points = one.report.iter().flat_map(|report| &report.points);
        let points: Vec<&Point> = points.filter(|point| self.matches_key(&point.key)).collect();
        let series: Vec<(u64, f64)> = points
            .iter()
            .filter(|point| point.key.size >= from.max(1) && !point.repeats.is_empty())
            .filter_map(|point| Some((point.key.size, figure.value_and_unit(point)?.0)))
            .filter(|(_, time)| *time > 0.0)
            .collect();
        if series.len() > 1 {
            return Ok(series);
        }
        let error = one.error.as_ref().or_else(|| points.iter().find_map(|point| point.error.as_ref()));
        let why = error.map_or("fewer than two sizes were measured", |error| error);
        Err(NoValue::Because(format!("{}: {why}", self.description())))
    }
}

impl Figure {
    fn value_and_unit(self, point: &Point) -> Option<(f64, &'static str)> {
        let Figures { latency_us, goodput_bits_per_second, offered_per_second, messages_per_second, .. } =
            &point.figures;
        let Figures { cpu, loss, .. } = &point.figures;
        match self {
            Self::MeanLatency => Some((latency_us.as_ref()?.mean, "µs")),
            Self::MedianLatency => Some((latency_us.as_ref()?.p50, "µs")),
            // One byte per microsecond is 10⁶ bytes per second.
            Self::PingPong => {
                let mean = latency_us.as_ref()?.mean;
                (mean > 0.0).then(|| (point.key.size as f64 / mean, "MB/s"))
            }
            Self::Goodput => Some(((*goodput_bits_per_second)? / 8e6, "MB/s")),
            Self::Megabits => Some(((*goodput_bits_per_second)? / 1e6, "Mbit/s")),
            Self::Sent => {
                let share = (*messages_per_second).filter(|arrived| *arrived > 0.0)? / (*offered_per_second)?;
                Some(((*goodput_bits_per_second)? / share / 1e6, "Mbit/s"))
            }
            Self::Loss => loss.map(|loss| (loss.lost_percent(), "%")),
            Self::SenderCpu => Some((cpu.as_ref()?.sender_percent?, "%")),
            Self::ReceiverCpu => Some((cpu.as_ref()?.receiver_percent?, "%")),
            Self::SenderCost => {
                let goodput = (*goodput_bits_per_second).filter(|goodput| *goodput > 0.0)?;
                Some((cpu.as_ref()?.sender_percent? / 100.0 * 8e9 / goodput, "s/GB"))
            }
            Self::Cost => Some((cpu.as_ref()?.seconds_per_gigabyte?, "s/GB")),
            Self::LineRate => None,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::point::Latency;
    use crate::reproduce::{Finding, Verdict};
    use crate::{Host, Interface};

    impl Quantity {
        /// Checks that every figure that it needs is set.
        pub(in crate::reproduce) fn assert_complete(&self, ids: &[&str]) {
            match self {
                Self::Figure(selector) => selector.assert_complete(ids),
                Self::Percent { percent, of } => {
                    assert!(!of.is_empty());
                    percent.assert_complete(ids);
                    of.iter().for_each(|selector| selector.assert_complete(ids));
                }
            }
        }
    }

    impl Selector {
        fn assert_complete(&self, ids: &[&str]) {
            assert!(self.measure.as_deref().is_some_and(|id| ids.contains(&id)), "{self:?}");
            assert!(self.figure.is_some(), "{self:?}");
            let point = self.link.is_some() && self.method.is_some() && self.size.is_some();
            assert!(point || self.figure == Some(Figure::LineRate), "{self:?}");
        }
    }

    impl Check {
        pub(in crate::reproduce) fn assert_complete(&self, ids: &[&str]) {
            match self {
                Self::Less { a, b, .. } | Self::RatioBetween { a, b, .. } => {
                    a.assert_complete(ids);
                    b.assert_complete(ids);
                }
                Self::AtLeast { a, .. } | Self::AtMost { a, .. } => a.assert_complete(ids),
                Self::Proportional { of, from, .. } => {
                    Selector { size: Some(*from), ..of.clone() }.assert_complete(ids)
                }
                Self::Cannot(_) => {}
            }
        }
    }

    /// Made-up measurement: 1 µs per KiB, and one point that failed.
    pub(in crate::reproduce) fn measured() -> Vec<Measured> {
        let point = |size: u64, us: f64| {
            let latency = Latency { p50: us, mean: us * 1.25, ..Latency::default() };
            let figures = Figures { latency_us: Some(latency), ..Figures::default() };
            Point::new(
                "pin",
                Key::new("memory", "page list", size).with_setting("pages", "4 KiB"),
                vec![figures],
                vec![],
                None,
            )
        };
        let failed =
            Point::new("pin", Key::new("memory", "mlock", 1024), vec![], vec![], Some("it may not".to_owned()));
        let report = Report {
            format: Report::FORMAT.to_owned(),
            instrument: "pin".to_owned(),
            command_line: vec!["pin".to_owned()],
            began: "2026-11-21T00:00:00Z".to_owned(),
            host: Host { interface: Some(Interface::default()), ..Host::default() },
            peer: None,
            points: vec![point(1024, 1.0), point(4096, 4.4), point(65536, 64.0), failed],
            warnings: vec![],
        };
        let line = "pin".to_owned();
        vec![
            Measured { id: "pin".into(), line: line.clone(), report: Some(report), error: None },
            Measured { id: "gone".into(), line, report: None, error: Some("there is none".into()) },
        ]
    }

    fn outcome(check: &str) -> (Verdict, String) {
        #[derive(Deserialize)]
        struct Holder {
            check: Check,
        }
        let holder: Holder = toml::from_str(&format!("check = {check}")).unwrap();
        let Finding { verdict, measured, .. } = Finding::new("", "", holder.check.test_outcome(&measured(), None));
        (verdict, measured)
    }

    #[test]
    fn findings_are_judged_by_the_figures_that_they_name() {
        let page_list = |size| format!("{{ measure = 'pin', method = 'page list', size = '{size}' }}");
        let (verdict, text) =
            outcome(&format!("{{ less = {{ a = {}, b = {}, by = 0.5 }} }}", page_list("1KiB"), page_list("4KiB")));
        assert_eq!(verdict, Verdict::Holds);
        assert_eq!(
            text,
            "1.00 µs (page list, 1 KiB) is 0.227 times 4.40 µs (page list, 4 KiB); asked for: at most 0.500 times"
        );
        let between = format!(
            "{{ ratio-between = {{ a = {}, b = {}, from = 0.5, to = 0.6 }} }}",
            page_list("1KiB"),
            page_list("4KiB")
        );
        assert_eq!(outcome(&between).0, Verdict::DoesNotHold);
        let proportional = |within| {
            outcome(&format!(
                "{{ proportional = {{ of = {{ measure = 'pin', method = 'page list' }}, from = '1KiB', within = {within} }} }}"
            ))
        };
        assert_eq!(proportional("1.2").0, Verdict::Holds);
        assert_eq!(proportional("1.05").0, Verdict::DoesNotHold);
        let mean = "{ measure = 'pin', method = 'page list', size = '1KiB', figure = 'mean-latency' }";
        assert_eq!(outcome(&format!("{{ at-least = {{ a = {mean}, value = 1.25 }} }}")).0, Verdict::Holds);
        assert_eq!(outcome(&format!("{{ at-most = {{ a = {mean}, value = 1.24 }} }}")).0, Verdict::DoesNotHold);
        let percent = format!(
            "{{ percent = {}, of = [{{ measure = 'pin', figure = 'line-rate' }}, {mean}] }}",
            page_list("1KiB")
        );
        let (verdict, text) = outcome(&format!("{{ at-least = {{ a = {percent}, value = 80 }} }}"));
        assert_eq!((verdict, &text[..6]), (Verdict::Holds, "80.0 %"));
    }

    #[test]
    fn missing_figures_cannot_be_judged_and_the_reason_is_shown() {
        let at_least = |of: &str| outcome(&format!("{{ at-least = {{ a = {of}, value = 1 }} }}"));
        for (of, why) in [
            ("{ measure = 'pin', method = 'mlock' }", "mlock: it may not"),
            (
                "{ measure = 'pin', method = 'page list', size = '1GiB' }",
                "page list, 1 GiB: this run did not measure it",
            ),
            ("{ measure = 'gone', method = 'mlock' }", "mlock: there is none"),
            ("{ measure = 'other', method = 'mlock' }", "mlock: 'other' was not measured"),
            (
                "{ measure = 'pin', method = 'page list', figure = 'goodput' }",
                "page list: this figure was not measured",
            ),
            ("{ measure = 'pin', figure = 'line-rate' }", "the interface has no line rate"),
        ] {
            assert_eq!(at_least(of), (Verdict::CannotBeTested, why.to_owned()));
        }
        assert_eq!(outcome("{ cannot = 'no such device' }"), (Verdict::CannotBeTested, "no such device".to_owned()));
    }
}
