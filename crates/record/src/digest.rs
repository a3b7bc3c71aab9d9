//! Reduces statements to digests, which have no literals. The lexer keeps only words, quoted identifiers and punctuation; text that it
//! does not understand becomes `?` as well.

use crate::salt::{KeyHasher, Salt};

/// Maximum bytes of a digest; longer ones end in an ellipsis.
const MAX_DIGEST_BYTES: usize = 1024;
/// Newest version of a comment like `/*!50606 ... */` that all servers execute; some servers skip later versions.
const MAX_EXECUTED_VERSION: u32 = 50_699;
/// Maximum tokens of a digest; literals beyond it still count as keys.
const MAX_TOKENS: usize = 4096;
/// Name of a statement without tokens.
const EMPTY_NAME: &str = "empty query";

#[rustfmt::skip]
const STATEMENTS: &[&str] = &[
    "select", "insert", "update", "delete", "replace", "begin", "commit", "rollback", "savepoint", "release", "set",
    "show", "use", "create", "drop", "alter", "truncate", "call", "do", "with", "explain", "describe", "desc",
    "analyze", "optimize", "check", "repair", "lock", "unlock", "flush", "kill", "load", "handler", "prepare",
    "execute", "deallocate", "declare", "fetch", "close", "move", "copy", "vacuum", "listen", "notify", "unlisten",
    "discard", "reset", "grant", "revoke", "merge", "values", "table", "refresh", "reindex", "cluster", "comment",
    "checkpoint", "xa", "change", "start", "stop", "rename", "signal", "import", "cache", "purge", "install",
    "uninstall", "get",
];

/// The SQL dialect, which decides what a literal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Whether a backslash escapes in strings.
    Mysql { backslash: bool },
    /// Whether a backslash escapes in plain strings, those without the prefix `E`.
    Postgres { backslash: bool },
}

