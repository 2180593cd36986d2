//! Control messages between a source and a builder, independent of the link that carries them.
//!
//! Each message is 64 bytes with a checksum of its own, so that it fits one cell of a shared-memory ring or one cache
//! line, and several fit in a datagram. `Hello`, `Refuse` and `Data` are followed by a body, whose length is a field of
//! the message.
//!
//! A source numbers what it announces to one builder with *tickets*: 0, 1, 2, … without gaps, one per slot or run of
//! drops. Fetch and release name tickets, never slots, so a slot that was reused cannot be confused with its former
//! content, and sending a message twice does no harm.

use crate::{EventId, RunNumber, SourceId, TaiNanos, crc32c};
use std::ops::RangeInclusive;
use thiserror::Error;

/// Length of a control message in bytes.
pub const MESSAGE_LEN: usize = 64;
/// First field of every message: `TWMS` in a little-endian dump.
pub const MESSAGE_MAGIC: u32 = u32::from_le_bytes(*b"TWMS");
/// Version of the protocol that this crate implements.
pub const PROTOCOL_VERSION: u8 = 2;

bitflags::bitflags! {
    /// Optional features of an end of a link. A source lists its own in [`Hello`]; the builder answers in [`Welcome`]
    /// with those that it takes part in. An unknown bit is kept and has no effect.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Capabilities: u32 {
        /// The source withdraws offers (policy `drop-oldest`): nothing may be read before it was requested and granted.
        const WITHDRAWS = 1 << 0;
        /// The source sends each event to the builder that builder 0 assigns it to. A builder repeats this bit if the
        /// events of the run are assigned.
        const ASSIGNED = 1 << 1;
        /// The source's events are numbered by time, from a time on that builder 0 announces
        /// ([`Message::EventsBegin`]). A builder that does the same repeats this bit.
        const BY_TIME = 1 << 2;
        /// The source reports the times of its events' triggers ([`Message::TriggerTimes`]). Builder 0 repeats this bit
        /// if it compares them.
        const TRIGGER_TIMES = 1 << 3;
        /// The source has received [`Message::Start`] of this builder before, over an earlier connection. A builder that
        /// has not begun a run refuses it: it was started anew. No builder repeats this bit.
        const RETURNS = 1 << 4;
        /// The source goes from one run to the next at an event that builder 0 names ([`Message::NextRun`]), without
        /// disconnecting. A builder that does the same repeats this bit.
        const NEXT_RUN = 1 << 5;
        const _ = !0;
    }
}

impl Capabilities {
    /// All capabilities that builders repeat.
    pub const KNOWN: Self =
        Self::WITHDRAWS.union(Self::ASSIGNED).union(Self::BY_TIME).union(Self::TRIGGER_TIMES).union(Self::NEXT_RUN);
}

/// Source identity, geometry and capabilities, sent when the source connects. Followed by `description` bytes of JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Random number drawn when the source starts: distinguishes a source that reconnects from a second source with the
    /// same id.
    pub session: u64,
    /// Id of the source.
    pub source: SourceId,
    /// Index of the builder that the source expects to have connected to.
    pub builder: u32,
    /// Number of builders among which the source distributes its events: event `e` goes to builder `e % builders`,
    /// unless it is assigned to another.
    pub builders: u32,
    /// Number of slots; at most this many tickets with data are open at a time.
    pub slots: u32,
    /// Length of a slot in bytes.
    pub slot_bytes: u32,
    /// Length of the longest payload the source will send, in bytes.
    pub max_payload: u32,
    /// Optional features of the source.
    pub capabilities: Capabilities,
    /// Length of the description (JSON) that follows, in bytes.
    pub description: u32,
}

/// The builder's answer to [`Hello`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// Number of the run in progress; 0 before a run has begun.
    pub run: RunNumber,
    /// Number of bytes that the source may have sent eagerly and not yet released.
    pub eager_credit: u32,
    /// Length of the longest slot that may be sent eagerly, in bytes.
    pub eager_limit: u32,
    /// Maximum number of records that may be offered in one slot.
    pub most_records: u32,
    /// True if the run has already begun, so the source has reconnected.
    pub running: bool,
    /// First ticket that is not released: a source that reconnects continues from here.
    pub released_below: u64,
    /// Capabilities of the source that this builder takes part in.
    pub capabilities: Capabilities,
}

/// Reason for which a builder refuses a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Refusal {
    /// The id is not in the builder's topology.
    UnknownSource = 1,
    /// Another source with this id is connected.
    AlreadyConnected = 2,
    /// The two ends do not agree about their identities or about the maximum sizes.
    Mismatch = 3,
    /// The bytes received are not this protocol, or break its rules.
    Protocol = 4,
    /// The run is over or was abandoned.
    Ended = 5,
    /// Too many sources are connecting at once: try again.
    Busy = 6,
}

impl Refusal {
    fn from_number(number: u32) -> Result<Self, MessageError> {
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

/// State of the fragments that an announcement names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Disposition {
    /// The fragments wait in a slot to be fetched.
    Held = 0,
    /// The fragments wait in a slot and are sent at once, without a fetch.
    Eager = 1,
    /// No slot was free: the source dropped the fragments on arrival (policy `drop-newest`).
    DroppedNewest = 2,
    /// The fragments waited in a slot and were dropped to make room (policy `drop-oldest`).
    DroppedOldest = 3,
    /// The device lost the fragments: it reports so, or its own frame counter skips them.
    LostInDevice = 4,
}

impl Disposition {
    fn from_number(number: u32) -> Result<Self, MessageError> {
        Ok(match number {
            0 => Self::Held,
            1 => Self::Eager,
            2 => Self::DroppedNewest,
            3 => Self::DroppedOldest,
            4 => Self::LostInDevice,
            _ => return Err(MessageError::Field("disposition")),
        })
    }

