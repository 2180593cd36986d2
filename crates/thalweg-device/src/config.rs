//! How a device is asked for: the `device = { kind = "…", … }` table of the topology file.

use crate::{DeviceError, Layout, MAX_PAYLOAD, Rate, StoredType};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use thalweg_wire::SourceId;
use thiserror::Error;

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
    /// The name of its kind, as written in a topology file.
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

    /// Whether it is an [`Acquisition`](crate::Acquisition).
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

    /// Bytes in its longest payload, where that is said without opening it.
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

    /// The device at an address, which needs nothing else said: `gige:GV01`, `v4l2:/dev/video0`, `nvme:0000:01:00.0`.
    ///
    /// # Errors
    /// What else there is.
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

    /// Tells a model which source it plays, unless it was configured with one: sources of one run then differ.
    pub fn set_source(&mut self, source: SourceId) {
        if let Self::ModelAdc(config) = self {
            config.source.get_or_insert(source);
        }
    }

    /// The files it plays.
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

    /// Takes relative file names as relative to `base`, the topology file's directory.
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

/// The model ADC: see [`model_adc`](crate::model_adc).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelAdcConfig {
    /// Bytes in each fragment's payload.
    pub size: ByteSize,
    /// Where given, a payload has from so many bytes up to `size`: see [`payload_len`](crate::payload_len).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_from: Option<ByteSize>,
    /// Chooses the waveforms. Below 2⁶³ where it is written in TOML.
    #[serde(default = "one")]
    pub seed: u64,
    /// Which source's waveforms, `"1.0"`; the node's own source where left out, and 0.0 where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "source_id")]
    pub source: Option<SourceId>,
    /// How many different waveforms there are: event *e* has that of *e* mod `period`. 0: every event has its own.
    #[serde(default)]
    pub period: u64,
}

/// A SigMF recording: `.sigmf-meta` beside `.sigmf-data`, or one of an archive (`.sigmf`) or collection
/// (`.sigmf-collection`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SigmfConfig {
    /// Either of the two files, or their common name without ending; or an archive, or a collection.
    pub file: PathBuf,
    /// The recording of an archive or collection; may be left out where there is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recording: Option<String>,
    /// Samples of each channel in one fragment; as many as make about 64 KiB where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_per_fragment: Option<u64>,
    /// Begin again when the recording is over.
    #[serde(default, rename = "loop")]
    pub looped: bool,
}

/// One thread of a VDIF recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VdifConfig {
    /// The recording.
    pub file: PathBuf,
    /// The thread to play; may be left out where the recording has only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<u16>,
    /// Samples per second and channel, where its headers do not say it, or say it wrongly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_rate: Option<u64>,
    /// Data frames per second of each thread, where the recording does not tell, or tells it wrongly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Begin again when the recording is over.
    #[serde(default, rename = "loop")]
    pub looped: bool,
}

/// PGM images of one size, played in the order given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PgmConfig {
    /// Image files; a directory stands for its `*.pgm`, by name.
    pub files: Vec<PathBuf>,
    /// Images per second, for their times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Begin again when the sequence is over.
    #[serde(default, rename = "loop")]
    pub looped: bool,
}

/// TIFF images of one size and type, played in the order given, page by page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TiffConfig {
    /// Image files; a directory stands for its `*.tif` and `*.tiff`, by name.
    pub files: Vec<PathBuf>,
    /// Images per second, for their times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Begin again when the sequence is over.
    #[serde(default, rename = "loop")]
    pub looped: bool,
}

/// A NumPy array (`.npy`), whose first axis counts fragments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NpyConfig {
    /// The file.
    pub file: PathBuf,
    /// Fragments per second, for their times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Begin again when the array is over.
    #[serde(default, rename = "loop")]
    pub looped: bool,
}

