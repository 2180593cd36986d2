//! Options that several instruments share, with the letters of iperf3 where they mean the same.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use thalweg_text::parse_duration;
use thiserror::Error;

/// Minimum time, warm-up and number of repeats of each point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
pub struct Timing {
    /// Each point is repeated until at least this long has passed
    #[arg(short = 't', long, visible_alias = "duration", value_name = "TIME", default_value = "1s", value_parser = min_time)]
    pub min_time: Duration,
    /// Time at the beginning of each repeat that does not count
    #[arg(short = 'O', long, value_name = "TIME", default_value = "100ms", value_parser = time)]
    pub warmup: Duration,
    /// Number of times that each point is measured: the table shows the median
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
}

/// Returns an instrument's options, parsed from words.
#[cfg(test)]
pub(crate) fn parsed<T: clap::Args>(words: &str) -> T {
    let command = T::augment_args(clap::Command::new("bench").no_binary_name(true));
    T::from_arg_matches(&command.try_get_matches_from(words.split_whitespace()).unwrap()).unwrap()
}

/// Longest time that an option accepts.
const MAX_OPTION_TIME: Duration = Duration::from_secs(24 * 3600);

/// Shortest time of a measurement.
const MIN_MEASURING_TIME: Duration = Duration::from_millis(1);

/// Parses the time that a measurement takes: a duration of at least a millisecond.
pub(crate) fn min_time(text: &str) -> Result<Duration, String> {
    match time(text)? {
        short if short < MIN_MEASURING_TIME => Err("too short to measure; the least is 1ms, usual is 1s".to_owned()),
        time => Ok(time),
    }
}

/// Parses a duration: `10s`, `500ms`, or seconds as iperf3 takes them: `10`.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).map_err(|error| error.to_string())?;
    if time > MAX_OPTION_TIME { Err(format!("'{text}' is longer than a day")) } else { Ok(time) }
}

/// Processors that the two ends are bound to: `n` for this end, `n/m` for both, as iperf3's `-A n,m`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cpus {
    /// Processor of this end, the asking one.
    pub asking: Option<u32>,
    /// Processor of the other end, the serving one.
    pub serving: Option<u32>,
}

/// Error of parsing a pair of processors.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "'{0}': write N for this end, N/M for both, /M for the other alone, none for neither; processors are counted from 0"
)]
pub struct CpusError(String);

impl FromStr for Cpus {
    type Err = CpusError;

    fn from_str(text: &str) -> Result<Self, CpusError> {
        if text == "none" {
            return Ok(Self::default());
        }
        let (asking, serving) = text.split_once(['/', ',']).unwrap_or((text, ""));
        match (parse_processor(asking)?, parse_processor(serving)?) {
            (None, None) => Err(CpusError(text.to_owned())),
            (asking, serving) => Ok(Self { asking, serving }),
        }
    }
}

/// Parses the number of a processor; `None` if the text is empty.
fn parse_processor(text: &str) -> Result<Option<u32>, CpusError> {
    match text {
        "" => Ok(None),
        digits => digits.parse().map(Some).map_err(|_| CpusError(digits.to_owned())),
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::default() {
            return f.write_str("none");
        }
        let [asking, serving] = [self.asking, self.serving].map(|cpu| cpu.map(|cpu| cpu.to_string()));
        write!(f, "{}/{}", asking.unwrap_or_default(), serving.unwrap_or_default())
    }
}

/// Network path between two ends on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum NetworkPath {
    /// The host's own
    Loopback,
    /// A pair of virtual Ethernet cards, each in a network namespace of its own
    Veth,
}

impl NetworkPath {
    pub(crate) fn display_name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Veth => "veth",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_of_both_ends() {
        assert_eq!("1".parse(), Ok(Cpus { asking: Some(1), serving: None }));
        assert_eq!("0/1".parse(), Ok(Cpus { asking: Some(0), serving: Some(1) }));
        assert_eq!("none".parse(), Ok(Cpus::default()));
        assert_eq!("/3".parse(), Ok(Cpus { asking: None, serving: Some(3) }));
        for nonsense in ["", "/", "a", "1/b", "-1"] {
            assert!(nonsense.parse::<Cpus>().is_err(), "{nonsense}");
        }
    }

    #[test]
    fn times_are_parsed_with_a_unit_or_in_seconds_as_iperf3_does() {
        assert_eq!(time("10"), Ok(Duration::from_secs(10)));
        assert_eq!(time("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(min_time("1ms"), Ok(Duration::from_millis(1)));
        for short in ["0", "0s", "999us"] {
            assert!(min_time(short).is_err_and(|error| error.contains("too short to measure")), "{short}");
        }
        for nonsense in ["-1", "", "soon", "inf", "NaN", "9999999"] {
            assert!(time(nonsense).is_err(), "{nonsense}");
        }
    }
}