    /// Returns whether the fragments are gone.
    pub fn is_dropped(self) -> bool {
        matches!(self, Self::DroppedNewest | Self::DroppedOldest | Self::LostInDevice)
    }
}

/// An *offer* of `count` fragments of one builder's consecutive events: `first`, `first + builders`, … Where events are
/// assigned, these are `first`, `first + 1`, …
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    /// Ticket: the number of this offer.
    pub ticket: u64,
    /// Number of the first event.
    pub first: EventId,
    /// Offset of the records in the source's arena, for a builder that has the arena mapped.
    pub arena_offset: u64,
    /// Number of fragments.
    pub count: u32,
    /// Length of the records in bytes, headers and padding included; 0 when dropped.
    pub bytes: u32,
    /// State of the fragments: held, eager or dropped.
    pub disposition: Disposition,
}

/// Consecutive events and the builder that is to build them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assign {
    /// Number of the first event.
    pub first: EventId,
    /// Number of events: at least 1, and such that the event after the last one has a number too.
    pub count: u64,
    /// Index of the builder.
    pub builder: u32,
}

impl Assign {
    /// Returns the number one past the last event.
    pub fn end_event(&self) -> EventId {
        EventId(self.first.0.saturating_add(self.count))
    }
}

/// Progress and free capacity of a builder. All values are absolute, so a repeated report changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Room {
    /// Index of the builder.
    pub builder: u32,
    /// First event that the builder has not finished with: no event below it concerns the builder any more.
    pub closed_below: EventId,
    /// Number of events from `closed_below` on that the builder can have open.
    pub room: u64,
    /// Number of events the builder has closed so far.
    pub closed: u64,
}

/// State of the connection between a source and a builder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Contact {
    /// No connection.
    #[default]
    Away = 0,
    /// The source and the builder are connected.
    Connected = 1,
    /// The builder has sent [`Message::Bye`]: it has all that the source had for it.
    Done = 2,
}

impl Contact {
    fn from_number(number: u32) -> Result<Self, MessageError> {
        Ok(match number {
            0 => Self::Away,
            1 => Self::Connected,
            2 => Self::Done,
            _ => return Err(MessageError::Field("contact")),
        })
    }
}

/// Report of a source to the builder that assigns events: another builder's room, and the source's own progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoomReport {
    /// Room that the builder last reported to the source.
    pub room: Room,
    /// State of the connection between the source and that builder.
    pub contact: Contact,
    /// First event that the source has not accepted, or that it has a fragment of and no builder for.
    pub next: EventId,
    /// First event of which the source knows no assignment.
    pub assigned: EventId,
}

/// Counts of a source's fragments for a builder that was left out, by what became of them. The accepted fragments that
/// are in none of the other counts were delivered to that builder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Left {
    /// Index of the builder.
    pub builder: u32,
    /// Number of fragments accepted from the device for events of this builder.
    pub accepted: u64,
    /// Number of these that were dropped because no slot was free.
    pub dropped_newest: u64,
    /// Number of these that were dropped to make room.
    pub dropped_oldest: u64,
    /// Number of these that were lost before the source had them.
    pub lost_in_device: u64,
    /// Number of these that the builder had not taken before it was left out.
    pub lost: u64,
}

/// Losses on one connection as counted by the source's kernel, since the connection was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Losses {
    /// Number of bytes sent.
    pub sent: u64,
    /// Number of bytes retransmitted because they were lost or taken for lost.
    pub again: u64,
}

/// Totals, since the run began, of what a source's device had and the source did not take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NotTaken {
    /// Dead time in nanoseconds: how long nothing could be taken because all slots were full, during which the device
    /// waits (policy `block`).
    pub dead_nanos: u64,
    /// Number of fragments that the device was to give during the dead time at its rate.
    pub fragments: u64,
    /// Number of frames that arrived and belong to no event, as far as their numbers or times show.
    pub of_no_event: u64,
    /// True if the device was away when the run ended: the number of frames that it had is unknown.
    pub device_away: bool,
}

/// Memory of a source that its builder may read by itself: where a link has registered the source's arena with an RDMA
/// adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Region {
    /// Number of the arena: 0, as a source has one.
    pub arena: u32,
    /// Address of the arena's first byte.
    pub base: u64,
    /// Length of the arena in bytes.
    pub length: u64,
    /// Key that gives the right to read: the STag, in the lower 32 bits.
    pub key: u64,
}

/// Trigger times of consecutive events, by the clock of a source's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TriggerTimes {
    /// Number of the first event.
    pub first: EventId,
    /// Time of each event's trigger; 0 where there is none.
    pub times: [TaiNanos; Self::EVENTS_PER_MESSAGE as usize],
    /// True if the source regards one of these event numbers as a guess.
    pub uncertain: bool,
}

impl TriggerTimes {
    /// Number of events in a message.
    pub const EVENTS_PER_MESSAGE: u64 = 5;
}

/// The end of a link that sends a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// A source.
    Source,
    /// A builder.
    Builder,
    /// Either of them.
    Either,
}

