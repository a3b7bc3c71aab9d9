//! Finds the placeholders (`?`) of a statement, by the lexical rules that separate code from quotes and comments in each dialect.

/// The server whose rules apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Mysql,
    Postgres,
}

/// Iterates over the bytes outside of quotes and comments, with their positions.
#[derive(Debug, Clone)]
pub struct CodeBytes<'a> {
    sql: &'a [u8],
    position: usize,
    dialect: Dialect,
}

impl<'a> CodeBytes<'a> {
    pub fn new(sql: &'a [u8], dialect: Dialect) -> Self {
        Self {
            sql,
            position: 0,
            dialect,
        }
    }

    /// Whether the rest of the statement starts with `text`.
    fn starts_with(&self, text: &[u8]) -> bool {
        self.sql[self.position..].starts_with(text)
    }

    /// Skip past the next `terminator` at or after `start`, or to the end of the statement.
    fn skip_past(&mut self, start: usize, terminator: &[u8]) {
        let rest = self.sql.get(start..).unwrap_or_default();
        let length = terminator.len();
        let offset = rest.windows(length).position(|window| window == terminator);
        self.position = offset.map_or(self.sql.len(), |offset| start + offset + length);
    }

    /// Skip past a quoted text after a prefix of `prefix_len` bytes. A quote inside the text is doubled, or follows a backslash if
    /// `has_escapes`.
    fn skip_quoted(&mut self, prefix_len: usize, quote: u8, has_escapes: bool) {
        self.position += prefix_len + 1;
        while let Some(&byte) = self.sql.get(self.position) {
            let is_doubled = byte == quote && self.sql.get(self.position + 1) == Some(&quote);
            self.position += if is_doubled || (has_escapes && byte == b'\\') {
                2
            } else {
                1
            };
            if byte == quote && !is_doubled {
                return;
            }
        }
    }

    /// Skip past a nested comment, `/* /* */ */`.
    fn skip_nested_comment(&mut self) {
        let mut depth = 0;
        while self.position < self.sql.len() {
            if self.starts_with(b"/*") {
                depth += 1;
                self.position += 2;
            } else if self.starts_with(b"*/") {
                depth -= 1;
                self.position += 2;
                if depth == 0 {
                    return;
                }
            } else {
                self.position += 1;
            }
        }
    }

    /// Whether the previous byte belongs to a name, so that this byte does too.
    fn is_in_name(&self) -> bool {
        self.position.checked_sub(1).is_some_and(|previous| {
            let byte = self.sql[previous];
            byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$') || byte >= 0x80
        })
    }

    /// Length of the `$tag$` that begins here; None if none does.
    fn dollar_tag_len(&self) -> Option<usize> {
        let rest = &self.sql[self.position + 1..];
        let end = rest.iter().position(|&byte| byte == b'$')?;
        let tag = &rest[..end];
        let is_name = tag
            .iter()
            .all(|&byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80)
            && !tag.first().is_some_and(u8::is_ascii_digit);
        is_name.then_some(end + 2)
    }

    /// Skip past a MySQL quote or comment that begins here; false if none does. The contents of `/*!` count as code: the server runs
    /// them.
    fn skip_mysql(&mut self, byte: u8) -> bool {
        match byte {
            b'\'' | b'"' => self.skip_quoted(0, byte, true),
            b'`' => self.skip_quoted(0, byte, false),
            b'#' => self.skip_past(self.position, b"\n"),
            b'-' if self.starts_with(b"--")
                && self
                    .sql
                    .get(self.position + 2)
                    .is_none_or(|&next| next <= b' ') =>
            {
                self.skip_past(self.position, b"\n");
            }
            b'/' if self.starts_with(b"/*")
                && !self.starts_with(b"/*!")
                && !self.starts_with(b"/*M!") =>
            {
                self.skip_past(self.position + 2, b"*/");
            }
            _ => return false,
        }
        true
    }

