//! `thalweg rdma`: programs that use RDMA verbs, on a software RNIC.

use crate::terminal::{Failure, GlobalOptions, outlet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::DirBuilder;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use thalweg_text::replace_controls;

/// Library by which libibverbs finds the device: as installed, and as cargo names it.
const PROVIDER: [&str; 2] = ["libthalweg-rdmav34.so", "libthalweg_verbs_provider.so"];

/// Library that is preloaded into programs: as installed, and as cargo names it.
const PRELOAD: [&str; 2] = ["libthalweg-rdma-preload.so", "libthalweg_verbs_preload.so"];

/// Versions of libibverbs' interface for providers that the one library serves: it is looked for by a name with the version.
const PROVIDER_VERSIONS: [u32; 2] = [34, 57];

/// Name of the device.
const DEVICE: &str = "thalweg0";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Run a program that uses RDMA verbs on a software RNIC: without RDMA hardware, kernel modules or root
    Run(Options),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The program finds one RDMA device, thalweg0, and is not changed for it: perftest \
(ib_write_lat, ...), ibv_rc_pingpong, rping, UCX (rc_verbs), pyverbs and programs of \
your own. The RNIC runs inside the program. Both ends of a connection run so, on one \
machine or on two; with --transport iwarp, the other end may also be an iWARP adapter.

  thalweg rdma run -- ib_write_bw -d thalweg0 -x 0             on one host
  thalweg rdma run -- ib_write_bw -d thalweg0 -x 0 10.0.0.1    on the other

Needs libibverbs (package libibverbs1) of rdma-core 44 to 58. Reliable connections \
only (RC): no datagram queue pairs (UD), no multicast.

Exit code: that of the program, which takes the place of this command; 2 if it cannot \
be prepared, 126 or 127 if it cannot be started.")]
pub(crate) struct Options {
    /// How connections are made
    #[arg(long, value_enum, default_value_t = Transport::Efe)]
    transport: Transport,
    /// IP address of the device [default: that of the first interface, or 127.0.0.1]
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// No CRC over iWARP if the peer needs none either: TCP's checksum alone protects the data
    #[arg(long)]
    no_crc: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Transport {
    /// EFE over UDP; the device looks like a RoCE adapter: programs connect by themselves, or by librdmacm
    Efe,
    /// iWARP over TCP; the device looks like an iWARP adapter: programs connect by librdmacm
    Iwarp,
}

impl fmt::Display for Transport {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Efe => "efe",
            Self::Iwarp => "iwarp",
        })
    }
}

pub(crate) fn execute(command: Command, global: &GlobalOptions) -> Result<ExitCode, Failure> {
    let Command::Run(options) = command;
    run_verbs_program(&options, global)
}

fn run_verbs_program(options: &Options, global: &GlobalOptions) -> Result<ExitCode, Failure> {
    if options.no_crc && options.transport == Transport::Efe {
        return Err(Failure::Usage("--no-crc: packets of EFE always have a CRC; add --transport iwarp".into()));
    }
    let (address, interface) = device_address(options.address)?;
    let (provider, preload) = (find_library(&PROVIDER)?, find_library(&PRELOAD)?);
    check_verbs_library()?;
    let folder = prepare_folder(options.transport, (address, &interface), &provider)
        .map_err(|error| Failure::Broken(format!("a folder for the device's description: {error}")))?;
    let (program, arguments) = options.command.split_first().ok_or(Failure::Usage("no program is given".into()))?;
    let mut command = std::process::Command::new(program);
    command.args(arguments);
    command.env("SYSFS_PATH", &folder).env("RDMAV_DRIVERS", folder.join("libthalweg"));
    command.env("LD_PRELOAD", joined_preload(&preload));
    command.env("THALWEG_RDMA_ADDRESS", address.to_string());
    command.env("THALWEG_RDMA_TRANSPORT", options.transport.to_string());
    command.env("THALWEG_RDMA_CRC", if options.no_crc { "off" } else { "on" });
    let name = program.to_string_lossy();
    let name = replace_controls(&name);
    if !global.quiet {
        let looks = if options.transport == Transport::Efe { "RoCE over EFE" } else { "iWARP over TCP" };
        note_line(&format!("{name}: device {DEVICE} ({looks}) at {address} ({interface})"));
    }
    // This process becomes the program: its exit code and its signals are the program's.
    let error = command.exec();
    note_line(&format!("{name}: {error}"));
    Ok(ExitCode::from(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }))
}

