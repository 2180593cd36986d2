//! Names of devices, and the arguments that their drivers need.

use crate::DpdkError;
use crate::shim::Settings;
use std::ffi::CString;
use std::io;
use std::time::Duration;

/// Options for opening a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Largest number of bytes of a frame after its Ethernet header. By default that of the device or the kernel's
    /// interface, or 1500.
    pub mtu: Option<u16>,
    /// Number of frames that may wait to be received, and to be sent: a power of two, which the device may change.
    pub descriptors: u16,
    /// Time to wait for a link, if any. Without a link the port is opened all the same, with a warning.
    pub link: Duration,
    /// True if buffers are to be in huge pages, provided that enough are free. The first port of a process decides for
    /// all.
    pub huge_pages: bool,
    /// True if frames for other addresses are to be received, too, provided that the driver supports it.
    pub promiscuous: bool,
}

impl Default for Options {
    /// Adapters negotiate their link for some seconds.
    fn default() -> Self {
        Self { mtu: None, descriptors: 1024, link: Duration::from_secs(9), huge_pages: true, promiscuous: false }
    }
}

/// A device, and the settings for opening it.
pub(crate) struct Device {
    pub(crate) text: CString,
    pub(crate) settings: Settings,
}

/// Drivers that copy any frame, or hand it on, but report 1518 bytes as their limit.
const LAX: [&str; 5] = ["net_memif", "net_ring", "net_af_packet", "net_pcap", "net_null"];
/// Smallest buffer that memif and AF_PACKET accept, in bytes.
const MIN_BUFFER_BYTES: u32 = 2048;
/// Bytes before a frame in a ring of AF_PACKET (`TPACKET2_HDRLEN`, linux/if_packet.h), rounded up.
const PACKET_HEADER: u32 = 64;
/// Length of an Ethernet header in bytes.
pub(crate) const ETHERNET_HEADER_BYTES: u32 = 14;
/// MTU that memif assumes (Memif Poll Mode Driver, Network Interface Controller Drivers) if nothing else is known.
const ORDINARY_MTU: u16 = 1500;

impl Device {
    /// Parses a device's name, and adds the arguments that follow from the options.
    pub(crate) fn new(device: &str, options: &Options) -> Result<Self, DpdkError> {
        let (name, given) = device.split_once(',').unwrap_or((device, ""));
        let mut arguments = Arguments { device, given, text: device.to_owned() };
        if name.is_empty() {
            return Err(arguments.name_error("the name is missing"));
        }
        let descriptors = u32::from(options.descriptors.max(1));
        let (mut mtu, mut room) = (u32::from(options.mtu.unwrap_or(0)), 0);
        let driver = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
        match driver {
            "net_memif" => {
                if arguments.argument_value("zero-copy").is_some_and(|value| value == "yes") {
                    return Err(arguments.name_error("with zero-copy=yes a peer reads only DPDK's own memory"));
                }
                mtu = options.mtu.unwrap_or(ORDINARY_MTU).into();
                // A frame is in one buffer: up to DPDK 26 the driver does not clear the mark of frames that continue in
                // the next one (f7a52200d4, "fix descriptor Tx flags corruption").
                arguments
                    .add_default("bsize", (mtu + ETHERNET_HEADER_BYTES).next_multiple_of(64).max(MIN_BUFFER_BYTES));
                arguments.add_default("rsize", descriptors.ilog2());
            }
            "net_af_packet" => {
                let interface = arguments.interface_name()?;
                mtu = interface_mtu(interface, options)?.into();
                let frame = (mtu + ETHERNET_HEADER_BYTES + PACKET_HEADER).next_power_of_two().max(MIN_BUFFER_BYTES);
                arguments.add_default("framesz", frame);
                arguments.add_default("blocksz", frame.max(4096));
                arguments.add_default("framecnt", descriptors.next_multiple_of(2));
                room = match arguments.argument_value("framesz") {
                    Some(value) => value.parse().map_err(|_| arguments.name_error("framesz must be a number"))?,
                    None => frame,
                };
            }
            "net_af_xdp" => {
                let interface = arguments.interface_name()?;
                mtu = interface_mtu(interface, options)?.into();
            }
            "net_pcap" => {
                mtu = match arguments.argument_value("iface") {
                    Some(interface) => interface_mtu(interface, options)?.into(),
                    None => options.mtu.unwrap_or(ORDINARY_MTU).into(),
                };
            }
            _ => {}
        }
        let text = CString::new(&*arguments.text).map_err(|_| arguments.name_error("it contains a NUL character"))?;
        let lax = LAX.contains(&driver).into();
        let all = options.promiscuous.into();
        let settings = Settings { mtu, room, lax, all, receive: options.descriptors, transmit: options.descriptors };
        Ok(Self { text, settings })
    }
}

