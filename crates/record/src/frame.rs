//! Finds length-prefixed messages and lines in a stream that comes in arbitrary pieces, some of which may not have been kept.

use std::str::FromStr;

use howfar_wire::mysql::frame::parse_header;

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

    /// Parse a header into the message's kind and the length of its body; None if the header is invalid.
    fn parse(self, header: &[u8]) -> Option<(u8, usize)> {
        let read_u32 = |offset: usize| {
            let bytes = header[offset..offset + 4].try_into();
            let bytes: [u8; 4] = bytes.expect("the slice has four bytes");
            u32::from_be_bytes(bytes) as usize
        };
        match self {
            Self::Mysql => {
                let (length, sequence) = parse_header([header[0], header[1], header[2], header[3]]);
                Some((sequence, length))
            }
            Self::Postgres => Some((header[0], read_u32(1).checked_sub(4)?)),
            Self::PostgresStartup => Some((0, read_u32(0).checked_sub(4)?)),
            Self::Memcached => Some((header[1], read_u32(8))),
        }
    }
}

/// A complete message.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u8,
    pub(crate) length: usize,
    /// The first bytes of the body, as many as are kept.
    pub(crate) first_bytes: &'a [u8],
}

impl Message<'_> {
    pub(crate) fn is_complete(&self) -> bool {
        self.first_bytes.len() == self.length
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
    /// Bytes of the body still to come.
    missing: usize,
    kind: u8,
    length: usize,
    first_bytes: Vec<u8>,
    /// Bytes in the middle of the message were not seen.
    has_hole: bool,
    /// The boundaries of messages are not known any more.
    is_lost: bool,
    /// Set by the caller: the server sent the current message unrequested.
    pub(crate) is_push: bool,
}

impl Framer {
    /// A framer that keeps the first `max_kept` bytes of each message.
    pub(crate) fn new(layout: HeaderLayout, max_kept: usize) -> Self {
        Self {
            layout,
            max_kept,
            header: [0; 24],
            header_len: 0,
            missing: 0,
            kind: 0,
            length: 0,
            first_bytes: Vec::new(),
            has_hole: false,
            is_lost: false,
            is_push: false,
        }
    }

    /// Resynchronise at a change of direction, where a message begins.
    pub(crate) fn resynchronise(&mut self) {
        if self.is_lost {
            self.is_lost = false;
            self.header_len = 0;
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    pub(crate) fn mark_lost(&mut self) {
        self.is_lost = true;
    }

    /// Whether the next byte begins a message.
    pub(crate) fn is_between_messages(&self) -> bool {
        self.header_len == 0 && !self.is_lost
    }

    /// Take the next message from `input` and the `skipped` bytes after it, which were not kept; None if both are used up before it is
    /// complete. A message with a hole keeps the bytes before the hole. If a message begins in a hole, the framer is lost.
    pub(crate) fn next<'a>(
        &'a mut self,
        input: &mut &[u8],
        skipped: &mut usize,
    ) -> Option<Message<'a>> {
        if self.is_lost || !self.read_header(input, skipped) {
            return None;
        }
        let part = self.missing.min(input.len());
        if !self.has_hole {
            let kept_bytes = part.min(self.max_kept - self.first_bytes.len());
            self.first_bytes.extend_from_slice(&input[..kept_bytes]);
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
            first_bytes: &self.first_bytes,
        })
    }

    /// Consume bytes of the header; true when it is complete and valid.
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
            self.is_lost |= std::mem::take(skipped) > 0;
            return false;
        }
        let Some((kind, length)) = self.layout.parse(&self.header[..size]) else {
            self.is_lost = true;
            return false;
        };
        (self.kind, self.length, self.missing) = (kind, length, length);
        self.first_bytes.clear();
        self.has_hole = false;
        true
    }

    /// The header of the message that [`Framer::next`] returned last, or returns next.
    pub(crate) fn last_header(&self) -> &[u8] {
        &self.header[..self.layout.header_len()]
    }
}

/// Consume a line from `rest`, whose earlier part is in `line`. Returns the line without its line end once it is complete.
pub(crate) fn take_line(
    rest: &mut &[u8],
    line: &mut Vec<u8>,
) -> Result<Option<Vec<u8>>, UnreadableReason> {
    let end = rest.iter().position(|&byte| byte == b'\n');
    let length = end.map_or(rest.len(), |end| end + 1);
    if line.len() + length > MAX_LINE_BYTES {
        return Err(NOT_UNDERSTOOD);
    }
    line.extend_from_slice(&rest[..length]);
    *rest = &rest[length..];
    Ok(end.map(|_| {
        let mut complete_line = std::mem::take(line);
        complete_line.truncate(complete_line.trim_ascii_end().len());
        complete_line
    }))
}

pub(crate) fn parse_number<T: FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}
