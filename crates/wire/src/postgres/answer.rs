//! Follows the answer to one request through a stream cut anywhere, without storing it: this code runs millions of times.
//!
//! Most messages are rows, and only the header of a row matters here; the rest is passed to [`RowHandling`] in the parts in which it comes.
//! An answer has one `ReadyForQuery` for each part of its request and ends with the last. Notices, parameters and notifications may
//! come at any time, even between answers, and so may the error with which a server ends the session.

use std::hint::black_box;

use super::Malformed;
use super::frame::{HEADER_LEN, parse_header};
use super::reply::{self, Failure, Tag, TransactionStatus};
use crate::fill_up_to;
use crate::mysql::ServerError;
use crate::mysql::answer::AnswerCounts;
use crate::mysql::row::RowHandling;

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Done(AnswerCounts),
    /// The first error of the answer.
    Failed(ServerError),
}

/// Maximum length of a row that is reassembled from parts.
const MAX_ROW_BYTES: usize = 1 << 24;
/// Maximum length of any other message whose content matters.
const MAX_OTHER_BYTES: usize = 1 << 16;
/// Maximum length of a message that is skipped: the server's own bound.
const MAX_SKIPPED_BYTES: usize = 1 << 30;
/// Memory for reassembly that an answer keeps after a longer message.
const MAX_IDLE_BUFFER: usize = 1 << 12;

/// The state of one connection's current answer.
#[derive(Debug, Default)]
pub struct Answer {
    /// `ReadyForQuery` messages still to come; 0 if nothing was requested.
    due_parts: u32,
    /// Rows came since the last command was complete.
    returned_rows: bool,
    counts: AnswerCounts,
    error: Option<ServerError>,
    has_failed_block: bool,
    /// Bytes still to come of a message that is skipped.
    skipped_bytes_left: usize,
    /// The skipped message is a row.
    is_skipping_row: bool,
    /// The part of a message that has come, header included.
    partial_message: Vec<u8>,
}

impl Answer {
    /// Expect an answer of this many `parts`.
    #[inline]
    pub fn begin(&mut self, parts: u32) {
        self.due_parts = parts;
        self.returned_rows = false;
        self.counts = AnswerCounts::default();
        self.error = None;
    }

    /// Whether the transaction block accepts only ROLLBACK, because a statement in it failed.
    #[inline]
    pub fn has_failed_block(&self) -> bool {
        self.has_failed_block
    }

    /// Consume all bytes of `input`; returns how the answer ended once it has ended.
    #[inline]
    pub fn feed(
        &mut self,
        mut input: &[u8],
        handling: &mut RowHandling,
    ) -> Result<Option<Outcome>, Malformed> {
        let mut ended = None;
        while !input.is_empty() {
            if self.skipped_bytes_left > 0 {
                input = self.stream_message(input, handling);
                continue;
            }
            let complete_header = match input.first_chunk::<HEADER_LEN>() {
                Some(&header) if self.partial_message.is_empty() => {
                    let (kind, length) = parse_header(header)?;
                    (input.len() >= HEADER_LEN + length).then_some((kind, length))
                }
                _ => None,
            };
            let outcome = if let Some((kind, length)) = complete_header {
                let (message, rest) = input.split_at(HEADER_LEN + length);
                input = rest;
                self.handle_message(kind, &message[HEADER_LEN..], handling)?
            } else {
                self.handle_incomplete(&mut input, handling)?
            };
            // A complete answer counts even if the server ends the session right after it.
            ended = ended.or(outcome);
        }
        Ok(ended)
    }

