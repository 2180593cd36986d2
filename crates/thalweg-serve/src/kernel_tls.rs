//! TLS with records encrypted and decrypted by the kernel (`CONFIG_TLS`).
//!
//! Bytes sent into such a socket, also by `sendfile`, leave encrypted, and bytes read from it are plaintext (Linux's
//! Documentation/networking/tls.rst). rustls performs the handshake and hands over the keys. Records of a client that
//! carry no data (`close_notify`, new keys) come out of the kernel as they are, and `ktls-core` answers them.

use crate::socket::Socket;
use ktls_core::{
    Compatibilities, Context, ExtractedSecrets, TlsCryptoInfoRx, TlsCryptoInfoTx, setup_tls_params, setup_ulp,
};
use rustix::io::Errno;
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, InsufficientSizeError, UnbufferedStatus};
use rustls::{ProtocolVersion, ServerConfig, SupportedCipherSuite};
use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;

/// State of a connection whose keys the kernel holds.
pub(crate) struct KernelTls {
    context: Context<KernelConnection<ServerConnectionData>>,
    version: ProtocolVersion,
    /// Number of records that may be sent with one key, and number sent.
    limit: u64,
    sent: u64,
}

/// Checks that the kernel supports every cipher that a client may negotiate; returns the reason if it does not.
pub(crate) fn check_kernel_ciphers() -> Result<(), String> {
    let absent = "the kernel has no TLS (CONFIG_TLS; if it is a module, `modprobe tls`)";
    let both = Compatibilities::probe().map_err(|error| error.to_string())?.ok_or(absent)?;
    let knows_all =
        [both.tls12, both.tls13].iter().all(|one| one.aes_128_gcm() && one.aes_256_gcm() && one.chacha20_poly1305());
    if knows_all { Ok(()) } else { Err("the kernel's TLS lacks AES-GCM or ChaCha20-Poly1305".to_owned()) }
}

impl KernelTls {
    /// Returns whether a socket can be given keys: it cannot if its client has already announced that it sends no more.
    pub(crate) fn prepare_socket(socket: &Socket) -> bool {
        setup_ulp(socket.tcp_stream()).inspect_err(|error| tracing::debug!("{error}")).is_ok()
    }

    /// Performs the handshake and gives the keys to the socket, which must be prepared.
    pub(crate) fn accept_handshake(config: &Arc<ServerConfig>, socket: &mut Socket) -> io::Result<Self> {
        let connection = perform_handshake(config, socket)?;
        let (secrets, connection) = connection.dangerous_into_kernel_connection().map_err(io::Error::other)?;
        let secrets = ExtractedSecrets::try_from(secrets).map_err(io::Error::other)?;
        let version = connection.protocol_version();
        let ((tx_number, tx), (rx_number, rx)) = (secrets.tx, secrets.rx);
        let tx = TlsCryptoInfoTx::new(version.into(), tx, tx_number).map_err(io::Error::other)?;
        let rx = TlsCryptoInfoRx::new(version.into(), rx, rx_number).map_err(io::Error::other)?;
        setup_tls_params(socket.tcp_stream(), &tx, &rx).map_err(io::Error::other)?;
        let limit = match connection.negotiated_cipher_suite() {
            SupportedCipherSuite::Tls13(suite) => suite.common.confidentiality_limit,
            SupportedCipherSuite::Tls12(suite) => suite.common.confidentiality_limit,
        };
        Ok(Self { context: Context::new(connection, None), version, limit, sent: 0 })
    }

