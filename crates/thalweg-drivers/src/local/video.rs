//! Cameras that the kernel has a driver for (V4L2): images into slots, and the driver's count of them.
//!
//! The driver writes into slots itself, if it can: they are DMA buffers that it takes (`V4L2_MEMORY_DMABUF`), or their
//! pages are its buffers (`V4L2_MEMORY_USERPTR`). Otherwise it has buffers of its own, and images are copied once
//! (`V4L2_MEMORY_MMAP`). The log states the way in use.

use crate::local::V4l2Config;
use crate::local::images::Images;
use crate::local::ioctl::send_request;
use crate::local::port::{Watch, file_error, invalid_input};
use crate::local::v4l2::{
    Buffers, CAN_CAPTURE, CAN_PACE, CAN_STREAM, CAPTURE, CLOCK, Capability, Control, DAMAGED, DEQUEUE, ENQUEUE, Format,
    FourCc, GROUP, MONOTONIC, Memory, NEXT_CONTROL, Pace, Place, QUERY, Setting, Stream,
};
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use thalweg_arena::DmaBuf;
use thalweg_device::{Acquired, Acquisition, Buffer, Description, DeviceError, Filled, Frame, TaiClock};
use thalweg_wire::{PayloadType, Status, TaiNanos};

/// Maximum number of images that may be under way.
const DEPTH: u32 = 8;
/// Time between two attempts to find a camera that was unplugged.
const REOPEN_INTERVAL: Duration = Duration::from_millis(200);

/// A camera with a video node.
#[derive(Debug)]
pub struct Video {
    // The order matters: a camera that is dropped writes no more to what is dropped next.
    camera: Option<Camera>,
    queued: Vec<Option<Buffer>>,
    waiting: VecDeque<Buffer>,
    config: V4l2Config,
    /// Best kind of memory that the driver has not been found to refuse.
    best: Memory,
    description: Description,
    payload_type: PayloadType,
    /// Format of the images.
    format: Format<false>,
    size: usize,
    /// Images that were finished when the camera was restarted.
    done: VecDeque<Frame>,
    watch: Watch,
    clock: TaiClock,
    started: bool,
    /// Time of the next attempt to find a camera that is gone.
    again: Duration,
    /// True if a warning was given that a different camera has taken the place of this one.
    warned_of_another: bool,
    images: Images,
    counts: Counts,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    images: u64,
    damaged: u64,
    lost_while_away: u64,
    unplugged: u64,
    begun_anew: u64,
}

/// An open camera. Dropping it ends all writing into buffers.
#[derive(Debug)]
struct Camera {
    fd: OwnedFd,
    format: Format<false>,
    memory: Memory,
    /// Mappings of the driver's own buffers.
    own: Vec<MmapRaw>,
}