/// Final counters of a source at the end of a run, for one builder's share of the events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FinalCounters {
    /// Number of fragments accepted from the device, dropped ones included.
    pub accepted: u64,
    /// Number of these that were dropped because no slot was free.
    pub dropped_newest: u64,
    /// Number of these that were dropped to make room.
    pub dropped_oldest: u64,
    /// Number of tickets issued.
    pub tickets: u64,
    /// Processor time that the source has used so far, user and system, in nanoseconds.
    pub cpu_nanos: u64,
    /// Number of payload bytes that were copied on their way out, by the source itself or by the kernel on its behalf.
    pub copied_bytes: u64,
    /// Sequence number that the next fragment would have had.
    pub next_sequence: u32,
}

/// Counters of a source at the boundary between two runs, for one builder's share of the events of the run that ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RunCounters {
    /// Number of the run that ends at this source.
    pub run: RunNumber,
    /// Number of fragments accepted from the device in this run, dropped ones included.
    pub accepted: u64,
    /// Number of these that were dropped because no slot was free.
    pub dropped_newest: u64,
    /// Number of these that were dropped to make room.
    pub dropped_oldest: u64,
    /// Number of tickets issued so far, those of earlier runs included: later tickets are of the next run.
    pub tickets: u64,
    /// Processor time that the source has used in this run, user and system, in nanoseconds.
    pub cpu_nanos: u64,
    /// Number of payload bytes that were copied on their way out in this run.
    pub copied_bytes: u64,
}

/// A control message. S→B: from source to builder; B→S: from builder to source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message {
    /// S→B: introduces the source. A description follows.
    Hello(Hello),
    /// B→S: accepts the source.
    Welcome(Welcome),
    /// B→S or S→B: ends the conversation. `text` bytes of UTF-8 follow, which explain the reason.
    Refuse {
        /// Class of the reason.
        reason: Refusal,
        /// Length of the explanation that follows, in bytes.
        text: u32,
    },
    /// B→S: begins the run.
    Start {
        /// Number of the run.
        run: RunNumber,
        /// Number of the first event.
        first: EventId,
        /// Time at which the run began.
        at: TaiNanos,
    },
    /// S→B: *offer*.
    Offer(Announcement),
    /// B→S: *fetch*: requests this range of the ticket's records.
    Fetch {
        /// Ticket of the offer.
        ticket: u64,
        /// Offset of the first byte.
        offset: u32,
        /// Number of bytes.
        length: u32,
    },
    /// S→B: the range that was fetched. `length` bytes follow.
    Data {
        /// Ticket of the offer.
        ticket: u64,
        /// Offset of the first byte.
        offset: u32,
        /// Number of bytes.
        length: u32,
    },
    /// B→S: *release*: the slots of all tickets below this one may be reused.
    Release {
        /// First ticket that is not released.
        below: u64,
    },
    /// B→S: stops the source from accepting fragments for now, and asks for the first event not accepted.
    Pause,
    /// B→S: resumes accepting fragments, up to the same end as before the pause.
    Resume,
    /// S→B: reports, after a [`Pause`](Self::Pause), the first event that the source has not accepted.
    Paused {
        /// Number of the event.
        next: EventId,
        /// Index of the builder that asked for it with [`Pause`](Self::Pause).
        asked_by: u32,
    },
    /// B→S: from builder 0: has the source continue up to this event, exclusive, in the run under way, and from there on
    /// in the next one.
    NextRun {
        /// Number of the first event of the next run.
        first: EventId,
        /// Number of the next run.
        run: RunNumber,
        /// True if this source does not reach the event: the next run begins where it is.
        here: bool,
    },
    /// S→B: the source has sent everything of this run, and what follows is of the next one.
    RunEnded(RunCounters),
    /// B→S: has the source continue up to this event, exclusive, and then end.
    StopAt {
        /// Number of the event.
        end: EventId,
        /// True if this source is not to reach it: it ends where it is.
        end_here: bool,
    },
    /// S→B: the source has sent everything; its final counters.
    End(FinalCounters),
    /// S→B: losses on the connection so far.
    Losses(Losses),
    /// S→B: reports to the other builders that builder 0 has begun or resumed the run.
    Running,
    /// S→B: reports to the other builders that builder 0 ends the run before this event.
    EndsAt {
        /// Number of the event.
        end: EventId,
    },
    /// S→B: announces memory that the builder may read by itself.
    Region(Region),
    /// S→B: totals so far of what the device had and the source did not take.
    NotTaken(NotTaken),
    /// S→B: reports to builder 0 when the first frame was taken from a device whose events are numbered by time.
    FirstFrame {
        /// Time at which the frame was taken.
        time: TaiNanos,
        /// Time from one event to the next, in nanoseconds.
        period_nanos: u64,
    },
    /// B→S: from builder 0: sets the time of event 0.
    EventsBegin {
        /// Time of event 0.
        time: TaiNanos,
    },
    /// B→S: from builder 0: requests the times of the [`SHIFT_WINDOW`](crate::SHIFT_WINDOW) events from this one on.
    ReportTimes {
        /// Number of the event.
        first: EventId,
    },
    /// S→B: reports trigger times to builder 0.
    TriggerTimes(TriggerTimes),
    /// B→S: from builder 0: by their times, the source's events from this one on are those of the other sources.
    NumbersAgree {
        /// Number of the event.
        first: EventId,
    },
    /// B→S: from builder 0: assigns these events to a builder.
    Assign(Assign),
    /// B→S: progress and free capacity of the builder.
    Room(Room),
    /// S→B: reports to builder 0 another builder's room and the source's own progress.
    RoomReport(RoomReport),
    /// B→S: from builder 0: no event goes to this builder any more.
    LeaveOut {
        /// Index of the builder.
        builder: u32,
    },
    /// S→B: reports to builder 0 what became of the source's fragments for a builder that was left out.
    Left(Left),
    /// S→B: of events below this one, the source has only what it has offered with tickets below `tickets`.
    Passed {
        /// Number of the event.
        below: EventId,
        /// First ticket that is not covered.
        tickets: u64,
    },
    /// B→S: all fragments of the source are accounted for; ends the conversation.
    Bye,
    /// S→B: informs a builder that this source goes on without another one, which has not dismissed it.
    BuilderLost {
        /// Number of the other builder.
        builder: u32,
        /// Class of its refusal; `None` if the source found no way to it.
        refusal: Option<Refusal>,
    },
    /// S→B or B→S: a message of a kind that this version does not know and that may be ignored.
    Ignored {
        /// Kind of the message: one of [`Message::IGNORABLE`].
        kind: u8,
    },
}

