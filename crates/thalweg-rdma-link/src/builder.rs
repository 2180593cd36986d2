//! The builder's end: fetches by RDMA reads, straight into their places.

use crate::connection::{Arrival, PeerConnection, Read};
use crate::endpoint::RdmaLink;
use crate::memory::{MemoryUse, RegisteredArenas};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use thalweg_arena::Span;
use thalweg_link::parts::{
    FetchRequest, Grants, MAX_UNREAD_BYTES, check_hello, check_offer, check_unread_bytes, encode_refusal,
};
use thalweg_link::{BuilderLink, Bytes, LinkError, Received};
use thalweg_rdma::{RemoteAddress, Sge};
use thalweg_wire::{Announcement, Capabilities, Disposition, Losses, Message, Refusal, Region, Sender};

/// Longest RDMA read in bytes: what a source has sent is known when a read completes, so a long fetch is several.
const MAX_READ_BYTES: u32 = 256 << 10;

/// The connection is dropped first: afterwards no read writes to the places of the fetches.
#[derive(Debug)]
pub(crate) struct RdmaBuilder {
    connection: PeerConnection,
    arenas: Arc<Mutex<RegisteredArenas>>,
    greeted: bool,
    /// True if the source must be asked before its bytes are read.
    withdraws: bool,
    /// The source's arena.
    region: Option<Region>,
    /// Fetches that wait to be granted, by their ids.
    grants: Grants<u64>,
    fetches: BTreeMap<u64, Fetch>,
    next_fetch: u64,
    /// Fetches of which more was requested than was posted, by their ids.
    unposted: VecDeque<u64>,
    /// Lengths in bytes of the reads that are posted, with the ids of their fetches: they complete in this order.
    posted: VecDeque<(u64, u32)>,
    received: u64,
    losses: Losses,
    /// Number of times that the kernel and the RNIC copy a byte on its way to its place.
    copies_per_byte: u64,
}

/// A fetch. Its place is kept until no read writes to it any more.
#[derive(Debug)]
struct Fetch {
    ticket: u64,
    arena_offset: u64,
    place: Span,
    /// STag of the place.
    stag: u32,
    /// Bytes requested, of which reads were posted, and that have come.
    upto: u32,
    posted_bytes: u32,
    arrived_bytes: u32,
    is_granted: bool,
    is_cancelled: bool,
}

impl RdmaBuilder {
    pub(crate) fn new(connection: PeerConnection, arenas: Arc<Mutex<RegisteredArenas>>, copies_per_byte: u64) -> Self {
        Self {
            connection,
            arenas,
            greeted: false,
            withdraws: false,
            region: None,
            grants: Grants::default(),
            fetches: BTreeMap::new(),
            next_fetch: 0,
            unposted: VecDeque::new(),
            posted: VecDeque::new(),
            received: 0,
            losses: Losses::default(),
            copies_per_byte,
        }
    }

    fn on_message(&mut self, message: Message, text: Vec<u8>, received: &mut Vec<Received>) -> Result<(), LinkError> {
        match message {
            Message::Hello(hello) if !self.greeted => {
                check_hello(&hello)?;
                let text = String::from_utf8(text)
                    .map_err(|_| LinkError::Protocol("the source's description is not UTF-8".into()))?;
                self.greeted = true;
                self.withdraws = hello.capabilities.contains(Capabilities::WITHDRAWS);
                received.push(Received::Hello(hello, text));
            }
            Message::Refuse { reason, .. } => {
                return Err(LinkError::Refused { reason, text: "the source closed the connection".into() });
            }
            _ if !self.greeted => {
                return Err(LinkError::Protocol(format!("the first message must be a hello, not {message:?}")));
            }
            Message::Hello(_) => return Err(LinkError::Protocol("the source sent a second hello".into())),
            Message::Ignored { .. } => {}
            Message::Region(region) => self.set_region(region)?,
            Message::Offer(offer) => {
                check_offer(&offer, self.withdraws)?;
                if offer.disposition == Disposition::Eager {
                    let text = format!("ticket {} was offered eagerly, which this link has no way for", offer.ticket);
                    return Err(LinkError::Protocol(text));
                }
                if offer.disposition.is_dropped() {
                    self.grants.note_dropped(offer.ticket);
                }
                received.push(Received::Message(message));
            }
            Message::Data { ticket, offset, length } => {
                let id = self.grants.take_granted(FetchRequest { ticket, offset, length })?;
                if let Some(fetch) = self.fetches.get_mut(&id) {
                    fetch.is_granted = true;
                    self.unposted.push_back(id);
                }
            }
            Message::Losses(losses) => self.losses = losses,
            message if message.sending_end() == Sender::Source => received.push(Received::Message(message)),
            _ => return Err(LinkError::Protocol(format!("the source sent a builder's message: {message:?}"))),
        }
        Ok(())
    }

