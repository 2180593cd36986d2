//! Slots that kernel drivers write into.

use crate::Finding;
use crate::kernel::Config;
use thalweg_arena::DmaBuf;

pub(super) fn probe() -> Finding {
    let evidence = match DmaBuf::probe() {
        Ok(()) => "/dev/udmabuf can be opened".to_owned(),
        Err(error) => format!("/dev/udmabuf: {error}; {}", Config::read().says("CONFIG_UDMABUF")),
    };
    Finding::new("DMA buffers", evidence)
}
