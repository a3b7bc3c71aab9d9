//! Proofs of a password. The server chooses the method; all but one show knowledge of the password without sending it.
//!
//! [`Exchange`] is one login, without I/O. Every step that a server requests is bounded: it may come only once and in order, and
//! the work that it causes is limited.

use std::num::NonZeroU32;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest, Md5};
use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac, pbkdf2};

use super::frame::Fields;
use super::{Malformed, request};
use crate::mysql::auth::{Channel, Secrecy};

const SCRAM: &str = "SCRAM-SHA-256";
/// SCRAM with channel binding to the server's certificate.
const SCRAM_PLUS: &str = "SCRAM-SHA-256-PLUS";
/// Header of SCRAM with channel binding.
const BOUND_HEADER: &str = "p=tls-server-end-point,,";
/// Header of SCRAM that would be bound if the server had offered it.
const UNOFFERED_HEADER: &str = "y,,";
/// Header of SCRAM without binding, because this side cannot or should not bind.
const UNBOUND_HEADER: &str = "n,,";
/// Servers use 4096 by default. More than this would let any party that answers keep the client busy.
const MAX_ITERATIONS: u32 = 1_000_000;
/// Bytes of randomness in a nonce.
const NONCE_BYTES: usize = 18;
const KEY_BYTES: usize = digest::SHA256_OUTPUT_LEN;

/// Why a login cannot continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    Malformed(Malformed),
    /// The method is not implemented.
    Method(String),
    /// The password would be sent in clear text, readable by anyone on the path.
    Clear,
    /// The password would be sent to an unverified server without the user's consent.
    Unverified,
    /// Channel binding is required, and the server accepts logins without it.
    Unbound,
    /// Channel binding is required, and there is no certificate to bind to.
    NoBinding,
    /// The server requests a password and there is none.
    NoPassword,
    /// The server requests more rounds than are accepted here.
    Iterations(u32),
    /// The server did not prove that it knows the password.
    Impostor,
}

impl From<Malformed> for Refused {
    fn from(error: Malformed) -> Self {
        Self::Malformed(error)
    }
}

#[derive(Debug)]
enum State {
    /// No message was exchanged.
    Start,
    /// A proof was sent, and the server may only accept or refuse it.
    ProofSent,
    /// SCRAM's first message was sent, with this nonce and header.
    ScramBegun {
        nonce: String,
        header: &'static str,
    },
    /// SCRAM's second message was sent; the server must prove itself by this signature.
    ScramProofSent([u8; KEY_BYTES]),
    Accepted,
}

/// The channel binding of a login, which keeps a man in the middle from relaying it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Binding<'a> {
    /// The digest of the server's certificate (`tls-server-end-point` of RFC 5929); `None` without TLS, if not wanted, or if none
    /// is defined for the certificate.
    pub end_point: Option<&'a [u8]>,
    /// A login that is not bound is refused.
    pub required: bool,
}

/// One login.
#[derive(Debug)]
pub struct Exchange {
    state: State,
    method: &'static str,
    is_bound: bool,
}

impl Default for Exchange {
    fn default() -> Self {
        Self {
            state: State::Start,
            method: "none",
            is_bound: false,
        }
    }
}

