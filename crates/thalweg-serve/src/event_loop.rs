//! An event loop: one thread that serves all clients that ask for files in the page cache.
//!
//! A system call that sends a megabyte is short compared with the cost of putting a thread to sleep until the next one
//! fits and of waking it in its turn; with hundreds of clients the order in which threads are woken determines how long
//! a client waits. Work that has to wait for something else (a disk, TLS, the bytes of an upload, a listing) does not
//! belong here: such a client is handed over to a thread of its own until it asks for something else.

use crate::answer::{Answer, Piece};
use crate::client::{Activity, Client, Clients};
use crate::counters::Counters;
use crate::head;
use crate::limits::{HEAD_TIME, LINGER_TIME};
use crate::outgoing::{Handoff, Outgoing, range_of_turn};
use crate::site::Site;
use http::StatusCode;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::SockRef;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use thalweg_transfer::{Outward, Sender, seems_cached};

/// The clients of one thread.
#[derive(Debug)]
pub(crate) struct EventLoop {
    epoll: OwnedFd,
    /// Becomes readable when the loop has to end.
    stop: OwnedFd,
    stopped: AtomicBool,
    /// Clients that were added and not looked at yet.
    added: Mutex<Vec<(u64, Arc<Client>, Handoff)>>,
    clients: AtomicUsize,
}

/// State that all loops share.
pub(crate) struct LoopContext<'a> {
    pub(crate) site: &'a Site,
    pub(crate) counters: &'a Counters,
    pub(crate) clients: &'a Clients,
    /// Time after which a client that moves no bytes is disconnected.
    pub(crate) timeout: Duration,
    /// Method by which bytes in the page cache are sent.
    pub(crate) way: Outward,
    /// Receives a client that needs a thread of its own.
    pub(crate) hand_over: &'a dyn Fn(u64, Arc<Client>, Handoff),
}

#[derive(Debug)]
struct ServedClient {
    client: Arc<Client>,
    /// Bytes that arrived and were not parsed yet.
    ahead: Vec<u8>,
    /// True if the socket may hold more bytes. If false, epoll reports the next ones.
    readable: bool,
    /// True if the client sends no more: epoll does not report that again.
    ends: bool,
    state: State,
    /// Deadline for the client's next step, unless it is being answered: the progress of answers is
    /// [watched](Clients::watch_for_stalls).
    until: Instant,
    /// True if the client is in the queue for a turn.
    queued: bool,
}

#[derive(Debug)]
enum State {
    /// A request is awaited.
    AwaitRequest,
    /// An answer is being sent.
    Answer(Sending),
    /// All was sent; bytes that still arrive are discarded until the client closes, too (RFC 9112, section 9.6).
    Linger,
}

#[derive(Debug)]
struct Sending {
    answer: Outgoing,
    /// Number of bytes sent of the first piece, if that piece is in memory.
    sent: usize,
    /// True if the socket sends only full packets (`TCP_CORK`, tcp(7)).
    corked: bool,
    /// True if the socket did not accept all of the last bytes.
    full: bool,
}

/// Result of a turn.
enum Turn {
    /// The client waits for an event of its socket or for its deadline.
    Wait,
    /// The client could continue; others get a turn first.
    Again,
    /// Another thread has to continue.
    HandOver,
    Gone,
}

