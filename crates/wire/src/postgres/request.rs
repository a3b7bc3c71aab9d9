//! Encodes requests. Values are sent as text: the server infers their types from the statement.

use std::io::Write as _;

use crate::keyvalue::write_decimal;

/// Version 3.0.
const VERSION: u32 = 3 << 16;
/// Codes that a first message can have in place of a version.
pub const CANCEL_REQUEST: u32 = 80_877_102;
pub const SSL_REQUEST: u32 = 80_877_103;
pub const GSS_REQUEST: u32 = 80_877_104;

/// Append a message of type `kind` with the body that `write` appends.
#[inline]
fn write_message(out: &mut Vec<u8>, kind: u8, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&[kind, 0, 0, 0, 0]);
    let start = out.len() - 4;
    write(out);
    patch_length(out, start);
}

/// Write the length at `start`, which includes itself.
#[inline]
fn patch_length(out: &mut [u8], start: usize) {
    let length = out.len() - start;
    assert!(length < 1 << 30, "the request is shorter than 1 GiB");
    out[start..start + 4].copy_from_slice(&(length as u32).to_be_bytes());
}

fn write_text(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(text);
    out.push(0);
}

/// Request TLS; the answer is one byte.
pub fn ssl(out: &mut Vec<u8>) {
    out.extend_from_slice(&8_u32.to_be_bytes());
    out.extend_from_slice(&SSL_REQUEST.to_be_bytes());
}

/// Begin a session with the settings in `options` (`-c name=value`). A `read_only` session stays read-only when a client resets it, and
/// a pooler that cannot provide one refuses the login.
pub fn startup(out: &mut Vec<u8>, user: &str, database: &str, options: &str, read_only: bool) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&VERSION.to_be_bytes());
    for (name, value) in [
        ("user", user),
        ("database", database),
        ("application_name", "howfar"),
        ("options", options),
        (
            "default_transaction_read_only",
            if read_only { "on" } else { "" },
        ),
    ] {
        if !value.is_empty() {
            write_text(out, name.as_bytes());
            write_text(out, value.as_bytes());
        }
    }
    out.push(0);
    patch_length(out, start);
}

/// Send a password, or a proof of one, with its zero byte.
pub fn password(out: &mut Vec<u8>, secret: &[u8]) {
    write_message(out, b'p', |out| write_text(out, secret));
}

/// Send the first message of a SASL exchange.
pub fn sasl_initial(out: &mut Vec<u8>, mechanism: &str, data: &[u8]) {
    write_message(out, b'p', |out| {
        write_text(out, mechanism.as_bytes());
        out.extend_from_slice(&(data.len() as u32).to_be_bytes());
        out.extend_from_slice(data);
    });
}

/// Send a later message of a SASL exchange.
pub fn sasl(out: &mut Vec<u8>, data: &[u8]) {
    write_message(out, b'p', |out| out.extend_from_slice(data));
}

/// Run the SQL that `write` appends by the simple protocol.
#[inline]
pub fn query_with(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    write_message(out, b'Q', |out| {
        write(out);
        out.push(0);
    });
}

/// Append the name of the statement with this `id`; the empty name if there is none.
fn write_statement_name(out: &mut Vec<u8>, id: Option<u32>) {
    if let Some(id) = id {
        write!(out, "s{id}").expect("writing to memory cannot fail");
    }
    out.push(0);
}

/// Prepare the SQL that `write` appends. Without an `id`, the server keeps the statement only until the next one without an `id`.
pub fn parse_with(out: &mut Vec<u8>, id: Option<u32>, write: impl FnOnce(&mut Vec<u8>)) {
    write_message(out, b'P', |out| {
        write_statement_name(out, id);
        write(out);
        // No parameter type is given.
        out.extend_from_slice(&[0, 0, 0]);
    });
}

