//! The two ends: the near one posts requests and times them; the far one drives its RNIC, receives, and writes back.
//!
//! Sends need receives that are posted before. The far end writes the number of its receives so far into the near end's
//! memory, behind the message; the near end posts no more sends than that allows.

use super::{Case, Engine, Operation, Path};
use crate::cpu::{Usage, Used};
use crate::drive::Stop;
use crate::net::bind_to_processor;
use crate::network::{End as Place, Network};
use crate::options::Timing;
use crate::peers::first_two_processors;
use crate::point::Latency;
use crate::{BenchError, Clock};
use hdrhistogram::Histogram;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::{Duration, Instant};
use thalweg_rdma::{
    Access, Buffer, CompletedOperation, CompletionQueue, Connection, ConnectionParameters, Data, Device, Limits,
    QueuePair, QueuePairOptions, QueueState, RemoteAddress, SendRequest, Sge, Transport, Work,
};

/// Receives that the far end has posted for each request that the near end may have outstanding.
const RECEIVES_PER_REQUEST: u32 = 4;

/// Length in bytes of the number of receives.
const COUNT_BYTES: u64 = 8;

/// Writes of that number that may be outstanding.
const COUNTS_OUTSTANDING: u32 = 16;

/// Time for a connection, and for requests to complete.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Time after which a far end that has nothing to do looks whether the measurement is over.
const TURN_TIME: Duration = Duration::from_millis(2);

/// Result of exchanging messages for a time.
pub(super) struct Exchanged {
    /// Requests that completed.
    pub(super) operations: u64,
    /// Time of each, in nanoseconds, where one is outstanding at a time.
    pub(super) times: Histogram<u64>,
    pub(super) used: Used,
}

/// One end: a queue pair with its memory.
struct End {
    case: Case,
    device: Device,
    queue: QueuePair,
    completions: CompletionQueue,
    buffer: Buffer,
    /// Connection to another RNIC; kept, since dropping it ends the queue pair.
    connection: Option<Connection>,
}

/// Completions of one poll.
#[derive(Debug, Default)]
struct Completed {
    sends: u64,
    receives: u64,
}

/// End that posts the operations that are measured.
struct Near<'a> {
    end: End,
    /// Memory of the far end.
    to: RemoteAddress,
    clock: &'a Clock,
    /// Set when the far end has failed.
    over: &'a AtomicBool,
    /// Operations posted so far.
    begun: u64,
    /// Completed writes and answers of a ping-pong.
    writes: u64,
    answers: u64,
}

/// End that drives its RNIC, receives, and writes back.
struct Far {
    end: End,
    /// Memory of the near end.
    to: RemoteAddress,
    /// Messages received so far, and of these those that the near end was told of.
    messages: u64,
    reported: u64,
}

/// Exchanges messages for the times of `timing`, first those that do not count.
pub(super) fn exchange_messages(
    case: Case,
    network: &Network,
    clock: &Clock,
    timing: &Timing,
    stop: &Stop,
) -> Result<Exchanged, BenchError> {
    let over = AtomicBool::new(false);
    let (to_near, from_far) = mpsc::sync_channel(1);
    let (to_far, from_near) = mpsc::sync_channel(1);
    // Both ends of one RNIC are of one open device, or of an embedded one opened twice.
    let local = (case.path == Path::Local).then(|| open_device(case.engine)).transpose()?;
    let (over, local) = (&over, local.as_ref());
    thread::scope(|scope| {
        let far = scope.spawn(move || {
            network.enter_end(Place::Server)?;
            let device = local.map_or_else(|| open_device(case.engine), open_again)?;
            let listen = network.server_address()?;
            let (end, to) = End::create(case, device)?.accept_peer(listen, &to_near, &from_near)?;
            bind_to_processor(processor_of(Place::Server))?;
            let served = Far { end, to, messages: 0, reported: 0 }.serve_peer(over);
            over.store(true, Ordering::Relaxed);
            served
        });
        let near = scope.spawn(move || {
            network.enter_end(Place::Client)?;
            let device = local.map_or_else(|| open_device(case.engine), open_again)?;
            let (end, to) = End::create(case, device)?.connect_to_peer(&to_far, &from_far)?;
            bind_to_processor(processor_of(Place::Client))?;
            let mut near = Near { end, to, clock, over, begun: 0, writes: 0, answers: 0 };
            let measured = near.measure_operations(timing, stop)?;
            Ok((measured, near))
        });
        let measured = near.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        over.store(true, Ordering::Relaxed);
        // The near end lives until then: without it, the receives of the far one fail.
        let served: Result<(), BenchError> = far.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match (measured, served) {
            (Ok((measured, _near)), Ok(())) => Ok(measured),
            // The near end stops where the far one has failed.
            (Ok(_) | Err(BenchError::Stopped), Err(error)) | (Err(error), _) => Err(error),
        }
    })
}

