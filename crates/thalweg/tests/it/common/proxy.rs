//! A stretch of network between sources and a builder that a test can cut.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use thalweg_wire::{MESSAGE_LEN, Message};

/// Where a connection is cut.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cut {
    /// When so many bytes from the source have passed.
    After(u64),
    /// Instead of the builder's first message of this kind.
    Before(fn(&Message) -> bool),
    /// At once: as a firewall would, or a switch that is restarted.
    AtOnce,
}

/// Passes connections on. The first is cut at the first place, the second at the second, and those for which no cut is
/// left live.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    connections: Arc<AtomicU32>,
}

impl Proxy {
    pub(crate) fn new(to: SocketAddr, cuts: impl IntoIterator<Item = Cut>) -> Self {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = door.local_addr().unwrap();
        let connections = Arc::new(AtomicU32::new(0));
        let cuts: Mutex<VecDeque<Cut>> = Mutex::new(cuts.into_iter().collect());
        let count = Arc::clone(&connections);
        thread::spawn(move || {
            for source in door.incoming().map_while(Result::ok) {
                count.fetch_add(1, Ordering::Relaxed);
                let cut = cuts.lock().unwrap().pop_front();
                if matches!(cut, Some(Cut::AtOnce)) {
                    continue;
                }
                // A builder that is gone: the source sees its connection end.
                let Ok(builder) = TcpStream::connect(to) else { continue };
                pass_on(source, builder, cut);
            }
        });
        Self { address, connections }
    }

    /// As sources write it.
    pub(crate) fn address(&self) -> String {
        format!("tcp:{}", self.address)
    }

    /// How many connections there have been.
    pub(crate) fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }
}

fn pass_on(source: TcpStream, builder: TcpStream, cut: Option<Cut>) {
    source.set_nodelay(true).unwrap();
    builder.set_nodelay(true).unwrap();
    let (up, down) = match cut {
        Some(Cut::After(bytes)) => (bytes, None),
        Some(Cut::Before(kind)) => (u64::MAX, Some(kind)),
        Some(Cut::AtOnce) | None => (u64::MAX, None),
    };
    let ends = Arc::new([source, builder]);
    for (from, most, stop) in [(0, up, None), (1, u64::MAX, down)] {
        let ends = Arc::clone(&ends);
        thread::spawn(move || {
            pump(&ends[from], &ends[1 - from], most, stop);
            for end in ends.iter() {
                let _ = end.shutdown(Shutdown::Both);
            }
        });
    }
}

/// Passes bytes on until `most` have passed, a message is one to stop at, or an end is gone.
fn pump(mut from: &TcpStream, mut to: &TcpStream, most: u64, stop: Option<fn(&Message) -> bool>) {
    let mut bytes = vec![0; 64 << 10];
    let mut left = most;
    let mut held = 0;
    while left > 0 {
        let room = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let Ok(n @ 1..) = from.read(&mut bytes[held..room]) else { return };
        let there = held + n;
        // What a builder says is messages alone, as long as it refuses nobody.
        let whole = if stop.is_some() { there - there % MESSAGE_LEN } else { there };
        let mut pass = whole;
        if let Some(stop) = stop {
            let cells = bytes[..whole].as_chunks::<MESSAGE_LEN>().0;
            let stops = |cell| Message::decode(cell).is_ok_and(|message| stop(&message));
            pass = cells.iter().position(stops).map_or(whole, |at| at * MESSAGE_LEN);
        }
        if to.write_all(&bytes[..pass]).is_err() || pass < whole {
            return;
        }
        left -= pass as u64;
        bytes.copy_within(whole..there, 0);
        held = there - whole;
    }
}
