//! Control messages: what a source and a builder say to each other, whatever carries it.
//!
//! Each message is 64 bytes with a checksum of its own, so that it fits one cell of a shared-memory ring, one cache
//! line, or many to a datagram. `Hello`, `Refuse` and `Data` are followed by as many bytes as they say.
//!
//! A source numbers what it announces to one builder with *tickets*: 0, 1, 2, … without gaps, one per slot or run of
//! drops. Fetch and release name tickets, never slots, so a slot that was reused cannot be confused with its former
//! content, and saying anything twice does no harm.

use crate::{EventId, RunNumber, SourceId, TaiNanos, crc32c};
use std::ops::RangeInclusive;
use thiserror::Error;

/// Bytes in a control message.
pub const MESSAGE_LEN: usize = 64;
/// `TWMS` in a little-endian dump.
pub const MESSAGE_MAGIC: u32 = u32::from_le_bytes(*b"TWMS");
/// The version of the conversation this crate speaks.
pub const PROTOCOL_VERSION: u8 = 2;

bitflags::bitflags! {
    /// What one end of a link does that not every end does. A source says in [`Hello`] what it does, the builder
    /// answers in [`Welcome`] with those of them that it takes part in. A bit this version has no name for is kept, and
    /// means nothing.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Capabilities: u32 {
        /// The source withdraws offers (policy `drop-oldest`): nothing may be read before it was asked for and granted.
        const WITHDRAWS = 1 << 0;
        /// The source gives its events to the builders that builder 0 assigns them to. A builder repeats it where the
        /// run is assigned so.
        const ASSIGNED = 1 << 1;
        /// The source's events are numbered by time, from one on that builder 0 names ([`Message::EventsBegin`]). A builder
        /// that does so repeats it.
        const BY_TIME = 1 << 2;
        /// The source reports when its events' triggers were ([`Message::TriggerTimes`]). Builder 0 repeats it where it compares
        /// them.
        const TRIGGER_TIMES = 1 << 3;
        const _ = !0;
    }
}

impl Capabilities {
    /// Those that have a name here.
    pub const KNOWN: Self = Self::WITHDRAWS.union(Self::ASSIGNED).union(Self::BY_TIME).union(Self::TRIGGER_TIMES);
}

/// What a source says of itself when it connects. Followed by `description` bytes of JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Drawn at random when the source starts: tells a source that comes back from a second one with the same id.
    pub session: u64,
    /// Who it is.
    pub source: SourceId,
    /// Which builder it takes this one to be.
    pub builder: u32,
    /// How many builders it shares its events among: event `e` goes to builder `e % builders`, where nobody assigns it
    /// to another.
    pub builders: u32,
    /// How many slots it has; no more tickets than this with data are open at a time.
    pub slots: u32,
    /// Bytes in a slot.
    pub slot_bytes: u32,
    /// The longest payload it will send.
    pub max_payload: u32,
    /// What it does that not every source does.
    pub capabilities: Capabilities,
    /// Bytes of description (JSON) that follow.
    pub description: u32,
}

/// The builder's answer to [`Hello`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// The run under way; 0 before it has begun.
    pub run: RunNumber,
    /// Bytes the source may have sent ahead of any fetch and not yet released.
    pub eager_credit: u32,
    /// The longest slot that may be sent so.
    pub eager_limit: u32,
    /// The most records that may be offered in one slot.
    pub most_records: u32,
    /// Whether the run has begun already: the source came back.
    pub running: bool,
    /// Tickets below this one are released: where a source that comes back goes on.
    pub released_below: u64,
    /// What the source does that this builder takes part in.
    pub capabilities: Capabilities,
}

/// Why a builder turns a source away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Refusal {
    /// The id is not in the builder's topology.
    UnknownSource = 1,
    /// Another source with this id is connected.
    AlreadyConnected = 2,
    /// The two do not agree about who is who or how large things may be.
    Mismatch = 3,
    /// What was sent is not this protocol, or breaks its rules.
    Protocol = 4,
    /// The run is over or was given up.
    Ended = 5,
    /// Too many connect at once: try again.
    Busy = 6,
}

impl Refusal {
    fn numbered(number: u32) -> Result<Self, MessageError> {
        Ok(match number {
            1 => Self::UnknownSource,
            2 => Self::AlreadyConnected,
            3 => Self::Mismatch,
            4 => Self::Protocol,
            5 => Self::Ended,
            6 => Self::Busy,
            _ => return Err(MessageError::Field("reason")),
        })
    }
}

