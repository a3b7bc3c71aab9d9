//! Verifies a server's certificate as far as the job requires: not at all, that a trusted authority signed it, or its name as well.
//! Whether the server holds the certificate's key is always checked.
//!
//! The certificates that libpq and the clients of MySQL accept are accepted here, and names are compared as in those clients. `webpki`
//! checks the path of an ordinary certificate. It refuses certificates of version 1 and those marked as an authority's, so [`Path`]
//! checks the paths of these.

use std::net::IpAddr;

use howfar_contract::jobs::TlsVerify;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, DigitallySignedStruct, Error, PeerMisbehaved, RootCertStore, SignatureScheme,
};

use super::certificate::{
    ALTERNATIVE_NAMES, BASIC_CONSTRAINTS, Certificate, EXTENDED_KEY_USAGE, KEY_USAGE,
    NAME_CONSTRAINTS, Name, is_valid_signature,
};

/// Maximum number of authorities between a certificate and a trusted one.
const MAX_AUTHORITIES: u8 = 6;
/// Maximum number of signatures checked for one path, whatever the server sends.
const MAX_CHECKS: u32 = 64;
/// Key usage bits of a server: digital signature, key encipherment or key agreement.
const SERVER_KEY_USAGE: u8 = 0x80 | 0x20 | 0x08;
/// Key usage bit of an authority: to sign certificates.
const AUTHORITY_KEY_USAGE: u8 = 0x04;

