//! An instrument that counts the datagrams that it sends, dates them, and begins to count anew; and a cable on which they
//! are lost, doubled and overtaken. What takes them is a source's own code.

use crate::clock::EPOCH;
use crate::device::{Had, Plug, Truth, payload};
use crate::plan::InstrumentPlan;
use crate::random::Random;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thalweg_device::{Acquired, Acquisition, Buffer, Description, DeviceError};
use thalweg_instrument::{Assembler, Taken};
use thalweg_wire::TaiNanos;

/// Bytes in front of a datagram's payload: its count and its time.
const HEADER: usize = 16;
/// Buffers that it has at a time.
const DEPTH: u32 = 64;
/// An instrument that has sent so many since it began to count can be seen to begin anew.
const SEEN_TO_COUNT: u64 = 64;
/// Of those that it sends first, none are lost: without `first` and `rate` nobody knows of them.
const SPARED: u64 = 20;
/// By then it is known how fast a device is.
const KNOWN: Duration = Duration::from_millis(2200);

/// Payload of an instrument's fragment: its trigger, and bytes that go by it.
pub(crate) fn instrument_payload(seed: u64, source: usize, trigger: u64, longest: usize) -> Vec<u8> {
    [&trigger.to_le_bytes()[..], &payload(seed, source, trigger, longest)].concat()
}

/// The trigger that a payload names.
pub(crate) fn trigger_of(payload: &[u8]) -> Option<u64> {
    payload.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// An instrument and its cable: they go on while the source's node stands still or is gone.
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
    /// When its first trigger is; of one whose triggers are its own, when it is started first.
    began: Option<Duration>,
    /// The next trigger.
    next: u64,
    /// How many it has counted, and the count of the first of them.
    counted: u64,
    base: u64,
    /// It is being switched off and on again until then.
    off_until: Duration,
    counts_anew: bool,
    /// How far its clock was set.
    set: i64,
    /// Of the datagrams that follow, so many are not lost, and then so many are.
    spared: u64,
    losing: u64,
    /// One that is overtaken by so many.
    overtaken: Option<(u64, Vec<u8>)>,
    /// What has arrived, each with how many the port had dropped by then.
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
            began: plan.clock.map(|_| Duration::from_secs(1)),
            next: 0,
            counted: 0,
            base: plan.first,
            off_until: Duration::ZERO,
            counts_anew: false,
            set: 0,
            spared: SPARED,
            losing: 0,
            overtaken: None,
            port: VecDeque::new(),
            dropped: 0,
            plan: plan.clone(),
        })))
    }

    /// With a book of what it had, and a plug.
    pub(crate) fn with(self, truth: Truth, plug: Plug) -> Self {
        let mut line = self.line();
        (line.truth, line.plug) = (truth, plug);
        drop(line);
        self
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is switched off, and on again: then it counts anew.
    pub(crate) fn switch_off(&self, now: Duration, time: Duration) {
        let mut line = self.line();
        line.run_to(now);
        if line.counted >= SEEN_TO_COUNT && line.is_known(now) {
            (line.off_until, line.counts_anew) = (now + time, true);
        }
    }

    /// Its clock is set.
    pub(crate) fn set_clock(&self, now: Duration, by: i64) {
        let mut line = self.line();
        line.run_to(now);
        line.set += by;
    }
}

impl Line {
    fn is_known(&self, now: Duration) -> bool {
        self.began.is_some_and(|began| now >= began + KNOWN)
    }

    /// When the next trigger is.
    fn next_trigger(&self) -> Option<Duration> {
        let next = u32::try_from(self.next).unwrap_or(u32::MAX);
        self.began.filter(|_| self.next < self.events).map(|began| began + self.interval.saturating_mul(next))
    }

