//! Follows the answer to one query through a stream cut anywhere, without storing it: this code runs millions of times.
//!
//! Most packets are rows, and of a row only its header and its first byte matter here; the rest is passed to [`Work`] in whatever
//! parts it comes. Only packets whose content matters (ends, errors, and all packets if columns are decoded) are reassembled, in a
//! buffer no larger than they are.

use super::Malformed;
use super::frame::{HEADER, MAX_PAYLOAD, header};
use super::reply::{self, ServerError};
use super::row::Work;
use crate::keep_up_to;

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Done(Done),
    Failed(ServerError),
}

impl Outcome {
    /// Rows of an answer without an error.
    pub fn rows(&self) -> Option<u64> {
        match self {
            Self::Done(done) => Some(done.rows),
            Self::Failed(_) => None,
        }
    }
}

/// The contents of an answer without an error, summed over its results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Done {
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
    /// This many definitions, then an end packet.
    Columns(u32),
    Rows,
    /// The answer is complete; no bytes may follow.
    Complete,
}

/// Maximum length of a row that is reassembled from parts.
const MAX_ROW_BYTES: usize = 1 << 24;
/// Maximum length of any other packet that is reassembled: heads, definitions, ends and errors are short.
const MAX_OTHER_BYTES: usize = 1 << 20;
/// Memory for reassembly that an answer keeps after a longer packet.
const MAX_IDLE_BUFFER: usize = 1 << 16;

/// The state of one connection's current answer.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // independent facts about one stream
pub struct Answer {
    phase: Phase,
    sequence: u8,
    binary: bool,
    caches_metadata: bool,
    /// The next packet continues the payload.
    continued: bool,
    /// Bytes of a streamed payload still to come.
    skip_left: usize,
    /// The streamed payload is a row.
    is_skipping_row: bool,
    done: Done,
    /// The part of a packet that came so far, header included.
    kept: Vec<u8>,
    /// Types of the columns, when their definitions came with this answer and are wanted.
    types: Vec<u8>,
}

impl Answer {
    /// `caches_metadata`: see [`super::handshake::Session::caches_metadata`].
    pub fn new(caches_metadata: bool) -> Self {
        Self {
            phase: Phase::Complete,
            sequence: 0,
            binary: false,
            caches_metadata,
            continued: false,
            skip_left: 0,
            is_skipping_row: false,
            done: Done::default(),
            kept: Vec::new(),
            types: Vec::new(),
        }
    }

    /// Expect the answer to a query; `binary` if that was an execute.
    #[inline]
    pub fn begin(&mut self, binary: bool) {
        debug_assert!(
            self.kept.is_empty() && self.skip_left == 0,
            "an answer was left half read"
        );
        self.phase = Phase::First;
        self.sequence = 1;
        self.binary = binary;
        self.done = Done::default();
    }

    /// Take all bytes of `input`; returns how the answer ended once it has ended. `known_types` are the columns' types from the
    /// prepare, for answers that leave definitions out; empty unless columns are decoded.
    #[inline]
    pub fn feed(
        &mut self,
        mut input: &[u8],
        known_types: &[u8],
        work: &mut Work,
    ) -> Result<Option<Outcome>, Malformed> {
        while !input.is_empty() {
            if self.skip_left > 0 {
                input = self.skip_streamed(input, work);
                continue;
            }
            if !self.kept.is_empty() || input.len() < HEADER {
                if let Some(outcome) = self.handle_incomplete(&mut input, known_types, work)? {
                    return Self::finish(outcome, input);
                }
                continue;
            }
            let (length, sequence) = header([input[0], input[1], input[2], input[3]]);
            if input.len() < HEADER + length || length == MAX_PAYLOAD || self.continued {
                if let Some(outcome) = self.handle_incomplete(&mut input, known_types, work)? {
                    return Self::finish(outcome, input);
                }
                continue;
            }
            self.check_sequence(sequence)?;
            let (packet, rest) = input.split_at(HEADER + length);
            input = rest;
            if let Some(outcome) = self.handle_packet(&packet[HEADER..], known_types, work)? {
                return Self::finish(outcome, input);
            }
        }
        Ok(None)
    }

    fn finish(outcome: Outcome, rest: &[u8]) -> Result<Option<Outcome>, Malformed> {
        if rest.is_empty() {
            Ok(Some(outcome))
        } else {
            Err(Malformed::Unexpected("bytes follow the end of an answer"))
        }
    }

    #[inline]
    fn check_sequence(&mut self, got: u8) -> Result<(), Malformed> {
        if got != self.sequence {
            return Err(Malformed::Sequence {
                expected: self.sequence,
                got,
            });
        }
        self.sequence = got.wrapping_add(1);
        Ok(())
    }