/// A file of records of one size, with or without a header in front.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawConfig {
    /// The file.
    pub file: PathBuf,
    /// Bytes of a header in front of the first record, which are not played.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skip: ByteSize,
    /// Bytes in each record; may be left out where `type` and `shape` say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<ByteSize>,
    /// What a record is made of; bytes without a stated meaning where left out.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredType>,
    /// A record's axes, the last one without gaps; one axis where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<u64>>,
    /// Records per second, for their times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Begin again when the recording is over.
    #[serde(default, rename = "loop")]
    pub looped: bool,
}

/// QEMU's edu device, bound to `vfio-pci`: see [a machine with devices](https://www.qemu.org/docs/master/specs/edu.html).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EduConfig {
    /// Its PCI address, `0000:00:10.0`.
    pub address: String,
    /// Bytes in each fragment's payload.
    #[serde(default = "longest_edu")]
    pub size: ByteSize,
    /// Before the run, have it write to memory that it was not shown, which an IOMMU keeps it from.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stray: bool,
}

impl EduConfig {
    /// Looks for what cannot be, without touching the device. QEMU ends where the device reads its buffer's last byte
    /// (`edu_check_range`, hw/misc/edu.c, up to 9.2).
    ///
    /// # Errors
    /// Another size than its buffer has room for.
    pub fn check(&self) -> Result<(), DeviceError> {
        let possible = (1..=longest_edu().0).contains(&self.size.0);
        let expected = "1 to 4032 bytes, what its buffer has room for";
        if possible { Ok(()) } else { Err(DeviceError::Setting { option: "size", value: self.size.0, expected }) }
    }
}

/// An NVMe disk, bound to `vfio-pci`. It is read from its beginning to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeConfig {
    /// Its PCI address, `0000:00:18.0`.
    pub address: String,
    /// Bytes in each fragment's payload: a multiple of its blocks.
    pub size: ByteSize,
}

impl NvmeConfig {
    /// Looks for what cannot be, without touching the disk.
    ///
    /// # Errors
    /// A size that no disk gives at once.
    pub fn check(&self) -> Result<(), DeviceError> {
        let possible = (512..=2 << 20).contains(&self.size.0) && self.size.0.is_multiple_of(512);
        let expected = "a multiple of 512 bytes, at most 2 MiB";
        if possible { Ok(()) } else { Err(DeviceError::Setting { option: "size", value: self.size.0, expected }) }
    }
}

/// A record of it is a page.
fn longest_edu() -> ByteSize {
    ByteSize(4032)
}

impl RawConfig {
    /// Bytes in each record, where the options say it.
    pub fn record_bytes(&self) -> Option<u64> {
        let of_shape = || self.stored?.element.bytes_of(self.shape.as_deref()?);
        self.record.map(|record| record.0).or_else(of_shape)
    }
}

/// What a program writes into a pipe, or an instrument to a serial port: record after record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamConfig {
    /// A named pipe, a serial port, or a file.
    pub file: PathBuf,
    /// Bytes in each record; may be left out where `type` and `shape` say it, or where each has its `length` in front.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<ByteSize>,
    /// What a record is made of; bytes without a stated meaning where left out.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredType>,
    /// A record's axes, the last one without gaps; one axis where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<u64>>,
    /// In front of each record stands how many bytes it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<LengthPrefix>,
    /// Bytes in the longest record, where each has its `length` in front.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<ByteSize>,
    /// A serial port's bits per second; as it is set where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baud: Option<u32>,
}

/// A camera that the kernel has a driver for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct V4l2Config {
    /// Its video node, `/dev/video0`.
    pub file: PathBuf,
    /// Pixels in a row; as the camera is set where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub width: Option<u32>,
    /// Rows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub height: Option<u32>,
    /// What pixels are: the letters of V4L2, such as `GREY` or `Y16`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// Images per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Its controls, by the names that v4l2-ctl has for them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub controls: BTreeMap<String, i64>,
}

