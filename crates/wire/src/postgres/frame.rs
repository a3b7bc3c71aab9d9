//! Splits a stream that is cut anywhere into messages: a type, a length that includes itself, and a body.

use super::Malformed;
use crate::fill_up_to;

/// Bytes of a message's type and length.
pub const HEADER_LEN: usize = 5;
/// Bytes that the length includes in addition to the body.
const LENGTH_BYTES: i32 = 4;

/// Parse a header into the message's type and the length of its body.
#[inline]
pub(super) fn parse_header(bytes: [u8; HEADER_LEN]) -> Result<(u8, usize), Malformed> {
    let [kind, length @ ..] = bytes;
    let length = i32::from_be_bytes(length);
    if length < LENGTH_BYTES {
        return Err(Malformed::Length(length));
    }
    Ok((kind, (length - LENGTH_BYTES) as usize))
}

/// Reassembles short messages: those of a login, and small answers.
#[derive(Debug)]
pub struct Framer {
    /// Maximum length of a body.
    limit: usize,
    partial_message: Vec<u8>,
}

impl Framer {
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            partial_message: Vec::new(),
        }
    }

    /// Take the next message, its type and body, from `input`; `None` if `input` is used up before it is complete.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<(u8, Vec<u8>)>, Malformed> {
        fill_up_to(&mut self.partial_message, HEADER_LEN, input);
        let Some(&header) = self.partial_message.first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let (kind, length) = parse_header(header)?;
        if length > self.limit {
            return Err(Malformed::TooLong {
                size: length,
                limit: self.limit,
            });
        }
        fill_up_to(&mut self.partial_message, HEADER_LEN + length, input);
        if self.partial_message.len() < HEADER_LEN + length {
            return Ok(None);
        }
        let body = self.partial_message.split_off(HEADER_LEN);
        self.partial_message.clear();
        Ok(Some((kind, body)))
    }
}

/// The part of a body that is still to be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn take(&mut self, count: usize, name: &'static str) -> Result<&'a [u8], Malformed> {
        let (part, rest) = self
            .0
            .split_at_checked(count)
            .ok_or(Malformed::Short(name))?;
        self.0 = rest;
        Ok(part)
    }

    pub(super) fn byte(&mut self, name: &'static str) -> Result<u8, Malformed> {
        Ok(self.take(1, name)?[0])
    }

    pub(super) fn int16(&mut self, name: &'static str) -> Result<i16, Malformed> {
        let bytes = self.take(2, name)?;
        Ok(i16::from_be_bytes([bytes[0], bytes[1]]))
    }

    pub(super) fn int32(&mut self, name: &'static str) -> Result<i32, Malformed> {
        let bytes = self.take(4, name)?;
        Ok(i32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Text up to a zero byte, which is consumed too.
    pub(super) fn text(&mut self, name: &'static str) -> Result<&'a [u8], Malformed> {
        let end = self.0.iter().position(|&byte| byte == 0);
        let text = self.take(end.ok_or(Malformed::Short(name))?, name)?;
        self.0 = &self.0[1..];
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_reassembled_from_any_pieces() {
        let stream = b"Z\0\0\0\x05IS\0\0\0\x07abcN\0\0\0\x04";
        for size in 1..=stream.len() {
            let (mut framer, mut messages) = (Framer::new(3), Vec::new());
            for mut piece in stream.chunks(size) {
                while let Some(message) = framer.next(&mut piece).expect("the messages are valid") {
                    messages.push(message);
                }
            }
            let expected = [(b'Z', &b"I"[..]), (b'S', b"abc"), (b'N', b"")];
            assert_eq!(messages, expected.map(|(kind, body)| (kind, body.to_vec())));
        }
    }

    #[test]
    fn an_impossible_length_is_refused() {
        let next = |stream: &[u8]| Framer::new(100).next(&mut &stream[..]);
        assert_eq!(next(b"Z\0\0\0\x03"), Err(Malformed::Length(3)));
        assert_eq!(next(b"Z\xff\xff\xff\xff"), Err(Malformed::Length(-1)));
        let too_long = Malformed::TooLong {
            size: 101,
            limit: 100,
        };
        assert_eq!(next(b"Z\0\0\0\x69"), Err(too_long));
    }
}