impl Exchange {
    /// How the password was proved, in the words of `pg_hba.conf`; `none` if it was not requested.
    pub fn method(&self) -> &'static str {
        self.method
    }

    /// True once the server has accepted the login.
    pub fn is_accepted(&self) -> bool {
        matches!(self.state, State::Accepted)
    }

    /// Handle the `body` of an authentication message. Appends the answer to `out` if there is one.
    pub fn request(
        &mut self,
        body: &[u8],
        (user, password): (&str, &str),
        secrecy: Secrecy<'_>,
        binding: Binding<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        let mut fields = Fields(body);
        let code = fields.int32("authentication")?;
        if binding.required && !self.is_bound && matches!(code, 0 | 3 | 5) {
            return Err(Refused::Unbound);
        }
        if matches!(code, 3 | 5 | 10) && password.is_empty() {
            return Err(Refused::NoPassword);
        }
        let state = std::mem::replace(&mut self.state, State::ProofSent);
        self.state = match (code, state) {
            (0, State::Start | State::ProofSent) => State::Accepted,
            (3, State::Start) => {
                check_secrecy(secrecy)?;
                self.method = "password";
                request::password(out, password.as_bytes());
                State::ProofSent
            }
            (5, State::Start) => {
                let salt = fields.take(4, "salt")?;
                self.method = "md5";
                request::password(out, &md5(user, password, salt));
                State::ProofSent
            }
            (10, State::Start) => self.begin_scram(fields, binding, out)?,
            (11, State::ScramBegun { nonce, header }) => {
                let digest = binding
                    .end_point
                    .filter(|_| self.is_bound)
                    .unwrap_or_default();
                let channel = STANDARD.encode([header.as_bytes(), digest].concat());
                let (last, signature) = prove(&nonce, &channel, fields.0, password)?;
                request::sasl(out, last.as_bytes());
                State::ScramProofSent(signature)
            }
            (12, State::ScramProofSent(signature)) => {
                let proof = fields.0.strip_prefix(b"v=").ok_or(Refused::Impostor)?;
                let proof = STANDARD.decode(proof).map_err(|_| Refused::Impostor)?;
                if !is_same(&proof, &signature) {
                    return Err(Refused::Impostor);
                }
                State::ProofSent
            }
            // A server that skips its own proof does not know the password.
            (0, State::ScramBegun { .. } | State::ScramProofSent(_)) => {
                return Err(Refused::Impostor);
            }
            (0..=12, _) if IMPLEMENTED.contains(&code) => {
                return Err(Malformed::Unexpected("a step of a login out of its order").into());
            }
            (code, _) => return Err(Refused::Method(method_name(code))),
        };
        Ok(())
    }

    fn begin_scram(
        &mut self,
        mechanisms: Fields<'_>,
        binding: Binding<'_>,
        out: &mut Vec<u8>,
    ) -> Result<State, Refused> {
        let (mechanism, header) = choose_mechanism(parse_mechanisms(mechanisms)?, binding)?;
        self.method = "scram-sha-256";
        self.is_bound = header == BOUND_HEADER;
        let nonce = random_nonce()?;
        let first = format!("{header}{}", client_first_bare(&nonce));
        request::sasl_initial(out, mechanism, first.as_bytes());
        Ok(State::ScramBegun { nonce, header })
    }
}

const IMPLEMENTED: [i32; 6] = [0, 3, 5, 10, 11, 12];

fn method_name(code: i32) -> String {
    match code {
        2 => "Kerberos V5".to_owned(),
        7 | 8 => "GSSAPI".to_owned(),
        9 => "SSPI".to_owned(),
        _ => format!("authentication method {code}"),
    }
}

/// Check that the password itself may be sent.
fn check_secrecy(secrecy: Secrecy<'_>) -> Result<(), Refused> {
    match (secrecy.channel, secrecy.cleartext) {
        (Channel::Private, _) | (Channel::Unverified, true) => Ok(()),
        (Channel::Unverified, false) => Err(Refused::Unverified),
        (Channel::Open { .. }, _) => Err(Refused::Clear),
    }
}

/// "md5" and the hex digits of MD5(hex digits of MD5(password, user), salt).
fn md5(user: &str, password: &str, salt: &[u8]) -> Vec<u8> {
    let inner = Md5::new().chain_update(password).chain_update(user);
    let outer = Md5::new()
        .chain_update(format!("{:x}", inner.finalize()))
        .chain_update(salt);
    format!("md5{:x}", outer.finalize()).into_bytes()
}

/// Mechanisms of SCRAM that a server offers.
struct OfferedMechanisms {
    plain: bool,
    plus: bool,
}

