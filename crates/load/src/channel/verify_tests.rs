//! Tests which certificates are accepted, and for what names. They are made by `openssl`, like those of servers.

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
struct MadeCertificates {
    folder: PathBuf,
    certificates: HashMap<String, CertificateDer<'static>>,
}

/// Authorities, and below the certificates that they sign: name, issuer, subject, extensions in the syntax of openssl.
const AUTHORITIES: [(&str, &str, &str); 5] = [
    ("ca", "", "basicConstraints=critical,CA:TRUE"),
    ("stranger", "", "basicConstraints=critical,CA:TRUE"),
    (
        "between",
        "ca",
        "basicConstraints=critical,CA:TRUE,pathlen:0\nkeyUsage=critical,keyCertSign",
    ),
    ("below", "between", "basicConstraints=critical,CA:TRUE"),
    (
        "limited",
        "",
        "basicConstraints=critical,CA:TRUE\nnameConstraints=critical,permitted;DNS:example.com",
    ),
];
const SERVERS: [(&str, &str, &str, &str); 20] = [
    (
        "good",
        "ca",
        "ignored",
        "subjectAltName=DNS:localhost,IP:127.0.0.1",
    ),
    ("cn-only", "ca", "localhost", "basicConstraints=CA:FALSE"),
    ("cn-address", "ca", "127.0.0.1", "basicConstraints=CA:FALSE"),
    (
        "cn-and-name",
        "ca",
        "localhost",
        "subjectAltName=DNS:db.example.com",
    ),
    (
        "cn-and-address",
        "ca",
        "localhost",
        "subjectAltName=IP:10.0.0.1",
    ),
    (
        "cn-wild",
        "ca",
        "*.example.com",
        "basicConstraints=CA:FALSE",
    ),
    (
        "wild",
        "ca",
        "ignored",
        "subjectAltName=DNS:*.example.com,DNS:*.com,DNS:f*.example.org",
    ),
    (
        "address-as-name",
        "ca",
        "ignored",
        "subjectAltName=DNS:127.0.0.1",
    ),
    ("v1", "ca", "localhost", ""),
    ("v1-below", "between", "localhost", ""),
    ("v1-too-deep", "below", "localhost", ""),
    ("v1-of-a-server", "good", "localhost", ""),
    ("v1-of-a-stranger", "stranger", "localhost", ""),
    ("v1-limited", "limited", "localhost", ""),
    (
        "cn-limited",
        "limited",
        "localhost",
        "basicConstraints=CA:FALSE",
    ),
    (
        "authority",
        "ca",
        "localhost",
        "basicConstraints=critical,CA:TRUE",
    ),
    (
        "authority-of-clients",
        "ca",
        "localhost",
        "basicConstraints=critical,CA:TRUE\nextendedKeyUsage=clientAuth",
    ),
    (
        "authority-that-signs",
        "ca",
        "localhost",
        "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign",
    ),
    (
        "authority-with-a-rule",
        "ca",
        "localhost",
        "basicConstraints=critical,CA:TRUE\n1.2.3.4=critical,ASN1:NULL",
    ),
    ("client", "ca", "localhost", "extendedKeyUsage=clientAuth"),
];

