//! What a client and its server say to each other, as round trips: bytes and times in, values out. No I/O, no clock.
//!
//! Start at [`Conversation`]. `digest` replaces the literals of statements; `frame` finds messages, also where bytes between them
//! were not kept; `mysql`, `postgres`, `redis` and `memcached` read commands, and packets of answers as `howfar_wire` has them; `http` reads
//! paths. `capture`, `layers` and `segments` make the same of captured packets. No literal leaves this crate: a statement is words and punctuation, a
//! command one of a list, a path has no query, and values leave as a salted hash.

mod capture;
mod conversation;
mod digest;
mod frame;
mod http;
mod layers;
mod memcached;
mod mysql;
mod parameters;
mod postgres;
mod redis;
mod salt;
mod segments;

pub use capture::{Capture, Link, Packet};
pub use conversation::{Conversation, Direction, RoundTrip, Summary};
pub use digest::{Dialect, Statement, digest};
pub use salt::Salt;
pub use segments::{Event, Segments};

/// In which part of a connection's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    Connect,
    #[default]
    Operation,
    /// Inside TLS, soon after the handshake: login or operation.
    Hidden,
    Close,
}

/// One request that a client made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) command: &'static str,
    /// A statement without its literals.
    pub(crate) digest: Option<String>,
    pub(crate) keys: Option<u64>,
    pub(crate) phase: Phase,
    /// It gives the round trip its name: it does something by itself.
    pub(crate) leads: bool,
    pub(crate) is_answered: bool,
}

impl Request {
    pub(crate) fn new(command: &'static str) -> Self {
        Self {
            command,
            digest: None,
            keys: None,
            phase: Phase::Operation,
            leads: true,
            is_answered: true,
        }
    }

    pub(crate) fn follows(command: &'static str) -> Self {
        Self {
            leads: false,
            ..Self::new(command)
        }
    }

    /// No server answers it, so nobody waits for it.
    pub(crate) fn unanswered(command: &'static str) -> Self {
        Self {
            is_answered: false,
            ..Self::follows(command)
        }
    }

    pub(crate) fn of(statement: Statement) -> Self {
        Self {
            command: statement.command,
            digest: Some(statement.text),
            keys: Some(statement.keys),
            ..Self::new("")
        }
    }

    pub(crate) fn in_phase(mut self, phase: Phase) -> Self {
        self.phase = phase;
        self
    }
}

/// What a decoder reports of the bytes that it was given.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub(crate) requests: Vec<Request>,
    /// What the client sent will be answered, also beside `requests`; without a decoder that is not known, and assumed.
    pub(crate) awaits: bool,
    /// The client's bytes end where a message ends.
    pub(crate) is_between: bool,
    /// The name of what was sent, if nothing else gives one.
    pub(crate) name: Option<&'static str>,
    pub(crate) failed: bool,
    pub(crate) rows: Rows,
    /// Messages, and bytes of them, that the server sent of its own accord.
    pub(crate) pushes: u64,
    pub(crate) pushed_bytes: u64,
    /// Bytes so far of a message that may be such a one or an answer.
    pub(crate) undecided_bytes: u64,
    /// Reasons why something is not known.
    pub(crate) unknown: Vec<&'static str>,
}

/// Rows of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Rows {
    #[default]
    Uncounted,
    Counted(u64),
    /// A part was not seen, and with it perhaps some.
    Missed,
}

impl Rows {
    pub(crate) fn add(&mut self, count: u64) {
        *self = self.and(Self::Counted(count));
    }

    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Missed, _) | (_, Self::Missed) => Self::Missed,
            (Self::Uncounted, only) | (only, Self::Uncounted) => only,
            (Self::Counted(one), Self::Counted(more)) => Self::Counted(one + more),
        }
    }
}

/// From here on nothing of the connection can be read, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dark(pub(crate) &'static str);

pub(crate) const ENCRYPTED: Dark = Dark("encrypted");
pub(crate) const COMPRESSED: Dark = Dark("compressed");
/// The server sends of its own accord from here on, and the client answers.
pub(crate) const REPLICATION: Dark = Dark("replication stream");
/// The same, of Memcached's `watch`.
pub(crate) const LOG: Dark = Dark("stream of log lines");
pub(crate) const NOT_UNDERSTOOD: Dark = Dark("protocol not understood");
pub(crate) const IN_THE_MIDDLE: Dark = Dark("connection opened before the recording");
/// Requests that were not seen whole, so that there may be more of them than are counted.
pub(crate) const REQUESTS_MISSED: &str = "requests in bytes that were not kept or captured";

impl Dark {
    /// The connection carries no round trips any more.
    pub(crate) fn is_stream(self) -> bool {
        self == REPLICATION || self == LOG
    }
}

/// The member of `names` that `word` is, whatever its case, else "other": what is stored is ours and never the client's.
pub(crate) fn known(names: &[&'static str], word: &[u8]) -> &'static str {
    names
        .iter()
        .find(|name| name.as_bytes().eq_ignore_ascii_case(word))
        .copied()
        .unwrap_or("other")
}
