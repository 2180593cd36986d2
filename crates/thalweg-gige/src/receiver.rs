//! The port that a stream comes to: the kernel writes each packet's payload to its place in the slot.

use crate::assembler::{Arrived, Assembler, Body, Plan, Spot};
use crate::gvsp::{Header, WIDE_HEADER_BYTES};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;
use thalweg_frames::{Counters, DirectSocket, FramesError, Place};
use thalweg_wire::TaiNanos;

/// Number of packets received in one call.
const BURST_PACKETS: usize = 64;

/// A port, and the packets received there.
#[derive(Debug)]
pub(crate) struct Receiver {
    socket: DirectSocket,
    intake: Intake,
}

/// Lays out places for packets, and hands the packets received there to an [`Assembler`].
#[derive(Debug, Default)]
pub struct Intake {
    plan: Plan,
    fronts: Vec<u8>,
    /// Space for each packet outside the slots: for packets without payload, and for bytes after a frame's end.
    aside: Vec<u8>,
    /// Bytes of packets that have to be moved.
    moved: Vec<u8>,
    came: Vec<(usize, Option<SocketAddr>)>,
    arrived: Vec<Arrived>,
}

impl Receiver {
    /// Opens a free UDP port of this host.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { socket: DirectSocket::bind((Ipv4Addr::UNSPECIFIED, 0).into())?, intake: Intake::default() })
    }

    pub(crate) fn local_port(&self) -> u16 {
        self.socket.local_address().port()
    }

    /// Sets the size of the kernel's receive buffer in bytes. Returns the size in effect.
    pub(crate) fn set_buffer_size(&mut self, bytes: u64) -> u64 {
        self.socket.reserve_receive_bytes(bytes)
    }

    pub(crate) fn port_counters(&self) -> Counters {
        self.socket.port_counters()
    }

    /// Discards packets that wait. Returns their number; 0 if there were none.
    pub(crate) fn discard_waiting(&mut self) -> Result<usize, FramesError> {
        let mut places: Vec<_> = (0..BURST_PACKETS).map(|_| Place::new(&mut [], &mut [])).collect();
        self.socket.receive_datagrams(&mut places)
    }

    /// Receives waiting packets once, and hands them to the assembler. `camera`: the only sender accepted. Returns the
    /// number of packets that came.
    pub(crate) fn receive_packets(
        &mut self,
        assembler: &mut Assembler,
        camera: Option<IpAddr>,
        times: (Duration, TaiNanos),
    ) -> Result<usize, FramesError> {
        let Self { socket, intake } = self;
        intake.receive_packets(assembler, camera, times, |places| socket.receive_datagrams(places))
    }
}