/// A board that samples voltages, with a driver of comedi's (<https://www.comedi.org>). A fragment is so many samples of each
/// channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComediConfig {
    /// Its file, `/dev/comedi0`.
    pub file: PathBuf,
    /// The part of the board; the first that reads by command where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subdevice: Option<u32>,
    /// Its channels, in the order in which they are sampled.
    pub channels: Vec<u8>,
    /// The range of all of them, by its number.
    #[serde(default)]
    pub range: u8,
    /// Samples per second, of each channel.
    pub rate: Rate,
    /// Samples in a fragment, of each channel.
    pub samples: u32,
}

impl ComediConfig {
    /// The most samples in a fragment.
    const MOST: u32 = 1 << 26;

    /// Whether it makes sense.
    ///
    /// # Errors
    /// The key that does not.
    pub fn check(&self) -> Result<(), DeviceError> {
        let wrong = |option, problem: &str| Err(DeviceError::Option { option, problem: problem.into() });
        if self.channels.is_empty() {
            return wrong("channels", "name at least one");
        }
        // Nanoseconds from one to the next have 32 bits.
        if !(0.3..=1e9).contains(&self.rate.hertz()) {
            return wrong("rate", "0.3 to 1000000000 samples a second are possible");
        }
        if !(1..=Self::MOST).contains(&self.samples) {
            return wrong("samples", "1 to 67108864 are possible");
        }
        Ok(())
    }
}

/// A card with a driver whose reads are transfers by DMA into the reader's memory, such as XDMA, QDMA and SIS8300 have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DmaConfig {
    /// Its file, `/dev/xdma0_c2h_0`.
    pub file: PathBuf,
    /// Bytes in the longest fragment: what each read asks for.
    pub size: ByteSize,
    /// What a fragment is made of; bytes without a stated meaning where left out.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredType>,
    /// Where on the card each read begins, in bytes: of an engine with addresses. Left out, of one that streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<u64>,
    /// Where each fragment has the card's count of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counter: Option<Counter>,
    /// Reads under way at a time; 4 with a `counter`, which tells them apart, and 1 without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads: Option<u32>,
}

impl DmaConfig {
    /// Reads under way at a time.
    pub fn reads(&self) -> u32 {
        self.reads.unwrap_or(if self.counter.is_some() { 4 } else { 1 })
    }

    /// Whether it makes sense, and what its fragments are.
    ///
    /// # Errors
    /// The key that does not.
    pub fn check(&self) -> Result<Layout, DeviceError> {
        let wrong = |option, problem: &str| Err(DeviceError::Option { option, problem: problem.into() });
        if !(1..=MAX_PAYLOAD as u64).contains(&self.size.0) {
            let expected = "from 1 byte to 1 GiB, the bytes of the longest fragment";
            return Err(DeviceError::Setting { option: "size", value: self.size.0, expected });
        }
        if !(1..=16).contains(&self.reads()) {
            return wrong("reads", "1 to 16 at a time are possible");
        }
        match self.counter {
            None if self.reads() > 1 => {
                return wrong("reads", "several at a time end in any order: say where the card has its `counter`");
            }
            Some(counter) if !counter.is_within(self.size.0) => {
                return wrong("counter", "1 to 8 bytes of the fragment are possible");
            }
            _ => {}
        }
        Layout::new(Some(self.size), self.stored, None)
    }
}

/// Fits of another source's images: see `docs/images.md`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FitConfig {
    /// The source that takes the images. The fit is a part of its process.
    pub of: String,
    /// What is fitted.
    pub fit: FitKind,
    /// The part that is looked at: x, y, width, height.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<[usize; 4]>,
    /// Millimetres from pixel to pixel: lengths come in millimetres, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pixel_mm: Option<f64>,
    /// The most that a pixel can show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub white: Option<f64>,
    /// Fringes: the light of one slit.
    #[serde(default, skip_serializing_if = "EnvelopeConfig::is_default")]
    pub envelope: EnvelopeConfig,
    /// Fringes in two dimensions: whether the slits may be turned against the camera.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub turned: bool,
    /// Fringes: what makes them; with it comes the size of the source of light.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interferometer: Option<InterferometerConfig>,
    /// How many images may wait to be fitted. What comes while so many do has no fit.
    #[serde(default = "FitConfig::waiting", skip_serializing_if = "FitConfig::is_usual")]
    pub waiting: u32,
}

