//! Errors with which a server answers a command.

use std::fmt;

use crate::ErrorCode;

/// Maximum bytes kept of an error's text.
const MAX_MESSAGE_BYTES: usize = 200;

/// The first word of an error, from a closed list, so that errors can be counted by a small number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ErrorWord(u16);

/// The first stands for all words that are not in the list. The last three are Memcached's.
const WORDS: [&str; 27] = [
    "OTHER",
    "ERR",
    "MOVED",
    "ASK",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "CROSSSLOT",
    "LOADING",
    "BUSY",
    "OOM",
    "READONLY",
    "MASTERDOWN",
    "MISCONF",
    "NOREPLICAS",
    "NOAUTH",
    "NOPERM",
    "NOPROTO",
    "WRONGPASS",
    "WRONGTYPE",
    "EXECABORT",
    "NOSCRIPT",
    "NOTBUSY",
    "UNBLOCKED",
    "BUSYKEY",
    "ERROR",
    "CLIENT_ERROR",
    "SERVER_ERROR",
];

impl ErrorWord {
    /// Find the first word of an error's line in the list.
    pub fn from_line(line: &[u8]) -> Self {
        let first = line.split(|&byte| byte == b' ').next().unwrap_or(line);
        let index = WORDS.iter().position(|word| word.as_bytes() == first);
        Self(index.unwrap_or(0) as u16)
    }

    pub fn code(self) -> ErrorCode {
        ErrorCode::from_word_index(self.0)
    }

    pub fn name(self) -> &'static str {
        Self::name_at(self.0.into())
    }

    pub(crate) fn name_at(index: usize) -> &'static str {
        WORDS.get(index).copied().unwrap_or(WORDS[0])
    }
}

/// An error reply with the server's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorReply {
    pub word: ErrorWord,
    /// The line, or the beginning of a long one.
    pub text: String,
}

impl ErrorReply {
    pub fn from_line(line: &[u8]) -> Self {
        let text = &line[..line.len().min(MAX_MESSAGE_BYTES)];
        Self {
            word: ErrorWord::from_line(line),
            text: String::from_utf8_lossy(text).into_owned(),
        }
    }
}

impl fmt::Display for ErrorReply {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "`{}`", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_is_found_in_the_list() {
        for (line, name) in [
            ("MOVED 3999 127.0.0.1:6381", "MOVED"),
            ("ERR unknown command", "ERR"),
            ("SERVER_ERROR out of memory storing object", "SERVER_ERROR"),
            ("ERROR", "ERROR"),
            ("ERRORS", "OTHER"),
            ("", "OTHER"),
        ] {
            let error_reply = ErrorReply::from_line(line.as_bytes());
            assert_eq!(error_reply.word.name(), name);
            assert_eq!(error_reply.text, line);
        }
    }
}