/// What became of the fragments an announcement names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Disposition {
    /// They wait in a slot to be fetched.
    Held = 0,
    /// They wait in a slot and are sent at once, without being asked for.
    Eager = 1,
    /// There was no free slot: the source dropped them as they came (policy `drop-newest`).
    DroppedNewest = 2,
    /// They waited in a slot and had to make room (policy `drop-oldest`).
    DroppedOldest = 3,
    /// The device had them and lost them: it says so, or its own counter of frames skips them.
    LostInDevice = 4,
}

impl Disposition {
    fn numbered(number: u32) -> Result<Self, MessageError> {
        Ok(match number {
            0 => Self::Held,
            1 => Self::Eager,
            2 => Self::DroppedNewest,
            3 => Self::DroppedOldest,
            4 => Self::LostInDevice,
            _ => return Err(MessageError::Field("disposition")),
        })
    }

    /// Whether the fragments are gone.
    pub fn is_dropped(self) -> bool {
        matches!(self, Self::DroppedNewest | Self::DroppedOldest | Self::LostInDevice)
    }
}

/// An *offer*: fragments of consecutive events of one builder, `first`, `first + builders`, … `count` of them; `first`,
/// `first + 1`, … where events are assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    /// Its number.
    pub ticket: u64,
    /// The first event.
    pub first: EventId,
    /// Where the records lie in the source's arena, for a builder that has it mapped.
    pub arena_offset: u64,
    /// How many fragments.
    pub count: u32,
    /// Bytes of records, headers and padding included; 0 when dropped.
    pub bytes: u32,
    /// Held, eager or dropped.
    pub disposition: Disposition,
}

impl Announcement {
    fn read(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        let announcement = Self {
            ticket: r.u64(),
            first: EventId(r.u64()),
            arena_offset: r.u64(),
            count: r.u32(),
            bytes: r.u32(),
            disposition: Disposition::numbered(r.u32())?,
        };
        if announcement.count == 0 {
            return Err(MessageError::Field("count"));
        }
        if announcement.disposition.is_dropped() != (announcement.bytes == 0) {
            return Err(MessageError::Field("bytes"));
        }
        Ok(announcement)
    }
}

/// Consecutive events, and the builder that is to build them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assign {
    /// The first event.
    pub first: EventId,
    /// How many: at least 1, and the event behind the last one has a number too.
    pub count: u64,
    /// The builder.
    pub builder: u32,
}

impl Assign {
    /// One past the last event.
    pub fn end(&self) -> EventId {
        EventId(self.first.0.saturating_add(self.count))
    }
}

/// How far a builder is, and what it can take. Absolute: said again it changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Room {
    /// The builder.
    pub builder: u32,
    /// It has nothing to do any more with events below this one.
    pub closed_below: EventId,
    /// How many events from there on it can have open.
    pub room: u64,
    /// Events it has closed so far.
    pub closed: u64,
}

/// How a source stands with a builder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Contact {
    /// There is no connection.
    #[default]
    Away = 0,
    /// They are connected.
    Connected = 1,
    /// The builder has said good-bye: it has all that the source had for it.
    Done = 2,
}

impl Contact {
    fn numbered(number: u32) -> Result<Self, MessageError> {
        Ok(match number {
            0 => Self::Away,
            1 => Self::Connected,
            2 => Self::Done,
            _ => return Err(MessageError::Field("contact")),
        })
    }
}

/// What a source passes on to the builder that assigns, and how far it is itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Heard {
    /// What a builder said last.
    pub room: Room,
    /// How the source stands with that builder.
    pub contact: Contact,
    /// The first event that the source has not accepted, or that it has a fragment of and no builder for.
    pub next: EventId,
    /// The first event that it knows no assignment of.
    pub assigned: EventId,
}

/// What became of a source's fragments for a builder that was left out. Those that are in none of the others were
/// delivered to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Left {
    /// The builder.
    pub builder: u32,
    /// Fragments accepted from the device for events of this builder.
    pub accepted: u64,
    /// Of these, dropped because no slot was free.
    pub dropped_newest: u64,
    /// Of these, dropped to make room.
    pub dropped_oldest: u64,
    /// Of these, lost before the source had them.
    pub lost_in_device: u64,
    /// Of these, not taken by the builder before it was left out.
    pub lost: u64,
}

/// What a source's kernel knows of losses on one connection, since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Losses {
    /// Bytes sent.
    pub sent: u64,
    /// Bytes sent again because they were lost, or were taken for lost.
    pub again: u64,
}

