//! The control channel of one camera: a socket, and one command at a time. Its calls block, so no hot thread uses it.

use crate::exchange::{Exchange, Step};
use crate::gvcp::{self, Command, GVCP_PORT, MAX_TRANSFER_BYTES, Refusal};
use crate::registers::{CameraInfo, IDENTITY_BYTES};
use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Maximum number of commands sent to a camera before its run: for its description and its settings.
const MAX_COMMANDS: u32 = 200_000;
/// Maximum number of bytes of one read: a formula in a description may ask for any number.
const MAX_READ_BYTES: usize = 64 << 20;
/// Pause after a refusal by the network: without a listener the system reports it at once, and will again.
const REFUSAL_PAUSE: Duration = Duration::from_millis(20);

/// Sends commands to one camera.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: UdpSocket,
    camera: Ipv4Addr,
    local: Ipv4Addr,
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    exchange: Exchange,
    commands: u32,
    begun: Instant,
}

impl Channel {
    /// Opens a channel to a camera over the route that leads there; from this address, if one is given.
    ///
    /// # Errors
    /// No route leads there.
    pub(crate) fn open(camera: Ipv4Addr, from: Option<Ipv4Addr>) -> io::Result<Self> {
        let socket = UdpSocket::bind((from.unwrap_or(Ipv4Addr::UNSPECIFIED), 0))?;
        socket.connect((camera, GVCP_PORT))?;
        let IpAddr::V4(local) = socket.local_addr()?.ip() else { return Err(ErrorKind::AddrNotAvailable.into()) };
        let state = State { exchange: Exchange::default(), commands: 0, begun: Instant::now() };
        Ok(Self { socket, camera, local, state: RefCell::new(state) })
    }

    /// Returns the camera's address.
    pub(crate) fn remote_address(&self) -> Ipv4Addr {
        self.camera
    }

    /// Returns the local address, as the camera sees it.
    pub(crate) fn local_address(&self) -> Ipv4Addr {
        self.local
    }

    /// Returns the size in bytes of the longest IP packet that reaches the camera unfragmented.
    pub(crate) fn path_mtu_bytes(&self) -> Option<u32> {
        rustix::net::sockopt::ip_mtu(&self.socket).ok()
    }

    /// Returns a socket for commands over the same channel that are not acknowledged.
    ///
    /// # Errors
    /// No descriptors are left.
    pub(crate) fn open_resend_socket(&self) -> io::Result<ResendSocket> {
        let socket = self.socket.try_clone()?;
        Ok(ResendSocket { socket })
    }

    /// Returns the camera's identity.
    ///
    /// # Errors
    /// The camera does not answer, or refuses.
    pub(crate) fn read_identity(&self) -> Result<CameraInfo, Refusal> {
        let registers = self.read_memory(0, IDENTITY_BYTES.into())?;
        let mut found = CameraInfo::from_registers(&registers, "").ok_or(Refusal::Malformed)?;
        // The address at which the camera is reached is used, whatever its registers contain.
        found.address = self.camera;
        Ok(found)
    }

    /// Sets the time for which the camera may be silent before commands to it fail: from the first command that it does
    /// not answer. They fail no sooner than after four tries, and no later than after ten seconds each.
    pub(crate) fn set_patience(&self, patience: Duration) {
        self.state.borrow_mut().exchange.set_patience(patience);
    }

    /// Resets the number of commands: a new session begins.
    pub(crate) fn reset_command_count(&self) {
        self.state.borrow_mut().commands = 0;
    }

    /// Returns a register's value.
    ///
    /// # Errors
    /// The camera does not answer, or refuses.
    pub(crate) fn read_register(&self, address: u32) -> Result<u32, Refusal> {
        let answer = self.execute_command(&Command::ReadRegister(address))?;
        let bytes = answer.get(..4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u32::from_be_bytes).ok_or(Refusal::Malformed)
    }

    /// Returns a number of 64 bits in two registers, the upper half first.
    ///
    /// # Errors
    /// The camera does not answer, or refuses.
    pub(crate) fn read_wide_register(&self, address: u32) -> Result<u64, Refusal> {
        Ok(u64::from(self.read_register(address)?) << 32 | u64::from(self.read_register(address + 4)?))
    }

    /// Sets a register to a value.
    ///
    /// # Errors
    /// The camera does not answer, or refuses.
    pub(crate) fn write_register(&self, address: u32, value: u32) -> Result<(), Refusal> {
        self.execute_command(&Command::WriteRegister(address, value)).map(drop)
    }

