//! Encodes a statement: as text with its values in it, or as an execute of a prepared statement.

use std::io::Write as _;

use howfar_contract::jobs::SqlProtocol;
use howfar_wire::mysql::command::Execute;
use howfar_wire::postgres::request::{self, Bind};

use super::{Cursor, DueStatement, Memory, Piece, Program, StatementKind, Value};

impl Program {
    /// Append the SQL to prepare.
    pub(super) fn write_template(&self, kind: &StatementKind, table: u32, out: &mut Vec<u8>) {
        let mut value_number = 0;
        for piece in &kind.pieces {
            match (piece, self.protocol) {
                (Piece::Text(text), _) => out.extend_from_slice(text.as_bytes()),
                (Piece::Table, _) => write_number(out, i64::from(table)),
                (Piece::Value, SqlProtocol::Mysql) => out.push(b'?'),
                (Piece::Value, SqlProtocol::Postgresql) => {
                    value_number += 1;
                    out.push(b'$');
                    write_number(out, value_number);
                }
            }
        }
    }

    /// Append a bind of the values of `due` to the prepared `statement` of PostgreSQL; `None` for the unnamed statement.
    #[inline]
    pub(crate) fn write_bind(
        &self,
        due: DueStatement,
        cursor: &mut Cursor,
        memory: &mut Memory,
        statement: Option<u32>,
        out: &mut Vec<u8>,
    ) {
        let mut bind = Bind::begin(out, statement, cursor.value_count(self, due));
        cursor.values(self, due, memory, |value| match value {
            Value::Integer(integer) => bind.integer(integer),
            Value::Bytes(bytes) | Value::Raw(bytes) => bind.bytes(bytes),
        });
        bind.end();
    }

    /// Append a parse of `due` as the unnamed statement, and a bind of its values.
    pub(crate) fn write_unnamed(
        &self,
        due: DueStatement,
        cursor: &mut Cursor,
        memory: &mut Memory,
        out: &mut Vec<u8>,
        quote: impl Fn(&mut Vec<u8>, &[u8]),
    ) {
        let kind = &self.kinds[due.kind];
        if kind.is_always_text {
            request::parse_with(out, None, |sql| {
                self.write_text(due, cursor, memory, sql, quote);
            });
            return Bind::begin(out, None, 0).end();
        }
        request::parse_with(out, None, |sql| self.write_template(kind, due.table, sql));
        self.write_bind(due, cursor, memory, None, out);
    }

    /// Append the SQL of `due` with its values; `quote` appends a text as a literal of the server.
    pub fn write_text(
        &self,
        due: DueStatement,
        cursor: &mut Cursor,
        memory: &mut Memory,
        out: &mut Vec<u8>,
        quote: impl Fn(&mut Vec<u8>, &[u8]),
    ) {
        let mut pieces = self.kinds[due.kind].pieces.iter();
        let mut write_up_to_value = |out: &mut Vec<u8>| {
            for piece in pieces.by_ref() {
                match piece {
                    Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
                    Piece::Table => write_number(out, i64::from(due.table)),
                    Piece::Value => return,
                }
            }
        };
        write_up_to_value(out);
        cursor.values(self, due, memory, |value| {
            match value {
                Value::Integer(integer) => write_number(out, integer),
                Value::Bytes(bytes) => quote(out, bytes),
                Value::Raw(bytes) => out.extend_from_slice(bytes),
            }
            write_up_to_value(out);
        });
    }

    /// Append an execute of `due`, prepared as `statement`. `is_first`: this connection executes it for the first time.
    #[inline]
    pub fn write_execute(
        &self,
        due: DueStatement,
        cursor: &mut Cursor,
        memory: &mut Memory,
        (statement, is_first): (u32, bool),
        out: &mut Vec<u8>,
    ) {
        let mut execute = Execute::begin(out, statement, is_first, cursor.value_count(self, due));
        cursor.values(self, due, memory, |value| match value {
            Value::Integer(integer) => execute.integer(integer),
            Value::Bytes(bytes) | Value::Raw(bytes) => execute.bytes(bytes),
        });
        execute.end();
    }
}

fn write_number(out: &mut Vec<u8>, number: i64) {
    write!(out, "{number}").expect("writing to memory cannot fail");
}
