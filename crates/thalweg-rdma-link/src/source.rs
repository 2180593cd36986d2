//! The source's end: offers, and grants where it may withdraw them. Its RNIC answers the builder's reads.

use crate::connection::{Arrival, PeerConnection};
use crate::endpoint::RdmaLink;
use crate::memory::MemoryUse;
use thalweg_link::parts::{FetchRequest, Novelty, Offered};
use thalweg_link::{LinkError, SourceGreeting, SourceLink};
use thalweg_wire::{Announcement, Disposition, Message, Region, Sender};

#[derive(Debug)]
pub(crate) struct RdmaSource {
    connection: PeerConnection,
    offered: Offered,
    /// Number of times that the RNIC and the kernel copy a byte on its way out.
    copies_per_byte: u64,
}

impl RdmaSource {
    /// Creates the link. The greeting is sent as soon as the connection is up; `region` has address
    /// and STag by which peers name the arena.
    pub(crate) fn new(
        mut connection: PeerConnection,
        greeting: &SourceGreeting,
        region: (u64, u32),
        copies_per_byte: u64,
    ) -> Self {
        let channel = &mut connection.channel;
        channel.queue_message(&Message::Hello(greeting.hello));
        channel.queue_bytes(greeting.description.as_bytes());
        let length = greeting.arena.size_bytes() as u64;
        let (base, stag) = region;
        channel.queue_message(&Message::Region(Region { arena: 0, base, length, key: stag.into() }));
        Self { connection, offered: Offered::new(greeting.hello.slots, 0), copies_per_byte }
    }

    /// Grants a fetch, once: the builder fetches a ticket once.
    fn grant_fetch(&mut self, asked: FetchRequest) -> Result<(), LinkError> {
        if let Some((_, true)) = self.offered.record_fetch(asked)? {
            let FetchRequest { ticket, offset, length } = asked;
            self.connection.channel.queue_message(&Message::Data { ticket, offset, length });
        }
        Ok(())
    }

    fn on_message(&mut self, message: Message, text: &[u8], received: &mut Vec<Message>) -> Result<(), LinkError> {
        match message {
            Message::Refuse { reason, .. } => {
                return Err(LinkError::Refused { reason, text: String::from_utf8_lossy(text).into_owned() });
            }
            Message::Fetch { ticket, offset, length } => self.grant_fetch(FetchRequest { ticket, offset, length })?,
            Message::Release { below } => {
                self.offered.release_tickets(below);
                received.push(message);
            }
            Message::Ignored { .. } => {}
            message if message.sending_end() == Sender::Source => {
                return Err(LinkError::Protocol(format!("the builder sent a source's message: {message:?}")));
            }
            _ => received.push(message),
        }
        Ok(())
    }
}

impl RdmaLink for RdmaSource {
    type Received = Message;

    const MEMORY_USE: MemoryUse = MemoryUse::ReadByPeers;

    fn connection(&self) -> &PeerConnection {
        &self.connection
    }

    fn connection_mut(&mut self) -> &mut PeerConnection {
        &mut self.connection
    }

    fn handle_arrival(&mut self, arrival: Arrival, received: &mut Vec<Message>) -> Result<(), LinkError> {
        match arrival {
            Arrival::Messages => {
                while let Some((message, text)) = self.connection.channel.next_message()? {
                    self.on_message(message, &text, received)?;
                }
                Ok(())
            }
            // A source reads nothing.
            Arrival::Read { .. } => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        for asked in self.offered.take_early_fetches() {
            self.grant_fetch(asked)?;
        }
        self.connection.post_requests(&[])?;
        self.offered.check_unread_bytes(self.connection.channel.unsent_bytes())
    }
}

impl SourceLink for RdmaSource {
    fn announce_offer(&mut self, offer: &Announcement) {
        // A builder reads when it has a place: nothing is sent before.
        let disposition = if offer.disposition == Disposition::Eager { Disposition::Held } else { offer.disposition };
        let offer = Announcement { disposition, ..*offer };
        if self.offered.record_offer(&offer) != Novelty::Released {
            self.connection.channel.queue_message(&Message::Offer(offer));
        }
    }

    fn withdraw_offer(&mut self, ticket: u64) -> bool {
        self.offered.may_withdraw(ticket)
    }

    fn send_message(&mut self, message: &Message) {
        self.connection.channel.queue_message(message);
    }

    fn copied_bytes(&self) -> u64 {
        self.connection.bytes_read_by_peer() * self.copies_per_byte
    }
}
