//! Any bytes are a frame that says something to a port, or are foreign; what a datagram says lies in the frame.

use std::net::{Ipv4Addr, SocketAddrV4};
use thalweg_frames::{ParsedFrame, PortAddresses, parse_frame};

const OWN: PortAddresses =
    PortAddresses { mac: [2, 0, 0, 0, 0, 1], at: SocketAddrV4::new(Ipv4Addr::new(198, 18, 0, 1), 4000) };

/// Tries one input.
pub fn run(bytes: &[u8]) {
    parse_frame(bytes, &OWN);
    // A fuzzer guesses neither addresses nor checksums: behind valid ones the fields themselves are reached.
    let mut frame = bytes.to_vec();
    let Some(head) = frame.first_chunk_mut::<42>() else { return };
    head[..6].copy_from_slice(&OWN.mac);
    head[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    head[30..34].copy_from_slice(&OWN.at.ip().octets());
    head[24..26].fill(0);
    let words = head[14..34].as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word)));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    head[24..26].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    if head[23] == 17 {
        head[36..38].copy_from_slice(&OWN.at.port().to_be_bytes());
        head[40..42].fill(0);
    }
    if let ParsedFrame::Datagram { payload, .. } = parse_frame(&frame, &OWN) {
        assert!(payload.len() + 42 <= frame.len());
    }
}
