//! Replay of images stored as TIFF (*TIFF Revision 6.0*, 1992, and BigTIFF), page by page.
//!
//! One fragment is one page: its pixels row by row, grey or in colours, of 8 to 64 bits or floating-point,
//! little-endian whatever the file's byte order is. Pages may be compressed (LZW, Deflate, PackBits); they are
//! decompressed as they are played. A page whose white is 0 is inverted, so that more is brighter.

use crate::file::InputFile;
use crate::pgm::images_in_path;
use crate::replay::{Clock, Recording, Replay};
use crate::{Description, DeviceError, Filled, MAX_PAYLOAD, TiffConfig};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use thalweg_wire::{Element, Meaning, PayloadType};
use tiff::decoder::{Decoder, DecodingSampleType};
use tiff::tags::Tag;
use tiff::{ColorType, TiffError};

/// File name endings of TIFF images.
pub(crate) const ENDINGS: [&str; 2] = ["tif", "tiff"];
/// Maximum number of pages in an index. A page takes some hundred bytes, so that this many are files of many GiB.
const MAX_PAGES: usize = 1 << 22;

/// Opens the sequence: reads each page's directory, and compares it with the first page.
pub(crate) fn open_pages(config: &TiffConfig) -> Result<Replay<Tiff>, DeviceError> {
    if config.files.is_empty() {
        return Err(DeviceError::Setting { option: "files", value: 0, expected: "a list of at least one image" });
    }
    let mut files: Vec<PathBuf> = Vec::new();
    let mut pages: Vec<(u32, u32)> = Vec::new();
    let mut first: Option<Page> = None;
    for path in &config.files {
        for path in images_in_path(path, &ENDINGS)? {
            let mut decoder = open_decoder(&path)?;
            let (before, mut announced) = (pages.len(), None);
            for number in 0.. {
                let page = Page::from_decoder(&mut decoder).map_err(|error| page_error(&path, number, error))?;
                if number == 0 {
                    announced = announced_images(&mut decoder, &page);
                }
                let like = first.get_or_insert_with(|| page.clone());
                if page != *like {
                    let (file, first) = (path.clone(), files.first().unwrap_or(&path).clone());
                    let (shape, first_shape) =
                        (format!("{} on page {number}", page.describe_shape()), like.describe_shape());
                    return Err(DeviceError::Shape { file, shape, first, first_shape });
                }
                if pages.len() == MAX_PAGES {
                    return Err(DeviceError::TooMany { file: path, limit: MAX_PAGES });
                }
                pages.push((files.len() as u32, number as u32));
                if !decoder.more_images() {
                    break;
                }
                decoder.next_image().map_err(|error| page_error(&path, number + 1, error))?;
            }
            let has = pages.len() - before;
            if let Some(announced) = announced.filter(|announced| *announced > has as u64) {
                let what = format!(
                    "its description announces {announced} images, but it has only {has} pages: write one page per \
                     image (in tifffile, without `truncate`)"
                );
                return Err(page_error(&path, 0, std::io::Error::other(what).into()));
            }
            files.push(path);
        }
    }
    let Some(page) = first else { return Err(DeviceError::Empty { file: config.files[0].clone() }) };
    let payload_type = PayloadType::new(Meaning::Image, page.element);
    let description = Description {
        kind: "tiff".to_owned(),
        payload_type: payload_type.type_name().to_owned(),
        shape: Some(page.shape.clone()),
        fragment_rate: config.rate.map(|rate| rate.hertz()),
        width: u32::try_from(page.shape[1]).ok(),
        height: u32::try_from(page.shape[0]).ok(),
        record_bytes: Some(page.bytes as u64),
        file: Some(files[0].display().to_string()),
        ..Default::default()
    };
    let bytes = page.bytes;
    let tiff = Tiff { files, pages, bytes, payload_type, clock: Clock(config.rate), open: None };
    Ok(Replay::new(tiff, description, bytes, config.looped))
}

/// Returns the number of images announced in the first page's description, as ImageJ and tifffile write it. Both may
/// write one page for all.
fn announced_images(decoder: &mut Decoder<BufReader<File>>, page: &Page) -> Option<u64> {
    let text = decoder.get_tag_ascii_string(Tag::ImageDescription).ok()?;
    if text.starts_with("ImageJ=") {
        return text.lines().find_map(|line| line.strip_prefix("images=")?.trim().parse().ok());
    }
    let described: serde_json::Value = serde_json::from_str(&text).ok()?;
    let axes: Option<Vec<u64>> = described.get("shape")?.as_array()?.iter().map(serde_json::Value::as_u64).collect();
    axes_product(&axes?)?.checked_div(axes_product(&page.shape)?)
}

