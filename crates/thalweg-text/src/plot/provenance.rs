//! Origin of a figure: what was measured, when, on which machine, by which command.

use crate::break_into_lines;
use serde::{Deserialize, Serialize};

/// Origin of a figure or of a table of data. An empty field is unknown and is left out where the origin is shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Provenance {
    /// Instrument or scenario: `bench latency`, `3 senders, 1 receiver, 1 Gbit/s`.
    pub subject: String,
    /// Time at which the measurement began, UTC (RFC 3339).
    pub date: String,
    /// Version of Thalweg.
    pub version: String,
    /// Name of the host.
    pub host: String,
    /// Number and model of the host's processors: `2 × AMD EPYC`.
    pub processor: String,
    /// Kernel release.
    pub kernel: String,
    /// Command line.
    pub command: String,
}

impl Provenance {
    /// Returns the origin in sentences: subject and date, program and machine, command.
    pub fn sentences(&self) -> Vec<String> {
        let date = self.date.replace('T', " ").replace('Z', " UTC");
        let kernel = if self.kernel.is_empty() { String::new() } else { format!("Linux {}", self.kernel) };
        let version = if self.version.is_empty() { String::new() } else { format!("Thalweg {}", self.version) };
        let command = if self.command.is_empty() { String::new() } else { format!("Command: {}", self.command) };
        let measured = joined(&[&self.subject, &date]);
        let machine = joined(&[&version, &self.host, &self.processor, &kernel]);
        let all = [measured, machine].into_iter().filter(|text| !text.is_empty()).map(|text| text + ".");
        all.chain(Some(command).filter(|text| !text.is_empty())).collect()
    }

    /// Returns the origin for a picture, in lines of at most `columns` characters.
    pub(super) fn lines(&self, columns: usize) -> Vec<String> {
        let sentences = self.sentences();
        let lines = sentences.iter().flat_map(|text| break_into_lines(text, columns));
        lines.map(|line| crate::replace_controls(&line).into_owned()).collect()
    }
}

fn joined(parts: &[&str]) -> String {
    parts.iter().copied().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_three_sentences_and_leaves_out_what_is_unknown() {
        let whole = Provenance {
            subject: "bench latency".into(),
            date: "2026-11-29T03:20:00Z".into(),
            version: "0.1.0".into(),
            host: "daq-1".into(),
            processor: "2 × AMD EPYC".into(),
            kernel: "6.12.1".into(),
            command: "thalweg bench latency".into(),
        };
        assert_eq!(
            whole.sentences(),
            [
                "bench latency, 2026-11-29 03:20:00 UTC.",
                "Thalweg 0.1.0, daq-1, 2 × AMD EPYC, Linux 6.12.1.",
                "Command: thalweg bench latency"
            ]
        );
        assert_eq!(Provenance::default().sentences(), [""; 0]);
        let nasty = Provenance { command: "a \u{1b}[31m b".into(), ..Provenance::default() };
        assert!(nasty.lines(80).iter().all(|line| !line.contains('\u{1b}')));
    }
}
