//! Configuration that the kernel was built with.

use crate::read;
use std::io::Read;

/// A kernel's configuration, if it can be read.
#[derive(Debug)]
pub(crate) struct Config(Option<String>);

impl Config {
    /// Reads the configuration of the running kernel: `/proc/config.gz`, or the file that a distribution puts beside
    /// the kernel.
    pub(crate) fn read_running_config() -> Self {
        Self(read_packed_config().or_else(|| read::read_text(format!("/boot/config-{}", super::kernel_release()))))
    }

    /// Returns the setting of an option as text: `CONFIG_BPF_JIT=y`.
    pub(crate) fn setting_text(&self, option: &str) -> String {
        match &self.0 {
            None => format!("{option} unknown (neither /proc/config.gz nor /boot/config-* can be read)"),
            Some(text) => format!("{option}={}", find_setting(text, option).unwrap_or("n")),
        }
    }
}

fn read_packed_config() -> Option<String> {
    let bytes = read::read_first_bytes("/proc/config.gz", 1 << 20)?;
    let mut text = String::new();
    flate2::read::GzDecoder::new(&bytes[..]).take(4 << 20).read_to_string(&mut text).ok()?;
    Some(text)
}

fn find_setting<'a>(text: &'a str, option: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(option)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_found_by_its_whole_name() {
        let text = "CONFIG_BPF_JIT_ALWAYS_ON=y\nCONFIG_RDMA_SIW=m\n# CONFIG_VFIO is not set\n";
        assert_eq!(find_setting(text, "CONFIG_RDMA_SIW"), Some("m"));
        assert_eq!(find_setting(text, "CONFIG_BPF_JIT"), None);
        assert_eq!(find_setting(text, "CONFIG_VFIO"), None);
        assert_eq!(Config(Some(text.to_owned())).setting_text("CONFIG_VFIO"), "CONFIG_VFIO=n");
    }
}
