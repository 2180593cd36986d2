//! Control of one camera, in a thread of its own: discovery, control privilege, setup, start, heartbeat, loss and
//! reconnection. The hot thread is informed by [`News`].

use crate::GigeConfig;
use crate::assembler::Stream;
use crate::channel::{Channel, ResendSocket};
use crate::discovery;
use crate::features::Features;
use crate::gvcp::Refusal;
use crate::gvsp::IP_UDP_HEADER_BYTES;
use crate::pixels::{self, Pixels};
use crate::registers::{self, CameraInfo};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::time::{Duration, Instant};
use thalweg_device::{DeviceClock, DeviceError, TaiClock};
use thalweg_wire::Status;

/// Stack of the control thread, in bytes: evaluating a stranger's formulas recurses deeply. Only the part used is
/// allocated.
pub(crate) const CONTROL_STACK_BYTES: usize = 256 << 20;
/// Time after which the search for a camera is given up.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(2);
/// Time between attempts to reconnect to a camera.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Time that taking control from an application that is gone may need: the end of its heartbeat.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(5);
/// Features that give a camera's own rate: resulting rates first, then requested ones.
const RATES: [&str; 6] = [
    "AcquisitionResultingFrameRate",
    "ResultingFrameRate",
    "ResultingFrameRateAbs",
    "BslResultingAcquisitionFrameRate",
    "AcquisitionFrameRate",
    "AcquisitionFrameRateAbs",
];
/// Sizes of test packets in bytes: the shortest, which every network path carries (section 11.6), and the longest that
/// is tried.
const MIN_PACKET_BYTES: u32 = 576;
const MAX_PACKET_BYTES: u32 = 9000;
/// Time that a test packet is waited for.
const TEST_PACKET_TIMEOUT: Duration = Duration::from_millis(60);
/// Shortest time for which the port of test packets is looked at: this thread may be paused until their time is over.
const MIN_LOOK_TIME: Duration = Duration::from_millis(1);
/// Number of other packets at that port that may wait before a test packet.
const MAX_OTHER_PACKETS: usize = 64;
/// Number of readings of the camera's clock: the one with the quickest answer is used.
const CLOCK_READING_COUNT: usize = 5;

/// Orders of the hot thread.
#[derive(Debug)]
pub(crate) enum Order {
    /// Start the camera, with its stream to this port.
    Start(u16, SyncSender<Result<(), DeviceError>>),
}

/// News for the hot thread.
#[derive(Debug)]
pub(crate) enum News {
    /// A stream begins.
    Stream {
        /// Properties of the stream.
        stream: Stream,
        /// Address that sends the stream.
        camera: IpAddr,
        /// Socket for resend requests.
        resend_socket: ResendSocket,
        /// Disconnects when this news was handled: only then does the camera begin.
        accepted: SyncSender<()>,
    },
    /// The camera's clock, or what keeps it, has changed.
    Clock(DeviceClock, Status),
    /// The camera does not answer any more.
    Away,
    /// The camera has answered again.
    Back,
}

/// Properties of a camera after its setup.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Setup {
    pub(crate) found: CameraInfo,
    pub(crate) width: Option<u32>,
    pub(crate) height: Option<u32>,
    pub(crate) pixel_format: Option<String>,
    pub(crate) pixels: Pixels,
    /// Length of a frame in bytes.
    pub(crate) payload: Option<usize>,
    /// Frames per second by the camera's own clock.
    pub(crate) rate: Option<f64>,
}

/// A camera under this application's control.
struct Camera {
    channel: Channel,
    features: Features,
    setup: Setup,
    resends: bool,
    /// Time without commands after which the camera considers its application gone, as the camera keeps it.
    heartbeat: Duration,
    /// Clock status of the camera's frames.
    clock: Status,
}

