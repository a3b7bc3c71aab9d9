//! Encodes the messages that a fake server sends: greeting, OK, errors, definitions, the header of a prepare. Used by the null server
//! and by tests of the client's decoders.

use super::Malformed;
use super::command::write_length;
use super::frame::{HEADER_LEN, parse_header, write_packet};
use super::handshake::{
    CACHE_METADATA, CONNECT_WITH_DB, LONG_FLAG, LONG_PASSWORD, MULTI_RESULTS, PLUGIN_AUTH,
    PROTOCOL_41, PS_MULTI_RESULTS, SCRAMBLE_BYTES, SECURE_CONNECTION, TRANSACTIONS,
    UTF8MB4_GENERAL_CI,
};
use super::read::Fields;
use super::reply;

const FOUND_ROWS: u32 = 1 << 1;
const MULTI_STATEMENTS: u32 = 1 << 16;

/// Capabilities offered to every client: the protocol of 4.1 with its usual options; no TLS, no compression, and results with EOF
/// packets.
const OFFERED: u32 = FOUND_ROWS
    | LONG_FLAG
    | CONNECT_WITH_DB
    | PROTOCOL_41
    | TRANSACTIONS
    | SECURE_CONNECTION
    | MULTI_STATEMENTS
    | MULTI_RESULTS
    | PS_MULTI_RESULTS
    | PLUGIN_AUTH;

/// Status flag: each statement is its own transaction.
pub const AUTOCOMMIT: u16 = 0x0002;

/// Type bytes of columns.
pub const VAR_STRING: u8 = 253;
pub const STRING: u8 = 254;

/// Write a greeting that requests authentication by `mysql_native_password`. `is_mariadb`: also offer to omit definitions that the
/// client has.
pub fn greeting(
    out: &mut Vec<u8>,
    version: &str,
    connection: u32,
    scramble: [u8; SCRAMBLE_BYTES],
    is_mariadb: bool,
) {
    // The lowest bit distinguishes the two servers: see `Greeting::parse`.
    let (identity_bit, extended_capabilities) = if is_mariadb {
        (0, CACHE_METADATA)
    } else {
        (LONG_PASSWORD, 0)
    };
    let capabilities = (OFFERED | identity_bit).to_le_bytes();
    let mut body = vec![10];
    body.extend_from_slice(version.as_bytes());
    body.push(0);
    body.extend_from_slice(&connection.to_le_bytes());
    body.extend_from_slice(&scramble[..8]);
    body.push(0);
    body.extend_from_slice(&capabilities[..2]);
    body.push(UTF8MB4_GENERAL_CI);
    body.extend_from_slice(&AUTOCOMMIT.to_le_bytes());
    body.extend_from_slice(&capabilities[2..]);
    body.push(SCRAMBLE_BYTES as u8 + 1);
    body.extend_from_slice(&[0; 6]);
    body.extend_from_slice(&extended_capabilities.to_le_bytes());
    body.extend_from_slice(&scramble[8..]);
    body.push(0);
    body.extend_from_slice(super::auth::NATIVE.as_bytes());
    body.push(0);
    write_packet(out, 0, &body);
}

/// The features of a client's login that affect later answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Login {
    /// The client accepts MariaDB's results without definitions.
    pub caches_metadata: bool,
}

impl Login {
    /// Parse a login; `payload` is the packet that answers a greeting.
    pub fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(payload);
        let capabilities = fields.integer(4, "capabilities")? as u32;
        fields.take(4 + 1 + 19, "largest packet and character set")?;
        let extended_capabilities = fields.integer(4, "extended capabilities")? as u32;
        if capabilities & PROTOCOL_41 == 0 {
            return Err(Malformed::Unexpected("the client is older than MySQL 4.1"));
        }
        if fields.0.is_empty() {
            return Err(Malformed::Unexpected(
                "the client begins TLS, which was not offered",
            ));
        }
        Ok(Self {
            caches_metadata: capabilities & LONG_PASSWORD == 0
                && extended_capabilities & CACHE_METADATA != 0,
        })
    }
}

/// Write an OK with no affected rows and no inserted id.
pub fn ok(out: &mut Vec<u8>, sequence: u8, status: u16) -> u8 {
    let [low, high] = status.to_le_bytes();
    write_packet(out, sequence, &[reply::OK, 0, 0, low, high, 0, 0])
}

/// Write the end of a list of definitions or of rows.
pub fn end(out: &mut Vec<u8>, sequence: u8, status: u16) -> u8 {
    let [low, high] = status.to_le_bytes();
    write_packet(out, sequence, &[reply::EOF, 0, 0, low, high])
}

pub fn error(out: &mut Vec<u8>, sequence: u8, code: u16, state: &str, message: &str) -> u8 {
    let mut body = vec![reply::ERR];
    body.extend_from_slice(&code.to_le_bytes());
    body.push(b'#');
    body.extend_from_slice(state.as_bytes());
    body.extend_from_slice(message.as_bytes());
    write_packet(out, sequence, &body)
}

/// Write the header of the answer to a prepare; the definitions follow.
pub fn prepared(out: &mut Vec<u8>, statement: u32, columns: u16, parameters: u16) -> u8 {
    let mut body = vec![reply::OK];
    body.extend_from_slice(&statement.to_le_bytes());
    body.extend_from_slice(&columns.to_le_bytes());
    body.extend_from_slice(&parameters.to_le_bytes());
    body.extend_from_slice(&[0; 3]);
    write_packet(out, 1, &body)
}

/// The definition of a column or parameter of text.
#[derive(Debug, Clone, Copy)]
pub struct Column<'a> {
    pub table: &'a str,
    pub name: &'a str,
    pub kind: u8,
    /// Maximum length of a value in bytes.
    pub length: u32,
}

