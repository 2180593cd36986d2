//! Verdicts in colour, where a terminal shows them: green is good, yellow is poor, red is bad. The words differ, too:
//! nothing is told by a colour alone.

use anstyle::{AnsiColor, Style};
use std::sync::atomic::{AtomicBool, Ordering};

/// How good news is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// As it should be: COMPLETE, ok.
    Good,
    /// Not over, or not decided: OPEN.
    Open,
    /// Less than it should be: INCOMPLETE, degraded.
    Poor,
    /// Wrong, or lost: DAMAGED, missing.
    Bad,
}

/// A word that judges, in its colour; any other as it is.
pub fn verdict(word: &str) -> String {
    Tone::of(word).map_or_else(|| word.to_owned(), |tone| tone.paint(word))
}

/// Whether standard output is to have colours. Text is plain until somebody says so.
static COLOURED: AtomicBool = AtomicBool::new(false);

/// Says whether what is printed on standard output is to have colours.
pub fn colour(on: bool) {
    COLOURED.store(on, Ordering::Relaxed);
}

impl Tone {
    /// What a word of ours that judges says; nothing of any other word.
    pub fn of(word: &str) -> Option<Self> {
        match word {
            "COMPLETE" | "intact" | "ok" | "holds here" | "better" => Some(Self::Good),
            "INCOMPLETE" | "degraded" | "cannot be tested here" => Some(Self::Poor),
            "DAMAGED" | "BROKEN" | "missing" | "does not hold here" | "worse" => Some(Self::Bad),
            open if open.starts_with("OPEN") => Some(Self::Open),
            _ => None,
        }
    }

    /// The class that a page's style sheet has for it.
    pub fn class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Open => "open",
            Self::Poor => "poor",
            Self::Bad => "bad",
        }
    }

    /// A verdict's word, in its colour where standard output has some. No width is counted for it
    /// ([`Table`](crate::Table), [`wrapped`](crate::wrapped)).
    pub fn paint(self, word: &str) -> String {
        let colour = match self {
            _ if !COLOURED.load(Ordering::Relaxed) => return word.to_owned(),
            Self::Good => AnsiColor::Green,
            Self::Open => AnsiColor::Cyan,
            Self::Poor => AnsiColor::Yellow,
            Self::Bad => AnsiColor::Red,
        };
        let style = Style::new().bold().fg_color(Some(colour.into()));
        format!("{style}{word}{style:#}")
    }
}
