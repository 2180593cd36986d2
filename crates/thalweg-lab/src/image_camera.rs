//! A GigE Vision camera without hardware that sends given images at a rate of its own.
//!
//! The protocol is that of the emulator of the crate `telegenic`, an implementation independent of Thalweg's; this module
//! adds sockets, a clock and lost packets. `thalweg-lab camera` runs it, for rehearsals; its images are *simulated*.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use telegenic::emulator::{DeviceConfig, GigeDevice, mark_resent};

/// UDP port on which cameras listen.
const PORT: u16 = 3956;
/// Registers of the emulator: latching of the time, the latched time, control, acquisition.
const LATCH_REGISTER: u32 = 0x0944;
const TIME_REGISTER: u32 = 0x0948;
const PRIVILEGE_REGISTER: u32 = 0x0a00;
const ACQUISITION_REGISTER: u32 = 0x2008;
/// Number of frames that can be sent again.
const MAX_KEPT_FRAMES: u64 = 1000;
/// Time without a command after which the camera stops.
const HEARTBEAT_LIMIT: Duration = Duration::from_secs(30);

/// Properties of a camera.
#[derive(Debug, Clone)]
pub struct Model {
    /// Address of the camera, which this machine must have.
    pub address: Ipv4Addr,
    /// Serial number, by which a source finds it.
    pub serial: String,
    /// Pixels in a row.
    pub width: u32,
    /// Rows of pixels.
    pub height: u32,
    /// Frames per second.
    pub rate: f64,
    /// Number of packets lost in a thousand.
    pub lost: u64,
    /// True if it sends packets again on request.
    pub resends: bool,
    /// Condition for frames that are numbered and never sent.
    pub skips: fn(u64) -> bool,
    /// Images of 8-bit pixels, sent in turn; without any, those of [`image`].
    pub images: Vec<Vec<u8>>,
}

/// Camera in a thread of its own, in the network namespace in which it was started; it ends when this is dropped.
#[derive(Debug)]
pub struct Camera {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    frames: AtomicU64,
    lost: AtomicU64,
    resent: AtomicU64,
}

/// Returns a pixel of a test image, from which its position and frame can be computed.
pub fn pixel(at: u64, width: u64, frame: u64) -> u8 {
    ((at % width) + 3 * (at / width) + 7 * frame) as u8
}

/// Returns all pixels of a test image.
pub fn image(model: &Model, frame: u64) -> Vec<u8> {
    let (width, count) = (u64::from(model.width), u64::from(model.width) * u64::from(model.height));
    (0..count).map(|at| pixel(at, width, frame)).collect()
}

impl Camera {
    /// Starts a camera in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The camera's port cannot be bound: this machine lacks the address, or another camera has it.
    pub fn start(model: Model) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let control = UdpSocket::bind((model.address, PORT))?;
        let stream = UdpSocket::bind((model.address, 0))?;
        // Broadcasts are not delivered to a port of one address. All cameras of a host receive them.
        let all = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        all.set_reuse_address(true)?;
        all.bind(&SocketAddr::from((Ipv4Addr::BROADCAST, PORT)).into())?;
        let all = UdpSocket::from(all);
        for socket in [&control, &all] {
            socket.set_nonblocking(true)?;
        }
        let state = Host::new(model, control, all, stream, Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("camera".into()).spawn(move || state.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Stops the camera and returns the number of frames that it sent.
    pub fn end(mut self) -> u64 {
        self.stop();
        self.frames()
    }

    fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }

    /// Returns the number of frames sent so far.
    pub fn frames(&self) -> u64 {
        self.shared.frames.load(Ordering::Relaxed)
    }

    /// Returns the number of packets lost so far.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Returns the number of packets sent again so far.
    pub fn resent(&self) -> u64 {
        self.shared.resent.load(Ordering::Relaxed)
    }
}

impl Drop for Camera {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Host {
    model: Model,
    device: GigeDevice,
    control: UdpSocket,
    all: UdpSocket,
    stream: UdpSocket,
    shared: Arc<Shared>,
    /// State of the generator that selects lost packets: the same in every run.
    chance: u64,
    frame: u64,
    /// Start of its clock, and due times of the first and the next frame.
    begun: Instant,
    first: Instant,
    due: Option<Instant>,
    last_command: Instant,
    /// Test image of frame 0.
    canvas: Vec<u8>,
    /// Frame of which packets were requested last, and its packets.
    again: (u64, Vec<Vec<u8>>),
}

impl Host {
    fn new(model: Model, control: UdpSocket, all: UdpSocket, stream: UdpSocket, shared: Arc<Shared>) -> Self {
        let [.., c, d] = model.address.octets();
        let config = DeviceConfig {
            width: model.width,
            height: model.height,
            manufacturer: "Thalweg (simulated)".into(),
            model: "Cam".into(),
            serial: model.serial.clone(),
            mac: [2, 0, 0, 0, c, d],
            ..DeviceConfig::default()
        };
        let mut device = GigeDevice::new(model.address, &config);
        device.set_packet_resend(model.resends);
        let (canvas, again) = (Vec::new(), (0, Vec::new()));
        let (chance, now) = (u64::from(d) << 32 | 1, Instant::now());
        let (begun, first, last_command, due) = (now, now, now, None);
        Self {
            model,
            device,
            control,
            all,
            stream,
            shared,
            chance,
            frame: 0,
            begun,
            first,
            due,
            last_command,
            canvas,
            again,
        }
    }