/// What a source's device had and the source did not take, in all since the run began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NotTaken {
    /// For how long nothing could be taken, because all slots were full and the device waits then (policy `block`), in
    /// nanoseconds.
    pub dead_nanos: u64,
    /// How many fragments the device was to give meanwhile at its rate.
    pub fragments: u64,
    /// Frames that came and belong to no event, as far as their numbers or times tell.
    pub of_no_event: u64,
}

/// When the triggers of consecutive events were, by the clock of a source's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TriggerTimes {
    /// The first event.
    pub first: EventId,
    /// The time of each event; 0 where there is none.
    pub times: [TaiNanos; Self::EVENTS as usize],
    /// Whether the source takes one of these numbers for a guess.
    pub uncertain: bool,
}

impl TriggerTimes {
    /// Events in a message.
    pub const EVENTS: u64 = 5;
}

/// Which end of a link sends a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// A source.
    Source,
    /// A builder.
    Builder,
    /// Either of them.
    Either,
}

/// A source's final counters at the end of a run, for one builder's share of the events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Accounts {
    /// Fragments accepted from the device, dropped ones included.
    pub accepted: u64,
    /// Of these, dropped because no slot was free.
    pub dropped_newest: u64,
    /// Of these, dropped to make room.
    pub dropped_oldest: u64,
    /// Tickets issued.
    pub tickets: u64,
    /// Processor time the source used so far, user and system, in nanoseconds.
    pub cpu_nanos: u64,
    /// Payload bytes the source copied with its own hands, or had the kernel copy, on their way out.
    pub copied_bytes: u64,
    /// The sequence number the next fragment would have had.
    pub next_sequence: u32,
}

/// One control message. S→B: from source to builder; B→S: the other way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// S→B: who I am. A description follows.
    Hello(Hello),
    /// B→S: you are in.
    Welcome(Welcome),
    /// B→S or S→B: I end this conversation. `text` bytes of UTF-8 follow that say why.
    Refuse {
        /// The class of reason.
        reason: Refusal,
        /// Bytes of explanation that follow.
        text: u32,
    },
    /// B→S: begin the run.
    Start {
        /// The run.
        run: RunNumber,
        /// The first event number.
        first: EventId,
        /// When the run began.
        at: TaiNanos,
    },
    /// S→B: *offer*.
    Offer(Announcement),
    /// B→S: *fetch*: send me this range of that ticket's records.
    Fetch {
        /// Which.
        ticket: u64,
        /// First byte.
        offset: u32,
        /// How many.
        length: u32,
    },
    /// S→B: the range that was asked for. `length` bytes follow.
    Data {
        /// Which.
        ticket: u64,
        /// First byte.
        offset: u32,
        /// How many.
        length: u32,
    },
    /// B→S: *release*: reuse the slots of all tickets below this one.
    Release {
        /// The first ticket that is not released.
        below: u64,
    },
    /// B→S: accept nothing for now, and tell me how far you are.
    Pause,
    /// B→S: go on accepting, as far as you were to go.
    Resume,
    /// S→B: this is the first event I have not accepted.
    Paused {
        /// The event.
        next: EventId,
        /// The number of the builder that asked for it with [`Pause`](Self::Pause).
        asked_by: u32,
    },
    /// B→S: go on up to this event, not included, then end.
    StopAt {
        /// The event.
        end: EventId,
    },
    /// S→B: that was all; my final counters.
    End(Accounts),
    /// S→B: how much was lost on the way so far.
    Losses(Losses),
    /// S→B: to the other builders: builder 0 has begun the run, or had it go on.
    Running,
    /// S→B: to the other builders: builder 0 ends the run in front of this event.
    EndsAt {
        /// The event.
        end: EventId,
    },
    /// S→B: what my device had so far, and I did not take.
    NotTaken(NotTaken),
    /// S→B: to builder 0: when the first frame of my device was taken, whose events are numbered by time.
    FirstFrame {
        /// Then.
        time: TaiNanos,
        /// From one event to the next, in nanoseconds.
        period_nanos: u64,
    },
    /// B→S: from builder 0: event 0 is then.
    EventsBegin {
        /// Then.
        time: TaiNanos,
    },
    /// B→S: from builder 0: report the times of the [`SHIFT_WINDOW`](crate::SHIFT_WINDOW) events from this one on.
    ReportTimes {
        /// The event.
        first: EventId,
    },
    /// S→B: to builder 0: when triggers were.
    TriggerTimes(TriggerTimes),
    /// B→S: from builder 0: by the times, your events from this one on are those of the other sources.
    NumbersAgree {
        /// The event.
        first: EventId,
    },
    /// B→S: from builder 0: these events are to be built there.
    Assign(Assign),
    /// B→S: how much I can take.
    Room(Room),
    /// S→B: to builder 0: what a builder can take, and how far I am.
    Heard(Heard),
    /// B→S: from builder 0: no event goes to this builder any more.
    LeaveOut {
        /// The builder.
        builder: u32,
    },
    /// S→B: to builder 0: what became of my fragments for a builder that was left out.
    Left(Left),
    /// S→B: of events below this one, I have nothing but what I have offered with tickets below `tickets`.
    Passed {
        /// The event.
        below: EventId,
        /// The ticket.
        tickets: u64,
    },
    /// B→S: all your fragments are accounted for; good-bye.
    Bye,
    /// S→B or B→S: of a kind that this version does not know, and that may be ignored.
    Ignored {
        /// The kind: one of [`Message::IGNORABLE`].
        kind: u8,
    },
}