/// Runs the control thread until the channel of orders closes.
pub(crate) fn run_control_thread(
    config: &GigeConfig,
    orders: &Receiver<Order>,
    news: &Sender<News>,
    ready: &SyncSender<Result<Setup, DeviceError>>,
) {
    let mut camera = match Camera::find_and_open(config, None) {
        Ok(camera) => camera,
        Err(problem) => {
            let _ = ready.send(Err(hardware_error(config, problem)));
            return;
        }
    };
    if ready.send(Ok(camera.setup.clone())).is_err() {
        return camera.release_control();
    }
    // Times of the last command and of the last answer.
    let (mut port, mut last, mut alive) = (None, Instant::now(), Instant::now());
    loop {
        let beat = camera.heartbeat_interval();
        match orders.recv_timeout(beat.saturating_sub(last.elapsed())) {
            Ok(Order::Start(to, reply)) => {
                let started = camera.start_stream(config, to, news).map_err(|problem| hardware_error(config, problem));
                port = started.is_ok().then_some(to);
                if started.is_ok() {
                    (last, alive) = (Instant::now(), Instant::now());
                }
                let _ = reply.send(started);
                // From now on the heartbeat decides how long the camera may be silent.
                camera.channel.set_patience(Duration::ZERO);
                continue;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return camera.release_control(),
        }
        let problem = camera.send_heartbeat();
        last = Instant::now();
        let problem = match problem {
            Ok(()) => {
                alive = last;
                if port.is_some() {
                    camera.watch_clock(news);
                }
                continue;
            }
            // The camera may still answer; retry for as long as it waits for us in turn.
            Err(Refusal::Silent | Refusal::Network(_)) if alive.elapsed() < camera.heartbeat => {
                last = last.checked_sub(beat).unwrap_or(last);
                continue;
            }
            Err(problem) => problem,
        };
        tracing::warn!("camera {} does not respond: {problem}. Searching for it", camera.setup.found);
        if news.send(News::Away).is_err() {
            return;
        }
        match camera.reconnect_until_back(config, port, orders, news) {
            Some(again) => camera = again,
            None => return,
        }
        (last, alive) = (Instant::now(), Instant::now());
    }
}

fn hardware_error(config: &GigeConfig, problem: String) -> DeviceError {
    DeviceError::Hardware { device: format!("gige {}", config.address), problem }
}

impl Camera {
    /// Finds the camera, takes control of it, and sets it up. `before`: the camera before it was lost.
    fn find_and_open(config: &GigeConfig, before: Option<&Self>) -> Result<Self, String> {
        let from = match &config.interface {
            Some(interface) => Some(discovery::interface_address(interface).map_err(|error| error.to_string())?),
            None => None,
        };
        let address = resolve_address(config)?;
        let channel = Channel::open(address, from).map_err(|error| format!("no route leads to {address}: {error}"))?;
        if before.is_none() {
            // Of a camera that is lost the search is repeated instead.
            channel.set_patience(SEARCH_TIMEOUT);
        }
        Self::take_control(config, channel, before)
    }

    fn take_control(config: &GigeConfig, channel: Channel, before: Option<&Self>) -> Result<Self, String> {
        channel.reset_command_count();
        let found = channel.read_identity().map_err(|refusal| format!("{}: {refusal}", channel.remote_address()))?;
        if let Some(before) = before
            && (&before.setup.found.serial, before.setup.found.mac) != (&found.serial, found.mac)
        {
            return Err(format!("it is a different camera: {found}"));
        }
        acquire_control(&channel)?;
        let heartbeat = set_heartbeat(config, &channel, &found);
        if before.is_none() {
            // Until it is started it may be silent for as long as when it runs.
            channel.set_patience(heartbeat);
        }
        let (features, setup, resends) = Self::set_up_features(config, &channel, found)?;
        Ok(Self { channel, features, setup, resends, heartbeat, clock: Status::CLOCK_FREE_RUNNING })
    }

    /// Sets the camera's features. Gives up control of it if that fails.
    fn set_up_features(
        config: &GigeConfig,
        channel: &Channel,
        found: CameraInfo,
    ) -> Result<(Features, Setup, bool), String> {
        let done = Self::configure_features(config, channel, found);
        if done.is_err() {
            let _ = channel.write_register(registers::PRIVILEGE_REGISTER, 0);
        }
        done
    }

    fn configure_features(
        config: &GigeConfig,
        channel: &Channel,
        found: CameraInfo,
    ) -> Result<(Features, Setup, bool), String> {
        let capability = channel.read_register(registers::CAPABILITY_REGISTER).unwrap_or(0);
        let mut features =
            Features::read_from_camera(channel).map_err(|error| format!("the description of its features: {error}"))?;
        // The camera may still be acquiring for its last application.
        let _ = features.start_command(channel, "AcquisitionStop");
        lock_stream_features(&mut features, channel, false);
        let own_mode = config.features.values.iter().any(|(name, _)| name == "AcquisitionMode");
        if features.has_feature("AcquisitionMode") && !own_mode {
            let continuous = crate::FeatureValue::Text("Continuous".into());
            let _ = features.set_feature(channel, "AcquisitionMode", &continuous);
        }
        features.set_all_features(channel, &config.features)?;
        // Features that depend on those just set are read again.
        features.discard_cached_values();
        let setup = Setup::read_from_camera(config, &features, channel, found)?;
        let resends = config.resend && capability & registers::CAN_RESEND != 0;
        Ok((features, setup, resends))
    }

    /// Starts the stream to a port.
    fn start_stream(&mut self, config: &GigeConfig, port: u16, news: &Sender<News>) -> Result<(), String> {
        let Self { channel, features, setup, resends, clock: status, .. } = self;
        let packet = negotiate_packet_size(config, channel)?;
        write_stream_register(channel, registers::STREAM_PACKET, packet | registers::DO_NOT_FRAGMENT)?;
        // The camera may have rounded the packet size.
        let packet = channel.read_register(registers::STREAM_PACKET).map_or(packet, |is| is & 0xffff);
        if packet < MIN_PACKET_BYTES / 8 {
            return Err(format!("its packets would have {packet} bytes"));
        }
        write_stream_register(channel, registers::STREAM_ADDRESS, channel.local_address().into())?;
        write_stream_register(channel, registers::STREAM_PORT, port.into())?;
        lock_stream_features(features, channel, true);
        let clock;
        (clock, *status) = read_clock(features, channel, Status::empty());
        tracing::info!(
            "camera {}: packets of {packet} bytes to {}:{port}, {}; {}",
            setup.found,
            channel.local_address(),
            if *resends { "missing packets are resent" } else { "no resending" },
            describe_clock(&clock, *status)
        );
        let stream = Stream {
            packet: packet as usize,
            frame: setup.payload,
            resends: *resends,
            rate: setup.rate,
            payload: setup.pixels.payload,
            clock,
            status: *status,
        };
        let resend_socket = channel.open_resend_socket().map_err(|error| error.to_string())?;
        // The hot thread has the properties of the stream before the first packet comes.
        let (camera, (accepted, is_accepted)) = (IpAddr::V4(channel.remote_address()), mpsc::sync_channel(0));
        let _ = news.send(News::Stream { stream, camera, resend_socket, accepted });
        self.await_acceptance(&is_accepted)?;
        let Self { channel, features, .. } = self;
        features.start_command(channel, "AcquisitionStart").map_err(|problem| format!("AcquisitionStart: {problem}"))
    }

    /// Waits until the hot thread has accepted the stream, or the device was dropped: frames that come before that are
    /// discarded. In a pause of the run that takes as long as the pause. Sends heartbeats meanwhile.
    fn await_acceptance(&self, is_accepted: &Receiver<()>) -> Result<(), String> {
        while is_accepted.recv_timeout(self.heartbeat_interval()) == Err(RecvTimeoutError::Timeout) {
            self.send_heartbeat().map_err(|refusal| format!("before its stream was accepted: {refusal}"))?;
        }
        Ok(())
    }

    /// Returns the time between two heartbeats.
    fn heartbeat_interval(&self) -> Duration {
        (self.heartbeat / 3).max(Duration::from_millis(50))
    }

    /// Sends the heartbeat (section 10.5). Returns [`Refusal::Lost`] if this application no longer controls the camera.
    fn send_heartbeat(&self) -> Result<(), Refusal> {
        let privilege = self.channel.read_register(registers::PRIVILEGE_REGISTER)?;
        let ours = privilege & registers::ANY_CONTROL_BITS != 0;
        if ours { Ok(()) } else { Err(Refusal::Lost) }
    }

    /// Checks whether the camera's clock is still kept as before, and sends [`News::Clock`] if not.
    fn watch_clock(&mut self, news: &Sender<News>) {
        let Self { channel, features, setup, heartbeat, clock: status, .. } = self;
        let Some(synchronised) = is_synchronised(features, channel) else { return };
        if synchronised == (*status == Status::CLOCK_LOCKED) {
            return;
        }
        // A camera that is silent for a moment must not pass for one without a clock.
        channel.set_patience(*heartbeat);
        let (clock, now) = read_clock(features, channel, *status);
        channel.set_patience(Duration::ZERO);
        if std::mem::replace(status, now) != now {
            tracing::warn!("camera {}: {}", setup.found, describe_clock(&clock, now));
            let _ = news.send(News::Clock(clock, now));
        }
    }

    /// Searches for the camera until it is back, and starts its stream again. Returns `None` if the device was dropped
    /// meanwhile.
    fn reconnect_until_back(
        self,
        config: &GigeConfig,
        port: Option<u16>,
        orders: &Receiver<Order>,
        news: &Sender<News>,
    ) -> Option<Self> {
        let mut reported = String::new();
        loop {
            match self.reopen_and_start(config, port, news) {
                Ok(again) => {
                    tracing::warn!("camera {} is back", again.setup.found);
                    if news.send(News::Back).is_ok() {
                        return Some(again);
                    }
                    again.release_control();
                    return None;
                }
                Err(problem) if problem != reported => {
                    tracing::info!("camera {} is still missing: {problem}", self.setup.found);
                    reported = problem;
                }
                Err(_) => {}
            }
            match orders.recv_timeout(RETRY_INTERVAL) {
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
                Ok(Order::Start(_, reply)) => {
                    let _ = reply.send(Err(hardware_error(config, "it does not answer".into())));
                }
            }
        }
    }

    /// Opens the camera again, and starts its stream if there is a port for it.
    fn reopen_and_start(&self, config: &GigeConfig, port: Option<u16>, news: &Sender<News>) -> Result<Self, String> {
        let mut again = Self::find_and_open(config, Some(self))?;
        let (old, new) = (&self.setup, &again.setup);
        if (old.width, old.height, &old.pixel_format, old.payload)
            != (new.width, new.height, &new.pixel_format, new.payload)
        {
            return Err("its frames have changed".to_owned());
        }
        match port.map(|port| again.start_stream(config, port, news)) {
            Some(Err(problem)) => {
                // Otherwise it takes no other application until its heartbeat has ended.
                again.release_control();
                Err(problem)
            }
            _ => Ok(again),
        }
    }

    /// Stops the stream, and gives up control of the camera.
    fn release_control(mut self) {
        let _ = self.features.start_command(&self.channel, "AcquisitionStop");
        lock_stream_features(&mut self.features, &self.channel, false);
        let _ = self.channel.write_register(registers::STREAM_PORT, 0);
        let _ = self.channel.write_register(registers::PRIVILEGE_REGISTER, 0);
    }
}

fn write_stream_register(channel: &Channel, register: u32, value: u32) -> Result<(), String> {
    channel.write_register(register, value).map_err(|refusal| format!("register {register:#06x}: {refusal}"))
}

/// Sets or clears the lock of all features on which the stream depends while it runs (SFNC, `TLParamsLocked`).
fn lock_stream_features(features: &mut Features, channel: &Channel, locked: bool) {
    if features.has_feature("TLParamsLocked") {
        let _ = features.set_feature(channel, "TLParamsLocked", &crate::FeatureValue::Integer(locked.into()));
    }
}

/// Returns the camera's address.
fn resolve_address(config: &GigeConfig) -> Result<Ipv4Addr, String> {
    // A known address needs no discovery.
    if let Ok(address) = config.address.parse() {
        return Ok(address);
    }
    match discovery::find_camera(&config.address, config.interface.as_deref(), SEARCH_TIMEOUT) {
        Ok(Some(found)) => Ok(found.address),
        Ok(None) => Err(format!(
            "no camera of this name answered within {} s: write its address; `thalweg devices` lists the cameras",
            SEARCH_TIMEOUT.as_secs()
        )),
        Err(error) => Err(format!("cannot search for cameras: {error}")),
    }
}

/// Sets the time after which the camera considers its application gone. Returns the time in effect: the camera may
/// round it, or have its own.
fn set_heartbeat(config: &GigeConfig, channel: &Channel, found: &CameraInfo) -> Duration {
    let wanted = u32::try_from(config.heartbeat.as_millis()).unwrap_or(u32::MAX);
    let _ = channel.write_register(registers::HEARTBEAT_REGISTER, wanted);
    let kept = channel.read_register(registers::HEARTBEAT_REGISTER).ok().filter(|kept| *kept > 0).unwrap_or(wanted);
    if kept != wanted {
        tracing::warn!("camera {found}: it uses a heartbeat of {kept} ms instead of {wanted} ms");
    }
    // The interval is no longer than was requested.
    Duration::from_millis(kept.min(wanted).into())
}

/// Takes control of the camera (section 10.3). If an application that is gone still has it, waits for the end of that
/// one's heartbeat.
fn acquire_control(channel: &Channel) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let refused = match channel.write_register(registers::PRIVILEGE_REGISTER, registers::CONTROL_BIT) {
            Ok(()) => match channel.read_register(registers::PRIVILEGE_REGISTER) {
                Ok(privilege) if privilege & registers::CONTROL_BIT != 0 => return Ok(()),
                Ok(_) => Refusal::Malformed,
                Err(refusal) => refusal,
            },
            Err(refusal) => refusal,
        };
        // A camera that does not answer writes, but answers reads, belongs to another application.
        let taken = channel
            .read_register(registers::PRIVILEGE_REGISTER)
            .is_ok_and(|privilege| privilege & registers::ANY_CONTROL_BITS != 0);
        if !taken || begun.elapsed() >= CONTROL_TIMEOUT {
            let owner = channel.read_register(registers::APPLICATION_ADDRESS_REGISTER).ok().filter(|owner| *owner != 0);
            let by = owner.map(|owner| format!(" ({})", Ipv4Addr::from(owner))).unwrap_or_default();
            return Err(match taken {
                true => format!(
                    "another program{by}, or another source of this one, controls it: a camera has one controller at \
                     a time"
                ),
                false => format!("it refused control: {refused}"),
            });
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
}

impl Setup {
    fn read_from_camera(
        config: &GigeConfig,
        features: &Features,
        channel: &Channel,
        found: CameraInfo,
    ) -> Result<Self, String> {
        let [width, height] = ["Width", "Height"]
            .map(|name| features.integer_value(channel, name).and_then(|value| u32::try_from(value).ok()));
        let pixel_format = features.text_value(channel, "PixelFormat");
        let payload = features.integer_value(channel, "PayloadSize").and_then(|bytes| usize::try_from(bytes).ok());
        let rate = match config.rate {
            Some(rate) => Some(rate.hertz()),
            // A camera that waits for triggers has no rate of its own.
            None if features
                .text_value(channel, "TriggerMode")
                .is_some_and(|mode| mode != "Off" && mode != "false") =>
            {
                None
            }
            None => RATES.into_iter().find_map(|name| features.float_value(channel, name)),
        };
        let setup = Self {
            width,
            height,
            pixels: pixels::pixels_by_name(pixel_format.as_deref().unwrap_or("")),
            pixel_format,
            payload: payload.filter(|payload| *payload > 0),
            rate: rate.filter(|rate| rate.is_finite() && (1e-6..1e9).contains(rate)),
            found,
        };
        if setup.payload.is_none() && config.size.is_none() {
            return Err("it does not state the length of its frames (PayloadSize): set size".into());
        }
        Ok(setup)
    }
}

/// Returns the size of the longest packets that arrive unfragmented (section 11.6), in bytes: the camera sends test
/// packets.
fn negotiate_packet_size(config: &GigeConfig, channel: &Channel) -> Result<u32, String> {
    if let Some(packet) = config.packet {
        return Ok(packet);
    }
    let longest = channel.path_mtu_bytes().unwrap_or(1500).min(MAX_PACKET_BYTES) & !3;
    let own = channel.read_register(registers::STREAM_PACKET).map_or(0, |packet| packet & 0xffff);
    let tested = test_packet_sizes(channel, longest);
    let _ = channel.write_register(registers::STREAM_PORT, 0);
    Ok(tested.unwrap_or_else(|| {
        tracing::info!("camera {}: it sends no test packets", channel.remote_address());
        // The size that the camera has set by itself, if it fits.
        if (MIN_PACKET_BYTES..=longest).contains(&own) { own } else { longest.min(1500) }
    }))
}

/// Returns the size in bytes, at most `longest`, of the longest test packets that arrive; `None` if none do.
fn test_packet_sizes(channel: &Channel, longest: u32) -> Option<u32> {
    let socket = UdpSocket::bind((channel.local_address(), 0)).ok()?;
    channel.write_register(registers::STREAM_ADDRESS, channel.local_address().into()).ok()?;
    channel.write_register(registers::STREAM_PORT, socket.local_addr().ok()?.port().into()).ok()?;
    if test_packet_arrives(channel, &socket, longest) {
        return Some(longest);
    }
    if !test_packet_arrives(channel, &socket, MIN_PACKET_BYTES) {
        return None;
    }
    let (mut good, mut bad) = (MIN_PACKET_BYTES, longest);
    for common in [1500, 8000] {
        if (good..bad).contains(&common) {
            *(if test_packet_arrives(channel, &socket, common) { &mut good } else { &mut bad }) = common;
        }
    }
    while bad > good + 64 {
        let middle = u32::midpoint(good, bad) & !3;
        *(if test_packet_arrives(channel, &socket, middle) { &mut good } else { &mut bad }) = middle;
    }
    Some(good)
}

/// Sends a test packet of `packet` bytes. Returns true if it arrives.
fn test_packet_arrives(channel: &Channel, socket: &UdpSocket, packet: u32) -> bool {
    let wanted = packet | registers::FIRE_TEST | registers::DO_NOT_FRAGMENT;
    if channel.write_register(registers::STREAM_PACKET, wanted).is_err() {
        return false;
    }
    let (begun, mut others) = (Instant::now(), 0);
    let mut room = vec![0; MAX_PACKET_BYTES as usize];
    loop {
        let left = TEST_PACKET_TIMEOUT.saturating_sub(begun.elapsed());
        if socket.set_read_timeout(Some(left.max(MIN_LOOK_TIME))).is_err() {
            return false;
        }
        match socket.recv_from(&mut room) {
            Ok((length, from))
                if from.ip() == IpAddr::V4(channel.remote_address())
                    && length + IP_UDP_HEADER_BYTES == packet as usize =>
            {
                return true;
            }
            // The packet may wait behind others although its time is over.
            Ok(_) if others < MAX_OTHER_PACKETS => others += 1,
            _ if left.is_zero() => return false,
            _ => {}
        }
    }
}

/// Returns true if PTP keeps the camera's clock: it follows a master, or is the master that others follow. `None` if
/// PTP is switched off, or the camera does not state it.
fn is_synchronised(features: &mut Features, channel: &Channel) -> Option<bool> {
    features.discard_cached_values();
    let mut switches = ["PtpEnable", "GevIEEE1588"].into_iter().filter_map(|name| features.text_value(channel, name));
    if !switches.any(|value| matches!(value.as_str(), "true" | "1" | "On")) {
        return None;
    }
    // Cameras with SFNC 2.3 update the PTP state on this command.
    if features.has_feature("PtpDataSetLatch") {
        let _ = features.start_command(channel, "PtpDataSetLatch");
    }
    let state = ["PtpStatus", "GevIEEE1588Status"].into_iter().find_map(|name| features.text_value(channel, name))?;
    Some(matches!(state.as_str(), "Slave" | "Master"))
}

/// Returns the relation of the camera's clock to ours, and its status: locked if the camera reports that PTP keeps it
/// and it agrees with ours to a second. `before`: the status until now. The camera latches its time on a command; the
/// latch is taken to be half-way between our command and its answer.
fn read_clock(features: &mut Features, channel: &Channel, before: Status) -> (DeviceClock, Status) {
    let hertz = channel.read_wide_register(registers::TICK_RATE_REGISTER).ok().filter(|hertz| *hertz > 0);
    let mut names = ["GevTimestampTickFrequency", "TimestampTickFrequency"].into_iter();
    let by_name = names.find_map(|name| features.integer_value(channel, name));
    let hertz = hertz.or_else(|| by_name.and_then(|hertz| u64::try_from(hertz).ok()).filter(|hertz| *hertz > 0));
    let Some(hertz) = hertz else { return (DeviceClock::NONE, Status::CLOCK_FREE_RUNNING) };
    let mut clock = DeviceClock { hertz, offset: None };
    let mut looks: Vec<(u64, u64, u64)> = Vec::new();
    for _ in 0..CLOCK_READING_COUNT {
        let begun = TaiClock.now();
        let Some(ticks) = latch_camera_time(channel) else { break };
        // The time was latched before it was read.
        looks.push((ticks, begun.0, TaiClock.now().0));
    }
    // A clock that does not advance is useless.
    let goes = looks.windows(2).all(|pair| pair[0].0 < pair[1].0) && looks.len() == CLOCK_READING_COUNT;
    if let (true, Some((ticks, begun, ended))) = (goes, looks.into_iter().min_by_key(|(_, begun, ended)| ended - begun))
    {
        // The latch was the first of three exchanges.
        clock.set_offset(ticks, thalweg_wire::TaiNanos(begun + ended.saturating_sub(begun) / 6));
    }
    let near = clock.offset.is_some_and(|offset| offset.unsigned_abs() < 1_000_000_000);
    let status = match is_synchronised(features, channel) {
        Some(true) if near => Status::CLOCK_LOCKED,
        Some(true) => {
            tracing::warn!(
                "camera {}: its clock is synchronised by PTP, but is more than 1 s from the TAI of this machine",
                channel.remote_address()
            );
            Status::CLOCK_FREE_RUNNING
        }
        // The clock continues from where PTP left it.
        Some(false) if matches!(before, Status::CLOCK_LOCKED | Status::CLOCK_HOLDOVER) => Status::CLOCK_HOLDOVER,
        _ => Status::CLOCK_FREE_RUNNING,
    };
    if status != Status::CLOCK_FREE_RUNNING {
        clock.offset = Some(0);
    }
    (clock, status)
}

/// Has the camera latch its time, and returns it in ticks.
fn latch_camera_time(channel: &Channel) -> Option<u64> {
    channel.write_register(registers::TIME_CONTROL, registers::TIME_LATCH_BIT).ok()?;
    channel.read_wide_register(registers::LATCHED_TIME_REGISTER).ok().filter(|ticks| *ticks > 0)
}

fn describe_clock(clock: &DeviceClock, status: Status) -> String {
    match (clock, status) {
        (_, Status::CLOCK_LOCKED) => "its clock is synchronised by PTP".into(),
        (_, Status::CLOCK_HOLDOVER) => "PTP no longer synchronises its clock: it runs free".into(),
        (DeviceClock { hertz: 0, .. }, _) => "it has no clock: frames get the time of their arrival".into(),
        (DeviceClock { offset: Some(offset), .. }, _) => format!("its clock is TAI minus {offset} ns"),
        _ => "the offset of its clock is taken from the arrival of the first frame".into(),
    }
}
