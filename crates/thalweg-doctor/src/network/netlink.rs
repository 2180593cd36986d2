//! Queries to the kernel as `ethtool` makes them, without the program: generic netlink
//! (Documentation/userspace-api/netlink).
//!
//! Only requests are sent (`NLM_F_REQUEST`), and each answer is one message per interface.

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLA_F_NESTED, NLA_HEADER_SIZE, NLM_F_REQUEST, NetlinkDeserializable,
    NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable, NlasIterator,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with, sockopt,
};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// The controller, which resolves the names of families, and its requests.
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// Longest answer in bytes: features with their names take some KiB.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// A generic netlink family: a part of the kernel that answers requests.
#[derive(Debug)]
pub(crate) struct Family {
    socket: OwnedFd,
    id: u16,
    sequence: u32,
}

impl Family {
    /// Opens a family by its name. The error tells why it is not available.
    pub(crate) fn open_by_name(name: &str) -> Result<Self, String> {
        let socket = open_netlink_socket().map_err(|error| format!("netlink: {error}"))?;
        let mut family = Self { socket, id: GENL_ID_CTRL, sequence: 0 };
        let wanted = encode_attribute(CTRL_ATTR_FAMILY_NAME, &[name.as_bytes(), &[0]].concat());
        let answer = family.send_request(CTRL_CMD_GETFAMILY, &wanted)?;
        family.id = find_attribute(&answer, CTRL_ATTR_FAMILY_ID)
            .and_then(|value| Some(u16::from_ne_bytes(value.try_into().ok()?)))
            .ok_or("netlink: a reply without an id")?;
        Ok(family)
    }

    /// Sends one request. Returns the attributes of the answer.
    pub(crate) fn send_request(&mut self, command: u8, attributes: &[u8]) -> Result<Vec<u8>, String> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST;
        header.sequence_number = self.sequence;
        let question = Generic { family: self.id, command, attributes: attributes.to_vec() };
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(question));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        // Without an address a netlink socket sends to the kernel.
        send(&self.socket, &bytes, SendFlags::empty()).map_err(|error| format!("netlink: {error}"))?;
        let mut answer = vec![0; MAX_ANSWER_BYTES];
        loop {
            let (read, _) =
                recv(&self.socket, &mut answer[..], RecvFlags::empty()).map_err(|error| format!("netlink: {error}"))?;
            let message = NetlinkMessage::<Generic>::deserialize(&answer[..read]);
            match message.map_err(|error| format!("netlink: {error}"))?.into_parts() {
                // The answer to a request that was given up.
                (header, _) if header.sequence_number != self.sequence => {}
                (_, NetlinkPayload::InnerMessage(answer)) => return Ok(answer.attributes),
                (_, NetlinkPayload::Error(error)) => return Err(error.to_io().to_string()),
                _ => return Err("netlink: a reply of an unexpected type".into()),
            }
        }
    }
}

fn open_netlink_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::GENERIC))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(Duration::from_secs(1)))?;
    Ok(socket)
}

/// Returns the header of ethtool's requests, which names an interface (`ETHTOOL_A_HEADER_DEV_INDEX`).
pub(crate) fn ethtool_header(index: u32) -> Vec<u8> {
    encode_attribute(1 | NLA_F_NESTED, &encode_attribute(1, &index.to_ne_bytes()))
}

/// Returns one attribute, encoded.
pub(crate) fn encode_attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let attribute = DefaultNla::new(kind, value.to_vec());
    let mut bytes = vec![0; attribute.buffer_len()];
    attribute.emit(&mut bytes);
    bytes
}

/// Returns the value of the first attribute of that type.
pub(crate) fn find_attribute(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    iter_attributes(attributes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// Returns the value of an attribute that is a 32-bit number.
pub(crate) fn find_u32_attribute(attributes: &[u8], kind: u16) -> Option<u32> {
    Some(u32::from_ne_bytes(find_attribute(attributes, kind)?.try_into().ok()?))
}

/// Iterates over all attributes, as far as they can be parsed: type and value.
pub(crate) fn iter_attributes(attributes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(attributes).map_while(Result::ok).map(|attribute| {
        let value = NLA_HEADER_SIZE..usize::from(attribute.length());
        (attribute.kind(), &attribute.into_inner()[value])
    })
}

/// Message to or from a family: `struct genlmsghdr`, and attributes.
#[derive(Debug)]
struct Generic {
    family: u16,
    command: u8,
    attributes: Vec<u8>,
}

impl NetlinkSerializable for Generic {
    fn message_type(&self) -> u16 {
        self.family
    }

    fn buffer_len(&self) -> usize {
        4 + self.attributes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer[..4].copy_from_slice(&[self.command, 1, 0, 0]);
        buffer[4..].copy_from_slice(&self.attributes);
    }
}

impl NetlinkDeserializable for Generic {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        let ([command, ..], attributes) = payload.split_first_chunk::<4>().ok_or("a reply shorter than its header")?;
        Ok(Self { family: header.message_type, command: *command, attributes: attributes.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use thalweg_testing::skip::skipped;

    #[test]
    fn what_is_asked_can_be_read_back() {
        let attributes = [
            encode_attribute(1, b"abc"),
            encode_attribute(2 | NLA_F_NESTED, &encode_attribute(7, &9u32.to_ne_bytes())),
        ]
        .concat();
        assert_eq!(find_attribute(&attributes, 1), Some(&b"abc"[..]));
        assert_eq!(find_u32_attribute(find_attribute(&attributes, 2).unwrap(), 7), Some(9));
        assert_eq!(find_attribute(&attributes, 3), None);
    }

    #[test]
    fn loopback_answers() {
        let mut ethtool = match Family::open_by_name("ethtool") {
            Ok(family) => family,
            Err(error) => return skipped(format_args!("ethtool over netlink: {error}")),
        };
        // Features (ETHTOOL_MSG_FEATURES_GET), of which loopback has some.
        let answer = ethtool.send_request(11, &ethtool_header(1)).unwrap();
        assert!(iter_attributes(&answer).count() > 2);
        assert_eq!(Family::open_by_name("no such family").unwrap_err(), "No such file or directory (os error 2)");
        assert_eq!(ethtool.send_request(11, &ethtool_header(u32::MAX)).unwrap_err(), "No such device (os error 19)");
        assert!(ethtool.send_request(11, &ethtool_header(1)).is_ok(), "it goes on after an error");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes: Vec<u8>, kind: u16) {
            for (_, value) in iter_attributes(&bytes) {
                prop_assert!(value.len() < bytes.len());
                iter_attributes(value).for_each(drop);
            }
            find_u32_attribute(&bytes, kind);
            let _ = NetlinkMessage::<Generic>::deserialize(&bytes);
        }
    }
}
