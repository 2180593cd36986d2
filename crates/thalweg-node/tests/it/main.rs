//! Nodes in one process, with links, devices and disks that are real or made up.

mod acquisition;
mod another_link;
mod by_hand;
mod push;
mod trigger;
