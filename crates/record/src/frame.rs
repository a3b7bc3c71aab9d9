//! Finds length-prefixed messages, and lines, in a stream that comes in arbitrary pieces, some of which may not have been kept.

use std::str::FromStr;

use crate::{Dark, NOT_UNDERSTOOD};

/// Maximum bytes of a line in a line protocol.
pub(crate) const LONGEST_LINE: usize = 64 * 1024;

/// Layout of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// Three bytes of length, little-endian, then the sequence number.
    Mysql,
    /// A type, then a big-endian length that includes itself.
    Postgres,
    /// The first message of a client: a length without a type.
    PostgresStartup,
    /// Memcached's binary protocol: 24 bytes, with the opcode and the length of the body.
    Memcached,
}

impl Style {
    const fn header(self) -> usize {
        match self {
            Self::Mysql | Self::PostgresStartup => 4,
            Self::Postgres => 5,
            Self::Memcached => 24,
        }
    }

    /// The message's kind and the length of its body; None if this is not a header.
    fn parse(self, head: &[u8]) -> Option<(u8, usize)> {
        let big = |from: usize| {
            let bytes: [u8; 4] = head[from..from + 4].try_into().expect("four bytes");
            u32::from_be_bytes(bytes) as usize
        };
        match self {
            Self::Mysql => {
                let length = usize::from(head[0])
                    | (usize::from(head[1]) << 8)
                    | (usize::from(head[2]) << 16);
                Some((head[3], length))
            }
            Self::Postgres => Some((head[0], big(1).checked_sub(4)?)),
            Self::PostgresStartup => Some((0, big(0).checked_sub(4)?)),
            Self::Memcached => Some((head[1], big(8))),
        }
    }
}

/// A complete message.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u8,
    pub(crate) length: usize,
    /// The first bytes, as many as are kept.
    pub(crate) head: &'a [u8],
}

impl Message<'_> {
    pub(crate) fn is_whole(&self) -> bool {
        self.head.len() == self.length
    }
}

/// Finds the messages of a stream.
#[derive(Debug)]
pub(crate) struct Framer {
    pub(crate) style: Style,
    /// How many first bytes of each message are kept, from the next message on.
    pub(crate) keep: usize,
    header: [u8; 24],
    header_len: usize,
    missing: usize,
    kind: u8,
    length: usize,
    head: Vec<u8>,
    /// Bytes in the middle of the message were not seen.
    has_hole: bool,
    lost: bool,
    /// Set by the caller: the current message is one that the server sent unrequested.
    pub(crate) is_own: bool,
}

impl Framer {
    /// Keeps the first `keep` bytes of each message.
    pub(crate) fn new(style: Style, keep: usize) -> Self {
        Self {
            style,
            keep,
            header: [0; 24],
            header_len: 0,
            missing: 0,
            kind: 0,
            length: 0,
            head: Vec::new(),
            has_hole: false,
            lost: false,
            is_own: false,
        }
    }

    /// Resynchronise at a change of direction, where a message begins.
    pub(crate) fn restart_if_lost(&mut self) {
        if self.lost {
            self.lost = false;
            self.header_len = 0;
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    pub(crate) fn lose(&mut self) {
        self.lost = true;
    }

    /// Whether the next byte begins a message.
    pub(crate) fn is_between(&self) -> bool {
        self.header_len == 0 && !self.lost
    }

    /// Consume `input`, then the `skipped` bytes behind it that were not kept, up to the end of a message; None if more bytes must
    /// come. A message with a hole keeps the bytes before the hole. If a message begins in a hole, the position is lost.
    pub(crate) fn next<'a>(
        &'a mut self,
        input: &mut &[u8],
        skipped: &mut usize,
    ) -> Option<Message<'a>> {
        if self.lost || !self.has_header(input, skipped) {
            return None;
        }
        let part = self.missing.min(input.len());
        if !self.has_hole {
            let kept = part.min(self.keep - self.head.len());
            self.head.extend_from_slice(&input[..kept]);
        }
        self.missing -= part;
        *input = &input[part..];
        if self.missing > 0 && *skipped > 0 {
            let part = self.missing.min(*skipped);
            self.has_hole = true;
            self.missing -= part;
            *skipped -= part;
        }
        if self.missing > 0 {
            return None;
        }
        self.header_len = 0;
        Some(Message {
            kind: self.kind,
            length: self.length,
            head: &self.head,
        })
    }

    fn has_header(&mut self, input: &mut &[u8], skipped: &mut usize) -> bool {
        let size = self.style.header();
        if self.header_len == size {
            return true;
        }
        let part = (size - self.header_len).min(input.len());
        self.header[self.header_len..self.header_len + part].copy_from_slice(&input[..part]);
        self.header_len += part;
        *input = &input[part..];
        if self.header_len < size {
            self.lost |= std::mem::take(skipped) > 0;
            return false;
        }
        let Some((kind, length)) = self.style.parse(&self.header[..size]) else {
            self.lost = true;
            return false;
        };
        (self.kind, self.length, self.missing) = (kind, length, length);
        self.head.clear();
        self.has_hole = false;
        true
    }

    /// The header of the message that [`Framer::next`] returned last, or returns next.
    pub(crate) fn last_header(&self) -> &[u8] {
        &self.header[..self.style.header()]
    }
}

/// Consume the rest of a line from `rest`; `line` has what came before. Returns the line without its line end, once that has come.
pub(crate) fn take_line(rest: &mut &[u8], line: &mut Vec<u8>) -> Result<Option<Vec<u8>>, Dark> {
    let end = rest.iter().position(|&byte| byte == b'\n');
    let taken = end.map_or(rest.len(), |end| end + 1);
    if line.len() + taken > LONGEST_LINE {
        return Err(NOT_UNDERSTOOD);
    }
    line.extend_from_slice(&rest[..taken]);
    *rest = &rest[taken..];
    Ok(end.map(|_| {
        let mut whole = std::mem::take(line);
        whole.truncate(whole.trim_ascii_end().len());
        whole
    }))
}

pub(crate) fn number<T: FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}
