//! Connected clients, and the disconnection of those that stay idle or stall.
//!
//! A connection belongs to an event loop or to a thread of its own. Others only shut its socket down, in three cases:
//! it moves next to no bytes of a transfer in progress ([`Clients::watch_for_stalls`]), it asks for nothing while
//! others wait for a place ([`Clients::make_room_for_client`]), or the server stops ([`Clients::disconnect_all`]).

use crate::kernel_tls::KernelTls;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use thalweg_sys::tcp::{Progress, connection_progress};

/// Connected clients, by number: the first that connected has the lowest.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    connected: Mutex<BTreeMap<u64, Arc<Client>>>,
    /// Notified when a client leaves, or becomes idle while others wait for a place.
    changed: Condvar,
    full: AtomicBool,
    stopped: AtomicBool,
}

/// A connected client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) socket: TcpStream,
    /// Keys and state of a socket that encrypts and decrypts.
    pub(crate) tls: OnceLock<Mutex<KernelTls>>,
    /// The current activity in the lowest bits; above them a number that changes each time.
    doing: AtomicU64,
}

/// Activity between a client and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activity {
    /// No request has arrived, or only part of one.
    Rest = 0,
    /// A request is being answered.
    Answer = 1,
    /// The body of a request is being received.
    Receive = 2,
}

impl Clients {
    /// Adds a client that connected.
    pub(crate) fn add_client(&self, number: u64, socket: TcpStream) -> Arc<Client> {
        let client = Arc::new(Client { socket, tls: OnceLock::new(), doing: AtomicU64::new(0) });
        self.connected.lock().insert(number, Arc::clone(&client));
        client
    }

    /// Removes a client.
    pub(crate) fn remove_client(&self, number: u64) {
        self.connected.lock().remove(&number);
        self.changed.notify_all();
    }

    /// Records the activity of a client.
    pub(crate) fn record_activity(&self, client: &Client, doing: Activity) {
        let before = client.doing.load(Ordering::Relaxed);
        client.doing.store(((before >> ACTIVITY_BITS) + 1) << ACTIVITY_BITS | doing as u64, Ordering::SeqCst);
        // Either `make_room` sees this, or this sees that others wait.
        if doing == Activity::Rest && self.full.load(Ordering::SeqCst) {
            drop(self.connected.lock());
            self.changed.notify_all();
        }
    }

    /// Makes room for one more client where `most` are connected: disconnects the longest-connected idle client. If
    /// none is idle, waits a while for one that leaves. Returns whether there is room.
    pub(crate) fn make_room_for_client(&self, most: usize) -> bool {
        let mut connected = self.connected.lock();
        if connected.len() < most {
            return true;
        }
        self.full.store(true, Ordering::SeqCst);
        if let Some(idle) = connected.values().find(|client| client.is_resting() && !client.has_arrived_bytes()) {
            tracing::info!("disconnecting an idle client: another client is waiting");
            idle.shut_down_socket(Shutdown::Both);
        }
        self.changed.wait_for(&mut connected, LEAVE_TIMEOUT);
        self.full.store(false, Ordering::SeqCst);
        connected.len() < most
    }

    /// Waits a while for a client to leave.
    pub(crate) fn wait_for_departure(&self) {
        let mut connected = self.connected.lock();
        let before = connected.len();
        self.changed.wait_while_for(&mut connected, |connected| connected.len() >= before, LEAVE_TIMEOUT);
    }