    /// All triggers until now.
    fn run_to(&mut self, now: Duration) {
        while let Some(at) = self.next_trigger().filter(|at| *at <= now) {
            let trigger = self.next;
            self.next += 1;
            if at < self.off_until {
                self.truth.had().insert(trigger, Had::Lost);
                continue;
            }
            if std::mem::take(&mut self.counts_anew) {
                (self.counted, self.base, self.spared) = (0, 0, SPARED);
                self.losing = 0;
            }
            let datagram = self.datagram(trigger, at);
            self.counted += 1;
            let is_sent = self.send(datagram, at);
            self.truth.had().insert(trigger, if is_sent { Had::Filled } else { Had::Lost });
        }
        if self.next >= self.events
            && let Some((_, datagram)) = self.overtaken.take()
        {
            self.arrive(datagram);
        }
    }

    fn datagram(&mut self, trigger: u64, at: Duration) -> Vec<u8> {
        let bits = 8 * self.plan.bytes;
        let count = self.base.wrapping_add(self.counted.wrapping_mul(self.plan.step)) & (u64::MAX >> (64 - bits));
        let payload = instrument_payload(self.seed, self.source, trigger, self.longest);
        let time = self.time(at);
        [&count.to_le_bytes()[..], &time.to_le_bytes(), &payload].concat()
    }

    /// What its clock shows.
    fn time(&mut self, at: Duration) -> u64 {
        let Some(clock) = self.plan.clock else { return 0 };
        let nanos = i64::try_from(at.as_nanos()).unwrap_or(i64::MAX);
        let jitter = self.random.of(0..clock.jitter.max(1)).cast_signed();
        let wild = if self.random.of(0..1000) < clock.wild { self.random.next() >> 3 } else { 0 };
        let off = clock.off + nanos / 1_000_000 * clock.drift_ppm + jitter + self.set;
        (EPOCH.wrapping_add_signed(nanos + off)).wrapping_add(wild)
    }

    /// A datagram goes on its way. Whether it can arrive.
    fn send(&mut self, datagram: Vec<u8>, at: Duration) -> bool {
        let mut once = |of_thousand: u64| self.random.of(0..1000) < of_thousand;
        let (is_lost, is_doubled, is_overtaken, is_forged) =
            (once(self.plan.lost), once(self.plan.doubled), once(self.plan.overtaken), once(self.plan.forged));
        if !self.plug.is_in(at) && (self.is_known(at) || self.plan.clock.is_some()) {
            return false;
        }
        if let Some(left) = self.spared.checked_sub(1) {
            self.spared = left;
            self.arrive(datagram);
            return true;
        }
        if is_forged {
            let mut forged = datagram.clone();
            forged[..8].copy_from_slice(&(self.random.next() >> (64 - 8 * self.plan.bytes)).to_le_bytes());
            self.arrive(forged);
        }
        if is_lost {
            self.losing = self.losing.max(self.random.logarithmic(1..self.plan.longest_loss + 2));
        }
        if let Some(left) = self.losing.checked_sub(1) {
            self.losing = left;
            // Two that are lost one after the other are one longer.
            self.spared = u64::from(left == 0);
            return false;
        }
        if is_doubled {
            self.arrive(datagram.clone());
        }
        if is_overtaken && self.overtaken.is_none() {
            self.overtaken = Some((self.random.of(1..4), datagram));
            return true;
        }
        self.arrive(datagram);
        if let Some((left, datagram)) = self.overtaken.take() {
            match left.checked_sub(1) {
                Some(left) if left > 0 => self.overtaken = Some((left, datagram)),
                _ => self.arrive(datagram),
            }
        }
        true
    }

    /// A datagram is at the source's port, which holds so many.
    fn arrive(&mut self, datagram: Vec<u8>) {
        match self.port.len() < self.plan.port {
            true => self.port.push_back((self.dropped, datagram)),
            false => self.dropped += 1,
        }
    }
}

/// A source's end of the cable.
#[derive(Debug)]
pub(crate) struct Receiver {
    instrument: Instrument,
    assembler: Assembler,
    longest: usize,
    description: Description,
    /// When the port was found empty last.
    empty: Duration,
    dropped: u64,
}