/// Writes a bind of the unnamed portal, value by value.
#[derive(Debug)]
pub struct Bind<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> Bind<'a> {
    /// Begin to bind `parameters` values to a statement.
    #[inline]
    pub fn begin(out: &'a mut Vec<u8>, id: Option<u32>, parameters: usize) -> Self {
        assert!(
            parameters <= 0xFFFF,
            "a statement has at most 65,535 parameters"
        );
        out.extend_from_slice(&[b'B', 0, 0, 0, 0, 0]);
        let start = out.len() - 5;
        write_statement_name(out, id);
        let [high, low] = (parameters as u16).to_be_bytes();
        out.extend_from_slice(&[0, 0, high, low]);
        Self { out, start }
    }

    #[inline]
    pub fn integer(&mut self, value: i64) {
        let start = self.out.len();
        self.out.extend_from_slice(&[0; 4]);
        if value < 0 {
            self.out.push(b'-');
        }
        write_decimal(self.out, value.unsigned_abs());
        let length = (self.out.len() - start - 4) as u32;
        self.out[start..start + 4].copy_from_slice(&length.to_be_bytes());
    }

    #[inline]
    pub fn bytes(&mut self, value: &[u8]) {
        self.out
            .extend_from_slice(&(value.len() as u32).to_be_bytes());
        self.out.extend_from_slice(value);
    }

    /// Write the end, and request rows in text format.
    #[inline]
    pub fn end(self) {
        self.out.extend_from_slice(&[0, 0]);
        patch_length(self.out, self.start);
    }
}

/// Run the unnamed portal to its end.
#[inline]
pub fn execute(out: &mut Vec<u8>) {
    out.extend_from_slice(b"E\0\0\0\x09\0\0\0\0\0");
}

/// End a request of the extended protocol: the server answers everything before it, then reports that it is ready.
#[inline]
pub fn sync(out: &mut Vec<u8>) {
    out.extend_from_slice(b"S\0\0\0\x04");
}

/// End the session; there is no answer.
pub fn terminate(out: &mut Vec<u8>) {
    out.extend_from_slice(b"X\0\0\0\x04");
}

/// Append a text literal for a server with `standard_conforming_strings`.
pub fn quote(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'\'');
    for &byte in bytes {
        if byte == b'\'' {
            out.push(byte);
        }
        out.push(byte);
    }
    out.push(b'\'');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = b"before".to_vec();
        write(&mut out);
        out.split_off(6)
    }

    #[test]
    fn messages_have_the_bytes_that_servers_expect() {
        assert_eq!(encode(ssl), b"\0\0\0\x08\x04\xd2\x16\x2f");
        assert_eq!(
            encode(|out| startup(out, "u", "d", "", false)),
            b"\0\0\0\x33\0\x03\0\0user\0u\0database\0d\0application_name\0howfar\0\0"
        );
        assert_eq!(
            encode(|out| startup(out, "u", "d", "-c a=1", false)),
            b"\0\0\0\x42\0\x03\0\0user\0u\0database\0d\0application_name\0howfar\0options\0-c a=1\0\0"
        );
        assert_eq!(
            encode(|out| query_with(out, |sql| sql.extend_from_slice(b"BEGIN"))),
            b"Q\0\0\0\x0aBEGIN\0"
        );
        assert_eq!(
            encode(|out| parse_with(out, Some(12), |sql| sql.extend_from_slice(b"END"))),
            b"P\0\0\0\x0es12\0END\0\0\0"
        );
        assert_eq!(
            encode(|out| sasl_initial(out, "SCRAM-SHA-256", b"abc")),
            b"p\0\0\0\x19SCRAM-SHA-256\0\0\0\0\x03abc"
        );
        assert_eq!(
            encode(|out| password(out, b"secret")),
            b"p\0\0\0\x0bsecret\0"
        );
    }

    #[test]
    fn values_are_bound_as_text() {
        let encode_bind = |id, values: &[i64]| {
            encode(|out| {
                let mut bind = Bind::begin(out, id, values.len());
                for &value in values {
                    bind.integer(value);
                }
                bind.end();
            })
        };
        assert_eq!(
            encode_bind(Some(3), &[-50]),
            b"B\0\0\0\x15\0s3\0\0\0\0\x01\0\0\0\x03-50\0\0"
        );
        assert_eq!(encode_bind(None, &[]), b"B\0\0\0\x0c\0\0\0\0\0\0\0\0");
        for value in [0, 9, 10, i64::MAX, i64::MIN] {
            let text = value.to_string();
            let bytes = encode_bind(None, &[value]);
            assert_eq!(&bytes[15..bytes.len() - 2], text.as_bytes());
        }
    }

    #[test]
    fn quotes_are_doubled_and_backslashes_are_not() {
        assert_eq!(encode(|out| quote(out, b"a'b\\c")), b"'a''b\\c'");
    }
}
