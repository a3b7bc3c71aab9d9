//! The part of SQL that a server without SQL must parse: where a statement ends, how many parameters it has, what kind of answer it
//! expects.

use howfar_wire::sql::{CodeBytes, Dialect};

/// The kind of answer to a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// OK.
    Done,
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
    let from = sql
        .iter()
        .position(|&byte| !byte.is_ascii_whitespace() && byte != b'(');
    let rest = &sql[from.unwrap_or(sql.len())..];
    let end = rest.iter().position(|byte| !byte.is_ascii_alphabetic());
    let word = &rest[..end.unwrap_or(rest.len())];
    if word.eq_ignore_ascii_case(b"SHOW") {
        Kind::Status
    } else if ROW_STATEMENTS
        .iter()
        .any(|known| word.eq_ignore_ascii_case(known))
    {
        Kind::Row
    } else {
        Kind::Done
    }
}

/// The statements of a query: the parts between semicolons outside of quotes and comments, without empty ones. There is always at
/// least one: an empty query is one empty statement.
pub(crate) fn split_statements(sql: &[u8]) -> impl Iterator<Item = &[u8]> {
    // Nearly all queries are one statement, and the search for a byte is quick.
    let several = sql.contains(&b';');
    let mut scan = CodeBytes::new(if several { sql } else { &[] }, Dialect::Mysql);
    let mut from = Some(0);
    let parts = std::iter::from_fn(move || {
        let start = from?;
        loop {
            match scan.next() {
                Some((at, b';')) => {
                    from = Some(at + 1);
                    return Some(&sql[start..at]);
                }
                Some(_) => {}
                None => {
                    from = None;
                    return Some(&sql[start..]);
                }
            }
        }
    });
    parts.enumerate().filter_map(|(number, part)| {
        let empty = part.iter().all(u8::is_ascii_whitespace);
        (number == 0 || !empty).then_some(part)
    })
}

/// Number of parameters of a statement to be prepared: question marks outside of quotes and comments.
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
    fn kinds_go_by_the_first_word() {
        for (sql, expected) in [
            ("SELECT c FROM sbtest1 WHERE id=?", Kind::Row),
            ("  select 1", Kind::Row),
            ("(SELECT 1) UNION (SELECT 2)", Kind::Row),
            ("SHOW SESSION STATUS", Kind::Status),
            ("BEGIN", Kind::Done),
            ("COMMIT", Kind::Done),
            ("UPDATE sbtest1 SET k=k+1 WHERE id=1", Kind::Done),
            ("INSERT INTO t SELECT 1", Kind::Done),
            ("selection", Kind::Done),
            ("", Kind::Done),
        ] {
            assert_eq!(classify(sql.as_bytes()), expected, "{sql}");
        }
    }

    #[test]
    fn statements_end_at_semicolons_outside_of_quotes_and_comments() {
        let parts = |sql: &'static str| -> Vec<&str> {
            split_statements(sql.as_bytes())
                .map(|part| std::str::from_utf8(part).expect("of UTF-8"))
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
    fn parameters_are_question_marks_that_mean_it() {
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
        /// Whatever a client sends, the scan ends, and no statement is lost.
        #[test]
        fn any_bytes_can_be_scanned(sql in proptest::collection::vec(prop::sample::select(b"';?`\"\\/*-# \na".to_vec()), 0..40)) {
            prop_assert!(split_statements(&sql).count() >= 1);
            prop_assert!(count_parameters(&sql) <= sql.len());
            prop_assert!(split_statements(&sql).map(<[u8]>::len).sum::<usize>() <= sql.len());
        }
    }
}
