//! The interface that the engine needs of a protocol, and the protocols that it speaks.
//!
//! To add a protocol, add a module with its [`Protocol`], a line in [`protocols!`] and a line in [`login`]. A session's protocol is a
//! variant of one `enum`, so that one event loop serves all and the hot path calls nothing through a pointer.

mod memcached;
mod mysql;
mod postgresql;
mod redis;

use howfar_contract::events::StepName;
use howfar_contract::jobs::{self, SqlProtocol};
use howfar_contract::{Failed, internal};
use howfar_wire::keyvalue::{self, CommandCounts, Expects, Refusal};
use howfar_wire::mysql::ServerError;
use howfar_wire::mysql::answer::Done;
use howfar_wire::mysql::row::Work;

use crate::connection::ConnectionError;
use crate::handshake::KeyValueHandshake;
use crate::login::{LoginParameters, Session};
use crate::statements::Statements;
use crate::workload::commands::Commands;
use crate::workload::{Cursor, DueStatement, Memory, Program};

/// How an answer ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done(Done),
    Failed(ServerError),
    /// Commands are answered, successfully or not: see [`Protocol::counts`].
    Commands,
}

/// Why a server refuses.
#[derive(Debug)]
pub(crate) enum ServerRefusal {
    Sql(ServerError),
    Command(Refusal),
}

/// The next request of a connection.
pub(crate) struct Request<'a> {
    pub(crate) program: &'a Program,
    pub(crate) due: DueStatement,
    pub(crate) cursor: &'a mut Cursor,
    pub(crate) memory: &'a mut Memory,
    pub(crate) statements: &'a mut Statements,
}

/// What a connection being opened waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The transport.
    Connect,
    /// The first message of a server that speaks first.
    Greeting,
    /// The answer to PostgreSQL's request for TLS.
    TlsRequest,
    Tls,
    Login,
    /// The answer to a command that is part of a login.
    Command(&'static str),
    Preparing,
}

impl Phase {
    /// What the server has not done yet, for messages: a verb, its past tense, and their object.
    fn expected(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Connect => ("accept", "accepted", "the connection"),
            Self::Greeting => ("send", "sent", "its greeting"),
            Self::TlsRequest => ("answer", "answered", "the request for TLS"),
            Self::Tls => ("complete", "completed", "the TLS handshake"),
            Self::Login => ("complete", "completed", "the login"),
            Self::Command(command) => ("answer", "answered", command),
            Self::Preparing => ("prepare", "prepared", "the statements"),
        }
    }

    /// `send its greeting`
    pub(crate) fn to_do(self) -> String {
        let (verb, _, object) = self.expected();
        format!("{verb} {object}")
    }

    /// `before it sent its greeting`
    pub(crate) fn before(self) -> String {
        let (_, verb, object) = self.expected();
        format!("before it {verb} {object}")
    }

    /// The step as the contract names it.
    pub(crate) fn step(self) -> StepName {
        match self {
            Self::Connect => StepName::Connect,
            Self::Greeting => StepName::Greeting,
            Self::TlsRequest => StepName::TlsRequest,
            Self::Tls => StepName::Tls,
            Self::Login | Self::Command(_) | Self::Preparing => StepName::Login,
        }
    }
}

/// A login in progress, without I/O.
pub(crate) trait Handshake: Send {
    /// What the login waits for.
    fn phase(&self) -> Phase;

