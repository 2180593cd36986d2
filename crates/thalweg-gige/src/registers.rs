//! The bootstrap registers that every camera has (GigE Vision 2.x, section 28), and the camera's identity in them.

use std::fmt;
use std::net::Ipv4Addr;

/// Number of bytes from address 0 on that identify a camera: a discovery acknowledge contains the same (section 5.1).
pub(crate) const IDENTITY_BYTES: u16 = 0xf8;
/// Registers with the URL of the feature description, as text: first choice and second (section 28).
pub(crate) const DESCRIPTION_URLS: [u32; 2] = [0x0200, 0x0400];
/// Length of such a URL in bytes.
pub(crate) const URL_BYTES: u16 = 512;
/// Capabilities of the control channel.
pub(crate) const CAPABILITY_REGISTER: u32 = 0x0934;
/// Capability: packets are sent again on request.
pub(crate) const CAN_RESEND: u32 = 1 << 2;
/// Time in milliseconds without a command after which the camera considers its application gone.
pub(crate) const HEARTBEAT_REGISTER: u32 = 0x0938;
/// Frequency of the camera's clock in ticks per second: the upper half, followed by the lower half.
pub(crate) const TICK_RATE_REGISTER: u32 = 0x093c;
/// Control of the camera's clock.
pub(crate) const TIME_CONTROL: u32 = 0x0944;
/// Bit that latches the time.
pub(crate) const TIME_LATCH_BIT: u32 = 1 << 1;
/// Latched time: the upper half, followed by the lower half.
pub(crate) const LATCHED_TIME_REGISTER: u32 = 0x0948;
/// Control privilege: which access an application has.
pub(crate) const PRIVILEGE_REGISTER: u32 = 0x0a00;
/// Bit for control by one application, while others may read.
pub(crate) const CONTROL_BIT: u32 = 1 << 1;
/// Bits for any kind of control by an application.
pub(crate) const ANY_CONTROL_BITS: u32 = 0b111;
/// IP address of the application that has control.
pub(crate) const APPLICATION_ADDRESS_REGISTER: u32 = 0x0a14;
/// UDP port to which the stream is sent; 0: no stream.
pub(crate) const STREAM_PORT: u32 = 0x0d00;
/// Size of the stream's packets, and whether they may be fragmented.
pub(crate) const STREAM_PACKET: u32 = 0x0d04;
/// Bit that sends one test packet of this size now.
pub(crate) const FIRE_TEST: u32 = 1 << 31;
/// Bit that forbids fragmenting packets.
pub(crate) const DO_NOT_FRAGMENT: u32 = 1 << 30;
/// IP address to which the stream is sent.
pub(crate) const STREAM_ADDRESS: u32 = 0x0d18;

/// A camera that answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CameraInfo {
    /// IP address of the camera.
    pub address: Ipv4Addr,
    /// Hardware address of the camera.
    pub mac: Mac,
    /// Name of the manufacturer.
    pub manufacturer: String,
    /// Name of the model.
    pub model: String,
    /// Version of the model.
    pub version: String,
    /// Serial number.
    pub serial: String,
    /// Name given by the camera's user.
    pub user_name: String,
    /// Name of the interface on which the camera answered.
    pub interface: String,
}

/// A hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Parses the usual notation: `00:11:22:aa:bb:cc`, or with dashes. Returns `None` for any other text.
    pub fn from_text(text: &str) -> Option<Self> {
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

impl CameraInfo {
    /// Reads the registers from address 0 on. Returns `None` if there are too few.
    pub fn from_registers(registers: &[u8], interface: &str) -> Option<Self> {
        let registers = registers.get(..usize::from(IDENTITY_BYTES))?;
        Some(Self {
            address: Ipv4Addr::from(<[u8; 4]>::try_from(&registers[0x24..0x28]).ok()?),
            mac: Mac(registers[0x0a..0x10].try_into().ok()?),
            manufacturer: text_from_bytes(&registers[0x48..0x68]),
            model: text_from_bytes(&registers[0x68..0x88]),
            version: text_from_bytes(&registers[0x88..0xa8]),
            serial: text_from_bytes(&registers[0xd8..0xe8]),
            user_name: text_from_bytes(&registers[0xe8..0xf8]),
            interface: interface.to_owned(),
        })
    }

    /// Returns true if this camera has the given serial number, user-defined name, or one of the addresses.
    pub fn is_called(&self, name: &str) -> bool {
        let is_named = !name.is_empty() && [&self.serial, &self.user_name].into_iter().any(|own| own == name);
        is_named || name.parse() == Ok(self.address) || Mac::from_text(name) == Some(self.mac)
    }
}

impl fmt::Display for CameraInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, manufacturer, model, serial, .. } = self;
        write!(f, "{manufacturer} {model} {serial} at {address}")
    }
}

/// Returns the text up to the first zero, without control characters.
pub(crate) fn text_from_bytes(bytes: &[u8]) -> String {
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
        let found = CameraInfo::from_registers(&registers, "eth0").unwrap();
        assert_eq!((found.model.as_str(), found.serial.as_str()), ("C[2J", "GV01"), "no control characters");
        for name in ["GV01", "10.0.0.5", "00:11:22:AA:bb:cc", "00-11-22-aa-bb-cc"] {
            assert!(found.is_called(name), "{name}");
        }
        for name in ["", "GV0", "10.0.0.6", "00:11:22:aa:bb", "00:11:22:aa:bb:cc:dd", "0:11:22:aa:bb:cc"] {
            assert!(!found.is_called(name), "{name}");
        }
        assert_eq!(CameraInfo::from_registers(&registers[1..], "eth0"), None);
        assert_eq!(found.mac.to_string(), "00:11:22:aa:bb:cc");
    }
}
