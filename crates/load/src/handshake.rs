//! The handshake from the transport to a session with Redis or Memcached, without I/O: bytes in, bytes out.
//!
//! TLS comes first if it is requested, then Redis' HELLO, AUTH and SELECT in one round trip. A session without any of these is ready
//! when its socket is, as with any client.

use howfar_contract::jobs::Protocol;
use howfar_contract::{FailCode, Failed};
use howfar_wire::redis::{Decoder, Value, request};

use crate::channel::{self, Channel};
use crate::failure;
use crate::session::{Handshake, LoginParameters, Phase, Replies, Session};
use crate::statements::Statements;

/// Maximum memory for one reply: HELLO's is a map of a few hundred bytes.
const MAX_REPLY_BYTES: usize = 1 << 16;

/// The handshake of one connection.
pub(crate) struct KeyValueHandshake {
    protocol: Protocol,
    /// State of the answers, for the session once it is ready.
    replies: Option<Replies>,
    channel: Channel,
    decoder: Decoder,
    /// Commands whose replies are expected, the last one first.
    pending: Vec<&'static str>,
    /// Whether anything was sent: that is a round trip.
    has_sent: bool,
    plain: Vec<u8>,
}

impl KeyValueHandshake {
    /// Begin a handshake; append to `out` the bytes that the client sends first.
    pub(crate) fn begin(
        protocol: Protocol,
        replies: Replies,
        parameters: &LoginParameters<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Self, Failed> {
        let mut handshake = Self {
            protocol,
            replies: Some(replies),
            channel: Channel::Plain,
            decoder: Decoder::new(MAX_REPLY_BYTES),
            pending: Vec::new(),
            has_sent: false,
            plain: Vec::new(),
        };
        let mut greeting = Vec::new();
        handshake.write_greeting(parameters, &mut greeting);
        let sealed = parameters
            .channel_options
            .encrypt(&mut handshake.channel, out)
            .and_then(|()| handshake.channel.seal(&greeting, out));
        sealed.map_err(|error| channel::translate_error(parameters.target, &error))?;
        Ok(handshake)
    }

    fn write_greeting(&mut self, parameters: &LoginParameters<'_>, out: &mut Vec<u8>) {
        let account = &parameters.account;
        if self.protocol == Protocol::Resp3 {
            request::hello(out, 3, account.user, account.password);
            self.pending.push("HELLO 3");
        } else if !account.password.is_empty() {
            request::auth(out, account.user, account.password);
            self.pending.push("AUTH");
        }
        if !account.database.is_empty() {
            request::command(out, &[b"SELECT", account.database.as_bytes()]);
            self.pending.push("SELECT");
        }
        self.pending.reverse();
        self.has_sent = !self.pending.is_empty();
    }

    fn check_reply(
        &mut self,
        value: &Value,
        parameters: &LoginParameters<'_>,
    ) -> Result<(), Failed> {
        let request = self.pending.pop().unwrap_or("nothing");
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
                failure::target_name(parameters.target)
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
            Phase::Command(self.pending.last().unwrap_or(&"nothing"))
        }
    }

    fn feed(
        &mut self,
        raw: &[u8],
        parameters: &LoginParameters<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Session>, Failed> {
        let mut plain = std::mem::take(&mut self.plain);
        plain.clear();
        self.channel
            .open(raw, &mut plain, out)
            .map_err(|error| channel::translate_error(parameters.target, &error))?;
        let mut input = &plain[..];
        while !input.is_empty() {
            let value = self.decoder.next(&mut input).map_err(|error| {
                failure::malformed_key_value(parameters.target, Some(self.protocol), &error)
            })?;
            match value {
                None => break,
                Some(Value::Push(_)) => {}
                Some(value) => self.check_reply(&value, parameters)?,
            }
        }
        self.plain = plain;
        if !self.pending.is_empty() || self.channel.is_handshaking() {
            self.channel
                .check_not_ended()
                .map_err(|error| channel::translate_error(parameters.target, &error))?;
            return Ok(None);
        }
        let tls = self.channel.tls_facts();
        let tls_round_trips = tls.as_ref().map_or(0, channel::TlsFacts::round_trips);
        Ok(self.replies.take().map(|replies| Session {
            channel: std::mem::take(&mut self.channel),
            replies,
            statements: Statements::default(),
            facts: None,
            tls,
            round_trips: tls_round_trips + u32::from(self.has_sent),
        }))
    }
}

#[cfg(test)]
mod tests {
    use howfar_contract::jobs::{KeyValue, SessionJob, Target, Workload};
    use howfar_wire::mysql::handshake::Account;