/// Verifies certificates as far as the job requires.
#[derive(Debug)]
pub(super) struct Verifier {
    pub(super) verify: TlsVerify,
    pub(super) roots: RootCertStore,
    /// The certificates that `roots` was made from.
    pub(super) trusted: Vec<CertificateDer<'static>>,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    /// Check that a trusted authority vouches for the certificate, and that it has `name`, if given.
    pub(super) fn verify_path(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: Option<&ServerName<'_>>,
        now: UnixTime,
    ) -> Result<(), Error> {
        let certificate = parse_certificate(leaf)?;
        let path = Path {
            verifier: self,
            now,
            intermediates: intermediates
                .iter()
                .filter_map(|der| Certificate::parse(der))
                .collect(),
            remaining_checks: MAX_CHECKS,
        };
        let is_constrained = path.is_constrained(&certificate);
        if certificate.version < 3 || certificate.max_authorities_below().is_some() {
            path.verify(&certificate)?;
        } else {
            verify_server_cert_signed_by_trust_anchor(
                &ParsedCertificate::try_from(leaf)?,
                &self.roots,
                intermediates,
                now,
                self.algorithms.all,
            )?;
        }
        match name {
            Some(name) if !is_issued_to(&certificate, name, is_constrained) => {
                Err(CertificateError::NotValidForNameContext {
                    expected: name.to_owned(),
                    presented: list_presented_names(&certificate),
                }
                .into())
            }
            _ => Ok(()),
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.verify {
            TlsVerify::None => {}
            TlsVerify::Ca => self.verify_path(leaf, intermediates, None, now)?,
            TlsVerify::Full => self.verify_path(leaf, intermediates, Some(name), now)?,
            // The login verifies the certificate by the password; only the validity period is checked here.
            TlsVerify::Password => check_validity(&parse_certificate(leaf)?, now)?,
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let certificate = parse_certificate(cert)?;
        let (_, algorithms) = self
            .algorithms
            .mapping
            .iter()
            .find(|(scheme, _)| *scheme == signed.scheme)
            .ok_or(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme)?;
        let key = certificate.bare_key();
        let signature = signed.signature();
        if algorithms
            .iter()
            .any(|&algorithm| is_valid_signature(key, algorithm, message, signature))
        {
            return Ok(HandshakeSignatureValid::assertion());
        }
        Err(CertificateError::BadSignature.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(parse_certificate(cert)?.key);
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn parse_certificate<'a>(der: &'a CertificateDer<'_>) -> Result<Certificate<'a>, Error> {
    Certificate::parse(der).ok_or(CertificateError::BadEncoding.into())
}

fn check_validity(certificate: &Certificate<'_>, now: UnixTime) -> Result<(), CertificateError> {
    let validity = certificate
        .validity()
        .ok_or(CertificateError::BadEncoding)?;
    let seconds = now.as_secs() as i64;
    let unix_time = |seconds: i64| {
        UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds.max(0) as u64))
    };
    if seconds < validity.not_before {
        let not_before = unix_time(validity.not_before);
        return Err(CertificateError::NotValidYetContext {
            time: now,
            not_before,
        });
    }
    if seconds > validity.not_after {
        let not_after = unix_time(validity.not_after);
        return Err(CertificateError::ExpiredContext {
            time: now,
            not_after,
        });
    }
    Ok(())
}

/// Finds a path from a certificate that `webpki` refuses to a trusted one, by the rules of RFC 5280 that apply. Paths through an
/// authority with name constraints are refused.
struct Path<'a> {
    verifier: &'a Verifier,
    now: UnixTime,
    intermediates: Vec<Certificate<'a>>,
    remaining_checks: u32,
}

impl Path<'_> {
    fn verify(mut self, leaf: &Certificate<'_>) -> Result<(), CertificateError> {
        check_validity(leaf, self.now)?;
        if has_unknown_critical_extension(leaf) {
            return Err(CertificateError::UnhandledCriticalExtension);
        }
        if !leaf.may_serve() || !leaf.may_use_key(SERVER_KEY_USAGE) {
            return Err(CertificateError::InvalidPurpose);
        }
        let is_self_issued = leaf.issuer == leaf.subject;
        if is_self_issued
            && self
                .verifier
                .trusted
                .iter()
                .any(|known| known.as_ref() == leaf.der)
        {
            return Ok(());
        }
        if self.leads_to_root((leaf.der, leaf.issuer), 0) {
            return Ok(());
        }
        Err(CertificateError::UnknownIssuer)
    }

    /// Whether an authority on any path of this certificate constrains the names of the certificates below it.
    fn is_constrained(&self, leaf: &Certificate<'_>) -> bool {
        let is_issuer = |name: &[u8]| {
            leaf.issuer == name
                || self
                    .intermediates
                    .iter()
                    .any(|authority| authority.issuer == name)
        };
        let mut roots = self.verifier.roots.roots.iter();
        self.intermediates
            .iter()
            .any(|authority| authority.has_extension(NAME_CONSTRAINTS))
            || roots.any(|root| root.name_constraints.is_some() && is_issuer(&root.subject))
    }

    /// Whether there is a path from a certificate, given by its encoding and its issuer's name, to a root. `below`: the number of
    /// authorities below the certificate.
    fn leads_to_root(&mut self, (der, issuer): (&[u8], &[u8]), below: u8) -> bool {
        let Some(certificate) = Certificate::parse(der) else {
            return false;
        };
        for root in &self.verifier.roots.roots {
            if root.subject.as_ref() == issuer
                && root.name_constraints.is_none()
                && use_up_check(&mut self.remaining_checks)
                && certificate
                    .is_signed_by(&root.subject_public_key_info, self.verifier.algorithms.all)
            {
                return true;
            }
        }
        if below == MAX_AUTHORITIES {
            return false;
        }
        for index in 0..self.intermediates.len() {
            let authority = &self.intermediates[index];
            if authority.subject != issuer
                || !self.may_issue(authority, below)
                || !use_up_check(&mut self.remaining_checks)
            {
                continue;
            }
            let next = (authority.der, authority.issuer);
            if certificate.is_signed_by(authority.bare_key(), self.verifier.algorithms.all)
                && self.leads_to_root(next, below + 1)
            {
                return true;
            }
        }
        false
    }

    fn may_issue(&self, authority: &Certificate<'_>, below: u8) -> bool {
        let Some(limit) = authority.max_authorities_below() else {
            return false;
        };
        authority.version == 3
            && below <= limit
            && check_validity(authority, self.now).is_ok()
            && authority.may_serve()
            && authority.may_use_key(AUTHORITY_KEY_USAGE)
            && !authority.has_extension(NAME_CONSTRAINTS)
            && !has_unknown_critical_extension(authority)
    }
}

/// Use up one of the `remaining` checks; false if none is left after it.
fn use_up_check(remaining: &mut u32) -> bool {
    *remaining = remaining.saturating_sub(1);
    *remaining > 0
}

/// Whether the certificate has a critical extension that is unknown here.
fn has_unknown_critical_extension(certificate: &Certificate<'_>) -> bool {
    let known = [
        KEY_USAGE,
        ALTERNATIVE_NAMES,
        BASIC_CONSTRAINTS,
        NAME_CONSTRAINTS,
        EXTENDED_KEY_USAGE,
    ];
    let mut extensions = certificate.extensions.iter();
    extensions.any(|extension| extension.is_critical && !known.contains(&extension.id))
}

/// Whether the certificate is issued to `name`, as libpq decides it: an alternative name must be equal to it or a wildcard for it. If
/// there is no alternative name of its kind, the subject's common name counts, unless an authority constrains names
/// (`is_constrained`), because such constraints apply to alternative names only.
fn is_issued_to(
    certificate: &Certificate<'_>,
    name: &ServerName<'_>,
    is_constrained: bool,
) -> bool {
    let (text, address) = match name {
        ServerName::DnsName(name) => (name.as_ref().to_owned(), None),
        ServerName::IpAddress(address) => {
            let address = IpAddr::from(*address);
            (address.to_string(), Some(address))
        }
        _ => return false,
    };
    let host = text.strip_suffix('.').unwrap_or(&text).as_bytes();
    let matches_host = |pattern: &[u8]| matches_pattern(pattern, host, address.is_none());
    let names = certificate.alternative_names();
    let is_same_kind = |name: &Name<'_>| matches!(name, Name::Address(_)) == address.is_some();
    let has_alternative_name = names.iter().any(|name| match name {
        Name::Host(pattern) => matches_host(pattern),
        Name::Address(presented) => address == Some(*presented),
    });
    has_alternative_name
        || (!is_constrained
            && !names.iter().any(is_same_kind)
            && certificate.common_name().is_some_and(matches_host))
}

/// Whether `pattern` matches `host`: both are equal, or the pattern has at least three labels, the first of which is `*` and stands for
/// the host's first label.
fn matches_pattern(pattern: &[u8], host: &[u8], allows_wildcard: bool) -> bool {
    if pattern.eq_ignore_ascii_case(host) {
        return true;
    }
    let Some(suffix) = pattern.strip_prefix(b"*") else {
        return false;
    };
    let Some((label, tail)) = host.split_at_checked(host.len().wrapping_sub(suffix.len())) else {
        return false;
    };
    allows_wildcard
        && suffix.first() == Some(&b'.')
        && suffix[1..].contains(&b'.')
        && !label.is_empty()
        && !label.contains(&b'.')
        && suffix.eq_ignore_ascii_case(tail)
}

/// List the certificate's names, for messages.
fn list_presented_names(certificate: &Certificate<'_>) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let names = certificate.alternative_names();
    if names.is_empty() {
        return certificate.common_name().map(text).into_iter().collect();
    }
    let names = names.iter().map(|name| match name {
        Name::Host(host) => text(host),
        Name::Address(address) => address.to_string(),
    });
    names.collect()
}