/// Returns the processor that an end is bound to.
fn processor_of(place: Place) -> Option<u32> {
    let at = usize::from(matches!(place, Place::Server));
    first_two_processors().and_then(|two| u32::try_from(two[at]).ok())
}

fn verbs_error<E: std::fmt::Display>(doing: &'static str) -> impl Fn(E) -> BenchError {
    move |error| BenchError::Peer { peer: "the RNIC".to_owned(), why: format!("{doing}: {error}") }
}

fn open_device(engine: Engine) -> Result<Device, BenchError> {
    match engine {
        Engine::Embedded => Device::open_embedded(Limits::default()),
        Engine::Thread => Device::open_thread(Limits::default()),
    }
    .map_err(verbs_error("opening it"))
}

/// Opens a device for one more end: an embedded one as another program.
fn open_again(device: &Device) -> Result<Device, BenchError> {
    if device.is_embedded() { device.open_again().map_err(verbs_error("opening it again")) } else { Ok(device.clone()) }
}

impl Path {
    /// Returns the transport of a connection. Ends of one RNIC find each other by any.
    fn transport(self) -> Transport {
        match self {
            Self::Local | Self::Tcp => Transport::Tcp,
            Self::Efe => Transport::Efe,
        }
    }
}

impl Case {
    /// Returns the offset of the place of messages that come in; those that go out lie before it.
    fn incoming_offset(self) -> u64 {
        self.size.next_multiple_of(64)
    }

    /// Returns the offset of the number of receives that the far end has used.
    fn count_offset(self) -> u64 {
        2 * self.incoming_offset()
    }

    /// Returns the number of receives that are posted for the peer's sends.
    fn receives(self) -> u32 {
        self.outstanding * RECEIVES_PER_REQUEST
    }
}

impl End {
    fn create(case: Case, device: Device) -> Result<Self, BenchError> {
        let doing = "setting up a queue pair";
        let domain = device.allocate_domain().map_err(verbs_error(doing))?;
        let entries = case.outstanding + case.receives() + COUNTS_OUTSTANDING;
        let completions = device.create_completion_queue(entries, None).map_err(verbs_error(doing))?;
        let mut options = QueuePairOptions::new(&completions);
        options.lengths.send_requests = case.outstanding + COUNTS_OUTSTANDING;
        options.lengths.receives = case.receives();
        let queue = domain.create_queue_pair(&options).map_err(verbs_error(doing))?;
        queue.modify_state(QueueState::Init, None).map_err(verbs_error(doing))?;
        let bytes = case.count_offset() + COUNT_BYTES;
        let buffer = domain.create_buffer(bytes as usize, Access::all()).map_err(verbs_error("registering memory"))?;
        let end = Self { case, device, queue, completions, buffer, connection: None };
        if case.operation == Operation::Send {
            for _ in 0..case.receives() {
                end.post_receive()?;
            }
        }
        Ok(end)
    }

    /// Listens at `address`, says where and for which memory, and accepts the peer. Returns the end and the peer's memory.
    fn accept_peer(
        mut self,
        address: SocketAddr,
        to_near: &SyncSender<(SocketAddr, RemoteAddress)>,
        from_near: &Receiver<RemoteAddress>,
    ) -> Result<(Self, RemoteAddress), BenchError> {
        let failed = "accepting a connection";
        let listener = self.device.listen_over(self.case.path.transport(), address, 1).map_err(verbs_error(failed))?;
        let _ = to_near.send((listener.local_address(), self.memory_place()));
        let request = listener.wait_for_request(TIMEOUT).map_err(verbs_error(failed))?;
        let request = request.ok_or("no peer has connected").map_err(verbs_error(failed))?;
        let connection = request.accept(&self.queue, ConnectionParameters::default(), TIMEOUT);
        self.connection = Some(connection.map_err(verbs_error(failed))?);
        let near_place = from_near.recv_timeout(TIMEOUT).map_err(verbs_error("waiting for the near end"))?;
        Ok((self, near_place))
    }