    /// Consume bytes of a skipped message; returns the rest of `input`.
    fn stream_message<'a>(&mut self, input: &'a [u8], handling: &mut RowHandling) -> &'a [u8] {
        let (part, rest) = input.split_at(self.skipped_bytes_left.min(input.len()));
        if self.is_skipping_row {
            handling.handle_bytes(part);
        }
        self.skipped_bytes_left -= part.len();
        rest
    }

    /// Continue with a message that is not complete in `input`.
    fn handle_incomplete(
        &mut self,
        input: &mut &[u8],
        handling: &mut RowHandling,
    ) -> Result<Option<Outcome>, Malformed> {
        fill_up_to(&mut self.partial_message, HEADER_LEN, input);
        let Some(&header) = self.partial_message.first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let (kind, length) = parse_header(header)?;
        if self.due_parts == 0 && kind != b'E' && !is_asynchronous(kind) {
            return Err(UNREQUESTED);
        }
        let is_row = matches!(kind, b'D' | b'd');
        let limit = match kind {
            b'D' if handling.is_decoding() => MAX_ROW_BYTES,
            b'C' | b'E' | b'Z' | b'I' => MAX_OTHER_BYTES,
            _ => MAX_SKIPPED_BYTES,
        };
        if length > limit {
            return Err(Malformed::TooLong {
                size: length,
                limit,
            });
        }
        if limit == MAX_SKIPPED_BYTES {
            self.skip_message(kind)?;
            (self.skipped_bytes_left, self.is_skipping_row) = (length, is_row);
            self.partial_message.clear();
            return Ok(None);
        }
        fill_up_to(&mut self.partial_message, HEADER_LEN + length, input);
        if self.partial_message.len() < HEADER_LEN + length {
            return Ok(None);
        }
        let message = std::mem::take(&mut self.partial_message);
        let outcome = self.handle_message(kind, &message[HEADER_LEN..], handling);
        self.partial_message = message;
        self.partial_message.clear();
        self.partial_message.shrink_to(MAX_IDLE_BUFFER);
        outcome
    }

    /// Handle a complete message.
    #[inline]
    fn handle_message(
        &mut self,
        kind: u8,
        body: &[u8],
        handling: &mut RowHandling,
    ) -> Result<Option<Outcome>, Malformed> {
        match kind {
            b'C' | b'I' | b'Z' if self.due_parts == 0 => return Err(UNREQUESTED),
            b'D' => {
                self.skip_message(kind)?;
                if handling.is_decoding() {
                    reply::decode_row(body, |value| {
                        black_box(value);
                    })?;
                } else {
                    handling.handle_bytes(body);
                }
            }
            b'd' => {
                self.skip_message(kind)?;
                handling.handle_bytes(body);
            }
            b'C' => self.count_command(Tag::parse(body)?),
            b'I' => self.counts.others += 1,
            b'E' => {
                let failure = Failure::parse(body)?;
                if self.due_parts == 0 && !failure.is_fatal {
                    return Err(UNREQUESTED);
                }
                let error = self.error.get_or_insert(failure.error);
                if failure.is_fatal {
                    // Nothing follows but the end of the connection.
                    self.due_parts = 0;
                    return Ok(Some(Outcome::Failed(error.clone())));
                }
            }
            b'Z' => return Ok(self.finish_part(TransactionStatus::parse(body)?)),
            _ => self.skip_message(kind)?,
        }
        Ok(None)
    }

    /// Handle a message whose content does not matter.
    #[inline]
    fn skip_message(&mut self, kind: u8) -> Result<(), Malformed> {
        match kind {
            _ if is_asynchronous(kind) => Ok(()),
            _ if self.due_parts == 0 => Err(UNREQUESTED),
            // A row, or a row of a COPY to the client.
            b'D' | b'd' => {
                self.returned_rows = true;
                self.counts.rows += 1;
                Ok(())
            }
            // Column and parameter descriptions; ParseComplete, BindComplete, CloseComplete; the beginning and the end of a COPY to
            // the client.
            b'T' | b't' | b'n' | b'1' | b'2' | b'3' | b'H' | b'c' => Ok(()),
            b'G' | b'W' => Err(Malformed::CopyIn),
            _ => Err(Malformed::Kind(kind)),
        }
    }

    #[inline]
    fn count_command(&mut self, tag: Tag) {
        if !tag.is_read {
            self.counts.affected = self.counts.affected.saturating_add(tag.rows);
        }
        if tag.is_read || self.returned_rows {
            self.counts.reads += 1;
        } else if tag.rows > 0 {
            self.counts.writes += 1;
        } else {
            self.counts.others += 1;
        }
        self.returned_rows = false;
    }

    #[inline]
    fn finish_part(&mut self, block: TransactionStatus) -> Option<Outcome> {
        self.has_failed_block = block == TransactionStatus::Failed;
        self.due_parts -= 1;
        if self.due_parts > 0 {
            return None;
        }
        Some(match self.error.take() {
            None => Outcome::Done(self.counts),
            Some(error) => Outcome::Failed(error),
        })
    }
}

/// Whether a message may come unrequested: notice, parameter, notification.
#[inline]
fn is_asynchronous(kind: u8) -> bool {
    matches!(kind, b'N' | b'S' | b'A')
}

