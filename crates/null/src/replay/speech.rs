//! The format of requests and answers on the wire: bytes without a meaning, or messages of a protocol if a program in between parses
//! it. In every format a request carries the length of its answer and the service time, and an answer carries its lateness.

use std::io;

use howfar_wire::memcached::Dialect;
use howfar_wire::postgres::request::{GSS_REQUEST, SSL_REQUEST};
use howfar_wire::{postgres, redis};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::stream::Duplex;

/// What client and server speak.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Speech {
    /// Lengths and times in binary, and zeros.
    #[default]
    Sizes,
    /// Simple queries, after a login without a password.
    Postgresql,
    /// SET in RESP 2.
    Redis,
    /// `set` in the text protocol.
    Memcached,
}

/// The answer that a request specifies: its length in 4 bytes, and the service time in nanoseconds in 8 bytes.
pub(super) type AnswerSpec = [u8; 12];
/// Length of an [`AnswerSpec`] in hexadecimal, which all formats except `sizes` use.
const SPEC_DIGITS: usize = 2 * size_of::<AnswerSpec>();
/// The first bytes of an answer, which contain its lateness in every format.
pub(super) const ANSWER_HEAD_BYTES: usize = 64;
/// Maximum length of the messages of a login.
const MAX_LOGIN_BYTES: usize = 4096;
/// Account and database.
const ACCOUNT: &str = "howfar";

const REDIS_PREFIX: &[u8] = b"*3\r\n$3\r\nSET\r\n$24\r\n";
const MEMCACHED_PREFIX: &[u8] = b"set ";
/// `CommandComplete`, then `ReadyForQuery`.
const POSTGRESQL_END: &[u8] = b"C\0\0\0\x0dSELECT 1\0Z\0\0\0\x05I";

/// The next message from a client.
pub(super) enum Incoming {
    /// Too few bytes to decide.
    Incomplete,
    /// A complete login message, or a complete request that comes from the program in between.
    Other { length: usize, answer: Vec<u8> },
    Request {
        length: usize,
        answer_spec: AnswerSpec,
    },
}

impl Speech {
    /// Append a request of `min_bytes` bytes, or of the minimum that the protocol needs if that is more.
    pub(super) fn write_request(
        self,
        out: &mut Vec<u8>,
        answer_spec: &AnswerSpec,
        min_bytes: usize,
    ) {
        let key = to_hex(answer_spec);
        let pad = |out: &mut Vec<u8>, length: usize| out.resize(out.len() + length, b' ');
        match self {
            Self::Sizes => {
                let length = min_bytes.max(4 + answer_spec.len());
                let end = out.len() + length;
                out.extend_from_slice(&(length as u32).to_be_bytes());
                out.extend_from_slice(answer_spec);
                out.resize(end, 0);
            }
            Self::Postgresql => postgres::request::query_with(out, |out| {
                out.extend_from_slice(b"/*");
                out.extend_from_slice(&key);
                out.extend_from_slice(b"*/");
                pad(out, min_bytes.saturating_sub(10 + SPEC_DIGITS));
            }),
            Self::Redis => {
                redis::request::begin(out, 3);
                redis::request::word(out, b"SET");
                redis::request::word(out, &key);
                let length = min_bytes.saturating_sub(REDIS_PREFIX.len() + SPEC_DIGITS + 10);
                redis::request::word_with(out, length, |out| pad(out, length));
            }
            Self::Memcached => {
                let length = min_bytes.saturating_sub(MEMCACHED_PREFIX.len() + SPEC_DIGITS + 12);
                Dialect::Text.set(out, &key, length, |out| pad(out, length));
            }
        }
    }

