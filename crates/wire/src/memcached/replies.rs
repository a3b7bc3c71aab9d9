//! Follows the replies to one request through a stream cut anywhere, without keeping the values.

use super::Dialect;
use crate::keyvalue::{
    CommandCounts, ErrorReply, ExpectReplies, Expected, Lines, Malformed, parse_unsigned,
};

/// Maximum length of a value: the largest that a server can be configured to hold.
const MAX_VALUE_BYTES: u64 = 1 << 30;
/// Length of the CRLF that follows a value.
const CRLF_LEN: usize = 2;

/// The state of one connection's current request.
#[derive(Debug)]
pub struct Replies {
    dialect: Dialect,
    lines: Lines,
    /// Bytes of the value still to come, including its CRLF.
    value_bytes_left: usize,
    /// Commands of the request.
    expected: Vec<Expected>,
    /// How many of these commands are answered.
    answered: usize,
    counts: CommandCounts,
    /// Values in the current reply.
    values: u32,
    /// First error in the current reply.
    error: Option<ErrorReply>,
}

/// The meaning of a line.
enum ReplyLine {
    /// A value of this many bytes follows.
    Value(u64),
    /// The reply is complete.
    End,
    Error(ErrorReply),
}

impl Replies {
    pub fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            lines: Lines::default(),
            value_bytes_left: 0,
            expected: Vec::new(),
            answered: 0,
            counts: CommandCounts::default(),
            values: 0,
            error: None,
        }
    }

    /// The results of the request, once [`Replies::feed`] has returned true.
    #[inline]
    pub fn counts(&self) -> &CommandCounts {
        &self.counts
    }

    /// Consume all bytes of `input`; true when they end the last reply that is due. `on_value_bytes` is called with the bytes of
    /// values.
    #[inline]
    pub fn feed(
        &mut self,
        mut input: &[u8],
        mut on_value_bytes: impl FnMut(&[u8]),
    ) -> Result<bool, Malformed> {
        let answered_before = self.answered;
        while !input.is_empty() {
            let Some(&expected) = self.expected.get(self.answered) else {
                return Err(Malformed::Unexpected(
                    "a reply came although nothing was expected",
                ));
            };
            // The reply to one `mg` ends with its value; quiet `mg`s and a classic `get` have a separate line after the values.
            let value_ends = self.dialect == Dialect::Meta && expected == Expected::Get;
            if self.value_bytes_left > 0 {
                if self.consume_value(&mut input, &mut on_value_bytes)? && value_ends {
                    self.count_reply(expected)?;
                }
                continue;
            }
            let Some(line) = self.lines.next(&mut input)? else {
                break;
            };
            match parse_line(line, self.dialect, expected)? {
                ReplyLine::Value(length) => {
                    self.values = self.values.saturating_add(1);
                    self.value_bytes_left = length as usize + CRLF_LEN;
                }
                ReplyLine::End => self.count_reply(expected)?,
                ReplyLine::Error(error) => {
                    self.error.get_or_insert(error);
                    let reply_continues =
                        self.dialect == Dialect::Meta && matches!(expected, Expected::MultiGet(_));
                    if !reply_continues {
                        self.count_reply(expected)?;
                    }
                }
            }
        }
        Ok(self.answered > answered_before && self.answered == self.expected.len())
    }

    /// Consume the bytes of a value; true when it is complete.
    #[inline]
    fn consume_value(
        &mut self,
        input: &mut &[u8],
        on_value_bytes: &mut impl FnMut(&[u8]),
    ) -> Result<bool, Malformed> {
        if self.value_bytes_left > CRLF_LEN {
            let (part, rest) = input.split_at(input.len().min(self.value_bytes_left - CRLF_LEN));
            on_value_bytes(part);
            self.value_bytes_left -= part.len();
            *input = rest;
        }
        while let Some((&byte, rest)) = input.split_first() {
            if byte
                != if self.value_bytes_left == CRLF_LEN {
                    b'\r'
                } else {
                    b'\n'
                }
            {
                return Err(Malformed::LineEnd);
            }
            *input = rest;
            self.value_bytes_left -= 1;
            if self.value_bytes_left == 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Count a complete reply.
    #[inline]
    fn count_reply(&mut self, expected: Expected) -> Result<(), Malformed> {
        self.answered += 1;
        let values = std::mem::take(&mut self.values);
        match self.error.take() {
            Some(error) => self.counts.errors.push(error),
            None => self.counts.count_reply(expected, values)?,
        }
        Ok(())
    }
}

impl ExpectReplies for Replies {
    #[inline]
    fn begin(&mut self) {
        self.expected.clear();
        self.answered = 0;
        self.counts.clear();
    }

    #[inline]
    fn expect(&mut self, reply: Expected) {
        self.expected.push(reply);
    }
}

/// Parse `line` as part of the reply to `expected`.
#[inline]
fn parse_line(line: &[u8], dialect: Dialect, expected: Expected) -> Result<ReplyLine, Malformed> {
    let mut fields = line.split(|&byte| byte == b' ');
    let first = fields.next().unwrap_or_default();
    let length = match (dialect, expected, first) {
        (Dialect::Text, Expected::Get | Expected::MultiGet(_), b"VALUE") => fields.nth(2),
        (Dialect::Meta, Expected::Get | Expected::MultiGet(_), b"VA") => fields.next(),
        (Dialect::Text, Expected::Get | Expected::MultiGet(_), b"END")
        | (Dialect::Meta, Expected::Get, b"EN")
        | (Dialect::Meta, Expected::MultiGet(_), b"MN")
        | (
            Dialect::Text,
            Expected::Write,
            b"STORED" | b"NOT_STORED" | b"EXISTS" | b"NOT_FOUND" | b"DELETED",
        )
        | (Dialect::Meta, Expected::Write, b"HD" | b"NS" | b"EX" | b"NF") => {
            return Ok(ReplyLine::End);
        }
        (_, _, b"ERROR" | b"CLIENT_ERROR" | b"SERVER_ERROR") => {
            return Ok(ReplyLine::Error(ErrorReply::from_line(line)));
        }
        _ => {
            return Err(Malformed::Unexpected(
                "a reply of another kind than its command has",
            ));
        }
    };
    let length = parse_unsigned(length.unwrap_or_default(), "the length of a value")?;
    if length > MAX_VALUE_BYTES {
        return Err(Malformed::Number("the length of a value"));
    }
    Ok(ReplyLine::Value(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(
        dialect: Dialect,
        expected: &[Expected],
        stream: &str,
    ) -> Result<(bool, CommandCounts), Malformed> {
        let mut replies = Replies::new(dialect);
        replies.begin();
        for &reply in expected {
            replies.expect(reply);
        }
        let ended = replies.feed(stream.as_bytes(), |_| {})?;
        Ok((ended, replies.counts().clone()))
    }

    const PIPELINE: [Expected; 5] = [
        Expected::Get,
        Expected::Get,
        Expected::MultiGet(3),
        Expected::Write,
        Expected::Write,
    ];

    #[test]
    fn a_pipeline_is_counted_in_both_dialects() {
        let text = "VALUE k 0 2\r\n\r\n\r\nEND\r\nEND\r\nVALUE k 0 1 77\r\na\r\nVALUE k 0 0\r\n\r\nEND\r\nSTORED\r\nSERVER_ERROR out of memory\r\n";
        let meta = "VA 2\r\n\r\n\r\nEN\r\nVA 1 kk\r\na\r\nVA 0 kk\r\n\r\nMN\r\nHD\r\nSERVER_ERROR out of memory\r\n";
        for (dialect, stream) in [(Dialect::Text, text), (Dialect::Meta, meta)] {
            let (ended, counts) =
                counts(dialect, &PIPELINE, stream).expect("the replies are valid");
            assert!(ended);
            assert_eq!(
                (counts.reads, counts.writes, counts.hits, counts.misses),
                (3, 1, 3, 2)
            );
            assert_eq!(counts.errors[0].word.name(), "SERVER_ERROR");
        }
    }

    #[test]
    fn an_error_in_a_quiet_group_ends_with_the_group() {
        let stream = "VA 1 kk\r\na\r\nCLIENT_ERROR bad key\r\nMN\r\n";
        let (ended, counts) =
            counts(Dialect::Meta, &[Expected::MultiGet(2)], stream).expect("the replies are valid");
        assert!(ended);
        assert_eq!((counts.hits, counts.errors.len()), (0, 1));
    }

    #[test]
    fn replies_that_do_not_fit_their_command_are_refused() {
        for (dialect, expected, stream) in [
            (Dialect::Text, Expected::Get, "STORED\r\n"),
            (Dialect::Text, Expected::Get, "EN\r\n"),
            (Dialect::Text, Expected::Write, "END\r\n"),
            (Dialect::Text, Expected::Get, "VALUE k 0\r\n"),
            (Dialect::Text, Expected::Get, "VALUE k 0 -1\r\n"),
            (Dialect::Text, Expected::Get, "VALUE k 0 1073741825\r\n"),
            (Dialect::Text, Expected::Get, "VALUE k 0 1\r\nab\r\n"),
            (
                Dialect::Text,
                Expected::Get,
                "VALUE a 0 0\r\n\r\nVALUE b 0 0\r\n\r\nEND\r\n",
            ),
            (Dialect::Text, Expected::Get, "END\r\nEND\r\n"),
            (Dialect::Meta, Expected::Get, "VA\r\n"),
            (Dialect::Meta, Expected::Get, "MN\r\n"),
            (Dialect::Meta, Expected::MultiGet(1), "EN\r\n"),
        ] {
            assert!(counts(dialect, &[expected], stream).is_err(), "{stream:?}");
        }
    }
}