impl Column<'_> {
    pub fn write(&self, out: &mut Vec<u8>, sequence: u8) -> u8 {
        let mut body = Vec::with_capacity(64);
        let texts = ["def", "", self.table, self.table, self.name, self.name];
        for text in texts {
            string(&mut body, text.as_bytes());
        }
        body.push(0x0C);
        body.extend_from_slice(&[UTF8MB4_GENERAL_CI, 0]);
        body.extend_from_slice(&self.length.to_le_bytes());
        body.push(self.kind);
        body.extend_from_slice(&[0; 5]);
        write_packet(out, sequence, &body)
    }
}

/// Append a text with its length before it.
pub fn string(out: &mut Vec<u8>, text: &[u8]) {
    write_length(out, text.len() as u64);
    out.extend_from_slice(text);
}

/// Renumber complete packets from `sequence`; returns the number that follows the last.
pub fn renumber(packets: &mut [u8], mut sequence: u8) -> u8 {
    let mut rest = packets;
    while let Some((header, tail)) = rest.split_first_chunk_mut::<HEADER_LEN>() {
        header[3] = sequence;
        sequence = sequence.wrapping_add(1);
        let length = parse_header(*header).0.min(tail.len());
        rest = &mut tail[length..];
    }
    sequence
}

#[cfg(test)]
mod tests {
    use super::super::handshake::{Account, Greeting};
    use super::super::row::{self, Value};
    use super::super::{Framer, ServerError};
    use super::*;

    fn payloads(bytes: &[u8]) -> Vec<Vec<u8>> {
        let (mut framer, mut rest) = (Framer::new(1 << 24), bytes);
        let first = bytes.get(3).copied().unwrap_or(0);
        framer.expect(first);
        let mut packets = Vec::new();
        while let Some(payload) = framer.next(&mut rest).expect("the packets are valid") {
            packets.push(payload.to_vec());
        }
        assert!(rest.is_empty() && framer.is_idle());
        packets
    }

    #[test]
    fn the_client_parses_both_greetings_and_its_login_is_parsed() {
        for mariadb in [false, true] {
            let mut out = Vec::new();
            greeting(&mut out, "9.9.9-x", 77, *b"01234567890123456789", mariadb);
            let parsed = Greeting::parse(&payloads(&out)[0]).expect("the greeting is valid");
            assert_eq!(
                (parsed.version.as_str(), parsed.connection_id),
                ("9.9.9-x", 77)
            );
            assert_eq!(&parsed.scramble, b"01234567890123456789");
            assert_eq!(parsed.plugin, super::super::auth::NATIVE);
            assert_eq!(parsed.session().caches_metadata(), mariadb);
            let account = Account {
                user: "u",
                password: "p",
                database: "d",
            };
            let mut login = Vec::new();
            parsed
                .session()
                .login(&mut login, 1, &account, &parsed.plugin, b"proof");
            assert_eq!(
                Login::parse(&login[HEADER_LEN..]),
                Ok(Login {
                    caches_metadata: mariadb
                })
            );
        }
        assert!(Login::parse(&[0; 32]).is_err());
    }

    #[test]
    fn small_packets_are_decoded_as_they_were_written() {
        let mut out = Vec::new();
        ok(&mut out, 1, AUTOCOMMIT | reply::MORE_RESULTS);
        let ok = reply::OkPacket::parse(&out[HEADER_LEN..]).expect("the packet is valid");
        assert_eq!(ok.status, 0x000A);
        out.clear();
        end(&mut out, 1, AUTOCOMMIT);
        assert_eq!(reply::eof_status(&out[HEADER_LEN..]), Ok(AUTOCOMMIT));
        out.clear();
        error(&mut out, 1, 1047, "08S01", "no");
        let parsed = ServerError::parse(&out[HEADER_LEN..]).expect("the packet is an error");
        assert_eq!(
            (
                parsed.code.number().unwrap_or(0),
                parsed.state.as_str(),
                parsed.message.as_str()
            ),
            (1047, "08S01", "no")
        );
        out.clear();
        prepared(&mut out, 9, 1, 2);
        let prepared = reply::Prepared::parse(&out[HEADER_LEN..]).expect("the packet is a prepare");
        assert_eq!(
            (prepared.statement, prepared.columns, prepared.parameters),
            (9, 1, 2)
        );
    }

    #[test]
    fn columns_and_strings_are_decoded_as_they_were_written() {
        let mut out = Vec::new();
        let column = Column {
            table: "sbtest1",
            name: "c",
            kind: STRING,
            length: 480,
        };
        column.write(&mut out, 2);
        assert_eq!(reply::parse_column_type(&out[HEADER_LEN..]), Ok(STRING));
        for length in [0, 250, 251, 65_535, 65_536, 1 << 24] {
            let text = vec![b'x'; length];
            let mut body = Vec::new();
            string(&mut body, &text);
            let mut count = 0;
            row::decode_text(&body, 1, |value| {
                assert_eq!(value, Value::Bytes(&text));
                count += 1;
            })
            .expect("the row is valid");
            assert_eq!(count, 1);
        }
    }

    #[test]
    fn renumbering_changes_only_the_numbers() {
        let mut out = Vec::new();
        let next = ok(&mut out, 1, 0);
        end(&mut out, next, 0);
        let before = payloads(&out);
        assert_eq!(renumber(&mut out, 254), 0);
        assert_eq!((out[3], out[HEADER_LEN + 7 + 3]), (254, 255));
        assert_eq!(payloads(&out), before);
    }
}
