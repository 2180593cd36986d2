//! Serving end, `thalweg bench listen`, on this host or another.

use super::control::{Control, ControlStream};
use super::session::serve_jobs as serve_one;
use super::{MAX_MESSAGE_BYTES, PEER_TIMEOUT};
use crate::BenchError;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use thalweg_text::format_size;

/// Default port of `thalweg bench listen`.
pub const DEFAULT_PORT: u16 = 5255;

/// Longest silence of an asking end before others get their turn.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Options of `thalweg bench listen`.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Address to listen on. Any host that reaches it may measure: there is no encryption and no authentication
    #[arg(value_name = "ADDRESS[:PORT]", default_value = "[::]")]
    pub address: String,
    /// End after the first asking end has gone
    #[arg(short = '1', long)]
    pub one_off: bool,
    /// Serve the one process that is connected to standard input
    #[arg(long, hide = true, conflicts_with_all = ["address", "one_off"])]
    pub local: bool,
}

/// Serves asking ends, one at a time, until the program is ended. `report` receives the address once it is open, and
/// the outcome of each asking end.
///
/// # Errors
/// If the address cannot be listened on, or no connection can be accepted any more. For a single asking end on standard
/// input, also if serving it failed.
pub fn serve_asking_ends(options: &Options, mut report: impl FnMut(&str) + Send) -> Result<(), BenchError> {
    if options.local {
        let socket =
            io::stdin().as_fd().try_clone_to_owned().map_err(BenchError::os_error("taking over standard input"))?;
        let control = Control::new(ControlStream::Unix(UnixStream::from(socket)), "the asking process".into(), None)?;
        return serve_one(control, None, || {});
    }
    let address = resolve_address(&options.address)?;
    let listener = TcpListener::bind(address).map_err(BenchError::os_error(format!("listening on {address}")))?;
    let address = listener.local_addr().unwrap_or(address);
    report(&format!("listening on {address}, messages of up to {}", format_size(MAX_MESSAGE_BYTES)));
    let (report, busy) = (&Mutex::new(report), &AtomicBool::new(false));
    std::thread::scope(|scope| {
        loop {
            let (stream, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(BenchError::os_error("accepting a connection")(error)),
            };
            if busy.swap(true, Ordering::Acquire) {
                refuse_as_busy(stream);
                continue;
            }
            if options.one_off {
                serve_connection(stream, peer, busy, report);
                return Ok(());
            }
            scope.spawn(move || serve_connection(stream, peer, busy, report));
        }
    })
}

fn serve_connection(stream: TcpStream, peer: SocketAddr, busy: &AtomicBool, report: &Mutex<impl FnMut(&str)>) {
    let control = Control::new(ControlStream::Tcp(stream), peer.to_string(), Some(IDLE_TIMEOUT));
    let served = control.and_then(|control| {
        serve_one(control, Some(IDLE_TIMEOUT), || report_line(report, &format!("{peer} measures")))
    });
    busy.store(false, Ordering::Release);
    report_line(report, &served.map_or_else(|error| error.to_string(), |()| format!("{peer} has gone")));
}

fn report_line(report: &Mutex<impl FnMut(&str)>, text: &str) {
    report.lock().unwrap_or_else(PoisonError::into_inner)(text);
}

fn refuse_as_busy(mut stream: TcpStream) {
    let why = "another end measures now: two at a time would measure each other";
    let _ = stream.set_write_timeout(Some(Duration::from_millis(100)));
    let _ = writeln!(stream, "{}", serde_json::json!({ "failed": { "why": why } }));
}

/// Resolves `host`, `host:port`, `[::1]`, `[::1]:port`.
fn resolve_address(text: &str) -> Result<SocketAddr, BenchError> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let named = match bare {
        None if text.parse::<std::net::IpAddr>().is_ok() => (text, DEFAULT_PORT).to_socket_addrs(),
        Some(host) => (host, DEFAULT_PORT).to_socket_addrs(),
        None if text.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) => text.to_socket_addrs(),
        None => (text, DEFAULT_PORT).to_socket_addrs(),
    };
    let mut found = named.map_err(|error| BenchError::Usage(format!("looking up '{text}': {error}")))?;
    found.next().ok_or_else(|| BenchError::Usage(format!("'{text}' has no address")))
}

/// Connects to a serving end on another host.
pub(super) fn connect_to_peer(peer: &str) -> Result<Control, BenchError> {
    let address = resolve_address(peer)?;
    let stream = TcpStream::connect_timeout(&address, PEER_TIMEOUT).map_err(|error| BenchError::Peer {
        peer: address.to_string(),
        why: format!("{error}; run `thalweg bench listen` there"),
    })?;
    Control::new(ControlStream::Tcp(stream), address.to_string(), Some(PEER_TIMEOUT))
}

/// Child process that serves this one. It ends when its control connection does; dropping this kills it in any case.
#[derive(Debug)]
pub(crate) struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a second process of this program that serves.
pub(super) fn start_serving_process() -> Result<(Control, Child), BenchError> {
    let doing = "starting a second process";
    let (ours, theirs) = UnixStream::pair().map_err(BenchError::os_error(doing))?;
    let program = std::env::current_exe().map_err(BenchError::os_error(doing))?;
    let child = Command::new(program)
        .args(["bench", "listen", "--local"])
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .spawn()
        .map_err(BenchError::os_error(doing))?;
    let child = Child(child);
    let control = Control::new(ControlStream::Unix(ours), format!("process {}", child.0.id()), Some(PEER_TIMEOUT))?;
    Ok((control, child))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_written_with_and_without_a_port() {
        let at = |text| resolve_address(text).unwrap().to_string();
        assert_eq!(at("127.0.0.1"), "127.0.0.1:5255");
        assert_eq!(at("127.0.0.1:1"), "127.0.0.1:1");
        assert_eq!(at("[::1]"), "[::1]:5255");
        assert_eq!(at("[::1]:9"), "[::1]:9");
        assert_eq!(at("::1"), "[::1]:5255");
        assert!(resolve_address("").is_err() && resolve_address("no such host.invalid").is_err());
    }
}