    /// Returns `length` bytes of memory from an address on.
    ///
    /// # Errors
    /// The camera does not answer, or refuses.
    pub(crate) fn read_memory(&self, address: u32, length: usize) -> Result<Vec<u8>, Refusal> {
        if length > MAX_READ_BYTES {
            return Err(Refusal::Malformed);
        }
        let mut bytes = Vec::with_capacity(length);
        // Address and length of a command are multiples of four.
        let (begin, before) = (address & !3, (address & 3) as usize);
        let whole = (before + length).next_multiple_of(4);
        let mut at = 0;
        while at < whole {
            let count = (whole - at).min(MAX_TRANSFER_BYTES);
            let from = u32::try_from(at).ok().and_then(|at| begin.checked_add(at)).ok_or(Refusal::Malformed)?;
            #[expect(clippy::cast_possible_truncation, reason = "at most MAX_TRANSFER_BYTES")]
            let answer = self.execute_command(&Command::ReadMemory(from, count as u16))?;
            // The address precedes the data.
            bytes.extend_from_slice(answer.get(4..4 + count).ok_or(Refusal::Malformed)?);
            at += count;
        }
        Ok(bytes.get(before..before + length).ok_or(Refusal::Malformed)?.to_vec())
    }

    /// Writes bytes to memory from an address on.
    ///
    /// # Errors
    /// The camera does not answer, or refuses.
    pub(crate) fn write_memory(&self, address: u32, bytes: &[u8]) -> Result<(), Refusal> {
        if let (true, Ok(word)) = (address.is_multiple_of(4), bytes.try_into()) {
            return self.write_register(address, u32::from_be_bytes(word));
        }
        let (begin, before) = (address & !3, (address & 3) as usize);
        let whole = (before + bytes.len()).next_multiple_of(4);
        let mut all = bytes.to_vec();
        if whole != bytes.len() {
            all = self.read_memory(begin, whole)?;
            all[before..before + bytes.len()].copy_from_slice(bytes);
        }
        for (part, at) in all.chunks(MAX_TRANSFER_BYTES).zip((begin..).step_by(MAX_TRANSFER_BYTES)) {
            self.execute_command(&Command::WriteMemory(at, part))?;
        }
        Ok(())
    }

    /// Sends one command, and waits for its answer.
    fn execute_command(&self, command: &Command<'_>) -> Result<Vec<u8>, Refusal> {
        let mut state = self.state.borrow_mut();
        let State { exchange, commands, begun } = &mut *state;
        *commands += 1;
        if *commands > MAX_COMMANDS {
            return Err(Refusal::TooMuch("it would need more than 200,000 requests"));
        }
        exchange.begin_command(command, begun.elapsed());
        let mut room = [0; 2048];
        // The network's refusal may be as short as a camera's silence: it is reported only if no answer comes.
        let mut problem = Refusal::Silent;
        loop {
            let now = begun.elapsed();
            match exchange.next_step(now) {
                Step::Silent => return Err(problem),
                Step::Send(datagram) => match self.socket.send(datagram) {
                    Ok(_) => {}
                    // An error of an earlier datagram.
                    Err(error) if is_unreachable(&error) => {}
                    Err(error) => problem = Refusal::Network(error.to_string()),
                },
                Step::Wait(until) => {
                    let wait = until.saturating_sub(now).max(Duration::from_micros(100));
                    self.socket.set_read_timeout(Some(wait)).map_err(|error| Refusal::Network(error.to_string()))?;
                    match self.socket.recv(&mut room) {
                        Ok(length) => {
                            if let Some(answer) = exchange.accept_datagram(&room[..length], begun.elapsed()) {
                                return answer.map(<[u8]>::to_vec);
                            }
                        }
                        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(error) => {
                            if !is_unreachable(&error) {
                                problem = Refusal::Network(error.to_string());
                            }
                            std::thread::sleep(wait.min(REFUSAL_PAUSE));
                        }
                    }
                }
            }
        }
    }
}

/// Returns true if no one listens there, or no route leads there now: that may change soon.
fn is_unreachable(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable};
    matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkDown | NetworkUnreachable)
}

/// Requests packets again, without waiting.
#[derive(Debug)]
pub(crate) struct ResendSocket {
    socket: UdpSocket,
}

impl ResendSocket {
    /// Requests packets of a block again. A request that cannot be sent is dropped: it is repeated later.
    pub(crate) fn request_resend(&self, block: u64, wide: bool, first: u32, last: u32) {
        // The number is not that of any command that waits for its answer: those are counted from 1.
        let datagram = gvcp::resend_request(u16::MAX, block, wide, first, last);
        let flags = rustix::net::SendFlags::DONTWAIT;
        let _ = rustix::net::send(&self.socket, &datagram, flags);
    }
}

/// Returns the address that a camera's answer comes from; `None` for IPv6.
pub(crate) fn camera_address(from: SocketAddr) -> Option<Ipv4Addr> {
    match from.ip() {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}