    /// The bytes before an answer's payload, the payload's length, and the bytes after it.
    fn answer_parts(self, answer_spec: &AnswerSpec) -> (Vec<u8>, usize, &'static [u8]) {
        let min_bytes = answer_bytes(answer_spec);
        let text = |prefix: &dyn Fn(usize) -> Vec<u8>, suffix: &'static [u8]| {
            let overhead = prefix(min_bytes).len() + suffix.len();
            let payload = min_bytes.saturating_sub(overhead).max(2 * size_of::<u64>());
            (prefix(payload), payload, suffix)
        };
        match self {
            Self::Sizes => (Vec::new(), min_bytes.max(size_of::<u64>()), b""),
            Self::Postgresql => text(&row_prefix, POSTGRESQL_END),
            Self::Redis => text(&|length| format!("${length}\r\n").into_bytes(), b"\r\n"),
            Self::Memcached => {
                let key = to_hex(answer_spec);
                let key = String::from_utf8_lossy(&key);
                text(
                    &|length| format!("VALUE {key} 0 {length}\r\n").into_bytes(),
                    b"\r\nEND\r\n",
                )
            }
        }
    }

    /// Length of the answer to a request.
    pub(super) fn answer_length(self, answer_spec: &AnswerSpec) -> usize {
        let (prefix, payload, suffix) = self.answer_parts(answer_spec);
        prefix.len() + payload + suffix.len()
    }

    /// Write the answer to a request; returns the offset for [`Self::write_lateness`].
    pub(super) fn write_answer(self, out: &mut Vec<u8>, answer_spec: &AnswerSpec) -> usize {
        let (prefix, payload, suffix) = self.answer_parts(answer_spec);
        out.clear();
        out.extend_from_slice(&prefix);
        out.resize(prefix.len() + payload, 0);
        out.extend_from_slice(suffix);
        prefix.len()
    }

    /// Write an answer's lateness into its payload.
    pub(super) fn write_lateness(self, payload: &mut [u8], late_ns: u64) {
        let late = late_ns.to_be_bytes();
        match self {
            Self::Sizes => payload[..late.len()].copy_from_slice(&late),
            _ => payload[..2 * late.len()].copy_from_slice(&to_hex(&late)),
        }
    }

    /// Read an answer's lateness in nanoseconds from its first bytes.
    pub(super) fn read_lateness(
        self,
        answer_spec: &AnswerSpec,
        head: &[u8; ANSWER_HEAD_BYTES],
    ) -> io::Result<u64> {
        let payload = &head[self.answer_parts(answer_spec).0.len()..];
        let late = match self {
            Self::Sizes => payload[..8].try_into().ok(),
            _ => parse_hex(&payload[..16]),
        };
        late.map(u64::from_be_bytes)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Parse the first message in `bytes`. `is_logged_in`: whether the client has logged in.
    pub(super) fn parse(self, bytes: &[u8], is_logged_in: &mut bool) -> io::Result<Incoming> {
        match self {
            Self::Sizes => Ok(bytes
                .first_chunk::<16>()
                .map_or(Incoming::Incomplete, |head| {
                    let mut answer_spec = AnswerSpec::default();
                    answer_spec.copy_from_slice(&head[4..]);
                    Incoming::Request {
                        length: read_number(head).unwrap_or(0),
                        answer_spec,
                    }
                })),
            Self::Postgresql if *is_logged_in => parse_query(bytes),
            Self::Postgresql => Ok(parse_login(bytes, is_logged_in)),
            Self::Redis => parse_command(bytes, REDIS_PREFIX, b"\r\n$"),
            Self::Memcached => parse_command(bytes, MEMCACHED_PREFIX, b" 0 0 "),
        }
    }

    /// Log in, if the protocol has a login.
    pub(super) fn log_in(self, stream: &mut dyn Duplex) -> io::Result<()> {
        if self != Self::Postgresql {
            return Ok(());
        }
        let mut output = Vec::new();
        postgres::request::startup(&mut output, ACCOUNT, ACCOUNT, "", false);
        stream.write_all(&output)?;
        stream.flush()?;
        let mut framer = postgres::Framer::new(MAX_LOGIN_BYTES);
        let mut input = vec![0; MAX_LOGIN_BYTES];
        loop {
            let count = stream.read(&mut input)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let mut rest = &input[..count];
            while let Some((kind, body)) = framer.next(&mut rest).map_err(io::Error::other)? {
                match kind {
                    b'Z' => return Ok(()),
                    b'E' => {
                        let failure =
                            postgres::reply::Failure::parse(&body).map_err(io::Error::other)?;
                        return Err(io::Error::other(failure.error.message));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Requested length of the answer.
pub(super) fn answer_bytes(answer_spec: &AnswerSpec) -> usize {
    read_number(answer_spec).unwrap_or(0)
}

/// Read the first four bytes as a number; None if there are fewer.
fn read_number(bytes: &[u8]) -> Option<usize> {
    Some(u32::from_be_bytes(*bytes.first_chunk()?) as usize)
}

/// The bytes before the only column, of `column_bytes`, of a row.
fn row_prefix(column_bytes: usize) -> Vec<u8> {
    let mut prefix = vec![b'D'];
    prefix.extend_from_slice(&(column_bytes as u32 + 10).to_be_bytes());
    prefix.extend_from_slice(&1_u16.to_be_bytes());
    prefix.extend_from_slice(&(column_bytes as u32).to_be_bytes());
    prefix
}

/// Parse the first message of a session. Requests for encryption are declined.
fn parse_login(bytes: &[u8], is_logged_in: &mut bool) -> Incoming {
    let (Some(length), Some(code)) = (read_number(bytes), bytes.get(4..).and_then(read_number))
    else {
        return Incoming::Incomplete;
    };
    if bytes.len() < length {
        return Incoming::Incomplete;
    }
    let answer = if [SSL_REQUEST, GSS_REQUEST].contains(&(code as u32)) {
        b"N".to_vec()
    } else {
        *is_logged_in = true;
        encode_login_answer()
    };
    Incoming::Other { length, answer }
}

/// Encode the answer to a login, which needs no password. The parameters that a pooler compares between client and server have the
/// values that our client sends.
fn encode_login_answer() -> Vec<u8> {
    let mut answer = b"R\0\0\0\x08\0\0\0\0".to_vec();
    for (name, value) in [
        ("server_version", "15.0"),
        ("server_encoding", "UTF8"),
        ("client_encoding", "UTF8"),
        ("DateStyle", "ISO, MDY"),
        ("TimeZone", "UTC"),
        ("standard_conforming_strings", "on"),
        ("integer_datetimes", "on"),
        ("application_name", ACCOUNT),
    ] {
        answer.push(b'S');
        answer.extend_from_slice(&((name.len() + value.len() + 6) as u32).to_be_bytes());
        answer.extend_from_slice(format!("{name}\0{value}\0").as_bytes());
    }
    answer.extend_from_slice(b"K\0\0\0\x0c\0\0\0\x01\0\0\0\x01Z\0\0\0\x05I");
    answer
}

/// Parse a statement. A statement without an [`AnswerSpec`] comes from the pooler itself and has no effect.
fn parse_query(bytes: &[u8]) -> io::Result<Incoming> {
    let (Some(kind), Some(length)) = (bytes.first(), bytes.get(1..).and_then(read_number)) else {
        return Ok(Incoming::Incomplete);
    };
    let length = 1 + length;
    if *kind != b'Q' {
        return Err(io::ErrorKind::InvalidData.into());
    }
    if bytes.len() < length.min(9 + SPEC_DIGITS) {
        return Ok(Incoming::Incomplete);
    }
    if let Some(answer_spec) = bytes.get(7..7 + SPEC_DIGITS).and_then(parse_hex) {
        return Ok(Incoming::Request {
            length,
            answer_spec,
        });
    }
    Ok(if bytes.len() < length {
        Incoming::Incomplete
    } else {
        Incoming::Other {
            length,
            answer: POSTGRESQL_END.to_vec(),
        }
    })
}

/// Parse a command whose key is the [`AnswerSpec`]; its value's length follows `separator`.
fn parse_command(bytes: &[u8], prefix: &[u8], separator: &[u8]) -> io::Result<Incoming> {
    let length_offset = prefix.len() + SPEC_DIGITS + separator.len();
    let Some(line) = bytes.get(length_offset..) else {
        return Ok(Incoming::Incomplete);
    };
    let Some(end) = line.iter().position(|byte| *byte == b'\n') else {
        return Ok(Incoming::Incomplete);
    };
    let answer_spec = bytes[prefix.len()..].get(..SPEC_DIGITS).and_then(parse_hex);
    let value_bytes = std::str::from_utf8(&line[..end])
        .ok()
        .and_then(|digits| digits.trim_end().parse::<u32>().ok());
    match (bytes.starts_with(prefix), answer_spec, value_bytes) {
        (true, Some(answer_spec), Some(value_bytes)) => Ok(Incoming::Request {
            length: length_offset + end + 1 + value_bytes as usize + 2,
            answer_spec,
        }),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn to_hex(bytes: &[u8]) -> Vec<u8> {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|digit| b"0123456789abcdef"[digit as usize])
        .collect()
}

fn parse_hex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let value = |digit: u8| char::from(digit).to_digit(16);
        *byte = ((value(pair[0])? << 4) | value(pair[1])?) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SPEECHES: [Speech; 4] = [
        Speech::Sizes,
        Speech::Postgresql,
        Speech::Redis,
        Speech::Memcached,
    ];

    fn answer_spec(reply_bytes: u32, service_ns: u64) -> AnswerSpec {
        let mut answer_spec = AnswerSpec::default();
        answer_spec[..4].copy_from_slice(&reply_bytes.to_be_bytes());
        answer_spec[4..].copy_from_slice(&service_ns.to_be_bytes());
        answer_spec
    }

    proptest! {
        #[test]
        fn a_request_is_parsed_or_incomplete_at_any_cut(
            speech in prop::sample::select(&SPEECHES[..]), reply in 0..10_000_u32, service in any::<u64>(), min_bytes in 0..3000_usize, cut in 0..100_usize
        ) {
            let spec = answer_spec(reply, service);
            let mut request = Vec::new();
            speech.write_request(&mut request, &spec, min_bytes);
            prop_assert!(request.len() >= min_bytes.min(request.len()) && request.len() <= min_bytes.max(80) + 10);
            let mut is_logged_in = true;
            let part = &request[..cut.min(request.len())];
            match speech.parse(part, &mut is_logged_in).expect("the request is well formed") {
                Incoming::Request { length, answer_spec } => prop_assert!((length, answer_spec) == (request.len(), spec)),
                Incoming::Incomplete => {}
                Incoming::Other { .. } => prop_assert!(false, "a request is not another message"),
            }
            let incoming = speech.parse(&request, &mut is_logged_in).expect("the request is well formed");
            let is_parsed = matches!(incoming, Incoming::Request { length, answer_spec } if (length, answer_spec) == (request.len(), spec));
            prop_assert!(is_parsed);
        }

        #[test]
        fn an_answer_has_the_expected_length_and_lateness(
            speech in prop::sample::select(&SPEECHES[..]), reply in 0..100_000_u32, late in any::<u64>()
        ) {
            let spec = answer_spec(reply, 0);
            let mut answer = Vec::new();
            let lateness_offset = speech.write_answer(&mut answer, &spec);
            speech.write_lateness(&mut answer[lateness_offset..], late);
            prop_assert_eq!(answer.len(), speech.answer_length(&spec));
            prop_assert!(answer.len() + 3 >= reply as usize && answer.len() <= (reply as usize).max(80) + 3);
            answer.resize(answer.len().max(ANSWER_HEAD_BYTES), 0);
            let head = answer.first_chunk().expect("the answer was padded");
            prop_assert_eq!(speech.read_lateness(&spec, head).expect("the answer is well formed"), late);
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(speech in prop::sample::select(&SPEECHES[..]), bytes: Vec<u8>, mut is_logged_in: bool) {
            let _ = speech.parse(&bytes, &mut is_logged_in);
        }
    }

    #[test]
    fn a_login_is_answered_and_encryption_is_declined() {
        let mut bytes = Vec::new();
        postgres::request::ssl(&mut bytes);
        let mut is_logged_in = false;
        let incoming = Speech::Postgresql
            .parse(&bytes, &mut is_logged_in)
            .expect("the message is well formed");
        assert!(matches!(incoming, Incoming::Other { length: 8, ref answer } if answer == b"N"));
        bytes.clear();
        postgres::request::startup(&mut bytes, ACCOUNT, ACCOUNT, "", false);
        let incoming = Speech::Postgresql
            .parse(&bytes, &mut is_logged_in)
            .expect("the message is well formed");
        assert!(
            is_logged_in
                && matches!(incoming, Incoming::Other { length, .. } if length == bytes.len())
        );
        bytes.clear();
        postgres::request::query_with(&mut bytes, |out| out.extend_from_slice(b"SET a = 1"));
        let incoming = Speech::Postgresql
            .parse(&bytes, &mut is_logged_in)
            .expect("the message is well formed");
        assert!(matches!(incoming, Incoming::Other { length, .. } if length == bytes.len()));
    }
}
