//! Proves knowledge of a password. The server sends a scramble; most plugins answer with a proof that does not reveal the password.
//!
//! [`Exchange`] is one login attempt by one plugin, without I/O. The password itself is sent only if no third party can read it
//! (verified TLS, a Unix socket, or encryption with the server's public key), or with the user's consent, as [`Secrecy`] says.

use std::num::NonZeroU32;

use ed25519_dalek::hazmat::{ExpandedSecretKey, raw_sign};
use ed25519_dalek::{Signer, SigningKey};
use ring::pbkdf2;
use ring::rand::{SecureRandom, SystemRandom};
use rsa::pkcs8::DecodePublicKey;
use rsa::{Oaep, RsaPublicKey, rand_core::OsRng};
use sha1::{Digest, Sha1};
use sha2::{Sha256, Sha512};

use super::Malformed;
use crate::xor;

pub const NATIVE: &str = "mysql_native_password";
pub const CACHING_SHA2: &str = "caching_sha2_password";
/// The client's name for MariaDB's plugin `ed25519`.
pub const ED25519: &str = "client_ed25519";
/// MariaDB's plugin from version 11.6 on.
pub const PARSEC: &str = "parsec";
pub const CLEAR: &str = "mysql_clear_password";

/// First byte of an "auth more data" packet.
pub const MORE_DATA: u8 = 1;
/// Second byte of [`MORE_DATA`] from [`CACHING_SHA2`]: the server had cached the password's digest, and the login succeeded.
const FAST_DONE: u8 = 3;
/// Second byte of [`MORE_DATA`] from [`CACHING_SHA2`]: the server needs the password itself.
const FULL_NEEDED: u8 = 4;
/// Request for the server's public key.
const SEND_KEY: u8 = 2;
/// Bytes of the scramble of MySQL's plugins.
const SCRAMBLE_BYTES: usize = 20;
/// Bytes of the scramble of [`ED25519`] and [`PARSEC`].
const LONG_SCRAMBLE_BYTES: usize = 32;
/// Bytes of the salt of [`PARSEC`].
const SALT_BYTES: usize = 18;
/// Bytes of the key of [`PARSEC`].
const KEY_BYTES: usize = 32;

/// Who can read what the client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel<'a> {
    /// Verified TLS or a Unix socket: only the server.
    Private,
    /// TLS with an unverified certificate: whatever program answered.
    Unverified,
    /// Clear text: anyone on the path. `key` is the source of the server's public key.
    Open { key: KeySource<'a> },
}

/// Whether the password itself may be sent to a server that requests it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Secrecy<'a> {
    pub channel: Channel<'a>,
    /// The user consents to sending the password itself, which is required for [`CLEAR`] and for unverified certificates.
    pub cleartext: bool,
}

impl<'a> Secrecy<'a> {
    /// The secrecy of a channel without the user's consent.
    pub fn without_consent(channel: Channel<'a>) -> Self {
        Self {
            channel,
            cleartext: false,
        }
    }
}

/// Where the server's public key comes from when the channel is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySource<'a> {
    /// The key in PEM is known.
    Known(&'a str),
    /// The key is fetched from the server. A man in the middle could substitute another key.
    Fetch,
    None,
}

/// Why an exchange cannot continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthError {
    Malformed(Malformed),
    /// The plugin is not implemented.
    Plugin(String),
    /// The password would be sent in clear text, readable by anyone on the path.
    Clear(String),
    /// The password would be sent by a plugin that needs the user's consent.
    NoConsent(String),
    /// The server requests the password itself, and its certificate was not verified.
    Unverified,
    /// The server requests the password itself, and there is no key to encrypt it with.
    NoKey,
    /// The public key is invalid, or too short for the password.
    Key(String),
    /// The system provides no random bytes.
    NoRandomness,
}

