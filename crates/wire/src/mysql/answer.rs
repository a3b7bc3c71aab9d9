//! Follows the answer to one query through a stream cut anywhere, without storing it: this code runs millions of times.
//!
//! Most packets are rows, and only the header and the first byte of a row matter here; the rest is passed to [`RowHandling`] in the parts in
//! which it comes. Only packets whose content matters (ends, errors, and all packets if columns are decoded) are reassembled, in a
//! buffer no larger than the packet.

use super::Malformed;
use super::frame::{HEADER_LEN, MAX_PAYLOAD, parse_header};
use super::reply::{self, ServerError};
use super::row::RowHandling;
use crate::fill_up_to;

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Done(AnswerCounts),
    Failed(ServerError),
}

impl Outcome {
    /// Rows of the answer; None for an error.
    pub fn rows(&self) -> Option<u64> {
        match self {
            Self::Done(counts) => Some(counts.rows),
            Self::Failed(_) => None,
        }
    }
}

/// Counts of an answer without an error, summed over its results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AnswerCounts {
    pub rows: u64,
    /// Rows affected.
    pub affected: u64,
    /// Results with columns.
    pub reads: u32,
    /// Results without columns that affected rows.
    pub writes: u32,
    /// Results without columns that affected no row.
    pub others: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// OK, error, or the number of columns.
    First,
    /// This many column definitions, then an end packet.
    Columns(u32),
    Rows,
    /// The answer is complete; no bytes may follow.
    Complete,
}

/// Maximum length of a row that is reassembled from parts.
const MAX_ROW_BYTES: usize = 1 << 24;
/// Maximum length of any other packet that is reassembled: result headers, definitions, ends and errors are short.
const MAX_OTHER_BYTES: usize = 1 << 20;
/// Memory for reassembly that an answer keeps after a longer packet.
const MAX_IDLE_BUFFER: usize = 1 << 16;

/// The state of one connection's current answer.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // independent facts about one stream
pub struct Answer {
    phase: Phase,
    sequence: u8,
    /// Rows are in the binary format.
    is_binary: bool,
    caches_metadata: bool,
    /// The next packet continues the payload.
    is_continued: bool,
    /// Bytes of a streamed payload still to come.
    streamed_bytes_left: usize,
    /// The streamed payload is a row.
    is_streaming_row: bool,
    counts: AnswerCounts,
    /// The part of a packet that has come, header included.
    partial_packet: Vec<u8>,
    /// Types of the columns, if their definitions came with this answer and columns are decoded.
    types: Vec<u8>,
}

impl Answer {
    /// `caches_metadata`: see [`super::handshake::Session::caches_metadata`].
    pub fn new(caches_metadata: bool) -> Self {
        Self {
            phase: Phase::Complete,
            sequence: 0,
            is_binary: false,
            caches_metadata,
            is_continued: false,
            streamed_bytes_left: 0,
            is_streaming_row: false,
            counts: AnswerCounts::default(),
            partial_packet: Vec::new(),
            types: Vec::new(),
        }
    }

    /// Expect the answer to a query. `is_binary`: the query was an execute, whose rows are in the binary format.
    #[inline]
    pub fn begin(&mut self, is_binary: bool) {
        debug_assert!(
            self.partial_packet.is_empty() && self.streamed_bytes_left == 0,
            "the previous answer was read to its end"
        );
        self.phase = Phase::First;
        self.sequence = 1;
        self.is_binary = is_binary;
        self.counts = AnswerCounts::default();
    }

