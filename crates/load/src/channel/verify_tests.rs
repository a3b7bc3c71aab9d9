//! Tests which certificates are accepted, and for which names. `openssl` makes them, as it does those of servers.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use howfar_contract::jobs::TlsVerify;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, Error, RootCertStore};

use super::algorithms;
use super::certificate::Certificate;
use super::verify::Verifier;

/// Certificates by name, and the directory that holds them.
struct TestCertificates {
    folder: PathBuf,
    certificates: HashMap<String, CertificateDer<'static>>,
}

/// Certificates by name, issuer (empty if self-signed), subject, and extensions in the syntax of openssl, separated by `&`.
const TABLE: &str = "
    ca||howfar ca|basicConstraints=critical,CA:TRUE
    untrusted||howfar untrusted|basicConstraints=critical,CA:TRUE
    intermediate|ca|howfar intermediate|basicConstraints=critical,CA:TRUE,pathlen:0&keyUsage=critical,keyCertSign
    below|intermediate|howfar below|basicConstraints=critical,CA:TRUE
    limited||howfar limited|basicConstraints=critical,CA:TRUE&nameConstraints=critical,permitted;DNS:example.com
    good|ca|ignored|subjectAltName=DNS:localhost,IP:127.0.0.1
    cn-only|ca|localhost|basicConstraints=CA:FALSE
    cn-address|ca|127.0.0.1|basicConstraints=CA:FALSE
    cn-and-name|ca|localhost|subjectAltName=DNS:db.example.com
    cn-and-address|ca|localhost|subjectAltName=IP:10.0.0.1
    cn-wild|ca|*.example.com|basicConstraints=CA:FALSE
    wild|ca|ignored|subjectAltName=DNS:*.example.com,DNS:*.com,DNS:f*.example.org
    address-as-name|ca|ignored|subjectAltName=DNS:127.0.0.1
    v1|ca|localhost|
    v1-below|intermediate|localhost|
    v1-too-deep|below|localhost|
    v1-of-a-server|good|localhost|
    v1-untrusted|untrusted|localhost|
    v1-limited|limited|localhost|
    cn-limited|limited|localhost|basicConstraints=CA:FALSE
    authority|ca|localhost|basicConstraints=critical,CA:TRUE
    authority-of-clients|ca|localhost|basicConstraints=critical,CA:TRUE&extendedKeyUsage=clientAuth
    authority-that-signs|ca|localhost|basicConstraints=critical,CA:TRUE&keyUsage=critical,keyCertSign
    authority-with-unknown-extension|ca|localhost|basicConstraints=critical,CA:TRUE&1.2.3.4=critical,ASN1:NULL
    client|ca|localhost|extendedKeyUsage=clientAuth
    self-signed||localhost|basicConstraints=critical,CA:TRUE
    self-signed-too||localhost|basicConstraints=critical,CA:TRUE
    sha256||localhost|basicConstraints=critical,CA:TRUE
    sha384||localhost|basicConstraints=critical,CA:TRUE
    sha512||localhost|basicConstraints=critical,CA:TRUE";

static CERTIFICATES: LazyLock<TestCertificates> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("howfar-verify-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    std::fs::write(
        folder.join("none.cnf"),
        "[req]\ndistinguished_name=none\n[none]\n",
    )
    .expect("the file can be written");
    let mut certificates = TestCertificates {
        folder,
        certificates: HashMap::new(),
    };
    for line in TABLE.trim().lines() {
        let fields: Vec<&str> = line.trim().split('|').collect();
        let [name, issuer, subject, extensions] = fields[..] else {
            panic!("{line} does not have four fields");
        };
        certificates.sign(name, issuer, subject, &extensions.replace('&', "\n"));
    }
    std::fs::remove_dir_all(&certificates.folder).expect("the folder can be removed");
    certificates
});

fn openssl(folder: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .current_dir(folder)
        .args(arguments.split('|'))
        .output()
        .expect("openssl is installed");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments}: {stderr}");
}

impl TestCertificates {
    fn sign(&mut self, name: &str, issuer: &str, subject: &str, extensions: &str) {
        let (curve, hash) = match name {
            "sha256" | "sha384" | "sha512" => ("P-521", name),
            _ => ("P-256", "sha256"),
        };
        std::fs::write(self.folder.join(format!("{name}.ext")), extensions)
            .expect("the file can be written");
        openssl(
            &self.folder,
            &format!(
                "req|-config|none.cnf|-newkey|ec|-pkeyopt|ec_paramgen_curve:{curve}|-nodes|-subj|/CN={subject}|-keyout|{name}.key|-out|{name}.csr"
            ),
        );
        let signer = if issuer.is_empty() {
            format!("-signkey|{name}.key")
        } else {
            format!("-CA|{issuer}.crt|-CAkey|{issuer}.key|-CAcreateserial")
        };
        let extension_option = if extensions.is_empty() {
            String::new()
        } else {
            format!("|-extfile|{name}.ext")
        };
        openssl(
            &self.folder,
            &format!(
                "x509|-req|-in|{name}.csr|{signer}|-days|30|-{hash}|-out|{name}.crt{extension_option}"
            ),
        );
        let certificate = CertificateDer::from_pem_file(self.folder.join(format!("{name}.crt")));
        self.certificates.insert(
            name.to_owned(),
            certificate.expect("openssl wrote a certificate"),
        );
    }

