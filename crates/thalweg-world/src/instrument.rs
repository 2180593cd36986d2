//! A simulated instrument that counts its datagrams, and a lossy cable.
//!
//! The instrument also dates its datagrams and may begin to count anew; the cable loses, duplicates and reorders them.
//! A source's own code receives them.

use crate::clock::EPOCH_TAI_NANOS;
use crate::device::{Had, Plug, Truth, fragment_payload};
use crate::plan::{DatagramKind, InstrumentPlan};
use crate::random::Random;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use thalweg_arena::SlotPool;
use thalweg_device::{Acquired, Acquisition, Buffer, Description, DeviceError, FrameOrder, OrderedFrame};
use thalweg_drivers::instrument::{Assembler, DatagramOutcome};
use thalweg_wire::{Status, TaiNanos, mix_bits};

/// Number of buffers that the receiver has at a time.
const BUFFER_COUNT: u32 = 64;
/// Number of datagrams after which a new beginning of the count can be detected.
const SEEN_TO_COUNT: u64 = 64;
/// Number of first datagrams that are not lost: without `first` and `rate`, their loss cannot be detected.
const SPARED_DATAGRAMS: u64 = 20;
/// Time from the begin of the first source to the first of the triggers that instruments share.
const SHARED_BEGIN: Duration = Duration::from_millis(500);
/// Time after which the rate of a device is known.
const RATE_DETECTION_TIME: Duration = Duration::from_millis(2200);

/// Returns the end of an instrument's fragment: bytes that depend on its trigger, and the trigger itself.
pub(crate) fn instrument_payload(seed: u64, source: usize, trigger: u64, longest: usize) -> Vec<u8> {
    let mut bytes = fragment_payload(seed, source, trigger, longest);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes.extend(trigger.to_le_bytes());
    bytes
}