/// Reason why 64 bytes are not a control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum MessageError {
    /// The first field is not [`MESSAGE_MAGIC`]: not this protocol at all.
    #[error("message magic is {0:#010x}, expected 0x534d5754 (\"TWMS\"): the peer does not speak the Thalweg protocol")]
    Magic(u32),
    /// The message is of another protocol version.
    #[error("the peer speaks protocol version {0}, this program speaks version {PROTOCOL_VERSION}")]
    Version(u8),
    /// The checksum does not match.
    #[error("message CRC32C is {found:#010x}, computed {computed:#010x}")]
    Crc {
        /// Checksum stored in the message.
        found: u32,
        /// Checksum computed from its bytes.
        computed: u32,
    },
    /// The kind is not known.
    #[error("message kind {0} is not known")]
    Kind(u8),
    /// A field holds a value that is impossible for its kind.
    #[error("message field `{0}` holds an impossible value")]
    Field(&'static str),
}

const KIND_HELLO: u8 = 1;
const KIND_WELCOME: u8 = 2;
const KIND_REFUSE: u8 = 3;
const KIND_START: u8 = 4;
const KIND_OFFER: u8 = 5;
const KIND_FETCH: u8 = 6;
const KIND_DATA: u8 = 7;
const KIND_RELEASE: u8 = 8;
const KIND_PAUSE: u8 = 9;
const KIND_PAUSED: u8 = 10;
const KIND_STOP_AT: u8 = 11;
const KIND_END: u8 = 12;
const KIND_BYE: u8 = 13;
const KIND_LOSSES: u8 = 14;
const KIND_ENDS_AT: u8 = 15;
const KIND_REGION: u8 = 16;
const KIND_ASSIGN: u8 = 17;
const KIND_ROOM: u8 = 18;
const KIND_ROOM_REPORT: u8 = 19;
const KIND_LEAVE_OUT: u8 = 20;
const KIND_LEFT: u8 = 21;
const KIND_PASSED: u8 = 22;
const KIND_RESUME: u8 = 23;
const KIND_RUNNING: u8 = 24;
const KIND_NOT_TAKEN: u8 = 25;
const KIND_FIRST_FRAME: u8 = 26;
const KIND_EVENTS_BEGIN: u8 = 27;
const KIND_REPORT_TIMES: u8 = 28;
const KIND_TRIGGER_TIMES: u8 = 29;
const KIND_NUMBERS_AGREE: u8 = 30;
const KIND_NEXT_RUN: u8 = 31;
const KIND_RUN_ENDED: u8 = 32;
// From here on, receivers ignore the kinds that they do not know.
const KIND_BUILDER_LOST: u8 = 192;

impl Message {
    /// Kinds that a receiver ignores if it does not know them. Nothing follows the 64 bytes of such a message.
    pub const IGNORABLE: RangeInclusive<u8> = 192..=255;
    /// Length of the longest description that may follow a [`Hello`], in bytes.
    pub const MAX_DESCRIPTION: u32 = 16 * 1024;
    /// Length of the longest text that may follow a refusal, in bytes.
    pub const MAX_REFUSAL_TEXT: u32 = 1024;

