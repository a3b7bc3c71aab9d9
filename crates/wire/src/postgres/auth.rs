//! Proves knowledge of a password. The server chooses the method; only one of the methods sends the password itself.
//!
//! [`Exchange`] is one login, without I/O. A server may request each step only once and in order, and the work that a step causes is
//! limited.

use std::num::NonZeroU32;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest, Md5};
use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac, pbkdf2};

use super::frame::Fields;
use super::{Malformed, request};
use crate::mysql::auth::{Channel, Secrecy};
use crate::xor;

const SCRAM: &str = "SCRAM-SHA-256";
/// SCRAM with channel binding to the server's certificate.
const SCRAM_PLUS: &str = "SCRAM-SHA-256-PLUS";
/// Header of SCRAM with channel binding.
const BOUND_HEADER: &str = "p=tls-server-end-point,,";
/// Header of SCRAM without binding, because the server did not offer it.
const UNOFFERED_HEADER: &str = "y,,";
/// Header of SCRAM without binding, because the client cannot or should not bind.
const UNBOUND_HEADER: &str = "n,,";
/// Maximum iterations of PBKDF2, so that a malicious server cannot keep the client busy. Servers use 4096 by default.
const MAX_ITERATIONS: u32 = 1_000_000;
/// Bytes of randomness in a nonce.
const NONCE_BYTES: usize = 18;
const KEY_BYTES: usize = digest::SHA256_OUTPUT_LEN;

/// Why a login cannot continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuthError {
    Malformed(Malformed),
    /// The method is not implemented.
    Method(String),
    /// The password would be sent in clear text, readable by anyone on the path.
    Clear,
    /// The password would be sent to an unverified server, and the user has not consented.
    Unverified,
    /// Channel binding is required, and the server accepts logins without it.
    Unbound,
    /// Channel binding is required, and there is no certificate to bind to.
    NoBinding,
    /// The server requests a password and there is none.
    NoPassword,
    /// The server requests more than the maximum of iterations.
    Iterations(u32),
    /// The server did not prove that it knows the password.
    Impostor,
}

impl From<Malformed> for AuthError {
    fn from(error: Malformed) -> Self {
        Self::Malformed(error)
    }
}

#[derive(Debug)]
enum State {
    /// No message was exchanged.
    Start,
    /// A proof was sent, which the server can only accept or refuse.
    ProofSent,
    /// SCRAM's first message was sent, with this nonce and header.
    ScramBegun {
        nonce: String,
        header: &'static str,
    },
    /// SCRAM's second message was sent; the server must prove with this signature that it knows the password.
    ScramProofSent([u8; KEY_BYTES]),
    Accepted,
}

/// The channel binding of a login, which keeps a man in the middle from relaying it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Binding<'a> {
    /// The digest of the server's certificate (`tls-server-end-point` of RFC 5929); `None` without TLS, if binding is disabled, or if no
    /// digest is defined for the certificate.
    pub end_point: Option<&'a [u8]>,
    /// Refuse a login that is not bound.
    pub required: bool,
}