/// Writes a line to standard error, before the program writes there.
fn note_line(text: &str) {
    outlet::stderr().put_text(format!("thalweg rdma run: {text}\n"));
    let _ = outlet::stderr().flush(outlet::LOG_TIME);
}

/// Returns the folder in which libibverbs finds the device and the provider. Its name is made of all that it depends on, so that
/// programs which are started alike share it, and it may stay.
fn prepare_folder(transport: Transport, (address, interface): (IpAddr, &str), provider: &Path) -> io::Result<PathBuf> {
    let own = own_folder()?;
    let mut hasher = DefaultHasher::new();
    (env!("CARGO_PKG_VERSION"), transport.to_string(), address, interface, provider).hash(&mut hasher);
    let folder = own.join(format!("{transport}-{:016x}", hasher.finish()));
    if folder.exists() {
        return Ok(folder);
    }
    let new = tempfile::Builder::new().prefix(".new-").tempdir_in(&own)?;
    describe_device(new.path(), transport, address, interface)?;
    for version in PROVIDER_VERSIONS {
        std::os::unix::fs::symlink(provider, new.path().join(format!("libthalweg-rdmav{version}.so")))?;
    }
    match std::fs::rename(new.path(), &folder) {
        Ok(()) => drop(new.keep()),
        // Another program was faster.
        Err(_) if folder.exists() => {}
        Err(error) => return Err(error),
    }
    Ok(folder)
}

/// Returns a folder that only this user may write to, since programs load libraries by it.
fn own_folder() -> io::Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let parent = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = parent.join(format!("thalweg-rdma-{user}"));
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(io::Error::new(error.kind(), format!("{}: {error}", folder.display())));
        }
        _ => {}
    }
    let found = folder.symlink_metadata()?;
    if found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0 {
        return Ok(folder);
    }
    let reason = format!("{} is not a directory of this user alone: remove it", folder.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
}

/// Returns the address of the device and the interface that has it.
fn device_address(wanted: Option<IpAddr>) -> Result<(IpAddr, String), Failure> {
    let interfaces = if_addrs::get_if_addrs().unwrap_or_default();
    let found = match wanted {
        Some(address) => interfaces.iter().find(|interface| interface.ip() == address),
        None => interfaces
            .iter()
            .find(|interface| !interface.is_loopback() && interface.ip().is_ipv4())
            .or_else(|| interfaces.iter().find(|interface| interface.ip() == IpAddr::V4(Ipv4Addr::LOCALHOST))),
    };
    match (found, wanted) {
        (Some(found), _) => Ok((found.ip(), found.name.clone())),
        // Any address of 127.0.0.0/8 is the loopback interface's.
        (None, Some(IpAddr::V4(address))) if address.is_loopback() => Ok((address.into(), "lo".into())),
        (None, Some(address)) => {
            Err(Failure::Usage(format!("no interface of this machine has the address {address} (see `ip address`)")))
        }
        (None, None) => Err(Failure::Usage(
            "no interface of this machine has an IPv4 address, not even lo: `ip link set lo up`, or give --address"
                .into(),
        )),
    }
}

/// Returns the path of a library of this program: beside it, or where packages put it.
fn find_library(names: &[&str]) -> Result<PathBuf, Failure> {
    let program = std::env::current_exe().map_err(|error| Failure::Broken(format!("the program's path: {error}")))?;
    let beside = program.parent().unwrap_or(Path::new("/"));
    let folders = [beside.to_owned(), beside.join("../lib/thalweg"), beside.join("..")];
    let candidates = folders.iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    let found = candidates.filter_map(|path| path.canonicalize().ok()).next();
    found.ok_or_else(|| {
        Failure::Usage(format!(
            "{} is neither beside {} nor in ../lib/thalweg: install Thalweg's package, or build the library with `cargo \
             build -p thalweg-verbs-provider -p thalweg-verbs-preload`",
            names[0],
            program.display()
        ))
    })
}

/// Name of the library that verbs programs use.
const VERBS_LIBRARY: &str = "libibverbs.so.1";

