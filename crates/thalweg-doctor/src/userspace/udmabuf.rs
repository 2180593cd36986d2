//! Slots that kernel drivers write into.

use crate::Finding;
use crate::kernel::Config;
use thalweg_arena::DmaBuf;

pub(super) fn probe_dma_buffers() -> Finding {
    let evidence = match DmaBuf::probe_support() {
        Ok(()) => "/dev/udmabuf can be opened".to_owned(),
        Err(error) => {
            format!("/dev/udmabuf: {error}; {}", Config::read_running_config().setting_text("CONFIG_UDMABUF"))
        }
    };
    Finding::new("DMA buffers", evidence)
}