impl Camera {
    /// Sets a camera up. `best` is the kind of memory that the driver is to write into; if the driver does not offer
    /// it, the next kind is used.
    fn open(config: &V4l2Config, best: Memory) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = open(&config.file, flags, Mode::empty())?;
        let mut capability = Capability::default();
        send_request(fd.as_fd(), &mut capability).map_err(|_| invalid_input("it is not a video device"))?;
        if capability.device & CAN_CAPTURE == 0 || capability.device & CAN_STREAM == 0 {
            return Err(invalid_input("it cannot capture images"));
        }
        let mut format = Format::<false>::default();
        send_request(fd.as_fd(), &mut format)?;
        format.width = config.width.unwrap_or(format.width);
        format.height = config.height.unwrap_or(format.height);
        if let Some(letters) = &config.format {
            format.pixels = FourCc::parse_letters(letters).ok_or_else(|| {
                invalid_input(format!(
                    "format = {letters:?}: write one to four letters, such as \"GREY\" (v4l2-ctl --list-formats)"
                ))
            })?;
        }
        // The lengths follow from the pixels, and not from the previous format.
        (format.line, format.size) = (0, 0);
        let mut set = format.to_request();
        send_request(fd.as_fd(), &mut set).map_err(|error| match error {
            Errno::BUSY => io::Error::new(io::ErrorKind::ResourceBusy, "another program uses it"),
            error => error.into(),
        })?;
        let given = set.to_reported();
        if (given.width, given.height, given.pixels) != (format.width, format.height, format.pixels) {
            return Err(invalid_input(format!(
                "it has no images of {} × {} {}; the nearest are {} × {} {}: set width, height and format to a \
                 supported combination (v4l2-ctl --list-formats-ext)",
                format.width, format.height, format.pixels, given.width, given.height, given.pixels
            )));
        }
        let mut camera = Self { fd, format: given, memory: best, own: Vec::new() };
        camera.set_controls(config)?;
        if let Some(rate) = config.rate {
            camera.set_frame_rate(rate.hertz(), &config.file.display())?;
        }
        // A request for 0 buffers shows whether the driver offers this kind.
        while camera.request_buffers(0).is_err()
            && let Some(next) = next_memory(camera.memory)
        {
            camera.memory = next;
        }
        Ok(camera)
    }

    fn set_controls(&self, config: &V4l2Config) -> io::Result<()> {
        let mut left: Vec<(&String, &i64)> = config.controls.iter().collect();
        let mut known = Vec::new();
        let mut control = Control { id: NEXT_CONTROL, ..Control::default() };
        while !left.is_empty() && send_request(self.fd.as_fd(), &mut control).is_ok() {
            let name = control.option_name();
            if let Some(at) = left.iter().position(|(wanted, _)| **wanted == name && control.kind != GROUP) {
                let (_, value) = left.swap_remove(at);
                let mut setting = Setting { id: control.id, value: i32::try_from(*value).unwrap_or(0) };
                // The kernel adapts a value that is out of range, without an error (v4l2_s_ctrl).
                let set = send_request(self.fd.as_fd(), &mut setting);
                if set.is_err() || i64::from(setting.value) != *value {
                    let (least, most) = (control.least, control.most);
                    let error = set.map_or_else(|error| format!("{error}; "), |_| String::new());
                    return Err(invalid_input(format!(
                        "controls.{name} = {value}: {error}it must be {least} to {most}"
                    )));
                }
            }
            // The name of a group of controls is not a control (`V4L2_CTRL_TYPE_CTRL_CLASS`).
            if control.kind != GROUP {
                known.push(name);
            }
            control = Control { id: control.id | NEXT_CONTROL, ..Control::default() };
        }
        match left.first() {
            None => Ok(()),
            Some((name, _)) => {
                Err(invalid_input(format!("controls.{name} does not exist; the controls are {}", known.join(", "))))
            }
        }
    }

    /// Returns the number of images per second, or `None` if the driver does not state it.
    fn frame_rate(&self) -> Option<f64> {
        let mut pace = Pace::<false>::default();
        send_request(self.fd.as_fd(), &mut pace).ok()?;
        let [seconds, images] = pace.period;
        (pace.can & CAN_PACE != 0 && seconds > 0 && images > 0).then(|| f64::from(images) / f64::from(seconds))
    }

    fn set_frame_rate(&self, hertz: f64, file: &dyn std::fmt::Display) -> io::Result<()> {
        let mut pace = Pace::<false>::default();
        send_request(self.fd.as_fd(), &mut pace)?;
        if pace.can & CAN_PACE == 0 {
            return Err(invalid_input("its rate cannot be set: remove `rate`"));
        }
        let mut set = Pace::<true>::default();
        set.period = [1_000_000, (hertz * 1e6).round() as u32];
        send_request(self.fd.as_fd(), &mut set)?;
        let has = f64::from(set.period[1]) / f64::from(set.period[0].max(1));
        if (has - hertz).abs() > hertz * 0.01 {
            tracing::warn!("{file}: it takes {has:.2} images per second instead of {hertz:.2}");
        }
        Ok(())
    }

    /// Requests `count` buffers, and returns the number that there are.
    fn request_buffers(&self, count: u32) -> Result<u32, Errno> {
        let mut buffers = Buffers { count, kind: CAPTURE, memory: self.memory as u32, ..Buffers::default() };
        send_request(self.fd.as_fd(), &mut buffers).map(|_| buffers.count)
    }

    /// Makes buffers, and returns their number.
    fn prepare_buffers(&mut self) -> io::Result<u32> {
        let count = self.request_buffers(DEPTH)?;
        if self.memory != Memory::Own {
            return Ok(count);
        }
        for index in 0..count {
            let mut place = Place::<QUERY>::for_buffer(index, Memory::Own);
            send_request(self.fd.as_fd(), &mut place)?;
            let map = MmapOptions::new().offset(place.mapping_offset()).len(place.length as usize).map_raw(&self.fd)?;
            self.own.push(map);
            self.requeue_buffer(index)?;
        }
        Ok(count)
    }

    /// Gives the driver one of its own buffers to write into.
    fn requeue_buffer(&self, index: u32) -> Result<(), Errno> {
        send_request(self.fd.as_fd(), &mut Place::<ENQUEUE>::for_buffer(index, Memory::Own)).map(|_| ())
    }

    /// Gives the driver a slot to write into.
    ///
    /// # Safety
    /// The buffer must not be used in any way until the driver gives it back, or this camera was dropped.
    unsafe fn queue_slot(&self, index: u32, buffer: &mut Buffer) -> Result<(), Errno> {
        let mut place = if self.memory == Memory::DmaBufs {
            let dma_buf = buffer.dma_buf_mut().ok_or(Errno::NOTSUP)?;
            dma_buf.end_reading()?;
            let length = u32::try_from(dma_buf.length_bytes()).unwrap_or(u32::MAX);
            // SAFETY: it contains the payload's bytes; the caller promises the rest.
            unsafe { Place::for_dma_buf(index, dma_buf.as_fd(), length) }
        } else {
            let payload = buffer.payload_mut();
            let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
            // SAFETY: these are the payload's bytes; the caller promises the rest.
            unsafe { Place::for_pages(index, payload.as_mut_ptr(), length) }
        };
        send_request(self.fd.as_fd(), &mut place).map(|_| ())
    }

    /// Gives the driver as many slots as it takes; a slot that the driver refuses stays in `waiting`.
    fn queue_slots(&self, queued: &mut [Option<Buffer>], waiting: &mut VecDeque<Buffer>) -> Result<(), Errno> {
        for (place, index) in queued.iter_mut().zip(0..).filter(|(place, _)| place.is_none()) {
            let Some(mut buffer) = waiting.pop_front() else { break };
            // SAFETY: the buffer is put into `queued`, where it stays until the driver gives it back, or the camera was
            // dropped: `Video` releases queued buffers only after that.
            match unsafe { self.queue_slot(index, &mut buffer) } {
                Ok(()) => *place = Some(buffer),
                Err(error) => {
                    waiting.push_front(buffer);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn dequeue_buffer(&self) -> Result<Place<DEQUEUE>, Errno> {
        let mut place = Place::for_buffer(0, self.memory);
        send_request(self.fd.as_fd(), &mut place).map(|_| place)
    }
}

impl Drop for Camera {
    fn drop(&mut self) {
        // The driver writes into no buffer after this (vb2_core_streamoff). If the device is gone and does not answer,
        // closing the file, which follows, ends the writing (vb2_fop_release).
        let _ = send_request(self.fd.as_fd(), &mut Stream::<false>(CAPTURE));
        let _ = self.request_buffers(0);
    }
}

/// Returns the kind of memory to try after a driver has refused this one.
fn next_memory(memory: Memory) -> Option<Memory> {
    match memory {
        Memory::DmaBufs => Some(Memory::Pages),
        Memory::Pages => Some(Memory::Own),
        Memory::Own => None,
    }
}

/// Returns true if the error means that the camera is gone, or about to go.
fn is_gone_error(error: Errno) -> bool {
    matches!(error, Errno::NODEV | Errno::NXIO | Errno::NOENT | Errno::IO)
}

fn memory_description(memory: Memory) -> &'static str {
    match memory {
        Memory::DmaBufs => "images are written into slots by its driver, as DMA buffers (V4L2_MEMORY_DMABUF)",
        Memory::Pages => "images are written into slots by its driver, as pages (V4L2_MEMORY_USERPTR)",
        Memory::Own => "images are copied once, into slots (V4L2_MEMORY_MMAP)",
    }
}

impl Video {
    /// Opens the camera that a topology names, and sets it up as configured.
    ///
    /// # Errors
    /// Fails if the file does not exist, is no camera, or lacks a configured format or control.
    pub fn open(config: &V4l2Config) -> Result<Self, DeviceError> {
        let dma_bufs = DmaBuf::probe_support();
        let best = if dma_bufs.is_ok() { Memory::DmaBufs } else { Memory::Pages };
        let mut camera = Camera::open(config, best).map_err(|error| file_error("opening", &config.file, error))?;
        let count =
            camera.prepare_buffers().map_err(|error| file_error("allocating buffers of", &config.file, error))?;
        let watch = Watch::new(&camera.fd).map_err(|error| file_error("waiting for", &config.file, error))?;
        let format = camera.format;
        let Format { width, height, pixels, line, size, .. } = format;
        let deep = [b"Y16 ", b"Y14 ", b"Y12 ", b"Y10 "].contains(&&pixels.0);
        let payload_type = match &pixels.0 {
            b"GREY" if line == width && size == width * height => PayloadType::IMAGE_U8,
            _ if deep && line == 2 * width && size == 2 * width * height => PayloadType::IMAGE_U16,
            _ => PayloadType::RAW,
        };
        let image = payload_type != PayloadType::RAW;
        let description = Description {
            kind: "v4l2".into(),
            payload_type: payload_type.type_name().to_owned(),
            fragment_rate: camera.frame_rate(),
            width: image.then_some(width),
            height: image.then_some(height),
            shape: image.then(|| vec![height.into(), width.into()]),
            record_bytes: Some(size.into()),
            file: Some(config.file.display().to_string()),
            metadata: Some(serde_json::json!({
                "pixel_format": pixels.to_string(), "width": width, "height": height, "bytes_per_line": line,
            })),
            ..Description::default()
        };
        tracing::info!("{}: {width} × {height} {pixels}, {}", config.file.display(), memory_description(camera.memory));
        if let (Memory::Own, Err(error)) = (camera.memory, dma_bufs) {
            tracing::info!("its driver could write into slots if /dev/udmabuf could be opened: {error}");
        }
        Ok(Self {
            queued: (0..count).map(|_| None).collect(),
            best: camera.memory,
            camera: Some(camera),
            waiting: VecDeque::new(),
            config: config.clone(),
            images: Images::new(description.fragment_rate),
            description,
            payload_type,
            format,
            size: size as usize,
            done: VecDeque::new(),
            watch,
            clock: TaiClock,
            started: false,
            again: Duration::ZERO,
            warned_of_another: false,
            counts: Counts::default(),
        })
    }

    fn file_error(&self, doing: &'static str, error: impl Into<io::Error>) -> DeviceError {
        file_error(doing, &self.config.file, error)
    }

    /// Gives the driver as many buffers as it takes.
    fn queue_buffers(&mut self, now: Duration) -> Result<(), DeviceError> {
        let Some(camera) = self.camera.as_ref().filter(|camera| camera.memory != Memory::Own) else { return Ok(()) };
        match camera.queue_slots(&mut self.queued, &mut self.waiting) {
            Ok(()) => Ok(()),
            Err(error) if is_gone_error(error) => {
                self.handle_unplugged();
                Ok(())
            }
            Err(error) => self.lower_memory(error, now),
        }
    }

    /// Restarts the camera with the next kind of memory, after the driver has refused slots: they are not contiguous,
    /// or are no DMA buffers.
    fn lower_memory(&mut self, error: Errno, now: Duration) -> Result<(), DeviceError> {
        let Some(next) = next_memory(self.best) else { return Err(self.file_error("passing a slot to", error)) };
        while let Ok(Some(frame)) = self.take_image(now) {
            self.done.push_back(frame);
        }
        self.counts.begun_anew += u64::from(self.counts.images > 0);
        self.release_camera();
        let camera = match Camera::open(&self.config, next) {
            Ok(camera) => camera,
            Err(error) if Errno::from_io_error(&error).is_some_and(is_gone_error) => {
                self.handle_unplugged();
                return Ok(());
            }
            Err(error) => return Err(self.file_error("opening", error)),
        };
        tracing::warn!(
            "{}: slots are refused ({error}); {}",
            self.config.file.display(),
            memory_description(camera.memory)
        );
        self.best = camera.memory;
        self.adopt_camera(camera).map_err(|error| self.file_error("allocating buffers of", error))?;
        self.begin_capture(now)
    }

    /// Queues buffers, and starts the capture.
    fn begin_capture(&mut self, now: Duration) -> Result<(), DeviceError> {
        self.queue_buffers(now)?;
        // If slots were refused, the capture has begun already.
        let may_begin = self.started && !self.images.has_begun();
        let Some(camera) = self.camera.as_ref().filter(|_| may_begin) else { return Ok(()) };
        match send_request(camera.fd.as_fd(), &mut Stream::<true>(CAPTURE)) {
            Ok(_) => {
                self.images.begin_capture(now, self.driver_buffers());
                Ok(())
            }
            Err(error) if is_gone_error(error) => {
                self.handle_unplugged();
                Ok(())
            }
            Err(error) => Err(self.file_error("starting", error)),
        }
    }

    fn release_camera(&mut self) {
        self.camera = None;
        self.waiting.extend(self.queued.iter_mut().filter_map(Option::take));
        self.images.end_capture();
    }

    /// Returns the first number and the count of the images that the camera would have sent by now while it was away:
    /// they are lost.
    fn count_lost(&mut self, now: Duration) -> Option<(u64, u64)> {
        let lost = self.images.lost_while_away(now);
        self.counts.lost_while_away += lost.map_or(0, |(_, count)| count);
        lost
    }

    /// Returns the number of buffers that the driver has.
    fn driver_buffers(&self) -> usize {
        let own = self.camera.as_ref().map_or(0, |camera| camera.own.len());
        own + self.queued.iter().flatten().count()
    }

    fn adopt_camera(&mut self, mut camera: Camera) -> io::Result<()> {
        let count = camera.prepare_buffers()?;
        self.watch.add_file(&camera.fd)?;
        self.queued = (0..count).map(|_| None).collect();
        self.camera = Some(camera);
        Ok(())
    }

    /// Notes that the camera is gone, and frees its buffers.
    fn handle_unplugged(&mut self) {
        tracing::warn!("{} was unplugged; waiting for it", self.config.file.display());
        self.release_camera();
        self.counts.unplugged += 1;
    }

    fn reopen_camera(&mut self, now: Duration) {
        if now < self.again {
            return;
        }
        self.again = now + REOPEN_INTERVAL;
        let Ok(camera) = Camera::open(&self.config, self.best) else { return };
        let file = self.config.file.display();
        if !camera.format.has_format_of(&self.format) {
            if !std::mem::replace(&mut self.warned_of_another, true) {
                let Format { width, height, pixels, .. } = camera.format;
                tracing::warn!("{file} is back, but with images of {width} × {height} {pixels}: it is not used");
            }
            return;
        }
        self.images.set_frame_rate(camera.frame_rate());
        // The plug may have a loose contact: the search goes on.
        if self.adopt_camera(camera).and_then(|()| self.begin_capture(now).map_err(io::Error::other)).is_err() {
            return self.release_camera();
        }
        if self.camera.is_some() {
            tracing::info!("{} is back", self.config.file.display());
            self.warned_of_another = false;
        }
    }

    /// Returns the next finished image; `None` if there is none, or the camera is gone.
    fn take_image(&mut self, now: Duration) -> Result<Option<Frame>, DeviceError> {
        while self.has_room() {
            let Some(camera) = &self.camera else { break };
            let place = match camera.dequeue_buffer() {
                Ok(place) => place,
                Err(Errno::AGAIN) => {
                    self.images.record_empty(now, self.driver_buffers());
                    break;
                }
                Err(Errno::PIPE) => break,
                Err(error) if is_gone_error(error) => {
                    self.handle_unplugged();
                    break;
                }
                Err(error) => return Err(self.file_error("taking an image from", error)),
            };
            let (is_damaged, is_dated) = (place.flags & DAMAGED != 0, place.flags & CLOCK == MONOTONIC);
            let taken = Duration::new(
                u64::try_from(place.seconds).unwrap_or(0),
                u32::try_from(place.micros).unwrap_or(0).saturating_mul(1000),
            );
            let dated = Some(taken).filter(|taken| is_dated && !taken.is_zero());
            // A buffer that was never written to: drivers give such buffers back if a transfer failed or the camera is
            // gone. Some state its length all the same, and no time. Such a buffer's sequence number is not valid.
            let empty = is_damaged && (place.used == 0 || is_dated && dated.is_none());
            let len = (place.used as usize).min(self.size);
            let (buffer, copied) = match camera.own.get(place.index as usize) {
                None => {
                    let mut buffer = self.queued.get_mut(place.index as usize).and_then(Option::take);
                    let dma_buf =
                        buffer.as_mut().filter(|_| camera.memory == Memory::DmaBufs).and_then(Buffer::dma_buf_mut);
                    if let Some(Err(error)) = dma_buf.map(DmaBuf::begin_reading) {
                        return Err(self.file_error("reading a DMA buffer of", error));
                    }
                    (buffer, 0)
                }
                Some(own) => {
                    let len = len.min(own.len());
                    let mut buffer = self.waiting.pop_front();
                    if let Some(buffer) = &mut buffer {
                        let payload = &mut buffer.payload_mut()[..len];
                        // SAFETY: the driver's buffer is mapped for at least `len` bytes, and no one writes into it
                        // until it is given back.
                        unsafe { std::ptr::copy_nonoverlapping(own.as_ptr(), payload.as_mut_ptr(), len) };
                    }
                    // That the camera is gone is noticed when the next image is taken.
                    match camera.requeue_buffer(place.index) {
                        Err(error) if !is_gone_error(error) => {
                            return Err(self.file_error("returning a buffer to", error));
                        }
                        _ => (buffer, len),
                    }
                }
            };
            let Some(buffer) = buffer else { break };
            if empty {
                self.counts.damaged += 1;
                self.images.record_unfilled();
                self.waiting.push_front(buffer);
                continue;
            }
            self.count_lost(now);
            let (number, is_certain) = self.images.number_image(place.sequence, dated, now);
            let mut filled = self.header_values(&place);
            filled.status.set(Status::UNCERTAIN, !is_certain);
            return Ok(Some(Frame { buffer, number, len, filled, crc: None, copied }));
        }
        Ok(None)
    }

    fn header_values(&mut self, place: &Place<DEQUEUE>) -> Filled {
        let damaged = place.flags & DAMAGED != 0 || place.used as usize > self.size;
        self.counts.damaged += u64::from(damaged);
        self.counts.images += 1;
        let status = if damaged { Status::CORRUPT } else { Status::empty() };
        let dated = (place.seconds, place.micros) != (0, 0);
        let timestamp = (place.flags & CLOCK == MONOTONIC && dated).then(|| {
            let now = clock_gettime(ClockId::Monotonic);
            let [now, taken] = [(now.tv_sec, now.tv_nsec), (place.seconds, place.micros * 1000)]
                .map(|(seconds, nanos)| i128::from(seconds) * 1_000_000_000 + i128::from(nanos));
            let age = now - taken;
            TaiNanos(self.clock.now().0.saturating_sub(u64::try_from(age).unwrap_or(0)))
        });
        Filled { payload_type: self.payload_type, status, window: 0, timestamp }
    }
}

impl Acquisition for Video {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_payload_bytes(&self) -> usize {
        self.size
    }

    fn max_posted_buffers(&self) -> u32 {
        DEPTH
    }

    fn takes_dma_bufs(&self) -> bool {
        self.best == Memory::DmaBufs
    }

    fn post_buffer(&mut self, buffer: Buffer) {
        self.waiting.push_back(buffer);
    }

    fn start_acquisition(&mut self, _at: TaiNanos) -> Result<(), DeviceError> {
        self.started = true;
        let now = clock_gettime(ClockId::Monotonic);
        self.begin_capture(Duration::new(
            u64::try_from(now.tv_sec).unwrap_or(0),
            u32::try_from(now.tv_nsec).unwrap_or(0),
        ))
    }

    fn poll_acquired(&mut self, now: Duration) -> Result<Acquired, DeviceError> {
        if self.camera.is_none() {
            self.reopen_camera(now);
        }
        let done = self.done.pop_front();
        let next = if done.is_some() { done } else { self.take_image(now)? };
        self.queue_buffers(now)?;
        Ok(match next {
            Some(frame) => Acquired::Frame(frame),
            None => match self.count_lost(now) {
                Some((first, count)) => Acquired::Lost { first, count },
                None => Acquired::NotYet,
            },
        })
    }

    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watch.as_fd())
    }

    /// Returns false while no buffer is queued: the driver would report an error again and again (vb2_core_poll).
    fn has_room(&self) -> bool {
        match &self.camera {
            None => false,
            Some(camera) if camera.memory != Memory::Own => self.queued.iter().any(Option::is_some),
            Some(_) => !self.waiting.is_empty(),
        }
    }

    fn is_away(&self) -> bool {
        self.camera.is_none()
    }

    fn next_poll_time(&self) -> Option<Duration> {
        if !self.done.is_empty() {
            return Some(Duration::ZERO);
        }
        (self.started && self.camera.is_none()).then_some(self.again)
    }

    fn confirm_numbers(&mut self, first: u64) {
        self.images.confirm_numbers(first);
    }

    fn report_counters(&self) -> Vec<(&'static str, u64)> {
        let Counts { images, damaged, lost_while_away, unplugged, begun_anew } = self.counts;
        vec![
            ("images", images),
            ("damaged", damaged),
            ("lost_while_away", lost_while_away),
            ("unplugged", unplugged),
            ("begun_anew", begun_anew),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_letters_are_as_v4l2_ctl_has_them() {
        let mut control = Control::default();
        control.name[..20].copy_from_slice(b"White Balance, Auto\0");
        assert_eq!(control.option_name(), "white_balance_auto");
        assert_eq!(FourCc::parse_letters("Y16").unwrap().to_string(), "Y16");
        assert!(
            FourCc::parse_letters("").is_none()
                && FourCc::parse_letters("GREYS").is_none()
                && FourCc::parse_letters("ü").is_none()
        );
    }

    #[test]
    fn what_is_no_camera_is_refused() {
        let config = |file: &str| toml::from_str::<V4l2Config>(&format!("file = {file:?}")).unwrap();
        for (file, why) in [("/dev/null", "it is not a video device"), ("/dev/no-video", "No such file")] {
            let error = Video::open(&config(file)).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(file), "{error}");
        }
    }
}
