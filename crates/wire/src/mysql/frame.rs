//! Packets: three bytes of length, one of sequence number, the payload. A payload of 16 MiB - 1 bytes or more is split over several
//! packets.
//!
//! [`Framer`] takes bytes in any split and returns complete payloads. It is used for login and prepare; the many answers to queries
//! go through [`super::Answer`], which stores almost nothing.

use super::Malformed;

/// Length of a packet's header.
pub const HEADER_LEN: usize = 4;
/// The longest payload of one packet; the next packet continues a payload of exactly this length.
pub const MAX_PAYLOAD: usize = 0xFF_FFFF;

/// Parse a header into the payload's length and the sequence number.
#[inline]
pub fn parse_header(bytes: [u8; HEADER_LEN]) -> (usize, u8) {
    (
        usize::from(bytes[0]) | (usize::from(bytes[1]) << 8) | (usize::from(bytes[2]) << 16),
        bytes[3],
    )
}

/// Append `payload` to `out` as packets, the first with number `sequence`; returns the number that follows the last.
pub fn write_packet(out: &mut Vec<u8>, mut sequence: u8, payload: &[u8]) -> u8 {
    let mut rest = payload;
    loop {
        let (part, tail) = rest.split_at(rest.len().min(MAX_PAYLOAD));
        let length = (part.len() as u32).to_le_bytes();
        out.extend_from_slice(&[length[0], length[1], length[2], sequence]);
        out.extend_from_slice(part);
        sequence = sequence.wrapping_add(1);
        rest = tail;
        if part.len() < MAX_PAYLOAD {
            return sequence;
        }
    }
}

/// Reassembles payloads from a stream cut anywhere. Never holds more than `limit` payload bytes.
#[derive(Debug)]
pub struct Framer {
    limit: usize,
    header: [u8; HEADER_LEN],
    header_len: usize,
    /// Payload bytes of the current packet that are still to come; valid once the header is complete.
    payload_bytes_left: usize,
    /// The next packet continues the payload.
    is_continued: bool,
    payload: Vec<u8>,
    sequence: u8,
}

impl Framer {
    /// A framer at the start of a stream that refuses payloads longer than `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            header: [0; HEADER_LEN],
            header_len: 0,
            payload_bytes_left: 0,
            is_continued: false,
            payload: Vec::new(),
            sequence: 0,
        }
    }

    /// Set the number that the next packet must carry: each command restarts the count.
    pub fn expect(&mut self, sequence: u8) {
        self.sequence = sequence;
    }

    /// The number that the next packet, in either direction, carries.
    pub fn sequence(&self) -> u8 {
        self.sequence
    }

    /// Whether no payload is partly read.
    pub fn is_idle(&self) -> bool {
        self.header_len == 0 && !self.is_continued
    }

    /// Take the next payload from `input`; `None` if `input` is used up before it is complete.
    pub fn next<'a>(&'a mut self, input: &mut &[u8]) -> Result<Option<&'a [u8]>, Malformed> {
        if self.is_idle() {
            self.payload.clear();
        }
        loop {
            if self.header_len < HEADER_LEN && !self.take_header(input)? {
                return Ok(None);
            }
            let part = self.payload_bytes_left.min(input.len());
            self.payload.extend_from_slice(&input[..part]);
            *input = &input[part..];
            self.payload_bytes_left -= part;
            if self.payload_bytes_left > 0 {
                return Ok(None);
            }
            self.header_len = 0;
            if !self.is_continued {
                return Ok(Some(&self.payload));
            }
        }
    }

    /// Consume bytes of the header; true when it is complete and valid.
    fn take_header(&mut self, input: &mut &[u8]) -> Result<bool, Malformed> {
        while self.header_len < HEADER_LEN {
            let Some((&byte, rest)) = input.split_first() else {
                return Ok(false);
            };
            self.header[self.header_len] = byte;
            self.header_len += 1;
            *input = rest;
        }
        let (length, sequence) = parse_header(self.header);
        if sequence != self.sequence {
            return Err(Malformed::Sequence {
                expected: self.sequence,
                received: sequence,
            });
        }
        let size = self.payload.len() + length;
        if size > self.limit {
            return Err(Malformed::TooLong {
                size,
                limit: self.limit,
            });
        }
        self.sequence = sequence.wrapping_add(1);
        self.payload_bytes_left = length;
        self.is_continued = length == MAX_PAYLOAD;
        Ok(true)
    }
}
