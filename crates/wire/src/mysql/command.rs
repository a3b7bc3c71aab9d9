//! Requests. All are written as number 0 of a new exchange.

use super::frame::write_packet;

const QUIT: u8 = 0x01;
const QUERY: u8 = 0x03;
const PREPARE: u8 = 0x16;
const EXECUTE: u8 = 0x17;
const CLOSE: u8 = 0x19;

/// A parameter of eight bytes, signed: what sysbench binds for each integer.
const LONGLONG: [u8; 2] = [0x08, 0x00];

fn command(out: &mut Vec<u8>, code: u8, body: &[u8]) {
    // The usual case is one packet, written without a copy of the body in between.
    if body.len() + 1 < super::frame::FULL {
        let length = (body.len() as u32 + 1).to_le_bytes();
        out.extend_from_slice(&[length[0], length[1], length[2], 0, code]);
        out.extend_from_slice(body);
    } else {
        write_packet(out, 0, &[&[code], body].concat());
    }
}

/// Run `sql`; the answer is an OK, an error or rows in text.
pub fn query(out: &mut Vec<u8>, sql: &[u8]) {
    command(out, QUERY, sql);
}

/// The same for SQL that `write` appends: no copy in between. The text must be shorter than a full packet.
pub fn query_with(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, QUERY]);
    write(out);
    let length = out.len() - start - super::frame::HEADER;
    assert!(
        length < super::frame::FULL,
        "queries of the workloads are short"
    );
    out[start..start + 3].copy_from_slice(&(length as u32).to_le_bytes()[..3]);
}

/// Prepare `sql`; the answer starts with [`super::reply::Prepared`].
pub fn prepare(out: &mut Vec<u8>, sql: &[u8]) {
    command(out, PREPARE, sql);
}

/// Forget a statement; has no answer.
pub fn close(out: &mut Vec<u8>, statement: u32) {
    command(out, CLOSE, &statement.to_le_bytes());
}

/// End the session; has no answer.
pub fn quit(out: &mut Vec<u8>) {
    command(out, QUIT, &[]);
}

/// Bytes of an execute with two parameters and their types: the longest that [`Execute`] writes.
pub const LONGEST_EXECUTE: usize = 36;

/// An execute of a statement with `0..=2` integer parameters, encoded once and patched in place for each use.
///
/// The server remembers the types of parameters, so they are sent with a statement's first execution only.
#[derive(Debug, Clone, Copy)]
pub struct Execute {
    typed: [u8; LONGEST_EXECUTE],
    known: [u8; LONGEST_EXECUTE],
    parameters: usize,
}

const STATEMENT_AT: usize = 5;

impl Execute {
    pub fn new(parameters: usize) -> Self {
        assert!(parameters <= 2, "the workloads bind at most two parameters");
        Self {
            typed: Self::template(parameters, true),
            known: Self::template(parameters, false),
            parameters,
        }
    }

    fn template(parameters: usize, typed: bool) -> [u8; LONGEST_EXECUTE] {
        let mut packet = [0; LONGEST_EXECUTE];
        packet[0] = (Self::length(parameters, typed) - 4) as u8;
        packet[4] = EXECUTE;
        packet[10] = 1; // iterations, always one
        if parameters > 0 && typed {
            packet[15] = 1; // behind one byte of NULL bits
            for at in 0..parameters {
                packet[16 + 2 * at..18 + 2 * at].copy_from_slice(&LONGLONG);
            }
        }
        packet
    }

    /// Bytes on the wire.
    pub fn length(parameters: usize, typed: bool) -> usize {
        match (parameters, typed) {
            (0, _) => 14,
            (count, false) => 16 + 8 * count,
            (count, true) => 16 + 10 * count,
        }
    }

    /// Patch the packet and give its bytes. `first`: this connection executes `statement` for the first time.
    /// Parameters beyond the statement's own are ignored.
    #[inline]
    pub fn encode(&mut self, statement: u32, first: bool, values: [u64; 2]) -> &[u8] {
        let (packet, values_at) = if first {
            (&mut self.typed, 16 + 2 * self.parameters)
        } else {
            (&mut self.known, 16)
        };
        packet[STATEMENT_AT..STATEMENT_AT + 4].copy_from_slice(&statement.to_le_bytes());
        for (at, value) in values.iter().enumerate().take(self.parameters) {
            let from = values_at + 8 * at;
            packet[from..from + 8].copy_from_slice(&value.to_le_bytes());
        }
        &packet[..Self::length(self.parameters, first)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executes_have_the_bytes_that_servers_are_used_to() {
        let mut point = Execute::new(1);
        assert_eq!(
            point.encode(2, true, [0x13AF, 0]),
            b"\x16\0\0\0\x17\x02\0\0\0\0\x01\0\0\0\0\x01\x08\0\xAF\x13\0\0\0\0\0\0"
        );
        assert_eq!(
            point.encode(2, false, [0x137C, 0]),
            b"\x14\0\0\0\x17\x02\0\0\0\0\x01\0\0\0\0\0\x7C\x13\0\0\0\0\0\0"
        );
        let mut range = Execute::new(2);
        assert_eq!(
            range.encode(6, true, [0x1386, 0x13E9]),
            b"\x20\0\0\0\x17\x06\0\0\0\0\x01\0\0\0\0\x01\x08\0\x08\0\x86\x13\0\0\0\0\0\0\xE9\x13\0\0\0\0\0\0"
        );
        assert_eq!(range.encode(6, false, [1, 2]).len(), 32);
        let mut begin = Execute::new(0);
        assert_eq!(
            begin.encode(3, true, [9, 9]),
            b"\x0A\0\0\0\x17\x03\0\0\0\0\x01\0\0\0"
        );
        assert_eq!(begin.encode(3, false, [9, 9]).len(), 14);
    }

    #[test]
    fn commands_are_framed() {
        let mut out = Vec::new();
        query(&mut out, b"BEGIN");
        assert_eq!(out, b"\x06\0\0\0\x03BEGIN");
        let mut same = Vec::new();
        query_with(&mut same, |sql| sql.extend_from_slice(b"BEGIN"));
        assert_eq!(same, out);
        out.clear();
        quit(&mut out);
        close(&mut out, 7);
        assert_eq!(out, b"\x01\0\0\0\x01\x05\0\0\0\x19\x07\0\0\0");
    }
}
