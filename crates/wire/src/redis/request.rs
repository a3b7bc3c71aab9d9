//! Encodes requests: arrays of bulk strings, in both versions of the protocol.

use crate::keyvalue::write_decimal;

/// Begin a command of this many words; [`word`] appends each.
#[inline]
pub fn begin(out: &mut Vec<u8>, word_count: usize) {
    out.push(b'*');
    write_decimal(out, word_count as u64);
    out.extend_from_slice(b"\r\n");
}

/// Append a command's next word.
#[inline]
pub fn word(out: &mut Vec<u8>, bytes: &[u8]) {
    word_with(out, bytes.len(), |out| out.extend_from_slice(bytes));
}

/// Append a command's next word, written by `write`, which must append `length` bytes.
#[inline]
pub fn word_with(out: &mut Vec<u8>, length: usize, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(b'$');
    write_decimal(out, length as u64);
    out.extend_from_slice(b"\r\n");
    let start = out.len();
    write(out);
    assert_eq!(
        out.len() - start,
        length,
        "the word has its announced length"
    );
    out.extend_from_slice(b"\r\n");
}

/// Append a complete command.
pub fn command(out: &mut Vec<u8>, words: &[&[u8]]) {
    begin(out, words.len());
    for bytes in words {
        word(out, bytes);
    }
}

/// Append `HELLO` with the protocol's version and the account; an empty `user` with a password means the default user.
pub fn hello(out: &mut Vec<u8>, version: u8, user: &str, password: &str) {
    let version = [b'0' + version];
    if password.is_empty() && user.is_empty() {
        return command(out, &[b"HELLO", &version]);
    }
    let user = if user.is_empty() { "default" } else { user };
    let (user, password) = (user.as_bytes(), password.as_bytes());
    command(out, &[b"HELLO", &version, b"AUTH", user, password]);
}

/// Append `AUTH`, which servers before Redis 6 accept only without a user.
pub fn auth(out: &mut Vec<u8>, user: &str, password: &str) {
    if user.is_empty() {
        command(out, &[b"AUTH", password.as_bytes()]);
    } else {
        command(out, &[b"AUTH", user.as_bytes(), password.as_bytes()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_bytes_of_the_protocol() {
        let mut out = Vec::new();
        command(&mut out, &[b"SET", b"key", b"a\r\nb"]);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$4\r\na\r\nb\r\n");
        let encode_hello = |user, password| {
            let mut out = Vec::new();
            hello(&mut out, 3, user, password);
            String::from_utf8(out).expect("the command is ASCII")
        };
        assert_eq!(encode_hello("", ""), "*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n");
        assert!(encode_hello("", "secret").contains("$7\r\ndefault\r\n$6\r\nsecret\r\n"));
        assert!(encode_hello("me", "").contains("$2\r\nme\r\n$0\r\n\r\n"));
    }
}
