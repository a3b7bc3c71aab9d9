//! Decodes Memcached's commands, text and binary, and whether they failed.

use crate::frame::{Framer, HeaderLayout, parse_number, take_line};
use crate::salt::Salt;
use crate::{DecoderReport, LOG_STREAM, Request, UnreadableReason, known_name};

/// Bytes of a binary message that are kept: enough for a request with the longest key.
const MAX_KEPT_BYTES: usize = 512;
const TEXT_COMMANDS: &[&str] = &[
    "get",
    "gets",
    "gat",
    "gats",
    "set",
    "add",
    "replace",
    "append",
    "prepend",
    "cas",
    "delete",
    "incr",
    "decr",
    "touch",
    "flush_all",
    "version",
    "verbosity",
    "stats",
    "quit",
    "mg",
    "ms",
    "md",
    "ma",
    "mn",
    "me",
    "cache_memlimit",
    "slabs",
    "lru",
    "lru_crawler",
    "watch",
];
/// Command names by opcode; any other opcode is "other".
#[rustfmt::skip]
const BINARY_COMMANDS: [&str; 37] = [
    "get", "set", "add", "replace", "delete", "incr", "decr", "quit", // from 0x00 on
    "flush_all", "get", "noop", "version", "get", "get", "append", "prepend", // from 0x08 on
    "stats", "set", "add", "replace", "delete", "incr", "decr", "quit", // from 0x10 on
    "flush_all", "append", "prepend", "verbosity", "touch", "gat", "gat", "other", // from 0x18 on
    "login", "login", "login", "other", "other", // from 0x20 on
];

/// Opcodes of requests that are answered only if a key was found, or if they failed.
const QUIET_OPCODES: [u8; 14] = [
    0x09, 0x0D, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1A, 0x1E, 0x24,
];

#[derive(Debug)]
pub(crate) enum Memcached {
    Text {
        /// The part of the client's line that has come.
        line: Vec<u8>,
        /// Bytes of the client's value still to come, with its line end.
        body_left: usize,
        /// The part of the server's line that has come.
        answer_line: Vec<u8>,
        answer_body_left: usize,
        /// The boundaries of lines are not known any more.
        is_lost: bool,
    },
    Binary {
        to_server: Framer,
        to_client: Framer,
    },
}

impl Memcached {
    /// `first_byte` of a client shows whether it uses the binary protocol.
    pub(crate) fn new(first_byte: u8) -> Self {
        if first_byte == 0x80 {
            let framer = || Framer::new(HeaderLayout::Memcached, MAX_KEPT_BYTES);
            Self::Binary {
                to_server: framer(),
                to_client: framer(),
            }
        } else {
            Self::Text {
                line: Vec::new(),
                body_left: 0,
                answer_line: Vec::new(),
                answer_body_left: 0,
                is_lost: false,
            }
        }
    }

    pub(crate) fn begin_round_trip(&mut self) {
        match self {
            Self::Text {
                line,
                body_left,
                answer_line,
                answer_body_left,
                is_lost,
            } => {
                if std::mem::take(is_lost) {
                    line.clear();
                    *body_left = 0;
                }
                answer_line.clear();
                *answer_body_left = 0;
            }
            Self::Binary {
                to_server,
                to_client,
            } => {
                to_server.resynchronise();
                to_client.resynchronise();
            }
        }
    }

    pub(crate) fn handle_client_bytes(
        &mut self,
        bytes: &[u8],
        skipped: usize,
        salt: &Salt,
        report: &mut DecoderReport,
    ) -> Result<(), UnreadableReason> {
        let mut rest = bytes;
        match self {
            Self::Text {
                line,
                body_left,
                is_lost,
                ..
            } => {
                while !rest.is_empty() && !*is_lost {
                    consume_command(&mut rest, line, body_left, salt, report)?;
                }
                skip_body(body_left, skipped, is_lost);
                report.expects_answer |= *is_lost;
                report.is_between_messages = line.is_empty() && *body_left == 0 && !*is_lost;
            }
            Self::Binary { to_server, .. } => {
                let mut skipped = skipped;
                while let Some(message) = to_server.next(&mut rest, &mut skipped) {
                    let name = BINARY_COMMANDS
                        .get(usize::from(message.kind))
                        .copied()
                        .unwrap_or("other");
                    let keys = Some(salt.hash(message.first_bytes));
                    report.requests.push(Request {
                        keys,
                        digest: Some(name.to_owned()),
                        is_answered: !QUIET_OPCODES.contains(&message.kind),
                        ..Request::new(name)
                    });
                }
                report.expects_answer |= to_server.is_lost();
                report.is_between_messages = to_server.is_between_messages();
            }
        }
        Ok(())
    }

