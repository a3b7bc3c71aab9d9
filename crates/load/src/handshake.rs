//! The handshake from the transport to a session with Redis or Memcached, without I/O: bytes in, bytes out.
//!
//! TLS comes first if it is requested, then Redis' HELLO, AUTH and SELECT in one round trip. A session without any of these is ready
//! when its socket is, as with any client.

use howfar_contract::jobs::Protocol;
use howfar_contract::{FailCode, Failed};
use howfar_wire::redis::{Decoder, Value, request};

use crate::channel::{self, Channel};
use crate::failure;
use crate::login::{Entry, Session};
use crate::protocol::{Handshake, Phase, Replies};
use crate::statements::Statements;

/// Maximum memory for one reply: HELLO's is a map of some hundred bytes.
const LARGEST: usize = 1 << 16;

/// The handshake of one connection.
pub(crate) struct KeyValueHandshake {
    protocol: Protocol,
    /// State of the answers, for the session once it is ready.
    replies: Option<Replies>,
    channel: Channel,
    decoder: Decoder,
    /// Commands whose replies are due, the last one first.
    due: Vec<&'static str>,
    /// Whether anything was sent: that is a round trip.
    has_sent: bool,
    plain: Vec<u8>,
}

impl KeyValueHandshake {
    /// Append to `out` what must be sent first.
    pub(crate) fn begin(
        protocol: Protocol,
        replies: Replies,
        entry: &Entry<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Self, Failed> {
        let mut handshake = Self {
            protocol,
            replies: Some(replies),
            channel: Channel::Plain,
            decoder: Decoder::new(LARGEST),
            due: Vec::new(),
            has_sent: false,
            plain: Vec::new(),
        };
        let mut greeting = Vec::new();
        handshake.greeting(entry, &mut greeting);
        let sealed = entry
            .wanted
            .encrypt(&mut handshake.channel, out)
            .and_then(|()| handshake.channel.seal(&greeting, out));
        sealed.map_err(|error| channel::broken(entry.target, &error))?;
        Ok(handshake)
    }

    fn greeting(&mut self, entry: &Entry<'_>, out: &mut Vec<u8>) {
        let account = &entry.account;
        if self.protocol == Protocol::Resp3 {
            request::hello(out, 3, account.user, account.password);
            self.due.push("HELLO 3");
        } else if !account.password.is_empty() {
            request::auth(out, account.user, account.password);
            self.due.push("AUTH");
        }
        if !account.database.is_empty() {
            request::command(out, &[b"SELECT", account.database.as_bytes()]);
            self.due.push("SELECT");
        }
        self.due.reverse();
        self.has_sent = !self.due.is_empty();
    }

    fn reply(&mut self, value: &Value, entry: &Entry<'_>) -> Result<(), Failed> {
        let request = self.due.pop().unwrap_or("nothing");
        let Value::Error(line) = value else {
            return Ok(());
        };
        let shown = String::from_utf8_lossy(&line[..line.len().min(200)]);
        let (code, advice) = match (request, line) {
            ("HELLO 3", line) if line.starts_with(b"ERR unknown command") => (
                FailCode::ServerError,
                "RESP3 needs Redis 6 or later: ask for resp2.",
            ),
            ("SELECT", _) => (
                FailCode::ServerError,
                "Name a database that the server has (CONFIG GET databases).",
            ),
            (_, line) if line.starts_with(b"ERR max number") => (
                FailCode::Connect,
                "Raise the server's maxclients, or use fewer connections.",
            ),
            _ => (
                FailCode::Auth,
                "Check user and password, and that the account may log in from here.",
            ),
        };
        Err(Failed::new(
            code,
            format!(
                "{} answered {request} with `{shown}`",
                failure::target_name(entry.target)
            ),
            advice,
        ))
    }
}

impl Handshake for KeyValueHandshake {
    fn phase(&self) -> Phase {
        if self.channel.is_handshaking() {
            Phase::Tls
        } else {
            Phase::Command(self.due.last().unwrap_or(&"nothing"))
        }
    }

