//! Decodes single messages of a server: errors, command tags, parameters, transaction states, rows.

use super::Malformed;
use super::frame::Fields;
use crate::ErrorCode;
use crate::mysql::ServerError;

/// Maximum bytes kept of an error's text.
const MAX_MESSAGE_BYTES: usize = 1024;
/// The SQLSTATE of an error without a valid one.
const DEFAULT_SQLSTATE: [u8; 5] = *b"XX000";

/// An error, and whether it ends the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub error: ServerError,
    pub is_fatal: bool,
}

impl Failure {
    /// Parse the `body` of an `ErrorResponse`: fields of a letter and a text, and a zero byte.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(body);
        let (mut state, mut message, mut severity) = (DEFAULT_SQLSTATE, "", None);
        let mut text;
        loop {
            match fields.byte("field of an error")? {
                0 => break,
                b'C' => {
                    let code = fields.text("SQLSTATE")?;
                    state = code.try_into().unwrap_or(DEFAULT_SQLSTATE);
                }
                b'M' => {
                    let bytes = fields.text("message")?;
                    text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_MESSAGE_BYTES)]);
                    message = &text;
                }
                // `V` is never translated. Servers before 9.6 send only `S`, which may be translated.
                b'V' => severity = Some(fields.text("severity")?),
                b'S' => severity = severity.or(Some(fields.text("severity")?)),
                _ => drop(fields.text("field of an error")?),
            }
        }
        let code =
            ErrorCode::from_sqlstate(state).or_else(|| ErrorCode::from_sqlstate(DEFAULT_SQLSTATE));
        Ok(Self {
            error: ServerError {
                code: code.ok_or(Malformed::Short("SQLSTATE"))?,
                state: String::new(),
                message: message.to_owned(),
            },
            is_fatal: matches!(severity, Some(b"FATAL" | b"PANIC")),
        })
    }
}

/// A command tag: the result of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// The command returns rows and changes none.
    pub is_read: bool,
    /// Rows returned or changed.
    pub rows: u64,
}

impl Tag {
    /// Parse the `body` of a `CommandComplete`: `SELECT 3`, `INSERT 0 1`, `BEGIN`.
    #[inline]
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let text = body.strip_suffix(&[0]).ok_or(Malformed::Short("tag"))?;
        let digits = text.iter().rev().take_while(|byte| byte.is_ascii_digit());
        let digits = &text[text.len() - digits.count()..];
        let rows = digits.iter().fold(0_u64, |rows, digit| {
            rows.saturating_mul(10)
                .saturating_add(u64::from(digit - b'0'))
        });
        let is_read = [&b"SELECT"[..], b"FETCH", b"SHOW", b"EXPLAIN"]
            .iter()
            .any(|word| text.starts_with(word));
        Ok(Self { is_read, rows })
    }
}

/// Parse the `body` of a `ParameterStatus`: a name and a value.
pub fn parse_parameter(body: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let mut fields = Fields(body);
    Ok((fields.text("parameter")?, fields.text("value")?))
}

/// The transaction status in `ReadyForQuery`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionStatus {
    None,
    Open,
    /// A statement of the transaction failed: only the end of the transaction is accepted.
    Failed,
}

impl TransactionStatus {
    /// Parse the `body` of a `ReadyForQuery`.
    #[inline]
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        match body {
            b"I" => Ok(Self::None),
            b"T" => Ok(Self::Open),
            b"E" => Ok(Self::Failed),
            _ => Err(Malformed::Unexpected("an unknown state of a transaction")),
        }
    }
}

/// Decode a `DataRow`: `on_value` is called with every value in order, `None` for NULL.
pub fn decode_row<'a>(
    body: &'a [u8],
    mut on_value: impl FnMut(Option<&'a [u8]>),
) -> Result<(), Malformed> {
    let mut fields = Fields(body);
    for _ in 0..fields.int16("columns")?.max(0) {
        let length = fields.int32("length of a column")?;
        on_value(match usize::try_from(length) {
            Ok(length) => Some(fields.take(length, "column")?),
            Err(_) => None,
        });
    }
    if fields.0.is_empty() {
        Ok(())
    } else {
        Err(Malformed::Unexpected("a row is longer than its columns"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_keep_their_code_and_text() {
        let body = b"SERREUR\0VERROR\0C42P01\0Mrelation \"t\" does not exist\0P15\0\0";
        let failure = Failure::parse(body).expect("the message is valid");
        assert_eq!(failure.error.code.to_string(), "42P01");
        let text = failure.error.to_string();
        assert_eq!(text, "error 42P01: relation \"t\" does not exist");
        assert!(!failure.is_fatal);
        let fatal = Failure::parse(b"SFATAL\0C57P01\0Mbye\0\0").expect("the message is valid");
        assert!(fatal.is_fatal);
        let short_code = Failure::parse(b"C42\0\0").expect("the message is valid");
        assert_eq!(short_code.error.code.to_string(), "XX000");
        assert!(Failure::parse(b"C42P01\0Mx").is_err());
    }

    #[test]
    fn tags_give_the_kind_of_a_command_and_its_rows() {
        let tag = |text: &[u8]| Tag::parse(text).map(|tag| (tag.is_read, tag.rows));
        assert_eq!(tag(b"SELECT 100\0"), Ok((true, 100)));
        assert_eq!(tag(b"INSERT 0 1\0"), Ok((false, 1)));
        assert_eq!(tag(b"BEGIN\0"), Ok((false, 0)));
        assert_eq!(
            tag(b"UPDATE 99999999999999999999999\0"),
            Ok((false, u64::MAX))
        );
        assert_eq!(tag(b"\0"), Ok((false, 0)));
        assert!(tag(b"").is_err());
    }

    #[test]
    fn rows_decode_lengths_and_nulls() {
        let mut values = Vec::new();
        decode_row(b"\0\x02\0\0\0\x02hi\xff\xff\xff\xff", |value| {
            values.push(value);
        })
        .expect("the row is valid");
        assert_eq!(values, [Some(&b"hi"[..]), None]);
        assert!(decode_row(b"\0\x01\0\0\0\x05hi", |_| ()).is_err());
        assert!(decode_row(b"\0\0x", |_| ()).is_err());
    }
}