    /// Consume all bytes of `input`; returns how the answer ended once it has ended. `known_types` are the columns' types from the
    /// prepare, for answers without definitions; empty unless columns are decoded.
    #[inline]
    pub fn feed(
        &mut self,
        mut input: &[u8],
        known_types: &[u8],
        handling: &mut RowHandling,
    ) -> Result<Option<Outcome>, Malformed> {
        while !input.is_empty() {
            if self.streamed_bytes_left > 0 {
                input = self.stream_payload(input, handling);
                continue;
            }
            if !self.partial_packet.is_empty() || input.len() < HEADER_LEN {
                if let Some(outcome) = self.handle_incomplete(&mut input, known_types, handling)? {
                    return check_end(outcome, input);
                }
                continue;
            }
            let (length, sequence) = parse_header([input[0], input[1], input[2], input[3]]);
            if input.len() < HEADER_LEN + length || length == MAX_PAYLOAD || self.is_continued {
                if let Some(outcome) = self.handle_incomplete(&mut input, known_types, handling)? {
                    return check_end(outcome, input);
                }
                continue;
            }
            self.check_sequence(sequence)?;
            let (packet, rest) = input.split_at(HEADER_LEN + length);
            input = rest;
            if let Some(outcome) =
                self.handle_packet(&packet[HEADER_LEN..], known_types, handling)?
            {
                return check_end(outcome, input);
            }
        }
        Ok(None)
    }

    #[inline]
    fn check_sequence(&mut self, received: u8) -> Result<(), Malformed> {
        if received != self.sequence {
            return Err(Malformed::Sequence {
                expected: self.sequence,
                received,
            });
        }
        self.sequence = received.wrapping_add(1);
        Ok(())
    }