    fn set_region(&mut self, region: Region) -> Result<(), LinkError> {
        let Region { arena, base, length, key } = region;
        if self.region.is_some() || arena != 0 || key > u32::MAX.into() || base.checked_add(length).is_none() {
            return Err(LinkError::Protocol(format!(
                "{region:?} is none that can be read: a source announces one arena, number 0, with a key of 32 bits"
            )));
        }
        self.region = Some(region);
        Ok(())
    }

    /// Returns the reads to post now, as many as there is room for.
    fn next_reads(&mut self) -> Result<Vec<Read>, LinkError> {
        let mut reads = Vec::new();
        let Some(region) = self.region else { return Ok(reads) };
        let room = self.connection.room_for_reads() as usize;
        while reads.len() < room
            && let Some(id) = self.unposted.front().copied()
        {
            let fetch = self.fetches.get_mut(&id).filter(|fetch| fetch.is_granted && !fetch.is_cancelled);
            let Some(fetch) = fetch.filter(|fetch| fetch.posted_bytes < fetch.upto) else {
                self.unposted.pop_front();
                continue;
            };
            fetch.check_range(&region)?;
            let bytes = (fetch.upto - fetch.posted_bytes).min(MAX_READ_BYTES);
            reads.push(fetch.next_read(id, bytes, &region));
            fetch.posted_bytes += bytes;
            self.posted.push_back((id, bytes));
        }
        Ok(reads)
    }

    /// Takes note of a read that has completed.
    fn finish_read(&mut self, id: u64, received: &mut Vec<Received>) {
        // Reads complete in the order in which they were posted.
        let Some((_, bytes)) = self.posted.pop_front().filter(|(posted, _)| *posted == id) else { return };
        self.received += u64::from(bytes);
        let Some(fetch) = self.fetches.get_mut(&id) else { return };
        fetch.arrived_bytes += bytes;
        if fetch.is_complete() && !fetch.is_cancelled {
            if let Some(Fetch { ticket, place, .. }) = self.fetches.remove(&id) {
                received.push(Received::Arrived { ticket, bytes: Bytes::Place(place) });
            }
        } else if fetch.is_cancelled && fetch.is_idle() {
            self.fetches.remove(&id);
        }
    }

    fn fetch_of_ticket(&mut self, ticket: u64) -> Option<(u64, &mut Fetch)> {
        let mut fetches = self.fetches.iter_mut().map(|(id, fetch)| (*id, fetch));
        fetches.find(|(_, fetch)| fetch.ticket == ticket && !fetch.is_cancelled)
    }
}

impl Fetch {
    /// Returns whether no read for it is posted.
    fn is_idle(&self) -> bool {
        self.posted_bytes == self.arrived_bytes
    }

    fn is_complete(&self) -> bool {
        self.arrived_bytes as usize == self.place.len()
    }

