//! Proofs of a password. A server sends a scramble; most proofs show knowledge of the password without sending it.
//!
//! [`Exchange`] is one attempt by one plugin, without I/O. The password itself is sent only if no third party can read it (verified
//! TLS, a Unix socket, or encryption with the server's public key), or with the user's consent; [`Secrecy`] describes the case.

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

pub const NATIVE: &str = "mysql_native_password";
pub const CACHING_SHA2: &str = "caching_sha2_password";
/// MariaDB's `ed25519`, by the name of its client side.
pub const ED25519: &str = "client_ed25519";
/// MariaDB's plugin from version 11.6 on.
pub const PARSEC: &str = "parsec";
pub const CLEAR: &str = "mysql_clear_password";

/// First byte of an "auth more data" packet.
pub const MORE_DATA: u8 = 1;
/// Second byte of such a packet of [`CACHING_SHA2`]: the server knew the password's digest.
const FAST_DONE: u8 = 3;
/// Second byte of such a packet of [`CACHING_SHA2`]: the server needs the password itself.
const FULL_NEEDED: u8 = 4;
/// The request for the server's public key.
const SEND_KEY: u8 = 2;
/// Bytes of the scramble of MySQL's plugins.
const SCRAMBLE: usize = 20;
/// Bytes of the scramble of [`ED25519`] and [`PARSEC`].
const LONG_SCRAMBLE: usize = 32;
/// Bytes of the salt of [`PARSEC`].
const SALT_BYTES: usize = 18;
/// Bytes of the key of [`PARSEC`].
const KEY_BYTES: usize = 32;

/// Which parties can read what is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel<'a> {
    /// Verified TLS or a Unix socket: only the server can.
    Private,
    /// TLS with an unverified certificate: any party that answered can.
    Unverified,
    /// Any party on the path can; `key` is the source of the server's public key.
    Open { key: KeySource<'a> },
}

/// What may be sent when a server asks for more than a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Secrecy<'a> {
    pub channel: Channel<'a>,
    /// The user consents to sending the password itself: needed for [`CLEAR`], and if the certificate is not verified.
    pub cleartext: bool,
}

impl<'a> Secrecy<'a> {
    /// The secrecy of a channel without the user's consent.
    pub fn of(channel: Channel<'a>) -> Self {
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
    /// Fetched from the server. A man in the middle could substitute another key.
    Fetch,
    None,
}

/// Why an exchange cannot continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
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

impl From<Malformed> for Refused {
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

/// One attempt to log in by one plugin.
#[derive(Debug)]
pub struct Exchange {
    plugin: Plugin,
    scramble: Vec<u8>,
    /// The server's key was requested.
    key_requested: bool,
    /// What a server stores of the password for [`PARSEC`], known once it has sent its salt.
    stored_key: Option<Vec<u8>>,
}

impl Exchange {
    /// Begin with the server's default plugin. If the account has another plugin, the server requests a switch. Only [`NATIVE`] and
    /// [`CACHING_SHA2`] are tried: any other default may reveal the password or be unknown here, and the oldest plugin is used
    /// instead.
    pub fn first(
        plugin: &str,
        password: &str,
        scramble: &[u8],
    ) -> Result<(Self, Vec<u8>), Refused> {
        let supported = |name: &str| match name {
            NATIVE | CACHING_SHA2 => Some(name.to_owned()),
            _ => None,
        };
        let name = supported(plugin).unwrap_or_else(|| NATIVE.to_owned());
        Self::switch(&name, password, scramble, Secrecy::of(Channel::Private))
    }