const UNREQUESTED: Malformed = Malformed::Unexpected("bytes came although nothing was asked");

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u32 + 4).to_be_bytes();
        [&[kind][..], &length, body].concat()
    }

    fn feed_in_pieces(
        parts: u32,
        stream: &[u8],
        size: usize,
        mut handling: RowHandling,
    ) -> Vec<Outcome> {
        let mut answer = Answer::default();
        answer.begin(parts);
        let outcomes = stream.chunks(size).filter_map(|piece| {
            let outcome = answer.feed(piece, &mut handling);
            outcome.expect("the answer is valid")
        });
        outcomes.collect()
    }

    fn answer_stream() -> Vec<u8> {
        [
            message(b'N', b"SNOTICE\0\0"),
            message(b'2', b""),
            message(b'D', b"\0\x01\0\0\0\x03abc"),
            message(b'D', b"\0\x01\xff\xff\xff\xff"),
            message(b'C', b"SELECT 2\0"),
            message(b'S', b"TimeZone\0UTC\0"),
            message(b'C', b"UPDATE 7\0"),
            message(b'I', b""),
            message(b'Z', b"T"),
            message(b'A', b"\0\0\0\x01channel\0\0"),
        ]
        .concat()
    }

    #[test]
    fn the_split_of_an_answer_does_not_change_its_counts() {
        let stream = answer_stream();
        let counts = AnswerCounts {
            rows: 2,
            affected: 7,
            reads: 1,
            writes: 1,
            others: 1,
        };
        for size in 1..=stream.len() {
            for handling in [RowHandling::Skip, RowHandling::touch(), RowHandling::Decode] {
                assert_eq!(
                    feed_in_pieces(1, &stream, size, handling),
                    [Outcome::Done(counts)]
                );
            }
        }
    }

    #[test]
    fn an_error_is_returned_when_the_server_is_ready() {
        let error = message(b'E', b"SERROR\0C40001\0Magain\0\0");
        let ready = message(b'Z', b"E");
        let mut answer = Answer::default();
        answer.begin(1);
        assert_eq!(answer.feed(&error, &mut RowHandling::Skip), Ok(None));
        let ended = answer.feed(&ready, &mut RowHandling::Skip);
        assert!(matches!(ended, Ok(Some(Outcome::Failed(_)))), "{ended:?}");
        assert!(answer.has_failed_block());
        // ROLLBACK and the statement after it.
        answer.begin(2);
        let rest = [
            message(b'C', b"ROLLBACK\0"),
            message(b'Z', b"I"),
            message(b'C', b"SELECT 0\0"),
        ];
        assert_eq!(
            answer.feed(&rest.concat(), &mut RowHandling::Skip),
            Ok(None)
        );
        let ended = answer.feed(&message(b'Z', b"I"), &mut RowHandling::Skip);
        assert!(matches!(ended, Ok(Some(Outcome::Done(done))) if done.reads == 1));
        assert!(!answer.has_failed_block());
    }

    #[test]
    fn a_fatal_error_ends_at_once() {
        for parts in [0, 1] {
            for size in [3, FATAL.len()] {
                let ended = feed_in_pieces(parts, FATAL, size, RowHandling::Skip);
                assert!(
                    matches!(&ended[..], [Outcome::Failed(error)] if error.code.to_string() == "57P01"),
                    "{ended:?}"
                );
            }
        }
    }

    #[test]
    fn an_answer_before_the_end_of_the_session_counts() {
        let stream = [&message(b'Z', b"I"), FATAL].concat();
        let ended = feed_in_pieces(1, &stream, stream.len(), RowHandling::Skip);
        assert!(matches!(ended[..], [Outcome::Done(_)]), "{ended:?}");
    }

    const FATAL: &[u8] = b"E\0\0\0\x20SFATAL\0VFATAL\0C57P01\0Mgone\0\0";

    #[test]
    fn unrequested_messages_are_refused() {
        for kind in [b'D', b'C', b'E', b'Z', b'1', b'T'] {
            let outcome = Answer::default().feed(&message(kind, b"I"), &mut RowHandling::Skip);
            assert!(outcome.is_err(), "{}", char::from(kind));
        }
        let error = message(b'E', b"SERROR\0C40001\0Magain\0\0");
        let outcome = Answer::default().feed(&error, &mut RowHandling::Skip);
        assert!(outcome.is_err());
        for kind in [b'R', b'K', b'G', b'W', b'?'] {
            let mut answer = Answer::default();
            answer.begin(1);
            assert!(
                answer
                    .feed(&message(kind, b""), &mut RowHandling::Skip)
                    .is_err()
            );
        }
        let mut answer = Answer::default();
        answer.begin(1);
        let twice = [message(b'Z', b"I"), message(b'Z', b"I")].concat();
        assert!(answer.feed(&twice, &mut RowHandling::Skip).is_err());
    }
}