    /// Returns the time of its clock, in nanoseconds.
    fn ticks(&self, at: Instant) -> u64 {
        5_000_000_000 + (at - self.begun).as_nanos() as u64
    }

    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let until = self.due.map_or(Duration::from_millis(50), |due| due.saturating_duration_since(Instant::now()));
            let time = Timespec::try_from(until.min(Duration::from_millis(50))).ok();
            let mut fds =
                [&self.control, &self.all].map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
            let _ = poll(&mut fds, time.as_ref());
            self.answer();
            if self.last_command.elapsed() > HEARTBEAT_LIMIT && self.device.read_reg(PRIVILEGE_REGISTER) != 0 {
                self.device.write_reg(PRIVILEGE_REGISTER, 0);
                self.device.write_reg(ACQUISITION_REGISTER, 0);
            }
            if self.device.read_reg(ACQUISITION_REGISTER) == 0 {
                self.due = None;
            }
            if self.due.is_some_and(|due| due <= Instant::now()) {
                self.send_frame();
            }
        }
    }

    fn answer(&mut self) {
        let mut room = [0; 1024];
        while let Ok((length, from)) = self.all.recv_from(&mut room) {
            // Only discovery is broadcast.
            if room[..length].get(2..4) == Some(&[0, 2])
                && let Some(reply) = self.device.handle_datagram(&room[..length], from).reply
            {
                let _ = self.control.send_to(&reply, from);
            }
        }
        while let Ok((length, from)) = self.control.recv_from(&mut room) {
            let reaction = self.device.handle_datagram(&room[..length], from);
            self.last_command = Instant::now();
            if self.device.read_reg(LATCH_REGISTER) & 2 != 0 {
                let ticks = self.ticks(self.last_command);
                self.device.write_reg(LATCH_REGISTER, 0);
                self.device.write_reg(TIME_REGISTER, (ticks >> 32) as u32);
                self.device.write_reg(TIME_REGISTER + 4, ticks as u32);
            }
            if let Some(reply) = reaction.reply {
                let _ = self.control.send_to(&reply, from);
            }
            if let (Some(size), Some(to)) = (reaction.fire_test, self.device.stream_dest()) {
                let _ = self.stream.send_to(&vec![0; usize::from(size).saturating_sub(28)], to);
            }
            if reaction.acquisition_started {
                (self.frame, self.first) = (0, Instant::now());
                self.due = Some(self.first);
            }
            if let Some(asked) = reaction.resend {
                let known = asked.frame_id <= self.frame && asked.frame_id + MAX_KEPT_FRAMES > self.frame;
                if !known {
                    continue;
                }
                if self.again.0 != asked.frame_id {
                    self.again = (asked.frame_id, self.packets(asked.frame_id));
                }
                let (first, last) = (asked.first_packet as usize, asked.last_packet as usize);
                let wanted: Vec<_> = self.again.1.iter().take(last + 1).skip(first).cloned().collect();
                for mut packet in wanted {
                    mark_resent(&mut packet);
                    self.shared.resent.fetch_add(1, Ordering::Relaxed);
                    self.send(&packet);
                }
            }
        }
    }

    fn send_frame(&mut self) {
        self.frame += 1;
        let period = Duration::from_secs_f64(1.0 / self.model.rate);
        self.due = self.due.map(|due| due + period);
        self.shared.frames.fetch_add(1, Ordering::Relaxed);
        if (self.model.skips)(self.frame) {
            return;
        }
        for packet in self.packets(self.frame) {
            self.send(&packet);
        }
    }

    fn packets(&mut self, frame: u64) -> Vec<Vec<u8>> {
        let since = (frame.saturating_sub(1) as f64 * 1e9 / self.model.rate) as u64;
        self.device.set_leader_timestamp_ns(self.ticks(self.first) + since);
        if let Some(turn) = frame.saturating_sub(1).checked_rem(self.model.images.len() as u64) {
            return self.device.frame_packets(frame, &self.model.images[turn as usize]);
        }
        if self.canvas.is_empty() {
            self.canvas = image(&self.model, 0);
        }
        // 7 times the frame's number is added to each pixel.
        let image: Vec<u8> = self.canvas.iter().map(|pixel| pixel.wrapping_add((7 * frame) as u8)).collect();
        self.device.frame_packets(frame, &image)
    }

    fn send(&mut self, packet: &[u8]) {
        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if (self.chance >> 33) % 1000 < self.model.lost {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if let Some(to) = self.device.stream_dest() {
            let _ = self.stream.send_to(packet, to);
        }
    }
}