    /// Connects to the far end. Returns the end and the peer's memory.
    fn connect_to_peer(
        mut self,
        to_far: &SyncSender<RemoteAddress>,
        from_far: &Receiver<(SocketAddr, RemoteAddress)>,
    ) -> Result<(Self, RemoteAddress), BenchError> {
        let (address, far_place) = from_far.recv_timeout(TIMEOUT).map_err(verbs_error("waiting for the far end"))?;
        let parameters = ConnectionParameters::default();
        let connection = self.queue.connect_over(self.case.path.transport(), address, parameters, TIMEOUT);
        self.connection = Some(connection.map_err(verbs_error("connecting"))?);
        let _ = to_far.send(self.memory_place());
        Ok((self, far_place))
    }

    /// Returns the place in this end's memory that the peer writes and reads.
    fn memory_place(&self) -> RemoteAddress {
        RemoteAddress { address: self.buffer.address_at(self.case.incoming_offset()), stag: self.buffer.stag() }
    }

    fn outgoing_message(&self) -> Sge {
        self.buffer.sge(0, self.case.size as u32)
    }

    /// Sets the last byte of the message that goes out.
    fn mark_outgoing(&self, mark: u8) {
        self.buffer.shared_memory().store_bytes(self.case.size as usize - 1, &[mark]);
    }

    /// Returns the last byte of the message that came in.
    fn incoming_mark(&self) -> u8 {
        let mut mark = [0];
        let at = self.case.incoming_offset() + self.case.size - 1;
        self.buffer.shared_memory().load_bytes(at as usize, &mut mark);
        mark[0]
    }

    /// Takes the completions there are, all of them successful.
    fn poll_completions(&self) -> Result<Completed, BenchError> {
        let mut completed = Completed::default();
        while let Some(completion) = self.completions.poll_one().map_err(verbs_error("polling"))? {
            if !completion.is_success() {
                return Err(verbs_error("a request failed")(completion));
            }
            match completion.operation() {
                CompletedOperation::Receive => completed.receives += 1,
                _ => completed.sends += 1,
            }
        }
        Ok(completed)
    }

    fn post_receive(&self) -> Result<(), BenchError> {
        let into = [self.buffer.sge(self.case.incoming_offset(), self.case.size as u32)];
        self.queue.post_receive(0, &into).map_err(verbs_error("posting a receive"))
    }

    /// Posts a request that has a completion.
    fn post_request(&self, work: Work<'_>) -> Result<(), BenchError> {
        self.queue.post_send(&SendRequest::signaled(0, work)).map_err(verbs_error("posting a request"))
    }

    /// Posts the operation that is measured.
    fn post_operation(&self, to: RemoteAddress) -> Result<(), BenchError> {
        let memory = [self.outgoing_message()];
        let data = Data::Memory(&memory);
        self.post_request(match self.case.operation {
            Operation::Write | Operation::PingPong => Work::Write { data, to, immediate: None },
            Operation::Read => Work::Read { into: &memory, from: to },
            Operation::Send => Work::Send { data, immediate: None },
            Operation::FetchAdd => Work::FetchAdd { into: memory[0], at: to, add: 1 },
            Operation::CompareSwap => Work::CompareSwap { into: memory[0], at: to, compare: 0, swap: 0 },
        })
    }
}

