//! What a client and its server say to each other, as round trips: bytes and times in, values out. No I/O, no clock.
//!
//! Start at [`Conversation`]. `digest` replaces the literals of statements; `frame` finds messages, also where bytes between them
//! were not kept; `mysql`, `postgres`, `redis` and `memcached` read commands, and packets of answers as `howfar_wire` has them; `http` reads
//! paths. `capture` and `segments` make the same of captured packets. No literal leaves this crate: a statement is words and punctuation, a
//! command one of a list, a path has no query, and values leave as a salted hash.

mod capture;
mod conversation;
mod digest;
mod frame;
mod http;
mod memcached;
mod mysql;
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
    /// It gives the round trip its name: it does something by itself and is answered.
    pub(crate) leads: bool,
}

impl Request {
    pub(crate) fn new(command: &'static str) -> Self {
        Self {
            command,
            digest: None,
            keys: None,
            phase: Phase::Operation,
            leads: true,
        }
    }

    pub(crate) fn follows(command: &'static str) -> Self {
        Self {
            leads: false,
            ..Self::new(command)
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
    pub(crate) failed: bool,
    /// Rows that came; only where [`Heard::counts_rows`].
    pub(crate) rows: u64,
    pub(crate) counts_rows: bool,
    /// Reasons why something is not known.
    pub(crate) unknown: Vec<&'static str>,
}

/// From here on nothing of the connection can be read, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dark(pub(crate) &'static str);

pub(crate) const ENCRYPTED: Dark = Dark("encrypted");
pub(crate) const COMPRESSED: Dark = Dark("compressed");
pub(crate) const REPLICATION: Dark = Dark("replication stream");
pub(crate) const NOT_UNDERSTOOD: Dark = Dark("protocol not understood");

/// The member of `names` that `word` is, whatever its case, else "other": what is stored is ours and never the client's.
pub(crate) fn known(names: &[&'static str], word: &[u8]) -> &'static str {
    names
        .iter()
        .find(|name| name.as_bytes().eq_ignore_ascii_case(word))
        .copied()
        .unwrap_or("other")
}
