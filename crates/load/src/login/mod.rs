//! The login, from the first byte of a connection to its last prepared statement, without I/O: bytes in, bytes out.
//!
//! [`entering`] covers the greeting to the server's OK, [`preparing`] the rest up to the last statement. The channel changes in
//! between: TLS begins after the greeting, compression after the OK.

mod entering;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod postgres;
mod preparing;
#[cfg(test)]
mod tests;

use howfar_contract::Failed;
use howfar_contract::jobs::{self, SqlProtocol, Target};
use howfar_wire::mysql::handshake::{self, Account, Greeting};
use howfar_wire::mysql::{Answer, Framer, Malformed, ServerError, auth, frame};
use howfar_wire::recognise::Speaks;

use crate::channel::{self, Channel, ChannelError, TlsFacts, Wanted};
use crate::failure::{self, Expected};
use crate::protocol::{Handshake, Phase, Replies};
use crate::statements::Statements;
use crate::workload::Program;
use crate::workload::commands::Commands;
use entering::Entering;
pub(crate) use postgres::PostgresLogin;
use preparing::Preparing;

/// Maximum length of a packet: those of a login or a prepare are small.
const LONGEST_PACKET: usize = 1 << 20;

/// The parameters shared by all logins.
pub(crate) struct Entry<'a> {
    pub(crate) target: &'a Target,
    pub(crate) account: Account<'a>,
    pub(crate) wanted: &'a Wanted,
    pub(crate) program: &'a Program,
    /// Column types are needed, because rows will be decoded.
    pub(crate) decode: bool,
    /// All transactions are read only, in a protocol that can request this with the login.
    pub(crate) read_only: bool,
}

impl Entry<'_> {
    /// The protocol that the server's first bytes must show.
    pub(crate) fn expected(&self) -> Expected {
        let protocol = self.program.commands().map(Commands::protocol);
        match (protocol, self.program.protocol()) {
            (Some(jobs::Protocol::Resp2 | jobs::Protocol::Resp3), _) => Expected {
                protocol: Speaks::Redis,
                tls: self.wanted.wish().tls,
            },
            (Some(jobs::Protocol::MemcachedText | jobs::Protocol::MemcachedMeta), _) => Expected {
                protocol: Speaks::Memcached,
                tls: self.wanted.wish().tls,
            },
            (None, SqlProtocol::Mysql) => Expected {
                protocol: Speaks::MySql,
                tls: false,
            },
            (None, SqlProtocol::Postgresql) => Expected {
                protocol: Speaks::Postgres,
                tls: self.wanted.begins_directly(),
            },
        }
    }
}

/// A session ready for queries.
pub(crate) struct Session {
    pub(crate) channel: Channel,
    pub(crate) replies: Replies,
    pub(crate) statements: Statements,
    /// `None` for a key-value store, which reports nothing by itself.
    pub(crate) facts: Option<Facts>,
    pub(crate) tls: Option<TlsFacts>,
    /// Round trips since the transport was connected, with those of TLS: see [`PacketStream::turns`].
    pub(crate) turns: u32,
}

/// Facts that a server reported during the login.
#[derive(Debug, Clone)]
pub(crate) enum Facts {
    MySql(SessionFacts),
    Postgres(PostgresFacts),
}

/// Facts that PostgreSQL reported.
#[derive(Debug, Clone)]
pub(crate) struct PostgresFacts {
    pub(crate) version: String,
    /// The authentication method.
    pub(crate) method: &'static str,
    /// The process that serves the session, as the server named it for cancellations; a pooler names its own.
    pub(crate) process: Option<u32>,
}

/// The parameters negotiated with MySQL.
#[derive(Debug, Clone)]
pub(crate) struct SessionFacts {
    pub(crate) greeting: Greeting,
    pub(crate) agreed: handshake::Session,
    /// The authentication method that the server accepted.
    pub(crate) auth_plugin: &'static str,
}

enum Stage {
    Entering(Entering),
    Preparing(Preparing),
}

/// The login of one connection.
pub(crate) struct Login {
    stream: PacketStream,
    stage: Stage,
    facts: Option<SessionFacts>,
    statements: Statements,
    /// Packet bytes that the channel decoded from the socket; kept to reuse its memory.
    plain: Vec<u8>,
}

/// Packets to the server with their sequence numbers, and the channel that carries them.
struct PacketStream {
    channel: Channel,
    framer: Framer,
    /// Complete packets that are not sealed yet.
    packets: Vec<u8>,
    /// Round trips, counted by what was sent and not by how bytes arrived, without those of TLS.
    turns: u32,
}

impl PacketStream {
    /// Answer the last packet received.
    fn send(&mut self, payload: &[u8]) {
        let next = frame::write_packet(&mut self.packets, self.framer.sequence(), payload);
        self.framer.expect(next);
        self.turns += 1;
    }
}