    /// Checks all clients each time that `timeout` has passed, until [`disconnect_all`](Self::disconnect_all).
    /// Disconnects a client that has been in the same activity since the last check, moved fewer than
    /// [`MIN_BYTES_PER_SECOND`] bytes a second, and is the side that is waited for.
    pub(crate) fn watch_for_stalls(&self, timeout: Duration) {
        let mut seen: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let least = (MIN_BYTES_PER_SECOND as f64 * timeout.as_secs_f64()) as u64;
        let mut connected = self.connected.lock();
        loop {
            self.changed.wait_while_for(&mut connected, |_| !self.stopped.load(Ordering::Relaxed), timeout);
            if self.stopped.load(Ordering::Relaxed) {
                return;
            }
            let mut now = BTreeMap::new();
            for (number, client) in connected.iter().filter(|(_, client)| !client.is_resting()) {
                let Some(progress) = connection_progress(client.socket.as_fd()) else { continue };
                let doing = client.doing.load(Ordering::Relaxed);
                let waited_for = if doing & ACTIVITY_MASK == Activity::Answer as u64 {
                    progress.owes
                } else {
                    !client.has_readable_bytes(&progress)
                };
                match seen.get(number) {
                    Some((before, moved)) if *before == doing && progress.moved < moved + least && waited_for => {
                        tracing::info!(
                            "disconnecting a client that transfers fewer than {MIN_BYTES_PER_SECOND} bytes per second"
                        );
                        client.shut_down_socket(Shutdown::Both);
                    }
                    _ => _ = now.insert(*number, (doing, progress.moved)),
                }
            }
            seen = now;
        }
    }

    /// Stops accepting requests, and disconnects all clients after at most `grace`.
    pub(crate) fn disconnect_all(&self, grace: Duration) {
        let mut connected = self.connected.lock();
        self.stopped.store(true, Ordering::Relaxed);
        self.changed.notify_all();
        connected.values().for_each(|client| client.shut_down_socket(Shutdown::Read));
        self.changed.wait_while_for(&mut connected, |connected| !connected.is_empty(), grace);
        connected.values().for_each(|client| client.shut_down_socket(Shutdown::Both));
    }
}

impl Client {
    /// Returns the TLS state, if the socket encrypts and decrypts.
    pub(crate) fn lock_tls(&self) -> Option<MutexGuard<'_, KernelTls>> {
        self.tls.get().map(Mutex::lock)
    }

    /// Counts bytes that were sent.
    pub(crate) fn count_sent_bytes(&self, bytes: u64) {
        if let Some(mut tls) = self.lock_tls() {
            tls.count_sent_bytes(bytes);
        }
    }

    /// Announces that nothing more will be sent.
    pub(crate) fn announce_end(&self) {
        if let Some(mut tls) = self.lock_tls() {
            tls.send_close_notify(&self.socket);
        }
        self.shut_down_socket(Shutdown::Write);
    }

    /// Returns whether bytes of the client have arrived: a client whose request was not read yet is not idle.
    fn has_arrived_bytes(&self) -> bool {
        connection_progress(self.socket.as_fd()).is_some_and(|progress| self.has_readable_bytes(&progress))
    }

    /// Returns whether the client has sent something that can be read.
    fn has_readable_bytes(&self, progress: &Progress) -> bool {
        // Half a TLS record cannot be read.
        progress.holds >= if self.tls.get().is_some() { MAX_RECORD_BYTES } else { 1 }
    }

    fn is_resting(&self) -> bool {
        self.doing.load(Ordering::SeqCst) & ACTIVITY_MASK == Activity::Rest as u64
    }

    fn shut_down_socket(&self, how: Shutdown) {
        // A client that has gone already needs no shutdown.
        let _ = self.socket.shutdown(how);
    }
}

/// Rate in bytes per second that a client must receive or send at least while a transfer is in progress.
pub(crate) const MIN_BYTES_PER_SECOND: u64 = 500;
/// Length in bytes of the longest TLS record (RFC 5246, section 6.2.3; those of RFC 8446 are shorter).
const MAX_RECORD_BYTES: u64 = 5 + (16 << 10) + 2048;
/// Time to wait for a client to leave before the server checks again.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of bits of [`Client::doing`] that hold the activity.
const ACTIVITY_BITS: u32 = 2;
const ACTIVITY_MASK: u64 = (1 << ACTIVITY_BITS) - 1;