impl From<Malformed> for AuthError {
    fn from(error: Malformed) -> Self {
        Self::Malformed(error)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plugin {
    Native,
    CachingSha2,
    Ed25519,
    Parsec,
    Clear,
}

impl Plugin {
    const ALL: [Self; 5] = [
        Self::Native,
        Self::CachingSha2,
        Self::Ed25519,
        Self::Parsec,
        Self::Clear,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Native => NATIVE,
            Self::CachingSha2 => CACHING_SHA2,
            Self::Ed25519 => ED25519,
            Self::Parsec => PARSEC,
            Self::Clear => CLEAR,
        }
    }
}

/// One login attempt by one plugin.
#[derive(Debug)]
pub struct Exchange {
    plugin: Plugin,
    scramble: Vec<u8>,
    /// The server's key was requested.
    key_requested: bool,
    /// The server's stored form of the password for [`PARSEC`]; None before the server has sent its salt.
    stored_key: Option<Vec<u8>>,
}

impl Exchange {
    /// Begin with the server's default plugin if that is [`NATIVE`] or [`CACHING_SHA2`], else with [`NATIVE`]: any other plugin may
    /// reveal the password or be unknown here. If the account has another plugin, the server requests a switch. Returns the first
    /// proof.
    pub fn with_default_plugin(
        plugin: &str,
        password: &str,
        scramble: &[u8],
    ) -> Result<(Self, Vec<u8>), AuthError> {
        let plugin = if plugin == CACHING_SHA2 {
            CACHING_SHA2
        } else {
            NATIVE
        };
        let secrecy = Secrecy::without_consent(Channel::Private);
        Self::with_plugin(plugin, password, scramble, secrecy)
    }

    /// Begin with the plugin that the server requests. Returns the first proof.
    pub fn with_plugin(
        plugin: &str,
        password: &str,
        scramble: &[u8],
        secrecy: Secrecy<'_>,
    ) -> Result<(Self, Vec<u8>), AuthError> {
        let plugin = Plugin::ALL
            .into_iter()
            .find(|known| known.name() == plugin)
            .ok_or_else(|| AuthError::Plugin(plugin.to_owned()))?;
        let length = match plugin {
            Plugin::Native | Plugin::CachingSha2 => SCRAMBLE_BYTES,
            Plugin::Ed25519 | Plugin::Parsec => LONG_SCRAMBLE_BYTES,
            Plugin::Clear => 0,
        };
        let scramble = scramble
            .get(..length)
            .ok_or(Malformed::Short("scramble"))?
            .to_vec();
        let secret = password.as_bytes();
        let proof = match plugin {
            Plugin::Native | Plugin::CachingSha2 if secret.is_empty() => Vec::new(),
            Plugin::Native => native_proof(secret, &scramble),
            Plugin::CachingSha2 => caching_sha2_proof(secret, &scramble),
            Plugin::Ed25519 => ed25519_proof(secret, &scramble),
            Plugin::Parsec => Vec::new(), // requests the salt
            Plugin::Clear => match secrecy {
                Secrecy {
                    channel: Channel::Open { .. },
                    ..
                } => return Err(AuthError::Clear(plugin.name().to_owned())),
                Secrecy {
                    cleartext: false, ..
                } => return Err(AuthError::NoConsent(plugin.name().to_owned())),
                _ => zero_terminated(secret),
            },
        };
        let exchange = Self {
            plugin,
            scramble,
            key_requested: false,
            stored_key: None,
        };
        Ok((exchange, proof))
    }

    /// The name of the plugin.
    pub fn plugin(&self) -> &'static str {
        self.plugin.name()
    }

    /// Handle more data from the server (`data` is a packet without its first byte). Returns the answer; `None` if there is nothing to
    /// send.
    pub fn handle_more_data(
        &mut self,
        data: &[u8],
        password: &str,
        secrecy: Secrecy<'_>,
    ) -> Result<Option<Vec<u8>>, AuthError> {
        if self.plugin == Plugin::Parsec {
            return self.prove_parsec(data, password).map(Some);
        }
        if self.plugin != Plugin::CachingSha2 {
            return Err(Malformed::Unexpected("more of a login that has no more").into());
        }
        match (data, secrecy.channel) {
            (key, Channel::Open { .. }) if self.key_requested => {
                self.key_requested = false;
                let text = std::str::from_utf8(key)
                    .map_err(|_| AuthError::Key("it is not text".to_owned()))?;
                self.encrypt_password(password, text).map(Some)
            }
            (&[FAST_DONE], _) => Ok(None),
            (&[FULL_NEEDED], Channel::Unverified) if !secrecy.cleartext => {
                Err(AuthError::Unverified)
            }
            (&[FULL_NEEDED], Channel::Private | Channel::Unverified) => {
                Ok(Some(zero_terminated(password.as_bytes())))
            }
            (&[FULL_NEEDED], Channel::Open { key }) => match key {
                KeySource::Known(text) => self.encrypt_password(password, text).map(Some),
                KeySource::Fetch => {
                    self.key_requested = true;
                    Ok(Some(vec![SEND_KEY]))
                }
                KeySource::None => Err(AuthError::NoKey),
            },
            _ => Err(Malformed::Unexpected("an unknown step of caching_sha2_password").into()),
        }
    }

