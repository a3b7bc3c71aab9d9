//! Makes TLS connections from a job's options. Certificates, keys and suites are read and checked once, before anything connects.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use howfar_contract::jobs::{Target, Tls, TlsVerify, TlsVersions};
use howfar_contract::{FailCode, Failed};
use rustls::client::{Resumption, Tls12Resumption};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::tickets::Tickets;
use super::verify::Verifier;
use super::{ChannelError, algorithms, suites};

/// TLS settings shared by all connections of a job, with the sessions that they may resume.
#[derive(Debug, Clone)]
pub(super) struct TlsSettings {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    optional: bool,
    verifier: Arc<Verifier>,
}

impl TlsSettings {
    pub(super) fn new(tls: &Tls, target: &Target) -> Result<Self, Failed> {
        let provider = Arc::new(make_provider(tls)?);
        let versions = match tls.versions {
            TlsVersions::Any => vec![&TLS13, &TLS12],
            TlsVersions::Tls12 => vec![&TLS12],
            TlsVersions::Tls13 => vec![&TLS13],
        };
        let algorithms = provider.signature_verification_algorithms;
        let (roots, trusted) = read_roots(tls)?;
        let verifier = Arc::new(Verifier {
            verify: tls.verify,
            roots,
            trusted,
            algorithms,
        });
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&versions)
            .map_err(|_| {
                bad_job(
                    "the cipher suite belongs to another version of TLS".to_owned(),
                    "TLS_... and TLS13_... are suites of TLS 1.3, ECDHE-... those of TLS 1.2: correct one of the two options.",
                )
            })?
            .dangerous()
            .with_custom_certificate_verifier(Arc::<Verifier>::clone(&verifier));
        let mut config = match (&tls.cert_file, &tls.key_file) {
            (Some(cert), Some(key)) => builder
                .with_client_auth_cert(read_certificates(cert)?, read_private_key(key)?)
                .map_err(|error| {
                    bad_job(
                        format!(
                            "the certificate {cert} and the key {key} do not go together: {error}"
                        ),
                        "Name a client certificate and its own private key.",
                    )
                })?,
            _ => builder.with_no_client_auth(),
        };
        if tls.direct {
            config.alpn_protocols = vec![POSTGRES.to_vec()];
        }
        config.enable_sni = tls.sni;
        config.resumption = if tls.resumption {
            Resumption::store(Arc::new(Tickets::default()))
                .tls12_resumption(Tls12Resumption::SessionIdOrTickets)
        } else {
            Resumption::disabled()
        };
        Ok(Self {
            config: Arc::new(config),
            name: server_name(tls, target)?,
            optional: tls.optional,
            verifier,
        })
    }

    /// Whether a trusted authority vouches for a server's `certificates`, the first of which is its own.
    pub(super) fn is_trusted(&self, certificates: &[CertificateDer<'_>]) -> bool {
        certificates
            .split_first()
            .is_some_and(|(leaf, intermediates)| {
                self.verifier
                    .verify_path(leaf, intermediates, Some(&self.name), UnixTime::now())
                    .is_ok()
            })
    }

    /// Whether to continue without TLS if the server does not offer it.
    pub(super) fn is_optional(&self) -> bool {
        self.optional
    }

    /// Whether TLS begins without a prior request for it in clear.
    pub(super) fn begins_directly(&self) -> bool {
        !self.config.alpn_protocols.is_empty()
    }

    pub(super) fn make_connection(&self) -> Result<ClientConnection, ChannelError> {
        Ok(ClientConnection::new(
            Arc::clone(&self.config),
            self.name.clone(),
        )?)
    }
}

/// The protocol that direct TLS to PostgreSQL names (ALPN).
pub(super) const POSTGRES: &[u8] = b"postgresql";

const CA_ADVICE: &str =
    "Name a file with the certificate of the authority (PEM) that signed the server's.";

fn bad_job(message: String, advice: &str) -> Failed {
    Failed::new(FailCode::BadJob, message, advice)
}

