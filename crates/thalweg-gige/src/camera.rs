//! The device: a port for the stream, a thread for the camera's control, and frames.

use crate::GigeConfig;
use crate::assembler::Assembler;
use crate::channel::ResendSocket;
use crate::receiver::Receiver;
use crate::session::{self, CONTROL_STACK_BYTES, News, Order, Setup};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{self, RecvTimeoutError, Sender, TryRecvError};
use std::time::{Duration, Instant};
use thalweg_device::{Acquired, Acquisition, Buffer, Description, DeviceError, MAX_PAYLOAD_BYTES, OwnFields, TaiClock};
use thalweg_frames::{Counters, FramesError};
use thalweg_wire::TaiNanos;

/// Time that finding a camera and setting it up may take.
const SETUP_TIMEOUT: Duration = Duration::from_secs(60);
/// Time that starting may take.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Time that giving up control of the camera may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Number of buffers accepted: as many as there are.
const MAX_BUFFER_COUNT: u32 = 1 << 16;
/// Number of bursts received per poll before other work gets its turn.
const BURSTS_PER_POLL: usize = 16;
/// Number of bursts discarded at most when the run begins: packets that came before.
const MAX_STALE_BURSTS: usize = 1 << 14;
/// Interval at which news of the camera is read.
const NEWS_INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which news of the camera is read while it starts.
const START_NEWS_INTERVAL: Duration = Duration::from_millis(2);
/// Time within which all packets queued at the port have been received, even if more keep coming.
const DRAIN_TIME: Duration = Duration::from_secs(1);
const ENDED: &str = "the thread that controls it has ended";

/// A camera that fills slots.
#[derive(Debug)]
pub struct Camera {
    name: String,
    description: Description,
    size: usize,
    receiver: Receiver,
    assembler: Assembler,
    orders: Option<Sender<Order>>,
    news: mpsc::Receiver<News>,
    /// Disconnects when the control thread has ended.
    gone: mpsc::Receiver<()>,
    resend_socket: Option<ResendSocket>,
    camera: Option<IpAddr>,
    /// Time at which news was last read.
    last_news: Duration,
    /// Time until which all packets have been received; `busy_since`: time since which packets came without a pause.
    empty_at: Duration,
    busy_since: Option<Duration>,
    /// True if the port may hold more packets than were received.
    may_have_more: bool,
    counters_at_start: Counters,
    /// Number of times that the camera was away.
    absences: u64,
    /// True if the camera is away, and no packet has come since.
    is_away: bool,
    /// While the camera is being started: the channel for the result, and the time at which the start began.
    starting: Option<(mpsc::Receiver<Result<(), DeviceError>>, Instant)>,
}

/// Checks the options for values that cannot work, without contacting a camera.
///
/// # Errors
/// An option makes no sense.
pub(crate) fn check_options(config: &GigeConfig) -> Result<(), DeviceError> {
    if config.address.trim().is_empty() {
        let problem = "it is empty: write the address, serial number or name of the camera".into();
        return Err(DeviceError::Option { option: "address", problem });
    }
    let heartbeat_ms = u64::try_from(config.heartbeat.as_millis()).unwrap_or(u64::MAX);
    let settings = [
        ("size", config.size.map(|size| size.0), 1..=MAX_PAYLOAD_BYTES as u64, "from 1 byte to 1 GiB"),
        ("packet", config.packet.map(u64::from), 576..=16_000, "from 576 to 16000 bytes"),
        ("heartbeat", Some(heartbeat_ms), 500..=600_000, "from 500 ms to 10 min"),
    ];
    for (option, value, possible, expected) in settings {
        if let Some(value) = value.filter(|value| !possible.contains(value)) {
            return Err(DeviceError::Setting { option, value, expected });
        }
    }
    Ok(())
}

impl Camera {
    /// Finds a camera, takes control of it, and sets its features.
    ///
    /// # Errors
    /// An option makes no sense, the camera is not there or is controlled by another application, or a feature cannot
    /// be set.
    pub fn open(config: &GigeConfig) -> Result<Self, DeviceError> {
        check_options(config)?;
        let mut receiver = Receiver::open().map_err(|error| port_error(config, error))?;
        let holds = receiver.set_buffer_size(config.buffer.0);
        if holds < config.buffer.0 {
            let (address, wanted) = (&config.address, config.buffer);
            tracing::warn!(
                "camera {address}: the receive buffer has {holds} bytes instead of {wanted}: set net.core.rmem_max to \
                 at least {}",
                wanted.0
            );
        }
        let (orders, inbox) = mpsc::channel();
        let (news_sender, news) = mpsc::channel();
        let (ready, is_ready) = mpsc::sync_channel(1);
        let (lives, gone) = mpsc::sync_channel::<()>(0);
        let own = config.clone();
        let thread = std::thread::Builder::new().name("camera".into()).stack_size(CONTROL_STACK_BYTES);
        let spawned = thread.spawn(move || {
            session::run_control_thread(&own, &inbox, &news_sender, &ready);
            drop(lives);
        });
        spawned.map_err(|error| port_error(config, error))?;
        let setup = is_ready.recv_timeout(SETUP_TIMEOUT).map_err(|error| DeviceError::Hardware {
            device: format!("gige {}", config.address),
            problem: match error {
                RecvTimeoutError::Timeout => format!("it was not set up within {} s", SETUP_TIMEOUT.as_secs()),
                RecvTimeoutError::Disconnected => "the thread that sets it up has ended".into(),
            },
        })??;
        let size = longest_frame_bytes(config, &setup)?;
        Ok(Self {
            name: setup.found.to_string(),
            description: describe_camera(&setup, size),
            size,
            receiver,
            assembler: Assembler::new(size, config.patience),
            orders: Some(orders),
            news,
            gone,
            resend_socket: None,
            camera: None,
            last_news: Duration::ZERO,
            empty_at: Duration::ZERO,
            busy_since: None,
            may_have_more: false,
            counters_at_start: Counters::default(),
            absences: 0,
            is_away: false,
            starting: None,
        })
    }