    /// Returns the end of a link that sends this message.
    pub fn sending_end(&self) -> Sender {
        match self {
            Self::Hello(_)
            | Self::Offer(_)
            | Self::Data { .. }
            | Self::Paused { .. }
            | Self::Running
            | Self::EndsAt { .. }
            | Self::RunEnded(_)
            | Self::Region(_)
            | Self::NotTaken(_)
            | Self::FirstFrame { .. }
            | Self::TriggerTimes(_)
            | Self::End(_)
            | Self::Losses(_)
            | Self::RoomReport(_)
            | Self::Left(_)
            | Self::Passed { .. }
            | Self::BuilderLost { .. } => Sender::Source,
            Self::Welcome(_)
            | Self::Start { .. }
            | Self::Fetch { .. }
            | Self::Release { .. }
            | Self::Pause
            | Self::Resume
            | Self::StopAt { .. }
            | Self::NextRun { .. }
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

    /// Returns the number of bytes that follow this message on a stream.
    pub fn body_bytes(&self) -> usize {
        match *self {
            Self::Hello(Hello { description, .. }) => description as usize,
            Self::Refuse { text, .. } => text as usize,
            Self::Data { length, .. } => length as usize,
            _ => 0,
        }
    }

    /// Returns the 64 bytes of this message, its CRC filled in.
    pub fn encode(&self) -> [u8; MESSAGE_LEN] {
        let mut w = Writer { bytes: [0; MESSAGE_LEN], at: 8 };
        self.write_fields(&mut w);
        w.finish_message(self.kind_number())
    }

    fn kind_number(&self) -> u8 {
        match self {
            Self::Hello(_) => KIND_HELLO,
            Self::Welcome(_) => KIND_WELCOME,
            Self::Refuse { .. } => KIND_REFUSE,
            Self::Start { .. } => KIND_START,
            Self::Offer(_) => KIND_OFFER,
            Self::Fetch { .. } => KIND_FETCH,
            Self::Data { .. } => KIND_DATA,
            Self::Release { .. } => KIND_RELEASE,
            Self::Pause => KIND_PAUSE,
            Self::Resume => KIND_RESUME,
            Self::Paused { .. } => KIND_PAUSED,
            Self::StopAt { .. } => KIND_STOP_AT,
            Self::End(_) => KIND_END,
            Self::Losses(_) => KIND_LOSSES,
            Self::Running => KIND_RUNNING,
            Self::EndsAt { .. } => KIND_ENDS_AT,
            Self::Region(_) => KIND_REGION,
            Self::NotTaken(_) => KIND_NOT_TAKEN,
            Self::FirstFrame { .. } => KIND_FIRST_FRAME,
            Self::EventsBegin { .. } => KIND_EVENTS_BEGIN,
            Self::ReportTimes { .. } => KIND_REPORT_TIMES,
            Self::TriggerTimes(_) => KIND_TRIGGER_TIMES,
            Self::NumbersAgree { .. } => KIND_NUMBERS_AGREE,
            Self::NextRun { .. } => KIND_NEXT_RUN,
            Self::RunEnded(_) => KIND_RUN_ENDED,
            Self::Assign(_) => KIND_ASSIGN,
            Self::Room(_) => KIND_ROOM,
            Self::RoomReport(_) => KIND_ROOM_REPORT,
            Self::LeaveOut { .. } => KIND_LEAVE_OUT,
            Self::Left(_) => KIND_LEFT,
            Self::Passed { .. } => KIND_PASSED,
            Self::Bye => KIND_BYE,
            Self::BuilderLost { .. } => KIND_BUILDER_LOST,
            Self::Ignored { kind } => *kind,
        }
    }

    fn write_fields<'w>(&self, w: &'w mut Writer) -> &'w mut Writer {
        match *self {
            Self::Hello(hello) => hello.write_fields(w),
            Self::Welcome(welcome) => welcome.write_fields(w),
            Self::Refuse { reason, text } => w.write_u32(reason as u32).write_u32(text),
            Self::Start { run, first, at } => w.write_u64(first.0).write_u64(at.0).write_u32(run.0),
            Self::Offer(offer) => offer.write_fields(w),
            Self::Fetch { ticket, offset, length } | Self::Data { ticket, offset, length } => {
                w.write_u64(ticket).write_u32(offset).write_u32(length)
            }
            Self::Release { below } => w.write_u64(below),
            Self::Paused { next, asked_by } => w.write_u64(next.0).write_u32(asked_by),
            Self::NextRun { first, run, here } => w.write_u64(first.0).write_u32(run.0).write_u32(here.into()),
            Self::RunEnded(counters) => counters.write_fields(w),
            Self::StopAt { end, end_here } => w.write_u64(end.0).write_u32(end_here.into()),
            Self::End(final_counters) => final_counters.write_fields(w),
            Self::Losses(losses) => w.write_u64(losses.sent).write_u64(losses.again),
            Self::EndsAt { end } => w.write_u64(end.0),
            Self::Region(Region { arena, base, length, key }) => {
                w.write_u32(arena).write_u64(base).write_u64(length).write_u64(key)
            }
            Self::NotTaken(totals) => {
                w.write_u64(totals.dead_nanos).write_u64(totals.fragments).write_u64(totals.of_no_event);
                w.write_u32(totals.device_away.into())
            }
            Self::FirstFrame { time, period_nanos } => w.write_u64(time.0).write_u64(period_nanos),
            Self::EventsBegin { time } => w.write_u64(time.0),
            Self::ReportTimes { first } | Self::NumbersAgree { first } => w.write_u64(first.0),
            Self::TriggerTimes(report) => report.write_fields(w),
            Self::Assign(assign) => w.write_u64(assign.first.0).write_u64(assign.count).write_u32(assign.builder),
            Self::Room(room) => room.write_fields(w),
            Self::RoomReport(report) => report.write_fields(w),
            Self::LeaveOut { builder } => w.write_u32(builder),
            Self::Left(left) => left.write_fields(w),
            Self::Passed { below, tickets } => w.write_u64(below.0).write_u64(tickets),
            Self::BuilderLost { builder, refusal } => {
                w.write_u32(builder).write_u32(refusal.map_or(0, |refusal| refusal as u32))
            }
            Self::Pause | Self::Resume | Self::Running | Self::Bye | Self::Ignored { .. } => w,
        }
    }