    /// Process received bytes, possibly none; append to `out` what must be sent. Returns the session once it is ready.
    fn feed(
        &mut self,
        raw: &[u8],
        parameters: &LoginParameters<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Session>, Failed>;
}

/// The client's side of a session: the state of its present answer.
pub(crate) trait Protocol {
    /// Begin to log in; append to `out` what the client sends first.
    fn login(
        parameters: &LoginParameters<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Box<dyn Handshake>, Failed>
    where
        Self: Sized;

    /// Append a request to `out`, and expect its answer. Returns the number of statements or commands.
    fn encode(&mut self, request: Request<'_>, out: &mut Vec<u8>) -> u64;

    /// Decode all of `input`; returns the outcome once the answer is complete. `types` are the columns' types as prepared.
    fn decode(
        &mut self,
        input: &[u8],
        types: &[u8],
        work: &mut Work,
    ) -> Result<Option<Outcome>, ConnectionError>;

    /// Append a value as it is written in the text of a request.
    fn quote(out: &mut Vec<u8>, bytes: &[u8])
    where
        Self: Sized;

    /// Append the message that a client sends before it closes a connection, if any.
    fn goodbye(&self, _out: &mut Vec<u8>) {}

    /// Receives the commands of a request, to expect their replies; `None` if requests hold statements.
    fn commands(&mut self) -> Option<&mut dyn Expects> {
        None
    }

    /// The results of a request's commands.
    fn counts(&self) -> Option<&CommandCounts> {
        None
    }

    /// Whether unsolicited bytes of the server may follow the end of an answer in one read.
    fn allows_unsolicited(&self) -> bool {
        false
    }
}

macro_rules! protocols {
    ($($name:ident($state:ty)),+ $(,)?) => {
        /// The protocol of one session.
        #[derive(Debug)]
        pub(crate) enum Replies {
            $($name($state)),+
        }

        impl Replies {
            #[inline]
            pub(crate) fn encode(&mut self, request: Request<'_>, out: &mut Vec<u8>) -> u64 {
                match self { $(Self::$name(session) => session.encode(request, out)),+ }
            }

            #[inline]
            pub(crate) fn decode(
                &mut self,
                input: &[u8],
                types: &[u8],
                work: &mut Work,
            ) -> Result<Option<Outcome>, ConnectionError> {
                match self { $(Self::$name(session) => session.decode(input, types, work)),+ }
            }

            pub(crate) fn goodbye(&self, out: &mut Vec<u8>) {
                match self { $(Self::$name(session) => session.goodbye(out)),+ }
            }

            pub(crate) fn commands(&mut self) -> Option<&mut dyn Expects> {
                match self { $(Self::$name(session) => session.commands()),+ }
            }

            #[inline]
            pub(crate) fn counts(&self) -> Option<&CommandCounts> {
                match self { $(Self::$name(session) => Protocol::counts(session)),+ }
            }

            pub(crate) fn allows_unsolicited(&self) -> bool {
                match self { $(Self::$name(session) => session.allows_unsolicited()),+ }
            }
        }
    };
}

protocols! {
    MySql(howfar_wire::mysql::Answer),
    Postgres(howfar_wire::postgres::Answer),
    Redis(howfar_wire::redis::Replies),
    Memcached(howfar_wire::memcached::Replies),
}

impl Replies {
    /// Append a request to run the SQL that `write` appends, as text.
    pub(crate) fn query_with(&self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        match self {
            Self::MySql(_) => howfar_wire::mysql::command::query_with(out, write),
            Self::Postgres(_) => howfar_wire::postgres::request::query_with(out, write),
            Self::Redis(_) | Self::Memcached(_) => unreachable!("a store of keys speaks no SQL"),
        }
    }

    /// Append a request to run SQL of any length, as text.
    pub(crate) fn query(&self, out: &mut Vec<u8>, sql: &[u8]) {
        match self {
            Self::MySql(_) => howfar_wire::mysql::command::query(out, sql),
            _ => self.query_with(out, |out| out.extend_from_slice(sql)),
        }
    }
}

/// Begin to log in with the protocol of the workload.
pub(crate) fn login(
    parameters: &LoginParameters<'_>,
    out: &mut Vec<u8>,
) -> Result<Box<dyn Handshake>, Failed> {
    use howfar_wire::{memcached, mysql, postgres, redis};
    let protocol = parameters.program.commands().map(Commands::protocol);
    match protocol {
        None => match parameters.program.protocol() {
            SqlProtocol::Mysql => mysql::Answer::login(parameters, out),
            SqlProtocol::Postgresql => postgres::Answer::login(parameters, out),
        },
        Some(jobs::Protocol::Resp2 | jobs::Protocol::Resp3) => {
            redis::Replies::login(parameters, out)
        }
        Some(jobs::Protocol::MemcachedText | jobs::Protocol::MemcachedMeta) => {
            memcached::Replies::login(parameters, out)
        }
    }
}

fn key_value_login(
    replies: Replies,
    parameters: &LoginParameters<'_>,
    out: &mut Vec<u8>,
) -> Result<Box<dyn Handshake>, Failed> {
    let Some(commands) = parameters.program.commands() else {
        return Err(internal("a key-value store for a workload of statements"));
    };
    let handshake = KeyValueHandshake::begin(commands.protocol(), replies, parameters, out)?;
    Ok(Box::new(handshake))
}

/// Append the commands of `request`, and register them with `replies`.
#[inline]
fn encode_commands(request: Request<'_>, out: &mut Vec<u8>, replies: &mut impl Expects) -> u64 {
    let Request {
        program,
        due,
        cursor,
        ..
    } = request;
    let Some(commands) = program.commands() else {
        unreachable!("a session of commands belongs to a workload of commands")
    };
    commands.write(due, cursor, out, replies)
}

#[inline]
fn commands_outcome(
    ended: Result<bool, keyvalue::Malformed>,
) -> Result<Option<Outcome>, ConnectionError> {
    match ended {
        Ok(ended) => Ok(ended.then_some(Outcome::Commands)),
        Err(error) => Err(ConnectionError::MalformedKeyValue(error)),
    }
}