static MADE: LazyLock<MadeCertificates> = LazyLock::new(|| {
    let folder = std::env::temp_dir().join(format!("howfar-verify-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(
        folder.join("none.cnf"),
        "[req]\ndistinguished_name=none\n[none]\n",
    )
    .expect("written");
    let mut made = MadeCertificates {
        folder,
        certificates: HashMap::new(),
    };
    for (name, issuer, extensions) in AUTHORITIES {
        made.sign(
            name,
            issuer,
            &format!("howfar {name}"),
            extensions,
            "P-256",
            "sha256",
        );
    }
    for (name, issuer, subject, extensions) in SERVERS {
        made.sign(name, issuer, subject, extensions, "P-256", "sha256");
    }
    // As in PostgreSQL's manual, twice with the same names.
    for name in ["self-signed", "self-signed-too"] {
        made.sign(
            name,
            "",
            "localhost",
            "basicConstraints=critical,CA:TRUE",
            "P-256",
            "sha256",
        );
    }
    for hash in ["sha256", "sha384", "sha512"] {
        made.sign(
            hash,
            "",
            "localhost",
            "basicConstraints=critical,CA:TRUE",
            "P-521",
            hash,
        );
    }
    std::fs::remove_dir_all(&made.folder).expect("removed");
    made
});

fn openssl(folder: &Path, arguments: &str) {
    let done = Command::new("openssl")
        .current_dir(folder)
        .args(arguments.split('|'))
        .output()
        .expect("openssl is installed");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{arguments}: {said}");
}

impl MadeCertificates {
    fn sign(
        &mut self,
        name: &str,
        issuer: &str,
        subject: &str,
        extensions: &str,
        curve: &str,
        hash: &str,
    ) {
        std::fs::write(self.folder.join(format!("{name}.ext")), extensions).expect("written");
        openssl(
            &self.folder,
            &format!(
                "req|-config|none.cnf|-newkey|ec|-pkeyopt|ec_paramgen_curve:{curve}|-nodes|-subj|/CN={subject}|-keyout|{name}.key|-out|{name}.csr"
            ),
        );
        let by = if issuer.is_empty() {
            format!("-signkey|{name}.key")
        } else {
            format!("-CA|{issuer}.crt|-CAkey|{issuer}.key|-CAcreateserial")
        };
        let rules = if extensions.is_empty() {
            String::new()
        } else {
            format!("|-extfile|{name}.ext")
        };
        openssl(
            &self.folder,
            &format!("x509|-req|-in|{name}.csr|{by}|-days|30|-{hash}|-out|{name}.crt{rules}"),
        );
        let made = CertificateDer::from_pem_file(self.folder.join(format!("{name}.crt")));
        self.certificates
            .insert(name.to_owned(), made.expect("a certificate"));
    }

    fn der(&self, name: &str) -> CertificateDer<'static> {
        self.certificates[name].clone()
    }
}

/// A time at which all certificates are valid.
fn now() -> UnixTime {
    LazyLock::force(&MADE);
    UnixTime::now()
}

fn verifier(verify: TlsVerify, trusted: &[&str]) -> Verifier {
    let trusted: Vec<_> = trusted.iter().map(|name| MADE.der(name)).collect();
    let mut roots = RootCertStore::empty();
    for certificate in &trusted {
        roots.add(certificate.clone()).expect("an authority");
    }
    Verifier::new(verify, roots, trusted, algorithms::supported())
}