impl Intake {
    /// Has places filled, with one packet each, and hands the packets to the assembler. `camera`: the only sender
    /// accepted. Returns the number of packets that came.
    ///
    /// # Errors
    /// `fill` failed.
    pub fn receive_packets<E>(
        &mut self,
        assembler: &mut Assembler,
        camera: Option<IpAddr>,
        (now, date): (Duration, TaiNanos),
        fill: impl FnOnce(&mut [Place<'_>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let Self { plan, fronts, aside, moved, came, arrived } = self;
        assembler.plan_next_packets(BURST_PACKETS, plan);
        let front = Header::header_bytes(assembler.has_wide_header());
        let room = plan.piece + WIDE_HEADER_BYTES;
        fronts.resize(WIDE_HEADER_BYTES * BURST_PACKETS, 0);
        aside.resize(room * BURST_PACKETS, 0);
        let mut places = lay_out_places(plan, &mut fronts[..front * BURST_PACKETS], aside, front, room);
        let received = fill(&mut places);
        came.clear();
        came.extend(places.iter().map(|place| (place.length, place.from)));
        drop(places);
        let received = match received {
            Ok(received) => received,
            Err(error) => {
                assembler.return_buffers(plan);
                return Err(error);
            }
        };
        moved.clear();
        arrived.clear();
        for (at, (length, from)) in came.drain(..).take(received).enumerate() {
            if from.is_none_or(|from| camera.is_some_and(|camera| camera != from.ip())) {
                assembler.count_stranger();
                continue;
            }
            let own = &fronts[at * front..(at + 1) * front];
            let whole = length <= front + room + spot_length_bytes(plan, plan.spots[at]);
            let wide = own.get(4).is_some_and(|byte| length > 4 && byte & 0x80 != 0);
            // A header of the other length lies partly in the place for payload.
            let begun = moved.len();
            let as_expected = Header::header_bytes(wide) == front;
            if !as_expected {
                append_packet(plan, at, own, aside, room, length, moved);
            }
            let header = match as_expected {
                true => Header::parse_packet_header(own, length),
                false => Header::parse_packet_header(&moved[begun..], length),
            };
            let Some(header) = header.filter(|_| whole) else {
                assembler.count_malformed();
                continue;
            };
            let Some(number) = assembler.admit_packet(&header, length, plan, now) else { continue };
            let body = length - Header::header_bytes(wide);
            let spot = plan.spots[at];
            if as_expected && plan.is_received_in_place(spot, number, &header, body, assembler.piece_bytes()) {
                arrived.push(Arrived { header, number, body: Body::InPlace, length: body });
                continue;
            }
            if as_expected {
                append_packet(plan, at, own, aside, room, length, moved);
            }
            let range = (begun + Header::header_bytes(wide)).min(moved.len())..moved.len();
            arrived.push(Arrived { header, number, body: Body::Aside(range), length: body });
        }
        assembler.return_buffers(plan);
        for one in arrived.drain(..) {
            assembler.store_packet(&one, moved, now, date);
        }
        Ok(received)
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns the number of bytes that a spot has in a slot.
fn spot_length_bytes(plan: &Plan, spot: Spot) -> usize {
    match spot {
        Spot::Aside => 0,
        Spot::Slot { .. } => plan.piece,
    }
}

/// Returns the places of a plan's packets.
fn lay_out_places<'a>(
    plan: &'a mut Plan,
    fronts: &'a mut [u8],
    aside: &'a mut [u8],
    front: usize,
    room: usize,
) -> Vec<Place<'a>> {
    let Plan { buffers, spots, piece, .. } = plan;
    let mut slots = buffers.iter_mut().map(|planned| planned.buffer.payload_mut());
    // The slot that is being divided: its index, its remaining bytes, and the offset at which they begin.
    let (mut which, mut left, mut at): (Option<usize>, &mut [u8], usize) = (None, &mut [], 0);
    let mut places = Vec::with_capacity(spots.len());
    for ((front, more), spot) in fronts.chunks_exact_mut(front).zip(aside.chunks_exact_mut(room)).zip(spots.iter()) {
        let Spot::Slot { planned, packet } = *spot else {
            places.push(Place::new(front, more));
            continue;
        };
        while which != Some(planned) {
            let Some(slot) = slots.next() else { return places };
            which = Some(which.map_or(0, |which| which + 1));
            (left, at) = (slot, 0);
        }
        let begin = (packet as usize - 1) * *piece;
        let (_, rest) = std::mem::take(&mut left).split_at_mut_checked(begin.saturating_sub(at)).unwrap_or_default();
        let length = rest.len().min(*piece);
        let (own, rest) = rest.split_at_mut(length);
        (left, at) = (rest, begin + length);
        places.push(Place { more, ..Place::new(front, own) });
    }
    places
}

/// Copies a packet from where it was received, in parts, to the end of `moved`.
fn append_packet(
    plan: &mut Plan,
    at: usize,
    front: &[u8],
    aside: &[u8],
    room: usize,
    length: usize,
    moved: &mut Vec<u8>,
) {
    let mut in_slot: &[u8] = &[];
    if let Spot::Slot { planned, packet } = plan.spots[at]
        && let Some(planned) = plan.buffers.get_mut(planned)
    {
        let slot = planned.buffer.payload_mut();
        let begin = ((packet as usize - 1) * plan.piece).min(slot.len());
        in_slot = &slot[begin..(begin + plan.piece).min(slot.len())];
    }
    let mut left = length;
    for part in [front, in_slot, &aside[at * room..(at + 1) * room]] {
        let count = part.len().min(left);
        moved.extend_from_slice(&part[..count]);
        left -= count;
    }
}