/// Find the mechanisms of SCRAM in the list; each name ends with a zero byte, as does the list.
fn parse_mechanisms(mut fields: Fields<'_>) -> Result<OfferedMechanisms, Refused> {
    let mut names = Vec::new();
    let mut found = OfferedMechanisms {
        plain: false,
        plus: false,
    };
    loop {
        let name = fields.text("mechanism")?;
        found.plain |= name == SCRAM.as_bytes();
        found.plus |= name == SCRAM_PLUS.as_bytes();
        if name.is_empty() && (found.plain || found.plus) {
            return Ok(found);
        }
        if name.is_empty() {
            return Err(Refused::Method(format!("SASL {}", names.join(" or "))));
        }
        if names.len() < 4 {
            names.push(String::from_utf8_lossy(&name[..name.len().min(40)]).into_owned());
        }
    }
}

/// Choose the mechanism and its header as libpq does. If a server offers no binding over TLS, the header repeats that: the server
/// then detects whether a man in the middle has removed its offer.
fn choose_mechanism(
    offered: OfferedMechanisms,
    binding: Binding<'_>,
) -> Result<(&'static str, &'static str), Refused> {
    match (binding.end_point, offered) {
        (Some(_), OfferedMechanisms { plus: true, .. }) => Ok((SCRAM_PLUS, BOUND_HEADER)),
        (Some(_), _) if binding.required => Err(Refused::Unbound),
        (Some(_), _) => Ok((SCRAM, UNOFFERED_HEADER)),
        (None, _) if binding.required => Err(Refused::NoBinding),
        (None, OfferedMechanisms { plain: true, .. }) => Ok((SCRAM, UNBOUND_HEADER)),
        (None, _) => Err(Refused::Method(format!("SASL {SCRAM_PLUS}"))),
    }
}

fn random_nonce() -> Result<String, Refused> {
    let mut bytes = [0; NONCE_BYTES];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Refused::Method("randomness, which cannot be had,".to_owned()))?;
    Ok(STANDARD.encode(bytes))
}

/// The first message without its header. The name is empty: PostgreSQL takes the user of the session instead.
fn client_first_bare(nonce: &str) -> String {
    format!("n=,r={nonce}")
}

/// The contents of the server's first message.
struct Challenge<'a> {
    nonce: &'a str,
    salt: Vec<u8>,
    iterations: NonZeroU32,
}

impl<'a> Challenge<'a> {
    fn parse(message: &'a str, own_nonce: &str) -> Result<Self, Refused> {
        let odd = Malformed::Unexpected("a challenge of SCRAM that has not its form");
        let mut parts = message.split(',');
        let mut part = |name: &str| parts.next().and_then(|part| part.strip_prefix(name));
        let nonce = part("r=").ok_or(odd)?;
        let salt = part("s=").and_then(|salt| STANDARD.decode(salt).ok());
        let iterations = part("i=").and_then(|count| count.parse::<NonZeroU32>().ok());
        let (Some(salt), Some(iterations)) = (salt, iterations) else {
            return Err(odd.into());
        };
        if !nonce.starts_with(own_nonce) || nonce.len() == own_nonce.len() {
            return Err(Refused::Impostor);
        }
        if iterations.get() > MAX_ITERATIONS {
            return Err(Refused::Iterations(iterations.get()));
        }
        Ok(Self {
            nonce,
            salt,
            iterations,
        })
    }
}

