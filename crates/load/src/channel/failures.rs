//! Translates errors of channels into the contract's failures.

use howfar_contract::jobs::Target;
use howfar_contract::{FailCode, Failed};
use howfar_wire::mysql::handshake::MissingFeature;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

use super::{ChannelError, algorithms, suites};
use crate::failure::{self, target_name};

/// The failure of a channel that cannot continue.
pub(crate) fn translate_error(target: &Target, error: &ChannelError) -> Failed {
    match error {
        ChannelError::Malformed(error) => failure::malformed_mysql(target, *error),
        ChannelError::Ended => failure::connection_closed(target, "by the end of its TLS session"),
        ChannelError::Codec(error) => Failed::new(
            FailCode::Internal,
            format!("no memory for compression: {error}"),
            "Use a lower level, or free memory on this machine.",
        ),
        ChannelError::Tls(error) => {
            let (why, advice) = describe_error(error);
            Failed::new(
                FailCode::Tls,
                format!("TLS with {} failed: {why}", target_name(target)),
                advice,
            )
        }
    }
}

const CLIENT_CERTIFICATE_ADVICE: &str = "Give a client certificate of an authority that the server knows: ssl-cert and ssl-key (sslcert and \
     sslkey).";
const ADDRESS_ADVICE: &str = "Check that the address is that of a server with TLS, and that nothing in between changes the bytes.";
const LOG_ADVICE: &str = "The server's error log may say more.";

/// An error of the library in words, and advice.
fn describe_error(error: &Error) -> (String, &'static str) {
    match error {
        Error::InvalidCertificate(why) => describe_certificate_error(why),
        Error::AlertReceived(alert) => describe_alert(*alert),
        Error::PeerIncompatible(
            PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
            | PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::Tls13RequiredForQuic,
        ) => no_common_version(),
        Error::PeerIncompatible(why) => {
            no_common_parameters(&format!("nothing that was offered ({})", split_words(why)))
        }
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            ("what came is not TLS".to_owned(), ADDRESS_ADVICE)
        }
        Error::InvalidMessage(why) => (
            format!("what came is not well-formed TLS: {}", split_words(why)),
            ADDRESS_ADVICE,
        ),
        Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => (
            "the server sent a message of TLS out of its order".to_owned(),
            ADDRESS_ADVICE,
        ),
        Error::PeerMisbehaved(why) => (
            format!("the server broke a rule of TLS: {}", split_words(why)),
            ADDRESS_ADVICE,
        ),
        Error::NoCertificatesPresented => ("the server sent no certificate".to_owned(), LOG_ADVICE),
        Error::DecryptError => (
            "a record could not be decrypted: its bytes were changed".to_owned(),
            ADDRESS_ADVICE,
        ),
        Error::PeerSentOversizedRecord => (
            "the server sent a record too long".to_owned(),
            ADDRESS_ADVICE,
        ),
        Error::FailedToGetRandomBytes => (
            "the system gave no random bytes".to_owned(),
            "Check that getrandom can be used here.",
        ),
        Error::FailedToGetCurrentTime => (
            "the system's time is not known".to_owned(),
            "Set the clock of this machine.",
        ),
        Error::General(text) => (text.clone(), LOG_ADVICE),
        other => (split_words(other), LOG_ADVICE),
    }
}

/// A name of the library, `SuchAsThis`, as words.
fn split_words(name: &impl std::fmt::Debug) -> String {
    let mut text = String::new();
    for character in format!("{name:?}").chars() {
        if character.is_ascii_uppercase() && text.ends_with(|last: char| last.is_ascii_lowercase())
        {
            text.push(' ');
        }
        text.push(character.to_ascii_lowercase());
    }
    text
}

