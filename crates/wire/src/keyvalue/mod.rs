//! The common parts of the protocols of Redis and Memcached: lines, length-prefixed blocks, commands on keys, and their
//! results. Each protocol also has a module of its own.

mod lines;
mod refusal;

pub use lines::MAX_LINE_BYTES;
pub(crate) use lines::{Lines, parse_unsigned, write_decimal};
pub use refusal::{ErrorReply, ErrorWord};

/// Bytes that do not follow the protocol. Nothing after them can be trusted: close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("a line of more than {MAX_LINE_BYTES} bytes")]
    LongLine,
    #[error("a line that does not end in CRLF")]
    LineEnd,
    #[error("a line that begins with byte {0}")]
    UnknownKind(u8),
    #[error("{0} is not a number, or is out of range")]
    Number(&'static str),
    #[error("nested more than {0} levels deep")]
    TooDeep(usize),
    #[error("a reply that takes more than {0} bytes")]
    TooLarge(usize),
    #[error("{0}")]
    Unexpected(&'static str),
}

/// The kind of reply that one command of a request will get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    Get,
    /// A read of this many keys at once.
    MultiGet(u16),
    /// A value set or a key deleted.
    Write,
}

/// A parser that must be told in advance which replies will come.
pub trait ExpectReplies {
    /// Begin a new request; [`ExpectReplies::expect`] follows for each of its commands.
    fn begin(&mut self);

    /// Add the reply to the request's next command.
    fn expect(&mut self, reply: Expected);
}

/// The results of the commands of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandCounts {
    /// Read commands answered without an error.
    pub reads: u32,
    /// Write commands answered without an error.
    pub writes: u32,
    /// Keys read that had a value.
    pub hits: u32,
    /// Keys read that had no value.
    pub misses: u32,
    /// Commands answered with an error, in order.
    pub errors: Vec<ErrorReply>,
}

impl CommandCounts {
    /// Prepare for the next request; memory is kept.
    pub(crate) fn clear(&mut self) {
        self.reads = 0;
        self.writes = 0;
        self.hits = 0;
        self.misses = 0;
        self.errors.clear();
    }

    /// Count a command that was answered without an error, with this number of `values`.
    pub(crate) fn count_reply(&mut self, expected: Expected, values: u32) -> Result<(), Malformed> {
        let keys = match expected {
            Expected::Get => 1,
            Expected::MultiGet(keys) => u32::from(keys),
            Expected::Write => {
                self.writes += 1;
                return Ok(());
            }
        };
        self.misses += keys
            .checked_sub(values)
            .ok_or(Malformed::Unexpected("more values than requested keys"))?;
        self.hits += values;
        self.reads += 1;
        Ok(())
    }
}