/// Why 64 bytes are not a control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum MessageError {
    /// The first field is something else: not this protocol at all.
    #[error("message magic is {0:#010x}, expected 0x534d5754 (\"TWMS\"): the peer does not speak the Thalweg protocol")]
    Magic(u32),
    /// Another version.
    #[error("the peer speaks protocol version {0}, this program speaks version {PROTOCOL_VERSION}")]
    Version(u8),
    /// The checksum does not match.
    #[error("message CRC32C is {found:#010x}, computed {computed:#010x}")]
    Crc {
        /// What the message says.
        found: u32,
        /// What its bytes give.
        computed: u32,
    },
    /// No such kind.
    #[error("message kind {0} is not known")]
    Kind(u8),
    /// A field holds what its kind cannot mean.
    #[error("message field `{0}` holds an impossible value")]
    Field(&'static str),
}

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REFUSE: u8 = 3;
const START: u8 = 4;
const OFFER: u8 = 5;
const FETCH: u8 = 6;
const DATA: u8 = 7;
const RELEASE: u8 = 8;
const PAUSE: u8 = 9;
const PAUSED: u8 = 10;
const STOP_AT: u8 = 11;
const END: u8 = 12;
const BYE: u8 = 13;
const LOSSES: u8 = 14;
const ENDS_AT: u8 = 15;
// 16 is reserved: `Region`, in docs/wire.md.
const ASSIGN: u8 = 17;
const ROOM: u8 = 18;
const HEARD: u8 = 19;
const LEAVE_OUT: u8 = 20;
const LEFT: u8 = 21;
const PASSED: u8 = 22;
const RESUME: u8 = 23;
const RUNNING: u8 = 24;
const NOT_TAKEN: u8 = 25;
const FIRST_FRAME: u8 = 26;
const EVENTS_BEGIN: u8 = 27;
const REPORT_TIMES: u8 = 28;
const TRIGGER_TIMES: u8 = 29;
const NUMBERS_AGREE: u8 = 30;

impl Message {
    /// Who does not know one of these kinds ignores it. Nothing follows it but its 64 bytes.
    pub const IGNORABLE: RangeInclusive<u8> = 192..=255;
    /// The longest description that may follow a [`Hello`].
    pub const MAX_DESCRIPTION: u32 = 16 * 1024;
    /// The longest text that may follow a refusal.
    pub const MAX_REFUSAL_TEXT: u32 = 1024;

    /// Which end of a link sends it.
    pub fn sender(&self) -> Sender {
        match self {
            Self::Hello(_)
            | Self::Offer(_)
            | Self::Data { .. }
            | Self::Paused { .. }
            | Self::Running
            | Self::EndsAt { .. }
            | Self::NotTaken(_)
            | Self::FirstFrame { .. }
            | Self::TriggerTimes(_)
            | Self::End(_)
            | Self::Losses(_)
            | Self::Heard(_)
            | Self::Left(_)
            | Self::Passed { .. } => Sender::Source,
            Self::Welcome(_)
            | Self::Start { .. }
            | Self::Fetch { .. }
            | Self::Release { .. }
            | Self::Pause
            | Self::Resume
            | Self::StopAt { .. }
            | Self::Assign(_)
            | Self::Room(_)
            | Self::LeaveOut { .. }
            | Self::EventsBegin { .. }
            | Self::ReportTimes { .. }
            | Self::NumbersAgree { .. }
            | Self::Bye => Sender::Builder,
            Self::Refuse { .. } | Self::Ignored { .. } => Sender::Either,
        }
    }

