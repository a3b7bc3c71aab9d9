//! The login from the greeting to the server's OK: checks required features, begins TLS, proves the password.

use howfar_wire::mysql::auth::{self, Exchange};
use howfar_wire::mysql::handshake::{self, AuthSwitch, Greeting};
use howfar_wire::mysql::{Malformed, ServerError, reply};

use super::{Entry, PacketStream, Wrong};
use crate::protocol::Phase;

/// Maximum packets of a server from its greeting to its OK. The longest known login has three in between; more is misbehaviour.
const MOST_ROUNDS: u32 = 8;

#[derive(Default)]
pub(super) struct Entering {
    begun: Option<Begun>,
    rounds: u32,
}

/// State since the greeting.
pub(super) struct Begun {
    pub(super) greeting: Greeting,
    pub(super) agreed: handshake::Session,
    pub(super) exchange: Exchange,
}

impl Entering {
    pub(super) fn phase(&self) -> Phase {
        if self.begun.is_some() {
            Phase::Login
        } else {
            Phase::Greeting
        }
    }

    /// Process a packet; returns the negotiated state once the server has accepted the login.
    pub(super) fn packet(
        &mut self,
        payload: &[u8],
        stream: &mut PacketStream,
        entry: &Entry<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Begun>, Wrong> {
        let first = payload.first().copied().ok_or(Malformed::Short("packet"))?;
        if first == reply::ERR {
            return Err(Wrong::Login(ServerError::parse(payload)?));
        }
        self.rounds += 1;
        if self.rounds > MOST_ROUNDS {
            return Err(Malformed::Unexpected("a login without an end").into());
        }
        let Some(Begun {
            exchange, greeting, ..
        }) = &mut self.begun
        else {
            self.begun = Some(greet(payload, stream, entry, out)?);
            return Ok(None);
        };
        let password = entry.account.password;
        let secrecy = entry.wanted.secrecy(&stream.channel, entry.target);
        match first {
            reply::OK => {
                if let Some(fingerprint) = entry.wanted.unproven(&stream.channel) {
                    let info = reply::OkPacket::info(payload)?;
                    let scramble = &greeting.scramble;
                    if !exchange.proves(password, scramble, fingerprint.as_ref(), info) {
                        return Err(Wrong::Unproven);
                    }
                }
                return Ok(self.begun.take());
            }
            reply::EOF => {
                let switch = AuthSwitch::parse(payload)?;
                let (next, proof) =
                    Exchange::switch(&switch.plugin, password, &switch.scramble, secrecy)?;
                *exchange = next;
                stream.send(&proof);
            }
            auth::MORE_DATA => {
                if let Some(answer) = exchange.more(&payload[1..], password, secrecy)? {
                    stream.send(&answer);
                }
            }
            // MariaDB marks continuation packets only if they could be mistaken for others.
            _ if exchange.plugin() == auth::PARSEC => {
                if let Some(answer) = exchange.more(payload, password, secrecy)? {
                    stream.send(&answer);
                }
            }
            _ => return Err(Malformed::Unexpected("an unknown answer to a login").into()),
        }
        Ok(None)
    }
}

/// Answer the greeting. With TLS the account is sealed: it is sent when the handshake has succeeded.
fn greet(
    payload: &[u8],
    stream: &mut PacketStream,
    entry: &Entry<'_>,
    out: &mut Vec<u8>,
) -> Result<Begun, Wrong> {
    let greeting = Greeting::parse(payload)?;
    let mut wish = entry.wanted.wish();
    wish.tls = wish.tls && (greeting.offers_tls() || !entry.wanted.tls_is_optional());
    let agreed = greeting.session_as(wish).map_err(Wrong::Lacking)?;
    let (exchange, proof) =
        Exchange::first(&greeting.plugin, entry.account.password, &greeting.scramble)?;
    let mut sequence = stream.framer.sequence();
    if wish.tls {
        sequence = agreed.tls_request(out, sequence);
        entry.wanted.encrypt(&mut stream.channel, out)?;
    }
    let next = agreed.login(
        &mut stream.packets,
        sequence,
        &entry.account,
        exchange.plugin(),
        &proof,
    );
    stream.framer.expect(next);
    stream.turns += 1;
    Ok(Begun {
        greeting,
        agreed,
        exchange,
    })
}
