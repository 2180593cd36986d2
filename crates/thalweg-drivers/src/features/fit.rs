//! A device that fits copies of another's images.

use crate::features::FitConfig;
use crate::features::row::{FAILURES, Row};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use thalweg_device::{Acquired, Acquisition, Buffer, Copied, Copies, Description, DeviceError, Filled, Frame, Next};
use thalweg_image::{Calibration, Image, Pixels, Region};
use thalweg_wire::{Element, Meaning, PayloadType, Status};

/// Number of slots for rows, which are small and appear only when an image was fitted.
const SLOT_COUNT: u32 = 8;

/// A device that fits each image and runs by itself ([`Acquisition`]).
#[derive(Debug)]
pub struct Fit {
    config: FitConfig,
    description: Description,
    copies: Copies,
    /// Number of columns and rows, and the type of a pixel.
    width: usize,
    height: usize,
    pixel: Element,
    size: usize,
    reorders: u32,
    waiting: VecDeque<Buffer>,
    /// A copy that arrived when no buffer was free.
    held: Option<Copied>,
    /// Number after the highest one that the camera reported as copied, missed or lost.
    next: u64,
    fitted: u64,
    failed: u64,
    /// Memory for decoded pixels, kept for reuse.
    numbers: Numbers,
}

/// Pixels longer than a byte, in the processor's byte order.
#[derive(Debug, Default)]
struct Numbers {
    u16: Vec<u16>,
    f32: Vec<f32>,
    f64: Vec<f64>,
}

impl Numbers {
    /// Returns the pixels of a payload, which is little-endian.
    fn decode_pixels<'a>(&'a mut self, pixel: Element, bytes: &'a [u8]) -> Pixels<'a> {
        match pixel {
            Element::U16 => {
                decode_numbers(bytes, &mut self.u16, u16::from_le_bytes);
                (&self.u16[..]).into()
            }
            Element::F32 => {
                decode_numbers(bytes, &mut self.f32, f32::from_le_bytes);
                (&self.f32[..]).into()
            }
            Element::F64 => {
                decode_numbers(bytes, &mut self.f64, f64::from_le_bytes);
                (&self.f64[..]).into()
            }
            _ => bytes.into(),
        }
    }
}

/// Replaces the numbers in `out` by those of `bytes`, each made from `N` bytes.
fn decode_numbers<const N: usize, T>(bytes: &[u8], out: &mut Vec<T>, from_bytes: impl Fn([u8; N]) -> T) {
    out.clear();
    out.extend(bytes.as_chunks().0.iter().map(|chunk| from_bytes(*chunk)));
}

impl Fit {
    /// Creates a fit for copies from a device of this description, whose frames may be out of order by up to
    /// `reorders`.
    ///
    /// # Errors
    /// Fails if the device does not take images, or they do not contain the region that is to be fitted.
    pub fn new(config: &FitConfig, device: &Description, reorders: u32, copies: Copies) -> Result<Self, DeviceError> {
        let pixel = [Element::U8, Element::U16, Element::F32, Element::F64].into_iter().find(|element| {
            let types = [Meaning::Image, Meaning::Array].map(|meaning| PayloadType::new(meaning, *element));
            types.iter().any(|payload_type| payload_type.type_name() == device.payload_type)
        });
        let (Some([height, width]), Some(pixel)) = (device.shape.as_deref(), pixel) else {
            let shape = device.shape.as_ref().map(|shape| format!(" of shape {shape:?}")).unwrap_or_default();
            let payload_type = &device.payload_type;
            let problem =
                format!("its payloads are {payload_type}{shape}: only images of u8, u16, f32 or f64 can be fitted");
            return Err(fit_error(config, problem));
        };
        let (width, height) = (usize::try_from(*width).unwrap_or(0), usize::try_from(*height).unwrap_or(0));
        let row = Row::from_image(config, Err("damaged"));
        let fit = Self {
            description: Description {
                kind: "fit".into(),
                payload_type: PayloadType::for_array(Element::F64, 1).type_name().to_owned(),
                simulated: device.simulated,
                replayed: device.replayed,
                shape: Some(vec![row.names.len() as u64]),
                metadata: Some(serde_json::json!({
                    "of": config.of, "fit": config.fit, "features": row.names, "failures": FAILURES,
                })),
                ..Description::default()
            },
            config: config.clone(),
            copies,
            size: width.saturating_mul(height).saturating_mul(pixel.element_bytes()),
            width,
            height,
            pixel,
            reorders,
            waiting: VecDeque::new(),
            held: None,
            next: 0,
            fitted: 0,
            failed: 0,
            numbers: Numbers::default(),
        };
        let black = vec![0u8; width * height];
        fit.prepare_image((&black[..]).into()).map_err(|problem| fit_error(config, problem))?;
        Ok(fit)
    }