impl Receiver {
    pub(crate) fn new(instrument: Instrument) -> Self {
        let line = instrument.line();
        let (plan, longest) = (&line.plan, line.longest + size_of::<u64>());
        let first = if plan.first_is_stated { format!("first = {}\n", plan.first) } else { String::new() };
        let text = format!(
            "listen = \"udp:0.0.0.0:1\"\nformat = \"fixed\"\nsize = {longest}\nheader = {HEADER}\nstep = {}\n{first}\
             counter = {{ at = 0, bytes = {}, little_endian = true }}\n\
             time = {{ at = 8, bytes = 8, little_endian = true, hertz = 1_000_000_000, epoch = \"tai\" }}\n",
            plan.step, plan.bytes
        );
        let text = if plan.clock.is_some() { text } else { text.split("time = ").next().unwrap_or_default().into() };
        drop(line);
        let assembler = Assembler::new(&toml::from_str(&text).expect("a device's options")).expect("a device");
        let description = Description { kind: "udp".into(), simulated: true, ..Description::default() };
        Self { instrument, assembler, longest, description, empty: Duration::ZERO, dropped: 0 }
    }

    /// Gives what is at the port to the assembler. Whether there was any, and a place for it.
    fn receive(&mut self, now: Duration) -> bool {
        let next = {
            let mut line = self.instrument.line();
            // An instrument whose triggers are its own begins when it is listened to.
            line.began.get_or_insert(now);
            line.run_to(now);
            line.port.pop_front()
        };
        let Some((dropped, datagram)) = next else {
            self.empty = now;
            return false;
        };
        if self.give(&datagram, now) == Taken::NoBuffer {
            self.instrument.line().port.push_front((dropped, datagram));
            return false;
        }
        self.assembler.dropped(dropped - std::mem::replace(&mut self.dropped, dropped));
        true
    }

    fn give(&mut self, datagram: &[u8], now: Duration) -> Taken {
        let mut buffers = Vec::new();
        self.assembler.take_buffers(1, &mut buffers);
        let Some(mut buffer) = buffers.pop() else { return Taken::NoBuffer };
        let (front, body) = datagram.split_at(HEADER);
        buffer.payload()[..body.len()].copy_from_slice(body);
        self.assembler.received(front, buffer, datagram.len(), now);
        Taken::Done
    }
}

impl Acquisition for Receiver {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_payload(&self) -> usize {
        self.longest
    }

    fn depth(&self) -> u32 {
        DEPTH
    }

    fn post(&mut self, buffer: Buffer) {
        self.assembler.post(buffer);
    }

    /// What came before is no part of the run.
    fn start(&mut self, _at: TaiNanos) -> Result<(), DeviceError> {
        let mut line = self.instrument.line();
        line.port.clear();
        self.dropped = line.dropped;
        drop(line);
        self.assembler.start();
        Ok(())
    }

    fn poll(&mut self, now: Duration) -> Result<Acquired, DeviceError> {
        loop {
            if let Some(acquired) = self.assembler.next(self.empty) {
                return Ok(acquired);
            }
            if self.receive(now) {
                continue;
            }
            let line = self.instrument.line();
            let is_over = line.next_trigger().is_none() && line.port.is_empty();
            return Ok(match self.assembler.next(self.empty) {
                Some(acquired) => acquired,
                None if is_over && self.assembler.next_time().is_none() => Acquired::Over,
                None => Acquired::NotYet,
            });
        }
    }

    fn has_room(&self) -> bool {
        self.assembler.has_room()
    }

    fn next_time(&self) -> Option<Duration> {
        let due = self.assembler.next_time().filter(|due| due.is_zero() || self.has_room());
        due.into_iter().chain(self.instrument.line().next_trigger()).min()
    }

    fn of_no_event(&self) -> u64 {
        self.assembler.counts().stray
    }
}