/// One login attempt.
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
    /// The authentication method as named in `pg_hba.conf`; `none` if no password was requested.
    pub fn method(&self) -> &'static str {
        self.method
    }

    /// True once the server has accepted the login.
    pub fn is_accepted(&self) -> bool {
        matches!(self.state, State::Accepted)
    }

    /// Handle the `body` of an authentication message. Appends the answer to `out` if there is one.
    pub fn handle_request(
        &mut self,
        body: &[u8],
        (user, password): (&str, &str),
        secrecy: Secrecy<'_>,
        binding: Binding<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), AuthError> {
        let mut fields = Fields(body);
        let code = fields.int32("authentication")?;
        if binding.required && !self.is_bound && matches!(code, 0 | 3 | 5) {
            return Err(AuthError::Unbound);
        }
        if matches!(code, 3 | 5 | 10) && password.is_empty() {
            return Err(AuthError::NoPassword);
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
                let (message, signature) = make_proof(&nonce, &channel, fields.0, password)?;
                request::sasl(out, message.as_bytes());
                State::ScramProofSent(signature)
            }
            (12, State::ScramProofSent(signature)) => {
                let proof = fields.0.strip_prefix(b"v=").ok_or(AuthError::Impostor)?;
                let proof = STANDARD.decode(proof).map_err(|_| AuthError::Impostor)?;
                if !is_equal_in_constant_time(&proof, &signature) {
                    return Err(AuthError::Impostor);
                }
                State::ProofSent
            }
            // A server that omits its own proof may not know the password.
            (0, State::ScramBegun { .. } | State::ScramProofSent(_)) => {
                return Err(AuthError::Impostor);
            }
            (0..=12, _) if IMPLEMENTED.contains(&code) => {
                return Err(Malformed::Unexpected("a step of a login out of its order").into());
            }
            (code, _) => return Err(AuthError::Method(method_name(code))),
        };
        Ok(())
    }

    fn begin_scram(
        &mut self,
        mechanisms: Fields<'_>,
        binding: Binding<'_>,
        out: &mut Vec<u8>,
    ) -> Result<State, AuthError> {
        let (mechanism, header) = choose_mechanism(parse_mechanisms(mechanisms)?, binding)?;
        self.method = "scram-sha-256";
        self.is_bound = header == BOUND_HEADER;
        let nonce = random_nonce()?;
        let message = format!("{header}{}", client_first_bare(&nonce));
        request::sasl_initial(out, mechanism, message.as_bytes());
        Ok(State::ScramBegun { nonce, header })
    }
}

/// Codes of the authentication messages that are implemented.
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
fn check_secrecy(secrecy: Secrecy<'_>) -> Result<(), AuthError> {
    match (secrecy.channel, secrecy.cleartext) {
        (Channel::Private, _) | (Channel::Unverified, true) => Ok(()),
        (Channel::Unverified, false) => Err(AuthError::Unverified),
        (Channel::Open { .. }, _) => Err(AuthError::Clear),
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

/// Mechanisms of SCRAM that a server offers: without and with channel binding.
struct OfferedMechanisms {
    plain: bool,
    plus: bool,
}

/// Find the mechanisms of SCRAM in the list. Each name ends with a zero byte; an empty name ends the list.
fn parse_mechanisms(mut fields: Fields<'_>) -> Result<OfferedMechanisms, AuthError> {
    let mut names = Vec::new();
    let mut offered = OfferedMechanisms {
        plain: false,
        plus: false,
    };
    loop {
        let name = fields.text("mechanism")?;
        offered.plain |= name == SCRAM.as_bytes();
        offered.plus |= name == SCRAM_PLUS.as_bytes();
        if name.is_empty() && (offered.plain || offered.plus) {
            return Ok(offered);
        }
        if name.is_empty() {
            return Err(AuthError::Method(format!("SASL {}", names.join(" or "))));
        }
        if names.len() < 4 {
            names.push(String::from_utf8_lossy(&name[..name.len().min(40)]).into_owned());
        }
    }
}

/// Choose the mechanism and its header as libpq does. If a server offers no binding over TLS, the header says so, which lets the server
/// detect that a man in the middle has removed its offer.
fn choose_mechanism(
    offered: OfferedMechanisms,
    binding: Binding<'_>,
) -> Result<(&'static str, &'static str), AuthError> {
    match (binding.end_point, offered) {
        (Some(_), OfferedMechanisms { plus: true, .. }) => Ok((SCRAM_PLUS, BOUND_HEADER)),
        (Some(_), _) if binding.required => Err(AuthError::Unbound),
        (Some(_), _) => Ok((SCRAM, UNOFFERED_HEADER)),
        (None, _) if binding.required => Err(AuthError::NoBinding),
        (None, OfferedMechanisms { plain: true, .. }) => Ok((SCRAM, UNBOUND_HEADER)),
        (None, _) => Err(AuthError::Method(format!("SASL {SCRAM_PLUS}"))),
    }
}

fn random_nonce() -> Result<String, AuthError> {
    let mut bytes = [0; NONCE_BYTES];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| AuthError::Method("randomness, which cannot be had,".to_owned()))?;
    Ok(STANDARD.encode(bytes))
}

/// The first message without its header. The user name is empty: PostgreSQL uses that of the session.
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
    fn parse(message: &'a str, client_nonce: &str) -> Result<Self, AuthError> {
        let malformed = Malformed::Unexpected("a challenge of SCRAM that has not its form");
        let mut parts = message.split(',');
        let mut part = |name: &str| parts.next().and_then(|part| part.strip_prefix(name));
        let nonce = part("r=").ok_or(malformed)?;
        let salt = part("s=").and_then(|salt| STANDARD.decode(salt).ok());
        let iterations = part("i=").and_then(|count| count.parse::<NonZeroU32>().ok());
        let (Some(salt), Some(iterations)) = (salt, iterations) else {
            return Err(malformed.into());
        };
        if !nonce.starts_with(client_nonce) || nonce.len() == client_nonce.len() {
            return Err(AuthError::Impostor);
        }
        if iterations.get() > MAX_ITERATIONS {
            return Err(AuthError::Iterations(iterations.get()));
        }
        Ok(Self {
            nonce,
            salt,
            iterations,
        })
    }
}