fn describe_alert(alert: AlertDescription) -> (String, &'static str) {
    match alert {
        AlertDescription::ProtocolVersion => no_common_version(),
        AlertDescription::HandshakeFailure | AlertDescription::InsufficientSecurity => {
            no_common_parameters("none of what was offered")
        }
        AlertDescription::UnrecognisedName => (
            "the server knows no host of that name (SNI)".to_owned(),
            "Connect by the name that the server is known by: the name of the address is sent. With PostgreSQL, sslsni=0 sends none.",
        ),
        AlertDescription::NoApplicationProtocol => (
            "the server does not speak PostgreSQL's protocol there (ALPN)".to_owned(),
            "Use sslnegotiation=postgres, or the port of PostgreSQL.",
        ),
        AlertDescription::CertificateRequired => (
            "the server wants a client certificate".to_owned(),
            CLIENT_CERTIFICATE_ADVICE,
        ),
        AlertDescription::BadCertificate
        | AlertDescription::UnknownCA
        | AlertDescription::CertificateUnknown
        | AlertDescription::CertificateExpired
        | AlertDescription::CertificateRevoked
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::AccessDenied => (
            format!(
                "the server does not accept the client certificate, or that there is none (alert: {})",
                split_words(&alert)
            ),
            CLIENT_CERTIFICATE_ADVICE,
        ),
        other => (
            format!(
                "the server ended it with the alert: {}",
                split_words(&other)
            ),
            LOG_ADVICE,
        ),
    }
}

fn no_common_version() -> (String, &'static str) {
    (
        "the server does not speak the version of TLS that this side offers".to_owned(),
        "Allow TLS 1.2 and 1.3 on both sides (SELECT @@tls_version, SHOW ssl_min_protocol_version); older versions are not spoken here.",
    )
}

/// The server does not report what it supports, so the message lists only what this side supports.
fn no_common_parameters(accepted: &str) -> (String, &'static str) {
    (
        format!(
            "the server accepts {accepted}. This side speaks the cipher suites {}; the groups {}; certificates with keys {}",
            suites::list(),
            algorithms::GROUPS,
            algorithms::KEYS
        ),
        "Allow one of these on the server (ssl_cipher of MySQL and MariaDB; ssl_ciphers and ssl_groups of PostgreSQL). Where ssl-cipher or \
         a version was given, try without. Key exchange by DHE or RSA alone, and CBC, are not spoken here.",
    )
}