    /// Checks that the offered bytes lie in the source's arena.
    fn check_range(&self, region: &Region) -> Result<(), LinkError> {
        let (offset, bytes, size) = (self.arena_offset, self.place.len(), region.length);
        match offset.checked_add(bytes as u64) {
            Some(end) if end <= size => Ok(()),
            _ => Err(LinkError::Protocol(format!("offered bytes {offset}+{bytes} of an arena of {size} bytes"))),
        }
    }

    /// Returns the read of the next bytes, after those that are posted.
    fn next_read(&self, id: u64, bytes: u32, region: &Region) -> Read {
        let at = u64::from(self.posted_bytes);
        let address = self.place.arena_offset() as u64 + at;
        let from = RemoteAddress { address: region.base + self.arena_offset + at, stag: region.key as u32 };
        Read { id, into: Sge { address, bytes, stag: self.stag }, from }
    }
}

impl RdmaLink for RdmaBuilder {
    type Received = Received;

    const MEMORY_USE: MemoryUse = MemoryUse::SinkOfReads;

    fn connection(&self) -> &PeerConnection {
        &self.connection
    }

    fn connection_mut(&mut self) -> &mut PeerConnection {
        &mut self.connection
    }

    fn handle_arrival(&mut self, arrival: Arrival, received: &mut Vec<Received>) -> Result<(), LinkError> {
        match arrival {
            Arrival::Messages => {
                while let Some((message, text)) = self.connection.channel.next_message()? {
                    self.on_message(message, text, received)?;
                }
            }
            Arrival::Read { id } => self.finish_read(id, received),
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        let reads = self.next_reads()?;
        self.connection.post_requests(&reads)?;
        check_unread_bytes(self.connection.channel.unsent_bytes(), MAX_UNREAD_BYTES)
    }
}

impl BuilderLink for RdmaBuilder {
    fn maps_source_memory(&self) -> bool {
        false
    }

    fn begin_fetch(&mut self, offer: &Announcement, into: Option<Span>, upto: u32) -> Result<Option<Bytes>, LinkError> {
        let place = into.unwrap_or_else(|| unreachable!("an RDMA link maps no memory: a fetch needs a destination"));
        if place.is_empty() {
            return Ok(Some(Bytes::Place(place)));
        }
        let stag = self.arenas.lock().stag_of_arena(place.arena())?;
        let id = self.next_fetch;
        self.next_fetch += 1;
        if self.withdraws {
            let request = self.grants.request_offer(offer, id);
            self.connection.channel.queue_message(&request);
        } else {
            self.unposted.push_back(id);
        }
        let fetch = Fetch {
            ticket: offer.ticket,
            arena_offset: offer.arena_offset,
            place,
            stag,
            upto,
            posted_bytes: 0,
            arrived_bytes: 0,
            is_granted: !self.withdraws,
            is_cancelled: false,
        };
        self.fetches.insert(id, fetch);
        Ok(None)
    }

    fn extend_fetch(&mut self, ticket: u64, upto: u32) {
        let Some((id, fetch)) = self.fetch_of_ticket(ticket) else { return };
        fetch.upto = fetch.upto.max(upto);
        if fetch.is_granted {
            self.unposted.push_back(id);
        }
    }

    fn received_bytes(&self) -> u64 {
        self.received
    }

    fn known_losses(&self) -> Losses {
        self.losses
    }

    fn cancel_fetch(&mut self, ticket: u64) {
        self.grants.cancel_fetch(ticket);
        let Some((id, fetch)) = self.fetch_of_ticket(ticket) else { return };
        fetch.is_cancelled = true;
        if fetch.is_idle() {
            self.fetches.remove(&id);
        }
    }

    fn release_tickets(&mut self, below: u64) {
        self.send_message(&Message::Release { below });
    }

    fn send_message(&mut self, message: &Message) {
        self.connection.channel.queue_message(message);
    }

    fn refuse_source(&mut self, reason: Refusal, text: &str) {
        self.connection.channel.queue_bytes(&encode_refusal(reason, text));
    }

    fn copied_bytes(&self) -> u64 {
        self.received * self.copies_per_byte
    }
}
