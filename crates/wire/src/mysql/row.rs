//! Decodes columns of rows, and defines what a client does with a row: [`RowHandling`].

use std::hint::black_box;

use super::Malformed;
use super::read::Fields;

/// One column's value. Decimals, dates and strings are left as raw bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    Null,
    Integer(i64),
    Real(f64),
    Bytes(&'a [u8]),
}

/// Decode a value of a binary row; its layout depends on the column's type byte.
fn decode_binary_value<'a>(kind: u8, fields: &mut Fields<'a>) -> Result<Value<'a>, Malformed> {
    let signed = |raw: u64, bits: u32| (raw << (64 - bits)) as i64 >> (64 - bits);
    Ok(match kind {
        1 => Value::Integer(signed(fields.integer(1, "tiny")?, 8)),
        2 | 13 => Value::Integer(signed(fields.integer(2, "short")?, 16)),
        3 | 9 => Value::Integer(signed(fields.integer(4, "long")?, 32)),
        8 => Value::Integer(fields.integer(8, "longlong")? as i64),
        4 => Value::Real(f64::from(
            f32::from_bits(fields.integer(4, "float")? as u32),
        )),
        5 => Value::Real(f64::from_bits(fields.integer(8, "double")?)),
        6 => Value::Null,
        7 | 10 | 11 | 12 | 14 | 17 | 18 | 19 => {
            let length = usize::from(fields.byte("length of a time")?);
            Value::Bytes(fields.take(length, "time")?)
        }
        _ => fields
            .string("string column")?
            .map_or(Value::Null, Value::Bytes),
    })
}

/// Decode a binary row: `on_value` is called with every value in order. `types` are the columns' type bytes.
pub fn decode_binary<'a>(
    payload: &'a [u8],
    types: &[u8],
    mut on_value: impl FnMut(Value<'a>),
) -> Result<(), Malformed> {
    let mut fields = Fields(payload);
    fields.byte("row marker")?;
    // The first two bits are reserved.
    let nulls = fields.take((types.len() + 2).div_ceil(8), "NULL bits")?;
    for (column, &kind) in types.iter().enumerate() {
        let bit = column + 2;
        if (nulls[bit / 8] >> (bit % 8)) & 1 == 1 {
            on_value(Value::Null);
        } else {
            on_value(decode_binary_value(kind, &mut fields)?);
        }
    }
    expect_end(fields)
}

/// Decode a text row of `columns` values.
pub fn decode_text<'a>(
    payload: &'a [u8],
    columns: usize,
    mut on_value: impl FnMut(Value<'a>),
) -> Result<(), Malformed> {
    let mut fields = Fields(payload);
    for _ in 0..columns {
        on_value(
            fields
                .string("text column")?
                .map_or(Value::Null, Value::Bytes),
        );
    }
    expect_end(fields)
}

fn expect_end(fields: Fields<'_>) -> Result<(), Malformed> {
    if fields.0.is_empty() {
        Ok(())
    } else {
        Err(Malformed::Unexpected("a row is longer than its columns"))
    }
}

/// Use a value as an application would: otherwise the compiler would remove the decoding.
fn consume(value: Value<'_>) {
    black_box(value);
}

/// What a client does with the rows of an answer. A worker has one instance and lends it to each of its connections.
#[derive(Debug)]
pub enum RowHandling {
    /// Skip from packet to packet.
    Skip,
    /// Copy each row once, like a client library that buffers results which the application never reads.
    Touch(Scratch),
    /// Decode each column of each row.
    Decode,
}

impl RowHandling {
    /// A `Touch` with an empty buffer.
    pub fn touch() -> Self {
        Self::Touch(Scratch {
            bytes: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            used: 0,
        })
    }

    pub(crate) fn is_decoding(&self) -> bool {
        matches!(self, Self::Decode)
    }

    /// Handle bytes of a row, or of a key-value store's value; called once for each part.
    #[inline]
    pub fn handle_bytes(&mut self, part: &[u8]) {
        if let Self::Touch(scratch) = self {
            scratch.copy(part);
        }
    }

    /// Handle a complete row.
    #[inline]
    pub(super) fn handle_row(
        &mut self,
        payload: &[u8],
        is_binary: bool,
        types: &[u8],
    ) -> Result<(), Malformed> {
        match self {
            Self::Skip => Ok(()),
            Self::Touch(scratch) => {
                scratch.copy(payload);
                Ok(())
            }
            Self::Decode if is_binary => decode_binary(payload, types, consume),
            Self::Decode => decode_text(payload, types.len(), consume),
        }
    }
}

/// The buffer into which rows are copied: large enough for the usual result and reused for all results, so that no answer allocates.
#[derive(Debug)]
pub struct Scratch {
    bytes: Box<[u8]>,
    used: usize,
}

const SCRATCH_BYTES: usize = 64 * 1024;

impl Scratch {
    #[inline]
    fn copy(&mut self, mut part: &[u8]) {
        while !part.is_empty() {
            if self.used == self.bytes.len() {
                self.used = 0;
            }
            let part_len = part.len().min(self.bytes.len() - self.used);
            self.bytes[self.used..self.used + part_len].copy_from_slice(&part[..part_len]);
            self.used += part_len;
            part = &part[part_len..];
        }
        black_box(&mut self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode_all<'a>(payload: &'a [u8], types: &[u8]) -> Result<Vec<Value<'a>>, Malformed> {
        let mut values = Vec::new();
        decode_binary(payload, types, |value| values.push(value))?;
        Ok(values)
    }

    #[test]
    fn binary_rows_decode_by_type() {
        let payload = b"\0\x10\xFF\x05\0\0\0\x03abc";
        assert_eq!(
            decode_all(payload, &[1, 3, 8, 254]),
            Ok(vec![
                Value::Integer(-1),
                Value::Integer(5),
                Value::Null,
                Value::Bytes(b"abc")
            ])
        );
        assert_eq!(
            decode_all(&payload[..9], &[1, 3, 8, 254]),
            Err(Malformed::Short("string column"))
        );
        assert!(decode_all(b"\0\0\x01\x02", &[1]).is_err());
    }

    #[test]
    fn text_rows_decode_lengths_and_nulls() {
        let mut values = Vec::new();
        decode_text(b"\xFB\x02hi", 2, |value| values.push(value)).expect("the row is valid");
        assert_eq!(values, [Value::Null, Value::Bytes(b"hi")]);
        assert!(decode_text(b"\x05hi", 1, |_| ()).is_err());
    }

    #[test]
    fn scratch_wraps_around_when_it_is_full() {
        let mut handling = RowHandling::touch();
        handling.handle_bytes(&vec![1; SCRATCH_BYTES + 5]);
        let RowHandling::Touch(scratch) = &handling else {
            panic!("expected `RowHandling::Touch`")
        };
        assert_eq!(scratch.used, 5);
    }
}
