//! Certificate and private key of a server.

use crate::kernel_tls;
use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Reason why a certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is not a PEM file of the expected kind.
    #[error("{}: {error}", path.display())]
    Pem {
        /// Path of the file.
        path: PathBuf,
        /// Error of the PEM parser.
        error: pem::Error,
    },
    /// Certificate and key do not belong together.
    #[error("certificate and key: {0}")]
    Rustls(#[from] rustls::Error),
}

/// Configuration that a server needs for TLS.
#[derive(Debug, Clone)]
pub struct Tls {
    pub(crate) config: Arc<ServerConfig>,
    kernel: Result<(), String>,
}

impl Tls {
    /// Reads the certificate chain from one PEM file, and its private key from another or the same.
    ///
    /// # Errors
    /// Fails if a file is not a PEM file of the expected kind, or if certificate and key do not belong together.
    pub fn read_certificate(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let mut config = server_config(certificate, key)?;
        let kernel = kernel_tls::check_kernel_ciphers();
        config.enable_secret_extraction = kernel.is_ok();
        Ok(Self { config: Arc::new(config), kernel })
    }

    /// Checks whether the kernel encrypts once rustls has performed the handshake.
    ///
    /// # Errors
    /// Returns the reason why rustls encrypts instead. The server works either way.
    pub fn is_kernel_tls_available(&self) -> Result<(), &str> {
        self.kernel.as_ref().copied().map_err(String::as_str)
    }
}

fn server_config(certificate: &Path, key: &Path) -> Result<ServerConfig, TlsError> {
    let chain = CertificateDer::pem_file_iter(certificate).map_err(pem_file_error(certificate))?;
    let chain = chain.collect::<Result<Vec<_>, _>>().map_err(pem_file_error(certificate))?;
    let key_file = PrivateKeyDer::from_pem_file(key).map_err(pem_file_error(key))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = versions.with_no_client_auth().with_single_cert(chain, key_file)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn pem_file_error(path: &Path) -> impl FnOnce(pem::Error) -> TlsError {
    move |error| TlsError::Pem { path: path.to_owned(), error }
}
