//! Sources of a statement's values.

use std::io::Write as _;

use howfar_contract::jobs::Alphabet;

use super::{Cursor, Program};
use crate::digits;
use crate::distribution::IdSampler;

/// A value to bind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    Integer(i64),
    Bytes(&'a [u8]),
    /// A part of the SQL itself, for statements that are sent as text.
    Raw(&'a [u8]),
}

/// A source that draws one value, or looks it up.
#[derive(Debug, Clone)]
pub enum Source {
    /// A row id; later sources of the transaction may refer to it.
    Id(IdSampler),
    /// The row id that was drawn last, plus this number.
    LastPlus(u64),
    /// `offset` plus a drawn number; later sources cannot refer to it.
    Number {
        ids: IdSampler,
        offset: u64,
    },
    /// A row id from the connection's part of the table, which begins at its index times `rows` (a real number, as in sysbench)
    /// and has `rows` more ids.
    Slice {
        ids: IdSampler,
        rows: f64,
    },
    /// A value of sysbench's column `c`.
    C,
    /// A value of sysbench's column `pad`.
    Pad,
    /// A number unique to every call in the job: the residue permutation of sysbench's `unique`, as a signed integer.
    Unique,
    /// `first + step * n`, where `n = connection + connections * calls` is unique to every call in the job.
    Sequence {
        first: u64,
        step: u64,
    },
    Text {
        length: u32,
        alphabet: Alphabet,
        compressible: f64,
    },
    Integer(i64),
    Constant(Vec<u8>),
    /// The rows `(n,n),(n+1,n+1),…` of sysbench's `bulk_insert`, until they have at least `bytes`.
    Rows {
        bytes: usize,
    },
    /// Draws from `source` and keeps the value for others.
    Keep {
        index: usize,
        source: Box<Source>,
    },
    /// The value kept at this index.
    Recall(usize),
}

#[derive(Debug, Clone)]
enum OwnedValue {
    Integer(i64),
    Bytes(Vec<u8>),
}

impl From<Value<'_>> for OwnedValue {
    fn from(value: Value<'_>) -> Self {
        match value {
            Value::Integer(number) => Self::Integer(number),
            Value::Bytes(bytes) | Value::Raw(bytes) => Self::Bytes(bytes.to_vec()),
        }
    }
}

/// One connection's memory: the number of its unique numbers so far, and the values that later statements repeat.
#[derive(Debug, Clone)]
pub struct Memory {
    connection: u64,
    calls: u64,
    /// The last number drawn that is unique in the job.
    unique_key: Option<i64>,
    values: Vec<OwnedValue>,
    text: Vec<u8>,
}

impl Memory {
    pub(super) fn new(connection: u64, values: usize) -> Self {
        Self {
            connection,
            calls: 0,
            unique_key: None,
            values: vec![OwnedValue::Integer(0); values],
            text: Vec::new(),
        }
    }

    /// Write rows `(n,n),(n+1,n+1),…` to `text`.
    fn write_rows(&mut self, bytes: usize) {
        self.text.clear();
        while self.text.len() < bytes {
            self.calls += 1;
            let row = self.calls;
            let comma = if self.text.is_empty() { "" } else { "," };
            write!(self.text, "{comma}({row},{row})").expect("writing to memory cannot fail");
        }
    }

    /// Take the unique key that was drawn since the last call of this function, if any.
    #[inline]
    pub(crate) fn take_key(&mut self) -> Option<i64> {
        self.unique_key.take()
    }

    fn remember_key(&mut self, key: i64) -> Value<'static> {
        self.unique_key = Some(key);
        Value::Integer(key)
    }

    /// A number that no other call in the job gets.
    fn next_call(&mut self, connections: u64) -> u64 {
        let number = self.connection + connections * self.calls;
        self.calls += 1;
        number
    }
}

