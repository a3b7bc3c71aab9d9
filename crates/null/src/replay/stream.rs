//! A connected socket, plain or inside TLS, for blocking reads and writes. The plain socket is a `UnixStream` also for TCP: reads and
//! writes are the same system calls.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use howfar_contract::jobs::{Tls, TlsVersions};
use howfar_contract::{FailCode, Failed};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    SupportedProtocolVersion,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a server proves itself with.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerTls {
    pub(crate) cert_file: String,
    pub(crate) key_file: String,
    pub(crate) versions: TlsVersions,
}

/// A stream of bytes in both directions.
pub(super) trait Duplex: Read + Write + Send {}
impl<T: Read + Write + Send> Duplex for T {}

fn protocol_versions(requested: TlsVersions) -> Vec<&'static SupportedProtocolVersion> {
    match requested {
        TlsVersions::Any => vec![&TLS13, &TLS12],
        TlsVersions::Tls12 => vec![&TLS12],
        TlsVersions::Tls13 => vec![&TLS13],
    }
}

fn tls_error(subject: &str, error: impl std::fmt::Display) -> Failed {
    Failed::new(
        FailCode::BadJob,
        format!("{subject} cannot be used for TLS: {error}"),
        "Correct the file or the name.",
    )
}

/// Starts TLS as a client.
#[derive(Debug, Clone)]
pub(super) struct TlsConnector {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl TlsConnector {
    pub(super) fn new(tls: &Tls) -> Result<Self, Failed> {
        let file = tls.ca_file.as_deref().unwrap_or_default();
        let mut roots = RootCertStore::empty();
        for certificate in
            CertificateDer::pem_file_iter(file).map_err(|error| tls_error(file, error))?
        {
            roots
                .add(certificate.map_err(|error| tls_error(file, error))?)
                .map_err(|error| tls_error(file, error))?;
        }
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&protocol_versions(tls.versions))
            .map_err(|error| tls_error("the version", error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = tls.server_name.clone().unwrap_or_default();
        let name = match name.parse::<IpAddr>() {
            Ok(address) => ServerName::from(address),
            Err(_) => {
                ServerName::try_from(name.clone()).map_err(|error| tls_error(&name, error))?
            }
        };
        if !tls.resumption {
            config.resumption = rustls::client::Resumption::disabled();
        }
        Ok(Self {
            config: Arc::new(config),
            name,
        })
    }

    /// Start TLS; the handshake is complete when this returns.
    pub(super) fn begin(&self, mut plain: UnixStream) -> io::Result<Box<dyn Duplex>> {
        let mut session = ClientConnection::new(Arc::clone(&self.config), self.name.clone())
            .map_err(io::Error::other)?;
        while session.is_handshaking() {
            session.complete_io(&mut plain)?;
        }
        Ok(Box::new(StreamOwned::new(session, plain)))
    }
}

/// Starts TLS as a server.
#[derive(Debug, Clone)]
pub(super) struct TlsAcceptor(Arc<ServerConfig>);

impl TlsAcceptor {
    pub(super) fn new(tls: &ServerTls) -> Result<Self, Failed> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(&tls.cert_file)
            .map_err(|error| tls_error(&tls.cert_file, error))?
            .collect();
        let chain = chain.map_err(|error| tls_error(&tls.cert_file, error))?;
        let key = PrivateKeyDer::from_pem_file(&tls.key_file)
            .map_err(|error| tls_error(&tls.key_file, error))?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&protocol_versions(tls.versions))
            .map_err(|error| tls_error("the version", error))?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|error| tls_error(&tls.cert_file, error))?;
        Ok(Self(Arc::new(config)))
    }

    /// Start TLS; the handshake is complete when this returns.
    pub(super) fn begin(&self, mut plain: UnixStream) -> io::Result<Box<dyn Duplex>> {
        let mut session = ServerConnection::new(Arc::clone(&self.0)).map_err(io::Error::other)?;
        while session.is_handshaking() {
            session.complete_io(&mut plain)?;
        }
        Ok(Box::new(StreamOwned::new(session, plain)))
    }
}