    /// Bytes that follow this message on a stream.
    pub fn body_len(&self) -> usize {
        match *self {
            Self::Hello(Hello { description, .. }) => description as usize,
            Self::Refuse { text, .. } => text as usize,
            Self::Data { length, .. } => length as usize,
            _ => 0,
        }
    }

    /// The 64 bytes of this message, its CRC filled in.
    pub fn encode(&self) -> [u8; MESSAGE_LEN] {
        let mut w = Writer { bytes: [0; MESSAGE_LEN], at: 8 };
        let kind = match *self {
            Self::Hello(h) => {
                w.u64(h.session).u32(h.source.0).u32(h.builder).u32(h.builders).u32(h.slots);
                w.u32(h.slot_bytes).u32(h.max_payload).u32(h.capabilities.bits()).u32(h.description);
                HELLO
            }
            Self::Welcome(m) => {
                w.u32(m.run.0).u32(m.eager_credit).u32(m.eager_limit).u32(m.most_records);
                w.u32(m.running.into()).u64(m.released_below).u32(m.capabilities.bits());
                WELCOME
            }
            Self::Refuse { reason, text } => {
                w.u32(reason as u32).u32(text);
                REFUSE
            }
            Self::Start { run, first, at } => {
                w.u64(first.0).u64(at.0).u32(run.0);
                START
            }
            Self::Offer(a) => {
                w.u64(a.ticket).u64(a.first.0).u64(a.arena_offset).u32(a.count).u32(a.bytes);
                w.u32(a.disposition as u32);
                OFFER
            }
            Self::Fetch { ticket, offset, length } | Self::Data { ticket, offset, length } => {
                w.u64(ticket).u32(offset).u32(length);
                if matches!(self, Self::Fetch { .. }) { FETCH } else { DATA }
            }
            Self::Release { below } => {
                w.u64(below);
                RELEASE
            }
            Self::Pause => PAUSE,
            Self::Resume => RESUME,
            Self::Paused { next, asked_by } => {
                w.u64(next.0).u32(asked_by);
                PAUSED
            }
            Self::StopAt { end } => {
                w.u64(end.0);
                STOP_AT
            }
            Self::End(a) => {
                w.u64(a.accepted).u64(a.dropped_newest).u64(a.dropped_oldest).u64(a.tickets);
                w.u64(a.cpu_nanos).u64(a.copied_bytes).u32(a.next_sequence);
                END
            }
            Self::Losses(l) => {
                w.u64(l.sent).u64(l.again);
                LOSSES
            }
            Self::Running => RUNNING,
            Self::EndsAt { end } => {
                w.u64(end.0);
                ENDS_AT
            }
            Self::NotTaken(n) => {
                w.u64(n.dead_nanos).u64(n.fragments).u64(n.of_no_event);
                NOT_TAKEN
            }
            Self::FirstFrame { time, period_nanos } => {
                w.u64(time.0).u64(period_nanos);
                FIRST_FRAME
            }
            Self::EventsBegin { time } => {
                w.u64(time.0);
                EVENTS_BEGIN
            }
            Self::ReportTimes { first } => {
                w.u64(first.0);
                REPORT_TIMES
            }
            Self::TriggerTimes(report) => {
                w.u64(report.first.0);
                report.times.iter().for_each(|time| _ = w.u64(time.0));
                w.u32(report.uncertain.into());
                TRIGGER_TIMES
            }
            Self::NumbersAgree { first } => {
                w.u64(first.0);
                NUMBERS_AGREE
            }
            Self::Assign(a) => {
                w.u64(a.first.0).u64(a.count).u32(a.builder);
                ASSIGN
            }
            Self::Room(room) => {
                w.room(room);
                ROOM
            }
            Self::Heard(heard) => {
                w.room(heard.room).u32(heard.contact as u32).u64(heard.next.0).u64(heard.assigned.0);
                HEARD
            }
            Self::LeaveOut { builder } => {
                w.u32(builder);
                LEAVE_OUT
            }
            Self::Left(left) => {
                w.u32(left.builder).u64(left.accepted).u64(left.dropped_newest).u64(left.dropped_oldest);
                w.u64(left.lost_in_device).u64(left.lost);
                LEFT
            }
            Self::Passed { below, tickets } => {
                w.u64(below.0).u64(tickets);
                PASSED
            }
            Self::Bye => BYE,
            Self::Ignored { kind } => kind,
        };
        w.finish(kind)
    }

