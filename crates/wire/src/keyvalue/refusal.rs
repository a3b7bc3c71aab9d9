//! Errors that a server answers a command with.

use std::fmt;

use crate::ErrorCode;

/// Maximum bytes kept of an error's text.
const MAX_MESSAGE_BYTES: usize = 200;

/// The first word of an error, from a closed list, so that errors can be counted by a small number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Word(u16);

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

impl Word {
    /// The first word of an error's line.
    pub fn of(line: &[u8]) -> Self {
        let first = line.split(|&byte| byte == b' ').next().unwrap_or(line);
        let at = WORDS.iter().position(|word| word.as_bytes() == first);
        Self(at.unwrap_or(0) as u16)
    }

    pub fn code(self) -> ErrorCode {
        ErrorCode::word(self.0)
    }

    pub fn name(self) -> &'static str {
        Self::name_at(self.0.into())
    }

    pub(crate) fn name_at(index: usize) -> &'static str {
        WORDS.get(index).copied().unwrap_or(WORDS[0])
    }
}

/// An error with the server's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub word: Word,
    /// The line, or the beginning of a long one.
    pub text: String,
}

impl Refusal {
    pub fn of(line: &[u8]) -> Self {
        let kept = &line[..line.len().min(MAX_MESSAGE_BYTES)];
        Self {
            word: Word::of(line),
            text: String::from_utf8_lossy(kept).into_owned(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "`{}`", self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_told_apart() {
        for (line, name) in [
            ("MOVED 3999 127.0.0.1:6381", "MOVED"),
            ("ERR unknown command", "ERR"),
            ("SERVER_ERROR out of memory storing object", "SERVER_ERROR"),
            ("ERROR", "ERROR"),
            ("ERRORS", "OTHER"),
            ("", "OTHER"),
        ] {
            let refusal = Refusal::of(line.as_bytes());
            assert_eq!(refusal.word.name(), name);
            assert_eq!(refusal.text, line);
        }
    }
}