// A number that is NaN is refused before anything is compared.
impl Eq for FitConfig {}

impl FitConfig {
    fn waiting() -> u32 {
        4
    }

    fn is_usual(waiting: &u32) -> bool {
        *waiting == Self::waiting()
    }

    /// Looks for what cannot be.
    ///
    /// # Errors
    /// The key, and what is wrong with it.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let positive = |number: f64| number.is_finite() && number > 0.0;
        let must = |holds, key, problem: &str| if holds { Ok(()) } else { Err((key, problem.to_owned())) };
        must(self.pixel_mm.is_none_or(positive), "pixel_mm", "it is the distance of two pixels, above 0")?;
        must(self.white.is_none_or(positive), "white", "it is the most that a pixel can show, above 0")?;
        must((1..=1024).contains(&self.waiting), "waiting", "1 to 1024 images can wait")?;
        let fringes = self.fit.is_of_fringes();
        must(!self.turned || self.fit.is_of_fringes_2d(), "turned", "it goes with fringes in two dimensions")?;
        must(fringes || self.envelope.is_default(), "envelope", "it goes with fringes")?;
        must(fringes || self.interferometer.is_none(), "interferometer", "it goes with fringes")?;
        let sizes = self.interferometer.map(|i| [i.wavelength, i.separation, i.distance]);
        must(
            sizes.is_none_or(|sizes| sizes.into_iter().all(positive)),
            "interferometer",
            "wavelength, separation and distance are in metres, above 0",
        )
    }
}

/// What is fitted to an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FitKind {
    /// Beam moments after ISO 11146.
    #[serde(rename = "moments")]
    Moments,
    /// A Gaussian along the average row.
    #[serde(rename = "gaussian-x")]
    GaussianX,
    /// A Gaussian along the average column.
    #[serde(rename = "gaussian-y")]
    GaussianY,
    /// An elliptical Gaussian.
    #[serde(rename = "gaussian-2d")]
    Gaussian2d,
    /// Fringes along the average row.
    #[serde(rename = "fringes-x")]
    FringesX,
    /// Fringes along the average column.
    #[serde(rename = "fringes-y")]
    FringesY,
    /// Fringes of two slits side by side.
    #[serde(rename = "fringes-2d-x")]
    Fringes2dX,
    /// Fringes of two slits one above the other.
    #[serde(rename = "fringes-2d-y")]
    Fringes2dY,
    /// Fringes of four holes.
    #[serde(rename = "fringes-2d-four")]
    Fringes2dFour,
}

impl FitKind {
    fn is_of_fringes(self) -> bool {
        matches!(self, Self::FringesX | Self::FringesY) || self.is_of_fringes_2d()
    }

    fn is_of_fringes_2d(self) -> bool {
        matches!(self, Self::Fringes2dX | Self::Fringes2dY | Self::Fringes2dFour)
    }
}

/// The light of one slit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EnvelopeConfig {
    /// That of a slit of uniform light: (sin x / x)².
    #[default]
    Sinc2,
    /// A Gaussian.
    Gaussian,
}

impl EnvelopeConfig {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A double slit that looks at a source of light. Lengths are in metres.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterferometerConfig {
    /// Of the light.
    pub wavelength: f64,
    /// From the centre of one slit to that of the other.
    pub separation: f64,
    /// From the source to the slits.
    pub distance: f64,
}

/// A number in front of a record: `{ bytes = 4 }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LengthPrefix {
    /// How many bytes the number has: 1 to 8.
    pub bytes: u8,
    /// The least significant byte comes first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub little_endian: bool,
}