impl EventLoop {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &stop, epoll::EventData::new_u64(STOP_TOKEN), epoll::EventFlags::IN)?;
        Ok(Self { epoll, stop, stopped: AtomicBool::new(false), added: Mutex::default(), clients: AtomicUsize::new(0) })
    }

    /// Returns the number of clients.
    pub(crate) fn client_count(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }

    /// Returns whether the loop serves no clients any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Adds a client. Fails if the loop has ended.
    pub(crate) fn add_client(&self, number: u64, client: Arc<Client>, begun: Handoff) -> io::Result<()> {
        client.socket.set_nonblocking(true)?;
        // The loop wakes at once, since the socket is writable, and finds the client as soon as it gets this lock.
        let mut added = self.added.lock();
        if self.has_ended() {
            return Err(io::Error::other("its event loop has ended"));
        }
        let both = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        epoll::add(&self.epoll, &client.socket, epoll::EventData::new_u64(number), both)?;
        added.push((number, client, begun));
        self.clients.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Stops the loop. Clients that are still connected are removed.
    pub(crate) fn request_stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }

    /// Serves until [`stop`](Self::stop), or until waiting for events fails. Clients that are left are removed, and the
    /// loop accepts no others.
    pub(crate) fn run_until_stopped(&self, context: &LoopContext<'_>) -> io::Result<()> {
        let mut served = HashMap::new();
        let result = self.serve_events(&mut served, context);
        let mut added = self.added.lock();
        self.stopped.store(true, Ordering::Relaxed);
        let added = added.drain(..).map(|(number, ..)| number);
        added.chain(served.into_keys()).for_each(|number| context.clients.remove_client(number));
        result
    }

    fn serve_events(&self, served: &mut HashMap<u64, ServedClient>, context: &LoopContext<'_>) -> io::Result<()> {
        let mut ready: VecDeque<u64> = VecDeque::new();
        let mut sender = Sender::new();
        let mut swept = Instant::now();
        while !self.has_ended() {
            let timeout = match (ready.is_empty(), served.is_empty()) {
                (false, _) => Some(Timespec::default()),
                (true, false) => Timespec::try_from(SWEEP_INTERVAL).ok(),
                (true, true) => None,
            };
            let again = ready.len();
            let mut space = [MaybeUninit::uninit(); 512];
            let events = match epoll::wait(&self.epoll, &mut space, timeout.as_ref()) {
                Ok((events, _)) => events,
                Err(Errno::INTR) => &mut [],
                Err(error) => return Err(error.into()),
            };
            for (number, client, begun) in self.added.lock().drain(..) {
                served.insert(number, ServedClient::new(client, begun, context));
            }
            for event in events {
                let (number, flags) = (event.data.u64(), event.flags);
                let Some(client) = served.get_mut(&number) else { continue };
                client.readable |= flags != epoll::EventFlags::OUT;
                client.ends |= flags.intersects(ENDS);
                client.queue_for_turn(number, &mut ready);
            }
            // Clients that already had a turn are queued after those that wait for one.
            ready.rotate_left(again);
            for _ in 0..ready.len() {
                let Some(number) = ready.pop_front() else { break };
                self.give_turn(number, served, &mut ready, &mut sender, context);
            }
            let now = Instant::now();
            if now.saturating_duration_since(swept) >= SWEEP_INTERVAL {
                swept = now;
                let late = served.iter_mut().filter(|(_, client)| client.until <= now && !client.is_being_answered());
                for (number, client) in late {
                    client.prepare_late_turn();
                    client.queue_for_turn(*number, &mut ready);
                }
            }
        }
        Ok(())
    }

    fn give_turn(
        &self,
        number: u64,
        served: &mut HashMap<u64, ServedClient>,
        ready: &mut VecDeque<u64>,
        sender: &mut Sender,
        context: &LoopContext<'_>,
    ) {
        let Some(client) = served.get_mut(&number) else { return };
        client.queued = false;
        // A panic caused by one client must not cost the others their connections.
        let turn = catch_unwind(AssertUnwindSafe(|| client.take_turn(context, sender)));
        let turn = turn.unwrap_or_else(|_| Err(io::Error::other("a panic")));
        match turn {
            Ok(Turn::Wait) => return,
            Ok(Turn::Again) => return client.queue_for_turn(number, ready),
            Ok(Turn::HandOver | Turn::Gone) => {}
            Err(ref error) => {
                // The client is informed where that is possible; no one else needs to know.
                tracing::debug!("a client disconnected: {error}");
                // Bytes that the client does not read are not kept for it either: the connection is reset.
                let _ = SockRef::from(&client.client.socket).set_linger(Some(Duration::ZERO));
            }
        }
        let Some(ServedClient { client, ahead, state, .. }) = served.remove(&number) else { return };
        self.clients.fetch_sub(1, Ordering::Relaxed);
        // A socket that is closed leaves the epoll set by itself.
        let _ = epoll::delete(&self.epoll, &client.socket);
        match turn {
            Ok(Turn::HandOver) => {
                let answer = if let State::Answer(sending) = state { Some(sending.remaining_answer()) } else { None };
                (context.hand_over)(number, client, Handoff { ahead, answer });
            }
            _ => context.clients.remove_client(number),
        }
    }
}

