//! Verdicts in colour, for a terminal: green is good, cyan is undecided, yellow is poor, red is bad. The words differ,
//! too: nothing is expressed by a colour alone.

use anstyle::{AnsiColor, Style};
use std::sync::atomic::{AtomicBool, Ordering};

/// Degree of good or bad news.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Good: COMPLETE, ok.
    Good,
    /// Not over, or not decided: OPEN.
    Open,
    /// Impaired: INCOMPLETE, degraded.
    Poor,
    /// Wrong, or lost: DAMAGED, missing.
    Bad,
}

/// Returns a verdict in its colour, and any other word as it is.
pub fn paint_verdict(word: &str) -> String {
    Tone::from_verdict(word).map_or_else(|| word.to_owned(), |tone| tone.paint_word(word))
}

/// True if standard output is to have colours. Text is plain until [`enable_colours`] is called.
static COLOURED: AtomicBool = AtomicBool::new(false);

/// Sets whether the text printed on standard output is to have colours.
pub fn enable_colours(on: bool) {
    COLOURED.store(on, Ordering::Relaxed);
}

impl Tone {
    /// Returns the tone of a word that Thalweg uses as a verdict; `None` for any other word.
    pub fn from_verdict(word: &str) -> Option<Self> {
        match word {
            "COMPLETE" | "intact" | "ok" | "holds here" | "better" => Some(Self::Good),
            "INCOMPLETE" | "degraded" | "cannot be tested here" => Some(Self::Poor),
            "DAMAGED" | "BROKEN" | "missing" | "does not hold here" | "worse" => Some(Self::Bad),
            open if open.starts_with("OPEN") => Some(Self::Open),
            _ => None,
        }
    }

    /// Returns the class of this tone in a page's style sheet.
    pub fn css_class(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Open => "open",
            Self::Poor => "poor",
            Self::Bad => "bad",
        }
    }

    /// Returns a verdict's word, in its colour if standard output has colours. The escape sequences count as no width
    /// in [`Table`](crate::Table) and [`wrap_words`](crate::wrap_words).
    pub fn paint_word(self, word: &str) -> String {
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
