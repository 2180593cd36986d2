//! Those that are connected, and what is done about those that stay and do nothing.
//!
//! A connection is in the hands of an event loop, or of a thread of its own. From outside only three things happen to
//! it: its socket is shut down where it takes or sends next to nothing of what is under way ([`Clients::watch`]), where
//! it asks for nothing while others wait to get in ([`Clients::make_room`]), and when the server stops
//! ([`Clients::send_away`]).

use crate::kernel_tls::KernelTls;
use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use thalweg_tcp::{Progress, progress};

/// Those that are connected, by number: the first that came has the lowest.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    connected: Mutex<BTreeMap<u64, Arc<Client>>>,
    /// Somebody left, or rests while others wait to get in.
    changed: Condvar,
    full: AtomicBool,
    stopped: AtomicBool,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) socket: TcpStream,
    /// Where the socket encrypts and decrypts.
    pub(crate) tls: OnceLock<Mutex<KernelTls>>,
    /// What goes on, in the lowest bits, and above them a number that changes each time.
    doing: AtomicU64,
}

/// What goes on between a client and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    /// No request has come, or not all of it.
    Rest = 0,
    /// Something is answered.
    Answer = 1,
    /// The body of a request comes in.
    Receive = 2,
}

impl Clients {
    /// Adds one that connected.
    pub(crate) fn enter(&self, number: u64, socket: TcpStream) -> Arc<Client> {
        let client = Arc::new(Client { socket, tls: OnceLock::new(), doing: AtomicU64::new(0) });
        self.connected().insert(number, Arc::clone(&client));
        client
    }

    /// Removes one.
    pub(crate) fn leave(&self, number: u64) {
        self.connected().remove(&number);
        self.changed.notify_all();
    }

    /// Notes what goes on with one.
    pub(crate) fn note(&self, client: &Client, doing: Activity) {
        let before = client.doing.load(Ordering::Relaxed);
        client.doing.store(((before >> BITS) + 1) << BITS | doing as u64, Ordering::SeqCst);
        // Either this is seen in `make_room`, or that others wait is seen here.
        if doing == Activity::Rest && self.full.load(Ordering::SeqCst) {
            drop(self.connected());
            self.changed.notify_all();
        }
    }

    /// Makes room for one more where `most` are connected: of those that rest, the one that came first has to go. Where
    /// none does, waits a while for one that leaves. Says whether there is room.
    pub(crate) fn make_room(&self, most: usize) -> bool {
        let mut connected = self.connected();
        if connected.len() < most {
            return true;
        }
        self.full.store(true, Ordering::SeqCst);
        // A request that has come and was not looked at yet is one.
        let asks = |client: &Client| progress(client.socket.as_fd()).is_some_and(|progress| client.holds(&progress));
        if let Some(idle) = connected.values().find(|client| client.rests() && !asks(client)) {
            tracing::info!("a client that asks for nothing goes, another one waits");
            idle.shut_down(Shutdown::Both);
        }
        (connected, _) = self.changed.wait_timeout(connected, A_WHILE).unwrap_or_else(PoisonError::into_inner);
        self.full.store(false, Ordering::SeqCst);
        connected.len() < most
    }

    /// Waits a while for somebody to leave.
    pub(crate) fn wait_for_one_to_leave(&self) {
        let connected = self.connected();
        let before = connected.len();
        drop(self.changed.wait_timeout_while(connected, A_WHILE, |connected| connected.len() >= before));
    }

    /// Looks at them each time that `timeout` is over, until [`send_away`](Self::send_away): who has been in the middle
    /// of one and the same thing since the last time, moved fewer than [`SLOWEST`] bytes a second, and is the one that
    /// is waited for, goes.
    pub(crate) fn watch(&self, timeout: Duration) {
        let mut seen: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let least = (SLOWEST as f64 * timeout.as_secs_f64()) as u64;
        let mut connected = self.connected();
        loop {
            let stopped = |_: &mut _| !self.stopped.load(Ordering::Relaxed);
            let (guard, waited) =
                self.changed.wait_timeout_while(connected, timeout, stopped).unwrap_or_else(PoisonError::into_inner);
            if !waited.timed_out() {
                return;
            }
            connected = guard;
            let mut now = BTreeMap::new();
            for (number, client) in connected.iter().filter(|(_, client)| !client.rests()) {
                let Some(progress) = progress(client.socket.as_fd()) else { continue };
                let doing = client.doing.load(Ordering::Relaxed);
                let waited_for =
                    if doing & MASK == Activity::Answer as u64 { progress.owes } else { !client.holds(&progress) };
                match seen.get(number) {
                    Some((before, moved)) if *before == doing && progress.moved < moved + least && waited_for => {
                        tracing::info!("a client that moves fewer than {SLOWEST} bytes a second goes");
                        client.shut_down(Shutdown::Both);
                    }
                    _ => _ = now.insert(*number, (doing, progress.moved)),
                }
            }
            seen = now;
        }
    }

    /// The server stops: no further requests, and `grace` for what is under way.
    pub(crate) fn send_away(&self, grace: Duration) {
        let connected = self.connected();
        self.stopped.store(true, Ordering::Relaxed);
        self.changed.notify_all();
        connected.values().for_each(|client| client.shut_down(Shutdown::Read));
        let waited = self.changed.wait_timeout_while(connected, grace, |connected| !connected.is_empty());
        let (connected, _) = waited.unwrap_or_else(PoisonError::into_inner);
        connected.values().for_each(|client| client.shut_down(Shutdown::Both));
    }

    fn connected(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Client>>> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Client {
    /// Where the socket encrypts and decrypts.
    pub(crate) fn tls(&self) -> Option<MutexGuard<'_, KernelTls>> {
        self.tls.get().map(|tls| tls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes that bytes were sent.
    pub(crate) fn has_sent(&self, bytes: u64) {
        if let Some(mut tls) = self.tls() {
            tls.has_sent(bytes);
        }
    }

    /// Says that nothing more will be sent.
    pub(crate) fn say_goodbye(&self) {
        if let Some(mut tls) = self.tls() {
            tls.say_goodbye(&self.socket);
        }
        self.shut_down(Shutdown::Write);
    }

    /// Whether it has sent something that can be read.
    fn holds(&self, progress: &Progress) -> bool {
        // Half a record is nothing that anybody could read.
        progress.holds >= if self.tls.get().is_some() { RECORD } else { 1 }
    }

    fn rests(&self) -> bool {
        self.doing.load(Ordering::SeqCst) & MASK == Activity::Rest as u64
    }

    fn shut_down(&self, how: Shutdown) {
        // One that has gone already is where it should be.
        let _ = self.socket.shutdown(how);
    }
}

/// Bytes a second that a client has to take, or send, while something is under way.
pub(crate) const SLOWEST: u64 = 500;
/// Bytes of the longest record of TLS (RFC 5246, section 6.2.3; those of RFC 8446 are shorter).
const RECORD: u64 = 5 + (16 << 10) + 2048;
/// How long somebody is waited for before the server looks around.
const A_WHILE: Duration = Duration::from_secs(1);
/// Of [`Client::doing`], those that say what goes on.
const BITS: u32 = 2;
const MASK: u64 = (1 << BITS) - 1;