    /// Decodes one message. Each field is possible in itself; whether it fits the conversation is for the caller to
    /// check.
    ///
    /// # Errors
    /// The bytes are not a message of this version, its CRC is wrong, or a field holds an impossible value.
    pub fn decode(bytes: &[u8; MESSAGE_LEN]) -> Result<Self, MessageError> {
        let mut r = Reader::after_header(bytes)?;
        Ok(match bytes[5] {
            KIND_HELLO => Self::Hello(Hello::read_fields(&mut r)?),
            KIND_WELCOME => Self::Welcome(Welcome::read_fields(&mut r)?),
            KIND_REFUSE => Self::Refuse {
                reason: Refusal::from_number(r.read_u32())?,
                text: r.read_u32_at_most("text", Self::MAX_REFUSAL_TEXT)?,
            },
            KIND_START => {
                Self::Start { first: EventId(r.read_u64()), at: TaiNanos(r.read_u64()), run: RunNumber(r.read_u32()) }
            }
            KIND_OFFER => Self::Offer(Announcement::read_fields(&mut r)?),
            KIND_FETCH => {
                let (ticket, offset, length) = r.read_ticket_range()?;
                Self::Fetch { ticket, offset, length }
            }
            KIND_DATA => {
                let (ticket, offset, length) = r.read_ticket_range()?;
                Self::Data { ticket, offset, length }
            }
            KIND_RELEASE => Self::Release { below: r.read_u64() },
            KIND_PAUSE => Self::Pause,
            KIND_RESUME => Self::Resume,
            KIND_PAUSED => Self::Paused { next: EventId(r.read_u64()), asked_by: r.read_u32() },
            KIND_NEXT_RUN => Self::read_next_run(&mut r)?,
            KIND_RUN_ENDED => Self::RunEnded(RunCounters::read_fields(&mut r)),
            KIND_STOP_AT => {
                Self::StopAt { end: EventId(r.read_u64()), end_here: r.read_u32_at_most("end_here", 1)? == 1 }
            }
            KIND_RUNNING => Self::Running,
            KIND_ENDS_AT => Self::EndsAt { end: EventId(r.read_u64()) },
            KIND_REGION => Self::Region(Region {
                arena: r.read_u32(),
                base: r.read_u64(),
                length: r.read_u64(),
                key: r.read_u64(),
            }),
            KIND_NOT_TAKEN => Self::NotTaken(NotTaken {
                dead_nanos: r.read_u64(),
                fragments: r.read_u64(),
                of_no_event: r.read_u64(),
                device_away: r.read_u32_at_most("device_away", 1)? == 1,
            }),
            KIND_FIRST_FRAME => Self::FirstFrame { time: TaiNanos(r.read_u64()), period_nanos: r.read_u64() },
            KIND_EVENTS_BEGIN => Self::EventsBegin { time: TaiNanos(r.read_u64()) },
            KIND_REPORT_TIMES => Self::ReportTimes { first: EventId(r.read_u64()) },
            KIND_TRIGGER_TIMES => Self::TriggerTimes(TriggerTimes::read_fields(&mut r)?),
            KIND_NUMBERS_AGREE => Self::NumbersAgree { first: EventId(r.read_u64()) },
            KIND_END => Self::End(FinalCounters::read_fields(&mut r)),
            KIND_LOSSES => Self::Losses(Losses { sent: r.read_u64(), again: r.read_u64() }),
            KIND_ASSIGN => Self::Assign(Assign::read_fields(&mut r)?),
            KIND_ROOM => Self::Room(Room::read_fields(&mut r)),
            KIND_ROOM_REPORT => Self::RoomReport(RoomReport::read_fields(&mut r)?),
            KIND_LEAVE_OUT => Self::LeaveOut { builder: r.read_u32() },
            KIND_LEFT => Self::Left(Left::read_fields(&mut r)),
            KIND_PASSED => Self::Passed { below: EventId(r.read_u64()), tickets: r.read_u64() },
            KIND_BYE => Self::Bye,
            KIND_BUILDER_LOST => Self::BuilderLost {
                builder: r.read_u32(),
                refusal: match r.read_u32() {
                    0 => None,
                    number => Some(Refusal::from_number(number)?),
                },
            },
            kind if Self::IGNORABLE.contains(&kind) => Self::Ignored { kind },
            kind => return Err(MessageError::Kind(kind)),
        })
    }
}

impl Message {
    fn read_next_run(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        let (first, run) = (EventId(r.read_u64()), RunNumber(r.read_u32()));
        Ok(Self::NextRun { first, run, here: r.read_u32_at_most("here", 1)? == 1 })
    }
}

impl Hello {
    fn write_fields<'w>(&self, w: &'w mut Writer) -> &'w mut Writer {
        w.write_u64(self.session)
            .write_u32(self.source.0)
            .write_u32(self.builder)
            .write_u32(self.builders)
            .write_u32(self.slots);
        w.write_u32(self.slot_bytes)
            .write_u32(self.max_payload)
            .write_u32(self.capabilities.bits())
            .write_u32(self.description)
    }

    fn read_fields(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        Ok(Self {
            session: r.read_u64(),
            source: SourceId(r.read_u32()),
            builder: r.read_u32(),
            builders: r.read_u32(),
            slots: r.read_u32(),
            slot_bytes: r.read_u32(),
            max_payload: r.read_u32(),
            capabilities: Capabilities::from_bits_retain(r.read_u32()),
            description: r.read_u32_at_most("description", Message::MAX_DESCRIPTION)?,
        })
    }
}

