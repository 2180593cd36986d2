//! Run control, driven from outside as builders drive it.

mod assign;
mod schedules;
mod stories;