fn axes_product(axes: &[u64]) -> Option<u64> {
    axes.iter().try_fold(1_u64, |product, axis| product.checked_mul(*axis))
}

fn open_decoder(path: &Path) -> Result<Decoder<BufReader<File>>, DeviceError> {
    let file = InputFile::open(path)?.into_inner();
    Decoder::new(BufReader::new(file)).map_err(|error| page_error(path, 0, error))
}

fn page_error(path: &Path, page: usize, error: TiffError) -> DeviceError {
    DeviceError::Tiff { file: path.to_owned(), page, error }
}

/// Sequence of pages, as numbers of a file and of a page in it. One file is open at a time: a sequence may have more
/// files than a process may have open.
#[derive(Debug)]
pub(crate) struct Tiff {
    files: Vec<PathBuf>,
    pages: Vec<(u32, u32)>,
    bytes: usize,
    payload_type: PayloadType,
    clock: Clock,
    open: Option<(u32, Decoder<BufReader<File>>)>,
}

impl Recording for Tiff {
    fn record_count(&self) -> u64 {
        self.pages.len() as u64
    }

    fn payload_len(&self, _record: u64) -> usize {
        self.bytes
    }

    fn header_values(&self, record: u64) -> Filled {
        self.clock.header_values(record, self.payload_type)
    }

    fn read_payload(&mut self, record: u64, payload: &mut [u8]) -> Result<(), DeviceError> {
        let (file, page) = self.pages[record as usize];
        let path = &self.files[file as usize];
        // After an error the decoder is in an undefined position.
        let mut open = match self.open.take() {
            Some((open, decoder)) if open == file => decoder,
            _ => open_decoder(path)?,
        };
        read_page(&mut open, page as usize, payload).map_err(|error| page_error(path, page as usize, error))?;
        self.open = Some((file, open));
        Ok(())
    }

    fn pass_nanos(&self) -> u64 {
        self.clock.record_nanos(self.record_count())
    }

    fn boundary_files(&self) -> Option<(&Path, &Path)> {
        let [first, .., last] = &self.files[..] else { return None };
        Some((first, last))
    }
}

fn read_page(decoder: &mut Decoder<BufReader<File>>, page: usize, payload: &mut [u8]) -> Result<(), TiffError> {
    decoder.seek_to_image(page)?;
    // The file may have changed.
    if Page::from_decoder(decoder)?.bytes != payload.len() {
        return Err(std::io::Error::other("the size of the page has changed since the recording was opened").into());
    }
    // Pixels come in the byte order of this machine, which is little-endian.
    const { assert!(cfg!(target_endian = "little")) };
    decoder.read_image_bytes(payload)
}

/// Format of a page's pixels, from its directory.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Page {
    element: Element,
    /// Numbers of rows, columns, and colours where there are several.
    shape: Vec<u64>,
    /// Length of the pixels in bytes, at most [`MAX_PAYLOAD`].
    bytes: usize,
}