impl Welcome {
    fn write_fields<'w>(&self, w: &'w mut Writer) -> &'w mut Writer {
        w.write_u32(self.run.0).write_u32(self.eager_credit).write_u32(self.eager_limit).write_u32(self.most_records);
        w.write_u32(self.running.into()).write_u64(self.released_below).write_u32(self.capabilities.bits())
    }

    fn read_fields(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        Ok(Self {
            run: RunNumber(r.read_u32()),
            eager_credit: r.read_u32(),
            eager_limit: r.read_u32(),
            most_records: r.read_u32(),
            running: r.read_u32_at_most("running", 1)? == 1,
            released_below: r.read_u64(),
            capabilities: Capabilities::from_bits_retain(r.read_u32()),
        })
    }
}

impl Announcement {
    fn write_fields<'w>(&self, w: &'w mut Writer) -> &'w mut Writer {
        w.write_u64(self.ticket)
            .write_u64(self.first.0)
            .write_u64(self.arena_offset)
            .write_u32(self.count)
            .write_u32(self.bytes);
        w.write_u32(self.disposition as u32)
    }

    fn read_fields(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        let announcement = Self {
            ticket: r.read_u64(),
            first: EventId(r.read_u64()),
            arena_offset: r.read_u64(),
            count: r.read_u32(),
            bytes: r.read_u32(),
            disposition: Disposition::from_number(r.read_u32())?,
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

impl TriggerTimes {
    fn write_fields<'w>(&self, w: &'w mut Writer) -> &'w mut Writer {
        w.write_u64(self.first.0);
        for time in self.times {
            w.write_u64(time.0);
        }
        w.write_u32(self.uncertain.into())
    }

    fn read_fields(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        Ok(Self {
            first: EventId(r.read_u64()),
            times: [(); Self::EVENTS_PER_MESSAGE as usize].map(|()| TaiNanos(r.read_u64())),
            uncertain: r.read_u32_at_most("uncertain", 1)? == 1,
        })
    }
}

impl FinalCounters {
    fn write_fields<'w>(&self, w: &'w mut Writer) -> &'w mut Writer {
        w.write_u64(self.accepted)
            .write_u64(self.dropped_newest)
            .write_u64(self.dropped_oldest)
            .write_u64(self.tickets);
        w.write_u64(self.cpu_nanos).write_u64(self.copied_bytes).write_u32(self.next_sequence)
    }

    fn read_fields(r: &mut Reader<'_>) -> Self {
        Self {
            accepted: r.read_u64(),
            dropped_newest: r.read_u64(),
            dropped_oldest: r.read_u64(),
            tickets: r.read_u64(),
            cpu_nanos: r.read_u64(),
            copied_bytes: r.read_u64(),
            next_sequence: r.read_u32(),
        }
    }
}

impl RunCounters {
    fn write_fields<'w>(&self, w: &'w mut Writer) -> &'w mut Writer {
        w.write_u64(self.accepted).write_u64(self.dropped_newest).write_u64(self.dropped_oldest);
        w.write_u64(self.tickets).write_u64(self.cpu_nanos).write_u64(self.copied_bytes).write_u32(self.run.0)
    }

    fn read_fields(r: &mut Reader<'_>) -> Self {
        Self {
            accepted: r.read_u64(),
            dropped_newest: r.read_u64(),
            dropped_oldest: r.read_u64(),
            tickets: r.read_u64(),
            cpu_nanos: r.read_u64(),
            copied_bytes: r.read_u64(),
            run: RunNumber(r.read_u32()),
        }
    }
}

impl Assign {
    fn read_fields(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        let assign = Self { first: EventId(r.read_u64()), count: r.read_u64(), builder: r.read_u32() };
        match assign.first.0.checked_add(assign.count) {
            Some(_) if assign.count > 0 => Ok(assign),
            _ => Err(MessageError::Field("count")),
        }
    }
}

impl Room {
    fn write_fields<'w>(&self, w: &'w mut Writer) -> &'w mut Writer {
        w.write_u64(self.closed_below.0).write_u64(self.room).write_u64(self.closed).write_u32(self.builder)
    }

    fn read_fields(r: &mut Reader<'_>) -> Self {
        Self { closed_below: EventId(r.read_u64()), room: r.read_u64(), closed: r.read_u64(), builder: r.read_u32() }
    }
}

impl RoomReport {
    fn write_fields<'w>(&self, w: &'w mut Writer) -> &'w mut Writer {
        self.room.write_fields(w).write_u32(self.contact as u32).write_u64(self.next.0).write_u64(self.assigned.0)
    }

    fn read_fields(r: &mut Reader<'_>) -> Result<Self, MessageError> {
        Ok(Self {
            room: Room::read_fields(r),
            contact: Contact::from_number(r.read_u32())?,
            next: EventId(r.read_u64()),
            assigned: EventId(r.read_u64()),
        })
    }
}

impl Left {
    fn write_fields<'w>(&self, w: &'w mut Writer) -> &'w mut Writer {
        w.write_u32(self.builder)
            .write_u64(self.accepted)
            .write_u64(self.dropped_newest)
            .write_u64(self.dropped_oldest);
        w.write_u64(self.lost_in_device).write_u64(self.lost)
    }

    fn read_fields(r: &mut Reader<'_>) -> Self {
        Self {
            builder: r.read_u32(),
            accepted: r.read_u64(),
            dropped_newest: r.read_u64(),
            dropped_oldest: r.read_u64(),
            lost_in_device: r.read_u64(),
            lost: r.read_u64(),
        }
    }
}

struct Writer {
    bytes: [u8; MESSAGE_LEN],
    at: usize,
}