    /// Make the proof of [`PARSEC`]: a nonce, and a signature of the scramble and the nonce with a key derived from the password and the
    /// server's salt.
    fn prove_parsec(&mut self, data: &[u8], password: &str) -> Result<Vec<u8>, AuthError> {
        let invalid_salt = Malformed::Unexpected("a salt of parsec out of its order or form");
        let Some((&[b'P', rounds @ 0..=3], salt)) = data.split_first_chunk::<2>() else {
            return Err(invalid_salt.into());
        };
        if salt.len() != SALT_BYTES || self.stored_key.is_some() {
            return Err(invalid_salt.into());
        }
        let mut nonce = [0; LONG_SCRAMBLE_BYTES];
        SystemRandom::new()
            .fill(&mut nonce)
            .map_err(|_| AuthError::NoRandomness)?;
        let key = parsec_key(password.as_bytes(), salt, rounds);
        self.stored_key = Some([data, key.verifying_key().as_bytes()].concat());
        let signature = key.sign(&[&self.scramble, &nonce[..]].concat());
        Ok([&nonce[..], &signature.to_bytes()].concat())
    }

    /// Whether `info`, the text of the server's OK, proves a certificate's SHA-256 `fingerprint`. MariaDB proves it from version 11.4 on
    /// with its stored form of the password. `scramble` is that of the greeting.
    pub fn proves_certificate(
        &self,
        password: &str,
        scramble: &[u8; SCRAMBLE_BYTES],
        fingerprint: &[u8],
        info: &[u8],
    ) -> bool {
        let secret = password.as_bytes();
        let stored_key = match self.plugin {
            _ if secret.is_empty() => return false, // an empty password proves nothing
            Plugin::Native => Sha1::digest(Sha1::digest(secret)).to_vec(),
            Plugin::Ed25519 => {
                let key = ExpandedSecretKey::from_bytes(&Sha512::digest(secret).into());
                ed25519_dalek::VerifyingKey::from(&key).as_bytes().to_vec()
            }
            Plugin::Parsec => self.stored_key.clone().unwrap_or_default(),
            Plugin::CachingSha2 | Plugin::Clear => return false,
        };
        // The server uses the last scramble that it sent for the native plugin: that of a native exchange, else the greeting's.
        let scramble = match self.plugin {
            Plugin::Native => &self.scramble[..],
            _ => scramble,
        };
        let proof = Sha256::new()
            .chain_update(stored_key)
            .chain_update(scramble)
            .chain_update(fingerprint)
            .finalize();
        let text = info.strip_prefix(&[1]).unwrap_or_default();
        format!("{proof:x}").as_bytes().eq_ignore_ascii_case(text)
    }

    /// Encrypt the zero-terminated password, xor the repeated scramble, with the server's key.
    fn encrypt_password(&self, password: &str, key: &str) -> Result<Vec<u8>, AuthError> {
        let key = RsaPublicKey::from_public_key_pem(key.trim_end_matches('\0'))
            .map_err(|error| AuthError::Key(error.to_string()))?;
        let mask = self.scramble.iter().copied().cycle();
        let masked = xor(&zero_terminated(password.as_bytes()), mask);
        key.encrypt(&mut OsRng, Oaep::new::<Sha1>(), &masked)
            .map_err(|error| AuthError::Key(error.to_string()))
    }
}

fn zero_terminated(password: &[u8]) -> Vec<u8> {
    [password, &[0]].concat()
}

/// SHA1(p) xor SHA1(scramble, SHA1(SHA1(p))).
fn native_proof(password: &[u8], scramble: &[u8]) -> Vec<u8> {
    let digest = Sha1::digest(password);
    let mask = Sha1::new()
        .chain_update(scramble)
        .chain_update(Sha1::digest(digest))
        .finalize();
    xor(&digest, mask)
}

