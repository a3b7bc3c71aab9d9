//! Answers of PostgreSQL, message by message. Complete messages are buffered, because they are small here.

use howfar_wire::postgres::reply::{self, Failure, Tag, TransactionStatus};
use howfar_wire::postgres::{Framer, Malformed};

use super::{AnswerEnd, MAX_KEPT_ROWS, RowCounts, Rows};

/// Maximum length of a message: no answer to a request made here comes near it.
const MAX_MESSAGE_BYTES: usize = 1 << 24;

/// The part of an answer received so far.
#[derive(Debug)]
pub(crate) struct Results {
    framer: Framer,
    row_counts: RowCounts,
    error: Option<Failure>,
    kept_rows: Option<Rows>,
}

impl Results {
    pub(super) fn new(keep: bool) -> Self {
        Self {
            framer: Framer::new(MAX_MESSAGE_BYTES),
            row_counts: RowCounts::default(),
            error: None,
            kept_rows: keep.then(Vec::new),
        }
    }

    pub(super) fn finish(self) -> (RowCounts, Rows) {
        (self.row_counts, self.kept_rows.unwrap_or_default())
    }

    /// Decode all of `input`; returns how the answer ended once it is complete. Unsolicited messages may follow the end.
    pub(super) fn feed(&mut self, mut input: &[u8]) -> Result<Option<AnswerEnd>, Malformed> {
        let mut end = None;
        while let Some((kind, body)) = self.framer.next(&mut input)? {
            if end.is_some() && !matches!(kind, b'N' | b'S' | b'A' | b'E') {
                return Err(Malformed::Unexpected("bytes follow the end of an answer"));
            }
            let outcome = self.handle_message(kind, &body)?;
            end = end.or(outcome);
        }
        Ok(end)
    }

    fn handle_message(&mut self, kind: u8, body: &[u8]) -> Result<Option<AnswerEnd>, Malformed> {
        match kind {
            // Unsolicited messages; column descriptions, empty queries, and a COPY to the client.
            b'N' | b'S' | b'A' | b'T' | b'I' | b'H' | b'd' | b'c' => {}
            b'D' => {
                self.row_counts.rows += 1;
                if let Some(kept_rows) = &mut self.kept_rows {
                    if kept_rows.len() == MAX_KEPT_ROWS {
                        return Err(Malformed::Unexpected("too many rows to keep"));
                    }
                    kept_rows.push(decode_row(body)?);
                }
            }
            b'C' => {
                let tag = Tag::parse(body)?;
                if !tag.is_read {
                    self.row_counts.affected = self.row_counts.affected.saturating_add(tag.rows);
                }
            }
            b'E' => {
                let failure = Failure::parse(body)?;
                if failure.is_fatal {
                    return Ok(Some(AnswerEnd::Failed(failure.error)));
                }
                self.error.get_or_insert(failure);
            }
            b'Z' => {
                TransactionStatus::parse(body)?;
                let error = self.error.take();
                return Ok(Some(error.map_or(AnswerEnd::Done, |failure| {
                    AnswerEnd::Failed(failure.error)
                })));
            }
            b'G' | b'W' => return Err(Malformed::CopyIn),
            _ => return Err(Malformed::Kind(kind)),
        }
        Ok(None)
    }
}

fn decode_row(body: &[u8]) -> Result<Vec<Option<String>>, Malformed> {
    let mut values = Vec::new();
    reply::decode_row(body, |value| {
        values.push(value.map(|bytes| String::from_utf8_lossy(bytes).into_owned()));
    })?;
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u32 + 4).to_be_bytes();
        [&[kind][..], &length, body].concat()
    }

    #[test]
    fn rows_are_kept_however_the_stream_is_cut() {
        let stream = [
            message(b'T', b""),
            message(b'D', b"\0\x02\0\0\0\x01a\xff\xff\xff\xff"),
            message(b'N', b"\0"),
            message(b'C', b"SELECT 1\0"),
            message(b'C', b"DELETE 5\0"),
            message(b'Z', b"I"),
        ]
        .concat();
        for cut in 0..stream.len() {
            let mut results = Results::new(true);
            assert_eq!(results.feed(&stream[..cut]), Ok(None));
            assert_eq!(results.feed(&stream[cut..]), Ok(Some(AnswerEnd::Done)));
            let (row_counts, rows) = results.finish();
            assert_eq!((row_counts.rows, row_counts.affected), (1, 5));
            assert_eq!(rows, [vec![Some("a".to_owned()), None]]);
        }
    }

    #[test]
    fn errors_and_malformed_answers_are_distinguished() {
        let refused = [
            message(b'E', b"SERROR\0C42P01\0Mno table\0\0"),
            message(b'Z', b"I"),
        ];
        assert!(matches!(
            Results::new(false).feed(&refused.concat()),
            Ok(Some(AnswerEnd::Failed(error))) if error.code.to_string() == "42P01"
        ));
        assert!(Results::new(false).feed(&message(b'G', b"")).is_err());
        assert!(Results::new(false).feed(&message(b'R', b"")).is_err());
        let twice = [message(b'Z', b"I"), message(b'Z', b"I")].concat();
        assert!(Results::new(false).feed(&twice).is_err());
    }
}
