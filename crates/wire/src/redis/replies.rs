//! Follows the replies to one request through a stream cut anywhere, without storing them: this code runs millions of times.

use super::scanner::{Kind, Scanner, Token};
use crate::keyvalue::{CommandCounts, ErrorReply, ExpectReplies, Expected, Malformed};

/// The state of one connection's current request.
#[derive(Debug, Default)]
pub struct Replies {
    scanner: Scanner,
    /// Commands of the request.
    expected: Vec<Expected>,
    /// How many of these commands are answered.
    answered: usize,
    counts: CommandCounts,
    reply: Reply,
}

/// The contents of the current reply so far.
#[derive(Debug, Default)]
struct Reply {
    values: u32,
    nulls: u32,
    error: Option<ErrorReply>,
    /// The text of an error that comes as a block.
    error_block: Vec<u8>,
    /// Number of open attributes and pushes, whose contents do not count.
    uncounted_depth: u32,
    is_in_error: bool,
}

/// Maximum bytes kept of an error that comes as a block: more than is reported.
const MAX_ERROR_BYTES: usize = 256;

impl Replies {
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
        let mut ended = false;
        while !input.is_empty() {
            let reply = &mut self.reply;
            let kind = self.scanner.next(&mut input, &mut |token| {
                reply.handle_token(token, &mut on_value_bytes);
                Ok(())
            })?;
            match kind {
                None => break,
                Some(Kind::Push) => {}
                Some(kind) => {
                    self.count_reply(kind)?;
                    ended = self.answered == self.expected.len();
                }
            }
        }
        // Bytes after the last reply may belong to a push; any other reply is refused as unexpected when it is complete.
        Ok(ended)
    }

    /// Count a complete reply.
    #[inline]
    fn count_reply(&mut self, kind: Kind) -> Result<(), Malformed> {
        let expected = *self
            .expected
            .get(self.answered)
            .ok_or(Malformed::Unexpected(
                "a reply came although nothing was expected",
            ))?;
        self.answered += 1;
        let (values, nulls) = (self.reply.values, self.reply.nulls);
        self.reply.values = 0;
        self.reply.nulls = 0;
        if let Some(error) = self.reply.error.take() {
            self.counts.errors.push(error);
            return Ok(());
        }
        let has_expected_kind = match expected {
            Expected::Get => matches!(kind, Kind::Bulk | Kind::Null | Kind::Verbatim),
            Expected::MultiGet(keys) => kind == Kind::Array && values + nulls == u32::from(keys),
            Expected::Write => matches!(kind, Kind::Simple | Kind::Integer),
        };
        if !has_expected_kind {
            return Err(Malformed::Unexpected(
                "a reply of another kind than its command has",
            ));
        }
        self.counts.count_reply(expected, values)
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

impl Reply {
    #[inline]
    fn handle_token(&mut self, token: Token<'_>, on_value_bytes: &mut impl FnMut(&[u8])) {
        match token {
            Token::Part(part) if self.is_in_error => self.keep_error(part),
            Token::Part(part) => on_value_bytes(part),
            Token::Line(Kind::Error, line) if self.uncounted_depth == 0 => {
                self.set_error(ErrorReply::from_line(line));
            }
            Token::Line(Kind::Null, _) if self.uncounted_depth == 0 => {
                self.nulls = self.nulls.saturating_add(1);
            }
            Token::Block(Kind::BulkError, _) => self.is_in_error = true,
            Token::Block(..) if self.uncounted_depth == 0 => {
                self.values = self.values.saturating_add(1);
            }
            Token::Close(Kind::BulkError) => {
                let line = std::mem::take(&mut self.error_block);
                self.is_in_error = false;
                if self.uncounted_depth == 0 {
                    self.set_error(ErrorReply::from_line(&line));
                }
            }
            Token::Open(Kind::Attribute | Kind::Push, 1..) => self.uncounted_depth += 1,
            Token::Close(Kind::Attribute | Kind::Push) => self.uncounted_depth -= 1,
            _ => {}
        }
    }

    fn keep_error(&mut self, part: &[u8]) {
        let space = MAX_ERROR_BYTES.saturating_sub(self.error_block.len());
        self.error_block
            .extend_from_slice(&part[..part.len().min(space)]);
    }

    /// Keep only the first error: a reply belongs to one command.
    #[cold]
    fn set_error(&mut self, error_reply: ErrorReply) {
        self.error.get_or_insert(error_reply);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expect_all(expected: &[Expected]) -> Replies {
        let mut replies = Replies::default();
        replies.begin();
        for &reply in expected {
            replies.expect(reply);
        }
        replies
    }

    #[test]
    fn a_pipeline_is_counted() {
        let mut replies = expect_all(&[
            Expected::Get,
            Expected::MultiGet(3),
            Expected::Write,
            Expected::Get,
        ]);
        let stream =
            b"$2\r\nhi\r\n*3\r\n$-1\r\n$1\r\nx\r\n_\r\n>1\r\n+note\r\n+OK\r\n-MOVED 1 h:1\r\n";
        let mut values = Vec::new();
        assert_eq!(
            replies.feed(stream, |part| values.extend_from_slice(part)),
            Ok(true)
        );
        let counts = replies.counts();
        assert_eq!((counts.reads, counts.writes), (2, 1));
        assert_eq!((counts.hits, counts.misses), (2, 2));
        assert_eq!(values, b"hix");
        assert_eq!(counts.errors[0].word.name(), "MOVED");
    }

    #[test]
    fn a_push_may_follow_and_a_reply_may_not() {
        let mut replies = expect_all(&[Expected::Get]);
        assert_eq!(replies.feed(b"$-1\r\n>1\r\n$3\r\nab", |_| {}), Ok(true));
        replies.begin();
        replies.expect(Expected::Write);
        assert_eq!(replies.feed(b"c\r\n:1\r\n", |_| {}), Ok(true));
        assert!(replies.feed(b"+OK\r\n", |_| {}).is_err());
    }

    #[test]
    fn replies_of_another_kind_are_refused() {
        for (expected, stream) in [
            (Expected::Get, "*0\r\n"),
            (Expected::Get, "+OK\r\n"),
            (Expected::Write, "$1\r\na\r\n"),
            (Expected::MultiGet(2), "*1\r\n_\r\n"),
        ] {
            let outcome = expect_all(&[expected]).feed(stream.as_bytes(), |_| {});
            assert!(outcome.is_err(), "{stream:?}");
        }
    }
}
