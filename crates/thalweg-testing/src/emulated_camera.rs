//! A GigE Vision camera in software, for tests: control by registers, features by a description, frames in packets, and
//! the faults that cameras have, when a test asks for them.
//!
//! It sends a frame when [`EmulatedCamera::expose_frame`] is called, so that the test decides which triggers the camera
//! receives. A frame's pixels begin with the number of its trigger.
//!
//! # Files
//!
//! | file | what is in it |
//! | --- | --- |
//! | `description` | The camera's description of its features (GenICam), and the addresses of their registers |

mod description;

use crate::emulated_camera::description as at;
use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// UDP port on which a camera listens.
const GVCP_PORT: u16 = 3956;
const CAPABILITY_REGISTER: u32 = 0x0934;
const HEARTBEAT_REGISTER: u32 = 0x0938;
const TICKS_LOW: u32 = 0x0940;
const TIME_CONTROL: u32 = 0x0944;
const LATCHED_TIME_REGISTER: u32 = 0x0948;
const PRIVILEGE_REGISTER: u32 = 0x0a00;
const STREAM_PORT: u32 = 0x0d00;
const STREAM_PACKET: u32 = 0x0d04;
const STREAM_ADDRESS: u32 = 0x0d18;
const FIRE_TEST: u32 = 1 << 31;
/// Bytes of the IP and UDP headers.
const IP_UDP_HEADER_BYTES: usize = 28;
/// Number of frames kept for sending again: those of some seconds at 60 Hz, for which a test's threads may be paused.
const MAX_KEPT_FRAMES: usize = 256;
/// Identifiers of the camera's chunks: the image, the time, the number of the trigger.
pub const CHUNK_IDS: [u32; 3] = [0x1000, 0x2001, 0x2002];

/// Properties of an emulated camera.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Address of the camera, which this machine must have.
    pub address: Ipv4Addr,
    /// Pixels in a row: 8 at least, which hold the trigger's number.
    pub width: u32,
    /// Number of rows of pixels.
    pub height: u32,
    /// True if it sends packets again on request.
    pub resends: bool,
    /// Nanoseconds by which its clock is ahead of TAI, and drift of its clock in parts per million.
    pub clock: (i64, i64),
    /// State of PTP that it reports, by its name in SFNC.
    pub ptp: &'static str,
    /// Longest heartbeat that it accepts, in milliseconds.
    pub longest_heartbeat: u32,
    /// True if it ends the control of an application that is silent for longer than the heartbeat.
    pub enforces_heartbeat: bool,
    /// Feature description; `None` for the usual one.
    pub description: Option<Vec<u8>>,
    /// Payload type in its leaders; `None` for an image.
    pub payload_kind: Option<u16>,
}

impl Settings {
    /// Returns the settings of a camera with images of 64 × 48 pixels.
    pub fn for_address(address: Ipv4Addr) -> Self {
        Self {
            address,
            width: 64,
            height: 48,
            resends: true,
            clock: (0, 0),
            ptp: "Disabled",
            longest_heartbeat: u32::MAX,
            enforces_heartbeat: true,
            description: None,
            payload_kind: None,
        }
    }
}

/// An emulated camera, switched off when this is dropped.
#[derive(Debug)]
pub struct EmulatedCamera {
    shared: Arc<Shared>,
    control: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    socket: UdpSocket,
    stream: UdpSocket,
    ends: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    memory: Vec<u8>,
    is_plugged: bool,
    /// Number of the last frame.
    block: u64,
    /// Frames that can be sent again: number and packets of each.
    kept: VecDeque<(u64, Vec<Vec<u8>>)>,
    resent: u64,
    /// Time of the last command.
    last_command: Instant,
    /// Sender of the last command that has an answer, its number, and that answer, which is sent again if the command
    /// is repeated.
    last_answer: Option<(SocketAddr, u16, Vec<u8>)>,
    /// Times at which the privilege register was read, as for the heartbeat.
    privilege_reads: Vec<Instant>,
}

impl EmulatedCamera {
    /// Switches a camera on.
    ///
    /// # Errors
    /// This machine does not have the address, or another camera uses it.
    pub fn switch_on(settings: Settings) -> io::Result<Self> {
        let socket = UdpSocket::bind((settings.address, GVCP_PORT))?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        let stream = UdpSocket::bind((settings.address, 0))?;
        let state = State::with_memory(initial_memory(&settings));
        let shared =
            Arc::new(Shared { settings, socket, stream, ends: AtomicBool::new(false), state: Mutex::new(state) });
        let own = Arc::clone(&shared);
        let control = std::thread::spawn(move || own.serve_control_channel());
        Ok(Self { shared, control: Some(control) })
    }

