//! Encodes requests in either dialect.
//!
//! Several keys at once are one `get` in the classic protocol. The meta protocol has no such command: clients send for each key an
//! `mg` that is silent about misses, and `mn` after them.

use crate::keyvalue::write_decimal;

/// Which commands are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `get`, `set`, `delete`.
    Text,
    /// `mg`, `ms`, `md`.
    Meta,
}

impl Dialect {
    /// Request the value of one key.
    #[inline]
    pub fn get(self, out: &mut Vec<u8>, key: &[u8]) {
        match self {
            Self::Text => write_line(out, b"get ", key, b"\r\n"),
            Self::Meta => write_line(out, b"mg ", key, b" v\r\n"),
        }
    }

    /// Request the values of `count` keys, each written by `key`, at once.
    #[inline]
    pub fn multi_get(self, out: &mut Vec<u8>, count: usize, mut key: impl FnMut(&mut Vec<u8>)) {
        if self == Self::Text {
            out.extend_from_slice(b"get");
            for _ in 0..count {
                out.push(b' ');
                key(out);
            }
            out.extend_from_slice(b"\r\n");
            return;
        }
        for _ in 0..count {
            out.extend_from_slice(b"mg ");
            key(out);
            out.extend_from_slice(b" k v q\r\n");
        }
        out.extend_from_slice(b"mn\r\n");
    }

    /// Set `key` to a value of `length` bytes, appended by `value`; it never expires.
    #[inline]
    pub fn set(
        self,
        out: &mut Vec<u8>,
        key: &[u8],
        length: usize,
        value: impl FnOnce(&mut Vec<u8>),
    ) {
        match self {
            Self::Text => write_line(out, b"set ", key, b" 0 0 "),
            Self::Meta => write_line(out, b"ms ", key, b" "),
        }
        write_decimal(out, length as u64);
        out.extend_from_slice(b"\r\n");
        let before = out.len();
        value(out);
        assert_eq!(out.len() - before, length, "a value is as long as it says");
        out.extend_from_slice(b"\r\n");
    }

    #[inline]
    pub fn delete(self, out: &mut Vec<u8>, key: &[u8]) {
        match self {
            Self::Text => write_line(out, b"delete ", key, b"\r\n"),
            Self::Meta => write_line(out, b"md ", key, b"\r\n"),
        }
    }
}

#[inline]
fn write_line(out: &mut Vec<u8>, before: &[u8], key: &[u8], after: &[u8]) {
    out.extend_from_slice(before);
    out.extend_from_slice(key);
    out.extend_from_slice(after);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn commands_have_their_known_bytes() {
        let (text, meta) = (Dialect::Text, Dialect::Meta);
        assert_eq!(encode(|out| text.get(out, b"k")), "get k\r\n");
        assert_eq!(encode(|out| meta.get(out, b"k")), "mg k v\r\n");
        assert_eq!(encode(|out| text.delete(out, b"k")), "delete k\r\n");
        assert_eq!(encode(|out| meta.delete(out, b"k")), "md k\r\n");
        let value = |out: &mut Vec<u8>| out.extend_from_slice(b"a\r\nb");
        assert_eq!(
            encode(|out| text.set(out, b"k", 4, value)),
            "set k 0 0 4\r\na\r\nb\r\n"
        );
        assert_eq!(
            encode(|out| meta.set(out, b"k", 4, value)),
            "ms k 4\r\na\r\nb\r\n"
        );
        let key = |out: &mut Vec<u8>| out.push(b'k');
        assert_eq!(encode(|out| text.multi_get(out, 2, key)), "get k k\r\n");
        assert_eq!(
            encode(|out| meta.multi_get(out, 2, key)),
            "mg k k v q\r\nmg k k v q\r\nmn\r\n"
        );
    }
}
