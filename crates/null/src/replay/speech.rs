//! The format of requests and answers on the wire: bytes without a meaning, or messages of a protocol, for a program in between
//! that parses it. In every format a request carries the length of its answer and the service time, and an answer carries how late
//! it was.

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

/// What a request asks for: length of the answer, 4 bytes, and service time, 8 bytes.
pub(super) type Wish = [u8; 12];
/// Length of a wish in hexadecimal, as in all formats except `sizes`.
const DIGITS: usize = 2 * size_of::<Wish>();
/// The first bytes of an answer, which contain its lateness in every format.
pub(super) const HEAD: usize = 64;
/// Maximum length of the messages of a login.
const LONGEST_LOGIN: usize = 4096;
/// Account and database.
const NAME: &str = "howfar";

const REDIS_LEAD: &[u8] = b"*3\r\n$3\r\nSET\r\n$24\r\n";
const MEMCACHED_LEAD: &[u8] = b"set ";
/// `CommandComplete`, then `ReadyForQuery`.
const POSTGRESQL_END: &[u8] = b"C\0\0\0\x0dSELECT 1\0Z\0\0\0\x05I";

/// What has come from a client.
pub(super) enum Come {
    /// Too few bytes to decide.
    Part,
    /// A complete login message, or a complete request that the program in between makes itself.
    Aside {
        length: usize,
        answer: Vec<u8>,
    },
    Wish {
        length: usize,
        wish: Wish,
    },
}

impl Speech {
    /// Append a request of `wanted` bytes, or of the minimum that the protocol needs if that is more.
    pub(super) fn request(self, out: &mut Vec<u8>, wish: &Wish, wanted: usize) {
        let key = hexadecimal(wish);
        let pad = |out: &mut Vec<u8>, length: usize| out.resize(out.len() + length, b' ');
        match self {
            Self::Sizes => {
                let length = wanted.max(4 + wish.len());
                let end = out.len() + length;
                out.extend_from_slice(&(length as u32).to_be_bytes());
                out.extend_from_slice(wish);
                out.resize(end, 0);
            }
            Self::Postgresql => postgres::request::query_with(out, |out| {
                out.extend_from_slice(b"/*");
                out.extend_from_slice(&key);
                out.extend_from_slice(b"*/");
                pad(out, wanted.saturating_sub(10 + DIGITS));
            }),
            Self::Redis => {
                redis::request::begin(out, 3);
                redis::request::word(out, b"SET");
                redis::request::word(out, &key);
                let length = wanted.saturating_sub(REDIS_LEAD.len() + DIGITS + 10);
                redis::request::word_with(out, length, |out| pad(out, length));
            }
            Self::Memcached => {
                let length = wanted.saturating_sub(MEMCACHED_LEAD.len() + DIGITS + 12);
                Dialect::Text.set(out, &key, length, |out| pad(out, length));
            }
        }
    }

