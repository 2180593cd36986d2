//! Blocks of the format (*PCAP Next Generation (pcapng) Capture File Format*, draft-ietf-opsawg-pcapng-03), in the byte
//! order of this machine.

use thalweg_frames::Packet;

/// Link type of Ethernet frames (draft-ietf-opsawg-pcaplinktype).
const LINKTYPE_ETHERNET: u16 = 1;
const SECTION_HEADER_BLOCK: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION_BLOCK: u32 = 1;
const INTERFACE_STATISTICS_BLOCK: u32 = 5;
const ENHANCED_PACKET_BLOCK: u32 = 6;

/// Appends the block at the beginning of a file (section 4.1).
pub(crate) fn append_section(out: &mut Vec<u8>, application: &str) {
    append_block(out, SECTION_HEADER_BLOCK, |out| {
        out.extend(0x1a2b_3c4du32.to_ne_bytes());
        out.extend([1u16, 0].map(u16::to_ne_bytes).as_flattened());
        // Section length: not known yet.
        out.extend((-1i64).to_ne_bytes());
        append_option(out, 4, application.as_bytes());
        append_option(out, 0, &[]);
    });
}

/// Appends the block that describes the interface of the packets (section 4.2). Times are in nanoseconds
/// (`if_tsresol`).
pub(crate) fn append_interface(out: &mut Vec<u8>, name: &str, snap: u32) {
    append_block(out, INTERFACE_DESCRIPTION_BLOCK, |out| {
        out.extend([LINKTYPE_ETHERNET, 0].map(u16::to_ne_bytes).as_flattened());
        out.extend(snap.to_ne_bytes());
        append_option(out, 2, name.as_bytes());
        append_option(out, 9, &[9]);
        append_option(out, 0, &[]);
    });
}

/// Appends the block of a packet, or of its first bytes (section 4.3).
pub(crate) fn append_packet(out: &mut Vec<u8>, packet: &Packet<'_>, snap: u32) {
    let addresses = packet.bytes.len().min(12);
    let tag = packet.tag.filter(|_| addresses == 12);
    let tag = tag.as_ref().map_or(&[][..], |tag| tag);
    let kept = (packet.bytes.len() + tag.len()).min(snap as usize);
    append_block(out, ENHANCED_PACKET_BLOCK, |out| {
        out.extend(0u32.to_ne_bytes());
        out.extend(encode_timestamp(packet.nanos).as_flattened());
        for length in [kept, packet.length + tag.len()] {
            out.extend(u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
        }
        let begin = out.len();
        for part in [&packet.bytes[..addresses], tag, &packet.bytes[addresses..]] {
            out.extend_from_slice(part);
        }
        out.truncate(begin + kept);
        pad_to_word(out);
    });
}

/// Appends the numbers of packets received and dropped, between `begin` and `end` (section 4.6).
pub(crate) fn append_statistics(out: &mut Vec<u8>, begin: u64, end: u64, received: u64, dropped: Option<u64>) {
    append_block(out, INTERFACE_STATISTICS_BLOCK, |out| {
        out.extend(0u32.to_ne_bytes());
        out.extend(encode_timestamp(end).as_flattened());
        append_option(out, 2, encode_timestamp(begin).as_flattened());
        append_option(out, 3, encode_timestamp(end).as_flattened());
        if let Some(dropped) = dropped {
            // isb_ifrecv includes the dropped packets.
            append_option(out, 4, &(received + dropped).to_ne_bytes());
            append_option(out, 5, &dropped.to_ne_bytes());
        }
        // isb_usrdeliv: packets delivered to this program.
        append_option(out, 8, &received.to_ne_bytes());
        append_option(out, 0, &[]);
    });
}

/// Returns a time: its upper 32 bits before the lower ones.
fn encode_timestamp(nanos: u64) -> [[u8; 4]; 2] {
    [(nanos >> 32) as u32, nanos as u32].map(u32::to_ne_bytes)
}

/// Appends a block: its type, and its length before and after its content (section 3.1).
fn append_block(out: &mut Vec<u8>, kind: u32, content: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    out.extend(kind.to_ne_bytes());
    out.extend([0; 4]);
    content(out);
    let length = u32::try_from(out.len() + 4 - begin).unwrap_or(u32::MAX).to_ne_bytes();
    out[begin + 4..begin + 8].copy_from_slice(&length);
    out.extend(length);
}

/// Appends an option: its code and length, and its value, padded to a multiple of four bytes (section 3.5).
fn append_option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    out.extend([code, value.len() as u16].map(u16::to_ne_bytes).as_flattened());
    out.extend_from_slice(value);
    pad_to_word(out);
}

/// Pads to a multiple of four bytes: blocks begin at such multiples, so their position in a file does not matter.
fn pad_to_word(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_left_out_of_the_statistics() {
        let options = |dropped| {
            let mut block = Vec::new();
            append_statistics(&mut block, 1, 2, 100, dropped);
            // The options are between the header (type, length, interface and time) and the length at the end.
            let mut rest = &block[20..block.len() - 4];
            let mut options = Vec::new();
            while let Some((head, behind)) = rest.split_first_chunk::<4>() {
                let [code, length] = [[head[0], head[1]], [head[2], head[3]]].map(u16::from_ne_bytes);
                let value = &behind[..usize::from(length)];
                options.extend(value.try_into().ok().map(|value| (code, u64::from_ne_bytes(value))));
                rest = &behind[usize::from(length).next_multiple_of(4)..];
            }
            options.split_off(2)
        };
        assert_eq!(options(Some(7)), [(4, 107), (5, 7), (8, 100)]);
        assert_eq!(options(None), [(8, 100)]);
    }
}