impl ServedClient {
    fn new(client: Arc<Client>, begun: Handoff, context: &LoopContext<'_>) -> Self {
        let until = Instant::now() + context.timeout;
        let state = State::AwaitRequest;
        let mut served = Self { client, ahead: begun.ahead, readable: true, ends: false, state, until, queued: false };
        if let Some(answer) = begun.answer {
            context.clients.record_activity(&served.client, Activity::Answer);
            served.begin_answer(answer);
        }
        served
    }

    fn queue_for_turn(&mut self, number: u64, ready: &mut VecDeque<u64>) {
        if !std::mem::replace(&mut self.queued, true) {
            ready.push_back(number);
        }
    }

    /// Does what can be done now, up to the limit of one turn.
    fn take_turn(&mut self, context: &LoopContext<'_>, sender: &mut Sender) -> io::Result<Turn> {
        for _ in 0..STEPS_PER_TURN {
            let now = Instant::now();
            match &mut self.state {
                State::AwaitRequest => match head::parse_head(&self.ahead) {
                    Ok(Some((head, length))) => {
                        context.clients.record_activity(&self.client, Activity::Answer);
                        let Some(answer) = context.site.answer_without_waiting(&head) else {
                            return Ok(Turn::HandOver);
                        };
                        self.ahead.drain(..length);
                        let answer = Outgoing::new(answer, Some(&head));
                        let hand_over = answer.coding.is_some();
                        self.begin_answer(answer);
                        if hand_over {
                            return Ok(Turn::HandOver);
                        }
                    }
                    Ok(None) => {
                        let began = self.ahead.is_empty();
                        match self.read_request_bytes()? {
                            Received::Nothing => return Ok(Turn::Wait),
                            Received::End => return Ok(self.turn_after_end()),
                            Received::Control => return Ok(Turn::HandOver),
                            // The rest of the head has to arrive soon.
                            Received::Bytes if began => self.until = now + HEAD_TIME.min(context.timeout),
                            Received::Bytes => {}
                        }
                    }
                    Err((status, sentence)) => {
                        self.begin_answer(Outgoing::new(Answer::with_sentence(status, sentence), None));
                    }
                },
                State::Answer(sending) => {
                    if sending.is_fully_sent() {
                        let keep = sending.answer.keep;
                        if !keep && self.client.tls.get().is_some() {
                            return Ok(Turn::HandOver);
                        }
                        context.counters.requests.fetch_add(1, Ordering::Relaxed);
                        context.clients.record_activity(&self.client, Activity::Rest);
                        self.finish_answer(keep, context.timeout, now);
                        // A client that asks again at once does not get its turn before all others.
                        return Ok(if self.ahead.is_empty() && !self.readable { Turn::Wait } else { Turn::Again });
                    }
                    match sending.send_some(&self.client, context, sender)? {
                        Sent::Some => {}
                        Sent::Enough => return Ok(Turn::Again),
                        Sent::Full => return Ok(Turn::Wait),
                        Sent::NeedsThread => {
                            sending.uncork_socket(&self.client)?;
                            return Ok(Turn::HandOver);
                        }
                    }
                }
                State::Linger => {
                    self.ahead.clear();
                    return Ok(match self.read_request_bytes() {
                        _ if self.until <= now => Turn::Gone,
                        Ok(Received::Nothing) => Turn::Wait,
                        Ok(Received::Bytes) => Turn::Again,
                        Ok(Received::End | Received::Control) | Err(_) => Turn::Gone,
                    });
                }
            }
        }
        Ok(Turn::Again)
    }