    /// Begin with the plugin that the server requests. Returns the first proof.
    pub fn switch(
        plugin: &str,
        password: &str,
        scramble: &[u8],
        secrecy: Secrecy<'_>,
    ) -> Result<(Self, Vec<u8>), Refused> {
        let plugin = Plugin::ALL
            .into_iter()
            .find(|known| known.name() == plugin)
            .ok_or_else(|| Refused::Plugin(plugin.to_owned()))?;
        let length = match plugin {
            Plugin::Native | Plugin::CachingSha2 => SCRAMBLE,
            Plugin::Ed25519 | Plugin::Parsec => LONG_SCRAMBLE,
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
            Plugin::Parsec => Vec::new(), // asks for the salt
            Plugin::Clear => match secrecy {
                Secrecy {
                    channel: Channel::Open { .. },
                    ..
                } => return Err(Refused::Clear(plugin.name().to_owned())),
                Secrecy {
                    cleartext: false, ..
                } => return Err(Refused::NoConsent(plugin.name().to_owned())),
                _ => with_zero(secret),
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

    pub fn plugin(&self) -> &'static str {
        self.plugin.name()
    }

    /// Handle more data from the server (`data` is a packet without its first byte). `None` if there is nothing to send.
    pub fn more(
        &mut self,
        data: &[u8],
        password: &str,
        secrecy: Secrecy<'_>,
    ) -> Result<Option<Vec<u8>>, Refused> {
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
                    .map_err(|_| Refused::Key("it is not text".to_owned()))?;
                self.encrypt_password(password, text).map(Some)
            }
            (&[FAST_DONE], _) => Ok(None),
            (&[FULL_NEEDED], Channel::Unverified) if !secrecy.cleartext => Err(Refused::Unverified),
            (&[FULL_NEEDED], Channel::Private | Channel::Unverified) => {
                Ok(Some(with_zero(password.as_bytes())))
            }
            (&[FULL_NEEDED], Channel::Open { key }) => match key {
                KeySource::Known(text) => self.encrypt_password(password, text).map(Some),
                KeySource::Fetch => {
                    self.key_requested = true;
                    Ok(Some(vec![SEND_KEY]))
                }
                KeySource::None => Err(Refused::NoKey),
            },
            _ => Err(Malformed::Unexpected("an unknown step of caching_sha2_password").into()),
        }
    }

    /// The proof of [`PARSEC`]: our random bytes, and a signature of both sides' random bytes with a key derived from the password
    /// and the server's salt.
    fn prove_parsec(&mut self, data: &[u8], password: &str) -> Result<Vec<u8>, Refused> {
        let odd = Malformed::Unexpected("a salt of parsec out of its order or form");
        let Some((&[b'P', rounds @ 0..=3], salt)) = data.split_first_chunk::<2>() else {
            return Err(odd.into());
        };
        if salt.len() != SALT_BYTES || self.stored_key.is_some() {
            return Err(odd.into());
        }
        let mut nonce = [0; LONG_SCRAMBLE];
        SystemRandom::new()
            .fill(&mut nonce)
            .map_err(|_| Refused::NoRandomness)?;
        let key = parsec_key(password.as_bytes(), salt, rounds);
        self.stored_key = Some([data, key.verifying_key().as_bytes()].concat());
        let signature = key.sign(&[&self.scramble, &nonce[..]].concat());
        Ok([&nonce[..], &signature.to_bytes()].concat())
    }

