//! Decodes replies into values, for logins and queries about the server, whose replies are few and small.

use super::scanner::{Kind, Scanner, Token};
use crate::keyvalue::Malformed;

/// Memory counted for an element in addition to its bytes.
const ELEMENT_BYTES: usize = std::mem::size_of::<Value>();

/// A reply.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Null,
    Simple(Vec<u8>),
    /// An error's line, whether sent as a line or as a block.
    Error(Vec<u8>),
    Integer(i64),
    Boolean(bool),
    Double(f64),
    BigNumber(Vec<u8>),
    Bulk(Vec<u8>),
    /// A verbatim string: its three-byte format (such as `txt`) and its content.
    Verbatim([u8; 3], Vec<u8>),
    Array(Vec<Value>),
    Set(Vec<Value>),
    Map(Vec<(Value, Value)>),
    Push(Vec<Value>),
}

impl Value {
    /// The bytes of a string of any kind.
    pub fn text(&self) -> Option<&[u8]> {
        match self {
            Self::Simple(bytes) | Self::Bulk(bytes) | Self::Verbatim(_, bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// Decodes replies from input that is split at arbitrary points. The memory of a reply is bounded, whatever lengths it announces. Attributes are skipped.
#[derive(Debug)]
pub struct Decoder {
    scanner: Scanner,
    builder: ReplyBuilder,
}

#[derive(Debug)]
struct ReplyBuilder {
    /// Maximum bytes of memory of a reply.
    limit: usize,
    used_bytes: usize,
    block: Vec<u8>,
    /// Open aggregates, each with its values so far.
    open: Vec<(Kind, Vec<Value>)>,
    complete: Option<Value>,
}

impl Decoder {
    /// A decoder whose replies take at most `limit` bytes of memory each.
    pub fn new(limit: usize) -> Self {
        Self {
            scanner: Scanner::default(),
            builder: ReplyBuilder {
                limit,
                used_bytes: 0,
                block: Vec::new(),
                open: Vec::new(),
                complete: None,
            },
        }
    }

    /// Take the next reply or push from `input`; `None` if `input` is used up before it is complete.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Value>, Malformed> {
        let builder = &mut self.builder;
        let complete = self
            .scanner
            .next(input, &mut |token| builder.handle_token(token))?;
        if complete.is_none() {
            return Ok(None);
        }
        builder.used_bytes = 0;
        Ok(builder.complete.take())
    }
}

impl ReplyBuilder {
    fn handle_token(&mut self, token: Token<'_>) -> Result<(), Malformed> {
        let cost = match token {
            Token::Line(_, text) => ELEMENT_BYTES + text.len(),
            Token::Part(part) => part.len(),
            Token::Block(..) | Token::Open(..) => ELEMENT_BYTES,
            Token::Close(_) => 0,
        };
        self.used_bytes += cost;
        if self.used_bytes > self.limit {
            return Err(Malformed::TooLarge(self.limit));
        }
        match token {
            Token::Line(kind, text) => self.add_value(make_scalar(kind, text)?),
            Token::Block(..) => self.block.clear(),
            Token::Part(part) => self.block.extend_from_slice(part),
            Token::Open(Kind::Attribute, 0) => {}
            Token::Open(kind, 0) => self.add_value(make_aggregate(kind, Vec::new())),
            Token::Open(kind, _) => self.open.push((kind, Vec::new())),
            Token::Close(kind @ (Kind::Bulk | Kind::BulkError | Kind::Verbatim)) => {
                let bytes = std::mem::take(&mut self.block);
                self.add_value(make_string(kind, bytes)?);
            }
            Token::Close(Kind::Attribute) => {
                self.open.pop();
            }
            Token::Close(_) => {
                if let Some((kind, values)) = self.open.pop() {
                    self.add_value(make_aggregate(kind, values));
                }
            }
        }
        Ok(())
    }

    fn add_value(&mut self, value: Value) {
        match self.open.last_mut() {
            Some((_, values)) => values.push(value),
            None => self.complete = Some(value),
        }
    }
}

fn make_scalar(kind: Kind, text: &[u8]) -> Result<Value, Malformed> {
    Ok(match kind {
        Kind::Null => Value::Null,
        Kind::Error => Value::Error(text.to_vec()),
        Kind::Boolean => Value::Boolean(text == b"t"),
        Kind::BigNumber => Value::BigNumber(text.to_vec()),
        Kind::Integer => Value::Integer(parse_number(text)?),
        Kind::Double => Value::Double(parse_number(text)?),
        _ => Value::Simple(text.to_vec()),
    })
}

/// Parse a number that the scanner has checked.
fn parse_number<T: std::str::FromStr>(text: &[u8]) -> Result<T, Malformed> {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or(Malformed::Number("a reply's value"))
}

fn make_string(kind: Kind, bytes: Vec<u8>) -> Result<Value, Malformed> {
    match (kind, bytes.split_first_chunk::<4>()) {
        (Kind::BulkError, _) => Ok(Value::Error(bytes)),
        (Kind::Verbatim, Some((&[one, two, three, b':'], text))) => {
            Ok(Value::Verbatim([one, two, three], text.to_vec()))
        }
        (Kind::Verbatim, _) => Err(Malformed::Unexpected(
            "a verbatim string without a format prefix",
        )),
        _ => Ok(Value::Bulk(bytes)),
    }
}

fn make_aggregate(kind: Kind, values: Vec<Value>) -> Value {
    match kind {
        Kind::Set => Value::Set(values),
        Kind::Push => Value::Push(values),
        Kind::Map => {
            let mut pairs = Vec::with_capacity(values.len() / 2);
            let mut values = values.into_iter();
            while let (Some(key), Some(value)) = (values.next(), values.next()) {
                pairs.push((key, value));
            }
            Value::Map(pairs)
        }
        _ => Value::Array(values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(stream: &[u8]) -> Result<Option<Value>, Malformed> {
        Decoder::new(1 << 16).next(&mut &stream[..])
    }

    #[test]
    fn every_type_is_decoded() {
        let bulk = |text: &str| Value::Bulk(text.as_bytes().to_vec());
        for (stream, value) in [
            ("+OK\r\n", Value::Simple(b"OK".to_vec())),
            ("-ERR no\r\n", Value::Error(b"ERR no".to_vec())),
            ("!6\r\nERR no\r\n", Value::Error(b"ERR no".to_vec())),
            (":-7\r\n", Value::Integer(-7)),
            ("$-1\r\n", Value::Null),
            ("*-1\r\n", Value::Null),
            ("_\r\n", Value::Null),
            ("#t\r\n", Value::Boolean(true)),
            (",-1.5e3\r\n", Value::Double(-1500.0)),
            (",inf\r\n", Value::Double(f64::INFINITY)),
            (
                "(-12345678901234567890\r\n",
                Value::BigNumber(b"-12345678901234567890".to_vec()),
            ),
            ("$0\r\n\r\n", bulk("")),
            ("=6\r\ntxt:hi\r\n", Value::Verbatim(*b"txt", b"hi".to_vec())),
            ("*0\r\n", Value::Array(vec![])),
            (
                "*2\r\n$1\r\na\r\n*1\r\n_\r\n",
                Value::Array(vec![bulk("a"), Value::Array(vec![Value::Null])]),
            ),
            ("~1\r\n:1\r\n", Value::Set(vec![Value::Integer(1)])),
            (
                "%1\r\n+k\r\n:1\r\n",
                Value::Map(vec![(Value::Simple(b"k".to_vec()), Value::Integer(1))]),
            ),
            (
                ">1\r\n+message\r\n",
                Value::Push(vec![Value::Simple(b"message".to_vec())]),
            ),
            ("|1\r\n+ttl\r\n:9\r\n:1\r\n", Value::Integer(1)),
            (
                "*2\r\n|1\r\n+ttl\r\n*1\r\n:9\r\n:1\r\n:2\r\n",
                Value::Array(vec![Value::Integer(1), Value::Integer(2)]),
            ),
        ] {
            assert_eq!(decode(stream.as_bytes()), Ok(Some(value)), "{stream:?}");
        }
    }

    #[test]
    fn malformed_input_is_rejected_in_bounded_memory() {
        for stream in [
            "$1073741825\r\n",
            "$99999999999999999999\r\n",
            "$-2\r\n",
            "*2147483649\r\n",
            "*-2\r\n",
            "%-1\r\n",
            ":\r\n",
            ":1x\r\n",
            "#x\r\n",
            "_x\r\n",
            "(\r\n",
            "\r\n",
            "?\r\n",
            "$1\r\nab\r\n",
            "=2\r\nab\r\n",
            "*1\r\n>0\r\n",
        ] {
            assert!(decode(stream.as_bytes()).is_err(), "{stream:?}");
        }
        // Only received data takes memory, whatever length is announced, and that memory is bounded.
        assert_eq!(decode(b"*2147483648\r\n$1073741824\r\nabc"), Ok(None));
        let many = [&b"*2147483648\r\n"[..], &b"_\r\n".repeat(1 << 16)].concat();
        assert_eq!(decode(&many), Err(Malformed::TooLarge(1 << 16)));
        let deep = b"*1\r\n".repeat(super::super::MAX_DEPTH + 1);
        assert!(matches!(decode(&deep), Err(Malformed::TooDeep(_))));
    }
}