    fn begin_answer(&mut self, answer: Outgoing) {
        self.state = State::Answer(Sending { answer, sent: 0, corked: false, full: false });
    }

    fn finish_answer(&mut self, keep: bool, timeout: Duration, now: Instant) {
        if keep {
            self.state = State::AwaitRequest;
            self.until = now + if self.ahead.is_empty() { timeout } else { HEAD_TIME.min(timeout) };
        } else {
            // If the client has gone, the next read finds out.
            self.client.announce_end();
            self.state = State::Linger;
            self.until = now + LINGER_TIME.min(timeout);
        }
    }

    fn is_being_answered(&self) -> bool {
        matches!(self.state, State::Answer(_))
    }

    /// Prepares the next turn of a client whose deadline has passed.
    fn prepare_late_turn(&mut self) {
        self.readable = true;
        match self.state {
            State::AwaitRequest if !self.ahead.is_empty() => {
                let late = Answer::with_sentence(StatusCode::REQUEST_TIMEOUT, "the request header took too long");
                self.begin_answer(Outgoing::new(late, None));
            }
            // The next read finds the socket closed.
            State::AwaitRequest => {
                self.client.announce_end();
                let _ = self.client.socket.shutdown(Shutdown::Both);
            }
            State::Answer(_) | State::Linger => _ = self.client.socket.shutdown(Shutdown::Both),
        }
    }

    /// Handles a client that sends no more. A client that has to receive a TLS `close_notify` is handed to a thread
    /// that can wait until everything before it was accepted.
    fn turn_after_end(&self) -> Turn {
        if self.client.tls.get().is_some() { Turn::HandOver } else { Turn::Gone }
    }

    /// Reads the bytes that the client sent.
    fn read_request_bytes(&mut self) -> io::Result<Received> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        while self.readable {
            match recv(&self.client.socket, &mut buffer, RecvFlags::empty()) {
                Ok(((read, rest), _)) => {
                    // Fewer bytes than fit into the buffer are all there are (epoll(7), question 9), except that TLS
                    // records come one by one.
                    self.readable = self.ends || rest.is_empty() || self.client.tls.get().is_some();
                    self.ahead.extend_from_slice(read);
                    return Ok(if read.is_empty() { Received::End } else { Received::Bytes });
                }
                Err(Errno::AGAIN) => self.readable = false,
                Err(Errno::INTR) => {}
                Err(Errno::IO) if self.client.tls.get().is_some() => return Ok(Received::Control),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Received::Nothing)
    }
}

/// Result of reading from a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Received {
    Bytes,
    /// No bytes are available now.
    Nothing,
    /// The client sends no more.
    End,
    /// A TLS record that carries no data and has to be answered, which may have to wait.
    Control,
}

/// Result of sending the next bytes of an answer.
enum Sent {
    /// Bytes were sent, and the turn may continue.
    Some,
    /// Bytes were sent, as many as one client gets in a turn.
    Enough,
    /// No bytes were sent: the socket accepts no more now.
    Full,
    /// No bytes were sent: the disk, or new keys, would have to be waited for.
    NeedsThread,
}

impl Sending {
    fn is_fully_sent(&self) -> bool {
        self.answer.pieces.is_empty()
    }

