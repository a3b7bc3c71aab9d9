//! Parses the part of SQL that the null server needs: where a statement ends, how many parameters it has, and the kind of answer
//! that it expects.

use howfar_wire::sql::{CodeBytes, Dialect};

/// The kind of answer to a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An OK packet, without rows.
    Ok,
    /// One row of one column.
    Row,
    /// Names and values of the session's status.
    Status,
}

/// First words of statements that return rows.
const ROW_STATEMENTS: [&[u8]; 7] = [
    b"SELECT",
    b"WITH",
    b"VALUES",
    b"TABLE",
    b"EXPLAIN",
    b"DESCRIBE",
    b"DESC",
];

/// The kind of one statement, by its first word. Leading comments are not skipped: clients do not write them.
pub(crate) fn classify(sql: &[u8]) -> Kind {
    let is_leading = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'(';
    let start = sql.iter().position(|byte| !is_leading(byte));
    let text = &sql[start.unwrap_or(sql.len())..];
    let end = text.iter().position(|byte| !byte.is_ascii_alphabetic());
    let word = &text[..end.unwrap_or(text.len())];
    if word.eq_ignore_ascii_case(b"SHOW") {
        Kind::Status
    } else if ROW_STATEMENTS
        .iter()
        .any(|known| word.eq_ignore_ascii_case(known))
    {
        Kind::Row
    } else {
        Kind::Ok
    }
}

/// Split a query at semicolons outside of quotes and comments, and leave out empty statements. An empty query is one empty
/// statement.
pub(crate) fn split_statements(sql: &[u8]) -> impl Iterator<Item = &[u8]> {
    // Nearly all queries are one statement, and searching for a byte is faster than scanning.
    let has_semicolon = sql.contains(&b';');
    let mut code_bytes = CodeBytes::new(if has_semicolon { sql } else { &[] }, Dialect::Mysql);
    let mut next_start = Some(0);
    let parts = std::iter::from_fn(move || {
        let start = next_start?;
        let end = code_bytes.find(|&(_, byte)| byte == b';');
        next_start = end.map(|(offset, _)| offset + 1);
        Some(&sql[start..end.map_or(sql.len(), |(offset, _)| offset)])
    });
    parts.enumerate().filter_map(|(number, part)| {
        let empty = part.iter().all(u8::is_ascii_whitespace);
        (number == 0 || !empty).then_some(part)
    })
}

/// Count the parameters of a statement to be prepared: question marks outside of quotes and comments.
pub(crate) fn count_parameters(sql: &[u8]) -> usize {
    CodeBytes::new(sql, Dialect::Mysql)
        .filter(|&(_, byte)| byte == b'?')
        .count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_word_decides_the_kind() {
        for (sql, expected) in [
            ("SELECT c FROM sbtest1 WHERE id=?", Kind::Row),
            ("  select 1", Kind::Row),
            ("(SELECT 1) UNION (SELECT 2)", Kind::Row),
            ("SHOW SESSION STATUS", Kind::Status),
            ("BEGIN", Kind::Ok),
            ("COMMIT", Kind::Ok),
            ("UPDATE sbtest1 SET k=k+1 WHERE id=1", Kind::Ok),
            ("INSERT INTO t SELECT 1", Kind::Ok),
            ("selection", Kind::Ok),
            ("", Kind::Ok),
        ] {
            assert_eq!(classify(sql.as_bytes()), expected, "{sql}");
        }
    }

    #[test]
    fn statements_end_at_semicolons_outside_of_quotes_and_comments() {
        let parts = |sql: &'static str| -> Vec<&str> {
            split_statements(sql.as_bytes())
                .map(|part| std::str::from_utf8(part).expect("the statement is UTF-8"))
                .collect()
        };
        assert_eq!(parts("BEGIN"), ["BEGIN"]);
        assert_eq!(
            parts("BEGIN;SELECT 1; COMMIT;"),
            ["BEGIN", "SELECT 1", " COMMIT"]
        );
        assert_eq!(
            parts("SELECT ';', \"a;\\\";b\", `;` /* ; */ -- ;\n;SELECT 2 # ;"),
            [
                "SELECT ';', \"a;\\\";b\", `;` /* ; */ -- ;\n",
                "SELECT 2 # ;"
            ]
        );
        assert_eq!(parts(""), [""]);
        assert_eq!(parts(" ; "), [" "]);
    }

    #[test]
    fn question_marks_in_quotes_and_comments_are_no_parameters() {
        for (sql, expected) in [
            ("SELECT c FROM sbtest1 WHERE id BETWEEN ? AND ?", 2),
            ("SELECT '?', `?`, \"?\" /* ? */ # ?\n, ?", 1),
            ("SELECT 'it''s ?', ?", 1),
            ("BEGIN", 0),
            ("SELECT 'open ?", 0),
        ] {
            assert_eq!(count_parameters(sql.as_bytes()), expected, "{sql}");
        }
    }

    proptest! {
        /// For any bytes, the scan ends and returns at least one statement.
        #[test]
        fn any_bytes_can_be_scanned(sql in proptest::collection::vec(prop::sample::select(b"';?`\"\\/*-# \na".to_vec()), 0..40)) {
            prop_assert!(split_statements(&sql).count() >= 1);
            prop_assert!(count_parameters(&sql) <= sql.len());
            prop_assert!(split_statements(&sql).map(<[u8]>::len).sum::<usize>() <= sql.len());
        }
    }
}