    /// Whether `info`, which comes with the server's OK, proves a certificate's SHA-256 `fingerprint`. MariaDB does so from version
    /// 11.4 on, with what it stores of the password. `scramble` is that of the greeting.
    pub fn proves(
        &self,
        password: &str,
        scramble: &[u8; SCRAMBLE],
        fingerprint: &[u8],
        info: &[u8],
    ) -> bool {
        let secret = password.as_bytes();
        let stored_key = match self.plugin {
            _ if secret.is_empty() => return false, // anybody knows it
            Plugin::Native => Sha1::digest(Sha1::digest(secret)).to_vec(),
            Plugin::Ed25519 => {
                let key = ExpandedSecretKey::from_bytes(&Sha512::digest(secret).into());
                ed25519_dalek::VerifyingKey::from(&key).as_bytes().to_vec()
            }
            Plugin::Parsec => self.stored_key.clone().unwrap_or_default(),
            Plugin::CachingSha2 | Plugin::Clear => return false,
        };
        // The server uses the last scramble that it sent for its oldest plugin: that of a native exchange, else the greeting's.
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

    /// The password with its zero byte, xor the repeated scramble, encrypted with the server's key.
    fn encrypt_password(&self, password: &str, key: &str) -> Result<Vec<u8>, Refused> {
        let key = RsaPublicKey::from_public_key_pem(key.trim_end_matches('\0'))
            .map_err(|error| Refused::Key(error.to_string()))?;
        let masked: Vec<u8> = with_zero(password.as_bytes())
            .iter()
            .zip(self.scramble.iter().cycle())
            .map(|(left, right)| left ^ right)
            .collect();
        key.encrypt(&mut OsRng, Oaep::new::<Sha1>(), &masked)
            .map_err(|error| Refused::Key(error.to_string()))
    }
}

fn with_zero(password: &[u8]) -> Vec<u8> {
    [password, &[0]].concat()
}

/// SHA1(p) xor SHA1(scramble, SHA1(SHA1(p))).
fn native_proof(password: &[u8], scramble: &[u8]) -> Vec<u8> {
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
fn caching_sha2_proof(password: &[u8], scramble: &[u8]) -> Vec<u8> {
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

/// A signature of the scramble with the key SHA512(p): a password of any length replaces Ed25519's seed.
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

    /// The server stores the double digest and removes the mask with it: the test makes the server's check.
    #[test]
    fn a_server_can_verify_a_native_proof() {
        let (password, scramble) = (PASSWORD.as_bytes(), &NONCE[..20]);
        let stored = Sha1::digest(Sha1::digest(password));
        let mask = Sha1::new()
            .chain_update(scramble)
            .chain_update(stored)
            .finalize();
        let once: Vec<u8> = native_proof(password, scramble)
            .iter()
            .zip(mask)
            .map(|(left, right)| left ^ right)
            .collect();
        assert_eq!(Sha1::digest(once), stored);
    }

    #[test]
    fn a_server_can_verify_a_sha2_proof() {
        let (password, scramble) = (PASSWORD.as_bytes(), &NONCE[..20]);
        let stored = Sha256::digest(Sha256::digest(password));
        let mask = Sha256::new()
            .chain_update(stored)
            .chain_update(scramble)
            .finalize();
        let once: Vec<u8> = caching_sha2_proof(password, scramble)
            .iter()
            .zip(mask)
            .map(|(left, right)| left ^ right)
            .collect();
        assert_eq!(Sha256::digest(once), stored);
    }

    /// The example of `SET PASSWORD ... PASSWORD('secret')` with ed25519 from MariaDB's documentation.
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
            .expect("64 bytes");
        public
            .verify_strict(&[9; 32], &signature.into())
            .expect("a server can verify it");
    }

    const SALTED: [u8; 20] = *b"P\0abcdefghijklmnopqr";

    /// [cli-12] The server stores the public key, and has sent salt and scramble.
    #[test]
    fn a_server_can_verify_a_proof_of_parsec() {
        let scramble = [9; 32];
        let (mut exchange, first) =
            Exchange::switch(PARSEC, PASSWORD, &scramble, PRIVATE).expect("known");
        assert!(first.is_empty(), "the salt is asked for");
        let answer = exchange.more(&SALTED, PASSWORD, PRIVATE).expect("a salt");
        let answer = answer.expect("an answer");
        let (nonce, signature) = answer.split_first_chunk::<32>().expect("both parts");
        let signature: [u8; 64] = signature.try_into().expect("64 bytes");
        let public = parsec_key(PASSWORD.as_bytes(), &SALTED[2..], 0).verifying_key();
        public
            .verify_strict(&[scramble, *nonce].concat(), &signature.into())
            .expect("the server can verify it");
        let again = exchange.more(&SALTED, PASSWORD, PRIVATE);
        assert!(matches!(again, Err(Refused::Malformed(_))), "it comes once");
        for odd in [
            &b"P\x04abcdefghijklmnopqr"[..],
            b"Q\0abcdefghijklmnopqr",
            b"P\0ab",
            b"",
        ] {
            let (mut exchange, _) =
                Exchange::switch(PARSEC, PASSWORD, &scramble, PRIVATE).expect("known");
            let refused = exchange.more(odd, PASSWORD, PRIVATE);
            assert!(matches!(refused, Err(Refused::Malformed(_))), "{odd:?}");
        }
    }

    /// [tls-9] The proof is SHA256(what the server stores of the password, the scramble, the fingerprint), in hex after a byte 1.
    #[test]
    fn a_certificate_is_proven_by_the_password() {
        let (scramble, fingerprint): ([u8; 20], _) = ([7; 20], [5; 32]);
        let native = || {
            Exchange::switch(NATIVE, PASSWORD, &scramble, PRIVATE)
                .expect("known")
                .0
        };
        let stored_key = Sha1::digest(Sha1::digest(PASSWORD));
        let digest = Sha256::digest([&stored_key[..], &scramble, &fingerprint].concat());
        let info = format!("\x01{digest:X}");
        let proves = |exchange: &Exchange, password, fingerprint: &[u8], info: &str| {
            exchange.proves(password, &scramble, fingerprint, info.as_bytes())
        };
        assert!(proves(&native(), PASSWORD, &fingerprint, &info));
        assert!(!proves(&native(), "another", &fingerprint, &info));
        assert!(
            !proves(&native(), PASSWORD, &[6; 32], &info),
            "of another certificate"
        );
        for info in ["", "\x01", &info[1..], "Welcome"] {
            assert!(!proves(&native(), PASSWORD, &fingerprint, info), "{info:?}");
        }
        let (cached, _) = Exchange::first(CACHING_SHA2, PASSWORD, NONCE).expect("known");
        assert!(!proves(&cached, PASSWORD, &fingerprint, &info));
        let empty = Sha1::digest(Sha1::digest(""));
        let digest = Sha256::digest([&empty[..], &scramble, &fingerprint].concat());
        let known = format!("\x01{digest:x}");
        assert!(
            !proves(&native(), "", &fingerprint, &known),
            "anybody knows no password"
        );
    }

    #[test]
    fn no_password_needs_no_proof() {
        for plugin in [NATIVE, CACHING_SHA2] {
            let (_, proof) = Exchange::first(plugin, "", NONCE).expect("known");
            assert!(proof.is_empty());
        }
    }

    #[test]
    fn an_unknown_default_is_begun_by_the_oldest_and_refused_when_it_is_meant() {
        let (exchange, _) = Exchange::first("auth_gssapi_client", "", NONCE).expect("begun");
        assert_eq!(exchange.plugin(), NATIVE);
        let refused = Exchange::switch("auth_gssapi_client", "", NONCE, PRIVATE);
        assert_eq!(
            refused.err(),
            Some(Refused::Plugin("auth_gssapi_client".to_owned()))
        );
    }

    /// What is sent to a server that requests the password by `mysql_clear_password`, or by a full exchange of
    /// `caching_sha2_password`.
    #[test]
    fn the_password_leaves_only_by_a_private_channel_or_by_consent() {
        let (sent, none) = (Some(b"correct horse\0".to_vec()), open(KeySource::None));
        let refused = |by: &str| Err(by.to_owned());
        let (no_consent, clear, unverified, no_key) = (
            refused("NoConsent"),
            refused("Clear"),
            refused("Unverified"),
            refused("NoKey"),
        );
        for (secrecy, by_clear, by_sha2) in [
            (PRIVATE, &no_consent, &Ok(sent.clone())),
            (consented(PRIVATE), &Ok(sent.clone()), &Ok(sent.clone())),
            (UNVERIFIED, &no_consent, &unverified),
            (consented(UNVERIFIED), &Ok(sent.clone()), &Ok(sent)),
            (none, &clear, &no_key),
            (consented(none), &clear, &no_key),
            (FETCH, &clear, &Ok(Some(vec![SEND_KEY]))),
            (consented(FETCH), &clear, &Ok(Some(vec![SEND_KEY]))),
        ] {
            let named = |error: Refused| match error {
                Refused::NoConsent(_) => "NoConsent".to_owned(),
                Refused::Clear(_) => "Clear".to_owned(),
                other => format!("{other:?}"),
            };
            let proof = Exchange::switch(CLEAR, PASSWORD, b"", secrecy)
                .map(|(_, proof)| Some(proof))
                .map_err(named);
            assert_eq!(&proof, by_clear, "{CLEAR}: {secrecy:?}");
            let (mut exchange, _) = Exchange::first(CACHING_SHA2, PASSWORD, NONCE).expect("known");
            let more = exchange
                .more(&[FULL_NEEDED], PASSWORD, secrecy)
                .map_err(named);
            assert_eq!(&more, by_sha2, "{CACHING_SHA2}: {secrecy:?}");
            let (mut exchange, _) = Exchange::first(CACHING_SHA2, PASSWORD, NONCE).expect("known");
            let cached = exchange.more(&[FAST_DONE], PASSWORD, secrecy);
            assert_eq!(cached, Ok(None), "the cached way needs no password");
        }
    }

    #[test]
    fn a_fetched_key_hides_the_password_and_the_server_can_find_it() {
        let key = RsaPrivateKey::new(&mut OsRng, 1024).expect("a key");
        let text = key
            .to_public_key()
            .to_public_key_pem(LineEnding::LF)
            .expect("a text");
        let (mut exchange, _) = Exchange::first(CACHING_SHA2, PASSWORD, NONCE).expect("known");
        assert_eq!(
            exchange.more(&[FULL_NEEDED], PASSWORD, FETCH),
            Ok(Some(vec![SEND_KEY]))
        );
        let sent = exchange
            .more(text.as_bytes(), PASSWORD, FETCH)
            .expect("a key")
            .expect("an answer");
        let masked = key
            .decrypt(Oaep::new::<Sha1>(), &sent)
            .expect("ours to read");
        let unmasked: Vec<u8> = masked
            .iter()
            .zip(NONCE[..20].iter().cycle())
            .map(|(left, right)| left ^ right)
            .collect();
        assert_eq!(unmasked, b"correct horse\0");
        let refused = exchange.more(b"no key", PASSWORD, FETCH);
        assert!(
            matches!(refused, Err(Refused::Malformed(_))),
            "a key that nobody asked for"
        );
    }

    #[test]
    fn what_is_no_key_is_told() {
        let (mut exchange, _) = Exchange::first(CACHING_SHA2, PASSWORD, NONCE).expect("known");
        let known = open(KeySource::Known("-----BEGIN NOTHING-----"));
        let refused = exchange.more(&[FULL_NEEDED], PASSWORD, known);
        assert!(matches!(refused, Err(Refused::Key(_))));
    }
}
