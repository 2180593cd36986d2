//! The event builder: tracks which fragments are available, chooses the next fetch, closes events, and accounts for
//! every fragment.
//!
//! Sans-IO: no sockets, no payload buffers, no clock. The node reports events to the builder with their times
//! ([`Builder::handle_offer`], [`Builder::arrived`], [`Builder::source_disconnected`], …), and takes the next actions
//! from it ([`Builder::next_fetch`], [`Builder::next_decision`], [`Builder::next_closed`], [`Builder::next_release`]).
//! The design is explained in `docs/architecture.md`, "How an event is built".
//!
//! # Files, in the order of the data path
//!
//! | file | contents |
//! | --- | --- |
//! | `config` | Configuration of a builder, fixed before the run |
//! | `builder` | The builder of one share of the events; its parts: `arrival`, `ending`, `fetching`, `progress`, `trigger` |
//! | `source` | State of one source at the builder: its tickets, its missing fragments, its ledger entry |
//! | `events` | The open events: which sources have answered for each, and which events are closed |
//! | `credit` | The credit window: the number of bytes that may be requested, and the time of the next request |
//! | `search` | Measurement of the capacity of a link: the window is raised until data are lost |
//! | `ledger` | The ledger: every fragment a source accepted ends in exactly one bucket |
//! | `verdict` | The verdict on a run: what was offered, what was carried, and what limited it |
//! | `violation` | Violations of the protocol by a source |

mod builder;
mod config;
mod credit;
mod events;
mod ledger;
mod search;
mod source;
mod verdict;
mod violation;

pub use builder::{Arrival, Builder, COMPLETION_QUANTILES, Fetch, SourceProgress, TriggerCounts};
pub use config::{BuilderConfig, Check, Hold, Path, Window};
pub use credit::CreditState;
pub use events::{Closed, Missing};
pub use ledger::{Ledger, LedgerColumn, LedgerEntry};
pub use search::LinkCapacity;
pub use verdict::{Limit, LimitKind, TimeUse, Verdict};
pub use violation::Violation;