/// SHA256(p) xor SHA256(SHA256(SHA256(p)), scramble).
fn caching_sha2_proof(password: &[u8], scramble: &[u8]) -> Vec<u8> {
    let digest = Sha256::digest(password);
    let mask = Sha256::new()
        .chain_update(Sha256::digest(digest))
        .chain_update(scramble)
        .finalize();
    xor(&digest, mask)
}

/// A signature of the scramble with the key SHA512(p): the password, of any length, replaces Ed25519's seed.
fn ed25519_proof(password: &[u8], scramble: &[u8]) -> Vec<u8> {
    let secret = ExpandedSecretKey::from_bytes(&Sha512::digest(password).into());
    let public = ed25519_dalek::VerifyingKey::from(&secret);
    raw_sign::<Sha512>(&secret, scramble, &public)
        .to_bytes()
        .to_vec()
}

fn parsec_key(password: &[u8], salt: &[u8], rounds: u8) -> SigningKey {
    let count = NonZeroU32::new(1024 << u32::from(rounds)).unwrap_or(NonZeroU32::MIN);
    let mut seed = [0; KEY_BYTES];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA512, count, salt, password, &mut seed);
    SigningKey::from_bytes(&seed)
}

#[cfg(test)]
mod tests {
    use rsa::RsaPrivateKey;
    use rsa::pkcs8::{EncodePublicKey, LineEnding};

    use super::*;