    /// Handles news from the control thread.
    fn handle_news(&mut self) -> Result<(), DeviceError> {
        loop {
            match self.news.try_recv() {
                Ok(News::Stream { stream, camera, resend_socket, accepted }) => {
                    // Packets that wait belong to the stream before.
                    self.discard_waiting_packets()?;
                    drop(accepted);
                    self.assembler.begin_stream(stream);
                    self.resend_socket = Some(resend_socket);
                    self.camera = Some(camera);
                    self.is_away = false;
                }
                Ok(News::Clock(clock, status)) => self.assembler.set_clock(clock, status),
                Ok(News::Away) => {
                    self.absences += 1;
                    self.is_away = true;
                }
                Ok(News::Back) => {}
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => {
                    return Err(self.hardware_error(ENDED));
                }
            }
        }
    }

    /// Records until when all packets that came to the port have been received.
    fn note_drained_port(&mut self, nothing_waits: bool, now: Duration) {
        if !self.assembler.has_room() {
            self.busy_since = None;
        } else if nothing_waits {
            (self.empty_at, self.busy_since) = (now, None);
        } else if now >= *self.busy_since.get_or_insert(now) + DRAIN_TIME {
            // If packets never end, as a stranger could cause, those that waited so long ago have been received by now.
            self.empty_at = self.busy_since.replace(now).unwrap_or(now);
        }
    }

    /// Checks whether the camera has been started.
    fn check_start(&mut self) -> Result<(), DeviceError> {
        let Some((started, since)) = &self.starting else { return Ok(()) };
        match started.try_recv() {
            Ok(started) => started?,
            Err(TryRecvError::Disconnected) => return Err(self.hardware_error(ENDED)),
            Err(TryRecvError::Empty) if since.elapsed() >= START_TIMEOUT => {
                return Err(self.hardware_error("it did not start"));
            }
            Err(TryRecvError::Empty) => return Ok(()),
        }
        self.starting = None;
        tracing::info!("camera {}: data are recorded from now on", self.name);
        Ok(())
    }

    fn hardware_error(&self, problem: &str) -> DeviceError {
        DeviceError::Hardware { device: self.name.clone(), problem: problem.into() }
    }