impl Near<'_> {
    /// Measures after the warm-up.
    fn measure_operations(&mut self, timing: &Timing, stop: &Stop) -> Result<Exchanged, BenchError> {
        let mut times = Latency::new_histogram();
        self.repeat_operation(timing.warmup, &mut times, stop)?;
        times.reset();
        let usage = Usage::read_counters();
        let operations = self.repeat_operation(timing.min_time, &mut times, stop)?;
        let used = usage.used_since();
        if stop.is_requested() || operations == 0 {
            return Err(BenchError::Stopped);
        }
        Ok(Exchanged { operations, times, used })
    }

    /// Repeats the operation for a time, and returns how often it was done. All messages have arrived then.
    fn repeat_operation(&mut self, time: Duration, times: &mut Histogram<u64>, stop: &Stop) -> Result<u64, BenchError> {
        let limit = u64::from(self.end.case.outstanding);
        let begun = Instant::now();
        let (mut operations, mut outstanding, mut posted_at) = (0, 0, 0);
        let mut over = false;
        while !over || outstanding > 0 {
            while !over && outstanding < limit && self.may_begin() {
                posted_at = self.clock.read_counter();
                self.begin_operation()?;
                outstanding += 1;
            }
            let completed = self.completed_operations()?;
            if completed > 0 && limit == 1 {
                times.saturating_record(self.clock.elapsed_nanos(posted_at, self.clock.read_counter()));
            }
            (operations, outstanding) = (operations + completed, outstanding - completed);
            over = begun.elapsed() >= time && operations > 0 || stop.is_requested();
            self.check_progress(begun, time)?;
        }
        // The answer to a read follows all messages.
        self.end.post_request(Work::Read { into: &[self.end.outgoing_message()], from: self.to })?;
        while self.end.poll_completions()?.sends == 0 {
            self.check_progress(begun, time)?;
        }
        Ok(operations)
    }

    fn begin_operation(&mut self) -> Result<(), BenchError> {
        self.begun += 1;
        if self.end.case.operation == Operation::PingPong {
            self.end.mark_outgoing(self.begun as u8);
        }
        self.end.post_operation(self.to)
    }

    /// Returns the number of operations that have completed; of a ping-pong, 1 when the answer is there.
    fn completed_operations(&mut self) -> Result<u64, BenchError> {
        let writes = self.end.poll_completions()?.sends;
        if self.end.case.operation != Operation::PingPong {
            return Ok(writes);
        }
        self.writes += writes;
        let answered = self.answers < self.begun && self.writes == self.begun;
        let answered = answered && self.end.incoming_mark() == self.begun as u8;
        self.answers += u64::from(answered);
        Ok(u64::from(answered))
    }

    /// Returns whether the far end has a receive for one more send.
    fn may_begin(&self) -> bool {
        let case = self.end.case;
        if case.operation != Operation::Send {
            return true;
        }
        let mut received = [0; COUNT_BYTES as usize];
        self.end.buffer.shared_memory().load_bytes(case.count_offset() as usize, &mut received);
        self.begun < u64::from_ne_bytes(received) + u64::from(case.receives())
    }

    /// Returns an error if the far end has failed, or nothing has completed for long after the time.
    fn check_progress(&self, begun: Instant, time: Duration) -> Result<(), BenchError> {
        if self.over.load(Ordering::Relaxed) {
            return Err(BenchError::Stopped);
        }
        if begun.elapsed() > time + TIMEOUT {
            return Err(BenchError::Silent { doing: "waiting for completions".to_owned(), timeout: TIMEOUT });
        }
        Ok(())
    }
}

impl Far {
    /// Drives its RNIC, receives and answers, until the measurement is over.
    fn serve_peer(mut self, over: &AtomicBool) -> Result<(), BenchError> {
        while !over.load(Ordering::Relaxed) {
            match self.end.case.operation {
                _ if !self.end.case.has_far_thread() => thread::sleep(TURN_TIME),
                Operation::PingPong => self.answer_writes()?,
                _ => self.receive_messages()?,
            }
        }
        Ok(())
    }

    fn answer_writes(&mut self) -> Result<(), BenchError> {
        self.end.poll_completions()?;
        let next = (self.messages + 1) as u8;
        if self.end.incoming_mark() == next {
            self.messages += 1;
            self.end.mark_outgoing(next);
            self.end.post_operation(self.to)?;
        }
        Ok(())
    }

    /// Posts a receive for each that was used, and tells the peer how many there were.
    fn receive_messages(&mut self) -> Result<(), BenchError> {
        for _ in 0..self.end.poll_completions()?.receives {
            self.end.post_receive()?;
            self.messages += 1;
        }
        let case = self.end.case;
        if self.messages - self.reported >= u64::from(case.receives() / 2) {
            self.reported = self.messages;
            let address = self.to.address + case.count_offset() - case.incoming_offset();
            let (to, count) = (RemoteAddress { address, ..self.to }, self.messages.to_ne_bytes());
            self.end.post_request(Work::Write { data: Data::Inline(&count), to, immediate: None })?;
        }
        Ok(())
    }
}
