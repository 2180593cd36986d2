//! The event builder: which fragments are there, which to ask for next, when an event is closed, and what became of
//! every fragment.
//!
//! Sans-IO: no sockets, no memory of payloads, no clock of its own. The node that drives it tells it what happened
//! ([`Builder::offered`], [`Builder::arrived`], [`Builder::gone`], …) and at what time, and asks it what to do
//! ([`Builder::next_fetch`], [`Builder::next_decision`], [`Builder::next_closed`], [`Builder::release`]). The reasoning
//! is in `docs/architecture.md`, "How an event is built".
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `config` | What a builder must know before the run |
//! | `builder` | The builder of one share of the events |
//! | `source` | What the builder knows of one source: its tickets in order, what it will not send, and its line in the final counters |
//! | `events` | The open events: which sources have answered for each, and which events are closed |
//! | `credit` | How many bytes may be asked for, and when: the credit window |
//! | `search` | Finding out what a link carries: the window is raised until something is lost |
//! | `ledger` | The ledger: every fragment a source accepted ends in exactly one bucket |
//! | `violation` | What a source can say that breaks the rules of the conversation |
#![forbid(unsafe_code)]

mod builder;
mod config;
mod credit;
mod events;
mod ledger;
mod search;
mod source;
mod violation;

pub use builder::{Builder, Fetch, SourceProgress, Triggered};
pub use config::{BuilderConfig, Check, Hold, Path, Window};
pub use credit::CreditState;
pub use events::{Closed, Missing};
pub use ledger::{Ledger, LedgerEntry};
pub use search::Found;
pub use violation::Violation;