    /// Discards the packets that wait at the port.
    fn discard_waiting_packets(&mut self) -> Result<(), DeviceError> {
        for _ in 0..MAX_STALE_BURSTS {
            if self.receiver.discard_waiting().map_err(network_error)? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Sends the pending resend requests to the camera.
    fn send_resend_requests(&mut self) {
        while let Some(request) = self.assembler.next_request() {
            if let Some(socket) = &self.resend_socket {
                socket.request_resend(request.block, request.wide, request.first, request.last);
            }
        }
    }
}

/// Returns the length of the longest frame in bytes.
fn longest_frame_bytes(config: &GigeConfig, setup: &Setup) -> Result<usize, DeviceError> {
    let wanted = config.size.and_then(|size| usize::try_from(size.0).ok());
    let problem = match (wanted, setup.payload) {
        (Some(size), Some(payload)) if payload > size => {
            format!("the camera's frames have {payload} bytes: set it to that, or remove it")
        }
        (None, Some(payload)) if payload > MAX_PAYLOAD_BYTES => {
            format!("the camera's frames have {payload} bytes: the limit is 1 GiB")
        }
        // The camera reports the length of its frames; the option `size` is the limit.
        (Some(size), _) | (None, Some(size)) => return Ok(size),
        (None, None) => "the camera does not state the length of its frames: set it".into(),
    };
    Err(DeviceError::Option { option: "size", problem })
}

fn describe_camera(setup: &Setup, size: usize) -> Description {
    let Setup { found, width, height, pixel_format, pixels, rate, .. } = setup;
    let shape = pixels.bits.and(*height).zip(*width).map(|(height, width)| {
        let colours = (pixels.colours > 1).then_some(pixels.colours);
        [height.into(), width.into()].into_iter().chain(colours).collect()
    });
    let [manufacturer, model, serial] = [&found.manufacturer, &found.model, &found.serial]
        .map(|text| Some(text.clone()).filter(|text| !text.is_empty()));
    Description {
        kind: "gige".into(),
        payload_type: pixels.payload.type_name().to_owned(),
        shape,
        fragment_rate: *rate,
        bits: pixels.bits,
        own: OwnFields::default()
            .with("width", width)
            .with("height", height)
            .with("max_value", pixels.bits.map(|bits| (1u32 << bits) - 1))
            .with("pixel_format", pixel_format)
            .with("manufacturer", manufacturer)
            .with("model", model)
            .with("serial", serial),
        record_bytes: Some(setup.payload.unwrap_or(size) as u64),
        ..Description::default()
    }
}

fn port_error(config: &GigeConfig, error: io::Error) -> DeviceError {
    DeviceError::Network { doing: format!("opening a port for {}", config.address), error }
}

fn network_error(FramesError { doing, error }: FramesError) -> DeviceError {
    DeviceError::Network { doing, error }
}

impl Acquisition for Camera {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_payload_bytes(&self) -> usize {
        self.size
    }

    fn max_posted_buffers(&self) -> u32 {
        MAX_BUFFER_COUNT
    }

    fn post_buffer(&mut self, buffer: Buffer) {
        self.assembler.post_buffer(buffer);
    }

    /// Starts the camera. Packets that came before are no part of the run. Takes a second or so, in which nothing
    /// comes.
    fn start_acquisition(&mut self, _at: TaiNanos) -> Result<(), DeviceError> {
        self.discard_waiting_packets()?;
        self.counters_at_start = self.receiver.port_counters();
        let (reply, started) = mpsc::sync_channel(1);
        let order = Order::Start(self.receiver.local_port(), reply);
        let orders = self.orders.as_ref().ok_or_else(|| self.hardware_error("it was closed"))?;
        orders.send(order).map_err(|_| self.hardware_error(ENDED))?;
        self.starting = Some((started, Instant::now()));
        Ok(())
    }

    fn poll_acquired(&mut self, now: Duration) -> Result<Acquired, DeviceError> {
        if now >= self.last_news + NEWS_INTERVAL || self.starting.is_some() {
            self.handle_news()?;
            self.check_start()?;
            self.last_news = now;
        }
        for _ in 0..BURSTS_PER_POLL {
            if let Some(acquired) = self.assembler.next_acquired() {
                return Ok(acquired);
            }
            let came = match self.assembler.has_room() && self.camera.is_some() {
                true => self
                    .receiver
                    .receive_packets(&mut self.assembler, self.camera, (now, TaiClock.now()))
                    .map_err(network_error)?,
                false => 0,
            };
            self.may_have_more = came > 0;
            self.note_drained_port(came == 0, now);
            if self.is_away && came == 0 {
                self.assembler.note_absence(now);
            }
            self.assembler.request_missing_packets(now, self.empty_at);
            self.send_resend_requests();
            if !self.may_have_more {
                return Ok(self.assembler.next_acquired().unwrap_or(Acquired::NotYet));
            }
        }
        Ok(Acquired::NotYet)
    }

    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.receiver.as_fd())
    }

    /// No wake-up is wanted for packets that have no buffer.
    fn has_room(&self) -> bool {
        self.assembler.has_room()
    }

    fn is_away(&self) -> bool {
        self.is_away
    }

    fn next_poll_time(&self) -> Option<Duration> {
        if self.may_have_more {
            return Some(Duration::ZERO);
        }
        // Packets that wait at the port may be the missing ones: nothing is given up while the port is not read.
        let due = self.assembler.next_deadline(self.empty_at).filter(|due| due.is_zero() || self.has_room());
        due.into_iter()
            .chain([self.last_news + if self.starting.is_some() { START_NEWS_INTERVAL } else { NEWS_INTERVAL }])
            .min()
    }

    fn confirm_numbers(&mut self, first: u64) {
        self.assembler.numbers_agree(first);
    }

    fn report_counters(&self) -> Vec<(&'static str, u64)> {
        let port = self.receiver.port_counters();
        let edge = [
            ("dropped_by_kernel", port.dropped.saturating_sub(self.counters_at_start.dropped)),
            ("away", self.absences),
        ];
        self.assembler.counts().named_counts().into_iter().chain(edge).collect()
    }
}

/// Stops the camera, and gives up control of it.
impl Drop for Camera {
    fn drop(&mut self) {
        self.orders = None;
        // A stream that waits to be accepted waits no more.
        self.news = mpsc::channel().1;
        // The thread ends by itself, and sends nothing: the wait ends when it disconnects.
        let _ = self.gone.recv_timeout(CLOSE_TIMEOUT);
    }
}
