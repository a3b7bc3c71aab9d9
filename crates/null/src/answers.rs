//! The answers of the null server, encoded once when it starts.

use howfar_wire::mysql::frame::write_packet;
use howfar_wire::mysql::reply::MORE_RESULTS;
use howfar_wire::mysql::server::{self, AUTOCOMMIT, Column, STRING, VAR_STRING};

use crate::jobs::Flavour;
use crate::statement::Kind;

/// The session status reported to every client: no TLS and no compression.
const STATUS: [(&str, &str); 3] = [
    ("Compression", "OFF"),
    ("Ssl_cipher", ""),
    ("Ssl_version", ""),
];
const TABLE: &str = "sbtest1";
/// The scramble of every connection. It may be constant, because no password is checked.
const SCRAMBLE: [u8; 20] = *b"null.null.null.null.";

/// The answers for one kind of client, with sequence numbers from 1. In each pair, the second answer has [`MORE_RESULTS`] set.
#[derive(Debug)]
pub(crate) struct ClientAnswers {
    ok: [Vec<u8>; 2],
    row: [Vec<u8>; 2],
    status: [Vec<u8>; 2],
    /// The answer to an execute: the row in binary, without the column definition if the client caches it.
    pub(crate) execute_answer: Vec<u8>,
}

/// All answers of a server.
#[derive(Debug)]
pub(crate) struct AnswerBook {
    pub(crate) flavour: Flavour,
    /// For clients that need every definition, and for clients that cache them.
    answers: [ClientAnswers; 2],
    column_length: u32,
}

impl AnswerBook {
    pub(crate) fn new(flavour: Flavour, reply_bytes: usize) -> Self {
        Self {
            flavour,
            answers: [false, true]
                .map(|caches_metadata| ClientAnswers::new(reply_bytes, caches_metadata)),
            column_length: column_length(reply_bytes),
        }
    }

    #[inline]
    pub(crate) fn answers(&self, caches_metadata: bool) -> &ClientAnswers {
        &self.answers[usize::from(caches_metadata)]
    }

    pub(crate) fn greeting(&self, connection: u32) -> Vec<u8> {
        let (version, is_mariadb) = match self.flavour {
            // MariaDB puts `5.5.5-` before its version for the sake of old replicas.
            Flavour::Mariadb => ("5.5.5-10.11.0-MariaDB-howfar-null", true),
            Flavour::Mysql => ("8.4.0-howfar-null", false),
        };
        let mut out = Vec::new();
        server::greeting(&mut out, version, connection, SCRAMBLE, is_mariadb);
        out
    }

    /// Write the answer to a prepare: the statement's ID and counts, then the definitions of parameters and columns.
    pub(crate) fn write_prepared(
        &self,
        out: &mut Vec<u8>,
        statement: u32,
        has_row: bool,
        parameters: u16,
    ) {
        let columns = u16::from(has_row);
        let mut sequence = server::prepared(out, statement, columns, parameters);
        let parameter = Column {
            table: "",
            name: "?",
            kind: VAR_STRING,
            length: 0,
        };
        for _ in 0..parameters {
            sequence = parameter.write(out, sequence);
        }
        if parameters > 0 {
            sequence = server::end(out, sequence, AUTOCOMMIT);
        }
        if has_row {
            sequence = column_c(self.column_length).write(out, sequence);
            server::end(out, sequence, AUTOCOMMIT);
        }
    }
}

/// The column length in bytes: four per character, as a server reports for utf8mb4.
fn column_length(reply_bytes: usize) -> u32 {
    reply_bytes as u32 * 4
}

/// The definition of the column that answers a SELECT.
fn column_c(length: u32) -> Column<'static> {
    Column {
        table: TABLE,
        name: "c",
        kind: STRING,
        length,
    }
}

impl ClientAnswers {
    fn new(reply_bytes: usize, caches_metadata: bool) -> Self {
        // Digits in groups, as in sysbench's tables.
        let text: Vec<u8> = b"0123456789-"
            .iter()
            .copied()
            .cycle()
            .take(reply_bytes)
            .collect();
        let columns = [column_c(column_length(reply_bytes))];
        let mut row = Vec::new();
        server::string(&mut row, &text);
        // A binary row: its marker, the NULL bitmap, the values.
        let binary = [&[0, 0], row.as_slice()].concat();
        let flag_pair = [AUTOCOMMIT, AUTOCOMMIT | MORE_RESULTS];
        let execute_answer = ResultSet {
            columns: &columns,
            has_definitions: !caches_metadata,
            caches_metadata,
            rows: &[binary],
        };
        let text_row = ResultSet {
            has_definitions: true,
            rows: &[row],
            ..execute_answer
        };
        let status = ResultSet {
            columns: &status_columns(),
            rows: &status_rows(),
            ..text_row
        };
        Self {
            ok: flag_pair.map(|flags| {
                let mut out = Vec::new();
                server::ok(&mut out, 1, flags);
                out
            }),
            row: flag_pair.map(|flags| text_row.encode(flags)),
            status: flag_pair.map(|flags| status.encode(flags)),
            execute_answer: execute_answer.encode(AUTOCOMMIT),
        }
    }

