//! Finds the round trips between a client and its server in the bytes that both send and their times. No I/O, no clock.
//!
//! Start at [`Conversation`]. `digest` replaces the literals of statements; `frame` finds messages, even if bytes between them were not
//! kept; `mysql`, `postgres`, `redis` and `memcached` decode commands and, with `howfar_wire`, answers; `http` reads paths. `capture`,
//! `layers` and `segments` reconstruct the bytes from captured packets. No literal leaves this crate: a statement is reduced to words
//! and punctuation, a command is one of a fixed list, a path keeps only those query parameters that distinguish pages, and values
//! leave only as a salted hash.

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

/// The part of a connection's life that a request or round trip belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    Connect,
    #[default]
    Operation,
    /// Inside TLS, soon after the handshake: either login or operation.
    Hidden,
    Close,
}

/// One request that a client made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) command: &'static str,
    /// A statement without its literals, or another name of the request.
    pub(crate) digest: Option<String>,
    /// Salted hash of the literals, keys or values; None if it is unknown.
    pub(crate) keys: Option<u64>,
    pub(crate) phase: Phase,
    /// Whether a round trip takes its name from this request; not from auxiliary requests, such as PostgreSQL's Describe.
    pub(crate) names_round_trip: bool,
    pub(crate) is_answered: bool,
}

impl Request {
    pub(crate) fn new(command: &'static str) -> Self {
        Self {
            command,
            digest: None,
            keys: None,
            phase: Phase::Operation,
            names_round_trip: true,
            is_answered: true,
        }
    }

    pub(crate) fn auxiliary(command: &'static str) -> Self {
        Self {
            names_round_trip: false,
            ..Self::new(command)
        }
    }

    /// A request that servers do not answer, so that the client does not wait.
    pub(crate) fn unanswered(command: &'static str) -> Self {
        Self {
            is_answered: false,
            ..Self::auxiliary(command)
        }
    }

    pub(crate) fn from_statement(statement: Statement) -> Self {
        Self {
            command: statement.command,
            digest: Some(statement.text),
            keys: Some(statement.keys),
            ..Self::new("")
        }
    }

    pub(crate) fn with_phase(mut self, phase: Phase) -> Self {
        self.phase = phase;
        self
    }
}

/// A decoder's report on the bytes of one call.
#[derive(Debug, Default)]
pub(crate) struct DecoderReport {
    pub(crate) requests: Vec<Request>,
    /// The server will answer the client's bytes, even if `requests` does not show that; assumed if no decoder knows the protocol.
    pub(crate) expects_answer: bool,
    /// The client's bytes end where a message ends.
    pub(crate) is_between_messages: bool,
    /// A name for the bytes, used if no request gives one.
    pub(crate) name: Option<&'static str>,
    pub(crate) failed: bool,
    pub(crate) rows: Rows,
    /// Messages that the server sent unrequested, and their bytes.
    pub(crate) pushes: u64,
    pub(crate) pushed_bytes: u64,
    /// Bytes so far of an incomplete message that may be a push or an answer.
    pub(crate) undecided_bytes: u64,
    /// Reasons why a part of the traffic is unknown.
    pub(crate) unknown: Vec<&'static str>,
}

/// Rows of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Rows {
    #[default]
    Uncounted,
    Counted(u64),
    /// Part of the answer was not seen, and perhaps rows with it.
    Missed,
}

impl Rows {
    pub(crate) fn add(&mut self, count: u64) {
        *self = self.combine(Self::Counted(count));
    }

    pub(crate) fn combine(self, other: Self) -> Self {
        match (self, other) {
            (Self::Missed, _) | (_, Self::Missed) => Self::Missed,
            (Self::Uncounted, rows) | (rows, Self::Uncounted) => rows,
            (Self::Counted(left), Self::Counted(right)) => Self::Counted(left + right),
        }
    }
}

/// The reason why the rest of a connection cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnreadableReason(pub(crate) &'static str);

pub(crate) const ENCRYPTED: UnreadableReason = UnreadableReason("encrypted");
pub(crate) const COMPRESSED: UnreadableReason = UnreadableReason("compressed");
/// After such a request the server sends data unrequested, and the client answers.
pub(crate) const REPLICATION_STREAM: UnreadableReason = UnreadableReason("replication stream");
/// After Memcached's `watch` the server sends log lines unrequested.
pub(crate) const LOG_STREAM: UnreadableReason = UnreadableReason("stream of log lines");
pub(crate) const NOT_UNDERSTOOD: UnreadableReason = UnreadableReason("protocol not understood");
pub(crate) const OPENED_BEFORE_RECORDING: UnreadableReason =
    UnreadableReason("connection opened before the recording");
/// Some requests were not seen completely, so there may be more requests than are counted.
pub(crate) const REQUESTS_MISSED: &str = "requests in bytes that were not kept or captured";

impl UnreadableReason {
    /// Whether the connection carries no more round trips.
    pub(crate) fn is_stream(self) -> bool {
        self == REPLICATION_STREAM || self == LOG_STREAM
    }
}

/// The member of `names` that equals `word`, ignoring case, else "other": the client's own words are never stored.
pub(crate) fn known_name(names: &[&'static str], word: &[u8]) -> &'static str {
    names
        .iter()
        .find(|name| name.as_bytes().eq_ignore_ascii_case(word))
        .copied()
        .unwrap_or("other")
}
