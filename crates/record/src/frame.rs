//! Finds length-prefixed messages, and lines, in a stream that comes in arbitrary pieces, some of which may not have been kept.

use std::str::FromStr;

use crate::{NOT_UNDERSTOOD, UnreadableReason};

/// Maximum bytes of a line in a line protocol.
pub(crate) const MAX_LINE_BYTES: usize = 64 * 1024;

/// Layout of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderLayout {
    /// Three bytes of length, little-endian, then the sequence number.
    Mysql,
    /// A type, then a big-endian length that includes itself.
    Postgres,
    /// The first message of a client: a length without a type.
    PostgresStartup,
    /// Memcached's binary protocol: 24 bytes, with the opcode and the length of the body.
    Memcached,
}

impl HeaderLayout {
    const fn header_len(self) -> usize {
        match self {
            Self::Mysql | Self::PostgresStartup => 4,
            Self::Postgres => 5,
            Self::Memcached => 24,
        }
    }

    /// The message's kind and the length of its body; None if this is not a header.
    fn parse(self, head: &[u8]) -> Option<(u8, usize)> {
        let read_u32 = |from: usize| {
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
            Self::Postgres => Some((head[0], read_u32(1).checked_sub(4)?)),
            Self::PostgresStartup => Some((0, read_u32(0).checked_sub(4)?)),
            Self::Memcached => Some((head[1], read_u32(8))),
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
    pub(crate) fn is_complete(&self) -> bool {
        self.head.len() == self.length
    }
}

/// Finds the messages of a stream.
#[derive(Debug)]
pub(crate) struct Framer {
    pub(crate) layout: HeaderLayout,
    /// How many first bytes of each message are kept, from the next message on.
    pub(crate) max_kept: usize,
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
    pub(crate) is_push: bool,
}

impl Framer {
    /// Keeps the first `max_kept` bytes of each message.
    pub(crate) fn new(layout: HeaderLayout, max_kept: usize) -> Self {
        Self {
            layout,
            max_kept,
            header: [0; 24],
            header_len: 0,
            missing: 0,
            kind: 0,
            length: 0,
            head: Vec::new(),
            has_hole: false,
            lost: false,
            is_push: false,
        }
    }

    /// Resynchronise at a change of direction, where a message begins.
    pub(crate) fn resynchronise(&mut self) {
        if self.lost {
            self.lost = false;
            self.header_len = 0;
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    pub(crate) fn mark_lost(&mut self) {
        self.lost = true;
    }

    /// Whether the next byte begins a message.
    pub(crate) fn is_between_messages(&self) -> bool {
        self.header_len == 0 && !self.lost
    }

    /// Consume `input`, then the `skipped` bytes behind it that were not kept, up to the end of a message; None if more bytes must
    /// come. A message with a hole keeps the bytes before the hole. If a message begins in a hole, the position is lost.
    pub(crate) fn next<'a>(
        &'a mut self,
        input: &mut &[u8],
        skipped: &mut usize,
    ) -> Option<Message<'a>> {
        if self.lost || !self.read_header(input, skipped) {
            return None;
        }
        let part = self.missing.min(input.len());
        if !self.has_hole {
            let kept = part.min(self.max_kept - self.head.len());
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

    fn read_header(&mut self, input: &mut &[u8], skipped: &mut usize) -> bool {
        let size = self.layout.header_len();
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
        let Some((kind, length)) = self.layout.parse(&self.header[..size]) else {
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
        &self.header[..self.layout.header_len()]
    }
}

/// Consume the rest of a line from `rest`; `line` has what came before. Returns the line without its line end, once that has come.
pub(crate) fn take_line(
    rest: &mut &[u8],
    line: &mut Vec<u8>,
) -> Result<Option<Vec<u8>>, UnreadableReason> {
    let end = rest.iter().position(|&byte| byte == b'\n');
    let taken = end.map_or(rest.len(), |end| end + 1);
    if line.len() + taken > MAX_LINE_BYTES {
        return Err(NOT_UNDERSTOOD);
    }
    line.extend_from_slice(&rest[..taken]);
    *rest = &rest[taken..];
    Ok(end.map(|_| {
        let mut line_text = std::mem::take(line);
        line_text.truncate(line_text.trim_ascii_end().len());
        line_text
    }))
}

pub(crate) fn parse_number<T: FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}
