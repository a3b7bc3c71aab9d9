//! Proofs of a password. A server sends a scramble; the proof shows knowledge of the password without sending it.

use sha1::{Digest, Sha1};
use sha2::Sha256;

pub const NATIVE: &str = "mysql_native_password";
pub const CACHING_SHA2: &str = "caching_sha2_password";

/// Second byte of an "auth more data" packet of [`CACHING_SHA2`]: the server knew the password's digest.
pub const FAST_DONE: u8 = 3;
/// The same: the server needs the password itself.
pub const FULL_NEEDED: u8 = 4;
/// First byte of such a packet.
pub const MORE_DATA: u8 = 1;

/// The proof that `plugin` asks for; `None` when the plugin is not known here.
pub fn proof(plugin: &str, password: &str, scramble: &[u8]) -> Option<Vec<u8>> {
    match plugin {
        NATIVE | CACHING_SHA2 if password.is_empty() => Some(Vec::new()),
        NATIVE => Some(native(password.as_bytes(), scramble)),
        CACHING_SHA2 => Some(caching_sha2(password.as_bytes(), scramble)),
        _ => None,
    }
}

/// SHA1(p) xor SHA1(scramble, SHA1(SHA1(p))).
fn native(password: &[u8], scramble: &[u8]) -> Vec<u8> {
    let once = Sha1::digest(password);
    let twice = Sha1::digest(once);
    let mask = Sha1::new()
        .chain_update(scramble)
        .chain_update(twice)
        .finalize();
    once.iter()
        .zip(mask)
        .map(|(left, right)| left ^ right)
        .collect()
}

/// SHA256(p) xor SHA256(SHA256(SHA256(p)), scramble).
fn caching_sha2(password: &[u8], scramble: &[u8]) -> Vec<u8> {
    let once = Sha256::digest(password);
    let twice = Sha256::digest(once);
    let mask = Sha256::new()
        .chain_update(twice)
        .chain_update(scramble)
        .finalize();
    once.iter()
        .zip(mask)
        .map(|(left, right)| left ^ right)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server keeps the double digest and undoes the mask with it: that is the check it makes.
    #[test]
    fn a_server_can_verify_a_native_proof() {
        let (password, scramble) = (
            b"correct horse".as_slice(),
            b"01234567890123456789".as_slice(),
        );
        let stored = Sha1::digest(Sha1::digest(password));
        let mask = Sha1::new()
            .chain_update(scramble)
            .chain_update(stored)
            .finalize();
        let once: Vec<u8> = native(password, scramble)
            .iter()
            .zip(mask)
            .map(|(left, right)| left ^ right)
            .collect();
        assert_eq!(Sha1::digest(once), stored);
    }

    #[test]
    fn a_server_can_verify_a_sha2_proof() {
        let (password, scramble) = (
            b"correct horse".as_slice(),
            b"01234567890123456789".as_slice(),
        );
        let stored = Sha256::digest(Sha256::digest(password));
        let mask = Sha256::new()
            .chain_update(stored)
            .chain_update(scramble)
            .finalize();
        let once: Vec<u8> = caching_sha2(password, scramble)
            .iter()
            .zip(mask)
            .map(|(left, right)| left ^ right)
            .collect();
        assert_eq!(Sha256::digest(once), stored);
    }

    #[test]
    fn no_password_needs_no_proof() {
        assert_eq!(proof(NATIVE, "", b"x"), Some(Vec::new()));
        assert_eq!(proof(CACHING_SHA2, "", b"x"), Some(Vec::new()));
        assert_eq!(proof("client_ed25519", "", b"x"), None);
    }
}