    /// Reads one message. Its fields are possible in themselves; whether they fit the conversation is for the caller.
    ///
    /// # Errors
    /// The bytes are no message of this version, its CRC is wrong, or a field holds what none can.
    pub fn decode(bytes: &[u8; MESSAGE_LEN]) -> Result<Self, MessageError> {
        let mut r = Reader::open(bytes)?;
        Ok(match bytes[5] {
            HELLO => Self::Hello(Hello {
                session: r.u64(),
                source: SourceId(r.u32()),
                builder: r.u32(),
                builders: r.u32(),
                slots: r.u32(),
                slot_bytes: r.u32(),
                max_payload: r.u32(),
                capabilities: Capabilities::from_bits_retain(r.u32()),
                description: r.at_most("description", Self::MAX_DESCRIPTION)?,
            }),
            WELCOME => Self::Welcome(Welcome {
                run: RunNumber(r.u32()),
                eager_credit: r.u32(),
                eager_limit: r.u32(),
                most_records: r.u32(),
                running: r.at_most("running", 1)? == 1,
                released_below: r.u64(),
                capabilities: Capabilities::from_bits_retain(r.u32()),
            }),
            REFUSE => {
                Self::Refuse { reason: Refusal::numbered(r.u32())?, text: r.at_most("text", Self::MAX_REFUSAL_TEXT)? }
            }
            START => Self::Start { first: EventId(r.u64()), at: TaiNanos(r.u64()), run: RunNumber(r.u32()) },
            OFFER => Self::Offer(Announcement::read(&mut r)?),
            kind @ (FETCH | DATA) => {
                let (ticket, offset, length) = (r.u64(), r.u32(), r.u32());
                r.range(offset, length)?;
                match kind {
                    FETCH => Self::Fetch { ticket, offset, length },
                    _ => Self::Data { ticket, offset, length },
                }
            }
            RELEASE => Self::Release { below: r.u64() },
            PAUSE => Self::Pause,
            RESUME => Self::Resume,
            PAUSED => Self::Paused { next: EventId(r.u64()), asked_by: r.u32() },
            STOP_AT => Self::StopAt { end: EventId(r.u64()) },
            RUNNING => Self::Running,
            ENDS_AT => Self::EndsAt { end: EventId(r.u64()) },
            NOT_TAKEN => Self::NotTaken(NotTaken { dead_nanos: r.u64(), fragments: r.u64(), of_no_event: r.u64() }),
            FIRST_FRAME => Self::FirstFrame { time: TaiNanos(r.u64()), period_nanos: r.u64() },
            EVENTS_BEGIN => Self::EventsBegin { time: TaiNanos(r.u64()) },
            REPORT_TIMES => Self::ReportTimes { first: EventId(r.u64()) },
            TRIGGER_TIMES => Self::TriggerTimes(TriggerTimes {
                first: EventId(r.u64()),
                times: [(); TriggerTimes::EVENTS as usize].map(|()| TaiNanos(r.u64())),
                uncertain: r.at_most("uncertain", 1)? == 1,
            }),
            NUMBERS_AGREE => Self::NumbersAgree { first: EventId(r.u64()) },
            END => Self::End(Accounts {
                accepted: r.u64(),
                dropped_newest: r.u64(),
                dropped_oldest: r.u64(),
                tickets: r.u64(),
                cpu_nanos: r.u64(),
                copied_bytes: r.u64(),
                next_sequence: r.u32(),
            }),
            LOSSES => Self::Losses(Losses { sent: r.u64(), again: r.u64() }),
            ASSIGN => Self::Assign(r.assign()?),
            ROOM => Self::Room(r.room()),
            HEARD => Self::Heard(Heard {
                room: r.room(),
                contact: Contact::numbered(r.u32())?,
                next: EventId(r.u64()),
                assigned: EventId(r.u64()),
            }),
            LEAVE_OUT => Self::LeaveOut { builder: r.u32() },
            LEFT => Self::Left(Left {
                builder: r.u32(),
                accepted: r.u64(),
                dropped_newest: r.u64(),
                dropped_oldest: r.u64(),
                lost_in_device: r.u64(),
                lost: r.u64(),
            }),
            PASSED => Self::Passed { below: EventId(r.u64()), tickets: r.u64() },
            BYE => Self::Bye,
            kind if Self::IGNORABLE.contains(&kind) => Self::Ignored { kind },
            kind => return Err(MessageError::Kind(kind)),
        })
    }
}

