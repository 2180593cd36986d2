//! Configuration of a device: the `device = { kind = "…", … }` table of the topology file.

mod drivers;
mod fit;
mod network;
mod recordings;

pub use drivers::{ComediConfig, DmaConfig, EduConfig, LengthPrefix, Mark, NvmeConfig, StreamConfig, V4l2Config};
pub use fit::{EnvelopeConfig, FitConfig, FitKind, InterferometerConfig};
pub use network::{Counter, DatagramFormat, Epoch, FeatureValue, Features, GigeConfig, Partial, TimeField, UdpConfig};
pub use recordings::{ModelAdcConfig, NpyConfig, PgmConfig, RawConfig, SigmfConfig, TiffConfig, VdifConfig};

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use thalweg_wire::SourceId;

/// One device. In TOML: `device = { kind = "model-adc", size = "1MiB", seed = 1 }`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "kind",
    rename_all = "kebab-case",
    expecting = "a table, such as device = { kind = \"model-adc\", size = \"64KiB\" }"
)]
pub enum DeviceConfig {
    /// A digitizer computed from a seed; simulated.
    ModelAdc(ModelAdcConfig),
    /// A SigMF recording; replayed.
    Sigmf(SigmfConfig),
    /// One thread of a VDIF recording; replayed.
    Vdif(VdifConfig),
    /// PGM images, one after the other; replayed.
    Pgm(PgmConfig),
    /// TIFF images, page by page; replayed.
    Tiff(TiffConfig),
    /// The rows of a NumPy array; replayed.
    Npy(NpyConfig),
    /// Records of one size from a file; replayed.
    Raw(RawConfig),
    /// An instrument that sends UDP datagrams of its own.
    Udp(UdpConfig),
    /// A GigE Vision camera.
    Gige(GigeConfig),
    /// QEMU's edu device, which writes to memory by itself; simulated.
    Edu(EduConfig),
    /// An NVMe disk, which writes its blocks to memory by itself; replayed.
    Nvme(NvmeConfig),
    /// Records out of a pipe or a serial port.
    Stream(StreamConfig),
    /// A camera that the kernel has a driver for (V4L2).
    V4l2(V4l2Config),
    /// A board that samples, and that the kernel has a driver for.
    Comedi(ComediConfig),
    /// A card whose driver reads by DMA.
    Dma(DmaConfig),
    /// Fits of another source's images.
    Fit(FitConfig),
}