impl StreamConfig {
    /// Bytes in the longest record, where the options say it.
    pub fn longest(&self) -> Option<u64> {
        let of_shape = || self.stored?.element.bytes_of(self.shape.as_deref()?);
        match self.length {
            Some(_) => self.size.map(|size| size.0),
            None => self.record.map(|record| record.0).or_else(of_shape),
        }
    }

    /// Looks for what cannot be, without opening anything. What its records are, where none has its length in front.
    ///
    /// # Errors
    /// Options that do not go together, or that make no record.
    pub fn check(&self) -> Result<Option<Layout>, DeviceError> {
        let wrong = |option, problem: &str| Err(DeviceError::Option { option, problem: problem.to_owned() });
        let Some(length) = self.length else {
            if self.size.is_some() {
                return wrong(
                    "size",
                    "records without a `length` in front all have the bytes of `record`: leave it out",
                );
            }
            return Layout::new(self.record, self.stored, self.shape.as_deref()).map(Some);
        };
        if self.record.is_some() || self.stored.is_some() || self.shape.is_some() {
            return wrong("length", "each record says how long it is: leave out record, type and shape");
        }
        if !(1..=8).contains(&length.bytes) {
            return wrong("length", "the number in front of records has 1 to 8 bytes");
        }
        let expected = "from 1 byte to 1 GiB, the bytes of the longest record";
        match self.size {
            Some(size) if (1..=MAX_PAYLOAD as u64).contains(&size.0) => Ok(None),
            size => Err(DeviceError::Setting { option: "size", value: size.map_or(0, |size| size.0), expected }),
        }
    }
}

/// An instrument that sends UDP datagrams of its own: see the crate `thalweg-instrument`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UdpConfig {
    /// Where it sends to: `udp:HOST:PORT`, `af-xdp:HOST:PORT`, `dpdk:HOST:PORT`.
    pub listen: String,
    /// What its datagrams are.
    pub format: DatagramFormat,
    /// Bytes in the longest fragment.
    pub size: ByteSize,
    /// Who alone is listened to: an address, or one with a port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// How many later datagrams may come before an earlier one that is not lost.
    #[serde(default = "sixteen")]
    pub reorders: u32,
    /// How long something that is missing is waited for while nothing else comes.
    #[serde(default = "patience", with = "crate::duration")]
    pub patience: Duration,
    /// Bytes of datagrams that the kernel keeps until they are received.
    #[serde(default = "buffer")]
    pub buffer: ByteSize,
    /// The number, in the instrument's own count, of the run's first event; the first that comes where left out. VDIF: its
    /// second since 1970 (TAI) times `rate` and the frame's number, or the sequence number. Not for VITA-49.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<u64>,
    /// Frames (VDIF) or packets (VITA-49) per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// VDIF: the thread; that of the first frame where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<u16>,
    /// VDIF: a sequence number of 8 bytes stands in front of each frame (VTP).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sequence: bool,
    /// VITA-49: the stream; that of the first packet where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<u32>,
    /// Fixed: bytes of the header of each datagram.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<u32>,
    /// Fixed: where in it the counter is: of fragments where there is an `index`, else of datagrams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counter: Option<Counter>,
    /// Fixed: where in it the number of the datagram within its fragment is; by the counter where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<Counter>,
    /// Fixed: how many datagrams make a fragment; 1 where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u32>,
}

/// What datagrams are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DatagramFormat {
    /// VDIF data frames.
    Vdif,
    /// Packets of SPEAD heaps.
    Spead,
    /// VITA-49 signal data packets.
    Vita49,
    /// A payload behind a header of known length with a counter.
    Fixed,
}

impl DatagramFormat {
    /// As it is written in a topology file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vdif => "vdif",
            Self::Spead => "spead",
            Self::Vita49 => "vita49",
            Self::Fixed => "fixed",
        }
    }
}

