//! Recognises the protocol of a peer that does not speak the expected one, by its first bytes.

/// The protocols that can be recognised: their servers send first, or answer a request of another protocol in their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerProtocol {
    MySql,
    Postgres,
    Redis,
    Memcached,
    /// TLS from the first byte.
    Tls,
    Ssh,
    Http,
    /// SMTP or FTP, whose greetings begin alike.
    Mail,
}

/// Number of first bytes that suffice to recognise a protocol.
pub const MAX_FIRST_BYTES: usize = 32;

/// Recognise the protocol by a peer's first bytes; `None` if they do not show it.
pub fn recognise(first: &[u8]) -> Option<PeerProtocol> {
    const PREFIXES: [(&[u8], PeerProtocol); 13] = [
        (b"SSH-", PeerProtocol::Ssh),
        (b"HTTP/", PeerProtocol::Http),
        (b"220 ", PeerProtocol::Mail),
        (b"220-", PeerProtocol::Mail),
        (b"VERSION ", PeerProtocol::Memcached),
        (b"ERROR\r\n", PeerProtocol::Memcached),
        (b"CLIENT_ERROR ", PeerProtocol::Memcached),
        (b"SERVER_ERROR ", PeerProtocol::Memcached),
        (b"+PONG\r\n", PeerProtocol::Redis),
        // Redis has no value for the key of a Memcached client's `get`.
        (b"$-1\r\n", PeerProtocol::Redis),
        (b"-ERR ", PeerProtocol::Redis),
        (b"-NOAUTH ", PeerProtocol::Redis),
        (b"-DENIED ", PeerProtocol::Redis),
    ];
    let match_prefix =
        |(prefix, protocol): &(&[u8], PeerProtocol)| first.starts_with(prefix).then_some(*protocol);
    PREFIXES.iter().find_map(match_prefix).or(match first {
        [0x15 | 0x16, 3, 0..=4, ..] => Some(PeerProtocol::Tls),
        // A packet of less than 64 KiB with number 0: a greeting of protocol version 10, followed by the digits of the server's
        // version, or an error.
        [_, _, 0, 0, 0x0a, b'0'..=b'9', ..] | [_, _, 0, 0, 0xff, _, 3..=0x10, ..] => {
            Some(PeerProtocol::MySql)
        }
        // An error of less than 64 KiB whose first field is the severity.
        [b'E', 0, 0, _, _, b'S', b'A'..=b'Z', ..] => Some(PeerProtocol::Postgres),
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
    /// Append `raw` up to the maximum; later bytes are ignored.
    pub fn keep(&mut self, raw: &[u8]) {
        let added = raw.len().min(MAX_FIRST_BYTES - self.count);
        self.bytes[self.count..self.count + added].copy_from_slice(&raw[..added]);
        self.count += added;
    }

    pub fn recognise(&self) -> Option<PeerProtocol> {
        recognise(&self.bytes[..self.count])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_recognised_by_their_first_bytes() {
        let servers: [(&[u8], PeerProtocol); 12] = [
            (b"J\0\0\0\x0a5.5.5-10.11.6-MariaDB", PeerProtocol::MySql),
            (b"I\0\0\0\x0a8.0.36\0", PeerProtocol::MySql),
            (
                b"E\0\0\0\xff\x6a\x04Host 'x' is not allowed",
                PeerProtocol::MySql,
            ),
            (b"E\0\0\0\x8bSFATAL\0VFATAL\0", PeerProtocol::Postgres),
            (b"$-1\r\n", PeerProtocol::Redis),
            (b"-NOAUTH Authentication required.\r\n", PeerProtocol::Redis),
            (b"ERROR\r\nERROR\r\n", PeerProtocol::Memcached),
            (b"\x15\x03\x01\0\x02\x02\x46", PeerProtocol::Tls),
            (b"\x16\x03\x03\0\x7a\x02", PeerProtocol::Tls),
            (b"SSH-2.0-OpenSSH_9.2p1\r\n", PeerProtocol::Ssh),
            (b"HTTP/1.1 400 Bad Request\r\n", PeerProtocol::Http),
            (b"220 mail.example ESMTP\r\n", PeerProtocol::Mail),
        ];
        for (bytes, protocol) in servers {
            assert_eq!(recognise(bytes), Some(protocol), "{bytes:?}");
        }
    }

    #[test]
    fn incomplete_and_unknown_first_bytes_are_not_recognised() {
        let unknown: [&[u8]; 7] = [
            b"",
            b"S",
            b"N",
            b"E\0\0",
            b"J\0\0\0",
            b"hello\r\n",
            &[0; 40],
        ];
        for bytes in unknown {
            assert_eq!(recognise(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn first_bytes_are_kept_up_to_a_bound() {
        let mut first = FirstBytes::default();
        for byte in b"HTTP/1.0 200 OK\r\n".repeat(9) {
            first.keep(&[byte]);
        }
        assert_eq!(first.recognise(), Some(PeerProtocol::Http));
    }
}