    pub(crate) fn handle_server_bytes(
        &mut self,
        bytes: &[u8],
        skipped: usize,
        report: &mut DecoderReport,
    ) {
        let mut rest = bytes;
        match self {
            Self::Text {
                answer_line,
                answer_body_left,
                is_lost,
                ..
            } => {
                while !rest.is_empty() && !*is_lost {
                    consume_answer(&mut rest, answer_line, answer_body_left, report);
                }
                skip_body(answer_body_left, skipped, is_lost);
            }
            Self::Binary { to_client, .. } => {
                let mut skipped = skipped;
                while to_client.next(&mut rest, &mut skipped).is_some() {
                    let header = to_client.last_header();
                    // Status 1 (no such key) is not a failure.
                    report.failed |= !matches!((header[6], header[7]), (0, 0 | 1));
                }
            }
        }
    }
}

/// Skip bytes that were not kept; the boundaries of lines are lost if the bytes reach beyond the current value.
fn skip_body(body_left: &mut usize, skipped: usize, is_lost: &mut bool) {
    if *body_left > skipped {
        *body_left -= skipped;
    } else if skipped > 0 {
        *is_lost = true;
    }
}

/// Consume bytes of the current value; false if there is none.
fn consume_body(rest: &mut &[u8], body_left: &mut usize) -> bool {
    let consumed_bytes = (*body_left).min(rest.len());
    *rest = &rest[consumed_bytes..];
    *body_left -= consumed_bytes;
    consumed_bytes > 0
}

/// Consume a client's line, or a part of the value that follows it.
fn consume_command(
    rest: &mut &[u8],
    partial_line: &mut Vec<u8>,
    body_left: &mut usize,
    salt: &Salt,
    report: &mut DecoderReport,
) -> Result<(), UnreadableReason> {
    if consume_body(rest, body_left) {
        return Ok(());
    }
    let Some(line) = take_line(rest, partial_line)? else {
        return Ok(());
    };
    let words: Vec<&[u8]> = line
        .split(|&byte| byte == b' ')
        .filter(|word| !word.is_empty())
        .collect();
    let Some((first, arguments)) = words.split_first() else {
        return Ok(());
    };
    let name = known_name(TEXT_COMMANDS, first);
    let size = match name {
        "set" | "add" | "replace" | "append" | "prepend" | "cas" => arguments.get(3),
        "ms" => arguments.get(1),
        _ => None,
    };
    *body_left = value_bytes(size);
    let key_words = match name {
        "get" | "gets" => arguments,
        "gat" | "gats" => arguments.get(1..).unwrap_or_default(),
        _ => arguments.get(..1).unwrap_or_default(),
    };
    let mut keys = salt.hasher();
    for key in key_words {
        keys.add(key);
    }
    let is_quiet = arguments.last() == Some(&b"noreply".as_slice()) || name == "quit";
    let request = if is_quiet {
        Request::unanswered(name)
    } else {
        Request::new(name)
    };
    report.requests.push(Request {
        keys: Some(keys.finish()),
        digest: Some(name.to_owned()),
        ..request
    });
    if name == "watch" {
        Err(LOG_STREAM)
    } else {
        Ok(())
    }
}

/// Bytes of a value of this size with its line end; 0 if no value follows.
fn value_bytes(size: Option<&&[u8]>) -> usize {
    size.and_then(|size| parse_number::<usize>(size))
        .map_or(0, |size| size.saturating_add(2))
}

/// Consume a server's line, or a part of the value that follows it. If a line exceeds the maximum, the rest of the piece
/// is ignored.
fn consume_answer(
    rest: &mut &[u8],
    partial_line: &mut Vec<u8>,
    body_left: &mut usize,
    report: &mut DecoderReport,
) {
    if consume_body(rest, body_left) {
        return;
    }
    let Ok(Some(line)) = take_line(rest, partial_line) else {
        *rest = &[];
        return;
    };
    let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    match words.first() {
        Some(&(b"ERROR" | b"CLIENT_ERROR" | b"SERVER_ERROR")) => report.failed = true,
        Some(&b"VALUE") => *body_left = value_bytes(words.get(3)),
        Some(&b"VA") => *body_left = value_bytes(words.get(1)),
        _ => {}
    }
}

/// Whether a client's first bytes are of the binary protocol.
pub(crate) fn is_binary_start(bytes: &[u8]) -> bool {
    bytes.first() == Some(&0x80)
}

/// Whether a client's first word is a command; the server accepts only lower case.
pub(crate) fn is_command(word: &[u8]) -> bool {
    TEXT_COMMANDS.iter().any(|name| name.as_bytes() == word)
}
