//! A session with a server: what a login needs and yields, and the interface that the engine needs of a protocol.
//!
//! A session's protocol is a variant of one `enum`, so that one event loop serves all and the hot path calls nothing through a
//! pointer. `protocol` has the implementations, `login` and `handshake` the logins.

use howfar_contract::Failed;
use howfar_contract::events::StepName;
use howfar_contract::jobs::{self, ServerLogin, SqlProtocol, Target};
use howfar_wire::keyvalue::{CommandCounts, ErrorReply, ExpectReplies};
use howfar_wire::mysql::ServerError;
use howfar_wire::mysql::answer::AnswerCounts;
use howfar_wire::mysql::handshake::{self, Account, Greeting};
use howfar_wire::mysql::row::RowHandling;
use howfar_wire::recognise::PeerProtocol;

use crate::channel::{Channel, ChannelOptions, TlsFacts};
use crate::connection_error::ConnectionError;
use crate::failure::ExpectedProtocol;
use crate::statements::Statements;
use crate::workload::commands::Commands;
use crate::workload::{Cursor, DueStatement, Memory, Program};

/// The parameters shared by all logins.
pub(crate) struct LoginParameters<'a> {
    pub(crate) target: &'a Target,
    pub(crate) account: Account<'a>,
    pub(crate) channel_options: &'a ChannelOptions,
    pub(crate) program: &'a Program,
    /// Column types are needed, because rows will be decoded.
    pub(crate) decode: bool,
    /// All transactions are read only, in a protocol that can request this with the login.
    pub(crate) read_only: bool,
}

impl<'a> LoginParameters<'a> {
    /// Parameters for sessions with the server of `login` that may write, and whose rows are not decoded.
    pub(crate) fn from_login(
        login: &'a ServerLogin,
        channel_options: &'a ChannelOptions,
        program: &'a Program,
    ) -> Self {
        let account = Account {
            user: &login.user,
            password: &login.password,
            database: &login.database,
        };
        Self::new(&login.target, account, channel_options, program)
    }

    /// Parameters for sessions that may write, and whose rows are not decoded.
    pub(crate) fn new(
        target: &'a Target,
        account: Account<'a>,
        channel_options: &'a ChannelOptions,
        program: &'a Program,
    ) -> Self {
        Self {
            target,
            account,
            channel_options,
            program,
            decode: false,
            read_only: false,
        }
    }

    /// The protocol that the server's first bytes must show.
    pub(crate) fn expected_protocol(&self) -> ExpectedProtocol {
        let protocol = self.program.commands().map(Commands::protocol);
        match (protocol, self.program.protocol()) {
            (Some(jobs::Protocol::Resp2 | jobs::Protocol::Resp3), _) => ExpectedProtocol {
                protocol: PeerProtocol::Redis,
                begins_with_tls: self.channel_options.requested_features().tls,
            },
            (Some(jobs::Protocol::MemcachedText | jobs::Protocol::MemcachedMeta), _) => {
                ExpectedProtocol {
                    protocol: PeerProtocol::Memcached,
                    begins_with_tls: self.channel_options.requested_features().tls,
                }
            }
            (None, SqlProtocol::Mysql) => ExpectedProtocol {
                protocol: PeerProtocol::MySql,
                begins_with_tls: false,
            },
            (None, SqlProtocol::Postgresql) => ExpectedProtocol {
                protocol: PeerProtocol::Postgres,
                begins_with_tls: self.channel_options.begins_directly(),
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
    /// Round trips since the transport was connected, with those of TLS: see [`PacketStream::round_trips`].
    pub(crate) round_trips: u32,
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
    pub(crate) negotiated: handshake::Session,
    /// The authentication method that the server accepted.
    pub(crate) auth_plugin: &'static str,
}

/// How an answer ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done(AnswerCounts),
    Failed(ServerError),
    /// Commands are answered, successfully or not: see [`Protocol::counts`].
    Commands,
}

/// Why a server refused a request.
#[derive(Debug)]
pub(crate) enum ServerRefusal {
    Sql(ServerError),
    Command(ErrorReply),
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
    fn describe(self) -> (&'static str, &'static str, &'static str) {
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

    /// What the server has to do, such as `send its greeting`.
    pub(crate) fn to_do(self) -> String {
        let (verb, _, object) = self.describe();
        format!("{verb} {object}")
    }

    /// Before what, such as `before it sent its greeting`.
    pub(crate) fn before(self) -> String {
        let (_, verb, object) = self.describe();
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
        handling: &mut RowHandling,
    ) -> Result<Option<Outcome>, ConnectionError>;

    /// Append a value as it is written in the text of a request.
    fn quote(out: &mut Vec<u8>, bytes: &[u8])
    where
        Self: Sized;

    /// Append the message that a client sends before it closes a connection, if any.
    fn goodbye(&self, _out: &mut Vec<u8>) {}

    /// Receives the commands of a request, to expect their replies; `None` if requests hold statements.
    fn commands(&mut self) -> Option<&mut dyn ExpectReplies> {
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
                handling: &mut RowHandling,
            ) -> Result<Option<Outcome>, ConnectionError> {
                match self { $(Self::$name(session) => session.decode(input, types, handling)),+ }
            }

            fn goodbye(&self, out: &mut Vec<u8>) {
                match self { $(Self::$name(session) => session.goodbye(out)),+ }
            }

            pub(crate) fn commands(&mut self) -> Option<&mut dyn ExpectReplies> {
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
    /// The message that a client sends before it closes a connection, as bytes for its socket; empty if there is none.
    pub(crate) fn sealed_goodbye(&self, channel: &mut Channel) -> Vec<u8> {
        let (mut goodbye, mut bytes) = (Vec::new(), Vec::new());
        self.goodbye(&mut goodbye);
        // If sealing fails, the goodbye is left out or cut; the connection is closed anyway.
        let _ = channel.seal(&goodbye, &mut bytes);
        bytes
    }

    /// Append a request to run the SQL that `write` appends, as text.
    pub(crate) fn query_with(&self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        match self {
            Self::MySql(_) => howfar_wire::mysql::command::query_with(out, write),
            Self::Postgres(_) => howfar_wire::postgres::request::query_with(out, write),
            Self::Redis(_) | Self::Memcached(_) => {
                unreachable!("no SQL is sent to a key-value store")
            }
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
