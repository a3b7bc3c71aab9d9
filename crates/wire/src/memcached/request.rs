//! Encodes requests in either dialect.
//!
//! The classic protocol requests several keys with one `get`. The meta protocol has no such command: clients send an `mg` that is
//! silent about misses for each key, and `mn` after the last.

use crate::keyvalue::write_decimal;

/// The set of commands that is used.
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

    /// Request the values of `count` keys at once; `write_key` appends each key.
    #[inline]
    pub fn multi_get(
        self,
        out: &mut Vec<u8>,
        count: usize,
        mut write_key: impl FnMut(&mut Vec<u8>),
    ) {
        if self == Self::Text {
            out.extend_from_slice(b"get");
            for _ in 0..count {
                out.push(b' ');
                write_key(out);
            }
            out.extend_from_slice(b"\r\n");
            return;
        }
        for _ in 0..count {
            out.extend_from_slice(b"mg ");
            write_key(out);
            out.extend_from_slice(b" k v q\r\n");
        }
        out.extend_from_slice(b"mn\r\n");
    }

    /// Set `key` to a value of `length` bytes, which `write_value` appends; it never expires.
    #[inline]
    pub fn set(
        self,
        out: &mut Vec<u8>,
        key: &[u8],
        length: usize,
        write_value: impl FnOnce(&mut Vec<u8>),
    ) {
        match self {
            Self::Text => write_line(out, b"set ", key, b" 0 0 "),
            Self::Meta => write_line(out, b"ms ", key, b" "),
        }
        write_decimal(out, length as u64);
        out.extend_from_slice(b"\r\n");
        let start = out.len();
        write_value(out);
        assert_eq!(
            out.len() - start,
            length,
            "the value has its announced length"
        );
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
fn write_line(out: &mut Vec<u8>, prefix: &[u8], key: &[u8], suffix: &[u8]) {
    out.extend_from_slice(prefix);
    out.extend_from_slice(key);
    out.extend_from_slice(suffix);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("commands are ASCII")
    }

    #[test]
    fn commands_have_the_bytes_of_the_protocol() {
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