impl DeviceConfig {
    /// Returns the name of the device's kind, as written in a topology file.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::ModelAdc(_) => "model-adc",
            Self::Sigmf(_) => "sigmf",
            Self::Vdif(_) => "vdif",
            Self::Pgm(_) => "pgm",
            Self::Tiff(_) => "tiff",
            Self::Npy(_) => "npy",
            Self::Raw(_) => "raw",
            Self::Udp(_) => "udp",
            Self::Gige(_) => "gige",
            Self::Edu(_) => "edu",
            Self::Nvme(_) => "nvme",
            Self::Stream(_) => "stream",
            Self::V4l2(_) => "v4l2",
            Self::Comedi(_) => "comedi",
            Self::Dma(_) => "dma",
            Self::Fit(_) => "fit",
        }
    }

    /// Returns whether the device is an [`Acquisition`](crate::Acquisition).
    pub fn works_by_itself(&self) -> bool {
        matches!(
            self,
            Self::Udp(_)
                | Self::Gige(_)
                | Self::Edu(_)
                | Self::Nvme(_)
                | Self::Stream(_)
                | Self::V4l2(_)
                | Self::Comedi(_)
                | Self::Dma(_)
                | Self::Fit(_)
        )
    }

    /// Returns whether the device gives its frames time stamps.
    pub fn has_times(&self) -> bool {
        match self {
            Self::Udp(udp) => match udp.format {
                DatagramFormat::Fixed => udp.time.is_some(),
                DatagramFormat::Spead => false,
                DatagramFormat::Vdif | DatagramFormat::Vita49 => true,
            },
            Self::Stream(_) | Self::Edu(_) | Self::Nvme(_) | Self::Dma(_) => false,
            _ => true,
        }
    }

    /// Returns the length of the longest payload in bytes, or `None` if it is not known before the device is opened.
    pub fn longest(&self) -> Option<u64> {
        match self {
            Self::ModelAdc(config) => Some(config.size.0),
            Self::Raw(config) => config.record_bytes(),
            Self::Udp(config) => Some(config.size.0),
            Self::Gige(config) => config.size.map(|size| size.0),
            Self::Edu(config) => Some(config.size.0),
            Self::Nvme(config) => Some(config.size.0),
            Self::Stream(config) => config.longest(),
            Self::Dma(config) => Some(config.size.0),
            Self::Sigmf(_)
            | Self::Vdif(_)
            | Self::Pgm(_)
            | Self::Tiff(_)
            | Self::Npy(_)
            | Self::V4l2(_)
            | Self::Comedi(_)
            | Self::Fit(_) => None,
        }
    }

    /// Creates the configuration of the device at an address that needs no further options: `gige:GV01`,
    /// `v4l2:/dev/video0`, `nvme:0000:01:00.0`.
    ///
    /// # Errors
    /// The text is no such address; the error names the kinds that are possible.
    pub fn at(address: &str) -> Result<Self, String> {
        let Some((kind, place)) = address.split_once(':').filter(|(_, place)| !place.is_empty()) else {
            return Err(format!("'{address}' is no device's address, such as gige:GV01 or v4l2:/dev/video0"));
        };
        let more = match kind {
            "gige" | "edu" => format!("address = {place:?}"),
            "v4l2" => format!("file = {place:?}"),
            "nvme" => format!("address = {place:?}\nsize = \"64KiB\""),
            other => {
                return Err(format!(
                    "'{other}': a device is gige:NAME, v4l2:FILE, nvme:ADDRESS or edu:ADDRESS; others need more said, in a \
                     topology file"
                ));
            }
        };
        toml::from_str(&format!("kind = {kind:?}\n{more}")).map_err(|error| error.message().to_owned())
    }

    /// Sets the source that a model plays, unless it was configured with one: the sources of one run then differ.
    pub fn set_source(&mut self, source: SourceId) {
        if let Self::ModelAdc(config) = self {
            config.source.get_or_insert(source);
        }
    }

    /// Returns the files that the device reads.
    pub fn paths(&self) -> &[PathBuf] {
        match self {
            Self::ModelAdc(_) | Self::Udp(_) | Self::Gige(_) | Self::Edu(_) | Self::Nvme(_) | Self::Fit(_) => &[],
            Self::Stream(config) => std::slice::from_ref(&config.file),
            Self::V4l2(config) => std::slice::from_ref(&config.file),
            Self::Comedi(config) => std::slice::from_ref(&config.file),
            Self::Dma(config) => std::slice::from_ref(&config.file),
            Self::Sigmf(config) => std::slice::from_ref(&config.file),
            Self::Vdif(config) => std::slice::from_ref(&config.file),
            Self::Pgm(config) => &config.files,
            Self::Tiff(config) => &config.files,
            Self::Npy(config) => std::slice::from_ref(&config.file),
            Self::Raw(config) => std::slice::from_ref(&config.file),
        }
    }

    /// Resolves relative file names against `base`, the topology file's directory.
    pub fn resolve_paths(&mut self, base: &Path) {
        let files: &mut [PathBuf] = match self {
            Self::ModelAdc(_) | Self::Udp(_) | Self::Gige(_) | Self::Edu(_) | Self::Nvme(_) | Self::Fit(_) => &mut [],
            Self::Stream(config) => std::slice::from_mut(&mut config.file),
            Self::V4l2(config) => std::slice::from_mut(&mut config.file),
            Self::Comedi(config) => std::slice::from_mut(&mut config.file),
            Self::Dma(config) => std::slice::from_mut(&mut config.file),
            Self::Sigmf(config) => std::slice::from_mut(&mut config.file),
            Self::Vdif(config) => std::slice::from_mut(&mut config.file),
            Self::Pgm(config) => &mut config.files,
            Self::Tiff(config) => &mut config.files,
            Self::Npy(config) => std::slice::from_mut(&mut config.file),
            Self::Raw(config) => std::slice::from_mut(&mut config.file),
        };
        for file in files {
            *file = base.join(&*file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_text::ByteSize;

    #[derive(Debug, Deserialize, Serialize)]
    struct Table {
        device: DeviceConfig,
    }

    fn device(toml: &str) -> Result<DeviceConfig, String> {
        toml::from_str::<Table>(toml).map(|table| table.device).map_err(|error| error.to_string())
    }

    #[test]
    fn a_topology_names_its_devices() {
        let model = device(r#"device = { kind = "model-adc", size = "1MiB", seed = 7, source = "1.2", period = 32 }"#);
        let expected = ModelAdcConfig {
            size: ByteSize(1 << 20),
            size_from: None,
            seed: 7,
            source: Some(SourceId::new(1, 2)),
            period: 32,
        };
        assert_eq!(model, Ok(DeviceConfig::ModelAdc(expected)));
        let vdif = device(r#"device = { kind = "vdif", file = "a.vdif", thread = 3, loop = true }"#);
        assert_eq!(
            vdif,
            Ok(DeviceConfig::Vdif(VdifConfig {
                file: "a.vdif".into(),
                thread: Some(3),
                sample_rate: None,
                rate: None,
                looped: true
            }))
        );
    }

    #[test]
    fn what_was_read_can_be_written_and_read_again() {
        for text in [
            r#"device = { kind = "model-adc", size = 1000 }"#,
            r#"device = { kind = "model-adc", size = 1000, source = "0.9" }"#,
            r#"device = { kind = "model-adc", size = 1000, size_from = 10 }"#,
            r#"device = { kind = "sigmf", file = "x", samples_per_fragment = 10 }"#,
            r#"device = { kind = "vdif", file = "x" }"#,
            r#"device = { kind = "pgm", files = ["a", "b"], loop = true }"#,
            r#"device = { kind = "sigmf", file = "x.sigmf", recording = "y" }"#,
            r#"device = { kind = "vdif", file = "x", rate = 1600 }"#,
            r#"device = { kind = "tiff", files = ["a"], rate = 12.5 }"#,
            r#"device = { kind = "npy", file = "x" }"#,
            r#"device = { kind = "edu", address = "0000:00:10.0", size = 64, stray = true }"#,
            r#"device = { kind = "nvme", address = "0000:00:18.0", size = "128KiB" }"#,
            r#"device = { kind = "gige", address = "GV01" }"#,
            r#"device = { kind = "gige", address = "10.0.0.5", size = "1MiB", features = { Gain = 3, ExposureTime = 1.5 } }"#,
            r#"device = { kind = "gige", address = "x", resend = false, features = [{ B = "On" }, { A = true, C = -1 }] }"#,
            r#"device = { kind = "raw", file = "x", record = "2KiB" }"#,
            r#"device = { kind = "raw", file = "x", skip = 512, type = "ci16_be", shape = [64, 2], rate = 1e-3 }"#,
        ] {
            let config = device(text).unwrap();
            assert!(text.contains(&format!("\"{}\"", config.kind())));
            let toml = toml::to_string(&Table { device: config.clone() }).unwrap();
            assert_eq!(device(&toml), Ok(config.clone()));
            assert_eq!(serde_json::from_str::<DeviceConfig>(&serde_json::to_string(&config).unwrap()).unwrap(), config);
        }
    }

    #[test]
    fn a_misspelt_option_is_named() {
        let error = device(r#"device = { kind = "raw", file = "x", record = 8, looped = true }"#).unwrap_err();
        assert!(error.contains("looped") && error.contains("`loop`"), "{error}");
        let error = device(r#"device = { kind = "tape" }"#).unwrap_err();
        assert!(error.contains("tape") && error.contains("model-adc"), "{error}");
        let error = device(r#"device = { kind = "raw", file = "x", record = "8 bits" }"#).unwrap_err();
        assert!(error.contains("8 bits"), "{error}");
        let error = device(r#"device = { kind = "npy", file = "x", rate = "100 Hz" }"#).unwrap_err();
        assert!(error.contains("\"100 Hz\"") && error.contains("without a unit, such as 100.0"), "{error}");
        let error = device(r#"device = { kind = "npy", file = "x", rate = 0 }"#).unwrap_err();
        assert!(error.contains("0.0") && error.contains("from 1e-6"), "{error}");
        let error = device(r#"device = { kind = "gige", address = "x", features = { Gain = [1] } }"#).unwrap_err();
        assert!(error.contains("a number or a text"), "{error}");
        let error = device(r#"device = { kind = "raw", file = "x", type = "float32" }"#).unwrap_err();
        assert!(error.contains("'float32' is not a type: write one of u8") && error.contains("_be"), "{error}");
    }

    #[test]
    fn file_names_are_relative_to_the_topology() {
        let mut config = device(r#"device = { kind = "pgm", files = ["a.pgm", "/b.pgm"] }"#).unwrap();
        config.resolve_paths(Path::new("/lab"));
        let DeviceConfig::Pgm(pgm) = config else { panic!() };
        assert_eq!(pgm.files, [PathBuf::from("/lab/a.pgm"), PathBuf::from("/b.pgm")]);
    }
}
