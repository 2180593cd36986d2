//! A data server on a directory, and clients that say to it what they like, byte by byte.

use super::{Node, TIMEOUT, thalweg};
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A data server, and talk with it.
pub(crate) struct Dialogue {
    pub(crate) directory: TempDir,
    pub(crate) node: Node,
    pub(crate) address: SocketAddr,
    /// What it said when it was ready.
    pub(crate) ready: Value,
}

impl Dialogue {
    /// On a directory with `digits`, a file of ten bytes, and a secret beside it; takes uploads.
    pub(crate) fn start(more: &[&str]) -> Self {
        Self::start_with(&[&["--write"], more].concat(), |command| command)
    }

    /// With other options, and a command that is changed.
    pub(crate) fn start_with(options: &[&str], change: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let root = directory.path().join("root");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(root.join("digits"), "0123456789").unwrap();
        std::fs::write(root.join(".hidden"), "secret").unwrap();
        std::fs::write(directory.path().join("secret"), "secret").unwrap();
        std::os::unix::fs::symlink("../secret", root.join("link")).unwrap();
        let mut command = thalweg();
        command.args(["--json", "serve", "--listen", "127.0.0.1:0"]).args(options).arg(&root);
        change(&mut command);
        let mut node = Node::start("serve", command);
        let ready: Value = serde_json::from_str(&node.wait_for("\"url\"")).unwrap();
        let (_, address) = ready["url"].as_str().unwrap().split_once("://").unwrap();
        let address = address.trim_end_matches('/').parse().unwrap();
        Self { directory, node, address, ready }
    }

    /// A path in the directory that is served.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join("root").join(name)
    }

    /// With one more file there.
    pub(crate) fn with_file(self, name: &str, bytes: &[u8]) -> Self {
        std::fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        std::fs::write(self.path(name), bytes).unwrap();
        self
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        socket.set_write_timeout(Some(TIMEOUT)).unwrap();
        socket
    }

    /// All that comes back for these bytes, when nothing more is sent.
    pub(crate) fn tell(&self, bytes: &[u8]) -> String {
        let mut socket = self.connect();
        // Whoever is refused early does not take the rest.
        let _ = socket.write_all(bytes);
        let _ = socket.shutdown(Shutdown::Write);
        all_of(&mut socket)
    }

    pub(crate) fn ask(&self, method: &str, path: &str, fields: &str) -> String {
        // Fields may have a body behind them.
        let end = if fields.contains("\r\n\r\n") { "" } else { "\r\n" };
        self.tell(format!("{method} {path} HTTP/1.1\r\nHost: here\r\n{fields}{end}").as_bytes())
    }

    #[track_caller]
    pub(crate) fn answers(&self, method: &str, path: &str, fields: &str, status: u16, body: &str) {
        let answer = self.ask(method, path, fields);
        let (head, content) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path}: {answer}");
        assert!(content.contains(body) && (!body.is_empty() || content.is_empty()), "{method} {path}: {answer}");
    }
}

/// All that comes until the other end closes, or breaks the connection off.
pub(crate) fn all_of(from: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    let end = from.read_to_end(&mut bytes);
    if let Err(error) = end {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "it neither answers nor closes");
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sends bytes one by one, each when nothing has come back for a moment, until the server closes. What it said.
pub(crate) fn trickle(socket: &mut TcpStream, bytes: impl IntoIterator<Item = u8>) -> String {
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let began = Instant::now();
    let mut answer = Vec::new();
    for byte in bytes {
        assert!(began.elapsed() < TIMEOUT, "it goes on for ever");
        // What was said may lie there when nothing is taken any more.
        let _ = socket.write_all(&[byte]);
        let mut buffer = [0; 4096];
        match socket.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => answer.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}
