//! The login to PostgreSQL, from the first byte to the last prepared statement, without I/O: bytes in, bytes out.
//!
//! TLS is requested in clear and answered with one byte, or begins at once; then the client names its account, proves its password as
//! the server requests, and prepares its statements.

use howfar_contract::Failed;
use howfar_wire::mysql::handshake::MissingFeature;
use howfar_wire::mysql::row::RowHandling;
use howfar_wire::postgres::reply::{self, Failure};
use howfar_wire::postgres::{Answer, Framer, Malformed, Outcome, auth, request};

use super::LoginError;
use crate::channel::{Channel, TlsFacts};
use crate::session::{Facts, Handshake, LoginParameters, Phase, PostgresFacts, Replies, Session};
use crate::statements::{Slot, Statements};

/// Maximum length of a message: those of a login or a prepare are small.
const MAX_MESSAGE_BYTES: usize = 1 << 16;
/// Maximum messages from the first byte to the end of the login. A server sends about twenty; many more is misbehaviour.
const MAX_MESSAGES: u32 = 256;
/// Maximum bytes of a version that are kept.
const MAX_VERSION_BYTES: usize = 128;
/// Maximum statements parsed without waiting for answers, as for MySQL.
const MAX_AHEAD: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// TLS was requested.
    RequestingTls,
    Authenticating,
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
    slots: Vec<usize>,
    statements: Statements,
    /// Complete messages that are not sealed yet.
    unsealed: Vec<u8>,
    /// Round trips, without those of TLS.
    round_trips: u32,
    plain: Vec<u8>,
}

