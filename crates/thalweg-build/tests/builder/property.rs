use crate::rig as _;