    use super::*;
    use crate::channel::ChannelOptions;
    use crate::workload::Program;

    /// Run a handshake against `replies`; return the bytes that it sent first, and its round trips if it ended.
    fn run_handshake(
        protocol: Protocol,
        (user, password, database): (&str, &str, &str),
        replies: &str,
    ) -> (String, Result<Option<u32>, Failed>) {
        let target = Target::Unix {
            path: "/s".to_owned(),
        };
        let channel_options =
            ChannelOptions::new(&SessionJob::default(), &target).expect("the job names no files");
        let text = format!(r#"{{"protocol":"{}"}}"#, protocol.name());
        let load: KeyValue = serde_json::from_str(&text).expect("the JSON is well formed");
        let program = Program::new(&Workload::KeyValue(load), 1, 1).expect("the workload is valid");
        let account = Account {
            user,
            password,
            database,
        };
        let parameters = LoginParameters::new(&target, account, &channel_options, &program);
        let mut out = Vec::new();
        let mut handshake = KeyValueHandshake::begin(
            protocol,
            Replies::Redis(howfar_wire::redis::Replies::default()),
            &parameters,
            &mut out,
        )
        .expect("the job requests no TLS");
        let mut outcome = handshake.feed(&[], &parameters, &mut Vec::new());
        for byte in replies.as_bytes() {
            if !matches!(outcome, Ok(None)) {
                break;
            }
            outcome = handshake.feed(std::slice::from_ref(byte), &parameters, &mut Vec::new());
        }
        let round_trips = outcome.map(|session| session.map(|session| session.round_trips));
        (
            String::from_utf8(out).expect("the request is text"),
            round_trips,
        )
    }

    #[test]
    fn a_session_without_account_or_database_sends_nothing() {
        for protocol in [
            Protocol::Resp2,
            Protocol::MemcachedText,
            Protocol::MemcachedMeta,
        ] {
            assert_eq!(
                run_handshake(protocol, ("", "", ""), ""),
                (String::new(), Ok(Some(0)))
            );
        }
    }

    #[test]
    fn the_greeting_takes_one_round_trip() {
        let account = ("me", "secret", "3");
        let (sent, round_trips) =
            run_handshake(Protocol::Resp3, account, "%1\r\n+proto\r\n:3\r\n+OK\r\n");
        assert!(sent.starts_with("*5\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$2\r\nme\r\n"));
        assert!(sent.ends_with("$6\r\nSELECT\r\n$1\r\n3\r\n"));
        assert_eq!(round_trips, Ok(Some(1)));
        let (sent, round_trips) = run_handshake(Protocol::Resp2, ("", "secret", ""), "+OK\r\n");
        assert_eq!(sent, "*2\r\n$4\r\nAUTH\r\n$6\r\nsecret\r\n");
        assert_eq!(round_trips, Ok(Some(1)));
    }

    #[test]
    fn refusals_have_different_codes() {
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
            let (_, outcome) = run_handshake(protocol, account, reply);
            let failed = outcome.expect_err(reply);
            assert_eq!(failed.code, code, "{}", failed.message);
            assert!(!failed.message.contains("secret"));
        }
    }
}