struct Writer {
    bytes: [u8; MESSAGE_LEN],
    at: usize,
}

impl Writer {
    fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes[self.at..self.at + 4].copy_from_slice(&value.to_le_bytes());
        self.at += 4;
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes[self.at..self.at + 8].copy_from_slice(&value.to_le_bytes());
        self.at += 8;
        self
    }

    fn room(&mut self, room: Room) -> &mut Self {
        self.u64(room.closed_below.0).u64(room.room).u64(room.closed).u32(room.builder)
    }

    fn finish(mut self, kind: u8) -> [u8; MESSAGE_LEN] {
        self.bytes[0..4].copy_from_slice(&MESSAGE_MAGIC.to_le_bytes());
        self.bytes[4] = PROTOCOL_VERSION;
        self.bytes[5] = kind;
        let crc = crc32c(&self.bytes[..60]);
        self.bytes[60..].copy_from_slice(&crc.to_le_bytes());
        self.bytes
    }
}

struct Reader<'a> {
    bytes: &'a [u8; MESSAGE_LEN],
    at: usize,
}

impl<'a> Reader<'a> {
    /// At the fields of a message, if it is one.
    fn open(bytes: &'a [u8; MESSAGE_LEN]) -> Result<Self, MessageError> {
        let magic = Self { bytes, at: 0 }.u32();
        if magic != MESSAGE_MAGIC {
            return Err(MessageError::Magic(magic));
        }
        if bytes[4] != PROTOCOL_VERSION {
            return Err(MessageError::Version(bytes[4]));
        }
        let (found, computed) = (Self { bytes, at: 60 }.u32(), crc32c(&bytes[..60]));
        if found != computed {
            return Err(MessageError::Crc { found, computed });
        }
        Ok(Self { bytes, at: 8 })
    }

    fn u32(&mut self) -> u32 {
        let b = &self.bytes[self.at..self.at + 4];
        self.at += 4;
        u32::from_le_bytes([b[0], b[1], b[2], b[3]])
    }

    fn u64(&mut self) -> u64 {
        let low = self.u32();
        u64::from(low) | u64::from(self.u32()) << 32
    }

    fn assign(&mut self) -> Result<Assign, MessageError> {
        let assign = Assign { first: EventId(self.u64()), count: self.u64(), builder: self.u32() };
        match assign.first.0.checked_add(assign.count) {
            Some(_) if assign.count > 0 => Ok(assign),
            _ => Err(MessageError::Field("count")),
        }
    }

    fn room(&mut self) -> Room {
        Room { closed_below: EventId(self.u64()), room: self.u64(), closed: self.u64(), builder: self.u32() }
    }

    fn at_most(&mut self, field: &'static str, limit: u32) -> Result<u32, MessageError> {
        let value = self.u32();
        if value > limit { Err(MessageError::Field(field)) } else { Ok(value) }
    }

