//! The login to PostgreSQL, from the first byte to the last prepared statement, without I/O: bytes in, bytes out.
//!
//! TLS is requested in clear and answered with one byte, or begins at once; then the client names its account, proves its password as
//! the server requests, and prepares its statements.

use howfar_contract::{FailCode, Failed};
use howfar_wire::mysql::ServerError;
use howfar_wire::mysql::handshake::Lacking;
use howfar_wire::mysql::row::Work;
use howfar_wire::postgres::reply::{self, Failure};
use howfar_wire::postgres::{Answer, Framer, Malformed, Outcome, auth, request};

use super::{Entry, Facts, PostgresFacts, Session};
use crate::channel::{self, Channel, ChannelError, TlsFacts};
use crate::failure;
use crate::protocol::{Handshake, Phase, Replies};
use crate::statements::{Slot, Statements};

/// Maximum length of a message: those of a login or a prepare are small.
const LONGEST_MESSAGE: usize = 1 << 16;
/// Maximum messages from the first byte to the end of the login. A server sends some twenty; many more is misbehaviour.
const MOST_MESSAGES: u32 = 256;
/// Maximum bytes of a version that are kept.
const LONGEST_VERSION: usize = 128;
/// Maximum statements parsed without waiting for answers, as for MySQL.
const AHEAD: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// TLS was requested.
    Requesting,
    Entering,
    /// Statements are parsed in order: `sent` are requested, `done` are answered.
    Preparing {
        sent: usize,
        done: usize,
    },
}

/// The login of one connection.
pub(crate) struct PostgresLogin {
    channel: Channel,
    stage: Stage,
    framer: Framer,
    exchange: auth::Exchange,
    messages: u32,
    version: String,
    process: Option<u32>,
    wanted: Vec<usize>,
    statements: Statements,
    /// Complete messages that are not sealed yet.
    unsealed: Vec<u8>,
    /// Round trips, without those of TLS.
    turns: u32,
    plain: Vec<u8>,
}

/// A login that failed, before it is translated.
enum Wrong {
    Malformed(Malformed),
    Channel(ChannelError),
    NoTls,
    /// TLS began directly, and the server did not confirm PostgreSQL's protocol.
    NoAlpn,
    Login(ServerError),
    Refused(auth::Refused),
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
            Self::Malformed(error) => failure::not_postgres(target, error),
            Self::Channel(error) => channel::broken(target, &error),
            Self::NoTls => channel::lacking(target, Lacking::Tls),
            Self::NoAlpn => Failed::new(
                FailCode::Tls,
                format!(
                    "{} did not agree on the protocol `postgresql` in TLS (ALPN)",
                    failure::target_name(target)
                ),
                "Direct TLS needs PostgreSQL 17 or later: use sslnegotiation=postgres.",
            ),
            Self::Login(error) => failure::login(target, user, &error),
            Self::Refused(error) => failure::refused_by_postgres(target, user, error),
            Self::Prepare(error) => {
                failure::server(target, "the preparation of a statement", &error)
            }
        }
    }
}

impl PostgresLogin {
    /// Append to `out` what must be sent first.
    pub(crate) fn begin(entry: &Entry<'_>, out: &mut Vec<u8>) -> Result<Self, Failed> {
        let mut login = Self {
            channel: Channel::Plain,
            stage: Stage::Entering,
            framer: Framer::new(LONGEST_MESSAGE),
            exchange: auth::Exchange::default(),
            messages: 0,
            version: String::new(),
            process: None,
            wanted: entry.program.to_prepare(),
            statements: Statements::new(entry.program),
            unsealed: Vec::new(),
            turns: 1,
            plain: Vec::new(),
        };
        if entry.wanted.wish().tls && !entry.wanted.begins_directly() {
            login.stage = Stage::Requesting;
            request::ssl(out);
            return Ok(login);
        }
        let entered = login.encrypt(entry, out);
        entered.map_err(|wrong| wrong.translate(entry))?;
        Ok(login)
    }

    /// Begin TLS, then name the account: it is sealed, and sent when the handshake has succeeded.
    fn encrypt(&mut self, entry: &Entry<'_>, out: &mut Vec<u8>) -> Result<(), Wrong> {
        entry.wanted.encrypt(&mut self.channel, out)?;
        self.enter(entry, out)
    }

    /// Name the account.
    fn enter(&mut self, entry: &Entry<'_>, out: &mut Vec<u8>) -> Result<(), Wrong> {
        self.stage = Stage::Entering;
        let account = &entry.account;
        request::startup(
            &mut self.unsealed,
            account.user,
            account.database,
            entry.wanted.options(),
            entry.read_only,
        );
        self.flush(out)
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), Wrong> {
        self.channel.seal(&self.unsealed, out)?;
        self.unsealed.clear();
        Ok(())
    }

    /// Process the byte that answers the request for TLS.
    fn requested(&mut self, raw: &[u8], entry: &Entry<'_>, out: &mut Vec<u8>) -> Result<(), Wrong> {
        match raw {
            [] => Ok(()),
            [b'S'] => {
                self.turns += 1;
                self.encrypt(entry, out)
            }
            [b'N'] if entry.wanted.tls_is_optional() => {
                self.turns += 1;
                self.enter(entry, out)
            }
            [b'N'] => Err(Wrong::NoTls),
            // Bytes in clear that should have been encrypted may have been injected: do not accept them as the server's.
            [b'S' | b'N', ..] => {
                Err(Malformed::Unexpected("bytes follow the end of a step").into())
            }
            [kind, ..] => Err(Malformed::Kind(*kind).into()),
        }
    }