/// A sequence counter in front of data: `{ at = 0, bytes = 8 }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counter {
    /// Its first byte, of the datagram or the fragment.
    pub at: u32,
    /// How many it has: 1 to 8.
    pub bytes: u32,
    /// The least significant byte comes first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub little_endian: bool,
}

impl Counter {
    /// Whether it has 1 to 8 bytes, all of them among the first so many.
    pub fn is_within(&self, length: u64) -> bool {
        (1..=8).contains(&self.bytes) && u64::from(self.at) + u64::from(self.bytes) <= length
    }

    /// What it says; nothing where it is not all there.
    pub fn read(&self, from: &[u8]) -> Option<u64> {
        let (at, length) = (self.at as usize, self.bytes as usize);
        let bytes = from.get(at..)?.get(..length)?;
        let append = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        Some(if self.little_endian { bytes.iter().rev().fold(0, append) } else { bytes.iter().fold(0, append) })
    }
}

/// A GigE Vision camera: see the crate `thalweg-gige`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GigeConfig {
    /// Which: its IP address, its MAC address, its serial number, or the name that its user gave it.
    pub address: String,
    /// Where it is looked for: an interface's name or address; at all of them where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Bytes in the longest frame; what the camera says where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<ByteSize>,
    /// What is set before the run, by the camera's own names.
    #[serde(default, skip_serializing_if = "Features::is_empty")]
    pub features: Features,
    /// Frames per second, by which those are counted that a camera could not send while it was away; what the camera
    /// says where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Bytes of the longest packet, with its IP header; found out where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet: Option<u32>,
    /// Whether packets that do not come are asked for again.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub resend: bool,
    /// How long a frame of which packets are missing is waited for while nothing of it comes.
    #[serde(default = "patience", with = "crate::duration")]
    pub patience: Duration,
    /// After how long without an answer a camera is taken to be away, and takes us to be.
    #[serde(default = "heartbeat", with = "crate::duration")]
    pub heartbeat: Duration,
    /// Bytes of packets that the kernel keeps until they are received.
    #[serde(default = "buffer")]
    pub buffer: ByteSize,
}

/// What a camera's features are set to: a table, or a list of tables where the order matters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Features {
    /// Each with its value.
    pub values: Vec<(String, FeatureValue)>,
    /// Whether they are to be set in this order.
    pub ordered: bool,
}

impl Features {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

/// What a feature is set to; a command is executed where it is set to `true`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "true, false, a number or a text")]
pub enum FeatureValue {
    /// Yes or no, or a command.
    Switch(bool),
    /// A whole number.
    Integer(i64),
    /// A number.
    Number(f64),
    /// An entry of an enumeration, or a text.
    Text(String),
}

// No number is NaN: reading one is refused.
impl Eq for FeatureValue {}

impl fmt::Display for FeatureValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
            Self::Number(value) => value.fmt(f),
            Self::Text(value) => value.fmt(f),
        }
    }
}

impl Serialize for Features {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let values = self.values.iter();
        match self.ordered {
            true => serializer.collect_seq(values.map(|(name, value)| BTreeMap::from([(name, value)]))),
            false => serializer.collect_map(values.map(|(name, value)| (name, value))),
        }
    }
}

impl<'de> Deserialize<'de> for Features {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FeaturesVisitor)
    }
}

struct FeaturesVisitor;