/// The client's last message, and the signature that the server must then present (RFC 5802). `channel`: the header and the data of
/// the channel binding, in base64.
fn prove(
    own_nonce: &str,
    channel: &str,
    message: &[u8],
    password: &str,
) -> Result<(String, [u8; KEY_BYTES]), Refused> {
    let text = std::str::from_utf8(message)
        .map_err(|_| Malformed::Unexpected("a challenge of SCRAM that is not text"))?;
    let challenge = Challenge::parse(text, own_nonce)?;
    // A password that SASLprep refuses is used unchanged, as servers do.
    let prepared = stringprep::saslprep(password);
    let secret = prepared.as_deref().unwrap_or(password).as_bytes();
    let mut salted = [0; KEY_BYTES];
    pbkdf2::derive(
        pbkdf2::PBKDF2_HMAC_SHA256,
        challenge.iterations,
        &challenge.salt,
        secret,
        &mut salted,
    );
    let client_key = sign(&salted, b"Client Key");
    let stored_key = digest::digest(&digest::SHA256, &client_key);
    let without_proof = format!("c={channel},r={}", challenge.nonce);
    let signed = format!("{},{text},{without_proof}", client_first_bare(own_nonce));
    let signature = sign(stored_key.as_ref(), signed.as_bytes());
    let proof: Vec<u8> = client_key
        .iter()
        .zip(signature)
        .map(|(left, right)| left ^ right)
        .collect();
    let server = sign(&sign(&salted, b"Server Key"), signed.as_bytes());
    let last = format!("{without_proof},p={}", STANDARD.encode(proof));
    Ok((last, server))
}

fn sign(key: &[u8], text: &[u8]) -> [u8; KEY_BYTES] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text);
    let mut bytes = [0; KEY_BYTES];
    bytes.copy_from_slice(tag.as_ref());
    bytes
}