    fn der(&self, name: &str) -> CertificateDer<'static> {
        self.certificates[name].clone()
    }
}

/// A time at which all certificates are valid.
fn now() -> UnixTime {
    LazyLock::force(&CERTIFICATES);
    UnixTime::now()
}

fn verifier(verify: TlsVerify, trusted: &[&str]) -> Verifier {
    let trusted: Vec<_> = trusted.iter().map(|name| CERTIFICATES.der(name)).collect();
    let mut roots = RootCertStore::empty();
    for certificate in &trusted {
        roots
            .add(certificate.clone())
            .expect("the certificate can be a root");
    }
    Verifier {
        verify,
        roots,
        trusted,
        algorithms: algorithms::supported(),
    }
}

/// The outcome of verifying a server's certificates `sent`, its own first, with those in `trusted`.
fn verify_at(
    verify: TlsVerify,
    trusted: &[&str],
    sent: &[&str],
    host: &str,
    now: UnixTime,
) -> Result<(), Error> {
    let sent: Vec<_> = sent.iter().map(|name| CERTIFICATES.der(name)).collect();
    let name = ServerName::try_from(host.to_owned()).expect("the host name is valid");
    verifier(verify, trusted)
        .verify_server_cert(&sent[0], &sent[1..], &name, &[], now)
        .map(|_| ())
}

fn is_accepted(trusted: &[&str], sent: &[&str], host: &str) -> bool {
    verify_at(TlsVerify::Full, trusted, sent, host, now()).is_ok()
}

/// The error of certificates that are refused although names are not compared.
fn verification_error(trusted: &[&str], sent: &[&str]) -> Error {
    verify_at(TlsVerify::Ca, trusted, sent, "localhost", now()).expect_err(sent[0])
}

const IN_A_YEAR: Duration = Duration::from_secs(366 * 86_400);

fn in_a_year() -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(now().as_secs()) + IN_A_YEAR)
}

/// [tls-3] Certificates of version 1, signed by a trusted authority and by one below it.
#[test]
fn a_version_1_certificate_of_a_trusted_authority_is_accepted() {
    assert_eq!(
        Certificate::parse(&CERTIFICATES.der("v1")).map(|certificate| certificate.version),
        Some(1)
    );
    assert!(is_accepted(&["ca"], &["v1"], "localhost"));
    assert!(is_accepted(
        &["ca"],
        &["v1-below", "intermediate"],
        "localhost"
    ));
    assert!(!is_accepted(&["ca"], &["v1"], "db.example.com"));
}

#[test]
fn a_version_1_certificate_without_a_complete_path_is_refused() {
    let unknown = Error::InvalidCertificate(CertificateError::UnknownIssuer);
    for (trusted, sent) in [
        (["untrusted"], vec!["v1"]),
        (["ca"], vec!["v1-untrusted"]),
        (["ca"], vec!["v1-untrusted", "untrusted"]),
        (["ca"], vec!["v1-below"]),
        (["ca"], vec!["v1-too-deep", "below", "intermediate"]),
        (["ca"], vec!["v1-of-a-server", "good"]),
        (["limited"], vec!["v1-limited"]),
    ] {
        assert_eq!(verification_error(&trusted, &sent), unknown, "{sent:?}");
    }
    for (sent, name) in [
        (vec!["v1"], "localhost"),
        (vec!["v1-below", "intermediate"], "localhost"),
    ] {
        let expired = verify_at(TlsVerify::Ca, &["ca"], &sent, name, in_a_year());
        assert!(
            matches!(
                expired,
                Err(Error::InvalidCertificate(
                    CertificateError::ExpiredContext { .. }
                ))
            ),
            "{expired:?}"
        );
    }
}

/// [tls-4] As in PostgreSQL's manual: a self-signed certificate, marked as an authority's, and trusted as such.
#[test]
fn a_certificate_that_is_itself_trusted_is_accepted() {
    for verify in [TlsVerify::Ca, TlsVerify::Full] {
        let outcome = verify_at(
            verify,
            &["self-signed"],
            &["self-signed"],
            "localhost",
            now(),
        );
        assert_eq!(outcome, Ok(()), "{verify:?}");
    }
    assert!(
        is_accepted(&["ca"], &["authority"], "localhost"),
        "OpenSSL accepts it too"
    );
    assert!(!is_accepted(
        &["self-signed"],
        &["self-signed"],
        "db.example.com"
    ));
    let expired = verify_at(
        TlsVerify::Ca,
        &["self-signed"],
        &["self-signed"],
        "localhost",
        in_a_year(),
    );
    assert!(expired.is_err(), "the certificate has expired");
}

