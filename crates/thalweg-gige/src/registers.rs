//! The registers that every camera has (GigE Vision 2.x, section 28: bootstrap registers), and who a camera is by them.

use std::fmt;
use std::net::Ipv4Addr;

/// Bytes from address 0 on that say who a camera is: a discovery acknowledge has the same (section 5.1).
pub(crate) const IDENTITY: u16 = 0xf8;
/// Where the description of its features is, as text: the first choice, and the second (section 28).
pub(crate) const DESCRIPTION_URLS: [u32; 2] = [0x0200, 0x0400];
/// Bytes of such a text.
pub(crate) const URL_BYTES: u16 = 512;
/// What it can do over the control channel.
pub(crate) const CAPABILITY: u32 = 0x0934;
/// It sends packets again.
pub(crate) const CAN_RESEND: u32 = 1 << 2;
/// After so many milliseconds without a command it takes its application to be gone.
pub(crate) const HEARTBEAT: u32 = 0x0938;
/// Ticks of its clock in a second: the upper half, the lower half behind.
pub(crate) const TICKS: u32 = 0x093c;
/// Has it note the time.
pub(crate) const TIME_CONTROL: u32 = 0x0944;
/// The bit of it that does.
pub(crate) const LATCH: u32 = 1 << 1;
/// The time that it noted: the upper half, the lower half behind.
pub(crate) const TIME: u32 = 0x0948;
/// Who controls it.
pub(crate) const PRIVILEGE: u32 = 0x0a00;
/// One application controls it, others may read.
pub(crate) const CONTROL: u32 = 1 << 1;
/// Somebody controls it, in whatever way.
pub(crate) const TAKEN: u32 = 0b111;
/// Whose it is: the address of its application.
pub(crate) const APPLICATION: u32 = 0x0a14;
/// The port that its stream goes to; 0: it does not.
pub(crate) const STREAM_PORT: u32 = 0x0d00;
/// How long its packets are, and whether they may be cut on their way.
pub(crate) const STREAM_PACKET: u32 = 0x0d04;
/// Send a packet of this length now, and once.
pub(crate) const FIRE_TEST: u32 = 1 << 31;
/// Packets must not be cut on their way.
pub(crate) const DO_NOT_FRAGMENT: u32 = 1 << 30;
/// The address that its stream goes to.
pub(crate) const STREAM_ADDRESS: u32 = 0x0d18;

/// A camera that answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its IP address.
    pub address: Ipv4Addr,
    /// Its hardware's address.
    pub mac: Mac,
    /// Who made it.
    pub manufacturer: String,
    /// What it is.
    pub model: String,
    /// Which version of that.
    pub version: String,
    /// Its serial number.
    pub serial: String,
    /// The name that its user gave it.
    pub user_name: String,
    /// The interface by which it answered.
    pub interface: String,
}

/// A hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Reads one as people write it: `00:11:22:aa:bb:cc`, or with dashes.
    pub fn read(text: &str) -> Option<Self> {
        let mut bytes = [0; 6];
        let mut parts = text.split([':', '-']);
        for byte in &mut bytes {
            *byte = parts.next().filter(|part| part.len() == 2).and_then(|part| u8::from_str_radix(part, 16).ok())?;
        }
        parts.next().is_none().then_some(Self(bytes))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl Found {
    /// Reads the registers from address 0 on. Nothing where there are too few.
    pub fn read(registers: &[u8], interface: &str) -> Option<Self> {
        let registers = registers.get(..usize::from(IDENTITY))?;
        let text = |at: usize, length: usize| text(&registers[at..at + length]);
        Some(Self {
            address: Ipv4Addr::from(<[u8; 4]>::try_from(&registers[0x24..0x28]).ok()?),
            mac: Mac(registers[0x0a..0x10].try_into().ok()?),
            manufacturer: text(0x48, 32),
            model: text(0x68, 32),
            version: text(0x88, 32),
            serial: text(0xd8, 16),
            user_name: text(0xe8, 16),
            interface: interface.to_owned(),
        })
    }

    /// Whether it is the one that is called so: by its serial number, the name its user gave it, or either address.
    pub fn is_called(&self, name: &str) -> bool {
        let mac = || Mac::read(name) == Some(self.mac);
        let named = |own: &str| !own.is_empty() && own == name;
        named(&self.serial) || named(&self.user_name) || name.parse() == Ok(self.address) || mac()
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, manufacturer, model, serial, .. } = self;
        write!(f, "{manufacturer} {model} {serial} at {address}")
    }
}

/// Text up to the first zero, without what no terminal should see.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end])
        .chars()
        .filter(|char| !char.is_control())
        .collect::<String>()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_camera_says_who_it_is() {
        let mut registers = vec![0; 0xf8];
        registers[0x0a..0x10].copy_from_slice(&[0, 0x11, 0x22, 0xaa, 0xbb, 0xcc]);
        registers[0x24..0x28].copy_from_slice(&[10, 0, 0, 5]);
        registers[0x48..0x4c].copy_from_slice(b"Acme");
        registers[0x68..0x6d].copy_from_slice(b"C\x1b[2J");
        registers[0xd8..0xdc].copy_from_slice(b"GV01");
        let found = Found::read(&registers, "eth0").unwrap();
        assert_eq!((found.model.as_str(), found.serial.as_str()), ("C[2J", "GV01"), "no control characters");
        for name in ["GV01", "10.0.0.5", "00:11:22:AA:bb:cc", "00-11-22-aa-bb-cc"] {
            assert!(found.is_called(name), "{name}");
        }
        for name in ["", "GV0", "10.0.0.6", "00:11:22:aa:bb", "00:11:22:aa:bb:cc:dd", "0:11:22:aa:bb:cc"] {
            assert!(!found.is_called(name), "{name}");
        }
        assert_eq!(Found::read(&registers[1..], "eth0"), None);
        assert_eq!(found.mac.to_string(), "00:11:22:aa:bb:cc");
    }
}