    /// The answer to one statement of the text protocol, with sequence numbers from 1.
    #[inline]
    pub(crate) fn text_answer(&self, kind: Kind, more_follow: bool) -> &[u8] {
        let pair = match kind {
            Kind::Ok => &self.ok,
            Kind::Row => &self.row,
            Kind::Status => &self.status,
        };
        &pair[usize::from(more_follow)]
    }

    /// An OK packet as the complete answer to a command.
    #[inline]
    pub(crate) fn ok(&self) -> &[u8] {
        &self.ok[0]
    }
}

fn status_columns() -> [Column<'static>; 2] {
    ["Variable_name", "Value"].map(|name| Column {
        table: "session_status",
        name,
        kind: VAR_STRING,
        length: 8192,
    })
}

fn status_rows() -> Vec<Vec<u8>> {
    let row = |(name, value): (&str, &str)| {
        let mut row = Vec::new();
        server::string(&mut row, name.as_bytes());
        server::string(&mut row, value.as_bytes());
        row
    };
    STATUS.map(row).to_vec()
}

/// One result set.
#[derive(Debug, Clone, Copy)]
struct ResultSet<'a> {
    columns: &'a [Column<'a>],
    /// Whether the column definitions are sent.
    has_definitions: bool,
    /// Whether the client caches definitions: it then expects a flag for whether they are sent.
    caches_metadata: bool,
    rows: &'a [Vec<u8>],
}

impl ResultSet<'_> {
    fn encode(&self, status: u16) -> Vec<u8> {
        let mut out = Vec::new();
        let mut header = vec![self.columns.len() as u8];
        if self.caches_metadata {
            header.push(u8::from(self.has_definitions));
        }
        let mut sequence = write_packet(&mut out, 1, &header);
        if self.has_definitions {
            for column in self.columns {
                sequence = column.write(&mut out, sequence);
            }
        }
        sequence = server::end(&mut out, sequence, status);
        for row in self.rows {
            sequence = write_packet(&mut out, sequence, row);
        }
        server::end(&mut out, sequence, status);
        out
    }
}

#[cfg(test)]
mod tests {
    use howfar_wire::mysql::Answer;
    use howfar_wire::mysql::row::RowHandling;

    use super::*;

    /// Number of rows that our client decodes; None if another result follows.
    fn count_rows(bytes: &[u8], caches_metadata: bool, binary: bool, types: &[u8]) -> Option<u64> {
        let mut answer = Answer::new(caches_metadata);
        answer.begin(binary);
        answer
            .feed(bytes, types, &mut RowHandling::Decode)
            .expect("the answer is well formed")
            .and_then(|outcome| outcome.rows())
    }

    #[test]
    fn our_client_decodes_every_answer() {
        for reply_bytes in [0, 119, 300, 70_000] {
            for caches_metadata in [false, true] {
                let answers = ClientAnswers::new(reply_bytes, caches_metadata);
                let text = |kind| {
                    count_rows(
                        answers.text_answer(kind, false),
                        caches_metadata,
                        false,
                        &[],
                    )
                };
                assert_eq!(text(Kind::Ok), Some(0));
                assert_eq!(text(Kind::Row), Some(1));
                assert_eq!(text(Kind::Status), Some(3));
                let execute_answer =
                    count_rows(&answers.execute_answer, caches_metadata, true, &[STRING]);
                assert_eq!(execute_answer, Some(1));
                assert_eq!(
                    count_rows(answers.ok(), caches_metadata, true, &[]),
                    Some(0)
                );
            }
        }
    }

    #[test]
    fn the_answer_to_a_point_select_is_as_long_as_a_real_servers() {
        // Four packets, each with a header of 4 bytes: column count and metadata flag; EOF; the row (marker, NULL bitmap, length, 119
        // bytes); EOF.
        let cached = (4 + 2) + (4 + 5) + (4 + 122) + (4 + 5);
        assert_eq!(ClientAnswers::new(119, true).execute_answer.len(), cached);
        let mut definition = Vec::new();
        column_c(column_length(119)).write(&mut definition, 1);
        assert_eq!(
            ClientAnswers::new(119, false).execute_answer.len(),
            cached - 1 + definition.len()
        );
    }

    #[test]
    fn an_answer_can_announce_another_result() {
        let answers = ClientAnswers::new(119, false);
        for kind in [Kind::Ok, Kind::Row, Kind::Status] {
            assert_eq!(
                count_rows(answers.text_answer(kind, true), false, false, &[]),
                None
            );
        }
    }
}
