//! The event builder: tracks which fragments are available, chooses the next fetch, closes events, and accounts for
//! every fragment.
//!
//! Sans-IO: no sockets, no memory of payloads, no clock of its own. The node that drives it reports what happened and
//! at what time ([`Builder::handle_offer`], [`Builder::arrived`], [`Builder::source_disconnected`], …), and asks for the next actions
//! ([`Builder::next_fetch`], [`Builder::next_decision`], [`Builder::next_closed`], [`Builder::next_release`]). The reasoning
//! is in `docs/architecture.md`, "How an event is built".
//!
//! # Files, in the order of the data path
//!
//! | file | contents |
//! | --- | --- |
//! | `config` | Configuration of a builder, fixed before the run |
//! | `builder` | The builder of one share of the events |
//! | `source` | State of one source at the builder: its tickets, the fragments that will not come, its ledger entry |
//! | `events` | The open events: which sources have answered for each, and which events are closed |
//! | `credit` | The credit window: the number of bytes that may be requested, and the time at which they may be |
//! | `search` | The search for the capacity of a link: the window is raised until something is lost |
//! | `ledger` | The ledger: every fragment a source accepted ends in exactly one bucket |
//! | `violation` | Violations of the protocol by a source |

mod builder;
mod config;
mod credit;
mod events;
mod ledger;
mod search;
mod source;
mod violation;

pub use builder::{Arrival, Builder, COMPLETION_QUANTILES, Fetch, SourceProgress, Triggered};
pub use config::{BuilderConfig, Check, Hold, Path, Window};
pub use credit::CreditState;
pub use events::{Closed, Missing};
pub use ledger::{Ledger, LedgerEntry};
pub use search::Found;
pub use violation::Violation;
