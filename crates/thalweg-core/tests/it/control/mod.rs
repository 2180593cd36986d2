//! Run control, driven from outside as builders drive it.

mod assign;
mod boundary;
mod schedules;
mod stories;