    fn feed(
        &mut self,
        raw: &[u8],
        entry: &Entry<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Session>, Failed> {
        let mut plain = std::mem::take(&mut self.plain);
        plain.clear();
        self.channel
            .open(raw, &mut plain, out)
            .map_err(|error| channel::broken(entry.target, &error))?;
        let mut input = &plain[..];
        while !input.is_empty() {
            let value = self
                .decoder
                .next(&mut input)
                .map_err(|error| failure::not_spoken(entry.target, Some(self.protocol), &error))?;
            match value {
                None => break,
                Some(Value::Push(_)) => {}
                Some(value) => self.reply(&value, entry)?,
            }
        }
        self.plain = plain;
        if !self.due.is_empty() || self.channel.is_handshaking() {
            self.channel
                .goes_on()
                .map_err(|error| channel::broken(entry.target, &error))?;
            return Ok(None);
        }
        let tls = self.channel.tls_facts();
        let handshake = tls.as_ref().map_or(0, channel::TlsFacts::turns);
        Ok(self.replies.take().map(|replies| Session {
            channel: std::mem::take(&mut self.channel),
            replies,
            statements: Statements::default(),
            facts: None,
            tls,
            turns: handshake + u32::from(self.has_sent),
        }))
    }
}

#[cfg(test)]
mod tests {
    use howfar_contract::jobs::{KeyValue, SessionJob, Target, Workload};
    use howfar_wire::mysql::handshake::Account;

    use super::*;
    use crate::channel::Wanted;
    use crate::workload::Program;

    /// The bytes sent first, and the outcome after `replies`.
    fn hello(
        protocol: Protocol,
        (user, password, database): (&str, &str, &str),
        replies: &str,
    ) -> (String, Result<Option<u32>, Failed>) {
        let target = Target::Unix {
            path: "/s".to_owned(),
        };
        let wanted = Wanted::new(&SessionJob::default(), &target).expect("no files");
        let text = format!(r#"{{"protocol":"{}"}}"#, protocol.name());
        let load: KeyValue = serde_json::from_str(&text).expect("well formed");
        let program = Program::new(&Workload::KeyValue(load), 1, 1).expect("a good workload");
        let entry = Entry {
            target: &target,
            account: Account {
                user,
                password,
                database,
            },
            wanted: &wanted,
            program: &program,
            decode: false,
            read_only: false,
        };
        let mut out = Vec::new();
        let mut handshake = KeyValueHandshake::begin(
            protocol,
            Replies::Redis(howfar_wire::redis::Replies::default()),
            &entry,
            &mut out,
        )
        .expect("no TLS");
        let mut ended = handshake.feed(&[], &entry, &mut Vec::new());
        for byte in replies.as_bytes() {
            if !matches!(ended, Ok(None)) {
                break;
            }
            ended = handshake.feed(std::slice::from_ref(byte), &entry, &mut Vec::new());
        }
        let turns = ended.map(|session| session.map(|session| session.turns));
        (String::from_utf8(out).expect("text"), turns)
    }

    #[test]
    fn what_needs_no_word_says_none() {
        for protocol in [
            Protocol::Resp2,
            Protocol::MemcachedText,
            Protocol::MemcachedMeta,
        ] {
            assert_eq!(
                hello(protocol, ("", "", ""), ""),
                (String::new(), Ok(Some(0)))
            );
        }
    }

    #[test]
    fn all_is_said_in_one_round_trip() {
        let account = ("me", "secret", "3");
        let (sent, turns) = hello(Protocol::Resp3, account, "%1\r\n+proto\r\n:3\r\n+OK\r\n");
        assert!(sent.starts_with("*5\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n"));
        assert!(sent.ends_with("$6\r\nSELECT\r\n$1\r\n3\r\n"));
        assert_eq!(turns, Ok(Some(1)));
        let (sent, turns) = hello(Protocol::Resp2, ("", "secret", ""), "+OK\r\n");
        assert_eq!(sent, "*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n");
        assert_eq!(turns, Ok(Some(1)));
    }

    #[test]
    fn refusals_are_told_apart() {
        for (protocol, account, reply, code) in [
            (
                Protocol::Resp2,
                ("", "x", ""),
                "-WRONGPASS no\r\n",
                FailCode::Auth,
            ),
            (
                Protocol::Resp3,
                ("", "", ""),
                "-ERR unknown command 'HELLO'\r\n",
                FailCode::ServerError,
            ),
            (
                Protocol::Resp2,
                ("", "", "99"),
                "-ERR DB index is out of range\r\n",
                FailCode::ServerError,
            ),
            (
                Protocol::Resp3,
                ("", "", ""),
                "-ERR max number of clients reached\r\n",
                FailCode::Connect,
            ),
            (
                Protocol::Resp3,
                ("", "", ""),
                "HTTP/1.1 400\r\n",
                FailCode::Protocol,
            ),
        ] {
            let (_, ended) = hello(protocol, account, reply);
            let failed = ended.expect_err(reply);
            assert_eq!(failed.code, code, "{}", failed.message);
            assert!(!failed.message.contains("secret"));
        }
    }
}