/// Arguments of a device's driver, as they are given with its name and as others are added.
struct Arguments<'a> {
    device: &'a str,
    given: &'a str,
    text: String,
}

impl<'a> Arguments<'a> {
    fn argument_value(&self, key: &str) -> Option<&'a str> {
        self.given.split(',').find_map(|argument| argument.strip_prefix(key)?.strip_prefix('='))
    }

    fn interface_name(&self) -> Result<&'a str, DpdkError> {
        self.argument_value("iface")
            .ok_or_else(|| self.name_error("the argument iface=NAME is missing: the name of the interface"))
    }

    /// Adds an argument, unless it is given.
    fn add_default(&mut self, key: &str, number: u32) {
        if self.argument_value(key).is_none() {
            self.text.push_str(&format!(",{key}={number}"));
        }
    }

    fn name_error(&self, why: &'static str) -> DpdkError {
        DpdkError::Name { device: self.device.into(), why }
    }
}

/// Returns the requested MTU, if the interface's is as large: this process does not change the interface.
fn interface_mtu(interface: &str, options: &Options) -> Result<u16, DpdkError> {
    let present = kernel_mtu(interface).map_err(|error| DpdkError::Interface { interface: interface.into(), error })?;
    match options.mtu {
        Some(wanted) if wanted > present => Err(DpdkError::Mtu { interface: interface.into(), present, wanted }),
        wanted => Ok(wanted.unwrap_or(present)),
    }
}

/// Returns the MTU that the kernel reports (netdevice(7)). The loopback's 65,536 is returned as one less.
fn kernel_mtu(interface: &str) -> io::Result<u16> {
    use rustix::net::{AddressFamily, SocketType, socket};
    use std::os::fd::AsRawFd;
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: the type consists of names and numbers, for which all zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from.cast_signed();
    }
    // SAFETY: the request is a valid one, with a name that ends in a zero.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has written this part of the union.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    Ok(u16::try_from(mtu).unwrap_or(u16::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(device: &str, options: &Options) -> String {
        Device::new(device, options).unwrap().text.into_string().unwrap()
    }

    fn refusal(device: &str) -> String {
        Device::new(device, &Options::default()).err().unwrap().to_string()
    }

    #[test]
    fn arguments_follow_from_the_options() {
        let long = Options { mtu: Some(9000), ..Options::default() };
        assert_eq!(text("net_ring0", &long), "net_ring0");
        assert_eq!(text("0000:00:11.0", &long), "0000:00:11.0");
        assert_eq!(text("net_memif3,role=client", &long), "net_memif3,role=client,bsize=9024,rsize=10");
        let lo = text("net_af_packet0,iface=lo", &long);
        assert_eq!(lo, "net_af_packet0,iface=lo,framesz=16384,blocksz=16384,framecnt=1024");
    }

    #[test]
    fn a_given_argument_is_kept() {
        let ours = "net_memif0,rsize=8,bsize=4096";
        assert_eq!(text(ours, &Options::default()), ours);
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_reason() {
        assert!(refusal("").contains("the name is missing"));
        assert!(refusal("net_memif0,zero-copy=yes").contains("zero-copy=yes"));
        assert!(refusal("net_af_packet0").contains("iface=NAME"));
        assert!(refusal("net_af_packet0,iface=missing0").contains("reading the MTU of missing0"));
        assert!(refusal("net_ring0\0").contains("NUL character"));
    }
}