/// Compare in a time that does not depend on where the two differ.
fn is_same(left: &[u8], right: &[u8; KEY_BYTES]) -> bool {
    left.len() == KEY_BYTES
        && left
            .iter()
            .zip(right)
            .fold(0, |all, (one, other)| all | (one ^ other))
            == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mysql::auth::KeySource;

    const PRIVATE: Secrecy<'_> = Secrecy {
        channel: Channel::Private,
        cleartext: false,
    };
    const UNVERIFIED: Secrecy<'_> = Secrecy {
        channel: Channel::Unverified,
        cleartext: false,
    };
    const OPEN: Secrecy<'_> = Secrecy {
        channel: Channel::Open {
            key: KeySource::None,
        },
        cleartext: false,
    };

    const fn consented(secrecy: Secrecy<'_>) -> Secrecy<'_> {
        Secrecy {
            cleartext: true,
            ..secrecy
        }
    }

    fn message(code: i32, rest: &[u8]) -> Vec<u8> {
        [&code.to_be_bytes()[..], rest].concat()
    }

    fn step(exchange: &mut Exchange, code: i32, rest: &[u8]) -> Result<Vec<u8>, Refused> {
        bound_step(exchange, code, rest, Binding::default())
    }

    fn bound_step(
        exchange: &mut Exchange,
        code: i32,
        rest: &[u8],
        binding: Binding<'_>,
    ) -> Result<Vec<u8>, Refused> {
        let mut out = Vec::new();
        let account = ("user", "pencil");
        exchange.request(&message(code, rest), account, OPEN, binding, &mut out)?;
        Ok(out)
    }

    const BOTH: &[u8] = b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0";
    const PLAIN: &[u8] = b"SCRAM-SHA-256\0\0";
    const CERTIFICATE: Binding<'_> = Binding {
        end_point: Some(b"digest"),
        required: false,
    };

    /// [load-8] The header is the one that libpq sends in each case, and the proof is bound to the certificate.
    #[test]
    fn a_login_is_bound_where_the_server_offers_it() {
        for (offer, binding, mechanism, header, channel) in [
            (
                BOTH,
                CERTIFICATE,
                SCRAM_PLUS,
                BOUND_HEADER,
                &b"p=tls-server-end-point,,digest"[..],
            ),
            (PLAIN, CERTIFICATE, SCRAM, UNOFFERED_HEADER, b"y,,"),
            (BOTH, Binding::default(), SCRAM, UNBOUND_HEADER, b"n,,"),
        ] {
            let mut exchange = Exchange::default();
            let first = bound_step(&mut exchange, 10, offer, binding).expect("sent");
            let first = String::from_utf8_lossy(&first[5..]).into_owned();
            assert_eq!(first.split('\0').next(), Some(mechanism));
            assert!(first.contains(&format!("{header}n=,r=")), "{first}");
            let own = first.split("r=").nth(1).expect("a nonce").to_owned();
            let challenge = format!("r={own}server,s=c2FsdA==,i=1");
            let last = bound_step(&mut exchange, 11, challenge.as_bytes(), binding).expect("sent");
            let last = String::from_utf8_lossy(&last[5..]).into_owned();
            let expected = format!("c={},", STANDARD.encode(channel));
            assert!(last.starts_with(&expected), "{last}");
        }
    }

    /// [load-8] `channel_binding=require`: neither a server without certificates nor one that asks for less gets a login.
    #[test]
    fn a_binding_that_is_required_is_had_or_the_login_refused() {
        let required = Binding {
            required: true,
            ..CERTIFICATE
        };
        let without = Binding {
            end_point: None,
            ..required
        };
        for (code, rest, binding, refused) in [
            (10, PLAIN, required, Refused::Unbound),
            (10, BOTH, without, Refused::NoBinding),
            (0, b"".as_slice(), required, Refused::Unbound),
            (3, b"", required, Refused::Unbound),
            (5, b"salt", required, Refused::Unbound),
        ] {
            let found = bound_step(&mut Exchange::default(), code, rest, binding);
            assert_eq!(found, Err(refused), "{code}");
        }
        let mut exchange = Exchange::default();
        bound_step(&mut exchange, 10, BOTH, required).expect("sent");
        let skipped = bound_step(&mut exchange, 0, b"", required);
        assert_eq!(
            skipped,
            Err(Refused::Impostor),
            "a server that proves nothing"
        );
    }

    /// The example of RFC 7677, whose client names itself; PostgreSQL's clients do not, so the proof is checked by its parts.
    #[test]
    fn scram_agrees_with_its_rfc() {
        let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").expect("base64");
        let mut salted = [0; KEY_BYTES];
        let rounds = NonZeroU32::new(4096).expect("not 0");
        pbkdf2::derive(
            pbkdf2::PBKDF2_HMAC_SHA256,
            rounds,
            &salt,
            b"pencil",
            &mut salted,
        );
        let nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        let signed = format!(
            "n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r={nonce}"
        );
        let server = sign(&sign(&salted, b"Server Key"), signed.as_bytes());
        assert_eq!(
            STANDARD.encode(server),
            "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
        );
    }

    /// The server has only the stored key and the server key, as real servers do.
    #[test]
    fn a_server_can_verify_a_scram_proof_and_prove_itself() {
        let mut exchange = Exchange::default();
        let first =
            step(&mut exchange, 10, b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0").expect("sent");
        let first = String::from_utf8_lossy(&first).into_owned();
        let own = first.split("r=").nth(1).expect("a nonce").to_owned();
        let challenge = format!("r={own}server,s=c2FsdA==,i=4096");
        let last = step(&mut exchange, 11, challenge.as_bytes()).expect("sent");
        let last = String::from_utf8_lossy(&last[5..]).into_owned();
        let (without_proof, proof) = last.split_once(",p=").expect("a proof");
        assert_eq!(without_proof, format!("c=biws,r={own}server"));
        let signed = format!("n=,r={own},{challenge},{without_proof}");
        let mut salted = [0; KEY_BYTES];
        let rounds = NonZeroU32::new(4096).expect("not 0");
        pbkdf2::derive(
            pbkdf2::PBKDF2_HMAC_SHA256,
            rounds,
            b"salt",
            b"pencil",
            &mut salted,
        );
        let stored = digest::digest(&digest::SHA256, &sign(&salted, b"Client Key"));
        let proof = STANDARD.decode(proof).expect("base64");
        let signature = sign(stored.as_ref(), signed.as_bytes());
        let key: Vec<u8> = proof
            .iter()
            .zip(signature)
            .map(|(left, right)| left ^ right)
            .collect();
        assert_eq!(
            digest::digest(&digest::SHA256, &key).as_ref(),
            stored.as_ref()
        );
        let server = sign(&sign(&salted, b"Server Key"), signed.as_bytes());
        let proved = format!("v={}", STANDARD.encode(server));
        step(&mut exchange, 12, proved.as_bytes()).expect("believed");
        step(&mut exchange, 0, b"").expect("accepted");
        assert!(exchange.is_accepted());
        assert_eq!(exchange.method(), "scram-sha-256");
    }

    #[test]
    fn a_server_that_does_not_prove_itself_is_refused() {
        let begun = || {
            let mut exchange = Exchange::default();
            let first = step(&mut exchange, 10, b"SCRAM-SHA-256\0\0").expect("sent");
            let first = String::from_utf8_lossy(&first).into_owned();
            let own = first.split("r=").nth(1).expect("a nonce").to_owned();
            (exchange, own)
        };
        let (mut exchange, _) = begun();
        assert_eq!(step(&mut exchange, 0, b""), Err(Refused::Impostor));
        let (mut exchange, own) = begun();
        let same = format!("r={own},s=c2FsdA==,i=1");
        assert_eq!(
            step(&mut exchange, 11, same.as_bytes()),
            Err(Refused::Impostor)
        );
        let (mut exchange, own) = begun();
        let many = format!("r={own}x,s=c2FsdA==,i=4000000000");
        let refused = step(&mut exchange, 11, many.as_bytes());
        assert_eq!(refused, Err(Refused::Iterations(4_000_000_000)));
        for last in ["v=", "v=AAAA", "e=invalid-proof", ""] {
            let (mut exchange, own) = begun();
            let challenge = format!("r={own}x,s=c2FsdA==,i=1");
            step(&mut exchange, 11, challenge.as_bytes()).expect("sent");
            assert_eq!(
                step(&mut exchange, 12, last.as_bytes()),
                Err(Refused::Impostor)
            );
        }
    }

    /// `md5` || MD5(MD5("secret" || "howfar") || "abcd") by md5sum.
    #[test]
    fn md5_is_that_of_the_manual() {
        assert_eq!(
            md5("howfar", "secret", b"abcd"),
            b"md54e253c201ece6889b12e70fc5f3c549d"
        );
    }

    #[test]
    fn the_password_leaves_only_by_a_private_channel_or_by_consent() {
        for (secrecy, expected) in [
            (PRIVATE, Ok(())),
            (consented(PRIVATE), Ok(())),
            (UNVERIFIED, Err(Refused::Unverified)),
            (consented(UNVERIFIED), Ok(())),
            (OPEN, Err(Refused::Clear)),
            (consented(OPEN), Err(Refused::Clear)),
        ] {
            let (mut out, mut exchange) = (Vec::new(), Exchange::default());
            let none = Binding::default();
            let asked =
                exchange.request(&message(3, b""), ("u", "secret"), secrecy, none, &mut out);
            assert_eq!(asked, expected, "{secrecy:?}");
            assert_eq!(!out.is_empty(), expected.is_ok());
        }
    }

    #[test]
    fn steps_out_of_order_and_unknown_ones_are_refused() {
        for code in [11, 12] {
            let refused = step(&mut Exchange::default(), code, b"");
            assert!(matches!(refused, Err(Refused::Malformed(_))), "{code}");
        }
        let mut exchange = Exchange::default();
        step(&mut exchange, 5, b"salt").expect("sent");
        assert!(matches!(
            step(&mut exchange, 5, b"salt"),
            Err(Refused::Malformed(_))
        ));
        for code in [2, 7, 9, 77, -1] {
            let refused = step(&mut Exchange::default(), code, b"");
            assert!(matches!(refused, Err(Refused::Method(_))), "{code}");
        }
        let mut out = Vec::new();
        let none = Binding::default();
        let mut exchange = Exchange::default();
        let empty = exchange.request(&message(5, b"salt"), ("u", ""), PRIVATE, none, &mut out);
        assert_eq!(empty, Err(Refused::NoPassword));
    }
}