impl Writer {
    fn write_u32(&mut self, value: u32) -> &mut Self {
        self.bytes[self.at..self.at + 4].copy_from_slice(&value.to_le_bytes());
        self.at += 4;
        self
    }

    fn write_u64(&mut self, value: u64) -> &mut Self {
        self.bytes[self.at..self.at + 8].copy_from_slice(&value.to_le_bytes());
        self.at += 8;
        self
    }

    fn finish_message(mut self, kind: u8) -> [u8; MESSAGE_LEN] {
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
    /// Returns a reader at the first field after the header, if the magic, version and CRC are right.
    fn after_header(bytes: &'a [u8; MESSAGE_LEN]) -> Result<Self, MessageError> {
        let magic = Self { bytes, at: 0 }.read_u32();
        if magic != MESSAGE_MAGIC {
            return Err(MessageError::Magic(magic));
        }
        if bytes[4] != PROTOCOL_VERSION {
            return Err(MessageError::Version(bytes[4]));
        }
        let (found, computed) = (Self { bytes, at: 60 }.read_u32(), crc32c(&bytes[..60]));
        if found != computed {
            return Err(MessageError::Crc { found, computed });
        }
        Ok(Self { bytes, at: 8 })
    }

    fn read_u32(&mut self) -> u32 {
        let b = &self.bytes[self.at..self.at + 4];
        self.at += 4;
        u32::from_le_bytes([b[0], b[1], b[2], b[3]])
    }

    fn read_u64(&mut self) -> u64 {
        let low = self.read_u32();
        u64::from(low) | u64::from(self.read_u32()) << 32
    }

    fn read_u32_at_most(&mut self, field: &'static str, limit: u32) -> Result<u32, MessageError> {
        let value = self.read_u32();
        if value > limit { Err(MessageError::Field(field)) } else { Ok(value) }
    }

    /// Reads a ticket and a range of its bytes, which must not be empty.
    fn read_ticket_range(&mut self) -> Result<(u64, u32, u32), MessageError> {
        let (ticket, offset, length) = (self.read_u64(), self.read_u32(), self.read_u32());
        match offset.checked_add(length) {
            Some(_) if length > 0 => Ok((ticket, offset, length)),
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
            Message::NextRun { first: EventId(1240), run: RunNumber(43), here: true },
            Message::RunEnded(RunCounters {
                run: RunNumber(42),
                accepted: 1,
                dropped_newest: 2,
                dropped_oldest: 3,
                tickets: 4,
                cpu_nanos: 5,
                copied_bytes: 6,
            }),
            Message::StopAt { end: EventId(1240), end_here: true },
            Message::Resume,
            Message::Running,
            Message::EndsAt { end: EventId(1240) },
            Message::NotTaken(NotTaken { dead_nanos: 1 << 40, fragments: 12, of_no_event: 5, device_away: true }),
            Message::FirstFrame { time: TaiNanos(1 << 60), period_nanos: 20_000_000 },
            Message::EventsBegin { time: TaiNanos(1 << 60) },
            Message::ReportTimes { first: EventId(1 << 50) },
            Message::TriggerTimes(TriggerTimes {
                first: EventId(1 << 50),
                times: [1, 2, 0, 4, u64::MAX].map(TaiNanos),
                uncertain: true,
            }),
            Message::NumbersAgree { first: EventId(1 << 50) },
            Message::End(FinalCounters {
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
            Message::RoomReport(RoomReport {
                room: ROOM_OF_2,
                contact: Contact::Connected,
                next: EventId(1290),
                assigned: EventId(u64::MAX),
            }),
            Message::LeaveOut { builder: 2 },
            Message::Region(Region { arena: 0, base: 4096, length: 1 << 33, key: 0xdead_beef }),
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
            Message::BuilderLost { builder: 2, refusal: None },
            Message::BuilderLost { builder: 0, refusal: Some(Refusal::Ended) },
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
        let bytes = Message::RoomReport(RoomReport {
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
        let bytes = Message::NextRun { first: EventId(0x0102), run: RunNumber(0x2b), here: true }.encode();
        let hex: String = bytes[..24].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "54574d53021f000002010000000000002b00000001000000");
        let bytes = Message::Region(Region { arena: 0, base: 0x0102, length: 0x20_0000, key: 0x0a0b_0c0d }).encode();
        let hex: String = bytes[..36].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "54574d530210000000000000020100000000000000002000000000000d0c0b0a00000000");
    }

    #[test]
    fn an_assignment_has_an_event_and_an_end() {
        for (first, count) in [(7, 0), (u64::MAX, 1), (2, u64::MAX - 1)] {
            let bytes = Message::Assign(Assign { first: EventId(first), count, builder: 0 }).encode();
            assert_eq!(Message::decode(&bytes), Err(MessageError::Field("count")));
        }
    }

    #[test]
    fn a_wrong_version_is_distinguished_from_garbage() {
        let mut bytes = Message::Bye.encode();
        bytes[4] = 1;
        assert_eq!(Message::decode(&bytes), Err(MessageError::Version(1)));
        assert_eq!(Message::decode(&[b'G'; 64]), Err(MessageError::Magic(0x4747_4747)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes: [u8; 32], kind in prop_oneof![0u8..34, 190u8..], tail: [u8; 28], valid_crc: bool) {
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
                // A decoded message is encoded and decoded to the same message.
                prop_assert_eq!(Message::decode(&message.encode()), Ok(message));
            }
        }
    }
}
