//! The part of SQL's lexical rules that separates code from quotes and comments, for each dialect, to find where a `?` stands for a
//! value.

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
    at: usize,
    dialect: Dialect,
}

impl<'a> CodeBytes<'a> {
    pub fn new(sql: &'a [u8], dialect: Dialect) -> Self {
        Self {
            sql,
            at: 0,
            dialect,
        }
    }

    fn follows(&self, text: &[u8]) -> bool {
        self.sql[self.at..].starts_with(text)
    }

    /// Skip past the next `end`, or to the end of the text.
    fn skip_past(&mut self, from: usize, end: &[u8]) {
        let rest = self.sql.get(from..).unwrap_or_default();
        let end_position = rest.windows(end.len()).position(|window| window == end);
        self.at = end_position.map_or(self.sql.len(), |at| from + at + end.len());
    }

    /// Skip past a quoted text, whose opening quote is `opening` bytes away. A quote inside it is doubled.
    fn skip_quoted(&mut self, opening: usize, quote: u8, escapes: bool) {
        self.at += opening + 1;
        while let Some(&byte) = self.sql.get(self.at) {
            let doubled = byte == quote && self.sql.get(self.at + 1) == Some(&quote);
            self.at += if doubled || (escapes && byte == b'\\') {
                2
            } else {
                1
            };
            if byte == quote && !doubled {
                return;
            }
        }
    }

    /// Skip past a nested comment, `/* /* */ */`.
    fn skip_nested_comment(&mut self) {
        let mut depth = 0;
        while self.at < self.sql.len() {
            if self.follows(b"/*") {
                depth += 1;
                self.at += 2;
            } else if self.follows(b"*/") {
                depth -= 1;
                self.at += 2;
                if depth == 0 {
                    return;
                }
            } else {
                self.at += 1;
            }
        }
    }

    /// Whether the byte before belongs to a name, so that this one does too.
    fn is_in_name(&self) -> bool {
        self.at.checked_sub(1).is_some_and(|before| {
            let byte = self.sql[before];
            byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$') || byte >= 0x80
        })
    }

    /// Length of the `$tag$` that begins here, if one does.
    fn dollar_tag(&self) -> Option<usize> {
        let rest = &self.sql[self.at + 1..];
        let end = rest.iter().position(|&byte| byte == b'$')?;
        let tag = &rest[..end];
        let is_name = tag
            .iter()
            .all(|&byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80)
            && !tag.first().is_some_and(u8::is_ascii_digit);
        is_name.then_some(end + 2)
    }

    /// Skip past a MySQL quote or comment that begins here. The contents of `/*!` count as code: the server runs them.
    fn skip_mysql(&mut self, byte: u8) -> bool {
        match byte {
            b'\'' | b'"' => self.skip_quoted(0, byte, true),
            b'`' => self.skip_quoted(0, byte, false),
            b'#' => self.skip_past(self.at, b"\n"),
            b'-' if self.follows(b"--")
                && self.sql.get(self.at + 2).is_none_or(|&next| next <= b' ') =>
            {
                self.skip_past(self.at, b"\n");
            }
            b'/' if self.follows(b"/*") && !self.follows(b"/*!") && !self.follows(b"/*M!") => {
                self.skip_past(self.at + 2, b"*/");
            }
            _ => return false,
        }
        true
    }

    /// The same for PostgreSQL.
    fn skip_postgres(&mut self, byte: u8) -> bool {
        match byte {
            b'\'' | b'"' => self.skip_quoted(0, byte, false),
            b'e' | b'E' if self.sql.get(self.at + 1) == Some(&b'\'') && !self.is_in_name() => {
                self.skip_quoted(1, b'\'', true);
            }
            b'$' if !self.is_in_name() => match self.dollar_tag() {
                Some(length) => {
                    let tag = &self.sql[self.at..self.at + length];
                    self.skip_past(self.at + length, tag);
                }
                None => return false,
            },
            b'-' if self.follows(b"--") => self.skip_past(self.at, b"\n"),
            b'/' if self.follows(b"/*") => self.skip_nested_comment(),
            _ => return false,
        }
        true
    }
}

impl Iterator for CodeBytes<'_> {
    type Item = (usize, u8);

    fn next(&mut self) -> Option<(usize, u8)> {
        loop {
            let byte = *self.sql.get(self.at)?;
            let skipped = match self.dialect {
                Dialect::Mysql => self.skip_mysql(byte),
                Dialect::Postgres => self.skip_postgres(byte),
            };
            if !skipped {
                self.at += 1;
                return Some((self.at - 1, byte));
            }
        }
    }
}

/// A `?` outside of quotes and comments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// It stands for a value.
    Value(usize),
    /// The first of `??`, which stands for one `?`: an operator of PostgreSQL.
    Escaped(usize),
}

/// The marks of a statement, in order. PostgreSQL's operators `?|` and `?&`, and a `?` before a string, are not marks: no value can
/// stand there.
pub fn marks(sql: &str, dialect: Dialect) -> Vec<Mark> {
    let sql = sql.as_bytes();
    let mut placeholders = Vec::new();
    let mut from = 0;
    for (at, _) in CodeBytes::new(sql, dialect).filter(|&(_, byte)| byte == b'?') {
        if at < from {
            continue;
        }
        let rest = &sql[at + 1..];
        if dialect == Dialect::Mysql {
            placeholders.push(Mark::Value(at));
        } else if rest.starts_with(b"?") {
            placeholders.push(Mark::Escaped(at));
            from = at + 2;
        } else if !is_operator(rest) {
            placeholders.push(Mark::Value(at));
        }
    }
    placeholders
}

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
    fn values_are_counted_by_the_rules_of_the_server() {
        for line in CASES.lines().skip(1) {
            let [server, values, sql] = line.split('\t').collect::<Vec<_>>()[..] else {
                panic!("three columns: {line}");
            };
            let dialects: &[Dialect] = match server {
                "mysql" => &[Dialect::Mysql],
                "postgresql" => &[Dialect::Postgres],
                _ => &[Dialect::Mysql, Dialect::Postgres],
            };
            for dialect in dialects {
                let count = marks(&sql.replace('⏎', "\n"), *dialect)
                    .iter()
                    .filter(|mark| matches!(mark, Mark::Value(_)))
                    .count();
                assert_eq!(count.to_string(), values, "{dialect:?}: {sql}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_text_has_its_marks_in_order(sql in r#"[?'"`$eE/*\-#|& a\\\n;é!]{0,40}"#, postgres: bool) {
            let dialect = if postgres { Dialect::Postgres } else { Dialect::Mysql };
            let positions: Vec<usize> = marks(&sql, dialect)
                .iter()
                .map(|mark| match mark { Mark::Value(at) | Mark::Escaped(at) => *at })
                .collect();
            prop_assert!(positions.is_sorted());
            prop_assert!(positions.iter().all(|&at| sql.as_bytes()[at] == b'?'));
        }
    }
}