    /// Process received messages; returns the session's state once the login is complete.
    fn messages(
        &mut self,
        mut input: &[u8],
        entry: &Entry<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Answer>, Wrong> {
        if !input.is_empty() && entry.wanted.begins_directly() && !self.channel.speaks_postgres() {
            return Err(Wrong::NoAlpn);
        }
        while let Some((kind, body)) = self.framer.next(&mut input)? {
            if !self.message(kind, &body, entry)? {
                continue;
            }
            // Unsolicited messages may follow already; anything else is refused.
            let mut answer = Answer::default();
            if let Some(Outcome::Failed(error)) = answer.feed(input, &mut Work::Skip)? {
                return Err(Wrong::Login(error));
            }
            return Ok(Some(answer));
        }
        self.flush(out)?;
        Ok(None)
    }

    /// Process one message; true when the login is complete.
    fn message(&mut self, kind: u8, body: &[u8], entry: &Entry<'_>) -> Result<bool, Wrong> {
        if self.stage == Stage::Entering {
            self.messages += 1;
            if self.messages > MOST_MESSAGES {
                return Err(Malformed::Unexpected("a login without an end").into());
            }
        }
        let accepted = self.exchange.is_accepted();
        match (kind, &mut self.stage) {
            (b'E', Stage::Preparing { .. }) => Err(Wrong::Prepare(Failure::parse(body)?.error)),
            (b'E', _) => Err(Wrong::Login(Failure::parse(body)?.error)),
            (b'N' | b'A', _) => Ok(false),
            (b'S', _) => {
                self.parameter(body)?;
                Ok(false)
            }
            (b'R', Stage::Entering) if !accepted => {
                let account = (entry.account.user, entry.account.password);
                let secrecy = entry.wanted.secrecy(&self.channel, entry.target);
                let end_point = entry.wanted.end_point(&self.channel);
                let before = self.unsealed.len();
                let binding = end_point.binding();
                self.exchange
                    .request(body, account, secrecy, binding, &mut self.unsealed)?;
                self.turns += u32::from(self.unsealed.len() > before);
                Ok(false)
            }
            // The cancel key is not used; the process id before it distinguishes a pooler from a server.
            (b'K', Stage::Entering) if accepted => {
                let process = body.get(..4).and_then(|id| id.try_into().ok());
                self.process = process.map(u32::from_be_bytes);
                Ok(false)
            }
            (b'Z', Stage::Entering) if accepted => {
                self.stage = Stage::Preparing { sent: 0, done: 0 };
                Ok(self.ask_ahead(entry))
            }
            (b'1', Stage::Preparing { sent, done }) if *done < *sent => {
                let slot = self.wanted[*done];
                *done += 1;
                let id = slot as u32;
                self.statements.set(slot, Slot::Prepared { id, used: true });
                Ok(false)
            }
            (b'Z', Stage::Preparing { sent, done }) if *done == *sent => Ok(self.ask_ahead(entry)),
            _ => Err(Malformed::Kind(kind).into()),
        }
    }

    fn parameter(&mut self, body: &[u8]) -> Result<(), Malformed> {
        let (name, value) = reply::parameter(body)?;
        if name == b"server_version" {
            let shown = &value[..value.len().min(LONGEST_VERSION)];
            self.version = String::from_utf8_lossy(shown).into_owned();
        }
        Ok(())
    }

    /// Request the next statements to be parsed; true if none are left.
    fn ask_ahead(&mut self, entry: &Entry<'_>) -> bool {
        let Stage::Preparing { sent, .. } = &mut self.stage else {
            return false;
        };
        let upto = self.wanted.len().min(*sent + AHEAD);
        if upto == *sent {
            return true;
        }
        for &slot in &self.wanted[*sent..upto] {
            request::parse_with(&mut self.unsealed, Some(slot as u32), |sql| {
                entry.program.write_prepare(slot, sql);
            });
        }
        request::sync(&mut self.unsealed);
        *sent = upto;
        self.turns += 1;
        false
    }

    fn session(&mut self, answer: Answer) -> Session {
        let tls = self.channel.tls_facts();
        let handshake = tls.as_ref().map_or(0, TlsFacts::turns);
        Session {
            channel: std::mem::take(&mut self.channel),
            replies: Replies::Postgres(answer),
            statements: std::mem::take(&mut self.statements),
            facts: Some(Facts::Postgres(PostgresFacts {
                version: std::mem::take(&mut self.version),
                method: self.exchange.method(),
                process: self.process,
            })),
            tls,
            turns: self.turns + handshake,
        }
    }
}

impl Handshake for PostgresLogin {
    fn phase(&self) -> Phase {
        match self.stage {
            Stage::Requesting => Phase::TlsRequest,
            _ if self.channel.is_handshaking() => Phase::Tls,
            Stage::Entering => Phase::Login,
            Stage::Preparing { .. } => Phase::Preparing,
        }
    }

    fn feed(
        &mut self,
        raw: &[u8],
        entry: &Entry<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Session>, Failed> {
        let translate = |wrong: Wrong| wrong.translate(entry);
        if self.stage == Stage::Requesting {
            self.requested(raw, entry, out).map_err(translate)?;
            return Ok(None);
        }
        let mut plain = std::mem::take(&mut self.plain);
        plain.clear();
        let opened = self.channel.open(raw, &mut plain, out);
        let ready = opened
            .map_err(Wrong::Channel)
            .and_then(|()| self.messages(&plain, entry, out))
            .and_then(|ready| {
                if ready.is_none() {
                    self.channel.goes_on()?;
                }
                Ok(ready)
            })
            .map_err(translate)?;
        self.plain = plain;
        Ok(ready.map(|answer| self.session(answer)))
    }
}