    /// Returns true if the camera has been started, and would send frames.
    pub fn is_acquiring(&self) -> bool {
        self.shared.lock_state().is_acquiring()
    }

    /// Waits until the camera has been started. Returns false if that takes longer than `timeout`.
    pub fn wait_until_acquiring(&self, timeout: Duration) -> bool {
        let begun = Instant::now();
        while !self.is_acquiring() {
            if begun.elapsed() > timeout {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// Exposes a frame for trigger `trigger` at `time`, nanoseconds of TAI, and sends its packets except those for
    /// which `is_lost` returns true: 0 is the leader, the last one the trailer. Returns false, and does nothing, if the
    /// camera is not acquiring.
    #[must_use]
    pub fn expose_frame(&self, trigger: u64, time: u64, is_lost: impl Fn(usize) -> bool) -> bool {
        let mut state = self.shared.lock_state();
        if !state.is_acquiring() {
            return false;
        }
        let is_wide = state.read_register(at::EXTENDED_ID_REGISTER) == 1;
        // 16-bit numbers skip 0.
        state.block = if !is_wide && state.block == 0xffff { 1 } else { state.block + 1 };
        let (block, kind) = (state.block, self.shared.settings.payload_kind);
        let packets = self.shared.frame_packets(&state, trigger, time, kind);
        let to = state.stream_destination();
        for packet in packets.iter().enumerate().filter(|(at, _)| !is_lost(*at)).map(|(_, packet)| packet) {
            let _ = self.shared.stream.send_to(packet, to);
        }
        state.kept.push_back((block, packets));
        if state.kept.len() > MAX_KEPT_FRAMES {
            state.kept.pop_front();
        }
        true
    }

    /// Counts a frame without sending it.
    pub fn skip_frame(&self) {
        let mut state = self.shared.lock_state();
        state.block = if state.read_register(at::EXTENDED_ID_REGISTER) == 0 && state.block == 0xffff {
            1
        } else {
            state.block + 1
        };
    }

    /// Sets the number of the last frame: that of the next one is one higher.
    pub fn set_last_block(&self, block: u64) {
        self.shared.lock_state().block = block;
    }

    /// Cuts network and power: all settings are lost.
    pub fn unplug(&self) {
        let mut state = self.shared.lock_state();
        state.is_plugged = false;
        state.memory = initial_memory(&self.shared.settings);
        state.block = 0;
        state.kept.clear();
        state.last_answer = None;
    }

    /// Restores network and power.
    pub fn plug_in(&self) {
        self.shared.lock_state().is_plugged = true;
    }

    /// Sets the reported state of PTP.
    ///
    /// # Panics
    /// SFNC has no state of this name.
    pub fn set_ptp_state(&self, name: &str) {
        let value = ptp_state_number(name);
        self.shared.lock_state().write_register(at::PTP_STATUS, value);
    }

    /// Returns the port to which the stream is sent; 0: no stream.
    pub fn stream_port(&self) -> u16 {
        self.shared.lock_state().stream_destination().port()
    }

    /// Returns the number of packets that were sent again.
    pub fn resent_packet_count(&self) -> u64 {
        self.shared.lock_state().resent
    }

    /// Returns the times between one reading of the privilege register and the next: those of the heartbeat.
    pub fn heartbeat_intervals(&self) -> Vec<Duration> {
        let state = self.shared.lock_state();
        state.privilege_reads.windows(2).map(|pair| pair[1].duration_since(pair[0])).collect()
    }

    /// Returns the heartbeat in effect.
    pub fn heartbeat_time(&self) -> Duration {
        Duration::from_millis(self.shared.lock_state().read_register(HEARTBEAT_REGISTER).into())
    }
}

impl Drop for EmulatedCamera {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        if let Some(control) = self.control.take() {
            let _ = control.join();
        }
    }
}

/// Returns the description of a camera without faults: GenICam's XML.
pub fn default_description() -> Vec<u8> {
    at::description_xml().into_bytes()
}

/// Returns the pixels of the frame of a trigger.
pub fn frame_pixels(trigger: u64, bytes: usize) -> Vec<u8> {
    let rest = (8..bytes as u64).map(|at| (at.wrapping_add(trigger) % 251) as u8);
    trigger.to_be_bytes().into_iter().chain(rest).collect()
}

fn ptp_state_number(name: &str) -> u32 {
    let state = at::PTP_STATES.into_iter().zip(0..).find(|(state, _)| *state == name);
    state.expect("a state of PTP").1
}

/// Returns the memory of a camera that was just switched on.
fn initial_memory(settings: &Settings) -> Vec<u8> {
    let xml = settings.description.clone().unwrap_or_else(default_description);
    let mut state = State::with_memory(vec![0; at::DESCRIPTION_ADDRESS as usize + xml.len().next_multiple_of(4)]);
    let [a, b, c, d] = settings.address.octets();
    state.write_memory(0x08, &[0, 0, 2, 0, a, b, c, d]);
    state.write_memory(0x24, &[a, b, c, d]);
    state.write_memory(0x48, b"Thalweg");
    state.write_memory(0x68, b"Emulated");
    state.write_memory(0xd8, format!("E{c}-{d}").as_bytes());
    let length = xml.len();
    state.write_memory(0x200, format!("Local:emulated.xml;{:x};{length:x}", at::DESCRIPTION_ADDRESS).as_bytes());
    state.write_memory(at::DESCRIPTION_ADDRESS, &xml);
    state.write_register(CAPABILITY_REGISTER, if settings.resends { 1 << 2 } else { 0 });
    state.write_register(HEARTBEAT_REGISTER, 3000.min(settings.longest_heartbeat));
    state.write_register(TICKS_LOW, 1_000_000_000);
    state.write_register(STREAM_PACKET, 1500);
    state.write_register(at::WIDTH_REGISTER, settings.width);
    state.write_register(at::HEIGHT_REGISTER, settings.height);
    state.write_register(at::PIXEL_FORMAT, 0x0108_0001);
    state.write_register(at::TRIGGER_MODE, 1);
    state.write_register(at::PTP_STATUS, ptp_state_number(settings.ptp));
    state.set_payload_size();
    state.memory
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
}

impl State {
    fn with_memory(memory: Vec<u8>) -> Self {
        Self {
            memory,
            is_plugged: true,
            block: 0,
            kept: VecDeque::new(),
            resent: 0,
            last_command: Instant::now(),
            last_answer: None,
            privilege_reads: Vec::new(),
        }
    }

    fn is_acquiring(&self) -> bool {
        self.is_plugged && self.read_register(at::ACQUISITION_REGISTER) == 1 && self.read_register(STREAM_PORT) != 0
    }

    fn read_register(&self, address: u32) -> u32 {
        let bytes = self.memory.get(address as usize..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
    }

    fn write_memory(&mut self, address: u32, bytes: &[u8]) {
        let at = address as usize;
        if let Some(place) = self.memory.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    fn write_register(&mut self, address: u32, value: u32) {
        self.write_memory(address, &value.to_be_bytes());
    }

    fn image_bytes(&self) -> usize {
        self.read_register(at::WIDTH_REGISTER) as usize * self.read_register(at::HEIGHT_REGISTER) as usize
    }

    fn set_payload_size(&mut self) {
        let chunks = if self.read_register(at::CHUNK_MODE_REGISTER) == 1 { 3 * 8 + 16 } else { 0 };
        let bytes = u32::try_from(self.image_bytes() + chunks).unwrap_or(u32::MAX);
        self.write_register(at::PAYLOAD_SIZE, bytes);
    }

    fn stream_destination(&self) -> SocketAddr {
        let port = u16::try_from(self.read_register(STREAM_PORT)).unwrap_or(0);
        (Ipv4Addr::from(self.read_register(STREAM_ADDRESS)), port).into()
    }
}

impl Shared {
    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value of the camera's clock at a time of TAI, in nanoseconds.
    fn clock_ticks(&self, time: u64) -> u64 {
        let (ahead, ppm) = self.settings.clock;
        // The drift restarts at each full hour of TAI, which keeps it small.
        let drift = (time % 3_600_000_000_000).cast_signed() / 1_000_000 * ppm;
        time.wrapping_add_signed(ahead + drift)
    }

    fn serve_control_channel(&self) {
        let mut room = [0; 2048];
        while !self.ends.load(Ordering::Relaxed) {
            let looked = Instant::now();
            match self.socket.recv_from(&mut room) {
                Ok((length, from)) => {
                    if let Some(answer) = self.answer_command(&room[..length], from) {
                        let _ = self.socket.send_to(&answer, from);
                    }
                }
                // This thread may have been paused: a command may have come since.
                Err(_) => self.expire_control(looked),
            }
        }
    }

    /// Ends the control of an application that was silent for longer than the heartbeat until `now`.
    fn expire_control(&self, now: Instant) {
        let mut state = self.lock_state();
        let heartbeat = Duration::from_millis(state.read_register(HEARTBEAT_REGISTER).into());
        let is_silent = now.saturating_duration_since(state.last_command) > heartbeat;
        if self.settings.enforces_heartbeat && is_silent && state.read_register(PRIVILEGE_REGISTER) != 0 {
            state.write_register(PRIVILEGE_REGISTER, 0);
            state.write_register(STREAM_PORT, 0);
        }
    }

    /// Executes a command unless it repeats the last one, and returns the answer.
    fn answer_command(&self, datagram: &[u8], from: SocketAddr) -> Option<Vec<u8>> {
        let number = u16::from_be_bytes(*datagram.get(6..)?.first_chunk()?);
        let mut state = self.lock_state();
        if !state.is_plugged {
            return None;
        }
        state.last_command = Instant::now();
        if let Some((.., answer)) = state.last_answer.as_ref().filter(|last| (last.0, last.1) == (from, number)) {
            return Some(answer.clone());
        }
        let answer = self.execute_command(&mut state, datagram, number)?;
        state.last_answer = Some((from, number, answer.clone()));
        Some(answer)
    }

    fn execute_command(&self, state: &mut State, datagram: &[u8], number: u16) -> Option<Vec<u8>> {
        let command = u16::from_be_bytes(*datagram.get(2..)?.first_chunk()?);
        let payload = match command {
            0x0002 => state.memory.get(..0xf8)?.to_vec(),
            0x0040 => {
                self.resend_packets(state, datagram);
                return None;
            }
            0x0080 => {
                let address = u32_at(datagram, 8)?;
                if address == PRIVILEGE_REGISTER {
                    state.privilege_reads.push(Instant::now());
                }
                state.read_register(address).to_be_bytes().to_vec()
            }
            0x0082 => {
                self.execute_register_write(state, u32_at(datagram, 8)?, u32_at(datagram, 12)?);
                vec![0, 0, 0, 1]
            }
            0x0084 => {
                let (address, count) = (u32_at(datagram, 8)?, u32_at(datagram, 12)? as usize);
                let memory = state.memory.get(address as usize..)?.iter().copied();
                address.to_be_bytes().into_iter().chain(memory.chain(std::iter::repeat(0)).take(count)).collect()
            }
            0x0086 => {
                let address = u32_at(datagram, 8)?;
                for (place, value) in datagram.get(12..)?.chunks_exact(4).enumerate() {
                    let value = u32::from_be_bytes(*value.first_chunk()?);
                    self.execute_register_write(state, address + u32::try_from(place).ok()? * 4, value);
                }
                vec![0, 0, 0, 1]
            }
            _ => return None,
        };
        let length = u16::try_from(payload.len()).ok()?;
        let head = [0, (command + 1), length, number];
        Some(head.into_iter().flat_map(u16::to_be_bytes).chain(payload).collect())
    }

    /// Writes a register.
    fn execute_register_write(&self, state: &mut State, address: u32, value: u32) {
        match address {
            HEARTBEAT_REGISTER => state.write_register(HEARTBEAT_REGISTER, value.min(self.settings.longest_heartbeat)),
            TIME_CONTROL if value & 2 != 0 => {
                let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
                let tai = u64::try_from(now).unwrap_or(0) + 37_000_000_000;
                state.write_memory(LATCHED_TIME_REGISTER, &self.clock_ticks(tai).to_be_bytes());
            }
            STREAM_PACKET => {
                state.write_register(STREAM_PACKET, value & 0xffff);
                if value & FIRE_TEST != 0 {
                    let bytes = (value as usize & 0xffff).saturating_sub(IP_UDP_HEADER_BYTES);
                    let _ = self.stream.send_to(&vec![0; bytes], state.stream_destination());
                }
            }
            at::ACQUISITION_REGISTER => {
                state.write_register(at::ACQUISITION_REGISTER, value);
                if value == 1 {
                    state.block = 0;
                }
            }
            // Read-only registers.
            at::PTP_STATUS | at::PAYLOAD_SIZE => {}
            _ => {
                state.write_register(address, value);
                state.set_payload_size();
            }
        }
    }

    fn resend_packets(&self, state: &mut State, datagram: &[u8]) {
        let (Some(channel), Some(first), Some(last)) =
            (u32_at(datagram, 8), u32_at(datagram, 12), u32_at(datagram, 16))
        else {
            return;
        };
        let wide = datagram.get(20..).and_then(|rest| rest.first_chunk()).map(|bytes| u64::from_be_bytes(*bytes));
        let block = wide.unwrap_or_else(|| u64::from(channel & 0xffff));
        let to = state.stream_destination();
        let Some((_, packets)) = state.kept.iter().find(|(number, _)| *number == block) else { return };
        let packets: Vec<Vec<u8>> = packets.iter().take(last as usize + 1).skip(first as usize).cloned().collect();
        for mut packet in packets {
            packet[..2].copy_from_slice(&[1, 0]);
            state.resent += 1;
            let _ = self.stream.send_to(&packet, to);
        }
    }

    /// Returns the packets of a frame: leader, payload, trailer.
    fn frame_packets(&self, state: &State, trigger: u64, time: u64, kind: Option<u16>) -> Vec<Vec<u8>> {
        let (is_wide, has_chunks) =
            (state.read_register(at::EXTENDED_ID_REGISTER) == 1, state.read_register(at::CHUNK_MODE_REGISTER) == 1);
        let ticks = self.clock_ticks(time);
        let mut bytes = frame_pixels(trigger, state.image_bytes());
        if has_chunks {
            let image = bytes.len() as u32;
            bytes.extend(chunk_tag(CHUNK_IDS[0], image));
            for (id, value) in [(CHUNK_IDS[1], ticks), (CHUNK_IDS[2], trigger)] {
                bytes.extend_from_slice(&value.to_be_bytes());
                bytes.extend(chunk_tag(id, 8));
            }
        }
        let kind = kind.unwrap_or(if has_chunks { 0x4001 } else { 0x0001 });
        let mut leader = packet_header(is_wide, state.block, 0, 1);
        leader.extend_from_slice(&[0, 0]);
        leader.extend_from_slice(&kind.to_be_bytes());
        leader.extend_from_slice(&ticks.to_be_bytes());
        for long in
            [0x0108_0001, state.read_register(at::WIDTH_REGISTER), state.read_register(at::HEIGHT_REGISTER), 0, 0, 0]
        {
            leader.extend_from_slice(&long.to_be_bytes());
        }
        let piece = (state.read_register(STREAM_PACKET) as usize)
            .saturating_sub(IP_UDP_HEADER_BYTES + if is_wide { 20 } else { 8 })
            .max(1);
        let mut packets = vec![leader];
        for part in bytes.chunks(piece) {
            packets.push([packet_header(is_wide, state.block, packets.len() as u32, 3), part.to_vec()].concat());
        }
        let mut trailer = packet_header(is_wide, state.block, packets.len() as u32, 2);
        trailer.extend_from_slice(&[0, 0]);
        trailer.extend_from_slice(&kind.to_be_bytes());
        trailer.extend_from_slice(&state.read_register(at::HEIGHT_REGISTER).to_be_bytes());
        packets.push(trailer);
        packets
    }
}

/// Returns the header of a packet, whose block number has 64 or 16 bits.
fn packet_header(is_wide: bool, block: u64, packet: u32, kind: u8) -> Vec<u8> {
    if is_wide {
        return [&[0, 0, 0, 0, 0x80 | kind, 0, 0, 0][..], &block.to_be_bytes(), &packet.to_be_bytes()].concat();
    }
    let (block, packet) = ((block as u16).to_be_bytes(), packet.to_be_bytes());
    vec![0, 0, block[0], block[1], kind, packet[1], packet[2], packet[3]]
}

/// Returns the tag after a chunk: its identifier, and its length in bytes.
fn chunk_tag(id: u32, length: u32) -> Vec<u8> {
    [id.to_be_bytes(), length.to_be_bytes()].concat()
}