    /// Consume the bytes of a streamed payload.
    fn skip_streamed<'a>(&mut self, input: &'a [u8], work: &mut Work) -> &'a [u8] {
        let (part, rest) = input.split_at(self.skip_left.min(input.len()));
        if self.is_skipping_row {
            work.bytes(part);
        }
        self.skip_left -= part.len();
        rest
    }

    /// Continue with a packet that is not complete in `input`.
    fn handle_incomplete(
        &mut self,
        input: &mut &[u8],
        types: &[u8],
        work: &mut Work,
    ) -> Result<Option<Outcome>, Malformed> {
        keep_up_to(&mut self.kept, HEADER, input);
        let Some((&head, kept)) = self.kept.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let (length, sequence) = header(head);
        if kept.is_empty() && length > 0 && !self.continued {
            // The first byte determines whether the rest can be streamed.
            if input.is_empty() {
                return Ok(None);
            }
            keep_up_to(&mut self.kept, HEADER + 1, input);
        }
        if self.continued || self.can_stream(length, work) {
            self.check_sequence(sequence)?;
            let is_row = if self.continued {
                self.is_skipping_row
            } else {
                self.phase == Phase::Rows
            };
            self.start_stream(length, is_row, work);
            return Ok(None);
        }
        let is_row = self.phase == Phase::Rows && self.kept.get(HEADER) != Some(&reply::ERR);
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
        keep_up_to(&mut self.kept, HEADER + length, input);
        if self.kept.len() < HEADER + length {
            return Ok(None);
        }
        self.check_sequence(sequence)?;
        let packet = std::mem::take(&mut self.kept);
        let outcome = self.handle_packet(&packet[HEADER..], types, work);
        self.kept = packet;
        self.kept.clear();
        self.kept.shrink_to(MAX_IDLE_BUFFER);
        outcome
    }

    /// Whether the packet that begins in `kept` can be streamed, because its content does not matter.
    fn can_stream(&self, length: usize, work: &Work) -> bool {
        let first = self.kept.get(HEADER).copied().unwrap_or(0);
        let is_end = reply::is_eof(length, first) || first == reply::ERR;
        !work.decodes() && !is_end && matches!(self.phase, Phase::Rows | Phase::Columns(1..))
    }

    fn start_stream(&mut self, length: usize, is_row: bool, work: &mut Work) {
        let part = &self.kept[HEADER..];
        if is_row {
            work.bytes(part);
        }
        self.skip_left = length - part.len();
        self.is_skipping_row = is_row;
        if !self.continued {
            match &mut self.phase {
                Phase::Columns(left) => *left -= 1,
                _ => self.done.rows += 1,
            }
        }
        self.continued = length == MAX_PAYLOAD;
        self.kept.clear();
    }

    /// Handle a complete packet.
    #[inline]
    fn handle_packet(
        &mut self,
        payload: &[u8],
        known_types: &[u8],
        work: &mut Work,
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
                self.done.rows += 1;
                let types = if self.types.is_empty() {
                    known_types
                } else {
                    &self.types
                };
                work.row(payload, self.binary, types)?;
                Ok(None)
            }
            Phase::Columns(left) => self.handle_definition(left, payload, work).map(|()| None),
            Phase::First => self.first(payload),
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
        Some(Outcome::Done(self.done))
    }

    fn handle_definition(
        &mut self,
        left: u32,
        payload: &[u8],
        work: &Work,
    ) -> Result<(), Malformed> {
        let is_end = reply::is_eof(payload.len(), payload.first().copied().unwrap_or(0));
        self.phase = match (left, is_end) {
            (0, true) => Phase::Rows,
            (1.., false) => {
                if work.decodes() {
                    self.types.push(reply::column_type(payload)?);
                }
                Phase::Columns(left - 1)
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
        self.done.affected = self.done.affected.saturating_add(ok.affected);
        if ok.affected > 0 {
            self.done.writes += 1;
        } else {
            self.done.others += 1;
        }
        Ok(self.finish_result(ok.status))
    }

    fn first(&mut self, payload: &[u8]) -> Result<Option<Outcome>, Malformed> {
        match payload.first() {
            None => return Err(Malformed::Short("answer")),
            Some(&reply::OK) => return self.handle_ok(payload),
            Some(&reply::LOCAL_INFILE) => {
                return Err(Malformed::Unexpected("the server asks for a local file"));
            }
            Some(_) => {}
        }
        let head = reply::ResultHead::parse(payload, self.caches_metadata)?;
        self.done.reads += 1;
        self.types.clear();
        self.phase = Phase::Columns(head.definitions);
        Ok(None)
    }
}
