//! What the protocols of Redis and Memcached have in common: lines, blocks of a length that a line has said, commands on keys, and
//! what became of them. Not here: either protocol.

mod lines;
mod refusal;

pub use lines::LONGEST_LINE;
pub(crate) use lines::{Lines, decimal, unsigned};
pub use refusal::{Refusal, Word};

/// Bytes that do not follow the protocol. Nothing after them can be trusted: close the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("a line of more than {LONGEST_LINE} bytes")]
    LongLine,
    #[error("a line that does not end in CRLF")]
    LineEnd,
    #[error("a line that begins with byte {0}")]
    Kind(u8),
    #[error("{0} is not a number, or is out of range")]
    Number(&'static str),
    #[error("more nested than {0} deep")]
    Deep(usize),
    #[error("a reply that takes more than {0} bytes")]
    Large(usize),
    #[error("{0}")]
    Unexpected(&'static str),
}

/// One command of a request: which reply is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    Get,
    /// So many keys at once.
    MultiGet(u16),
    /// A value set or a key deleted.
    Write,
}

/// What must know which replies are due.
pub trait Expects {
    /// A new request; each of its commands follows by [`Expects::expect`].
    fn begin(&mut self);

    fn expect(&mut self, reply: Expected);
}

/// What became of the commands of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandCounts {
    /// Commands answered well that read.
    pub reads: u32,
    /// Commands answered well that write.
    pub writes: u32,
    /// Keys of the reads that had a value, and that had none.
    pub hits: u32,
    pub misses: u32,
    /// Commands answered with an error, in order.
    pub refused: Vec<Refusal>,
}

impl CommandCounts {
    /// Ready for the next request; keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.reads = 0;
        self.writes = 0;
        self.hits = 0;
        self.misses = 0;
        self.refused.clear();
    }

    /// One command was answered well, with so many values.
    pub(crate) fn answered(&mut self, expected: Expected, values: u32) -> Result<(), Malformed> {
        let keys = match expected {
            Expected::Get => 1,
            Expected::MultiGet(keys) => u32::from(keys),
            Expected::Write => {
                self.writes += 1;
                return Ok(());
            }
        };
        self.misses += keys.checked_sub(values).ok_or(Malformed::Unexpected(
            "more values than keys were asked for",
        ))?;
        self.hits += values;
        self.reads += 1;
        Ok(())
    }
}