    const PASSWORD: &str = "correct horse";
    const NONCE: &[u8] = b"01234567890123456789\0";
    const FETCH: Secrecy<'_> = open(KeySource::Fetch);
    const PRIVATE: Secrecy<'_> = Secrecy {
        channel: Channel::Private,
        cleartext: false,
    };
    const UNVERIFIED: Secrecy<'_> = Secrecy {
        channel: Channel::Unverified,
        cleartext: false,
    };

    const fn open(key: KeySource<'_>) -> Secrecy<'_> {
        Secrecy {
            channel: Channel::Open { key },
            cleartext: false,
        }
    }

    const fn consented(secrecy: Secrecy<'_>) -> Secrecy<'_> {
        Secrecy {
            cleartext: true,
            ..secrecy
        }
    }

    /// Checks the proof as a server does, which stores the double digest and removes the mask with it.
    #[test]
    fn a_server_can_verify_a_native_proof() {
        let (password, scramble) = (PASSWORD.as_bytes(), &NONCE[..20]);
        let stored = Sha1::digest(Sha1::digest(password));
        let mask = Sha1::new()
            .chain_update(scramble)
            .chain_update(stored)
            .finalize();
        let digest = xor(&native_proof(password, scramble), mask);
        assert_eq!(Sha1::digest(digest), stored);
    }

    #[test]
    fn a_server_can_verify_a_sha2_proof() {
        let (password, scramble) = (PASSWORD.as_bytes(), &NONCE[..20]);
        let stored = Sha256::digest(Sha256::digest(password));
        let mask = Sha256::new()
            .chain_update(stored)
            .chain_update(scramble)
            .finalize();
        let digest = xor(&caching_sha2_proof(password, scramble), mask);
        assert_eq!(Sha256::digest(digest), stored);
    }

    /// Uses the example of `SET PASSWORD ... PASSWORD('secret')` with ed25519 in MariaDB's documentation.
    #[test]
    fn ed25519_gives_the_public_key_that_mariadb_stores() {
        use base64::Engine as _;
        let digest = Sha512::digest(b"secret");
        let secret = ExpandedSecretKey::from_bytes(&digest.into());
        let public = ed25519_dalek::VerifyingKey::from(&secret);
        let stored = base64::engine::general_purpose::STANDARD_NO_PAD.encode(public.as_bytes());
        assert_eq!(stored, "ZIgUREUg5PVgQ6LskhXmO+eZLS0nC8be6HPjYWR4YJY");
        let signature: [u8; 64] = ed25519_proof(b"secret", &[9; 32])
            .try_into()
            .expect("a signature has 64 bytes");
        public
            .verify_strict(&[9; 32], &signature.into())
            .expect("the signature is valid");
    }

    const SALT_MESSAGE: [u8; 20] = *b"P\0abcdefghijklmnopqr";

    /// [cli-12] Checks the proof as a server does, which stores the public key and has sent salt and scramble.
    #[test]
    fn a_server_can_verify_a_proof_of_parsec() {
        let scramble = [9; 32];
        let (mut exchange, first) = Exchange::with_plugin(PARSEC, PASSWORD, &scramble, PRIVATE)
            .expect("the plugin is implemented");
        assert!(first.is_empty(), "the first message only requests the salt");
        let answer = exchange
            .handle_more_data(&SALT_MESSAGE, PASSWORD, PRIVATE)
            .expect("the salt is valid")
            .expect("a salt is answered");
        let (nonce, signature) = answer
            .split_first_chunk::<32>()
            .expect("the answer begins with a nonce");
        let signature: [u8; 64] = signature.try_into().expect("a signature has 64 bytes");
        let public = parsec_key(PASSWORD.as_bytes(), &SALT_MESSAGE[2..], 0).verifying_key();
        public
            .verify_strict(&[scramble, *nonce].concat(), &signature.into())
            .expect("the signature is valid");
        let second = exchange.handle_more_data(&SALT_MESSAGE, PASSWORD, PRIVATE);
        assert!(
            matches!(second, Err(AuthError::Malformed(_))),
            "a salt comes only once"
        );
        for invalid in [
            &b"P\x04abcdefghijklmnopqr"[..],
            b"Q\0abcdefghijklmnopqr",
            b"P\0ab",
            b"",
        ] {
            let (mut exchange, _) = Exchange::with_plugin(PARSEC, PASSWORD, &scramble, PRIVATE)
                .expect("the plugin is implemented");
            let outcome = exchange.handle_more_data(invalid, PASSWORD, PRIVATE);
            assert!(
                matches!(outcome, Err(AuthError::Malformed(_))),
                "{invalid:?}"
            );
        }
    }

    /// [tls-9] The proof is SHA256(stored form of the password, scramble, fingerprint), in hex after a byte 1.
    #[test]
    fn a_certificate_is_proven_by_the_password() {
        let (scramble, fingerprint): ([u8; 20], _) = ([7; 20], [5; 32]);
        let native = || {
            Exchange::with_plugin(NATIVE, PASSWORD, &scramble, PRIVATE)
                .expect("the plugin is implemented")
                .0
        };
        let stored_key = Sha1::digest(Sha1::digest(PASSWORD));
        let digest = Sha256::digest([&stored_key[..], &scramble, &fingerprint].concat());
        let info = format!("\x01{digest:X}");
        let proves = |exchange: &Exchange, password, fingerprint: &[u8], info: &str| {
            exchange.proves_certificate(password, &scramble, fingerprint, info.as_bytes())
        };
        assert!(proves(&native(), PASSWORD, &fingerprint, &info));
        assert!(!proves(&native(), "another", &fingerprint, &info));
        assert!(
            !proves(&native(), PASSWORD, &[6; 32], &info),
            "another certificate"
        );
        for info in ["", "\x01", &info[1..], "Welcome"] {
            assert!(!proves(&native(), PASSWORD, &fingerprint, info), "{info:?}");
        }
        let (caching_sha2, _) = Exchange::with_default_plugin(CACHING_SHA2, PASSWORD, NONCE)
            .expect("the plugin is implemented");
        assert!(!proves(&caching_sha2, PASSWORD, &fingerprint, &info));
        let empty = Sha1::digest(Sha1::digest(""));
        let digest = Sha256::digest([&empty[..], &scramble, &fingerprint].concat());
        let info = format!("\x01{digest:x}");
        assert!(
            !proves(&native(), "", &fingerprint, &info),
            "an empty password proves nothing"
        );
    }

    #[test]
    fn an_empty_password_has_an_empty_proof() {
        for plugin in [NATIVE, CACHING_SHA2] {
            let (_, proof) = Exchange::with_default_plugin(plugin, "", NONCE)
                .expect("the plugin is implemented");
            assert!(proof.is_empty());
        }
    }

    #[test]
    fn an_unknown_plugin_is_replaced_as_default_and_refused_when_requested() {
        let (exchange, _) = Exchange::with_default_plugin("auth_gssapi_client", "", NONCE)
            .expect("the native plugin is used");
        assert_eq!(exchange.plugin(), NATIVE);
        let refused = Exchange::with_plugin("auth_gssapi_client", "", NONCE, PRIVATE);
        assert_eq!(
            refused.err(),
            Some(AuthError::Plugin("auth_gssapi_client".to_owned()))
        );
    }

    /// Tries `mysql_clear_password` and a full exchange of `caching_sha2_password`.
    #[test]
    fn the_password_is_sent_only_over_a_private_channel_or_with_consent() {
        let (sent, no_source) = (Some(b"correct horse\0".to_vec()), open(KeySource::None));
        let refused = |reason: &str| Err(reason.to_owned());
        let (no_consent, clear, unverified, no_key) = (
            refused("NoConsent"),
            refused("Clear"),
            refused("Unverified"),
            refused("NoKey"),
        );
        for (secrecy, clear_outcome, sha2_outcome) in [
            (PRIVATE, &no_consent, &Ok(sent.clone())),
            (consented(PRIVATE), &Ok(sent.clone()), &Ok(sent.clone())),
            (UNVERIFIED, &no_consent, &unverified),
            (consented(UNVERIFIED), &Ok(sent.clone()), &Ok(sent)),
            (no_source, &clear, &no_key),
            (consented(no_source), &clear, &no_key),
            (FETCH, &clear, &Ok(Some(vec![SEND_KEY]))),
            (consented(FETCH), &clear, &Ok(Some(vec![SEND_KEY]))),
        ] {
            let error_name = |error: AuthError| match error {
                AuthError::NoConsent(_) => "NoConsent".to_owned(),
                AuthError::Clear(_) => "Clear".to_owned(),
                other => format!("{other:?}"),
            };
            let proof = Exchange::with_plugin(CLEAR, PASSWORD, b"", secrecy)
                .map(|(_, proof)| Some(proof))
                .map_err(error_name);
            assert_eq!(&proof, clear_outcome, "{CLEAR}: {secrecy:?}");
            let begin = || {
                Exchange::with_default_plugin(CACHING_SHA2, PASSWORD, NONCE)
                    .expect("the plugin is implemented")
                    .0
            };
            let answer = begin()
                .handle_more_data(&[FULL_NEEDED], PASSWORD, secrecy)
                .map_err(error_name);
            assert_eq!(&answer, sha2_outcome, "{CACHING_SHA2}: {secrecy:?}");
            let cached = begin().handle_more_data(&[FAST_DONE], PASSWORD, secrecy);
            assert_eq!(
                cached,
                Ok(None),
                "a cached login does not need the password"
            );
        }
    }

    #[test]
    fn a_password_encrypted_with_a_fetched_key_can_be_decrypted_by_the_server() {
        let key = RsaPrivateKey::new(&mut OsRng, 1024).expect("1024 bits are enough");
        let text = key
            .to_public_key()
            .to_public_key_pem(LineEnding::LF)
            .expect("the key can be encoded");
        let (mut exchange, _) = Exchange::with_default_plugin(CACHING_SHA2, PASSWORD, NONCE)
            .expect("the plugin is implemented");
        assert_eq!(
            exchange.handle_more_data(&[FULL_NEEDED], PASSWORD, FETCH),
            Ok(Some(vec![SEND_KEY]))
        );
        let sent = exchange
            .handle_more_data(text.as_bytes(), PASSWORD, FETCH)
            .expect("the key is valid")
            .expect("a key is answered");
        let masked = key
            .decrypt(Oaep::new::<Sha1>(), &sent)
            .expect("the password is encrypted with this key");
        let unmasked = xor(&masked, NONCE[..20].iter().copied().cycle());
        assert_eq!(unmasked, b"correct horse\0");
        let refused = exchange.handle_more_data(b"no key", PASSWORD, FETCH);
        assert!(
            matches!(refused, Err(AuthError::Malformed(_))),
            "the key was not requested"
        );
    }

    #[test]
    fn an_invalid_key_is_refused() {
        let (mut exchange, _) = Exchange::with_default_plugin(CACHING_SHA2, PASSWORD, NONCE)
            .expect("the plugin is implemented");
        let secrecy = open(KeySource::Known("-----BEGIN NOTHING-----"));
        let refused = exchange.handle_more_data(&[FULL_NEEDED], PASSWORD, secrecy);
        assert!(matches!(refused, Err(AuthError::Key(_))));
    }
}
