//! Principal figures: those by which the points of an instrument are judged, in the spread over the repeats, in
//! `compare`, and in pictures.

use crate::point::Figures;

/// Figure by which points are judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Principal {
    /// Median latency.
    Latency,
    /// Payload bits per second.
    Goodput,
    /// Messages, fragments or operations per second.
    Rate,
}

impl Principal {
    /// Returns the principal figures of an instrument: a point is judged by the first that it has.
    pub(crate) fn order_for(instrument: &str) -> [Self; 3] {
        match instrument {
            "latency" | "under-load" | "pin" | "access" | "verbs" => [Self::Latency, Self::Goodput, Self::Rate],
            "packets" => [Self::Rate, Self::Goodput, Self::Latency],
            _ => [Self::Goodput, Self::Latency, Self::Rate],
        }
    }

    /// Returns the value: in microseconds, in bits per second, or per second.
    pub(crate) fn value_of(self, figures: &Figures) -> Option<f64> {
        match self {
            Self::Latency => Some(figures.latency_us?.p50),
            Self::Goodput => figures.goodput_bits_per_second,
            Self::Rate => figures.messages_per_second,
        }
    }

    /// Returns whether less of the figure is better.
    pub(crate) fn is_better_if_less(self) -> bool {
        self == Self::Latency
    }
}

/// Unit in which an instrument's goodput is shown, and its value in bits per second.
pub(crate) fn goodput_unit(instrument: &str) -> (&'static str, f64) {
    match instrument {
        "copy" => ("GB/s", 8e9),
        "file" | "serve" | "transfer" => ("MB/s", 8e6),
        _ => ("Gbit/s", 1e9),
    }
}