    /// Consume bytes of a streamed payload; returns the rest of `input`.
    fn stream_payload<'a>(&mut self, input: &'a [u8], handling: &mut RowHandling) -> &'a [u8] {
        let (part, rest) = input.split_at(self.streamed_bytes_left.min(input.len()));
        if self.is_streaming_row {
            handling.handle_bytes(part);
        }
        self.streamed_bytes_left -= part.len();
        rest
    }

    /// Continue with a packet that is not complete in `input`.
    fn handle_incomplete(
        &mut self,
        input: &mut &[u8],
        types: &[u8],
        handling: &mut RowHandling,
    ) -> Result<Option<Outcome>, Malformed> {
        fill_up_to(&mut self.partial_packet, HEADER_LEN, input);
        let Some((&header, payload)) = self.partial_packet.split_first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let (length, sequence) = parse_header(header);
        if payload.is_empty() && length > 0 && !self.is_continued {
            // The first byte of the payload determines whether the rest can be streamed.
            if input.is_empty() {
                return Ok(None);
            }
            fill_up_to(&mut self.partial_packet, HEADER_LEN + 1, input);
        }
        if self.is_continued || self.can_stream(length, handling) {
            self.check_sequence(sequence)?;
            let is_row = if self.is_continued {
                self.is_streaming_row
            } else {
                self.phase == Phase::Rows
            };
            self.start_stream(length, is_row, handling);
            return Ok(None);
        }
        let is_row =
            self.phase == Phase::Rows && self.partial_packet.get(HEADER_LEN) != Some(&reply::ERR);
        let limit = if is_row {
            MAX_ROW_BYTES
        } else {
            MAX_OTHER_BYTES
        };
        if length >= limit || length == MAX_PAYLOAD {
            return Err(Malformed::TooLong {
                size: length,
                limit,
            });
        }
        fill_up_to(&mut self.partial_packet, HEADER_LEN + length, input);
        if self.partial_packet.len() < HEADER_LEN + length {
            return Ok(None);
        }
        self.check_sequence(sequence)?;
        let packet = std::mem::take(&mut self.partial_packet);
        let outcome = self.handle_packet(&packet[HEADER_LEN..], types, handling);
        self.partial_packet = packet;
        self.partial_packet.clear();
        self.partial_packet.shrink_to(MAX_IDLE_BUFFER);
        outcome
    }

    /// Whether the packet that begins in `partial_packet` can be streamed, because its content does not matter.
    fn can_stream(&self, length: usize, handling: &RowHandling) -> bool {
        let first = self.partial_packet.get(HEADER_LEN).copied().unwrap_or(0);
        let is_end = reply::is_eof(length, first) || first == reply::ERR;
        !handling.is_decoding()
            && !is_end
            && matches!(self.phase, Phase::Rows | Phase::Columns(1..))
    }

    fn start_stream(&mut self, length: usize, is_row: bool, handling: &mut RowHandling) {
        let part = &self.partial_packet[HEADER_LEN..];
        if is_row {
            handling.handle_bytes(part);
        }
        self.streamed_bytes_left = length - part.len();
        self.is_streaming_row = is_row;
        if !self.is_continued {
            match &mut self.phase {
                Phase::Columns(count) => *count -= 1,
                _ => self.counts.rows += 1,
            }
        }
        self.is_continued = length == MAX_PAYLOAD;
        self.partial_packet.clear();
    }

    /// Handle a complete packet.
    #[inline]
    fn handle_packet(
        &mut self,
        payload: &[u8],
        known_types: &[u8],
        handling: &mut RowHandling,
    ) -> Result<Option<Outcome>, Malformed> {
        let first = payload.first().copied();
        if first == Some(reply::ERR) {
            self.phase = Phase::Complete;
            return ServerError::parse(payload).map(|error| Some(Outcome::Failed(error)));
        }
        match self.phase {
            Phase::Rows => {
                if reply::is_eof(payload.len(), first.unwrap_or(0)) {
                    return Ok(self.finish_result(reply::eof_status(payload)?));
                }
                self.counts.rows += 1;
                let types = if self.types.is_empty() {
                    known_types
                } else {
                    &self.types
                };
                handling.handle_row(payload, self.is_binary, types)?;
                Ok(None)
            }
            Phase::Columns(count) => self
                .handle_definition(count, payload, handling)
                .map(|()| None),
            Phase::First => self.handle_first_packet(payload),
            Phase::Complete => Err(Malformed::Unexpected(
                "bytes came although nothing was asked",
            )),
        }
    }

    fn finish_result(&mut self, status: u16) -> Option<Outcome> {
        if status & reply::MORE_RESULTS != 0 {
            self.phase = Phase::First;
            return None;
        }
        self.phase = Phase::Complete;
        Some(Outcome::Done(self.counts))
    }

    fn handle_definition(
        &mut self,
        definitions_left: u32,
        payload: &[u8],
        handling: &RowHandling,
    ) -> Result<(), Malformed> {
        let is_end = reply::is_eof(payload.len(), payload.first().copied().unwrap_or(0));
        self.phase = match (definitions_left, is_end) {
            (0, true) => Phase::Rows,
            (1.., false) => {
                if handling.is_decoding() {
                    self.types.push(reply::parse_column_type(payload)?);
                }
                Phase::Columns(definitions_left - 1)
            }
            _ => {
                return Err(Malformed::Unexpected(
                    "the number of columns is not the one announced",
                ));
            }
        };
        Ok(())
    }

    #[inline]
    fn handle_ok(&mut self, payload: &[u8]) -> Result<Option<Outcome>, Malformed> {
        let ok = reply::OkPacket::parse(payload)?;
        self.counts.affected = self.counts.affected.saturating_add(ok.affected);
        if ok.affected > 0 {
            self.counts.writes += 1;
        } else {
            self.counts.others += 1;
        }
        Ok(self.finish_result(ok.status))
    }

    fn handle_first_packet(&mut self, payload: &[u8]) -> Result<Option<Outcome>, Malformed> {
        match payload.first() {
            None => return Err(Malformed::Short("answer")),
            Some(&reply::OK) => return self.handle_ok(payload),
            Some(&reply::LOCAL_INFILE) => {
                return Err(Malformed::Unexpected("the server asks for a local file"));
            }
            Some(_) => {}
        }
        let header = reply::ResultHeader::parse(payload, self.caches_metadata)?;
        self.counts.reads += 1;
        self.types.clear();
        self.phase = Phase::Columns(header.definitions);
        Ok(None)
    }
}

/// The outcome of an answer, which must be the last thing in the input.
fn check_end(outcome: Outcome, rest: &[u8]) -> Result<Option<Outcome>, Malformed> {
    if rest.is_empty() {
        Ok(Some(outcome))
    } else {
        Err(Malformed::Unexpected("bytes follow the end of an answer"))
    }
}