impl Page {
    fn from_decoder(decoder: &mut Decoder<BufReader<File>>) -> Result<Self, TiffError> {
        let (width, height) = decoder.dimensions()?;
        let color = decoder.colortype()?;
        let (bits, colors) = match color {
            ColorType::Gray(bits) => (bits, 1),
            ColorType::GrayA(bits) => (bits, 2),
            ColorType::RGB(bits) => (bits, 3),
            ColorType::RGBA(bits) => (bits, 4),
            ColorType::Multiband { bit_depth, num_samples } => (bit_depth, u64::from(num_samples)),
            _ => {
                return Err(unsupported_error(format!(
                    "its pixels are {color:?}; only grey and RGB images can be replayed"
                )));
            }
        };
        let layout = decoder.image_buffer_layout()?;
        let element = match layout.sample_type {
            Some(DecodingSampleType::U8) => Element::U8,
            Some(DecodingSampleType::U16) => Element::U16,
            Some(DecodingSampleType::U32) => Element::U32,
            Some(DecodingSampleType::U64) => Element::U64,
            Some(DecodingSampleType::I8) => Element::I8,
            Some(DecodingSampleType::I16) => Element::I16,
            Some(DecodingSampleType::I32) => Element::I32,
            Some(DecodingSampleType::I64) => Element::I64,
            Some(DecodingSampleType::F32) => Element::F32,
            Some(DecodingSampleType::F64) => Element::F64,
            _ => return Err(unsupported_error(format!("its pixels are {:?} of {bits} bits", layout.sample_format))),
        };
        let mut shape = vec![u64::from(height), u64::from(width)];
        if colors != 1 {
            shape.push(colors);
        }
        let bytes = element.array_bytes(&shape).filter(|bytes| (1..=MAX_PAYLOAD as u64).contains(bytes));
        let Some(bytes) = bytes else {
            return Err(unsupported_error(format!("it is {width} x {height} pixels: the limit is 1 GiB")));
        };
        // Pixels of fewer bits than a number has, and colours in separate planes, would have another layout.
        if usize::from(bits) != element.element_bytes() * 8 || layout.complete_len as u64 != bytes || layout.planes != 1
        {
            return Err(unsupported_error(format!(
                "its pixels of {bits} bits are not stored as whole numbers one after the other"
            )));
        }
        Ok(Self { element, shape, bytes: bytes as usize })
    }

    fn describe_shape(&self) -> String {
        let axes: Vec<String> = self.shape.iter().map(u64::to_string).collect();
        format!("{} of {}", axes.join(" x "), self.element)
    }
}