fn make_provider(tls: &Tls) -> Result<CryptoProvider, Failed> {
    let mut provider = algorithms::provider();
    if let Some(name) = &tls.cipher {
        let suite = suites::find(name).ok_or_else(|| {
            bad_job(
                format!("`{name}` is no cipher suite that is spoken here"),
                &format!("Choose one of {}.", suites::list()),
            )
        })?;
        provider.cipher_suites = vec![suite];
    }
    Ok(provider)
}

/// Read the CA file; return a root store made of its certificates, and these certificates.
fn read_roots(tls: &Tls) -> Result<(RootCertStore, Vec<CertificateDer<'static>>), Failed> {
    let mut roots = RootCertStore::empty();
    let certificates = match (tls.verify, &tls.ca_file) {
        (TlsVerify::None, _) | (TlsVerify::Password, None) => Vec::new(),
        (TlsVerify::Password, Some(file)) if !Path::new(file).exists() => Vec::new(),
        (_, Some(file)) => read_certificates(file)?,
        (_, None) => {
            return Err(bad_job(
                "certificates cannot be verified without an authority".to_owned(),
                CA_ADVICE,
            ));
        }
    };
    if tls.verify == TlsVerify::Password {
        // The file has the system's authorities, some of which may be unusable: skip those.
        roots.add_parsable_certificates(certificates.iter().cloned());
        return Ok((roots, certificates));
    }
    for certificate in &certificates {
        roots.add(certificate.clone()).map_err(|error| {
            let file = tls.ca_file.as_deref().unwrap_or_default();
            bad_job(
                format!("{file} holds a certificate that cannot be used: {error}"),
                CA_ADVICE,
            )
        })?;
    }
    Ok((roots, certificates))
}

fn read_certificates(file: &str) -> Result<Vec<CertificateDer<'static>>, Failed> {
    let unreadable = |error: &dyn std::fmt::Display| {
        bad_job(
            format!("reading certificates from {file} failed: {error}"),
            "Name a readable file with certificates in PEM.",
        )
    };
    let certificates: Vec<_> = CertificateDer::pem_file_iter(file)
        .map_err(|error| unreadable(&error))?
        .collect::<Result<_, _>>()
        .map_err(|error| unreadable(&error))?;
    if certificates.is_empty() {
        return Err(unreadable(&"it holds none"));
    }
    Ok(certificates)
}

fn read_private_key(file: &str) -> Result<PrivateKeyDer<'static>, Failed> {
    PrivateKeyDer::from_pem_file(file).map_err(|error| {
        bad_job(
            format!("reading a private key from {file} failed: {error}"),
            "Name a readable file with a private key in PEM, without a passphrase.",
        )
    })
}

/// The name that is sent and, if names are compared, must match the certificate.
fn server_name(tls: &Tls, target: &Target) -> Result<ServerName<'static>, Failed> {
    let is_compared = matches!(tls.verify, TlsVerify::Full | TlsVerify::Password);
    match (&tls.server_name, target) {
        (Some(name), _) => match ServerName::try_from(name.clone()) {
            Ok(name) => Ok(name),
            Err(_) if is_compared => Err(bad_job(
                format!("`{name}` is neither a host name nor an address"),
                "Give the name or the address that the server's certificate carries.",
            )),
            Err(_) => Ok(placeholder_name()),
        },
        (None, Target::Tcp { host, .. }) => match host.parse::<IpAddr>() {
            Ok(address) => Ok(ServerName::IpAddress(address.into())),
            Err(_) => Err(bad_job(
                format!("`{host}` is no numeric address"),
                "Correct the address of the server.",
            )),
        },
        (None, Target::Unix { .. }) => Ok(placeholder_name()),
    }
}

/// A placeholder for a Unix socket, which has no name, and for names that TLS does not accept: it is an address, so it is not sent,
/// and it is not compared.
fn placeholder_name() -> ServerName<'static> {
    ServerName::IpAddress(IpAddr::from([127, 0, 0, 1]).into())
}