/// The outcome of verifying a server's certificates `sent`, its own first, with those in `trusted`.
fn verify_at(
    verify: TlsVerify,
    trusted: &[&str],
    sent: &[&str],
    host: &str,
    now: UnixTime,
) -> Result<(), Error> {
    let sent: Vec<_> = sent.iter().map(|name| MADE.der(name)).collect();
    let name = ServerName::try_from(host.to_owned()).expect("a name");
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
fn a_certificate_of_version_1_is_believed_for_its_authority() {
    assert_eq!(
        Certificate::parse(&MADE.der("v1")).map(|one| one.version),
        Some(1)
    );
    assert!(is_accepted(&["ca"], &["v1"], "localhost"));
    assert!(is_accepted(&["ca"], &["v1-below", "between"], "localhost"));
    assert!(!is_accepted(&["ca"], &["v1"], "db.example.com"));
}

#[test]
fn a_certificate_of_version_1_is_refused_where_its_path_is_not_whole() {
    let unknown = Error::InvalidCertificate(CertificateError::UnknownIssuer);
    for (trusted, sent) in [
        (["stranger"], vec!["v1"]),
        (["ca"], vec!["v1-of-a-stranger"]),
        (["ca"], vec!["v1-of-a-stranger", "stranger"]),
        (["ca"], vec!["v1-below"]),
        (["ca"], vec!["v1-too-deep", "below", "between"]),
        (["ca"], vec!["v1-of-a-server", "good"]),
        (["limited"], vec!["v1-limited"]),
    ] {
        assert_eq!(verification_error(&trusted, &sent), unknown, "{sent:?}");
    }
    for (sent, name) in [
        (vec!["v1"], "localhost"),
        (vec!["v1-below", "between"], "localhost"),
    ] {
        let late = verify_at(TlsVerify::Ca, &["ca"], &sent, name, in_a_year());
        assert!(
            matches!(
                late,
                Err(Error::InvalidCertificate(
                    CertificateError::ExpiredContext { .. }
                ))
            ),
            "{late:?}"
        );
    }
}

/// [tls-4] As in PostgreSQL's manual: a self-signed certificate, marked as an authority's, and trusted as such.
#[test]
fn a_certificate_that_is_itself_trusted_needs_no_further_proof() {
    for verify in [TlsVerify::Ca, TlsVerify::Full] {
        let found = verify_at(
            verify,
            &["self-signed"],
            &["self-signed"],
            "localhost",
            now(),
        );
        assert_eq!(found, Ok(()), "{verify:?}");
    }
    assert!(
        is_accepted(&["ca"], &["authority"], "localhost"),
        "as OpenSSL has it"
    );
    assert!(!is_accepted(
        &["self-signed"],
        &["self-signed"],
        "db.example.com"
    ));
    let late = verify_at(
        TlsVerify::Ca,
        &["self-signed"],
        &["self-signed"],
        "localhost",
        in_a_year(),
    );
    assert!(late.is_err(), "it has expired");
}

#[test]
fn an_authority_that_is_not_to_be_a_server_is_refused() {
    for (trusted, sent) in [
        (["ca"], "self-signed"),
        (["self-signed"], "self-signed-too"), // another certificate with the same name
        (["stranger"], "authority"),
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
        verification_error(&["ca"], &["authority-with-a-rule"]),
        rule
    );
    assert!(matches!(
        verification_error(&["ca"], &["client"]),
        Error::InvalidCertificate(_)
    ));
}

/// [tls-5] Names are compared as in libpq.
#[test]
fn the_subject_counts_where_there_is_no_other_name_of_the_kind() {
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
    assert!(limited.is_err(), "the authority's limit binds no subject");
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
        let der = MADE.der(hash);
        let certificate = Certificate::parse(&der).expect("well formed");
        assert!(
            certificate.is_signed_by(certificate.bare_key(), algorithms.all),
            "{hash}"
        );
        let other = MADE.der(if hash == "sha256" { "sha384" } else { "sha256" });
        let other = Certificate::parse(&other).expect("well formed");
        assert!(
            !certificate.is_signed_by(other.bare_key(), algorithms.all),
            "{hash}"
        );
        assert!(is_accepted(&[hash], &[hash], "localhost"), "{hash}");
    }
}

/// With verification off nothing is checked; `password` leaves all checks but that of the validity period to the login.
#[test]
fn without_verification_any_certificate_will_do() {
    for sent in [
        "v1",
        "self-signed",
        "authority-with-a-rule",
        "v1-of-a-stranger",
    ] {
        for (verify, now, expected) in [
            (TlsVerify::None, in_a_year(), true),
            (TlsVerify::Password, now(), true),
            (TlsVerify::Password, in_a_year(), false),
        ] {
            let found = verify_at(verify, &[], &[sent], "elsewhere", now);
            assert_eq!(found.is_ok(), expected, "{sent} {verify:?}");
        }
    }
}

/// [load-8] RFC 5929: the hash of the certificate's own signature.
#[test]
fn the_end_point_is_hashed_as_the_certificate_is_signed() {
    for (name, length) in [("sha256", 32), ("sha384", 48), ("sha512", 64)] {
        let der = MADE.der(name);
        let end = Certificate::parse(&der).and_then(|one| one.end_point());
        assert_eq!(end.map(|digest| digest.as_ref().len()), Some(length));
    }
}
