//! Splits a stream of replies, cut anywhere, into tokens. The scanner stores an incomplete line and the open aggregates, never a
//! value.

use crate::keyvalue::{Lines, Malformed, parse_unsigned};

/// Maximum nesting depth of aggregates. Redis' own replies reach about ten.
pub const MAX_DEPTH: usize = 32;
/// Maximum length of a string: twice the servers' default limit.
const MAX_BLOCK_BYTES: u64 = 1 << 30;
/// Maximum elements of an aggregate: the server's own bound.
const MAX_ELEMENTS: u64 = 1 << 31;
/// Length of the CRLF that follows a block.
const CRLF_LEN: usize = 2;

/// The type of a reply, or of a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Simple,
    Error,
    Integer,
    Null,
    Boolean,
    Double,
    BigNumber,
    Bulk,
    BulkError,
    Verbatim,
    Array,
    Set,
    Map,
    /// Data about the value that follows; not a value itself.
    Attribute,
    /// An unrequested message between replies.
    Push,
}

/// A part of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token<'a> {
    /// A value on a line, without the byte that gives its kind. Numbers are valid.
    Line(Kind, &'a [u8]),
    /// The start of a string of this many bytes, which follow as `Part`s, then a `Close`.
    Block(Kind, u64),
    Part(&'a [u8]),
    /// The start of an aggregate of this many values; a map's keys and values count separately. An aggregate of 0 values is complete,
    /// and no `Close` follows.
    Open(Kind, u64),
    Close(Kind),
}

/// The position of the stream within a reply.
#[derive(Debug, Default)]
pub struct Scanner {
    lines: Lines,
    position: Position,
}

#[derive(Debug, Default)]
struct Position {
    /// Bytes of the block still to come, including its CRLF.
    block_bytes_left: usize,
    block: Option<Kind>,
    /// Open aggregates, each with the number of its values still to come.
    open_aggregates: Vec<(Kind, u64)>,
}

impl Scanner {
    /// Take tokens from `input` until a top-level value is complete, and return its kind; `None` if `input` is used up before that.
    #[inline]
    pub fn next(
        &mut self,
        input: &mut &[u8],
        sink: &mut impl FnMut(Token<'_>) -> Result<(), Malformed>,
    ) -> Result<Option<Kind>, Malformed> {
        while !input.is_empty() {
            let ended_kind = if self.position.block.is_some() {
                self.position.consume_block(input, sink)?
            } else {
                match self.lines.next(input)? {
                    Some(line) => self.position.parse_line(line, sink)?,
                    None => None,
                }
            };
            if let Some(kind) = ended_kind {
                if let Some(top_level) = self.position.close_values(kind, sink)? {
                    return Ok(Some(top_level));
                }
            }
        }
        Ok(None)
    }

    /// Skip `count` bytes that are missing from the stream. Returns false if they reach beyond the current string: the position in
    /// the stream is then lost.
    pub fn skip(&mut self, count: usize) -> bool {
        let is_within_block = self.position.block_bytes_left > count;
        if is_within_block {
            self.position.block_bytes_left -= count;
        }
        is_within_block || count == 0
    }
}

impl Position {
    /// Parse a line; returns the kind of the value that it ends, if any.
    #[inline]
    fn parse_line(
        &mut self,
        line: &[u8],
        sink: &mut impl FnMut(Token<'_>) -> Result<(), Malformed>,
    ) -> Result<Option<Kind>, Malformed> {
        let Some((&first, rest)) = line.split_first() else {
            return Err(Malformed::Unexpected("an empty line where a reply begins"));
        };
        let kind = match first {
            b'$' => return self.open_block(Kind::Bulk, rest, sink),
            b'*' => return self.open_aggregate(Kind::Array, rest, sink),
            b'+' => Kind::Simple,
            b':' => Kind::Integer,
            b'-' => Kind::Error,
            b'_' => Kind::Null,
            b'#' => Kind::Boolean,
            b',' => Kind::Double,
            b'(' => Kind::BigNumber,
            b'!' => return self.open_block(Kind::BulkError, rest, sink),
            b'=' => return self.open_block(Kind::Verbatim, rest, sink),
            b'~' => return self.open_aggregate(Kind::Set, rest, sink),
            b'%' => return self.open_aggregate(Kind::Map, rest, sink),
            b'|' => return self.open_aggregate(Kind::Attribute, rest, sink),
            b'>' => return self.open_aggregate(Kind::Push, rest, sink),
            other => return Err(Malformed::UnknownKind(other)),
        };
        check_text(kind, rest)?;
        sink(Token::Line(kind, rest))?;
        Ok(Some(kind))
    }

    #[inline]
    fn open_block(
        &mut self,
        kind: Kind,
        digits: &[u8],
        sink: &mut impl FnMut(Token<'_>) -> Result<(), Malformed>,
    ) -> Result<Option<Kind>, Malformed> {
        if kind == Kind::Bulk && digits == b"-1" {
            sink(Token::Line(Kind::Null, &[]))?;
            return Ok(Some(Kind::Null));
        }
        let length = parse_unsigned(digits, "the length of a string")?;
        if length > MAX_BLOCK_BYTES {
            return Err(Malformed::Number("the length of a string"));
        }
        sink(Token::Block(kind, length))?;
        self.block_bytes_left = length as usize + CRLF_LEN;
        self.block = Some(kind);
        Ok(None)
    }

    fn open_aggregate(
        &mut self,
        kind: Kind,
        digits: &[u8],
        sink: &mut impl FnMut(Token<'_>) -> Result<(), Malformed>,
    ) -> Result<Option<Kind>, Malformed> {
        if kind == Kind::Array && digits == b"-1" {
            sink(Token::Line(Kind::Null, &[]))?;
            return Ok(Some(Kind::Null));
        }
        if kind == Kind::Push && !self.open_aggregates.is_empty() {
            return Err(Malformed::Unexpected("a push inside a reply"));
        }
        let count = parse_unsigned(digits, "the number of elements")?;
        if count > MAX_ELEMENTS {
            return Err(Malformed::Number("the number of elements"));
        }
        let has_pairs = matches!(kind, Kind::Map | Kind::Attribute);
        let values = count * if has_pairs { 2 } else { 1 };
        if values > 0 && self.open_aggregates.len() == MAX_DEPTH {
            return Err(Malformed::TooDeep(MAX_DEPTH));
        }
        sink(Token::Open(kind, values))?;
        if values > 0 {
            self.open_aggregates.push((kind, values));
            return Ok(None);
        }
        // An empty attribute is not a value.
        Ok((kind != Kind::Attribute).then_some(kind))
    }

    #[inline]
    fn consume_block(
        &mut self,
        input: &mut &[u8],
        sink: &mut impl FnMut(Token<'_>) -> Result<(), Malformed>,
    ) -> Result<Option<Kind>, Malformed> {
        if self.block_bytes_left > CRLF_LEN {
            let (part, rest) = input.split_at(input.len().min(self.block_bytes_left - CRLF_LEN));
            sink(Token::Part(part))?;
            self.block_bytes_left -= part.len();
            *input = rest;
        }
        while let Some((&byte, rest)) = input.split_first() {
            if byte
                != if self.block_bytes_left == CRLF_LEN {
                    b'\r'
                } else {
                    b'\n'
                }
            {
                return Err(Malformed::LineEnd);
            }
            *input = rest;
            self.block_bytes_left -= 1;
            if self.block_bytes_left == 0 {
                let ended = self.block.take();
                if let Some(kind) = ended {
                    sink(Token::Close(kind))?;
                }
                return Ok(ended);
            }
        }
        Ok(None)
    }

    /// Handle the end of a value, which may also end the aggregates around it. Returns the kind of the top-level value if that has
    /// ended.
    #[inline]
    fn close_values(
        &mut self,
        mut kind: Kind,
        sink: &mut impl FnMut(Token<'_>) -> Result<(), Malformed>,
    ) -> Result<Option<Kind>, Malformed> {
        while let Some((aggregate, values_left)) = self.open_aggregates.last_mut() {
            *values_left -= 1;
            if *values_left > 0 {
                return Ok(None);
            }
            kind = *aggregate;
            self.open_aggregates.pop();
            sink(Token::Close(kind))?;
            if kind == Kind::Attribute {
                return Ok(None);
            }
        }
        Ok(Some(kind))
    }
}

/// Check that a line's text is valid for its kind.
#[inline]
fn check_text(kind: Kind, text: &[u8]) -> Result<(), Malformed> {
    let is_valid = match kind {
        Kind::Null => text.is_empty(),
        Kind::Boolean => matches!(text, b"t" | b"f"),
        Kind::Integer => std::str::from_utf8(text).is_ok_and(|text| text.parse::<i64>().is_ok()),
        Kind::Double => std::str::from_utf8(text).is_ok_and(|text| text.parse::<f64>().is_ok()),
        Kind::BigNumber => {
            let digits = text.strip_prefix(b"-").unwrap_or(text);
            !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
        }
        _ => true,
    };
    if is_valid {
        Ok(())
    } else {
        Err(Malformed::Number("a reply's value"))
    }
}