/// Returns the trigger that a fragment names.
pub(crate) fn trigger_of_fragment(fragment: &[u8]) -> Option<u64> {
    fragment.last_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Returns the size of an instrument's longest fragment in bytes.
pub(crate) fn longest_fragment(longest: usize) -> usize {
    // A VDIF header of 32 bytes comes first.
    longest.next_multiple_of(8) + 8 + 32
}

/// An instrument and its cable, which continue while the source's node is stopped or gone.
#[derive(Debug, Clone)]
pub(crate) struct Instrument(Arc<Mutex<Line>>);

#[derive(Debug)]
struct Line {
    plan: InstrumentPlan,
    seed: u64,
    source: usize,
    longest: usize,
    events: u64,
    interval: Duration,
    truth: Truth,
    plug: Plug,
    random: Random,
    /// Time of the first trigger; for an instrument with triggers of its own, the time at which it is first started.
    began: Option<Duration>,
    /// Time of the first trigger of all instruments of the world, if they share triggers.
    shared: Arc<OnceLock<Duration>>,
    /// Number of the next trigger.
    next: u64,
    /// Number of triggers counted, and count of the first of them.
    counted: u64,
    base: u64,
    /// End of the time for which it is switched off.
    off_until: Duration,
    counts_anew: bool,
    /// Offset to which its clock was set, in nanoseconds.
    set: i64,
    /// Number of following datagrams that are not lost, and number of those after them that are.
    spared: u64,
    losing: u64,
    /// A delayed datagram, and the number of datagrams that still overtake it.
    overtaken: Option<(u64, Vec<u8>)>,
    /// Datagrams that have arrived, each with the number of those that the port had dropped by then.
    port: VecDeque<(u64, Vec<u8>)>,
    dropped: u64,
}

impl Instrument {
    pub(crate) fn new(
        plan: &InstrumentPlan,
        seed: u64,
        source: usize,
        (longest, events): (usize, u64),
        rate: f64,
    ) -> Self {
        Self(Arc::new(Mutex::new(Line {
            seed,
            source,
            longest,
            events,
            interval: Duration::from_secs_f64(1.0 / rate),
            truth: Truth::default(),
            plug: Plug::default(),
            random: Random::new(seed ^ (source as u64 + 1) << 32),
            began: plan.is_by_time().then_some(Duration::from_secs(1)),
            shared: Arc::default(),
            next: 0,
            counted: 0,
            base: plan.first,
            off_until: Duration::ZERO,
            counts_anew: false,
            set: 0,
            spared: SPARED_DATAGRAMS,
            losing: 0,
            overtaken: None,
            port: VecDeque::new(),
            dropped: 0,
            plan: plan.clone(),
        })))
    }

    /// Attaches the record of its fragments, a plug, and the time at which shared triggers began.
    pub(crate) fn with_surroundings(self, truth: Truth, plug: Plug, shared: Arc<OnceLock<Duration>>) -> Self {
        let mut line = self.lock_line();
        (line.truth, line.plug, line.shared) = (truth, plug, shared);
        drop(line);
        self
    }

    fn lock_line(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Switches the instrument off and on again, after which it counts anew.
    pub(crate) fn switch_off(&self, now: Duration, time: Duration) {
        let mut line = self.lock_line();
        line.process_triggers_until(now);
        // A counter of a few bits that begins anew may have the value that it would have reached anyway.
        let is_seen = line.distinguishes_outages() && line.plan.kind != DatagramKind::Vita49;
        if line.counted >= SEEN_TO_COUNT && line.is_rate_known(now) && is_seen {
            (line.off_until, line.counts_anew) = (now + time, true);
        }
    }

    /// Changes the instrument's clock by `by` nanoseconds.
    pub(crate) fn set_clock(&self, now: Duration, by: i64) {
        let mut line = self.lock_line();
        line.process_triggers_until(now);
        line.set += by;
    }
}

impl Line {
    fn is_rate_known(&self, now: Duration) -> bool {
        self.began.is_some_and(|began| now >= began + RATE_DETECTION_TIME)
    }

    /// Returns whether an outage in which the counter wraps around can be distinguished from a shorter one. While the
    /// source is stopped, too, that is possible only if packets are dated.
    fn distinguishes_outages(&self) -> bool {
        let InstrumentPlan { kind, bits, step, .. } = self.plan;
        kind.is_absolute() || kind == DatagramKind::Vita49 || (1 << bits.min(32)) / step > 4096
    }

    /// Returns the time of the next trigger.
    fn next_trigger(&self) -> Option<Duration> {
        let next = u32::try_from(self.next).unwrap_or(u32::MAX);
        let late = match self.plan.irregular {
            true => self.interval.mul_f64((mix_bits(self.seed ^ self.next) >> 44) as f64 / f64::from(1 << 20)),
            false => Duration::ZERO,
        };
        self.began.filter(|_| self.next < self.events).map(|began| began + self.interval.saturating_mul(next) + late)
    }

    /// Starts to listen: an instrument with triggers of its own begins now, and all that share triggers a little later.
    fn start_listening(&mut self, now: Duration) {
        let Self { began, shared, plan, .. } = self;
        began.get_or_insert_with(|| match plan.irregular {
            true => *shared.get_or_init(|| now + SHARED_BEGIN),
            false => now,
        });
    }

    /// Processes all triggers until now.
    fn process_triggers_until(&mut self, now: Duration) {
        while let Some(at) = self.next_trigger().filter(|at| *at <= now) {
            let trigger = self.next;
            self.next += 1;
            if at < self.off_until {
                self.truth.fragments().insert(trigger, Had::Lost);
                continue;
            }
            if std::mem::take(&mut self.counts_anew) {
                (self.counted, self.base, self.spared, self.losing) = (0, 0, SPARED_DATAGRAMS, 0);
            }
            let datagram = self.encode_datagram(trigger, at);
            self.counted += 1;
            let is_sent = self.send_datagram(datagram, at);
            self.truth.fragments().insert(trigger, if is_sent { Had::HeaderValues } else { Had::Lost });
        }
        if self.next >= self.events
            && let Some((_, datagram)) = self.overtaken.take()
        {
            self.deliver_to_port(datagram);
        }
    }

    fn encode_datagram(&mut self, trigger: u64, at: Duration) -> Vec<u8> {
        let payload = instrument_payload(self.seed, self.source, trigger, self.longest);
        let counted = self.base.wrapping_add(self.counted.wrapping_mul(self.plan.step));
        let count = counted & (u64::MAX >> (64 - self.plan.bits));
        // The time of the instrument's own clock, which began at a whole second.
        let (rate, since) = (self.triggers_per_second(), self.clock_time_nanos(at));
        let (second, in_second) = (trigger / rate, trigger % rate);
        match self.plan.kind {
            DatagramKind::Fixed => [&count.to_le_bytes()[..], &since.to_le_bytes(), &payload].concat(),
            DatagramKind::Spead => {
                let length = payload.len() as u64;
                let items = [(1, count), (2, length), (3, 0), (4, length)]
                    .map(|(number, value)| 1 << 63 | number << 48 | value);
                let head = [0x53, 4, 2, 6, 0, 0, 0, 4].into_iter();
                head.chain(items.into_iter().flat_map(u64::to_be_bytes)).chain(payload).collect()
            }
            DatagramKind::Vdif | DatagramKind::VdifSequence => {
                let length = (payload.len() as u32 + 32) / 8;
                let words = [second as u32, 52 << 24 | in_second as u32, 1 << 29 | length, 1 << 26, 0, 0, 0, 0];
                let sequence = [count.to_le_bytes()].concat();
                let front = if self.plan.kind == DatagramKind::Vdif { &[] } else { &sequence[..] };
                front.iter().copied().chain(words.into_iter().flat_map(u32::to_le_bytes)).chain(payload).collect()
            }
            DatagramKind::Vita49 | DatagramKind::Vita49Rate => {
                let pico = in_second * 1_000_000_000_000 / rate;
                let head = 0x1060_0000 | (count as u32) << 16 | (5 + payload.len() as u32 / 4);
                let words = [head, 7, 1_790_000_000 + second as u32, (pico >> 32) as u32, pico as u32];
                words.into_iter().flat_map(u32::to_be_bytes).chain(payload).collect()
            }
        }
    }

    /// Returns the number of triggers in a second.
    fn triggers_per_second(&self) -> u64 {
        self.interval.as_secs_f64().recip().round().max(1.0) as u64
    }

    /// Returns the time that the instrument's clock shows, in nanoseconds.
    fn clock_time_nanos(&mut self, at: Duration) -> u64 {
        let Some(clock) = self.plan.clock else { return 0 };
        let nanos = i64::try_from(at.as_nanos()).unwrap_or(i64::MAX);
        let jitter = self.random.draw_from(0..clock.jitter.max(1)).cast_signed();
        let wild = if self.random.draw_from(0..1000) < clock.wild { self.random.next_u64() >> 3 } else { 0 };
        let off = clock.off + nanos / 1_000_000 * clock.drift_ppm + jitter + self.set;
        (EPOCH_TAI_NANOS.wrapping_add_signed(nanos + off)).wrapping_add(wild)
    }

    /// Sends a datagram through the cable. Returns whether it can arrive.
    fn send_datagram(&mut self, datagram: Vec<u8>, at: Duration) -> bool {
        let chances = [self.plan.lost, self.plan.doubled, self.plan.overtaken, self.plan.forged];
        let [is_lost, is_doubled, is_overtaken, is_forged] =
            chances.map(|of_thousand| self.random.draw_from(0..1000) < of_thousand);
        if !self.plug.is_plugged_in(at)
            && (self.is_rate_known(at) && self.distinguishes_outages() || self.plan.is_by_time())
        {
            return false;
        }
        if let Some(left) = self.spared.checked_sub(1) {
            self.spared = left;
            self.deliver_to_port(datagram);
            return true;
        }
        if is_forged {
            let mut forged = datagram.clone();
            let count = self.random.next_u64() >> (64 - self.plan.bits);
            match self.plan.kind {
                DatagramKind::Spead => forged[8..16].copy_from_slice(&(1 << 63 | 1 << 48 | count).to_be_bytes()),
                DatagramKind::Vdif => forged[..4].copy_from_slice(&(count as u32 >> 2).to_le_bytes()),
                _ => forged[..8].copy_from_slice(&count.to_le_bytes()),
            }
            self.deliver_to_port(forged);
        }
        if is_lost && self.losing == 0 {
            self.losing = self.random.draw_logarithmic(1..self.plan.longest_loss + 2);
        }
        if let Some(left) = self.losing.checked_sub(1) {
            self.losing = left;
            // Two consecutive losses would be one longer loss.
            self.spared = u64::from(left == 0);
            return false;
        }
        if is_doubled {
            self.deliver_to_port(datagram.clone());
        }
        if is_overtaken && self.overtaken.is_none() {
            self.overtaken = Some((self.random.draw_from(1..4), datagram));
            return true;
        }
        self.deliver_to_port(datagram);
        if let Some((left, datagram)) = self.overtaken.take() {
            match left.checked_sub(1) {
                Some(left) if left > 0 => self.overtaken = Some((left, datagram)),
                _ => self.deliver_to_port(datagram),
            }
        }
        true
    }

    /// Puts a datagram into the source's port, which holds a limited number.
    fn deliver_to_port(&mut self, datagram: Vec<u8>) {
        match self.port.len() < self.plan.port {
            true => self.port.push_back((self.dropped, datagram)),
            false => self.dropped += 1,
        }
    }
}

/// The source's end of the cable.
#[derive(Debug)]
pub(crate) struct Receiver {
    instrument: Instrument,
    assembler: Assembler,
    longest: usize,
    description: Description,
    /// Time at which the port was last found empty.
    empty: Duration,
    dropped: u64,
}

impl Receiver {
    pub(crate) fn new(instrument: Instrument) -> Self {
        let line = instrument.lock_line();
        let (plan, longest, rate) = (&line.plan, longest_fragment(line.longest), line.triggers_per_second());
        let options = match plan.kind {
            DatagramKind::Fixed => {
                let counter = format!("counter = {{ at = 0, bytes = {}, little_endian = true }}", plan.bits / 8);
                let time = "time = { at = 8, bytes = 8, little_endian = true, hertz = 1_000_000_000, epoch = \"tai\" }";
                let time = plan.clock.map_or("", |_| time);
                format!("format = \"fixed\"\nheader = 16\nstep = {}\n{counter}\n{time}", plan.step)
            }
            DatagramKind::Spead => format!("format = \"spead\"\nstep = {}", plan.step),
            DatagramKind::Vdif => format!("format = \"vdif\"\nrate = {rate}"),
            DatagramKind::VdifSequence => "format = \"vdif\"\nsequence = true".into(),
            DatagramKind::Vita49 => "format = \"vita49\"".into(),
            DatagramKind::Vita49Rate => format!("format = \"vita49\"\nrate = {rate}"),
        };
        let first = if plan.first_is_stated { format!("first = {}\n", plan.first) } else { String::new() };
        let text = format!("listen = \"udp:0.0.0.0:1\"\nsize = {longest}\n{first}{options}\n");
        drop(line);
        let assembler = Assembler::new(&toml::from_str(&text).expect("a device's options")).expect("a device");
        let description = Description { kind: "udp".into(), simulated: true, ..Description::default() };
        Self { instrument, assembler, longest, description, empty: Duration::ZERO, dropped: 0 }
    }

    /// Passes a datagram from the port to the assembler. Returns whether there was one, and a place for it.
    fn receive_datagrams(&mut self, now: Duration) -> bool {
        let next = {
            let mut line = self.instrument.lock_line();
            line.start_listening(now);
            line.process_triggers_until(now);
            line.port.pop_front()
        };
        let Some((dropped, datagram)) = next else {
            self.empty = now;
            return false;
        };
        self.assembler.record_port_drops(dropped - std::mem::replace(&mut self.dropped, dropped));
        if self.pass_datagram(&datagram, now) == DatagramOutcome::NoBuffer {
            self.instrument.lock_line().port.push_front((dropped, datagram));
            return false;
        }
        true
    }

    fn pass_datagram(&mut self, datagram: &[u8], now: Duration) -> DatagramOutcome {
        let Some(front) = self.assembler.in_place_front_bytes() else {
            return self.assembler.accept_datagram(datagram, now);
        };
        let mut buffers = Vec::new();
        self.assembler.take_buffers(1, &mut buffers);
        let Some(mut buffer) = buffers.pop() else { return DatagramOutcome::NoBuffer };
        let (front, body) = datagram.split_at(front);
        buffer.payload_mut()[..body.len()].copy_from_slice(body);
        self.assembler.accept_in_place(front, buffer, datagram.len(), now);
        DatagramOutcome::Done
    }
}

impl Acquisition for Receiver {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_payload_bytes(&self) -> usize {
        self.longest
    }

    fn max_posted_buffers(&self) -> u32 {
        BUFFER_COUNT
    }

    fn post_buffer(&mut self, buffer: Buffer) {
        self.assembler.post_buffer(buffer);
    }

    /// Discards earlier datagrams, which are not part of the run.
    fn start_acquisition(&mut self, _at: TaiNanos) -> Result<(), DeviceError> {
        let mut line = self.instrument.lock_line();
        line.port.clear();
        self.dropped = line.dropped;
        drop(line);
        self.assembler.start_delivery();
        Ok(())
    }

    fn poll_acquired(&mut self, now: Duration) -> Result<Acquired, DeviceError> {
        loop {
            if let Some(acquired) = self.assembler.next_acquired(self.empty) {
                return Ok(acquired);
            }
            if self.receive_datagrams(now) {
                continue;
            }
            let line = self.instrument.lock_line();
            let is_over = line.next_trigger().is_none() && line.port.is_empty();
            return Ok(match self.assembler.next_acquired(self.empty) {
                Some(acquired) => acquired,
                None if is_over && self.assembler.next_deadline().is_none() => Acquired::Over,
                None => Acquired::NotYet,
            });
        }
    }

    fn has_room(&self) -> bool {
        self.assembler.has_room()
    }

    fn next_poll_time(&self) -> Option<Duration> {
        let due = self.assembler.next_deadline().filter(|due| due.is_zero() || self.has_room());
        due.into_iter().chain(self.instrument.lock_line().next_trigger()).min()
    }

    fn confirm_numbers(&mut self, first: u64) {
        self.assembler.numbers_agree(first);
    }

    fn stray_frame_count(&self) -> u64 {
        self.assembler.counts().stray
    }
}

/// Result of running an instrument with a receiver.
#[derive(Debug, Clone, Default)]
pub struct Trial {
    /// A sentence for each fragment with a good status that belongs to another trigger.
    pub wrong: Vec<String>,
    /// Number of fragments.
    pub fragments: u64,
    /// Number of fragments whose numbers are uncertain.
    pub uncertain: u64,
}

/// Runs an instrument and a receiver alone, for the given time; without faults if `is_calm`.
///
/// # Panics
/// Panics if the host is out of memory.
pub fn try_instrument(kind: DatagramKind, seed: u64, time: Duration, is_calm: bool) -> Trial {
    let mut random = Random::new(seed);
    let plan = InstrumentPlan::draw_instrument(&mut random, Some(kind), None);
    let (rate, longest) = (random.draw_logarithmic(10..2000), 64);
    let plan = InstrumentPlan { longest_loss: plan.longest_loss.min(1 + 2 * rate), ..plan };
    let plan = match is_calm {
        true => InstrumentPlan { lost: 0, doubled: 0, overtaken: 0, forged: 0, port: 4096, ..plan },
        false => plan,
    };
    let instrument = Instrument::new(&plan, seed, 0, (longest, u64::MAX), rate as f64);
    let plug = instrument.lock_line().plug.clone();
    let mut receiver = Receiver::new(instrument.clone());
    let mut pool = SlotPool::new("slots", BUFFER_COUNT, 512).expect("memory");
    while let Some(slot) = pool.take_slot() {
        receiver.post_buffer(Buffer::new(slot));
    }
    receiver.start_acquisition(TaiNanos(0)).expect("a device");
    let mut order = FrameOrder::new(0);
    let (mut now, mut trial) = (Duration::from_secs(1), Trial::default());
    let until = now + time;
    let mut last = (0, None, true);
    while now < until {
        match receiver.poll_acquired(now).expect("a device") {
            Acquired::Frame(frame) => {
                if let Some(late) = order.insert_frame(frame) {
                    receiver.post_buffer(late.buffer);
                }
            }
            Acquired::Lost { first, count } | Acquired::Missed { first, count } => order.record_lost(first, count),
            Acquired::NotYet | Acquired::Over => {
                // The source is busy or stopped.
                let stands = if !is_calm && random.once_in(500) {
                    random.draw_milliseconds(1..2000)
                } else {
                    random.draw_milliseconds(0..10)
                };
                now += stands;
                match random.draw_from(0..3000) {
                    _ if is_calm => {}
                    0 => plug.unplug_until(now + random.draw_milliseconds(1..3000)),
                    1 => instrument.switch_off(now, random.draw_milliseconds(100..3000)),
                    _ => {}
                }
            }
        }
        while let Some(next) = order.next_in_turn(false) {
            let OrderedFrame::Frame(mut frame) = next else { continue };
            trial.fragments += 1;
            let trigger = trigger_of_fragment(&frame.buffer.payload_mut()[..frame.len]);
            let is_certain = !frame.filled.status.contains(Status::UNCERTAIN);
            trial.uncertain += u64::from(!is_certain);
            if is_certain && trigger != Some(frame.number) {
                let number = frame.number;
                trial.wrong.push(format!(
                    "{kind:?}, seed {seed}, {rate}/s, {now:?}: {trigger:?} is {number}, behind {last:?}: {plan:?}"
                ));
            }
            last = (frame.number, trigger, is_certain);
            receiver.post_buffer(frame.buffer);
        }
    }
    trial
}
