//! The program in the kernel that redirects a port's datagrams to its sockets (`bpf/xdp/steer.c`).
//!
//! It is attached by a link (`BPF_LINK_CREATE`), which lives as long as its descriptor is open: when the process ends,
//! for whatever reason, the kernel closes it and the interface is as it was.
//!
//! The program is GPL-2.0-only, as its source is; this library is not. It reaches the kernel as data.

use super::with_permission_advice;
use crate::FramesError;
use libbpf_rs::{MapCore, MapFlags, MapHandle, ObjectBuilder, PrintLevel};
use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Alignment that the reader of ELF files expects. `OBJECT` is the program as compiled by `build.rs`.
#[repr(align(8))]
struct Aligned<T: ?Sized>(T);
static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/steer.o")));

/// Flags `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE` of linux/if_link.h.
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// The program on its interface, until this is dropped or the process has ended.
#[derive(Debug)]
pub(super) struct Steer {
    _link: OwnedFd,
    sockets: MapHandle,
    native: bool,
}

impl Steer {
    /// Attaches the program: to the driver if that can run programs, otherwise after it.
    pub(super) fn attach_program(
        interface: u32,
        name: &str,
        at: SocketAddrV4,
        queues: u32,
        generic: bool,
    ) -> Result<Self, FramesError> {
        let loaded =
            with_permission_advice(format!("loading the program that steers datagrams for {at} (Linux 5.18 or newer)"));
        let (program, sockets) = load_program(at, queues).map_err(loaded)?;
        let mut refused = None;
        for native in [true, false] {
            if native && generic {
                continue;
            }
            match attach_link(program.as_fd(), interface, if native { XDP_FLAGS_DRV_MODE } else { XDP_FLAGS_SKB_MODE })
            {
                Ok(link) => {
                    if let Some(error) = refused {
                        tracing::info!(
                            "{name}: the driver cannot run XDP programs itself ({error}): the kernel runs it after the driver, which is slower"
                        );
                    }
                    return Ok(Self { _link: link, sockets, native });
                }
                // Another program is there already: the kernel lets an interface have one.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) => {
                    let doing =
                        format!("attaching to {name}, which already has an XDP program (ip link show dev {name})");
                    return Err(FramesError { doing, error });
                }
                Err(error) => refused = Some(error),
            }
        }
        let error = refused.unwrap_or_else(|| io::ErrorKind::Unsupported.into());
        Err(with_permission_advice(format!("attaching the program that steers datagrams to {name}"))(error))
    }

    /// Steers the datagrams of a queue to this socket from now on.
    pub(super) fn steer_queue(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), FramesError> {
        // A descriptor is never negative.
        let socket = socket.as_raw_fd().to_ne_bytes();
        self.sockets
            .update(&queue.to_ne_bytes(), &socket, MapFlags::ANY)
            .map_err(|error| with_permission_advice(format!("steering queue {queue}"))(system_error(&error)))
    }

    /// True if the driver runs the program.
    pub(super) fn is_native(&self) -> bool {
        self.native
    }
}

/// Loads the program, for a port and `queues` queues. It stays loaded until its descriptors are closed.
fn load_program(at: SocketAddrV4, queues: u32) -> io::Result<(OwnedFd, MapHandle)> {
    libbpf_rs::set_print(Some((PrintLevel::Debug, |_, text| tracing::debug!("{}", text.trim_end()))));
    load_object(at, queues).map_err(|error| system_error(&error))
}

fn load_object(at: SocketAddrV4, queues: u32) -> libbpf_rs::Result<(OwnedFd, MapHandle)> {
    let mut object = ObjectBuilder::default().open_memory(&OBJECT.0)?;
    for mut map in object.maps_mut() {
        // `struct wanted` of the program.
        if map.name() == ".rodata.steer" {
            let ([a, b, c, d], [high, low]) = (at.ip().octets(), at.port().to_be_bytes());
            map.set_initial_value(&[a, b, c, d, high, low, 0, 0])?;
        } else if map.name() == "sockets" {
            map.set_max_entries(queues)?;
        }
    }
    let object = object.load()?;
    let program = object.progs().next().ok_or(io::Error::from(io::ErrorKind::NotFound))?;
    let sockets = object.maps().find(|map| map.name() == "sockets").ok_or(io::Error::from(io::ErrorKind::NotFound))?;
    Ok((program.as_fd().try_clone_to_owned()?, MapHandle::try_from(&sockets)?))
}

/// Attaches a program to an interface.
fn attach_link(program: BorrowedFd<'_>, interface: u32, flags: u32) -> io::Result<OwnedFd> {
    // SAFETY: integers and null pointers, for which all zeros is a valid value.
    let mut options: libbpf_sys::bpf_link_create_opts = unsafe { std::mem::zeroed() };
    options.sz = size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t;
    options.flags = flags;
    let index = i32::try_from(interface).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: a descriptor that is open and options that contain their own length. Nothing of them is kept.
    let link =
        unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), index, libbpf_sys::BPF_XDP, &raw const options) };
    if link < 0 {
        return Err(io::Error::from_raw_os_error(-link));
    }
    // SAFETY: a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// Returns the kernel's error, as far as libbpf passes it on.
fn system_error(error: &libbpf_rs::Error) -> io::Error {
    use libbpf_rs::ErrorKind;
    match error.kind() {
        ErrorKind::PermissionDenied => io::Error::from_raw_os_error(libc::EPERM),
        _ => io::Error::other(format!("{error:#}")),
    }
}
