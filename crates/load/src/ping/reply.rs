//! Decodes the answer to one request of a ping job, in any protocol.

use howfar_contract::jobs;
use howfar_wire::keyvalue::Malformed;
use howfar_wire::redis::{Decoder, Value};

use crate::client::{AnswerEnd, Results, Rows};
use crate::connection_error::ConnectionError;
use crate::session::Replies;

/// Maximum memory for one value of Redis, and for the lines of Memcached; large SQL answers are skipped and have their own limit.
const MAX_VALUE_BYTES: usize = 1 << 24;
/// Maximum characters of a refusal that are kept.
const MAX_REFUSAL_CHARS: usize = 300;

/// The contents of an answer.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) rows: Rows,
    pub(super) refusal: Option<String>,
}

/// The part of an answer received so far.
pub(super) enum Reply {
    Sql { results: Results, answer: Answer },
    Redis { decoder: Decoder, answer: Answer },
    Memcached { lines: Vec<u8> },
}

impl Reply {
    /// A reply in the protocol of `replies`. `keep`: rows are kept.
    pub(super) fn for_replies(replies: &Replies, keep: bool) -> Self {
        let answer = Answer::default();
        match replies {
            Replies::MySql(_) | Replies::Postgres(_) => Self::Sql {
                results: Results::for_replies(replies, keep),
                answer,
            },
            Replies::Redis(_) => Self::Redis {
                decoder: Decoder::new(MAX_VALUE_BYTES),
                answer,
            },
            Replies::Memcached(_) => Self::Memcached { lines: Vec::new() },
        }
    }

    /// The protocol, for messages; `None` for SQL, whose errors name their protocol.
    pub(super) fn protocol(&self) -> Option<jobs::Protocol> {
        match self {
            Self::Sql { .. } => None,
            Self::Redis { .. } => Some(jobs::Protocol::Resp2),
            Self::Memcached { .. } => Some(jobs::Protocol::MemcachedText),
        }
    }

    /// Decode all of `input`; true when the answer is complete.
    pub(super) fn feed(&mut self, mut input: &[u8]) -> Result<bool, ConnectionError> {
        match self {
            Self::Sql { results, answer } => {
                let ended = results.feed(input)?;
                if let Some(AnswerEnd::Failed(error)) = &ended {
                    answer.refusal = Some(shorten(&error.to_string()));
                }
                Ok(ended.is_some())
            }
            Self::Redis { decoder, answer } => {
                while let Some(value) = decoder
                    .next(&mut input)
                    .map_err(ConnectionError::MalformedKeyValue)?
                {
                    match value {
                        Value::Push(_) => continue,
                        Value::Error(line) => {
                            answer.refusal = Some(shorten(&String::from_utf8_lossy(&line)));
                        }
                        value => answer.rows = to_rows(&value),
                    }
                    return Ok(true);
                }
                Ok(false)
            }
            Self::Memcached { lines } => {
                lines.extend_from_slice(input);
                if lines.len() > MAX_VALUE_BYTES {
                    return Err(ConnectionError::MalformedKeyValue(Malformed::TooLarge(
                        MAX_VALUE_BYTES,
                    )));
                }
                Ok(is_complete(lines))
            }
        }
    }

    pub(super) fn into_answer(self) -> Answer {
        match self {
            Self::Sql {
                results,
                mut answer,
            } => {
                answer.rows = results.finish().1;
                answer
            }
            Self::Redis { answer, .. } => answer,
            Self::Memcached { lines } => {
                let text = String::from_utf8_lossy(&lines);
                let error_words = ["ERROR", "CLIENT_ERROR", "SERVER_ERROR"];
                let first_line = text.lines().next().unwrap_or_default();
                Answer {
                    refusal: error_words
                        .iter()
                        .any(|word| first_line.starts_with(word))
                        .then(|| shorten(first_line)),
                    rows: text
                        .lines()
                        .map(|line| vec![Some(line.to_owned())])
                        .collect(),
                }
            }
        }
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(MAX_REFUSAL_CHARS).collect()
}

/// Convert a value to rows: one for each element of an array or set, a single one for any other value.
fn to_rows(value: &Value) -> Rows {
    let cell = |value: &Value| match value {
        Value::Integer(number) => Some(number.to_string()),
        other => other
            .text()
            .map(|text| String::from_utf8_lossy(text).into_owned()),
    };
    match value {
        Value::Array(values) | Value::Set(values) => {
            values.iter().map(|value| vec![cell(value)]).collect()
        }
        value => vec![vec![cell(value)]],
    }
}

/// Whether an answer of Memcached is complete: one line, except for values and statistics, which end with END.
fn is_complete(lines: &[u8]) -> bool {
    let has_several_lines = lines.starts_with(b"VALUE ") || lines.starts_with(b"STAT ");
    if has_several_lines {
        lines.ends_with(b"\r\nEND\r\n")
    } else {
        lines.ends_with(b"\r\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed_memcached(text: &str) -> (bool, Answer) {
        let mut reply = Reply::Memcached { lines: Vec::new() };
        let complete = reply
            .feed(text.as_bytes())
            .expect("the reply is short enough");
        (complete, reply.into_answer())
    }

    #[test]
    fn an_answer_of_memcached_is_one_line_or_ends_with_end() {
        for (text, complete) in [
            ("VERSION 1.6.18\r\n", true),
            ("VERSION 1.6", false),
            ("END\r\n", true),
            ("VALUE k 0 2\r\nab\r\n", false),
            ("VALUE k 0 2\r\nab\r\nEND\r\n", true),
            ("STAT pid 1\r\n", false),
            ("ERROR\r\n", true),
        ] {
            assert_eq!(feed_memcached(text).0, complete, "{text:?}");
        }
        assert!(feed_memcached("END\r\n").1.refusal.is_none());
        assert_eq!(
            feed_memcached("CLIENT_ERROR bad\r\n").1.refusal.as_deref(),
            Some("CLIENT_ERROR bad")
        );
    }

    #[test]
    fn a_redis_error_completes_an_answer_and_a_push_does_not() {
        let mut reply = Reply::for_replies(
            &Replies::Redis(howfar_wire::redis::Replies::default()),
            true,
        );
        assert!(
            !reply
                .feed(b">2\r\n+message\r\n+x\r\n")
                .expect("a push is well formed")
        );
        assert!(
            reply
                .feed(b"-NOAUTH first\r\n")
                .expect("an error is well formed")
        );
        assert_eq!(reply.into_answer().refusal.as_deref(), Some("NOAUTH first"));
    }
}
