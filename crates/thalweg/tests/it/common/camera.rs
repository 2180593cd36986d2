//! A camera to test with: another program's idea of one (`telegenic`'s emulator answers, and makes packets), with sockets,
//! a clock, and a network that loses packets where it is told to.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use telegenic::emulator::{DeviceConfig, GigeDevice, mark_resent};

/// Where cameras listen.
const PORT: u16 = 3956;
/// Of its registers: to note the time, and the time that was noted; whose it is; whether it acquires.
const NOTE_TIME: u32 = 0x0944;
const TIME: u32 = 0x0948;
const PRIVILEGE: u32 = 0x0a00;
const ACQUISITION: u32 = 0x2008;
/// Frames that it can send again.
const KEPT: u64 = 1000;
/// Without a word from its application it stops.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// What it is like.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) address: Ipv4Addr,
    pub(crate) serial: String,
    pub(crate) width: u32,
    pub(crate) height: u32,
    /// Frames per second.
    pub(crate) rate: f64,
    /// Of a thousand packets.
    pub(crate) lost: u64,
    /// Whether it sends packets again.
    pub(crate) resends: bool,
    /// Frames that it numbers and does not send at all.
    pub(crate) skips: fn(u64) -> bool,
    /// What it shows, in turn. Without any, what [`image`] makes.
    pub(crate) images: Vec<Vec<u8>>,
}

/// A camera in a thread of its own, on the network where it was made. Ends with the test.
#[derive(Debug)]
pub(crate) struct Camera {
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

/// A pixel of a frame, by which anyone can tell where it belongs.
pub(crate) fn pixel(at: u64, width: u64, frame: u64) -> u8 {
    ((at % width) + 3 * (at / width) + 7 * frame) as u8
}

/// All pixels of a frame.
pub(crate) fn image(model: &Model, frame: u64) -> Vec<u8> {
    let (width, count) = (u64::from(model.width), u64::from(model.width) * u64::from(model.height));
    (0..count).map(|at| pixel(at, width, frame)).collect()
}

impl Camera {
    /// Binds its ports on the calling thread's network.
    pub(crate) fn start(model: Model) -> Self {
        let shared = Arc::new(Shared::default());
        let control = UdpSocket::bind((model.address, PORT)).unwrap();
        let stream = UdpSocket::bind((model.address, 0)).unwrap();
        // What is for everybody does not come to a port of one address. Several cameras of one host hear it.
        let all = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
        all.set_reuse_address(true).unwrap();
        all.bind(&SocketAddr::from((Ipv4Addr::BROADCAST, PORT)).into()).unwrap();
        let all = UdpSocket::from(all);
        for socket in [&control, &all] {
            socket.set_nonblocking(true).unwrap();
        }
        let state = Host::new(model, control, all, stream, Arc::clone(&shared));
        Self { shared, thread: Some(std::thread::spawn(move || state.run())) }
    }

    /// Ends it. How many frames it has sent.
    pub(crate) fn end(mut self) -> u64 {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        self.frames()
    }

    pub(crate) fn frames(&self) -> u64 {
        self.shared.frames.load(Ordering::Relaxed)
    }

    pub(crate) fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    pub(crate) fn resent(&self) -> u64 {
        self.shared.resent.load(Ordering::Relaxed)
    }
}

impl Drop for Camera {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

struct Host {
    model: Model,
    device: GigeDevice,
    control: UdpSocket,
    all: UdpSocket,
    stream: UdpSocket,
    shared: Arc<Shared>,
    /// What decides which packets are lost: the same in every run.
    chance: u64,
    frame: u64,
    /// When its clock began, and when the first frame was due.
    begun: Instant,
    first: Instant,
    due: Option<Instant>,
    heard: Instant,
    /// One row more than an image, of which each image is a part.
    canvas: Vec<u8>,
    /// The frame that was last asked for again.
    again: (u64, Vec<Vec<u8>>),
}

impl Host {
    fn new(model: Model, control: UdpSocket, all: UdpSocket, stream: UdpSocket, shared: Arc<Shared>) -> Self {
        let [.., c, d] = model.address.octets();
        let config = DeviceConfig {
            width: model.width,
            height: model.height,
            manufacturer: "Testers".into(),
            model: "Cam".into(),
            serial: model.serial.clone(),
            mac: [2, 0, 0, 0, c, d],
            ..DeviceConfig::default()
        };
        let mut device = GigeDevice::new(model.address, &config);
        device.set_packet_resend(model.resends);
        let (canvas, again) = (Vec::new(), (0, Vec::new()));
        let (chance, now) = (u64::from(d) << 32 | 1, Instant::now());
        let (begun, first, heard, due) = (now, now, now, None);
        Self { model, device, control, all, stream, shared, chance, frame: 0, begun, first, due, heard, canvas, again }
    }

    /// A clock of its own, in nanoseconds.
    fn ticks(&self, at: Instant) -> u64 {
        5_000_000_000 + (at - self.begun).as_nanos() as u64
    }

    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let until = self.due.map_or(Duration::from_millis(50), |due| due.saturating_duration_since(Instant::now()));
            let time = Timespec::try_from(until.min(Duration::from_millis(50))).unwrap();
            let mut fds =
                [&self.control, &self.all].map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN));
            let _ = poll(&mut fds, Some(&time));
            self.answer();
            if self.heard.elapsed() > HEARTBEAT && self.device.read_reg(PRIVILEGE) != 0 {
                self.device.write_reg(PRIVILEGE, 0);
                self.device.write_reg(ACQUISITION, 0);
            }
            if self.device.read_reg(ACQUISITION) == 0 {
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
            // Only discovery is for everybody.
            if room[..length].get(2..4) == Some(&[0, 2])
                && let Some(reply) = self.device.handle_datagram(&room[..length], from).reply
            {
                let _ = self.control.send_to(&reply, from);
            }
        }
        while let Ok((length, from)) = self.control.recv_from(&mut room) {
            let reaction = self.device.handle_datagram(&room[..length], from);
            self.heard = Instant::now();
            if self.device.read_reg(NOTE_TIME) & 2 != 0 {
                let ticks = self.ticks(self.heard);
                self.device.write_reg(NOTE_TIME, 0);
                self.device.write_reg(TIME, (ticks >> 32) as u32);
                self.device.write_reg(TIME + 4, ticks as u32);
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
                let known = asked.frame_id <= self.frame && asked.frame_id + KEPT > self.frame;
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