    /// Receives a record that carries no data and does what it asks for; blocks on the socket. The kernel reports `EIO`
    /// to a reader of data when such a record is next. Returns whether the client may send more.
    ///
    /// # Errors
    /// Fails on a record that the client must not send, and on new keys that a kernel before 6.14 cannot take: the
    /// client was informed, and the connection is over.
    pub(crate) fn handle_control_record(&mut self, socket: impl AsFd) -> io::Result<bool> {
        self.context.handle_io_error(&socket, Errno::IO.into())?;
        if !self.context.buffer().unread().is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "data in place of a message"));
        }
        Ok(!self.context.state().is_read_closed())
    }

    /// Counts the records of one call that sent bytes.
    pub(crate) fn count_sent_bytes(&mut self, bytes: u64) {
        // The last record of the previous call and the last one of this call may be short.
        self.sent = self.sent.saturating_add(bytes / MAX_PLAINTEXT_BYTES + 2);
    }

    /// Returns whether the key has encrypted half of the records that one key may (RFC 8446, section 5.5). The kernel
    /// does not count them.
    pub(crate) fn needs_new_keys(&self) -> bool {
        self.sent >= self.limit / 2
    }

    /// Agrees on new keys (RFC 8446, section 4.6.3). Blocks on the socket.
    ///
    /// # Errors
    /// Fails with TLS 1.2 and with a kernel before 6.14: the connection is over.
    pub(crate) fn renew_keys(&mut self, socket: impl AsFd) -> io::Result<()> {
        if self.version != ProtocolVersion::TLSv1_3 {
            self.context.shutdown(&socket);
            return Err(io::Error::other("the limit of data for the keys of one TLS 1.2 connection is reached"));
        }
        self.context.refresh_traffic_keys(&socket).map_err(io::Error::other)?;
        self.sent = 0;
        Ok(())
    }

    /// Sends `close_notify` (RFC 9112, section 9.8) after all other data. The kernel may still hold part of a record it
    /// has accepted, and that record is lost if the socket is closed before; therefore this blocks on the socket. A
    /// client that does not read it is gone.
    pub(crate) fn send_close_notify(&mut self, socket: impl AsFd) {
        self.context.shutdown(&socket);
    }
}

impl fmt::Debug for KernelTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KernelTls({:?}, {} of {} records)", self.version, self.sent, self.limit)
    }
}

/// Performs the handshake and reads no further than its end: bytes after it are for the kernel to decrypt.
fn perform_handshake(config: &Arc<ServerConfig>, socket: &mut Socket) -> io::Result<UnbufferedServerConnection> {
    let mut connection = UnbufferedServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
    let (mut incoming, mut outgoing) = (Vec::new(), Vec::new());
    // True if the head of the incoming record is here.
    let mut in_body = false;
    loop {
        let UnbufferedStatus { discard, state } = connection.process_tls_records(&mut incoming);
        match state {
            Err(error) => {
                incoming.drain(..discard);
                // The alert for the client comes next, in one piece, and before the received bytes are processed again.
                if let Ok(ConnectionState::EncodeTlsData(record)) = connection.process_tls_records(&mut incoming).state
                {
                    encode_record(record, &mut outgoing)?;
                    socket.write_all(&outgoing)?;
                }
                return Err(io::Error::other(error));
            }
            Ok(ConnectionState::EncodeTlsData(record)) => encode_record(record, &mut outgoing)?,
            Ok(ConnectionState::TransmitTlsData(sent)) => {
                socket.write_all(&outgoing)?;
                outgoing.clear();
                sent.done();
            }
            Ok(ConnectionState::WriteTraffic(_)) => return Ok(connection),
            Ok(ConnectionState::BlockedHandshake) => {
                incoming.drain(..discard);
                let missing = match incoming.last_chunk::<2>() {
                    Some(length) if in_body => usize::from(u16::from_be_bytes(*length)),
                    _ => RECORD_HEADER_BYTES,
                };
                in_body = !in_body;
                let from = incoming.len();
                incoming.resize(from + missing, 0);
                socket.read_exact(&mut incoming[from..])?;
                continue;
            }
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        incoming.drain(..discard);
    }
}

/// Appends the encoded record to the bytes to send.
fn encode_record(mut record: EncodeTlsData<'_, ServerConnectionData>, to: &mut Vec<u8>) -> io::Result<()> {
    let from = to.len();
    if let Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) = record.encode(&mut []) {
        to.resize(from + required_size, 0);
    }
    record.encode(&mut to[from..]).map(drop).map_err(io::Error::other)
}

/// Maximum number of data bytes in a record (RFC 8446, section 5.1).
const MAX_PLAINTEXT_BYTES: u64 = 1 << 14;
/// Length of a record's header in bytes; its last two bytes are the length of the record.
const RECORD_HEADER_BYTES: usize = 5;
