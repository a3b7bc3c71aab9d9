//! The login, from the first byte of a connection to its last prepared statement, without I/O: bytes in, bytes out.
//!
//! [`authentication`] covers the part up to the server's OK, [`preparation`] that up to the last statement. The channel changes
//! in between: TLS begins after the greeting, compression after the OK.

mod authentication;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod postgres;
mod preparation;
#[cfg(test)]
mod tests;

use howfar_contract::{FailCode, Failed};
use howfar_wire::mysql::handshake;
use howfar_wire::mysql::{Answer, Framer, Malformed, ServerError, auth, frame};
use howfar_wire::postgres as postgres_wire;

use crate::channel::{self, Channel, ChannelError, TlsFacts};
use crate::connection_error::ConnectionError;
use crate::failure;
use crate::session::{Facts, Handshake, LoginParameters, Phase, Replies, Session, SessionFacts};
use crate::statements::Statements;
use crate::workload::Program;
use authentication::Authentication;
pub(crate) use postgres::PostgresLogin;
use preparation::Preparation;

/// Maximum length of a packet: those of a login or a prepare are small.
const MAX_PACKET_BYTES: usize = 1 << 20;

enum Stage {
    Authenticating(Authentication),
    Preparing(Preparation),
}

/// The login of one connection.
pub(crate) struct Login {
    stream: PacketStream,
    stage: Stage,
    facts: Option<SessionFacts>,
    statements: Statements,
    /// Buffer for the packet bytes that the channel decodes; kept to reuse its memory.
    plain: Vec<u8>,
}

/// Packets to the server with their sequence numbers, and the channel that carries them.
struct PacketStream {
    channel: Channel,
    framer: Framer,
    /// Complete packets that are not sealed yet.
    packets: Vec<u8>,
    /// Round trips, without those of TLS. They are counted by the packets sent, not by how bytes arrived.
    round_trips: u32,
}

impl PacketStream {
    /// Append a packet that answers the last one received.
    fn send(&mut self, payload: &[u8]) {
        let next_sequence = frame::write_packet(&mut self.packets, self.framer.sequence(), payload);
        self.framer.expect(next_sequence);
        self.round_trips += 1;
    }
}

impl Login {
    pub(crate) fn new(program: &Program) -> Self {
        Self {
            stream: PacketStream {
                channel: Channel::Plain,
                framer: Framer::new(MAX_PACKET_BYTES),
                packets: Vec::new(),
                round_trips: 1,
            },
            stage: Stage::Authenticating(Authentication::default()),
            facts: None,
            statements: Statements::new(program),
            plain: Vec::new(),
        }
    }

