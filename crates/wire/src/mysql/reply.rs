//! Decodes single packets that a server sends outside of rows: OK, ERR, EOF, the header of a prepare, a column's definition.

use std::fmt;

use super::Malformed;
use super::read::Fields;
use crate::ErrorCode;

pub const OK: u8 = 0x00;
pub const LOCAL_INFILE: u8 = 0xFB;
pub const EOF: u8 = 0xFE;
pub const ERR: u8 = 0xFF;

/// Status flag: another result follows this one.
pub const MORE_RESULTS: u16 = 0x0008;

/// Maximum columns of a result: the protocol's own bound.
const MAX_COLUMNS: u64 = 4096;
/// Maximum bytes kept of an error's text: servers send at most 512.
const MAX_MESSAGE_BYTES: usize = 1024;

/// An error that a server returned instead of an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("error {code}{}: {message}", StateSuffix(.state))]
pub struct ServerError {
    pub code: ErrorCode,
    /// The five characters of the SQLSTATE; empty if `code` is the SQLSTATE itself, and before login, when servers omit it.
    pub state: String,
    pub message: String,
}

struct StateSuffix<'a>(&'a str);

impl fmt::Display for StateSuffix<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(out, " ({})", self.0)
    }
}

impl ServerError {
    /// Parse an error; `payload` is a complete ERR packet, including its first byte.
    pub fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(payload);
        fields.byte("error marker")?;
        let code = fields.integer(2, "error code")? as u16;
        let state = if fields.0.first() == Some(&b'#') {
            &fields.take(6, "SQLSTATE")?[1..]
        } else {
            &[]
        };
        Ok(Self {
            code: code.into(),
            state: to_text(state),
            message: to_text(&fields.0[..fields.0.len().min(MAX_MESSAGE_BYTES)]),
        })
    }
}

fn to_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Whether a packet ends a list of definitions or rows; a row can begin with the same byte.
#[inline]
pub fn is_eof(payload_len: usize, first: u8) -> bool {
    first == EOF && payload_len < 9
}

/// Status flags of a complete EOF packet.
pub fn eof_status(payload: &[u8]) -> Result<u16, Malformed> {
    let mut fields = Fields(payload);
    fields.take(3, "warnings")?;
    Ok(fields.integer(2, "status flags")? as u16)
}

/// The answer to a statement without rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OkPacket {
    pub affected: u64,
    pub status: u16,
}

impl OkPacket {
    /// Parse an OK; `payload` is a complete OK packet, including its first byte.
    #[inline]
    pub fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(payload);
        fields.byte("OK marker")?;
        let affected = fields.length("affected rows")?.unwrap_or(0);
        fields.length("last insert id")?;
        let status = fields.integer(2, "status flags")? as u16;
        Ok(Self { affected, status })
    }

    /// The text at the end of a complete OK packet. MariaDB writes its length before it; MySQL does so only if more than text may
    /// follow.
    pub fn info(payload: &[u8]) -> Result<&[u8], Malformed> {
        let mut fields = Fields(payload);
        fields.byte("OK marker")?;
        fields.length("affected rows")?;
        fields.length("last insert id")?;
        fields.take(2 + 2, "status and warnings")?;
        let rest = fields.0;
        match fields.string("info") {
            Ok(Some(text)) if fields.0.is_empty() => Ok(text),
            _ => Ok(rest),
        }
    }
}

/// The header of the answer to a prepare. The definitions of `parameters` and `columns` follow, each list with an EOF unless empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prepared {
    pub statement: u32,
    pub columns: u16,
    pub parameters: u16,
}

impl Prepared {
    pub fn parse(payload: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(payload);
        if fields.byte("prepare marker")? != OK {
            return Err(Malformed::Unexpected(
                "the answer to a prepare is neither OK nor an error",
            ));
        }
        Ok(Self {
            statement: fields.integer(4, "statement id")? as u32,
            columns: fields.integer(2, "columns")? as u16,
            parameters: fields.integer(2, "parameters")? as u16,
        })
    }
}

/// The header of a result with columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResultHeader {
    /// Number of column definitions that follow: one for each column, or none if the client has them.
    pub definitions: u32,
}

impl ResultHeader {
    /// Parse a header; `payload` is neither OK nor an error. `caches_metadata`: see [`super::handshake::Session::caches_metadata`].
    #[inline]
    pub fn parse(payload: &[u8], caches_metadata: bool) -> Result<Self, Malformed> {
        let mut fields = Fields(payload);
        let columns = fields.length("number of columns")?.unwrap_or(0);
        if columns == 0 || columns > MAX_COLUMNS {
            return Err(Malformed::Unexpected("an impossible number of columns"));
        }
        let has_definitions = !caches_metadata || fields.byte("metadata flag")? != 0;
        Ok(Self {
            definitions: if has_definitions { columns as u32 } else { 0 },
        })
    }
}

/// Parse the type byte of a column definition.
pub fn parse_column_type(payload: &[u8]) -> Result<u8, Malformed> {
    let mut fields = Fields(payload);
    for name in [
        "catalog",
        "schema",
        "table",
        "original table",
        "name",
        "original name",
    ] {
        fields.string(name)?;
    }
    fields.length("fixed fields")?;
    fields.take(2 + 4, "character set")?;
    fields.byte("column type")
}