    /// Sends some bytes of the answer and removes them from it.
    fn send_some(&mut self, client: &Client, context: &LoopContext<'_>, sender: &mut Sender) -> io::Result<Sent> {
        if client.lock_tls().is_some_and(|tls| tls.needs_new_keys()) {
            return Ok(Sent::NeedsThread);
        }
        let more = self.answer.pieces.len() > 1;
        let Some(piece) = self.answer.pieces.front_mut() else { return Ok(Sent::Some) };
        let (done, enough) = match piece {
            Piece::Bytes(bytes) => {
                let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
                match send(&client.socket, &bytes[self.sent..], flags) {
                    Ok(sent) => {
                        self.sent += sent;
                        client.count_sent_bytes(sent as u64);
                    }
                    Err(Errno::AGAIN) => return Ok(Sent::Full),
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
                (self.sent == bytes.len(), false)
            }
            Piece::File(file, range) => {
                let turn = range_of_turn(range);
                if !Sender::supports_send_some(context.way) || !seems_cached(file.buffered_file(), &turn) {
                    return Ok(Sent::NeedsThread);
                }
                let small = turn.end - turn.start <= MAX_SINGLE_SEND_BYTES;
                if !self.corked && (more || !small) {
                    // Sends full packets only, until the whole answer was handed to the kernel.
                    SockRef::from(&client.socket).set_tcp_cork(true)?;
                    self.corked = true;
                }
                // `splice` fetches as much as a socket that is not full may accept; `sendfile` finds out how much that
                // is, in one system call.
                let way = if self.full || small { Outward::Sendfile } else { context.way };
                match sender.send_some(way, file, range, turn.end - turn.start, client.socket.as_fd()) {
                    Ok(()) => self.full = range.start < turn.end,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Sent::Full),
                    Err(error) => return Err(error),
                }
                client.count_sent_bytes(range.start - turn.start);
                context.counters.sent.fetch_add(range.start - turn.start, Ordering::Relaxed);
                (range.is_empty(), range.start == turn.end && !range.is_empty())
            }
        };
        if done {
            self.answer.pieces.pop_front();
            self.sent = 0;
            if self.is_fully_sent() {
                self.uncork_socket(client)?;
            }
        }
        Ok(if enough { Sent::Enough } else { Sent::Some })
    }

    fn uncork_socket(&mut self, client: &Client) -> io::Result<()> {
        if std::mem::take(&mut self.corked) { SockRef::from(&client.socket).set_tcp_cork(false) } else { Ok(()) }
    }

    /// Returns the part that is not sent yet.
    fn remaining_answer(mut self) -> Outgoing {
        if let Some(Piece::Bytes(bytes)) = self.answer.pieces.front_mut() {
            bytes.drain(..self.sent);
        }
        self.answer
    }
}

/// Events of a client that sends no more or has gone.
const ENDS: epoll::EventFlags = epoll::EventFlags::RDHUP.union(epoll::EventFlags::HUP).union(epoll::EventFlags::ERR);
/// Event number of the stop descriptor; no client has it.
const STOP_TOKEN: u64 = u64::MAX;
/// Interval at which clients past their deadline are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_millis(250);
/// Number of steps of one client before others get their turn, for requests in pieces and answers of many pieces.
const STEPS_PER_TURN: u32 = 64;
/// Range length, in bytes, up to which one plain system call is best.
const MAX_SINGLE_SEND_BYTES: u64 = 128 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_loop_that_cannot_wait_for_events_keeps_no_client() {
        let directory = tempfile::tempdir().unwrap();
        let site = Site::new(Tree::open_directory(directory.path()).unwrap(), None, false, false);
        let (counters, clients) = (Counters::default(), Clients::default());
        let context = LoopContext {
            site: &site,
            counters: &counters,
            clients: &clients,
            timeout: Duration::from_secs(10),
            way: Outward::Sendfile,
            hand_over: &|_, _, _| {},
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peers = [1, 2].map(|_| TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let mut event_loop = EventLoop::new().unwrap();
        let client = clients.add_client(1, listener.accept().unwrap().0);
        event_loop.add_client(1, client, Handoff::default()).unwrap();
        // Not an epoll instance, so `epoll_wait` fails.
        event_loop.epoll = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        assert!(event_loop.run_until_stopped(&context).is_err());
        assert!(event_loop.has_ended() && clients.make_room_for_client(1), "the client is still connected");
        assert_eq!(peers[0].read(&mut [0]).unwrap(), 0);
        let client = clients.add_client(2, listener.accept().unwrap().0);
        assert!(event_loop.add_client(2, client, Handoff::default()).is_err());
    }
}
