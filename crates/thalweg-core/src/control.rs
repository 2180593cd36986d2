//! Run control: the state of a run, the messages to its sources, and the event and time at which it ends.
//!
//! Sans-IO: no sockets, no clock of its own. The builder node that drives it reports what happened and at what time
//! ([`RunControl::execute_command`], [`RunControl::source_connected`], [`RunControl::source_paused`], …), and carries out its orders
//! ([`RunControl::next_order`]). Run control queries the state of the events through [`Facts`].
//!
//! Every phase is bounded in time and in the influence of a source. The reasoning is in `docs/run-control.md`.
//!
//! # Files, in the order of the data path
//!
//! | file | contents |
//! | --- | --- |
//! | `config` | Configuration of run control, fixed before the run |
//! | `control` | The state machine of run control |
//! | `end` | The end of a run, and the handling of sources that keep it from ending |
//! | `boundary` | Boundaries between two events: a step of a scan, the beginning of the next run |
//! | `state` | The states of a run, as shown to people and programs |
//! | `order` | Commands to run control, and its orders to the node |
//! | `assign` | Assignment of events to builders by the room they have (`run.assignment = "by-room"`) |
//! | `time` | Time as counted by run control |

mod assign;
mod boundary;
mod config;
#[expect(clippy::module_inception, reason = "the state machine")]
mod control;
mod end;
mod order;
mod state;
mod time;

pub use assign::{AssignConfig, Assigner, HEARTBEAT_INTERVAL, LeftOut, NoSuchBuilder, Share};
pub use boundary::{Boundary, BoundaryRefused};
pub use config::Config;
pub use control::{Facts, RunControl};
pub use order::{Cause, Command, Order, Refused, SourceCommand};
pub use state::State;
pub use time::LONGEST_STEP;