    fn range(&self, offset: u32, length: u32) -> Result<(), MessageError> {
        match offset.checked_add(length) {
            Some(_) if length > 0 => Ok(()),
            _ => Err(MessageError::Field("length")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ROOM_OF_2: Room = Room { builder: 2, closed_below: EventId(1100), room: 155, closed: 370 };

    fn examples() -> Vec<Message> {
        vec![
            Message::Hello(Hello {
                session: 0x1122_3344_5566_7788,
                source: SourceId::new(1, 2),
                builder: 0,
                builders: 3,
                slots: 16,
                slot_bytes: 1 << 20,
                max_payload: 1 << 16,
                capabilities: Capabilities::WITHDRAWS | Capabilities::from_bits_retain(1 << 31),
                description: 17,
            }),
            Message::Welcome(Welcome {
                run: RunNumber(42),
                eager_credit: 65536,
                eager_limit: 4096,
                most_records: 512,
                running: true,
                released_below: 9,
                capabilities: Capabilities::WITHDRAWS,
            }),
            Message::Refuse { reason: Refusal::AlreadyConnected, text: 5 },
            Message::Start { run: RunNumber(3), first: EventId(100), at: TaiNanos(5) },
            Message::Offer(Announcement {
                ticket: 7,
                first: EventId(21),
                arena_offset: 4096,
                count: 240,
                bytes: 261_120,
                disposition: Disposition::Eager,
            }),
            Message::Fetch { ticket: 7, offset: 64, length: 1024 },
            Message::Data { ticket: 7, offset: 64, length: 1024 },
            Message::Release { below: 5 },
            Message::Pause,
            Message::Paused { next: EventId(1234), asked_by: 2 },
            Message::StopAt { end: EventId(1240) },
            Message::Resume,
            Message::Running,
            Message::EndsAt { end: EventId(1240) },
            Message::NotTaken(NotTaken { dead_nanos: 1 << 40, fragments: 12, of_no_event: 5 }),
            Message::FirstFrame { time: TaiNanos(1 << 60), period_nanos: 20_000_000 },
            Message::EventsBegin { time: TaiNanos(1 << 60) },
            Message::ReportTimes { first: EventId(1 << 50) },
            Message::TriggerTimes(TriggerTimes {
                first: EventId(1 << 50),
                times: [1, 2, 0, 4, u64::MAX].map(TaiNanos),
                uncertain: true,
            }),
            Message::NumbersAgree { first: EventId(1 << 50) },
            Message::End(Accounts {
                accepted: 1,
                dropped_newest: 2,
                dropped_oldest: 3,
                tickets: 4,
                cpu_nanos: 5,
                copied_bytes: 6,
                next_sequence: 7,
            }),
            Message::Losses(Losses { sent: 1 << 40, again: 14_480 }),
            Message::Assign(Assign { first: EventId(1200), count: 31, builder: 2 }),
            Message::Room(ROOM_OF_2),
            Message::Heard(Heard {
                room: ROOM_OF_2,
                contact: Contact::Connected,
                next: EventId(1290),
                assigned: EventId(u64::MAX),
            }),
            Message::LeaveOut { builder: 2 },
            Message::Left(Left {
                builder: 2,
                accepted: 100,
                dropped_newest: 1,
                dropped_oldest: 2,
                lost_in_device: 3,
                lost: 4,
            }),
            Message::Passed { below: EventId(1231), tickets: 40 },
            Message::Bye,
            Message::Ignored { kind: 200 },
        ]
    }

    #[test]
    fn every_kind_survives_the_way_there_and_back() {
        for message in examples() {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
    }

    /// The bytes are the contract with other implementations: version 2 keeps them.
    #[test]
    fn golden_bytes() {
        let bytes = Message::Fetch { ticket: 0x0102, offset: 0x40, length: 0x1000 }.encode();
        let hex: String = bytes[..32].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "54574d5302060000020100000000000040000000001000000000000000000000");
        assert_eq!(bytes[60..], crc32c(&bytes[..60]).to_le_bytes());
        let bytes = Message::Heard(Heard {
            room: Room { builder: 2, closed_below: EventId(0x0102), room: 0x20, closed: 0x0304 },
            contact: Contact::Connected,
            next: EventId(0x0506),
            assigned: EventId(0x0708),
        });
        let hex: String = bytes.encode()[..56].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "54574d5302130000020100000000000020000000000000000403000000000000020000000100000006050000000000000807000000000000"
        );
    }

    #[test]
    fn what_is_assigned_is_at_least_one_event_and_ends() {
        for (first, count) in [(7, 0), (u64::MAX, 1), (2, u64::MAX - 1)] {
            let bytes = Message::Assign(Assign { first: EventId(first), count, builder: 0 }).encode();
            assert_eq!(Message::decode(&bytes), Err(MessageError::Field("count")));
        }
    }

    #[test]
    fn a_wrong_version_is_told_from_garbage() {
        let mut bytes = Message::Bye.encode();
        bytes[4] = 1;
        assert_eq!(Message::decode(&bytes), Err(MessageError::Version(1)));
        assert_eq!(Message::decode(&[b'G'; 64]), Err(MessageError::Magic(0x4747_4747)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes: [u8; 32], kind in prop_oneof![0u8..31, 190u8..], tail: [u8; 28], valid_crc: bool) {
            let mut cell = [0u8; MESSAGE_LEN];
            cell[..32].copy_from_slice(&bytes);
            cell[32..60].copy_from_slice(&tail);
            if valid_crc {
                cell[0..4].copy_from_slice(&MESSAGE_MAGIC.to_le_bytes());
                cell[4] = PROTOCOL_VERSION;
                cell[5] = kind;
                let crc = crc32c(&cell[..60]);
                cell[60..].copy_from_slice(&crc.to_le_bytes());
            }
            if let Ok(message) = Message::decode(&cell) {
                // What was understood can be said again, in the same words.
                prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
            }
        }
    }
}