#[test]
fn an_authority_that_may_not_be_a_server_is_refused() {
    for (trusted, sent) in [
        (["ca"], "self-signed"),
        (["self-signed"], "self-signed-too"), // another certificate with the same name
        (["untrusted"], "authority"),
    ] {
        let unknown = Error::InvalidCertificate(CertificateError::UnknownIssuer);
        assert_eq!(verification_error(&trusted, &[sent]), unknown, "{sent}");
    }
    let purpose = Error::InvalidCertificate(CertificateError::InvalidPurpose);
    assert_eq!(
        verification_error(&["ca"], &["authority-of-clients"]),
        purpose
    );
    assert_eq!(
        verification_error(&["ca"], &["authority-that-signs"]),
        purpose
    );
    let rule = Error::InvalidCertificate(CertificateError::UnhandledCriticalExtension);
    assert_eq!(
        verification_error(&["ca"], &["authority-with-unknown-extension"]),
        rule
    );
    assert!(matches!(
        verification_error(&["ca"], &["client"]),
        Error::InvalidCertificate(_)
    ));
}

/// [tls-5] Names are compared as in libpq.
#[test]
fn the_common_name_counts_without_an_alternative_name_of_its_kind() {
    for (certificate, host, expected) in [
        ("good", "localhost", true),
        ("good", "LOCALHOST", true),
        ("good", "127.0.0.1", true),
        ("good", "127.0.0.2", false),
        ("cn-only", "localhost", true),
        ("cn-only", "localhost.example.com", false),
        ("cn-address", "127.0.0.1", true),
        ("cn-and-name", "localhost", false),
        ("cn-and-name", "db.example.com", true),
        ("cn-and-address", "localhost", true),
        ("cn-wild", "db.example.com", true),
        ("cn-wild", "a.db.example.com", false),
        ("wild", "db.example.com", true),
        ("wild", "example.com", false),
        ("wild", "db.com", false),
        ("wild", "foo.example.org", false),
        ("address-as-name", "127.0.0.1", true),
    ] {
        assert_eq!(
            is_accepted(&["ca"], &[certificate], host),
            expected,
            "{certificate} for {host}"
        );
    }
    let limited = verify_at(
        TlsVerify::Full,
        &["limited"],
        &["cn-limited"],
        "localhost",
        now(),
    );
    assert!(
        limited.is_err(),
        "name constraints do not apply to the subject, so it does not count"
    );
    assert_eq!(
        verify_at(TlsVerify::Ca, &["ca"], &["cn-only"], "elsewhere", now()),
        Ok(())
    );
}

/// [tls-6] Signatures with P-521, made by OpenSSL with each hash.
#[test]
fn signatures_by_p521_are_verified() {
    let algorithms = algorithms::supported();
    for hash in ["sha256", "sha384", "sha512"] {
        let der = CERTIFICATES.der(hash);
        let certificate = Certificate::parse(&der).expect("the certificate is well formed");
        assert!(
            certificate.is_signed_by(certificate.bare_key(), algorithms.all),
            "{hash}"
        );
        let other = CERTIFICATES.der(if hash == "sha256" { "sha384" } else { "sha256" });
        let other = Certificate::parse(&other).expect("the certificate is well formed");
        assert!(
            !certificate.is_signed_by(other.bare_key(), algorithms.all),
            "{hash}"
        );
        assert!(is_accepted(&[hash], &[hash], "localhost"), "{hash}");
    }
}

/// With verification off nothing is checked; `password` leaves all checks but that of the validity period to the login.
#[test]
fn without_verification_any_certificate_is_accepted() {
    for sent in [
        "v1",
        "self-signed",
        "authority-with-unknown-extension",
        "v1-untrusted",
    ] {
        for (verify, now, expected) in [
            (TlsVerify::None, in_a_year(), true),
            (TlsVerify::Password, now(), true),
            (TlsVerify::Password, in_a_year(), false),
        ] {
            let outcome = verify_at(verify, &[], &[sent], "elsewhere", now);
            assert_eq!(outcome.is_ok(), expected, "{sent} {verify:?}");
        }
    }
}

/// [load-8] RFC 5929: the hash of the certificate's own signature.
#[test]
fn the_end_point_digest_has_the_hash_of_the_signature() {
    for (name, length) in [("sha256", 32), ("sha384", 48), ("sha512", 64)] {
        let der = CERTIFICATES.der(name);
        let digest =
            Certificate::parse(&der).and_then(|certificate| certificate.end_point_digest());
        assert_eq!(digest.map(|digest| digest.as_ref().len()), Some(length));
    }
}