fn describe_certificate_error(why: &CertificateError) -> (String, &'static str) {
    const AUTHORITY_ADVICE: &str =
        "Give the file of the authority that signed it (ssl-ca, sslrootcert).";
    let (text, advice) = match why {
        CertificateError::UnknownIssuer => (
            "the server's certificate is not signed by a known authority",
            AUTHORITY_ADVICE,
        ),
        CertificateError::BadSignature => (
            "a signature of the server or of its certificate is wrong",
            AUTHORITY_ADVICE,
        ),
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => {
            let (host, names) = (describe_host(expected), list_names(presented));
            let text =
                format!("the server's certificate is not made out to {host}, but to {names}");
            return (text, NAME_ADVICE);
        }
        CertificateError::NotValidForName => (
            "the server's certificate is made out to other names",
            NAME_ADVICE,
        ),
        CertificateError::ExpiredContext { time, not_after } => {
            let age = time_between(*time, *not_after);
            return (
                format!("the server's certificate expired {age} ago"),
                TIME_ADVICE,
            );
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            let rest = time_between(*not_before, *time);
            return (
                format!("the server's certificate is valid only in {rest}"),
                TIME_ADVICE,
            );
        }
        CertificateError::Expired | CertificateError::NotValidYet => {
            ("the server's certificate is not valid now", TIME_ADVICE)
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => (
            "the certificate is not one for a server",
            "Give the server a certificate whose key usage allows that (extendedKeyUsage serverAuth).",
        ),
        other => {
            return (
                describe_defect(other),
                "Give the server a certificate that its clients can use.",
            );
        }
    };
    (text.to_owned(), advice)
}

/// A defect of the certificate itself, in words.
fn describe_defect(why: &CertificateError) -> String {
    match why {
        CertificateError::BadEncoding => "the server's certificate is malformed".to_owned(),
        CertificateError::UnhandledCriticalExtension => {
            "the server's certificate has a critical extension that is not known here".to_owned()
        }
        CertificateError::UnsupportedSignatureAlgorithmContext {
            signature_algorithm_id: id,
            ..
        } => format!(
            "the certificate is signed by {}, which is not verified here",
            algorithm_name(id)
        ),
        CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext {
            public_key_algorithm_id: id,
            ..
        } => format!(
            "the certificate's key is of the kind {}, with which this signature is not verified here",
            algorithm_name(id)
        ),
        CertificateError::Other(other) => match other.0.downcast_ref::<webpki::Error>() {
            Some(error) => describe_path_error(error),
            None => format!("the server's certificate is refused: {other}"),
        },
        other => format!(
            "the server's certificate is refused: {}",
            split_words(other)
        ),
    }
}

const NAME_ADVICE: &str =
    "Connect under a name of the certificate, or verify only its authority (VERIFY_CA, verify-ca).";
const TIME_ADVICE: &str = "Renew the certificate, or correct the clock of this machine.";

/// Errors that `webpki` finds in a path of certificates and `rustls` has no variant for.
fn describe_path_error(error: &webpki::Error) -> String {
    use webpki::Error as Path;
    let text = match error {
        Path::UnsupportedCertVersion => "a certificate is not X.509 version 3",
        Path::CaUsedAsEndEntity => "the server's certificate is that of an authority",
        Path::EndEntityUsedAsCa => "a certificate is signed by one that is not an authority's",
        Path::NameConstraintViolation => {
            "an authority may not sign for the names of the certificate"
        }
        Path::PathLenConstraintViolated => "an authority may not have other authorities below it",
        Path::UnsupportedCriticalExtension => {
            "a certificate has a critical extension that is not known here"
        }
        Path::SignatureAlgorithmMismatch => "a certificate names two kinds of signature",
        Path::InvalidSerialNumber => "a certificate's serial number is malformed",
        Path::MaximumPathBuildCallsExceeded
        | Path::MaximumPathDepthExceeded
        | Path::MaximumSignatureChecksExceeded
        | Path::MaximumNameConstraintComparisonsExceeded => {
            "the server sent more certificates than can be checked"
        }
        other => return format!("a certificate is refused: {}", split_words(other)),
    };
    text.to_owned()
}

fn describe_host(name: &ServerName<'_>) -> String {
    match name {
        ServerName::DnsName(name) => format!("`{}`", name.as_ref()),
        ServerName::IpAddress(address) => std::net::IpAddr::from(*address).to_string(),
        _ => "that name".to_owned(),
    }
}

/// List the first few names, shortened, because a server may send any number.
fn list_names(names: &[String]) -> String {
    const MAX_NAMES: usize = 5;
    const MAX_NAME_CHARS: usize = 100;
    if names.is_empty() {
        return "no name".to_owned();
    }
    let shown = |name: &String| -> String {
        let clean = name.chars().filter(|character| !character.is_control());
        format!("`{}`", clean.take(MAX_NAME_CHARS).collect::<String>())
    };
    let mut text: Vec<String> = names.iter().take(MAX_NAMES).map(shown).collect();
    if names.len() > MAX_NAMES {
        text.push(format!("{} more", names.len() - MAX_NAMES));
    }
    text.join(", ")
}

/// The time between two moments, in words.
fn time_between(later: UnixTime, earlier: UnixTime) -> String {
    let hours = later.as_secs().saturating_sub(earlier.as_secs()) / 3600;
    match hours {
        0 => "less than an hour".to_owned(),
        1..48 => format!("{hours} h"),
        _ => format!("{} days", hours / 24),
    }
}

/// The name of an algorithm that servers use for keys or signatures, by the prefix of its encoded identifier.
fn algorithm_name(identifier: &[u8]) -> &'static str {
    const KNOWN: [(&[u8], &str); 6] = [
        (&[0x06, 0x03, 0x2B, 0x65, 0x71], "Ed448"),
        (&[0x06, 0x07, 0x2A, 0x86, 0x48, 0xCE, 0x38], "DSA"),
        (
            &[0x06, 0x07, 0x2A, 0x86, 0x48, 0xCE, 0x3D, 2, 1],
            "ECDSA on another curve",
        ),
        (
            &[0x06, 0x09, 0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 1, 1, 1],
            "RSA",
        ),
        (
            &[0x06, 0x09, 0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 1, 1, 5],
            "RSA with SHA-1",
        ),
        (
            &[0x06, 0x09, 0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 1, 1, 10],
            "RSA-PSS",
        ),
    ];
    let mut known = KNOWN.iter();
    let entry = known.find(|(prefix, _)| identifier.starts_with(prefix));
    entry.map_or("an unknown algorithm", |(_, name)| name)
}

