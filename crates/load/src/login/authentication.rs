//! The login from the greeting to the server's OK: checks required features, begins TLS, proves the password.

use howfar_wire::mysql::auth::{self, Exchange};
use howfar_wire::mysql::handshake::{self, AuthSwitch, Greeting};
use howfar_wire::mysql::{Malformed, ServerError, reply};

use super::{LoginError, PacketStream};
use crate::session::{LoginParameters, Phase};

/// Maximum packets of a server from its greeting to its OK. The longest known login has three in between; more is misbehaviour.
const MAX_ROUNDS: u32 = 8;

#[derive(Default)]
pub(super) struct Authentication {
    negotiation: Option<Negotiation>,
    rounds: u32,
}

/// The state after the greeting.
pub(super) struct Negotiation {
    pub(super) greeting: Greeting,
    pub(super) negotiated: handshake::Session,
    pub(super) exchange: Exchange,
}

impl Authentication {
    pub(super) fn phase(&self) -> Phase {
        if self.negotiation.is_some() {
            Phase::Login
        } else {
            Phase::Greeting
        }
    }

    /// Process a packet; returns the negotiated state once the server has accepted the login.
    pub(super) fn handle_packet(
        &mut self,
        payload: &[u8],
        stream: &mut PacketStream,
        parameters: &LoginParameters<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Negotiation>, LoginError> {
        let first_byte = payload.first().copied().ok_or(Malformed::Short("packet"))?;
        if first_byte == reply::ERR {
            return Err(LoginError::Login(ServerError::parse(payload)?));
        }
        self.rounds += 1;
        if self.rounds > MAX_ROUNDS {
            return Err(Malformed::Unexpected("a login without an end").into());
        }
        let Some(Negotiation {
            exchange, greeting, ..
        }) = &mut self.negotiation
        else {
            self.negotiation = Some(answer_greeting(payload, stream, parameters, out)?);
            return Ok(None);
        };
        let password = parameters.account.password;
        let secrecy = parameters
            .channel_options
            .secrecy(&stream.channel, parameters.target);
        match first_byte {
            reply::OK => {
                if let Some(digest) = parameters.channel_options.unproven_digest(&stream.channel) {
                    let info = reply::OkPacket::info(payload)?;
                    let scramble = &greeting.scramble;
                    if !exchange.proves_certificate(password, scramble, digest.as_ref(), info) {
                        return Err(LoginError::Unproven);
                    }
                }
                return Ok(self.negotiation.take());
            }
            reply::EOF => {
                let switch = AuthSwitch::parse(payload)?;
                let (next_exchange, proof) =
                    Exchange::with_plugin(&switch.plugin, password, &switch.scramble, secrecy)?;
                *exchange = next_exchange;
                stream.send(&proof);
            }
            auth::MORE_DATA => {
                if let Some(answer) = exchange.handle_more_data(&payload[1..], password, secrecy)? {
                    stream.send(&answer);
                }
            }
            // MariaDB marks continuation packets only if they could be mistaken for others.
            _ if exchange.plugin() == auth::PARSEC => {
                if let Some(answer) = exchange.handle_more_data(payload, password, secrecy)? {
                    stream.send(&answer);
                }
            }
            _ => return Err(Malformed::Unexpected("an unknown answer to a login").into()),
        }
        Ok(None)
    }
}

/// Answer the greeting. With TLS the login is sent only after the TLS handshake has succeeded.
fn answer_greeting(
    payload: &[u8],
    stream: &mut PacketStream,
    parameters: &LoginParameters<'_>,
    out: &mut Vec<u8>,
) -> Result<Negotiation, LoginError> {
    let greeting = Greeting::parse(payload)?;
    let mut features = parameters.channel_options.requested_features();
    features.tls =
        features.tls && (greeting.offers_tls() || !parameters.channel_options.tls_is_optional());
    let negotiated = greeting
        .session_with(features)
        .map_err(LoginError::MissingFeature)?;
    let (exchange, proof) = Exchange::with_default_plugin(
        &greeting.plugin,
        parameters.account.password,
        &greeting.scramble,
    )?;
    let mut sequence = stream.framer.sequence();
    if features.tls {
        sequence = negotiated.tls_request(out, sequence);
        parameters
            .channel_options
            .encrypt(&mut stream.channel, out)?;
    }
    let next_sequence = negotiated.login(
        &mut stream.packets,
        sequence,
        &parameters.account,
        exchange.plugin(),
        &proof,
    );
    stream.framer.expect(next_sequence);
    stream.round_trips += 1;
    Ok(Negotiation {
        greeting,
        negotiated,
        exchange,
    })
}