    fn prepare_image<'a>(&self, pixels: Pixels<'a>) -> Result<Image<'a>, String> {
        let mut image = Image::new(self.width, self.height, pixels).map_err(|error| error.to_string())?;
        if let Some(mm) = self.config.pixel_mm {
            image = image.with_calibration(Calibration { x: mm, y: mm }).map_err(|error| error.to_string())?;
        }
        if let Some([x, y, width, height]) = self.config.region {
            image = image.with_region(Region { x, y, width, height }).map_err(|error| format!("region: {error}"))?;
        }
        Ok(self.config.white.map_or(image, |white| image.saturating_at(white)))
    }

    fn fit_row(&mut self, copied: &Copied) -> Row {
        let damaged = copied.filled.status.intersects(Status::CORRUPT | Status::TRUNCATED | Status::MISSING);
        if damaged || copied.bytes.len() != self.size {
            return Row::from_image(&self.config, Err("damaged"));
        }
        let mut numbers = std::mem::take(&mut self.numbers);
        let image = self.prepare_image(numbers.decode_pixels(self.pixel, &copied.bytes));
        let row = Row::from_image(&self.config, image.as_ref().map_err(|_| "damaged"));
        self.numbers = numbers;
        row
    }
}

fn fit_error(config: &FitConfig, problem: String) -> DeviceError {
    DeviceError::Hardware { device: format!("fit of '{}'", config.of), problem }
}

impl Acquisition for Fit {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_payload_bytes(&self) -> usize {
        8 * self.description.shape.as_ref().map_or(0, |shape| shape[0] as usize)
    }

    fn max_posted_buffers(&self) -> u32 {
        SLOT_COUNT
    }

    fn reorder_depth(&self) -> u32 {
        self.reorders
    }

    fn post_buffer(&mut self, buffer: Buffer) {
        self.waiting.push_back(buffer);
    }

    fn poll_acquired(&mut self, _now: Duration) -> Result<Acquired, DeviceError> {
        // Losses of the camera are reported whether a buffer is free or not.
        let copied = match self.held.take().map_or_else(|| self.copies.take_next(), Next::Copied) {
            Next::Copied(copied) => copied,
            Next::Missed { first, count } => {
                self.next = self.next.max(first.saturating_add(count));
                return Ok(Acquired::Missed { first, count });
            }
            Next::Lost { first, count } => {
                self.next = self.next.max(first.saturating_add(count));
                return Ok(Acquired::Lost { first, count });
            }
            Next::Over { next } if next > self.next => {
                let (first, count) = (self.next, next - self.next);
                self.next = next;
                return Ok(Acquired::Lost { first, count });
            }
            Next::Over { .. } => return Ok(Acquired::Over),
            Next::NotYet => return Ok(Acquired::NotYet),
        };
        let Some(mut buffer) = self.waiting.pop_front() else {
            self.held = Some(copied);
            return Ok(Acquired::NotYet);
        };
        self.next = self.next.max(copied.number.saturating_add(1));
        let row = self.fit_row(&copied);
        let failed = row.values[0] != 0.0;
        self.failed += u64::from(failed);
        self.fitted += u64::from(!failed);
        let (len, filled, number) = (self.max_payload_bytes(), copied.filled, copied.number);
        self.copies.give_back_copy(copied);
        row.encode_into(&mut buffer.payload_mut()[..len]);
        let filled = Filled {
            payload_type: PayloadType::for_array(Element::F64, 1),
            status: filled.status & (Status::SIMULATED | Status::REPLAYED),
            ..filled
        };
        Ok(Acquired::Frame(Frame { buffer, number, len, filled, crc: None, copied: 0 }))
    }

    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.copies.readiness_fd())
    }

    fn has_room(&self) -> bool {
        !self.waiting.is_empty() || self.held.is_none()
    }

    fn report_counters(&self) -> Vec<(&'static str, u64)> {
        vec![("fitted", self.fitted), ("not_fitted", self.failed)]
    }
}
