//! One-byte reads of device memory.

use crate::BenchError;
use crate::drive::Instrument;
use crate::options::Timing;

/// The options.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    #[command(flatten)]
    pub(crate) timing: Timing,
}

impl Options {
    pub(crate) fn instrument(&self) -> Result<Box<dyn Instrument>, BenchError> {
        Err(BenchError::Usage("not there yet".to_owned()))
    }
}