/// Make the client's last message, and the signature that the server must then send (RFC 5802). `channel`: the header and the data of
/// the channel binding, in base64.
fn make_proof(
    client_nonce: &str,
    channel: &str,
    message: &[u8],
    password: &str,
) -> Result<(String, [u8; KEY_BYTES]), AuthError> {
    let text = std::str::from_utf8(message)
        .map_err(|_| Malformed::Unexpected("a challenge of SCRAM that is not text"))?;
    let challenge = Challenge::parse(text, client_nonce)?;
    // A password that SASLprep refuses is used unchanged, as by servers.
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
    let signed = format!("{},{text},{without_proof}", client_first_bare(client_nonce));
    let signature = sign(stored_key.as_ref(), signed.as_bytes());
    let proof = STANDARD.encode(xor(&client_key, signature));
    let server_signature = sign(&sign(&salted, b"Server Key"), signed.as_bytes());
    Ok((format!("{without_proof},p={proof}"), server_signature))
}

fn sign(key: &[u8], text: &[u8]) -> [u8; KEY_BYTES] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text);
    let mut bytes = [0; KEY_BYTES];
    bytes.copy_from_slice(tag.as_ref());
    bytes
}

/// Compare in a time that does not depend on the position of a difference.
fn is_equal_in_constant_time(left: &[u8], right: &[u8; KEY_BYTES]) -> bool {
    left.len() == KEY_BYTES
        && left
            .iter()
            .zip(right)
            .fold(0, |difference, (left, right)| difference | (left ^ right))
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

    /// The nonce in the client's first message.
    fn first_nonce(message: &str) -> String {
        let nonce = message.split("r=").nth(1);
        nonce.expect("the message has a nonce").to_owned()
    }

    fn step(exchange: &mut Exchange, code: i32, rest: &[u8]) -> Result<Vec<u8>, AuthError> {
        bound_step(exchange, code, rest, Binding::default())
    }

    fn bound_step(
        exchange: &mut Exchange,
        code: i32,
        rest: &[u8],
        binding: Binding<'_>,
    ) -> Result<Vec<u8>, AuthError> {
        let mut out = Vec::new();
        let account = ("user", "pencil");
        exchange.handle_request(&message(code, rest), account, OPEN, binding, &mut out)?;
        Ok(out)
    }

    const PLAIN_AND_PLUS: &[u8] = b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0";
    const PLAIN: &[u8] = b"SCRAM-SHA-256\0\0";
    const CERTIFICATE: Binding<'_> = Binding {
        end_point: Some(b"digest"),
        required: false,
    };

    /// [load-8] The header is that of libpq in each case, and the proof is bound to the certificate.
    #[test]
    fn a_login_is_bound_if_the_server_offers_binding() {
        for (offer, binding, mechanism, header, channel) in [
            (
                PLAIN_AND_PLUS,
                CERTIFICATE,
                SCRAM_PLUS,
                BOUND_HEADER,
                &b"p=tls-server-end-point,,digest"[..],
            ),
            (PLAIN, CERTIFICATE, SCRAM, UNOFFERED_HEADER, b"y,,"),
            (
                PLAIN_AND_PLUS,
                Binding::default(),
                SCRAM,
                UNBOUND_HEADER,
                b"n,,",
            ),
        ] {
            let mut exchange = Exchange::default();
            let first =
                bound_step(&mut exchange, 10, offer, binding).expect("the offer is accepted");
            let first = String::from_utf8_lossy(&first[5..]).into_owned();
            assert_eq!(first.split('\0').next(), Some(mechanism));
            assert!(first.contains(&format!("{header}n=,r=")), "{first}");
            let nonce = first_nonce(&first);
            let challenge = format!("r={nonce}server,s=c2FsdA==,i=1");
            let last = bound_step(&mut exchange, 11, challenge.as_bytes(), binding)
                .expect("the challenge is valid");
            let last = String::from_utf8_lossy(&last[5..]).into_owned();
            let expected = format!("c={},", STANDARD.encode(channel));
            assert!(last.starts_with(&expected), "{last}");
        }
    }

    /// [load-8] `channel_binding=require`: a server without certificate is refused, and so is one that requests a weaker login.
    #[test]
    fn a_login_without_the_required_binding_is_refused() {
        let required = Binding {
            required: true,
            ..CERTIFICATE
        };
        let uncertified = Binding {
            end_point: None,
            ..required
        };
        for (code, rest, binding, error) in [
            (10, PLAIN, required, AuthError::Unbound),
            (10, PLAIN_AND_PLUS, uncertified, AuthError::NoBinding),
            (0, b"".as_slice(), required, AuthError::Unbound),
            (3, b"", required, AuthError::Unbound),
            (5, b"salt", required, AuthError::Unbound),
        ] {
            let outcome = bound_step(&mut Exchange::default(), code, rest, binding);
            assert_eq!(outcome, Err(error), "{code}");
        }
        let mut exchange = Exchange::default();
        bound_step(&mut exchange, 10, PLAIN_AND_PLUS, required).expect("the binding is offered");
        let skipped = bound_step(&mut exchange, 0, b"", required);
        assert_eq!(
            skipped,
            Err(AuthError::Impostor),
            "the server omitted its proof"
        );
    }

    /// Computes the example of RFC 7677 from the parts of the proof, since its client sends a user name, unlike PostgreSQL's clients.
    #[test]
    fn scram_gives_the_signature_of_its_rfc() {
        let salt = STANDARD
            .decode("W22ZaJ0SNY7soEsUEjb6gQ==")
            .expect("the salt is base64");
        let mut salted = [0; KEY_BYTES];
        let rounds = NonZeroU32::new(4096).expect("4096 is not zero");
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

    /// Checks the proof as a server does, which has only the stored key and the server key.
    #[test]
    fn a_server_can_verify_a_scram_proof_and_prove_itself() {
        let mut exchange = Exchange::default();
        let first = step(&mut exchange, 10, PLAIN_AND_PLUS).expect("the offer is accepted");
        let nonce = first_nonce(&String::from_utf8_lossy(&first));
        let challenge = format!("r={nonce}server,s=c2FsdA==,i=4096");
        let last = step(&mut exchange, 11, challenge.as_bytes()).expect("the challenge is valid");
        let last = String::from_utf8_lossy(&last[5..]).into_owned();
        let (without_proof, proof) = last
            .split_once(",p=")
            .expect("the message ends with a proof");
        assert_eq!(without_proof, format!("c=biws,r={nonce}server"));
        let signed = format!("n=,r={nonce},{challenge},{without_proof}");
        let mut salted = [0; KEY_BYTES];
        let rounds = NonZeroU32::new(4096).expect("4096 is not zero");
        pbkdf2::derive(
            pbkdf2::PBKDF2_HMAC_SHA256,
            rounds,
            b"salt",
            b"pencil",
            &mut salted,
        );
        let stored = digest::digest(&digest::SHA256, &sign(&salted, b"Client Key"));
        let proof = STANDARD.decode(proof).expect("the proof is base64");
        let signature = sign(stored.as_ref(), signed.as_bytes());
        let client_key = xor(&proof, signature);
        assert_eq!(
            digest::digest(&digest::SHA256, &client_key).as_ref(),
            stored.as_ref()
        );
        let server_signature = sign(&sign(&salted, b"Server Key"), signed.as_bytes());
        let server_proof = format!("v={}", STANDARD.encode(server_signature));
        step(&mut exchange, 12, server_proof.as_bytes()).expect("the server's proof is valid");
        step(&mut exchange, 0, b"").expect("the server accepts the login");
        assert!(exchange.is_accepted());
        assert_eq!(exchange.method(), "scram-sha-256");
    }

    #[test]
    fn a_server_that_does_not_prove_itself_is_refused() {
        let begin = || {
            let mut exchange = Exchange::default();
            let first = step(&mut exchange, 10, PLAIN).expect("the offer is accepted");
            let nonce = first_nonce(&String::from_utf8_lossy(&first));
            (exchange, nonce)
        };
        let (mut exchange, _) = begin();
        assert_eq!(step(&mut exchange, 0, b""), Err(AuthError::Impostor));
        let (mut exchange, nonce) = begin();
        let without_server_nonce = format!("r={nonce},s=c2FsdA==,i=1");
        assert_eq!(
            step(&mut exchange, 11, without_server_nonce.as_bytes()),
            Err(AuthError::Impostor)
        );
        let (mut exchange, nonce) = begin();
        let many_iterations = format!("r={nonce}x,s=c2FsdA==,i=4000000000");
        let outcome = step(&mut exchange, 11, many_iterations.as_bytes());
        assert_eq!(outcome, Err(AuthError::Iterations(4_000_000_000)));
        for server_proof in ["v=", "v=AAAA", "e=invalid-proof", ""] {
            let (mut exchange, nonce) = begin();
            let challenge = format!("r={nonce}x,s=c2FsdA==,i=1");
            step(&mut exchange, 11, challenge.as_bytes()).expect("the challenge is valid");
            assert_eq!(
                step(&mut exchange, 12, server_proof.as_bytes()),
                Err(AuthError::Impostor)
            );
        }
    }

    /// The expected value is `md5` || MD5(MD5("secret" || "howfar") || "abcd") as computed by md5sum.
    #[test]
    fn md5_follows_the_formula_of_the_manual() {
        assert_eq!(
            md5("howfar", "secret", b"abcd"),
            b"md54e253c201ece6889b12e70fc5f3c549d"
        );
    }

    #[test]
    fn the_password_is_sent_only_over_a_private_channel_or_with_consent() {
        for (secrecy, expected) in [
            (PRIVATE, Ok(())),
            (consented(PRIVATE), Ok(())),
            (UNVERIFIED, Err(AuthError::Unverified)),
            (consented(UNVERIFIED), Ok(())),
            (OPEN, Err(AuthError::Clear)),
            (consented(OPEN), Err(AuthError::Clear)),
        ] {
            let (mut out, mut exchange) = (Vec::new(), Exchange::default());
            let binding = Binding::default();
            let account = ("u", "secret");
            let outcome =
                exchange.handle_request(&message(3, b""), account, secrecy, binding, &mut out);
            assert_eq!(outcome, expected, "{secrecy:?}");
            assert_eq!(!out.is_empty(), expected.is_ok());
        }
    }

    #[test]
    fn steps_out_of_order_and_unknown_ones_are_refused() {
        for code in [11, 12] {
            let refused = step(&mut Exchange::default(), code, b"");
            assert!(matches!(refused, Err(AuthError::Malformed(_))), "{code}");
        }
        let mut exchange = Exchange::default();
        step(&mut exchange, 5, b"salt").expect("the salt is valid");
        assert!(matches!(
            step(&mut exchange, 5, b"salt"),
            Err(AuthError::Malformed(_))
        ));
        for code in [2, 7, 9, 77, -1] {
            let refused = step(&mut Exchange::default(), code, b"");
            assert!(matches!(refused, Err(AuthError::Method(_))), "{code}");
        }
        let mut out = Vec::new();
        let (account, binding) = (("u", ""), Binding::default());
        let outcome = Exchange::default().handle_request(
            &message(5, b"salt"),
            account,
            PRIVATE,
            binding,
            &mut out,
        );
        assert_eq!(outcome, Err(AuthError::NoPassword));
    }
}