impl PostgresLogin {
    /// Begin a login; append to `out` the bytes that the client sends first.
    pub(crate) fn begin(
        parameters: &LoginParameters<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Self, Failed> {
        let mut login = Self {
            channel: Channel::Plain,
            stage: Stage::Authenticating,
            framer: Framer::new(MAX_MESSAGE_BYTES),
            exchange: auth::Exchange::default(),
            messages: 0,
            version: String::new(),
            process: None,
            slots: parameters.program.slots_to_prepare(),
            statements: Statements::new(parameters.program),
            unsealed: Vec::new(),
            round_trips: 1,
            plain: Vec::new(),
        };
        if parameters.channel_options.requested_features().tls
            && !parameters.channel_options.begins_directly()
        {
            login.stage = Stage::RequestingTls;
            request::ssl(out);
            return Ok(login);
        }
        let started = login.encrypt(parameters, out);
        started.map_err(|error| error.translate(parameters))?;
        Ok(login)
    }

    /// Begin TLS, then name the account, which is sent only after the TLS handshake has succeeded.
    fn encrypt(
        &mut self,
        parameters: &LoginParameters<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), LoginError> {
        parameters.channel_options.encrypt(&mut self.channel, out)?;
        self.send_startup(parameters, out)
    }

    /// Send the startup message, which names the account.
    fn send_startup(
        &mut self,
        parameters: &LoginParameters<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), LoginError> {
        self.stage = Stage::Authenticating;
        let account = &parameters.account;
        request::startup(
            &mut self.unsealed,
            account.user,
            account.database,
            parameters.channel_options.options(),
            parameters.read_only,
        );
        self.flush(out)
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), LoginError> {
        self.channel.seal(&self.unsealed, out)?;
        self.unsealed.clear();
        Ok(())
    }

    /// Process the byte that answers the request for TLS.
    fn handle_tls_reply(
        &mut self,
        raw: &[u8],
        parameters: &LoginParameters<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), LoginError> {
        match raw {
            [] => Ok(()),
            [b'S'] => {
                self.round_trips += 1;
                self.encrypt(parameters, out)
            }
            [b'N'] if parameters.channel_options.tls_is_optional() => {
                self.round_trips += 1;
                self.send_startup(parameters, out)
            }
            [b'N'] => Err(LoginError::MissingFeature(MissingFeature::Tls)),
            // Bytes in clear that should have been encrypted may have been injected: do not accept them as the server's.
            [b'S' | b'N', ..] => {
                Err(Malformed::Unexpected("bytes follow the end of a step").into())
            }
            [kind, ..] => Err(Malformed::Kind(*kind).into()),
        }
    }

    /// Process received messages; returns the session's state once the login is complete.
    fn handle_messages(
        &mut self,
        mut input: &[u8],
        parameters: &LoginParameters<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Answer>, LoginError> {
        if !input.is_empty()
            && parameters.channel_options.begins_directly()
            && !self.channel.speaks_postgres()
        {
            return Err(LoginError::NoAlpn);
        }
        while let Some((kind, body)) = self.framer.next(&mut input)? {
            if !self.handle_message(kind, &body, parameters)? {
                continue;
            }
            // Unsolicited messages may follow already; anything else is refused.
            let mut answer = Answer::default();
            if let Some(Outcome::Failed(error)) = answer.feed(input, &mut RowHandling::Skip)? {
                return Err(LoginError::Login(error));
            }
            return Ok(Some(answer));
        }
        self.flush(out)?;
        Ok(None)
    }

    /// Process one message; true when the login is complete.
    fn handle_message(
        &mut self,
        kind: u8,
        body: &[u8],
        parameters: &LoginParameters<'_>,
    ) -> Result<bool, LoginError> {
        if self.stage == Stage::Authenticating {
            self.messages += 1;
            if self.messages > MAX_MESSAGES {
                return Err(Malformed::Unexpected("a login without an end").into());
            }
        }
        let is_accepted = self.exchange.is_accepted();
        match (kind, &mut self.stage) {
            (b'E', Stage::Preparing { .. }) => {
                Err(LoginError::Prepare(Failure::parse(body)?.error))
            }
            (b'E', _) => Err(LoginError::Login(Failure::parse(body)?.error)),
            (b'N' | b'A', _) => Ok(false),
            (b'S', _) => {
                self.note_parameter(body)?;
                Ok(false)
            }
            (b'R', Stage::Authenticating) if !is_accepted => {
                let account = (parameters.account.user, parameters.account.password);
                let secrecy = parameters
                    .channel_options
                    .secrecy(&self.channel, parameters.target);
                let end_point = parameters.channel_options.end_point(&self.channel);
                let before = self.unsealed.len();
                let binding = end_point.binding();
                self.exchange.handle_request(
                    body,
                    account,
                    secrecy,
                    binding,
                    &mut self.unsealed,
                )?;
                self.round_trips += u32::from(self.unsealed.len() > before);
                Ok(false)
            }
            // The cancel key is not used; the process id before it distinguishes a pooler from a server.
            (b'K', Stage::Authenticating) if is_accepted => {
                let process = body.get(..4).and_then(|id| id.try_into().ok());
                self.process = process.map(u32::from_be_bytes);
                Ok(false)
            }
            (b'Z', Stage::Authenticating) if is_accepted => {
                self.stage = Stage::Preparing { sent: 0, done: 0 };
                Ok(self.request_ahead(parameters))
            }
            (b'1', Stage::Preparing { sent, done }) if *done < *sent => {
                let slot = self.slots[*done];
                *done += 1;
                let id = slot as u32;
                self.statements.set(slot, Slot::Prepared { id, used: true });
                Ok(false)
            }
            (b'Z', Stage::Preparing { sent, done }) if *done == *sent => {
                Ok(self.request_ahead(parameters))
            }
            _ => Err(Malformed::Kind(kind).into()),
        }
    }

    /// Note a setting that the server reports; only its version is kept.
    fn note_parameter(&mut self, body: &[u8]) -> Result<(), Malformed> {
        let (name, value) = reply::parse_parameter(body)?;
        if name == b"server_version" {
            let shown = &value[..value.len().min(MAX_VERSION_BYTES)];
            self.version = String::from_utf8_lossy(shown).into_owned();
        }
        Ok(())
    }

    /// Request the next statements to be parsed; true if none are left.
    fn request_ahead(&mut self, parameters: &LoginParameters<'_>) -> bool {
        let Stage::Preparing { sent, .. } = &mut self.stage else {
            return false;
        };
        let end = self.slots.len().min(*sent + MAX_AHEAD);
        if end == *sent {
            return true;
        }
        for &slot in &self.slots[*sent..end] {
            request::parse_with(&mut self.unsealed, Some(slot as u32), |sql| {
                parameters.program.write_prepare(slot, sql);
            });
        }
        request::sync(&mut self.unsealed);
        *sent = end;
        self.round_trips += 1;
        false
    }

    fn take_session(&mut self, answer: Answer) -> Session {
        let tls = self.channel.tls_facts();
        let tls_round_trips = tls.as_ref().map_or(0, TlsFacts::round_trips);
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
            round_trips: self.round_trips + tls_round_trips,
        }
    }
}

impl Handshake for PostgresLogin {
    fn phase(&self) -> Phase {
        match self.stage {
            Stage::RequestingTls => Phase::TlsRequest,
            _ if self.channel.is_handshaking() => Phase::Tls,
            Stage::Authenticating => Phase::Login,
            Stage::Preparing { .. } => Phase::Preparing,
        }
    }

    fn feed(
        &mut self,
        raw: &[u8],
        parameters: &LoginParameters<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Session>, Failed> {
        let translate = |error: LoginError| error.translate(parameters);
        if self.stage == Stage::RequestingTls {
            self.handle_tls_reply(raw, parameters, out)
                .map_err(translate)?;
            return Ok(None);
        }
        let mut plain = std::mem::take(&mut self.plain);
        plain.clear();
        let opened = self.channel.open(raw, &mut plain, out);
        let ready = opened
            .map_err(LoginError::from)
            .and_then(|()| self.handle_messages(&plain, parameters, out))
            .and_then(|ready| {
                if ready.is_none() {
                    self.channel.check_not_ended()?;
                }
                Ok(ready)
            })
            .map_err(translate)?;
        self.plain = plain;
        Ok(ready.map(|answer| self.take_session(answer)))
    }
}
