//! Recognises a peer's protocol by its first bytes, for a peer that does not speak the expected one.

/// Protocols whose servers speak first, or answer a request of another protocol in their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaks {
    MySql,
    Postgres,
    Redis,
    Memcached,
    /// A record of TLS: the server expects TLS from the first byte.
    Tls,
    Ssh,
    Http,
    /// A greeting of SMTP or FTP, which begin alike.
    Mail,
}

/// Bytes of a peer that are enough to recognise it.
pub const MAX_FIRST_BYTES: usize = 32;

/// The protocol that begins with these bytes; `None` if they do not show it.
pub fn recognise(first: &[u8]) -> Option<Speaks> {
    const PREFIXES: [(&[u8], Speaks); 13] = [
        (b"SSH-", Speaks::Ssh),
        (b"HTTP/", Speaks::Http),
        (b"220 ", Speaks::Mail),
        (b"220-", Speaks::Mail),
        (b"VERSION ", Speaks::Memcached),
        (b"ERROR\r\n", Speaks::Memcached),
        (b"CLIENT_ERROR ", Speaks::Memcached),
        (b"SERVER_ERROR ", Speaks::Memcached),
        (b"+PONG\r\n", Speaks::Redis),
        // No value for the key that a client of Memcached requested.
        (b"$-1\r\n", Speaks::Redis),
        (b"-ERR ", Speaks::Redis),
        (b"-NOAUTH ", Speaks::Redis),
        (b"-DENIED ", Speaks::Redis),
    ];
    let match_prefix =
        |(prefix, speaks): &(&[u8], Speaks)| first.starts_with(prefix).then_some(*speaks);
    PREFIXES.iter().find_map(match_prefix).or(match first {
        [0x15 | 0x16, 3, 0..=4, ..] => Some(Speaks::Tls),
        // A packet of less than 64 KiB with number 0: a greeting of protocol version 10, followed by the digits of the server's
        // version, or an error.
        [_, _, 0, 0, 0x0a, b'0'..=b'9', ..] | [_, _, 0, 0, 0xff, _, 3..=0x10, ..] => {
            Some(Speaks::MySql)
        }
        // An error of less than 64 KiB whose first field is the severity.
        [b'E', 0, 0, _, _, b'S', b'A'..=b'Z', ..] => Some(Speaks::Postgres),
        _ => None,
    })
}

/// The first bytes of a peer, up to [`MAX_FIRST_BYTES`].
#[derive(Debug, Default, Clone, Copy)]
pub struct FirstBytes {
    bytes: [u8; MAX_FIRST_BYTES],
    count: usize,
}

impl FirstBytes {
    pub fn keep(&mut self, raw: &[u8]) {
        let added = raw.len().min(MAX_FIRST_BYTES - self.count);
        self.bytes[self.count..self.count + added].copy_from_slice(&raw[..added]);
        self.count += added;
    }

    pub fn recognise(&self) -> Option<Speaks> {
        recognise(&self.bytes[..self.count])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_recognised_by_their_first_bytes() {
        let servers: [(&[u8], Speaks); 12] = [
            (b"J\0\0\0\x0a5.5.5-10.11.6-MariaDB", Speaks::MySql),
            (b"I\0\0\0\x0a8.0.36\0", Speaks::MySql),
            (b"E\0\0\0\xff\x6a\x04Host 'x' is not allowed", Speaks::MySql),
            (b"E\0\0\0\x8bSFATAL\0VFATAL\0", Speaks::Postgres),
            (b"$-1\r\n", Speaks::Redis),
            (b"-NOAUTH Authentication required.\r\n", Speaks::Redis),
            (b"ERROR\r\nERROR\r\n", Speaks::Memcached),
            (b"\x15\x03\x01\0\x02\x02\x46", Speaks::Tls),
            (b"\x16\x03\x03\0\x7a\x02", Speaks::Tls),
            (b"SSH-2.0-OpenSSH_9.2p1\r\n", Speaks::Ssh),
            (b"HTTP/1.1 400 Bad Request\r\n", Speaks::Http),
            (b"220 mail.example ESMTP\r\n", Speaks::Mail),
        ];
        for (bytes, speaks) in servers {
            assert_eq!(recognise(bytes), Some(speaks), "{bytes:?}");
        }
    }

    #[test]
    fn a_part_or_anything_else_is_not_recognised() {
        let others: [&[u8]; 7] = [
            b"",
            b"S",
            b"N",
            b"E\0\0",
            b"J\0\0\0",
            b"hello\r\n",
            &[0; 40],
        ];
        for bytes in others {
            assert_eq!(recognise(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn bytes_that_come_in_parts_are_kept_up_to_a_bound() {
        let mut first = FirstBytes::default();
        for byte in b"HTTP/1.0 200 OK\r\n".repeat(9) {
            first.keep(&[byte]);
        }
        assert_eq!(first.recognise(), Some(Speaks::Http));
    }
}
