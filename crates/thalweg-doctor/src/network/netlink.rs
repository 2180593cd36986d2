//! Asking the kernel what `ethtool` asks, without the program: generic netlink (Documentation/userspace-api/netlink).
//!
//! Only questions are asked (`NLM_F_REQUEST`), and each answer is one message per interface.

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with, sockopt,
};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// `struct nlmsghdr` and `struct genlmsghdr`.
const HEADERS: usize = 16 + 4;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
/// The family of families, and what it is asked.
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// An attribute that holds attributes.
const NLA_F_NESTED: u16 = 1 << 15;
/// The upper two bits of an attribute's type are flags.
const NLA_TYPE_MASK: u16 = 0x3fff;
/// No answer is longer: features with their names take some KiB.
const LONGEST: usize = 64 << 10;

/// A part of the kernel that answers questions.
#[derive(Debug)]
pub(crate) struct Family {
    socket: OwnedFd,
    id: u16,
    sequence: u32,
}

impl Family {
    /// Finds it by its name. The error says why there is none.
    pub(crate) fn open(name: &str) -> Result<Self, String> {
        let wrong = |error: rustix::io::Errno| format!("netlink: {error}");
        let flags = SocketFlags::CLOEXEC;
        let socket =
            socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(netlink::GENERIC)).map_err(wrong)?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(Duration::from_secs(1))).map_err(wrong)?;
        let mut family = Self { socket, id: GENL_ID_CTRL, sequence: 0 };
        let wanted = attribute(CTRL_ATTR_FAMILY_NAME, &[name.as_bytes(), &[0]].concat());
        let answer = family.ask(CTRL_CMD_GETFAMILY, &wanted)?;
        family.id = find(&answer, CTRL_ATTR_FAMILY_ID)
            .and_then(|value| Some(u16::from_ne_bytes(value.try_into().ok()?)))
            .ok_or("netlink: an answer without an id")?;
        Ok(family)
    }

    /// One question about one thing. The answer is its attributes.
    pub(crate) fn ask(&mut self, command: u8, attributes: &[u8]) -> Result<Vec<u8>, String> {
        self.sequence += 1;
        let message = question(self.id, command, self.sequence, attributes);
        // Without an address a netlink socket talks to the kernel.
        send(&self.socket, &message, SendFlags::empty()).map_err(|error| format!("netlink: {error}"))?;
        loop {
            let mut answer = vec![0; LONGEST];
            let (read, _) =
                recv(&self.socket, &mut answer[..], RecvFlags::empty()).map_err(|error| format!("netlink: {error}"))?;
            answer.truncate(read);
            match attributes_of(&answer, self.sequence) {
                Answer::Attributes(attributes) => return Ok(attributes.to_vec()),
                Answer::Error(code) => return Err(std::io::Error::from_raw_os_error(code).to_string()),
                Answer::Nonsense => return Err("netlink: an answer that is none".into()),
                // Of a question that was given up.
                Answer::Other => {}
            }
        }
    }
}

/// The header that ethtool's questions begin with, naming an interface (`ETHTOOL_A_HEADER_DEV_INDEX`).
pub(crate) fn ethtool_header(index: u32) -> Vec<u8> {
    attribute(1 | NLA_F_NESTED, &attribute(1, &index.to_ne_bytes()))
}

/// One attribute: length, type, value, padding (`struct nlattr`).
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The value of the first attribute of that type.
pub(crate) fn find(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    all(attributes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// The value of an attribute that is a 32-bit number.
pub(crate) fn find_u32(attributes: &[u8], kind: u16) -> Option<u32> {
    Some(u32::from_ne_bytes(find(attributes, kind)?.try_into().ok()?))
}

/// All attributes, as far as they can be read.
pub(crate) fn all(mut left: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (left.first_chunk::<2>()?, left.get(2..)?.first_chunk::<2>()?);
        let length = usize::from(u16::from_ne_bytes(*length));
        let value = left.get(4..length)?;
        let kind = u16::from_ne_bytes(*kind) & NLA_TYPE_MASK;
        left = left.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn question(family: u16, command: u8, sequence: u32, attributes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADERS + attributes.len()).unwrap_or(u32::MAX);
    let mut message = Vec::with_capacity(HEADERS + attributes.len());
    message.extend_from_slice(&length.to_ne_bytes());
    message.extend_from_slice(&family.to_ne_bytes());
    message.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    message.extend_from_slice(&sequence.to_ne_bytes());
    // The port is the kernel's to fill in.
    message.extend_from_slice(&0u32.to_ne_bytes());
    message.extend_from_slice(&[command, 1, 0, 0]);
    message.extend_from_slice(attributes);
    message
}

#[derive(Debug, PartialEq)]
enum Answer<'a> {
    Attributes(&'a [u8]),
    Error(i32),
    Other,
    Nonsense,
}

fn attributes_of(message: &[u8], sequence: u32) -> Answer<'_> {
    let word = |at: usize| Some(u32::from_ne_bytes(*message.get(at..)?.first_chunk::<4>()?));
    let half = |at: usize| Some(u16::from_ne_bytes(*message.get(at..)?.first_chunk::<2>()?));
    match (word(0), half(4), word(8)) {
        (Some(_), Some(_), Some(other)) if other != sequence => Answer::Other,
        (Some(_), Some(NLMSG_ERROR), Some(_)) => match word(16).map(u32::cast_signed) {
            Some(code) => Answer::Error(code.saturating_neg()),
            None => Answer::Nonsense,
        },
        (Some(length), Some(_), Some(_)) => {
            message.get(HEADERS..length as usize).map_or(Answer::Nonsense, Answer::Attributes)
        }
        _ => Answer::Nonsense,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use thalweg_skip::skipped;

    #[test]
    fn what_is_asked_can_be_read_back() {
        let attributes =
            [attribute(1, b"abc"), attribute(2 | NLA_F_NESTED, &attribute(7, &9u32.to_ne_bytes()))].concat();
        assert_eq!(find(&attributes, 1), Some(&b"abc"[..]));
        assert_eq!(find_u32(find(&attributes, 2).unwrap(), 7), Some(9));
        assert_eq!(find(&attributes, 3), None);
        let message = question(0x10, 3, 5, &attributes);
        assert_eq!(attributes_of(&message, 5), Answer::Attributes(&attributes[..]));
        assert_eq!(attributes_of(&message, 4), Answer::Other);
    }

    #[test]
    fn loopback_answers() {
        let mut ethtool = match Family::open("ethtool") {
            Ok(family) => family,
            Err(error) => return skipped(format_args!("ethtool over netlink: {error}")),
        };
        // Features (ETHTOOL_MSG_FEATURES_GET), of which loopback has some.
        let answer = ethtool.ask(11, &ethtool_header(1)).unwrap();
        assert!(all(&answer).count() > 2);
        assert_eq!(Family::open("no such family").unwrap_err(), "No such file or directory (os error 2)");
        assert_eq!(ethtool.ask(11, &ethtool_header(u32::MAX)).unwrap_err(), "No such device (os error 19)");
        assert!(ethtool.ask(11, &ethtool_header(1)).is_ok(), "it goes on after an error");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes: Vec<u8>, kind: u16, sequence in 0u32..3) {
            for (_, value) in all(&bytes) {
                prop_assert!(value.len() < bytes.len());
                all(value).for_each(drop);
            }
            find_u32(&bytes, kind);
            attributes_of(&bytes, sequence);
        }
    }
}