/// A statement without its literals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    pub text: String,
    /// The first word of the statement.
    pub command: &'static str,
    /// The hash of the literals.
    pub keys: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Literal,
    Word(&'a [u8]),
    /// A word in which each number is a literal.
    Name(&'a [u8]),
    Symbol(&'a [u8]),
    /// `(...)`: a list of literals.
    List,
    /// `, ...`: the rows after the first.
    Rows,
}

/// Reduce `sql` to its digest, and hash its literals.
pub fn digest(sql: &[u8], dialect: Dialect, salt: &Salt) -> Statement {
    let mut lexer = Lexer {
        rest: sql,
        dialect,
        keys: salt.hasher(),
        open_executed_comments: 0,
    };
    let mut tokens: Vec<Token> = Vec::new();
    let mut settings = SettingTracker::default();
    while let Some(mut token) = lexer.next() {
        if let (true, Token::Word(word)) = (settings.is_value(token, dialect), token) {
            lexer.keys.add(word);
            token = Token::Literal;
        }
        if tokens.len() < MAX_TOKENS {
            push_token(&mut tokens, token);
        }
    }
    mask_numbers_in_names(&mut tokens, &mut lexer.keys);
    let is_empty = tokens.is_empty();
    Statement {
        command: if is_empty {
            EMPTY_NAME
        } else {
            command_name(&tokens)
        },
        text: render(&close_brackets(fold_lists(&tokens))),
        keys: lexer.keys.finish(),
    }
}

/// Mask the numbers in names of prepared statements, cursors and savepoints, which clients number consecutively.
fn mask_numbers_in_names(tokens: &mut [Token], keys: &mut KeyHasher) {
    const COMMANDS_WITH_NAMES: &[&str] = &[
        "deallocate",
        "savepoint",
        "release",
        "fetch",
        "close",
        "move",
        "rollback",
    ];
    const COMMANDS_WITH_NAME_FIRST: &[&str] = &["prepare", "execute", "declare"];
    let Some(Token::Word(first_word)) = tokens.first().copied() else {
        return;
    };
    let count = if crate::known_name(COMMANDS_WITH_NAMES, first_word) != "other" {
        usize::MAX
    } else if crate::known_name(COMMANDS_WITH_NAME_FIRST, first_word) != "other" {
        1
    } else {
        return;
    };
    for token in tokens.iter_mut().skip(1).take(count) {
        match *token {
            Token::Word(word) if word.iter().any(u8::is_ascii_digit) => {
                keys.add(word);
                *token = Token::Name(word);
            }
            _ => {}
        }
    }
}

/// The name of the statement's command, from a fixed list.
fn command_name(tokens: &[Token]) -> &'static str {
    let first_word = tokens.iter().find_map(|token| match token {
        Token::Word(word) => Some(*word),
        _ => None,
    });
    match first_word.map(|word| crate::known_name(STATEMENTS, word)) {
        None => "other",
        Some("start") if is_second_word(tokens, b"transaction") => "begin",
        Some("desc") => "describe",
        Some(name) => name,
    }
}

/// Finds the values that a statement assigns to settings (`SET a = b`), which need no quotes.
#[derive(Debug, Default)]
struct SettingTracker {
    /// Whether the statement changes rows: in `UPDATE t SET a = b` the words are columns. None before the first word.
    changes_rows: Option<bool>,
    is_in_set: bool,
    is_in_value: bool,
    /// The previous word is TIME, as in `SET TIME ZONE`.
    follows_time: bool,
}

impl SettingTracker {
    /// Process the next token; returns whether it is part of a setting's value.
    fn is_value(&mut self, token: Token, dialect: Dialect) -> bool {
        const CHANGING_COMMANDS: &[&str] = &[
            "update", "insert", "replace", "merge", "with", "explain", "load",
        ];
        let was_in_value = self.is_in_value;
        match token {
            Token::Symbol(b";") => *self = Self::default(),
            Token::Symbol(b"=" | b":=") => self.is_in_value = self.is_in_set,
            Token::Symbol(b",") => self.is_in_value &= matches!(dialect, Dialect::Postgres { .. }),
            Token::Word(word) if !was_in_value => {
                let changes_rows = *self
                    .changes_rows
                    .get_or_insert_with(|| crate::known_name(CHANGING_COMMANDS, word) != "other");
                self.is_in_set |= !changes_rows && word.eq_ignore_ascii_case(b"set");
                let ends_name = word.eq_ignore_ascii_case(b"to")
                    || (self.follows_time && word.eq_ignore_ascii_case(b"zone"));
                self.is_in_value = self.is_in_set && ends_name;
                self.follows_time = word.eq_ignore_ascii_case(b"time");
            }
            _ => {}
        }
        was_in_value
    }
}

fn is_second_word(tokens: &[Token], word: &[u8]) -> bool {
    matches!(tokens.get(1), Some(Token::Word(second)) if second.eq_ignore_ascii_case(word))
}

/// Append a token. Adjacent literals become one, and a sign becomes part of its number.
fn push_token<'a>(tokens: &mut Vec<Token<'a>>, token: Token<'a>) {
    if token == Token::Literal {
        if tokens.last() == Some(&Token::Literal) {
            return;
        }
        if let [.., Token::Symbol(previous), Token::Symbol(b"-" | b"+")] = tokens.as_slice() {
            if *previous != b")" {
                tokens.pop();
            }
        }
    }
    tokens.push(token);
}

/// Replace each list of literals after IN, and each sequence of rows of the same shape after VALUES, by one token.
fn fold_lists<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let mut folded: Vec<Token> = Vec::with_capacity(tokens.len());
    let (mut index, mut is_in_values, mut last_row) = (0, false, 0..0);
    while index < tokens.len() {
        let token = tokens[index];
        let is_open = token == Token::Symbol(b"(");
        let is_list = is_open && is_word(folded.last(), b"in");
        let is_row = is_open && is_in_values;
        if let Some(end) = is_list.then(|| find_list_end(tokens, index)).flatten() {
            folded.push(Token::List);
            index = end;
            continue;
        }
        if is_row && find_group_end(tokens, index).is_none() && !last_row.is_empty() {
            // The statement was cut inside a row, which is assumed to have the shape of the previous rows.
            add_row(&mut folded);
            return folded;
        }
        if let Some(end) = is_row.then(|| find_group_end(tokens, index)).flatten() {
            if tokens[index..end] == tokens[last_row.clone()] {
                add_row(&mut folded);
            } else {
                folded.extend_from_slice(&tokens[index..end]);
            }
            last_row = index..end;
            index = end;
            continue;
        }
        if let Token::Word(word) = token {
            is_in_values =
                word.eq_ignore_ascii_case(b"values") || word.eq_ignore_ascii_case(b"value");
            last_row = 0..0;
        }
        folded.push(token);
        index += 1;
    }
    folded
}