    /// Process received packets; true when the login is complete.
    fn handle_packets(
        &mut self,
        mut input: &[u8],
        parameters: &LoginParameters<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool, LoginError> {
        let mut is_ready = false;
        // The framer's payload must not stay borrowed while the stage changes; these packets are few and small.
        while let Some(payload) = self.stream.framer.next(&mut input)?.map(<[u8]>::to_vec) {
            let was_plain = self.stream.channel.is_plain();
            is_ready = self.handle_packet(&payload, parameters, out)?;
            let has_changed = was_plain && !self.stream.channel.is_plain();
            // Bytes in clear that should have been encrypted may have been injected: do not accept them as the server's.
            if (is_ready || has_changed) && !input.is_empty() {
                return Err(Malformed::Unexpected("bytes follow the end of a step").into());
            }
            if is_ready {
                break;
            }
        }
        self.stream.channel.seal(&self.stream.packets, out)?;
        self.stream.packets.clear();
        Ok(is_ready)
    }

    fn handle_packet(
        &mut self,
        payload: &[u8],
        parameters: &LoginParameters<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool, LoginError> {
        match &mut self.stage {
            Stage::Authenticating(authentication) => {
                let Some(negotiation) =
                    authentication.handle_packet(payload, &mut self.stream, parameters, out)?
                else {
                    return Ok(false);
                };
                self.facts = Some(SessionFacts {
                    greeting: negotiation.greeting,
                    negotiated: negotiation.negotiated,
                    auth_plugin: negotiation.exchange.plugin(),
                });
                if let Some(algorithm) = parameters.channel_options.requested_features().compression
                {
                    self.stream.channel.begin_compression(algorithm);
                }
                let mut preparation = Preparation::new(parameters.program);
                preparation.request_ahead(&mut self.stream, parameters);
                let is_ready = preparation.is_done();
                self.stage = Stage::Preparing(preparation);
                Ok(is_ready)
            }
            Stage::Preparing(preparation) => preparation.handle_packet(
                payload,
                &mut self.stream,
                &mut self.statements,
                parameters,
            ),
        }
    }

    fn take_session(&mut self) -> Option<Session> {
        let facts = self.facts.take()?;
        let tls = self.stream.channel.tls_facts();
        let tls_round_trips = tls.as_ref().map_or(0, TlsFacts::round_trips);
        Some(Session {
            channel: std::mem::take(&mut self.stream.channel),
            replies: Replies::MySql(Answer::new(facts.negotiated.caches_metadata())),
            statements: std::mem::take(&mut self.statements),
            facts: Some(Facts::MySql(facts)),
            tls,
            round_trips: self.stream.round_trips + tls_round_trips,
        })
    }
}

impl Handshake for Login {
    fn phase(&self) -> Phase {
        match &self.stage {
            Stage::Authenticating(_) if self.stream.channel.is_handshaking() => Phase::Tls,
            Stage::Authenticating(authentication) => authentication.phase(),
            Stage::Preparing(_) => Phase::Preparing,
        }
    }

    fn feed(
        &mut self,
        raw: &[u8],
        parameters: &LoginParameters<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Session>, Failed> {
        let mut plain = std::mem::take(&mut self.plain);
        plain.clear();
        let opened = self.stream.channel.open(raw, &mut plain, out);
        let is_ready = opened
            .map_err(LoginError::from)
            .and_then(|()| self.handle_packets(&plain, parameters, out))
            .and_then(|is_ready| {
                if !is_ready {
                    self.stream.channel.check_not_ended()?;
                }
                Ok(is_ready)
            })
            .map_err(|error| error.translate(parameters))?;
        self.plain = plain;
        Ok(if is_ready { self.take_session() } else { None })
    }
}

/// Why a login failed, before it is translated.
enum LoginError {
    Connection(ConnectionError),
    MissingFeature(handshake::MissingFeature),
    /// TLS began directly, and the server did not confirm PostgreSQL's protocol.
    NoAlpn,
    Login(ServerError),
    MySqlAuth(auth::AuthError),
    PostgresAuth(postgres_wire::auth::AuthError),
    /// The server did not prove its certificate by the password, although it had to.
    Unproven,
    Prepare(ServerError),
}

impl From<Malformed> for LoginError {
    fn from(error: Malformed) -> Self {
        Self::Connection(ConnectionError::Malformed(error))
    }
}

impl From<postgres_wire::Malformed> for LoginError {
    fn from(error: postgres_wire::Malformed) -> Self {
        Self::Connection(ConnectionError::MalformedPostgres(error))
    }
}

impl From<ChannelError> for LoginError {
    fn from(error: ChannelError) -> Self {
        Self::Connection(ConnectionError::Channel(error))
    }
}

impl From<auth::AuthError> for LoginError {
    fn from(error: auth::AuthError) -> Self {
        Self::MySqlAuth(error)
    }
}

impl From<postgres_wire::auth::AuthError> for LoginError {
    fn from(error: postgres_wire::auth::AuthError) -> Self {
        Self::PostgresAuth(error)
    }
}

impl LoginError {
    fn translate(self, parameters: &LoginParameters<'_>) -> Failed {
        let (target, user) = (parameters.target, parameters.account.user);
        match self {
            Self::Connection(error) => error.translate(target, None),
            Self::MissingFeature(feature) => channel::missing_feature(target, feature),
            Self::NoAlpn => Failed::new(
                FailCode::Tls,
                format!(
                    "{} did not agree on the protocol `postgresql` in TLS (ALPN)",
                    failure::target_name(target)
                ),
                "Direct TLS needs PostgreSQL 17 or later: use sslnegotiation=postgres.",
            ),
            Self::Login(error) => failure::login_failed(target, user, &error),
            Self::MySqlAuth(error) => failure::login_abandoned(target, user, error),
            Self::PostgresAuth(error) => failure::postgres_login_abandoned(target, user, error),
            Self::Unproven => channel::unproven_certificate(target, user),
            Self::Prepare(error) => {
                failure::statement_failed(target, "the preparation of a statement", &error)
            }
        }
    }
}