    /// Skip past a PostgreSQL quote or comment that begins here; false if none does.
    fn skip_postgres(&mut self, byte: u8) -> bool {
        match byte {
            b'\'' | b'"' => self.skip_quoted(0, byte, false),
            b'e' | b'E'
                if self.sql.get(self.position + 1) == Some(&b'\'') && !self.is_in_name() =>
            {
                self.skip_quoted(1, b'\'', true);
            }
            b'$' if !self.is_in_name() => match self.dollar_tag_len() {
                Some(length) => {
                    let tag = &self.sql[self.position..self.position + length];
                    self.skip_past(self.position + length, tag);
                }
                None => return false,
            },
            b'-' if self.starts_with(b"--") => self.skip_past(self.position, b"\n"),
            b'/' if self.starts_with(b"/*") => self.skip_nested_comment(),
            _ => return false,
        }
        true
    }
}

impl Iterator for CodeBytes<'_> {
    type Item = (usize, u8);

    fn next(&mut self) -> Option<(usize, u8)> {
        loop {
            let byte = *self.sql.get(self.position)?;
            let skipped = match self.dialect {
                Dialect::Mysql => self.skip_mysql(byte),
                Dialect::Postgres => self.skip_postgres(byte),
            };
            if !skipped {
                self.position += 1;
                return Some((self.position - 1, byte));
            }
        }
    }
}

/// A `?` outside of quotes and comments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QuestionMark {
    /// A placeholder for a value, at this offset.
    Placeholder(usize),
    /// The first of `??` at this offset, which stands for PostgreSQL's operator `?`.
    Escaped(usize),
}

/// Find the placeholders and escaped question marks of a statement, in order. PostgreSQL's operators `?|` and `?&`, and a `?` before a
/// string, are left out, because none of them can be a placeholder.
pub fn find_question_marks(sql: &str, dialect: Dialect) -> Vec<QuestionMark> {
    let sql = sql.as_bytes();
    let mut question_marks = Vec::new();
    let mut next_position = 0;
    for (position, _) in CodeBytes::new(sql, dialect).filter(|&(_, byte)| byte == b'?') {
        if position < next_position {
            continue;
        }
        let rest = &sql[position + 1..];
        if dialect == Dialect::Mysql {
            question_marks.push(QuestionMark::Placeholder(position));
        } else if rest.starts_with(b"?") {
            question_marks.push(QuestionMark::Escaped(position));
            next_position = position + 2;
        } else if !is_operator(rest) {
            question_marks.push(QuestionMark::Placeholder(position));
        }
    }
    question_marks
}

/// Whether a `?` before `rest` is an operator of PostgreSQL.
fn is_operator(rest: &[u8]) -> bool {
    let next = rest.trim_ascii_start();
    rest.starts_with(b"&")
        || (rest.starts_with(b"|") && !rest.starts_with(b"||"))
        || next.starts_with(b"'")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CASES: &str = include_str!("../../../tests/data/values.tsv");

    // [load-14]
    #[test]
    fn placeholders_are_counted_by_the_rules_of_the_server() {
        for line in CASES.lines().skip(1) {
            let [server, values, sql] = line.split('\t').collect::<Vec<_>>()[..] else {
                panic!("{line} has three columns");
            };
            let dialects: &[Dialect] = match server {
                "mysql" => &[Dialect::Mysql],
                "postgresql" => &[Dialect::Postgres],
                _ => &[Dialect::Mysql, Dialect::Postgres],
            };
            for dialect in dialects {
                let count = find_question_marks(&sql.replace('⏎', "\n"), *dialect)
                    .iter()
                    .filter(|placeholder| matches!(placeholder, QuestionMark::Placeholder(_)))
                    .count();
                assert_eq!(count.to_string(), values, "{dialect:?}: {sql}");
            }
        }
    }

    proptest! {
        #[test]
        fn placeholders_of_any_text_are_in_order(sql in r#"[?'"`$eE/*\-#|& a\\\n;é!]{0,40}"#, postgres: bool) {
            let dialect = if postgres { Dialect::Postgres } else { Dialect::Mysql };
            let positions: Vec<usize> = find_question_marks(&sql, dialect)
                .iter()
                .map(|placeholder| match placeholder { QuestionMark::Placeholder(at) | QuestionMark::Escaped(at) => *at })
                .collect();
            prop_assert!(positions.is_sorted());
            prop_assert!(positions.iter().all(|&at| sql.as_bytes()[at] == b'?'));
        }
    }
}