impl Login {
    pub(crate) fn new(program: &Program) -> Self {
        Self {
            stream: PacketStream {
                channel: Channel::Plain,
                framer: Framer::new(LONGEST_PACKET),
                packets: Vec::new(),
                turns: 1,
            },
            stage: Stage::Entering(Entering::default()),
            facts: None,
            statements: Statements::new(program),
            plain: Vec::new(),
        }
    }

    /// Process received packets; true when the login is complete.
    fn packets(
        &mut self,
        mut input: &[u8],
        entry: &Entry<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Wrong> {
        let mut ready = false;
        // The framer's payload must not stay borrowed while the stage changes; these packets are few and small.
        while let Some(payload) = self.stream.framer.next(&mut input)?.map(<[u8]>::to_vec) {
            let plain = self.stream.channel.is_plain();
            ready = self.packet(&payload, entry, out)?;
            let changed = plain && !self.stream.channel.is_plain();
            // Bytes in clear that should have been encrypted may have been injected: do not accept them as the server's.
            if (ready || changed) && !input.is_empty() {
                return Err(Malformed::Unexpected("bytes follow the end of a step").into());
            }
            if ready {
                break;
            }
        }
        self.stream.channel.seal(&self.stream.packets, out)?;
        self.stream.packets.clear();
        Ok(ready)
    }

    fn packet(
        &mut self,
        payload: &[u8],
        entry: &Entry<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Wrong> {
        match &mut self.stage {
            Stage::Entering(entering) => {
                let Some(begun) = entering.packet(payload, &mut self.stream, entry, out)? else {
                    return Ok(false);
                };
                self.facts = Some(SessionFacts {
                    greeting: begun.greeting,
                    agreed: begun.agreed,
                    auth_plugin: begun.exchange.plugin(),
                });
                if let Some(algorithm) = entry.wanted.wish().compression {
                    self.stream.channel.begin_compression(algorithm);
                }
                let mut preparing = Preparing::new(entry.program);
                preparing.ask_ahead(&mut self.stream, entry);
                let ready = preparing.is_done();
                self.stage = Stage::Preparing(preparing);
                Ok(ready)
            }
            Stage::Preparing(preparing) => {
                preparing.packet(payload, &mut self.stream, &mut self.statements, entry)
            }
        }
    }

    fn session(&mut self) -> Option<Session> {
        let facts = self.facts.take()?;
        let tls = self.stream.channel.tls_facts();
        let handshake = tls.as_ref().map_or(0, TlsFacts::turns);
        Some(Session {
            channel: std::mem::take(&mut self.stream.channel),
            replies: Replies::MySql(Answer::new(facts.agreed.caches_metadata())),
            statements: std::mem::take(&mut self.statements),
            facts: Some(Facts::MySql(facts)),
            tls,
            turns: self.stream.turns + handshake,
        })
    }
}

impl Handshake for Login {
    fn phase(&self) -> Phase {
        match &self.stage {
            Stage::Entering(_) if self.stream.channel.is_handshaking() => Phase::Tls,
            Stage::Entering(entering) => entering.phase(),
            Stage::Preparing(_) => Phase::Preparing,
        }
    }

    fn feed(
        &mut self,
        raw: &[u8],
        entry: &Entry<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Session>, Failed> {
        let mut plain = std::mem::take(&mut self.plain);
        plain.clear();
        let ready = self.stream.channel.open(raw, &mut plain, out);
        let ready = ready
            .map_err(Wrong::Channel)
            .and_then(|()| self.packets(&plain, entry, out))
            .and_then(|ready| {
                if !ready {
                    self.stream.channel.goes_on()?;
                }
                Ok(ready)
            })
            .map_err(|wrong| wrong.translate(entry))?;
        self.plain = plain;
        Ok(if ready { self.session() } else { None })
    }
}

/// A login that failed, before it is translated.
enum Wrong {
    Malformed(Malformed),
    Channel(ChannelError),
    Lacking(handshake::Lacking),
    Login(ServerError),
    Refused(auth::Refused),
    /// The certificate had to be proved by the password, and was not.
    Unproven,
    Prepare(ServerError),
}

impl From<Malformed> for Wrong {
    fn from(error: Malformed) -> Self {
        Self::Malformed(error)
    }
}

impl From<ChannelError> for Wrong {
    fn from(error: ChannelError) -> Self {
        Self::Channel(error)
    }
}

impl From<auth::Refused> for Wrong {
    fn from(error: auth::Refused) -> Self {
        Self::Refused(error)
    }
}

impl Wrong {
    fn translate(self, entry: &Entry<'_>) -> Failed {
        let (target, user) = (entry.target, entry.account.user);
        match self {
            Self::Malformed(error) => failure::malformed(target, error),
            Self::Channel(error) => channel::broken(target, &error),
            Self::Lacking(what) => channel::lacking(target, what),
            Self::Login(error) => failure::login(target, user, &error),
            Self::Refused(error) => failure::refused_login(target, user, error),
            Self::Unproven => channel::unproven(target, user),
            Self::Prepare(error) => {
                failure::server(target, "the preparation of a statement", &error)
            }
        }
    }
}