impl<'de> de::Visitor<'de> for FeaturesVisitor {
    type Value = Features;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("features, such as { ExposureTime = 5000.0 }, or a list of such tables")
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Features, A::Error> {
        let mut values = Vec::new();
        while let Some((name, value)) = map.next_entry::<String, FeatureValue>()? {
            if matches!(value, FeatureValue::Number(number) if !number.is_finite()) {
                return Err(de::Error::custom(format!("{name} is no number")));
            }
            values.push((name, value));
        }
        Ok(Features { values, ordered: false })
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Features, A::Error> {
        let mut all = Vec::new();
        while let Some(Features { values, .. }) = seq.next_element()? {
            all.extend(values);
        }
        Ok(Features { values: all, ordered: true })
    }
}

fn yes() -> bool {
    true
}

fn heartbeat() -> Duration {
    Duration::from_secs(3)
}

fn sixteen() -> u32 {
    16
}

fn patience() -> Duration {
    Duration::from_millis(200)
}

fn buffer() -> ByteSize {
    ByteSize(32 << 20)
}

fn one() -> u64 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(size: &ByteSize) -> bool {
    size.0 == 0
}

/// A number of bytes; written as a number, or as text with a unit: `4096`, `"64KiB"`, `"1MiB"`, `"1.5 MB"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(pub u64);

/// Why a text is not a number of bytes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "'{0}' is not a size: write a number of bytes, or one with a unit (B, KiB, MiB, GiB, kB, MB, GB), such as 64KiB"
)]
pub struct ByteSizeError(String);

const UNITS: [(&str, u64); 8] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("KB", 1_000),
    ("B", 1),
];

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, ByteSizeError> {
        let error = || ByteSizeError(text.to_owned());
        let trimmed = text.trim();
        let (number, unit) = UNITS
            .iter()
            .find_map(|(name, unit)| Some((trimmed.strip_suffix(name)?.trim_end(), *unit)))
            .unwrap_or((trimmed, 1));
        // Decimals are allowed as far as they give whole bytes: 1.5KiB is 1536, 1.5 is nothing.
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || number.ends_with('.') || decimals.len() > 9 || !digits(whole) || !digits(decimals) {
            return Err(error());
        }
        let scale = 10u128.pow(decimals.len() as u32);
        let scaled: u128 = format!("{whole}{decimals}").parse().map_err(|_| error())?;
        let bytes = scaled.checked_mul(u128::from(unit)).filter(|bytes| bytes % scale == 0).ok_or_else(error)?;
        u64::try_from(bytes / scale).map(Self).map_err(|_| error())
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the commas it can be read again.
        f.write_str(&thalweg_page::text::size(self.0).replace(',', ""))
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl de::Visitor<'_> for SizeVisitor {
    type Value = ByteSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size, such as 4096 or \"64KiB\"")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<ByteSize, E> {
        Ok(ByteSize(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<ByteSize, E> {
        u64::try_from(value).map(ByteSize).map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
        text.parse().map_err(E::custom)
    }
}

/// Source ids as text, `"3.17"`.
mod source_id {
    use super::{Deserialize, Deserializer, Serializer, SourceId, de};

    #[expect(clippy::ref_option, reason = "the signature that serde calls")]
    pub(super) fn serialize<S: Serializer>(id: &Option<SourceId>, serializer: S) -> Result<S::Ok, S::Error> {
        match id {
            Some(id) => serializer.collect_str(id),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SourceId>, D::Error> {
        let text: Option<String> = Option::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(de::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64KiB", 65536),
            ("64 KiB", 65536),
            ("1.5kB", 1500),
            ("1.5 MiB", 3 << 19),
            ("2GB", 2_000_000_000),
            ("7B", 7),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "KiB", "1.5", "1.", ".5KiB", "-1", "1e3", "1 k", "99999999999999999999", "17179869184GiB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
        assert_eq!(ByteSize(3 << 19).to_string(), "1536 KiB");
        assert_eq!(ByteSize(1001).to_string(), "1001 B");
        for bytes in [0, 1, 1001, 340_000, 3 << 19, 5_000_000_000, u64::MAX] {
            assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)), "{bytes}");
        }
    }

    #[test]
    fn file_names_are_relative_to_the_topology() {
        let mut config = device(r#"device = { kind = "pgm", files = ["a.pgm", "/b.pgm"] }"#).unwrap();
        config.resolve_paths(Path::new("/lab"));
        let DeviceConfig::Pgm(pgm) = config else { panic!() };
        assert_eq!(pgm.files, [PathBuf::from("/lab/a.pgm"), PathBuf::from("/b.pgm")]);
    }
}