impl Source {
    /// Draw a value and pass it to `put`.
    #[inline]
    pub(super) fn draw(
        &self,
        program: &Program,
        cursor: &mut Cursor,
        memory: &mut Memory,
        put: &mut impl FnMut(Value<'_>),
    ) {
        let integer = match self {
            Self::Id(ids) => {
                cursor.last_id = ids.draw(&mut cursor.random);
                cursor.last_id as i64
            }
            Self::LastPlus(offset) => (cursor.last_id + offset) as i64,
            Self::Number { ids, offset } => {
                offset.wrapping_add(ids.draw(&mut cursor.random)) as i64
            }
            other => return other.draw_rare(program, cursor, memory, put),
        };
        put(Value::Integer(integer));
    }

    fn draw_rare(
        &self,
        program: &Program,
        cursor: &mut Cursor,
        memory: &mut Memory,
        put: &mut dyn FnMut(Value<'_>),
    ) {
        match self {
            Self::Id(_) | Self::LastPlus(_) | Self::Number { .. } => {
                unreachable!("the caller draws from these sources itself")
            }
            Self::Slice { ids, rows } => {
                let first = rows * (memory.connection % program.connections) as f64;
                cursor.last_id = first as u64 + ids.draw(&mut cursor.random) - 1;
                put(Value::Integer(cursor.last_id as i64));
            }
            Self::C => put_text(memory, put, |out| digits::write_c(&mut cursor.random, out)),
            Self::Pad => put_text(memory, put, |out| {
                digits::write_pad(&mut cursor.random, out);
            }),
            Self::Text {
                length,
                alphabet,
                compressible,
            } => put_text(memory, put, |out| {
                digits::write_text(
                    &mut cursor.random,
                    *length as usize,
                    *alphabet,
                    *compressible,
                    out,
                );
            }),
            Self::Unique => {
                let number = unique_number(memory.next_call(program.connections) as u32);
                put(memory.remember_key(i64::from(number) - (1 << 31)));
            }
            Self::Sequence { first, step } => {
                let number = step.wrapping_mul(memory.next_call(program.connections));
                put(memory.remember_key(first.wrapping_add(number) as i64));
            }
            Self::Integer(number) => put(Value::Integer(*number)),
            Self::Constant(bytes) => put(Value::Bytes(bytes)),
            Self::Rows { bytes } => {
                memory.write_rows(*bytes);
                put(Value::Raw(&memory.text));
            }
            Self::Keep { index, source } => {
                let mut kept = OwnedValue::Integer(0);
                source.draw_any(program, cursor, memory, &mut |value| {
                    kept = OwnedValue::from(value);
                    put(value);
                });
                memory.values[*index] = kept;
            }
            Self::Recall(index) => match &memory.values[*index] {
                OwnedValue::Integer(number) => put(Value::Integer(*number)),
                OwnedValue::Bytes(bytes) => put(Value::Bytes(bytes)),
            },
        }
    }

    /// As [`Source::draw`], but compiled only once, for any receiver.
    fn draw_any(
        &self,
        program: &Program,
        cursor: &mut Cursor,
        memory: &mut Memory,
        mut put: &mut dyn FnMut(Value<'_>),
    ) {
        self.draw(program, cursor, memory, &mut put);
    }
}

fn put_text(memory: &mut Memory, put: &mut dyn FnMut(Value<'_>), write: impl FnOnce(&mut Vec<u8>)) {
    memory.text.clear();
    write(&mut memory.text);
    put(Value::Bytes(&memory.text));
}

/// The n-th of all 32-bit numbers in a pseudo-random order: quadratic residues of a prime p = 3 mod 4, mirrored for numbers above p/2
/// (Preshing 2012, as in sysbench's `unique`).
fn unique_number(number: u32) -> u32 {
    const PRIME: u64 = 4_294_967_291;
    let permute = |number: u32| -> u32 {
        let number = u64::from(number);
        if number >= PRIME {
            return number as u32;
        }
        let residue = number * number % PRIME;
        (if number <= PRIME / 2 {
            residue
        } else {
            PRIME - residue
        }) as u32
    };
    permute(permute(number).wrapping_add(0x5BF0_3635) ^ 0x7DE4_9B1C)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unique_numbers_do_not_repeat() {
        let mut numbers: Vec<u32> = (0..200_000).map(unique_number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 200_000);
    }
}