/// Checks that there is a library of verbs, where the dynamic linker looks for it (ld.so(8)).
fn check_verbs_library() -> Result<(), Failure> {
    let given = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&given).filter(|path| !path.as_os_str().is_empty()).collect();
    for root in ["/lib", "/usr/lib", "/usr/local/lib", "/lib64", "/usr/lib64"] {
        folders.push(root.into());
        let below = std::fs::read_dir(root).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
        folders.extend(below.filter(|path| path.to_string_lossy().ends_with("-linux-gnu")));
    }
    if folders.iter().any(|folder| folder.join(VERBS_LIBRARY).exists()) {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "{VERBS_LIBRARY} is not installed: `apt-get install libibverbs1` (or rdma-core of your distribution); perftest and \
         ibverbs-utils bring it"
    )))
}

/// Returns the value of `LD_PRELOAD`: the library, and what was in it.
fn joined_preload(preload: &Path) -> OsString {
    let mut joined = preload.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        joined.push(OsStr::new(":"));
        joined.push(others);
    }
    joined
}

/// Writes what the kernel's sysfs would have of the device.
fn describe_device(folder: &Path, transport: Transport, address: IpAddr, interface: &str) -> io::Result<()> {
    let gid = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let node_type = if transport == Transport::Efe { "1: CA" } else { "4: RNIC" };
    // The files of both devices are /dev/null (1:3).
    let files: [(&str, String); 15] = [
        ("infiniband_verbs/abi_version", "6".into()),
        ("infiniband_verbs/uverbs0/ibdev", DEVICE.into()),
        ("infiniband_verbs/uverbs0/dev", "1:3".into()),
        ("infiniband_verbs/uverbs0/abi_version", "1".into()),
        ("infiniband/thalweg0/node_type", node_type.into()),
        ("infiniband/thalweg0/node_guid", node_guid(gid)),
        ("infiniband/thalweg0/sys_image_guid", node_guid(gid)),
        ("infiniband/thalweg0/fw_ver", env!("CARGO_PKG_VERSION").into()),
        ("infiniband/thalweg0/ports/1/link_layer", "Ethernet".into()),
        ("infiniband/thalweg0/ports/1/pkeys/0", "0xffff".into()),
        ("infiniband/thalweg0/ports/1/gids/0", words_of(gid)),
        ("infiniband/thalweg0/ports/1/gid_attrs/types/0", "RoCE v2".into()),
        ("infiniband/thalweg0/ports/1/gid_attrs/ndevs/0", interface.into()),
        ("misc/rdma_cm/abi_version", "4".into()),
        ("misc/rdma_cm/dev", "1:3".into()),
    ];
    for (name, content) in files {
        let path = folder.join("class").join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
        std::fs::write(path, content + "\n")?;
    }
    Ok(())
}

/// Returns a GID as eight words: `0000:…:ffff:7f00:0001`.
fn words_of(gid: Ipv6Addr) -> String {
    gid.segments().map(|word| format!("{word:04x}")).join(":")
}

/// Returns the device's GUID: locally administered, with the last half of its address.
fn node_guid(gid: Ipv6Addr) -> String {
    let [.., high, low] = gid.segments();
    format!("0200:0000:{high:04x}:{low:04x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_is_what_libibverbs_reads() {
        let folder = tempfile::tempdir().unwrap();
        describe_device(folder.path(), Transport::Efe, Ipv4Addr::new(10, 0, 0, 7).into(), "eth0").unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join("class").join(name)).unwrap();
        assert_eq!(read("infiniband/thalweg0/ports/1/gids/0"), "0000:0000:0000:0000:0000:ffff:0a00:0007\n");
        assert_eq!(read("infiniband/thalweg0/node_guid"), "0200:0000:0a00:0007\n");
        assert_eq!(read("infiniband/thalweg0/node_type"), "1: CA\n");
        assert_eq!(read("infiniband_verbs/uverbs0/ibdev"), "thalweg0\n");
    }

    #[test]
    fn an_address_of_another_machine_is_refused() {
        let error = device_address(Some(Ipv4Addr::new(192, 0, 2, 1).into())).unwrap_err();
        assert!(error.to_string().contains("192.0.2.1"), "{error}");
        assert_eq!(device_address(Some(Ipv4Addr::new(127, 0, 0, 9).into())).unwrap().1, "lo");
    }
}