/// The failure of a server whose certificate is neither proved by the password nor signed by a trusted authority.
pub(crate) fn unproven_certificate(target: &Target, user: &str) -> Failed {
    Failed::new(
        FailCode::Tls,
        format!(
            "{} did not prove its certificate by the password of `{user}`, and no authority of this machine vouches for it",
            target_name(target)
        ),
        "Give the file of the authority that signed the certificate (ssl-ca). MariaDB proves it from version 11.4 on, to accounts with a \
         password by mysql_native_password, ed25519 or parsec; MySQL never does.",
    )
}

/// The failure of a server that lacks a feature required by the job.
pub(crate) fn missing_feature(target: &Target, feature: MissingFeature) -> Failed {
    match feature {
        MissingFeature::Tls => Failed::new(
            FailCode::Tls,
            format!("{} offers no TLS", target_name(target)),
            "Give the server a certificate (ssl_cert and ssl_key), or ask for a session without TLS.",
        ),
        MissingFeature::Compression(algorithm) => Failed::new(
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::{OtherError, PeerMisbehaved};

    use super::*;

    /// [tls-8] Every error is reported in words: no names of the library or of its wrappers.
    #[test]
    fn errors_of_the_library_become_sentences() {
        let target = Target::Tcp {
            host: "127.0.0.1".to_owned(),
            port: 1,
        };
        let path = |error| CertificateError::Other(OtherError(Arc::new(error))).into();
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_000_000));
        let errors: Vec<Error> = vec![
            path(webpki::Error::UnsupportedCertVersion),
            path(webpki::Error::CaUsedAsEndEntity),
            path(webpki::Error::NameConstraintViolation),
            path(webpki::Error::ExtensionValueInvalid),
            CertificateError::UnknownIssuer.into(),
            CertificateError::BadEncoding.into(),
            CertificateError::ApplicationVerificationFailure.into(),
            CertificateError::ExpiredContext {
                time: now,
                not_after: UnixTime::since_unix_epoch(std::time::Duration::ZERO),
            }
            .into(),
            CertificateError::NotValidForNameContext {
                expected: ServerName::try_from("db.example").expect("the name is valid"),
                presented: vec!["a\x1b[31m".to_owned(); 40],
            }
            .into(),
            CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext {
                signature_algorithm_id: vec![],
                public_key_algorithm_id: vec![0x06, 0x03, 0x2B, 0x65, 0x71],
            }
            .into(),
            Error::AlertReceived(AlertDescription::UnrecognisedName),
            Error::AlertReceived(AlertDescription::HandshakeFailure),
            Error::AlertReceived(AlertDescription::InternalError),
            Error::PeerMisbehaved(PeerMisbehaved::SelectedUnofferedCipherSuite),
            Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon),
            Error::InvalidMessage(InvalidMessage::InvalidContentType),
            Error::NoCertificatesPresented,
            Error::DecryptError,
        ];
        for error in errors {
            let failed = translate_error(&target, &ChannelError::Tls(error.clone()));
            let (debug, text) = (format!("{error:?}"), failed.message);
            assert!(text.starts_with("TLS with 127.0.0.1:1 failed: "), "{text}");
            for bad in ["Other", "Error", "{", "\x1b", "certificate error"] {
                assert!(!text.contains(bad), "{debug}: {text}");
            }
            let has_joined_words = text
                .as_bytes()
                .windows(2)
                .any(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase());
            assert!(!has_joined_words, "{debug}: {text}");
            assert!(text.len() < 700 && failed.advice.ends_with('.'), "{text}");
        }
    }
}