    /// The bytes before an answer's payload, the payload's length, and the bytes after it.
    fn answer_to(self, wish: &Wish) -> (Vec<u8>, usize, &'static [u8]) {
        let wanted = reply_of(wish);
        let text = |before: &dyn Fn(usize) -> Vec<u8>, after: &'static [u8]| {
            let around = before(wanted).len() + after.len();
            let payload = wanted.saturating_sub(around).max(2 * size_of::<u64>());
            (before(payload), payload, after)
        };
        match self {
            Self::Sizes => (Vec::new(), wanted.max(size_of::<u64>()), b""),
            Self::Postgresql => text(&row_before, POSTGRESQL_END),
            Self::Redis => text(&|length| format!("${length}\r\n").into_bytes(), b"\r\n"),
            Self::Memcached => {
                let key = hexadecimal(wish);
                let key = String::from_utf8_lossy(&key);
                text(
                    &|length| format!("VALUE {key} 0 {length}\r\n").into_bytes(),
                    b"\r\nEND\r\n",
                )
            }
        }
    }

    /// Length of the answer to a request.
    pub(super) fn answer_length(self, wish: &Wish) -> usize {
        let (before, payload, after) = self.answer_to(wish);
        before.len() + payload + after.len()
    }

    /// Write the answer to a request; returns the offset for [`Self::put_late`].
    pub(super) fn answer(self, out: &mut Vec<u8>, wish: &Wish) -> usize {
        let (before, payload, after) = self.answer_to(wish);
        out.clear();
        out.extend_from_slice(&before);
        out.resize(before.len() + payload, 0);
        out.extend_from_slice(after);
        before.len()
    }

    /// Write how late an answer is.
    pub(super) fn put_late(self, there: &mut [u8], late_ns: u64) {
        let late = late_ns.to_be_bytes();
        match self {
            Self::Sizes => there[..late.len()].copy_from_slice(&late),
            _ => there[..2 * late.len()].copy_from_slice(&hexadecimal(&late)),
        }
    }

    /// Read how late an answer was from its first bytes.
    pub(super) fn late_ns(self, wish: &Wish, head: &[u8; HEAD]) -> io::Result<u64> {
        let at = self.answer_to(wish).0.len();
        let late = match self {
            Self::Sizes => head[at..at + 8].try_into().ok(),
            _ => binary(&head[at..at + 16]),
        };
        late.map(u64::from_be_bytes)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Parse what `bytes` begin with. `is_known`: the client has logged in.
    pub(super) fn come(self, bytes: &[u8], is_known: &mut bool) -> io::Result<Come> {
        match self {
            Self::Sizes => Ok(bytes.first_chunk::<16>().map_or(Come::Part, |head| {
                let mut wish = Wish::default();
                wish.copy_from_slice(&head[4..]);
                Come::Wish {
                    length: number(head).unwrap_or(0),
                    wish,
                }
            })),
            Self::Postgresql if *is_known => query(bytes),
            Self::Postgresql => Ok(login(bytes, is_known)),
            Self::Redis => keyed(bytes, REDIS_LEAD, b"\r\n$"),
            Self::Memcached => keyed(bytes, MEMCACHED_LEAD, b" 0 0 "),
        }
    }

    /// Log in, if the protocol has a login.
    pub(super) fn greet(self, stream: &mut dyn Duplex) -> io::Result<()> {
        if self != Self::Postgresql {
            return Ok(());
        }
        let mut output = Vec::new();
        postgres::request::startup(&mut output, NAME, NAME, "", false);
        stream.write_all(&output)?;
        stream.flush()?;
        let mut framer = postgres::Framer::new(LONGEST_LOGIN);
        let mut input = vec![0; LONGEST_LOGIN];
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
pub(super) fn reply_of(wish: &Wish) -> usize {
    number(wish).unwrap_or(0)
}

/// The first four bytes as a number.
fn number(bytes: &[u8]) -> Option<usize> {
    Some(u32::from_be_bytes(*bytes.first_chunk()?) as usize)
}

/// Everything before the one column of a row.
fn row_before(column: usize) -> Vec<u8> {
    let mut before = vec![b'D'];
    before.extend_from_slice(&(column as u32 + 10).to_be_bytes());
    before.extend_from_slice(&1_u16.to_be_bytes());
    before.extend_from_slice(&(column as u32).to_be_bytes());
    before
}

/// Parse the first message of a session. Requests for encryption are declined.
fn login(bytes: &[u8], is_known: &mut bool) -> Come {
    let (Some(length), Some(code)) = (number(bytes), bytes.get(4..).and_then(number)) else {
        return Come::Part;
    };
    if bytes.len() < length {
        return Come::Part;
    }
    let answer = if [SSL_REQUEST, GSS_REQUEST].contains(&(code as u32)) {
        b"N".to_vec()
    } else {
        *is_known = true;
        welcome()
    };
    Come::Aside { length, answer }
}

/// The answer to a login, which needs no password. The parameters that a pooler compares between its two sides have the values that
/// our client sends.
fn welcome() -> Vec<u8> {
    let mut answer = b"R\0\0\0\x08\0\0\0\0".to_vec();
    for (name, value) in [
        ("server_version", "15.0"),
        ("server_encoding", "UTF8"),
        ("client_encoding", "UTF8"),
        ("DateStyle", "ISO, MDY"),
        ("TimeZone", "UTC"),
        ("standard_conforming_strings", "on"),
        ("integer_datetimes", "on"),
        ("application_name", NAME),
    ] {
        answer.push(b'S');
        answer.extend_from_slice(&((name.len() + value.len() + 6) as u32).to_be_bytes());
        answer.extend_from_slice(format!("{name}\0{value}\0").as_bytes());
    }
    answer.extend_from_slice(b"K\0\0\0\x0c\0\0\0\x01\0\0\0\x01Z\0\0\0\x05I");
    answer
}

/// Parse a statement. One without a wish is the pooler's own and does nothing.
fn query(bytes: &[u8]) -> io::Result<Come> {
    let (Some(kind), Some(length)) = (bytes.first(), bytes.get(1..).and_then(number)) else {
        return Ok(Come::Part);
    };
    let length = 1 + length;
    if *kind != b'Q' {
        return Err(io::ErrorKind::InvalidData.into());
    }
    if bytes.len() < length.min(9 + DIGITS) {
        return Ok(Come::Part);
    }
    if let Some(wish) = bytes.get(7..7 + DIGITS).and_then(binary) {
        return Ok(Come::Wish { length, wish });
    }
    Ok(if bytes.len() < length {
        Come::Part
    } else {
        Come::Aside {
            length,
            answer: POSTGRESQL_END.to_vec(),
        }
    })
}

/// Parse a command whose key is the wish; its value's length follows `between`.
fn keyed(bytes: &[u8], lead: &[u8], between: &[u8]) -> io::Result<Come> {
    let at = lead.len() + DIGITS + between.len();
    let Some(line) = bytes.get(at..) else {
        return Ok(Come::Part);
    };
    let Some(end) = line.iter().position(|byte| *byte == b'\n') else {
        return Ok(Come::Part);
    };
    let wish = bytes[lead.len()..].get(..DIGITS).and_then(binary);
    let value = std::str::from_utf8(&line[..end])
        .ok()
        .and_then(|digits| digits.trim_end().parse::<u32>().ok());
    match (bytes.starts_with(lead), wish, value) {
        (true, Some(wish), Some(value)) => Ok(Come::Wish {
            length: at + end + 1 + value as usize + 2,
            wish,
        }),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn hexadecimal(bytes: &[u8]) -> Vec<u8> {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .map(|half| b"0123456789abcdef"[half as usize])
        .collect()
}

fn binary<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let half = |digit: u8| char::from(digit).to_digit(16);
        *byte = ((half(pair[0])? << 4) | half(pair[1])?) as u8;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Speech; 4] = [
        Speech::Sizes,
        Speech::Postgresql,
        Speech::Redis,
        Speech::Memcached,
    ];

    fn wish(reply: u32, service_ns: u64) -> Wish {
        let mut wish = Wish::default();
        wish[..4].copy_from_slice(&reply.to_be_bytes());
        wish[4..].copy_from_slice(&service_ns.to_be_bytes());
        wish
    }

    proptest! {
        #[test]
        fn what_is_asked_is_understood_however_it_is_cut(
            speech in prop::sample::select(&ALL[..]), reply in 0..10_000_u32, service in any::<u64>(), wanted in 0..3000_usize, cut in 0..100_usize
        ) {
            let asked = wish(reply, service);
            let mut request = Vec::new();
            speech.request(&mut request, &asked, wanted);
            prop_assert!(request.len() >= wanted.min(request.len()) && request.len() <= wanted.max(80) + 10);
            let mut is_known = true;
            let part = &request[..cut.min(request.len())];
            match speech.come(part, &mut is_known).expect("well formed") {
                Come::Wish { length, wish } => prop_assert!((length, wish) == (request.len(), asked)),
                Come::Part => {}
                Come::Aside { .. } => prop_assert!(false, "nothing else was asked"),
            }
            let whole = speech.come(&request, &mut is_known).expect("well formed");
            let understood = matches!(whole, Come::Wish { length, wish } if (length, wish) == (request.len(), asked));
            prop_assert!(understood);
        }

        #[test]
        fn an_answer_is_as_long_as_the_client_expects(
            speech in prop::sample::select(&ALL[..]), reply in 0..100_000_u32, late in any::<u64>()
        ) {
            let asked = wish(reply, 0);
            let mut answer = Vec::new();
            let at = speech.answer(&mut answer, &asked);
            speech.put_late(&mut answer[at..], late);
            prop_assert_eq!(answer.len(), speech.answer_length(&asked));
            prop_assert!(answer.len() + 3 >= reply as usize && answer.len() <= (reply as usize).max(80) + 3);
            answer.resize(answer.len().max(HEAD), 0);
            let head = answer.first_chunk().expect("as long");
            prop_assert_eq!(speech.late_ns(&asked, head).expect("well formed"), late);
        }

        #[test]
        fn any_bytes_are_parted_or_refused(speech in prop::sample::select(&ALL[..]), bytes: Vec<u8>, mut is_known: bool) {
            let _ = speech.come(&bytes, &mut is_known);
        }
    }

    #[test]
    fn a_login_is_answered_and_encryption_declined() {
        let mut bytes = Vec::new();
        postgres::request::ssl(&mut bytes);
        let mut is_known = false;
        let come = Speech::Postgresql
            .come(&bytes, &mut is_known)
            .expect("fine");
        assert!(matches!(come, Come::Aside { length: 8, ref answer } if answer == b"N"));
        bytes.clear();
        postgres::request::startup(&mut bytes, NAME, NAME, "", false);
        let come = Speech::Postgresql
            .come(&bytes, &mut is_known)
            .expect("fine");
        assert!(is_known && matches!(come, Come::Aside { length, .. } if length == bytes.len()));
        bytes.clear();
        postgres::request::query_with(&mut bytes, |out| out.extend_from_slice(b"SET a = 1"));
        let come = Speech::Postgresql
            .come(&bytes, &mut is_known)
            .expect("fine");
        assert!(matches!(come, Come::Aside { length, .. } if length == bytes.len()));
    }
}
