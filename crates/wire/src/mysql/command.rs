//! Encodes requests. Each is packet number 0.

use code::{CLOSE, EXECUTE, PING, PREPARE, QUERY, QUIT};

use super::frame::write_packet;

/// The first byte of a request.
pub mod code {
    pub const QUIT: u8 = 0x01;
    pub const INIT_DB: u8 = 0x02;
    pub const QUERY: u8 = 0x03;
    pub const FIELD_LIST: u8 = 0x04;
    pub const STATISTICS: u8 = 0x09;
    pub const PING: u8 = 0x0E;
    pub const CHANGE_USER: u8 = 0x11;
    pub const BINLOG_DUMP: u8 = 0x12;
    pub const PREPARE: u8 = 0x16;
    pub const EXECUTE: u8 = 0x17;
    pub const SEND_LONG_DATA: u8 = 0x18;
    pub const CLOSE: u8 = 0x19;
    pub const RESET_STATEMENT: u8 = 0x1A;
    pub const SET_OPTION: u8 = 0x1B;
    pub const FETCH: u8 = 0x1C;
    pub const BINLOG_DUMP_GTID: u8 = 0x1E;
    pub const RESET_CONNECTION: u8 = 0x1F;
    /// MariaDB only: many rows of values for one statement.
    pub const BULK_EXECUTE: u8 = 0xFA;
}

/// Type of a signed parameter of eight bytes, which sysbench uses for every integer.
const LONGLONG: [u8; 2] = [0x08, 0x00];
/// Type of a parameter of any number of bytes.
const VAR_STRING: [u8; 2] = [0xFD, 0x00];

fn write_command(out: &mut Vec<u8>, code: u8, body: &[u8]) {
    // The usual case is one packet, written without an intermediate copy of the body.
    if body.len() + 1 < super::frame::MAX_PAYLOAD {
        let length = (body.len() as u32 + 1).to_le_bytes();
        out.extend_from_slice(&[length[0], length[1], length[2], 0, code]);
        out.extend_from_slice(body);
    } else {
        write_packet(out, 0, &[&[code], body].concat());
    }
}

/// Run `sql`; the answer is an OK, an error or rows in the text format.
pub fn query(out: &mut Vec<u8>, sql: &[u8]) {
    write_command(out, QUERY, sql);
}

/// Run the SQL that `write` appends, without an intermediate copy. The text must be shorter than a full packet.
pub fn query_with(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, QUERY]);
    write(out);
    patch_length(out, start);
}

/// Prepare `sql`; the answer starts with [`super::reply::Prepared`].
pub fn prepare(out: &mut Vec<u8>, sql: &[u8]) {
    write_command(out, PREPARE, sql);
}

/// Close a prepared statement; there is no answer.
pub fn close(out: &mut Vec<u8>, statement: u32) {
    write_command(out, CLOSE, &statement.to_le_bytes());
}

/// Check that the server is alive; the answer is an OK.
pub fn ping(out: &mut Vec<u8>) {
    write_command(out, PING, &[]);
}

/// End the session; there is no answer.
pub fn quit(out: &mut Vec<u8>) {
    write_command(out, QUIT, &[]);
}

/// Writes an execute, value by value.
///
/// The server remembers the types of parameters, so they are sent with a statement's first execution only. As with sysbench, integers
/// have the type of eight signed bytes, and everything else that of a byte string.
#[derive(Debug)]
pub struct Execute<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    /// Offset of the next parameter's type; None if the server knows the types.
    type_offset: Option<usize>,
}

impl<'a> Execute<'a> {
    /// Begin an execute of `statement` with this number of `parameters`. `first_execution`: this connection executes it for the
    /// first time.
    #[inline]
    pub fn begin(
        out: &'a mut Vec<u8>,
        statement: u32,
        first_execution: bool,
        parameters: usize,
    ) -> Self {
        let start = out.len();
        let id = statement.to_le_bytes();
        out.extend_from_slice(&[
            0, 0, 0, 0, EXECUTE, id[0], id[1], id[2], id[3], 0, // no cursor
            1, 0, 0, 0, // iterations, always one
        ]);
        let mut type_offset = None;
        if parameters > 0 {
            // No parameter is NULL.
            for _ in 0..parameters.div_ceil(8) {
                out.push(0);
            }
            out.push(u8::from(first_execution));
            if first_execution {
                type_offset = Some(out.len());
                out.resize(out.len() + 2 * parameters, 0);
            }
        }
        Self {
            out,
            start,
            type_offset,
        }
    }