/// Fold one more row of the same shape, and the comma before it.
fn add_row(folded: &mut Vec<Token>) {
    folded.pop();
    if folded.last() != Some(&Token::Rows) {
        folded.push(Token::Rows);
    }
}

/// Close the brackets that a truncated statement left open.
fn close_brackets(mut tokens: Vec<Token<'_>>) -> Vec<Token<'_>> {
    let open = tokens.iter().fold(0_usize, |open, token| match token {
        Token::Symbol(b"(") => open + 1,
        Token::Symbol(b")") => open.saturating_sub(1),
        _ => open,
    });
    if tokens.last() == Some(&Token::Symbol(b",")) {
        tokens.pop();
    }
    tokens.extend(std::iter::repeat_n(Token::Symbol(b")"), open));
    tokens
}

fn is_word(token: Option<&Token>, word: &[u8]) -> bool {
    matches!(token, Some(Token::Word(found)) if found.eq_ignore_ascii_case(word))
}

/// Find the index after the bracket that closes the list opened at `open`, or the end of a truncated statement. None if the list is
/// empty or has more than literals and commas.
fn find_list_end(tokens: &[Token], open: usize) -> Option<usize> {
    let rest = &tokens[open + 1..];
    let is_element = |token: &&Token| matches!(token, Token::Literal | Token::Symbol(b","));
    let count = rest.iter().take_while(is_element).count();
    match rest.get(count) {
        _ if count == 0 => None,
        None => Some(tokens.len()),
        Some(&end) => (end == Token::Symbol(b")")).then_some(open + count + 2),
    }
}

/// Find the index after the bracket that closes the group opened at `open`. None in a truncated statement.
fn find_group_end(tokens: &[Token], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        match token {
            Token::Symbol(b"(") => depth += 1,
            Token::Symbol(b")") if depth == 1 => return Some(index + 1),
            Token::Symbol(b")") => depth -= 1,
            _ => {}
        }
    }
    None
}

