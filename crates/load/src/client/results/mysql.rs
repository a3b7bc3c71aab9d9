//! Answers of MySQL and MariaDB, packet by packet.

use howfar_wire::mysql::reply::{self, OkPacket, ServerError};
use howfar_wire::mysql::row::{self, Value};
use howfar_wire::mysql::{Framer, Malformed};

use super::{AnswerEnd, MAX_KEPT_ROWS, RowCounts, Rows};

/// Maximum length of a packet: no answer to a request made here comes near it.
const MAX_PACKET_BYTES: usize = 1 << 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// OK, error, or the number of columns.
    First,
    /// Column definitions, and the number received so far.
    Columns(usize),
    /// Rows, and their number of columns.
    Rows(usize),
}

/// The part of an answer received so far.
#[derive(Debug)]
pub(crate) struct Results {
    framer: Framer,
    phase: Phase,
    row_counts: RowCounts,
    kept: Option<Rows>,
}

impl Results {
    pub(super) fn new(keep: bool) -> Self {
        let mut framer = Framer::new(MAX_PACKET_BYTES);
        framer.expect(1);
        Self {
            framer,
            phase: Phase::First,
            row_counts: RowCounts::default(),
            kept: keep.then(Vec::new),
        }
    }

    pub(super) fn finish(self) -> (RowCounts, Rows) {
        (self.row_counts, self.kept.unwrap_or_default())
    }

    /// Decode all of `input`; returns how the answer ended once it is complete.
    pub(super) fn feed(&mut self, mut input: &[u8]) -> Result<Option<AnswerEnd>, Malformed> {
        while let Some(payload) = self.framer.next(&mut input)? {
            let ended = decode_packet(
                payload,
                &mut self.phase,
                &mut self.row_counts,
                self.kept.as_mut(),
            )?;
            if ended.is_some() {
                if !input.is_empty() {
                    return Err(Malformed::Unexpected("bytes follow the end of an answer"));
                }
                return Ok(ended);
            }
        }
        Ok(None)
    }
}

fn decode_packet(
    payload: &[u8],
    phase: &mut Phase,
    row_counts: &mut RowCounts,
    kept: Option<&mut Rows>,
) -> Result<Option<AnswerEnd>, Malformed> {
    let first = payload.first().copied().ok_or(Malformed::Short("packet"))?;
    if first == reply::ERR {
        return ServerError::parse(payload).map(|error| Some(AnswerEnd::Failed(error)));
    }
    let is_end_of_part = reply::is_eof(payload.len(), first);
    match *phase {
        Phase::First if first == reply::OK => {
            let ok = OkPacket::parse(payload)?;
            row_counts.affected += ok.affected;
            return Ok(end_part(phase, ok.status));
        }
        Phase::First if first == reply::LOCAL_INFILE => {
            return Err(Malformed::Unexpected("the server asks for a local file"));
        }
        Phase::First => *phase = Phase::Columns(0),
        Phase::Columns(count) if is_end_of_part => *phase = Phase::Rows(count),
        Phase::Columns(count) => *phase = Phase::Columns(count + 1),
        Phase::Rows(_) if is_end_of_part => {
            return Ok(end_part(phase, reply::eof_status(payload)?));
        }
        Phase::Rows(columns) => {
            row_counts.rows += 1;
            if let Some(kept) = kept {
                if kept.len() == MAX_KEPT_ROWS {
                    return Err(Malformed::Unexpected("too many rows to keep"));
                }
                kept.push(decode_row(payload, columns)?);
            }
        }
    }
    Ok(None)
}

/// End a part of the answer: `SELECT 1; SELECT 2` has two parts. Returns the end of the answer if this was the last one.
fn end_part(phase: &mut Phase, status: u16) -> Option<AnswerEnd> {
    *phase = Phase::First;
    (status & reply::MORE_RESULTS == 0).then_some(AnswerEnd::Done)
}

fn decode_row(payload: &[u8], columns: usize) -> Result<Vec<Option<String>>, Malformed> {
    let mut values = Vec::with_capacity(columns);
    row::decode_text(payload, columns, |value| {
        values.push(match value {
            Value::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        });
    })?;
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame_packets(payloads: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        for (at, payload) in payloads.iter().enumerate() {
            out.extend_from_slice(&(payload.len() as u32).to_le_bytes()[..3]);
            out.push(at as u8 + 1);
            out.extend_from_slice(payload);
        }
        out
    }

    const END: &[u8] = &[0xFE, 0, 0, 2, 0];
    const MORE: &[u8] = &[0xFE, 0, 0, 0x0A, 0];

    #[test]
    fn rows_are_kept_however_the_stream_is_cut() {
        let bytes = frame_packets(&[
            b"\x02",
            b"\x03def",
            b"\x03def",
            END,
            b"\x01a\xFB",
            b"\x00\x02bc",
            END,
        ]);
        for cut in 0..bytes.len() {
            let mut results = Results::new(true);
            assert_eq!(results.feed(&bytes[..cut]), Ok(None));
            assert_eq!(results.feed(&bytes[cut..]), Ok(Some(AnswerEnd::Done)));
            let (row_counts, rows) = results.finish();
            assert_eq!(row_counts.rows, 2);
            let text = |value: &str| Some(value.to_owned());
            assert_eq!(rows, [vec![text("a"), None], vec![text(""), text("bc")]]);
        }
    }

    #[test]
    fn the_rows_of_all_parts_are_counted() {
        let bytes = frame_packets(&[
            b"\x00\x05\x00\x0A\x00\x00\x00",
            b"\x01",
            b"\x03def",
            END,
            b"\x01a",
            MORE,
            b"\x00\x02\x00\x02\x00\x00\x00",
        ]);
        let mut results = Results::new(false);
        assert_eq!(results.feed(&bytes), Ok(Some(AnswerEnd::Done)));
        let (row_counts, _) = results.finish();
        assert_eq!((row_counts.rows, row_counts.affected), (1, 7));
    }

    #[test]
    fn errors_and_malformed_answers_are_distinguished() {
        let refused = frame_packets(&[b"\xFF\x1A\x04#42S01exists"]);
        assert!(matches!(
            Results::new(false).feed(&refused),
            Ok(Some(AnswerEnd::Failed(error))) if error.code.number() == Some(1050)
        ));
        assert!(
            Results::new(false)
                .feed(&frame_packets(&[b"\xFBfile"]))
                .is_err()
        );
        assert!(Results::new(false).feed(&frame_packets(&[b""])).is_err());
        let twice = [refused.clone(), refused].concat();
        assert!(Results::new(false).feed(&twice).is_err());
    }
}