    #[inline]
    fn write_type(&mut self, kind: [u8; 2]) {
        if let Some(offset) = self.type_offset {
            self.out[offset..offset + 2].copy_from_slice(&kind);
            self.type_offset = Some(offset + 2);
        }
    }

    #[inline]
    pub fn integer(&mut self, value: i64) {
        self.write_type(LONGLONG);
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    #[inline]
    pub fn bytes(&mut self, value: &[u8]) {
        self.write_type(VAR_STRING);
        write_length(self.out, value.len() as u64);
        self.out.extend_from_slice(value);
    }

    /// Write the packet's length, which must be less than that of a full packet.
    #[inline]
    pub fn end(self) {
        patch_length(self.out, self.start);
    }
}

fn patch_length(out: &mut [u8], start: usize) {
    let length = out.len() - start - super::frame::HEADER_LEN;
    assert!(
        length < super::frame::MAX_PAYLOAD,
        "statements of the workloads are shorter than a full packet"
    );
    out[start..start + 3].copy_from_slice(&(length as u32).to_le_bytes()[..3]);
}

/// Append a length-encoded integer, in as few bytes as possible.
pub fn write_length(out: &mut Vec<u8>, length: u64) {
    let bytes = length.to_le_bytes();
    match length {
        0..0xFB => out.push(bytes[0]),
        0xFB..0x1_0000 => out.extend_from_slice(&[0xFC, bytes[0], bytes[1]]),
        0x1_0000..0x100_0000 => out.extend_from_slice(&[0xFD, bytes[0], bytes[1], bytes[2]]),
        _ => {
            out.push(0xFE);
            out.extend_from_slice(&bytes);
        }
    }
}

/// Append a text literal for MySQL's default SQL mode.
pub fn quote(out: &mut Vec<u8>, bytes: &[u8]) {
    out.push(b'\'');
    for &byte in bytes {
        match byte {
            b'\'' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            0 => out.extend_from_slice(b"\\0"),
            _ => out.push(byte),
        }
    }
    out.push(b'\'');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn execute(statement: u32, first_execution: bool, values: &[i64]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut execute = Execute::begin(&mut out, statement, first_execution, values.len());
        for &value in values {
            execute.integer(value);
        }
        execute.end();
        out
    }

    #[test]
    fn executes_have_the_bytes_of_the_protocol() {
        assert_eq!(
            execute(2, true, &[0x13AF]),
            b"\x16\0\0\0\x17\x02\0\0\0\0\x01\0\0\0\0\x01\x08\0\xAF\x13\0\0\0\0\0\0"
        );
        assert_eq!(
            execute(2, false, &[0x137C]),
            b"\x14\0\0\0\x17\x02\0\0\0\0\x01\0\0\0\0\0\x7C\x13\0\0\0\0\0\0"
        );
        assert_eq!(
            execute(6, true, &[0x1386, 0x13E9]),
            b"\x20\0\0\0\x17\x06\0\0\0\0\x01\0\0\0\0\x01\x08\0\x08\0\x86\x13\0\0\0\0\0\0\xE9\x13\0\0\0\0\0\0"
        );
        assert_eq!(execute(6, false, &[1, 2]).len(), 32);
        assert_eq!(
            execute(3, true, &[]),
            b"\x0A\0\0\0\x17\x03\0\0\0\0\x01\0\0\0"
        );
    }

    /// sysbench's non-index update has 148 bytes with its types, 144 without.
    #[test]
    fn strings_carry_their_length() {
        for (first_execution, length) in [(true, 148), (false, 144)] {
            let mut out = Vec::new();
            let mut execute = Execute::begin(&mut out, 1, first_execution, 2);
            execute.bytes(&[b'7'; 119]);
            execute.integer(5);
            execute.end();
            assert_eq!(out.len(), length);
            assert_eq!(usize::from(out[0]), length - 4);
        }
        let mut out = Vec::new();
        for length in [0xFA, 0xFB, 0xFFFF, 0x1_0000, 0x100_0000] {
            write_length(&mut out, length);
        }
        assert_eq!(out.len(), 1 + 3 + 3 + 4 + 9);
    }

    #[test]
    fn commands_are_framed() {
        let mut out = Vec::new();
        query(&mut out, b"BEGIN");
        assert_eq!(out, b"\x06\0\0\0\x03BEGIN");
        let mut written = Vec::new();
        query_with(&mut written, |sql| sql.extend_from_slice(b"BEGIN"));
        assert_eq!(written, out);
        out.clear();
        quit(&mut out);
        close(&mut out, 7);
        assert_eq!(out, b"\x01\0\0\0\x01\x05\0\0\0\x19\x07\0\0\0");
    }
}
