//! Cipher suites and versions by name. Users write the names of OpenSSL or IANA; servers report those of OpenSSL.

use rustls::crypto::ring;
use rustls::{CipherSuite, ProtocolVersion, SupportedCipherSuite};

/// Suites with their names in OpenSSL, in the library's order of preference. The library's own names are those of IANA, but for the
/// prefix of TLS 1.3.
const NAMES: [(CipherSuite, &str); 9] = [
    (
        CipherSuite::TLS13_AES_256_GCM_SHA384,
        "TLS_AES_256_GCM_SHA384",
    ),
    (
        CipherSuite::TLS13_AES_128_GCM_SHA256,
        "TLS_AES_128_GCM_SHA256",
    ),
    (
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
        "TLS_CHACHA20_POLY1305_SHA256",
    ),
    (
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        "ECDHE-ECDSA-AES256-GCM-SHA384",
    ),
    (
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        "ECDHE-ECDSA-AES128-GCM-SHA256",
    ),
    (
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        "ECDHE-ECDSA-CHACHA20-POLY1305",
    ),
    (
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        "ECDHE-RSA-AES256-GCM-SHA384",
    ),
    (
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        "ECDHE-RSA-AES128-GCM-SHA256",
    ),
    (
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        "ECDHE-RSA-CHACHA20-POLY1305",
    ),
];

/// Find a suite by its name in OpenSSL or in IANA's registry.
pub(super) fn find(name: &str) -> Option<SupportedCipherSuite> {
    let (suite_id, _) = NAMES.into_iter().find(|(suite, openssl)| {
        let known_names = [Some(*openssl), suite.as_str()];
        known_names
            .iter()
            .flatten()
            .any(|known_name| known_name.eq_ignore_ascii_case(name))
    })?;
    ring::ALL_CIPHER_SUITES
        .iter()
        .copied()
        .find(|suite| suite.suite() == suite_id)
}

/// List OpenSSL's names of all suites, for messages.
pub(super) fn list() -> String {
    NAMES.map(|(_, openssl)| openssl).join(", ")
}

/// The name of a suite as servers report it.
pub(super) fn name(suite: SupportedCipherSuite) -> &'static str {
    NAMES
        .into_iter()
        .find(|(suite_id, _)| *suite_id == suite.suite())
        .map_or("unknown", |(_, openssl)| openssl)
}

/// The name of a version as servers report it.
pub(super) fn version(version: ProtocolVersion) -> &'static str {
    match version {
        ProtocolVersion::TLSv1_2 => "TLSv1.2",
        ProtocolVersion::TLSv1_3 => "TLSv1.3",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_of_the_library_has_its_names() {
        assert_eq!(ring::ALL_CIPHER_SUITES.len(), NAMES.len());
        for &suite in ring::ALL_CIPHER_SUITES {
            let same_suite = find(name(suite)).expect("a suite is found by its own name");
            assert_eq!(same_suite.suite(), suite.suite());
        }
    }

    #[test]
    fn suites_are_found_by_each_of_their_names() {
        for alias in [
            "TLS_AES_128_GCM_SHA256",
            "TLS13_AES_128_GCM_SHA256",
            "tls_aes_128_gcm_sha256",
        ] {
            assert_eq!(find(alias).map(name), Some("TLS_AES_128_GCM_SHA256"));
        }
        for alias in [
            "ECDHE-RSA-AES128-GCM-SHA256",
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        ] {
            assert_eq!(find(alias).map(name), Some("ECDHE-RSA-AES128-GCM-SHA256"));
        }
        assert!(
            find("AES128-SHA").is_none(),
            "no suite without forward secrecy"
        );
    }
}