fn unsupported_error(problem: String) -> TiffError {
    TiffError::IoError(std::io::Error::other(problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Rate};
    use proptest::prelude::*;
    use std::io::Cursor;
    use thalweg_wire::{EventId, TaiNanos};
    use tiff::encoder::{Compression, DeflateLevel, TiffEncoder, colortype};

    type Encoder<'a> = TiffEncoder<Cursor<&'a mut Vec<u8>>>;

    fn stack(pages: &[[u16; 6]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let packing = Compression::Deflate(DeflateLevel::Fast);
        let mut encoder = TiffEncoder::new(Cursor::new(&mut bytes)).unwrap().with_compression(packing);
        for pixels in pages {
            encoder.write_image::<colortype::Gray16>(3, 2, pixels).unwrap();
        }
        bytes
    }

    fn sequence(files: &[&[u8]]) -> (tempfile::TempDir, TiffConfig) {
        let dir = tempfile::tempdir().unwrap();
        for (i, bytes) in files.iter().enumerate() {
            std::fs::write(dir.path().join(format!("frame-{i}.tif")), bytes).unwrap();
        }
        let files = vec![dir.path().to_owned()];
        (dir, TiffConfig { files, rate: Rate::new(10.0), looped: true })
    }

    #[test]
    fn pages_are_played_in_their_order_file_by_file_and_again() {
        let pages: Vec<[u16; 6]> = (0..5).map(|page| std::array::from_fn(|i| 1000 * page + i as u16)).collect();
        let (_dir, config) = sequence(&[&stack(&pages[..3]), &stack(&pages[3..])]);
        let mut device = open_pages(&config).unwrap();
        let description = device.description();
        assert_eq!((description.payload_type.as_str(), &description.shape), ("image-u16", &Some(vec![2, 3])));
        assert_eq!((description.width, description.height, description.records), (Some(3), Some(2), Some(5)));
        let mut payload = [0; 12];
        for event in 0..12 {
            let filled = device.fill_payload(EventId(event), &mut payload).unwrap();
            let pixels: Vec<u16> = payload.chunks(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
            assert_eq!(pixels, pages[event as usize % 5]);
            assert_eq!((filled.timestamp, filled.window), (Some(TaiNanos(event * 100_000_000)), 100_000_000));
        }
    }

    #[test]
    fn pixels_of_every_type_and_colours_have_their_shape() {
        let one = |write: &dyn Fn(&mut Encoder<'_>)| {
            let mut bytes = Vec::new();
            write(&mut TiffEncoder::new(Cursor::new(&mut bytes)).unwrap());
            let (_dir, config) = sequence(&[&bytes]);
            let mut device = open_pages(&config).unwrap();
            let mut payload = vec![0; device.max_payload_bytes()];
            device.fill_payload(EventId(0), &mut payload).unwrap();
            (device.description().payload_type.clone(), device.description().shape.clone().unwrap(), payload)
        };
        let float = one(&|tiff| tiff.write_image::<colortype::Gray32Float>(2, 1, &[1.5, -2.0]).unwrap());
        assert_eq!(float, ("image-f32".into(), vec![1, 2], [1.5f32.to_le_bytes(), (-2f32).to_le_bytes()].concat()));
        let wide = one(&|tiff| tiff.write_image::<colortype::Gray32>(1, 2, &[7, 1 << 31]).unwrap());
        assert_eq!(wide, ("image-u32".into(), vec![2, 1], vec![7, 0, 0, 0, 0, 0, 0, 128]));
        let signed = one(&|tiff| tiff.write_image::<colortype::GrayI8>(2, 1, &[-1, 1]).unwrap());
        assert_eq!(signed, ("image-i8".into(), vec![1, 2], vec![255, 1]));
        let colours = one(&|tiff| tiff.write_image::<colortype::RGB8>(1, 2, &[1, 2, 3, 4, 5, 6]).unwrap());
        assert_eq!(colours, ("image-u8".into(), vec![2, 1, 3], vec![1, 2, 3, 4, 5, 6]));
    }

    #[test]
    fn a_stack_with_one_page_for_all_is_refused() {
        let described = |text: &str| {
            let mut bytes = Vec::new();
            let mut encoder = TiffEncoder::new(Cursor::new(&mut bytes)).unwrap();
            let mut image = encoder.new_image::<colortype::Gray16>(3, 2).unwrap();
            image.encoder().write_tag(Tag::ImageDescription, text).unwrap();
            image.write_data(&[7; 6]).unwrap();
            open_pages(&sequence(&[&bytes]).1).map(|device| device.description().records)
        };
        for text in ["ImageJ=1.54f\nimages=10\nslices=10\n", "{\"shape\": [10, 2, 3], \"truncated\": true}"] {
            let error = described(text).unwrap_err().to_string();
            assert!(error.contains("announces 10 images, but it has only 1 pages"), "{error}");
        }
        for text in ["ImageJ=1.54f\nimages=1\n", "{\"shape\": [2, 3]}", "{\"shape\": [0]}", "a tube", "ImageJ=\n"] {
            assert_eq!(described(text).unwrap(), Some(1), "{text}");
        }
    }

    #[test]
    fn errors_name_the_file_and_the_page() {
        let refused = |files: &[&[u8]]| open_pages(&sequence(files).1).unwrap_err().to_string();
        assert!(refused(&[b"not a tiff"]).contains("page 0 of") && refused(&[b""]).contains("frame-0.tif"));
        let mut other = Vec::new();
        TiffEncoder::new(Cursor::new(&mut other)).unwrap().write_image::<colortype::Gray8>(3, 2, &[0; 6]).unwrap();
        let error = refused(&[&stack(&[[0; 6]]), &other]);
        assert!(
            error.contains("frame-1.tif is 2 x 3 of u8 on page 0, but") && error.contains("2 x 3 of u16"),
            "{error}"
        );
        assert!(open_pages(&TiffConfig { files: vec![], rate: None, looped: false }).is_err());
        let whole = stack(&[[0; 6], [1; 6]]);
        let mut looping = whole.clone();
        // The pointer in the second directory to the next one leads back to the first.
        let next = looping.len() - 4;
        looping[next..].copy_from_slice(&whole[4..8]);
        assert!(refused(&[&looping]).contains("page"), "{}", refused(&[&looping]));
    }

    proptest! {
        /// For any damage: played pages have the announced length, and the device never hangs.
        #[test]
        fn a_damaged_stack_is_played_or_refused(
            damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6),
            cut in any::<proptest::sample::Index>(),
        ) {
            let mut bytes = stack(&[[7; 6], [8; 6], [9; 6]]);
            for (place, value) in damage {
                let place = place.index(bytes.len());
                bytes[place] = value;
            }
            bytes.truncate(cut.index(bytes.len() * 2));
            let (_dir, config) = sequence(&[&bytes]);
            if let Ok(mut device) = open_pages(&config) {
                prop_assert!(device.max_payload_bytes() <= MAX_PAYLOAD);
                for event in 0..4 {
                    let Some(len) = device.next_payload_len().filter(|len| *len < 1 << 20) else { break };
                    let _ = device.fill_payload(EventId(event), &mut vec![0; len]);
                }
            }
        }
    }
}
