//! What can go wrong with a channel, translated once into the contract's failures.

use howfar_contract::jobs::Target;
use howfar_contract::{FailCode, Failed};
use howfar_wire::mysql::handshake::Lacking;
use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};

use super::ChannelError;
use crate::failure::{self, target_name};

/// A channel that cannot go on.
pub(crate) fn broken(target: &Target, error: &ChannelError) -> Failed {
    match error {
        ChannelError::Malformed(error) => failure::malformed(target, *error),
        ChannelError::Ended => failure::gone(target, "by the end of its TLS session"),
        ChannelError::Codec(error) => Failed::new(
            FailCode::Internal,
            format!("no memory for compression: {error}"),
            "Use a lower level, or free memory on this machine.",
        ),
        ChannelError::Tls(error) => Failed::new(
            FailCode::Tls,
            format!("TLS with {} failed: {error}", target_name(target)),
            advice(error),
        ),
    }
}

/// What to do about an error of TLS.
fn advice(error: &Error) -> &'static str {
    match error {
        Error::InvalidCertificate(why) => about_certificate(why),
        Error::PeerIncompatible(
            PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
            | PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled,
        )
        | Error::AlertReceived(AlertDescription::ProtocolVersion) => {
            "The server does not speak that version of TLS (SELECT @@tls_version shows which it does): allow another."
        }
        Error::AlertReceived(
            AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity,
        )
        | Error::PeerIncompatible(_) => {
            "Server and client have no cipher suite, group or signature in common: name another suite, or none."
        }
        Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::AccessDenied,
        ) => {
            "The server wants a client certificate of an authority that it knows: give ssl-cert and ssl-key (sslcert and sslkey; cert_file and key_file in a job)."
        }
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } => {
            "What answers does not speak TLS here: check that nothing between changes the bytes."
        }
        _ => "Check the server's certificate and its TLS settings; its error log may say more.",
    }
}

fn about_certificate(why: &CertificateError) -> &'static str {
    match why {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "The server's certificate is not signed by an authority of the given CA file (ssl-ca, sslrootcert; ca_file in a job): give the file of the authority that signed it."
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "The server's certificate carries other names: reach the server under one of them, or verify only its authority (VERIFY_CA, verify-ca)."
        }
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => {
            "The server's certificate is not valid now: renew it, or correct the clock of this machine."
        }
        _ => {
            "The server's certificate cannot be used: make it anew with an authority of its own (X.509 version 3)."
        }
    }
}

/// A server without something that the job must have.
pub(crate) fn lacking(target: &Target, what: Lacking) -> Failed {
    match what {
        Lacking::Tls => Failed::new(
            FailCode::Tls,
            format!("{} offers no TLS", target_name(target)),
            "Give the server a certificate (ssl_cert and ssl_key), or ask for a session without TLS.",
        ),
        Lacking::Compression(algorithm) => Failed::new(
            FailCode::Connect,
            format!(
                "{} offers no compression by {}",
                target_name(target),
                algorithm.name()
            ),
            "Choose another algorithm (MariaDB has zlib alone; MySQL says which in @@protocol_compression_algorithms), or none.",
        ),
    }
}