fn render(tokens: &[Token]) -> String {
    if tokens.is_empty() {
        return EMPTY_NAME.to_owned();
    }
    let mut out: Vec<u8> = Vec::new();
    let mut previous: Option<Token> = None;
    for &token in tokens {
        let name;
        let piece: &[u8] = match token {
            Token::Literal => b"?",
            Token::Word(word) => word,
            Token::Name(word) => {
                name = mask_numbers(word);
                &name
            }
            Token::Symbol(symbol) => symbol,
            Token::List => b"(...)",
            Token::Rows => b", ...",
        };
        let joins_previous = matches!(
            token,
            Token::Symbol(b"," | b")" | b"." | b";") | Token::Rows
        ) || (token == Token::Symbol(b"(")
            && matches!(previous, Some(Token::Word(word)) if !is_keyword(word)));
        let follows_opening = matches!(
            previous,
            None | Some(Token::Symbol(b"(" | b"." | b"@" | b"@@"))
        );
        if !joins_previous && !follows_opening {
            out.push(b' ');
        }
        if out.len() + piece.len() > MAX_DIGEST_BYTES {
            out.extend_from_slice("…".as_bytes());
            break;
        }
        out.extend_from_slice(piece);
        previous = Some(token);
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Replace the numbers in a name by `?`. Numbers may be hexadecimal, as PDO's are.
fn mask_numbers(word: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(word.len());
    for part in
        word.chunk_by(|left, right| left.is_ascii_alphanumeric() == right.is_ascii_alphanumeric())
    {
        let has_digit = part.iter().any(u8::is_ascii_digit);
        if has_digit && part.iter().all(u8::is_ascii_hexdigit) {
            out.push(b'?');
            continue;
        }
        for run in part.chunk_by(|left, right| left.is_ascii_digit() == right.is_ascii_digit()) {
            out.extend_from_slice(if run[0].is_ascii_digit() { b"?" } else { run });
        }
    }
    out
}

/// Whether the word is a keyword, and so never a function's name before a bracket.
fn is_keyword(word: &[u8]) -> bool {
    const WORDS: &[&str] = &[
        "in", "values", "value", "and", "or", "not", "where", "from", "join", "on", "as", "select",
        "exists", "set", "by", "union", "all", "having", "when",
    ];
    crate::known_name(WORDS, word) != "other"
}

struct Lexer<'a> {
    rest: &'a [u8],
    dialect: Dialect,
    keys: KeyHasher,
    /// Number of open comments whose text the server executes.
    open_executed_comments: usize,
}

impl<'a> Lexer<'a> {
    fn next(&mut self) -> Option<Token<'a>> {
        self.skip_space();
        let (&first, tail) = self.rest.split_first()?;
        let is_mysql = self.is_mysql();
        Some(match first {
            b'\'' => self.take_string(b'\'', self.has_backslash_escapes(), 1),
            b'"' if is_mysql => self.take_string(b'"', self.has_backslash_escapes(), 1),
            b'"' => self.take_identifier(b'"'),
            b'`' => self.take_identifier(b'`'),
            b'$' if !is_mysql => self.take_dollar(),
            b'0'..=b'9' => self.take_number(),
            b'.' if tail.first().is_some_and(u8::is_ascii_digit) => self.take_number(),
            _ if is_word_start(first) => self.take_word(),
            b'?' => self.take_literal(1),
            b'=' | b'<' | b'>' | b'!' | b'*' | b'/' | b'%' | b'&' | b'|' | b'^' | b'~' | b':'
            | b'@' => {
                let length = self
                    .rest
                    .iter()
                    .take_while(|byte| b"=<>!*/%&|^~:@".contains(byte))
                    .count();
                // A comment may begin between these symbols, or an executed comment may end.
                let length = self.rest[..length]
                    .windows(2)
                    .position(|pair| {
                        pair == b"/*" || (pair == b"*/" && self.open_executed_comments > 0)
                    })
                    .unwrap_or(length)
                    .max(1);
                self.take_symbol(length)
            }
            b'(' | b')' | b',' | b';' | b'.' | b'+' | b'-' | b'[' | b']' | b'{' | b'}' => {
                self.take_symbol(1)
            }
            _ => self.take_rest(),
        })
    }

    fn is_mysql(&self) -> bool {
        matches!(self.dialect, Dialect::Mysql { .. })
    }

    fn has_backslash_escapes(&self) -> bool {
        match self.dialect {
            Dialect::Mysql { backslash } | Dialect::Postgres { backslash } => backslash,
        }
    }

    fn skip_space(&mut self) {
        loop {
            let spaces = self
                .rest
                .iter()
                .take_while(|byte| byte.is_ascii_whitespace() || **byte == 0)
                .count();
            self.rest = &self.rest[spaces..];
            let is_mysql = self.is_mysql();
            let is_dash_comment = self.rest.starts_with(b"--")
                && (!is_mysql || self.rest.get(2).is_none_or(u8::is_ascii_whitespace));
            if is_dash_comment || (is_mysql && self.rest.starts_with(b"#")) {
                let end = self
                    .rest
                    .iter()
                    .position(|&byte| byte == b'\n')
                    .unwrap_or(self.rest.len());
                self.rest = &self.rest[end..];
            } else if self.rest.starts_with(b"/*") {
                self.skip_comment();
            } else if self.open_executed_comments > 0 && self.rest.starts_with(b"*/") {
                self.open_executed_comments -= 1;
                self.rest = &self.rest[2..];
            } else if spaces == 0 {
                return;
            }
        }
    }

    /// Skip a comment. PostgreSQL's comments nest. MySQL executes comments that begin with `!` and a version up to its own: only their
    /// beginning and end are skipped.
    fn skip_comment(&mut self) {
        if self.is_mysql() && (self.rest.starts_with(b"/*!") || self.rest.starts_with(b"/*M!")) {
            let version_start = self
                .rest
                .iter()
                .position(|&byte| byte == b'!')
                .map_or(3, |at| at + 1);
            let digit_count = self.rest[version_start..]
                .iter()
                .take_while(|byte| byte.is_ascii_digit())
                .count();
            let version =
                std::str::from_utf8(&self.rest[version_start..version_start + digit_count])
                    .ok()
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(0);
            if version <= MAX_EXECUTED_VERSION {
                self.rest = &self.rest[version_start + digit_count..];
                self.open_executed_comments += 1;
                return;
            }
        }
        let (mut offset, mut depth) = (2, 1_usize);
        while depth > 0 && offset < self.rest.len() {
            if self.rest[offset..].starts_with(b"*/") {
                depth -= 1;
                offset += 2;
            } else if !self.is_mysql() && self.rest[offset..].starts_with(b"/*") {
                depth += 1;
                offset += 2;
            } else {
                offset += 1;
            }
        }
        self.rest = &self.rest[offset.min(self.rest.len())..];
    }

    fn take_symbol(&mut self, length: usize) -> Token<'a> {
        let (symbol, rest) = self.rest.split_at(length);
        self.rest = rest;
        Token::Symbol(symbol)
    }

    fn take_literal(&mut self, length: usize) -> Token<'a> {
        let (literal, rest) = self.rest.split_at(length);
        self.keys.add(literal);
        self.rest = rest;
        Token::Literal
    }

    /// Take the rest of the statement, which cannot be understood, as a literal.
    fn take_rest(&mut self) -> Token<'a> {
        self.take_literal(self.rest.len())
    }

    /// Take a string whose body begins at `body_start`. If a backslash precedes a quote and is not an escape in the dialect, the server
    /// may still treat it as an escape: then the rest is a literal.
    fn take_string(&mut self, quote: u8, has_escapes: bool, body_start: usize) -> Token<'a> {
        let mut offset = body_start;
        while let Some(&byte) = self.rest.get(offset) {
            if byte == b'\\' && self.is_mysql() && self.rest[offset - 1] >= 0x80 {
                // In sjis, gbk and similar encodings this may be the second byte of a character.
                return self.take_rest();
            } else if byte == b'\\' && has_escapes {
                offset += 2;
            } else if byte == b'\\' && self.rest.get(offset + 1) == Some(&quote) {
                return self.take_rest();
            } else if byte != quote {
                offset += 1;
            } else if self.rest.get(offset + 1) == Some(&quote) {
                offset += 2;
            } else {
                return self.take_literal(offset + 1);
            }
        }
        self.take_rest()
    }

    fn take_identifier(&mut self, quote: u8) -> Token<'a> {
        let mut offset = 1;
        while let Some(&byte) = self.rest.get(offset) {
            if byte != quote {
                offset += 1;
            } else if self.rest.get(offset + 1) == Some(&quote) {
                offset += 2;
            } else {
                let (name, rest) = self.rest.split_at(offset + 1);
                self.rest = rest;
                return Token::Word(name);
            }
        }
        self.take_rest()
    }

    /// Take a parameter (`$1`) or a dollar-quoted string.
    fn take_dollar(&mut self) -> Token<'a> {
        let name_len = self.rest[1..]
            .iter()
            .take_while(|byte| is_word_byte(**byte) && **byte != b'$')
            .count();
        if self.rest.get(1).is_some_and(u8::is_ascii_digit) {
            return self.take_literal(1 + name_len);
        }
        if self.rest.get(1 + name_len) != Some(&b'$') {
            return self.take_rest();
        }
        let tag = &self.rest[..name_len + 2];
        let body = &self.rest[tag.len()..];
        match body.windows(tag.len()).position(|window| window == tag) {
            Some(end) => self.take_literal(end + 2 * tag.len()),
            None => self.take_rest(),
        }
    }

    fn take_number(&mut self) -> Token<'a> {
        let mut length = 1;
        while let Some(&byte) = self.rest.get(length) {
            let is_exponent_sign = matches!(self.rest[length - 1], b'e' | b'E')
                && matches!(byte, b'+' | b'-')
                && !self.rest.starts_with(b"0x");
            if !is_exponent_sign && !is_word_byte(byte) && byte != b'.' {
                break;
            }
            length += 1;
        }
        self.take_literal(length)
    }

    /// Take a word, or a string with a prefix.
    fn take_word(&mut self) -> Token<'a> {
        let length = self
            .rest
            .iter()
            .take_while(|byte| is_word_byte(**byte))
            .count();
        let (word, tail) = self.rest.split_at(length);
        let prefixes = [b"x".as_slice(), b"b", b"n", b"e", b"u"];
        let is_prefix = word[0] == b'_'
            || prefixes
                .iter()
                .any(|prefix| word.eq_ignore_ascii_case(prefix));
        let is_quoted = tail.first() == Some(&b'\'');
        if is_prefix && is_quoted {
            let has_escapes = self.has_backslash_escapes() || word.eq_ignore_ascii_case(b"e");
            return self.take_string(b'\'', has_escapes, length + 1);
        }
        if word.eq_ignore_ascii_case(b"u") && tail.starts_with(b"&'") {
            return self.take_string(b'\'', self.has_backslash_escapes(), length + 2);
        }
        self.rest = tail;
        Token::Word(word)
    }
}

fn is_word_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$' | 0x80..)
}

fn is_word_byte(byte: u8) -> bool {
    is_word_start(byte) || byte.is_ascii_digit()
}

#[cfg(test)]
mod tests;
