//! The check driven by a fuzzer and a property test: a login against arbitrary bytes of a server. Not in any other build.
//!
//! The first byte of the input selects what the job allows. The second selects the form of the rest, the server's bytes: 0 for
//! packets, each after a byte with its length and then numbered correctly, else a raw stream in pieces of that size.

use howfar_contract::jobs::{
    KeyValue, PsMode, SessionJob, SqlProtocol, Sysbench, Target, Tls, Workload,
};
use howfar_wire::mysql::handshake::Account;
use serde::Deserialize;
use serde::de::value::{Error, MapDeserializer};

use super::*;
use crate::channel::ChannelOptions;
use crate::protocol;

const PASSWORD: &str = "a password of some length";
/// Maximum packets that [`Authentication`] accepts, plus the one that it refuses.
const MAX_PACKETS: usize = 9;
/// Upper bound of the bytes that a login sends, with the longest proof in each of its round trips.
const MAX_SENT: usize = 16 * 1024;
/// Request for the server's public key.
const SEND_KEY: &[u8] = &[2];
/// The server's request for the password itself.
const FULL_NEEDED: &[u8] = &[1, 4];

/// Properties of the job, by the bits of a byte.
#[derive(Debug, Clone, Copy)]
struct Allowed(u8);

impl Allowed {
    fn is_unix(self) -> bool {
        self.0 & 1 != 0
    }

    fn fetches(self) -> bool {
        self.0 & 2 != 0
    }

    fn cleartext(self) -> bool {
        self.0 & 4 != 0
    }

    fn encrypts(self) -> bool {
        self.0 & 8 != 0
    }

    /// Redis, which has a different login.
    fn is_store(self) -> bool {
        self.0 & 16 != 0
    }

    /// PostgreSQL, which has a third kind of login.
    fn is_postgres(self) -> bool {
        self.0 & 32 != 0 && !self.is_store()
    }

    /// The job has statements to prepare.
    fn prepares(self) -> bool {
        self.0 & 64 != 0
    }

    fn workload(self) -> Workload {
        if self.is_store() {
            return Workload::KeyValue(keys(self.fetches()));
        }
        Workload::OltpPointSelect(Sysbench {
            db_ps_mode: if self.is_postgres() && self.prepares() {
                PsMode::Auto
            } else {
                PsMode::Disable
            },
            ..Sysbench::default()
        })
    }

    fn session(self) -> SessionJob {
        SessionJob {
            tls: self.encrypts().then(|| Tls {
                direct: self.is_postgres() && self.fetches(),
                ..Tls::default()
            }),
            fetch_server_key: self.fetches(),
            allow_cleartext_password: self.cleartext(),
            ..SessionJob::default()
        }
    }

    fn target(self) -> Target {
        if self.is_unix() {
            return Target::Unix {
                path: "/s".to_owned(),
            };
        }
        Target::Tcp {
            host: "127.0.0.1".to_owned(),
            port: 1,
        }
    }
}

/// Check that a login ends in an error or a session with any bytes of a server: it accepts a limited number of packets, sends little,
/// and sends the password only as the job allows.
pub fn conversation(data: &[u8]) {
    let Some((&[allowed, size], replies)) = data.split_first_chunk::<2>() else {
        return;
    };
    let allowed = Allowed(allowed);
    let (session, target) = (allowed.session(), allowed.target());
    let channel_options = ChannelOptions::new(&session, &target).expect("no files are named");
    let workload = allowed.workload();
    let protocol = if allowed.is_postgres() {
        SqlProtocol::Postgresql
    } else {
        SqlProtocol::Mysql
    };
    let program = Program::with_protocol(protocol, 1, &workload, 1, 1).expect("a valid workload");
    let parameters = LoginParameters {
        target: &target,
        account: Account {
            user: "somebody",
            password: PASSWORD,
            database: if allowed.is_store() { "3" } else { "db" },
        },
        channel_options: &channel_options,
        program: &program,
        decode: false,
        read_only: false,
    };
    if allowed.is_store() {
        return check_store(replies, usize::from(size), &parameters);
    }
    if allowed.is_postgres() {
        return check_postgres(replies, usize::from(size), &parameters, allowed);
    }
    let mut conversation = Conversation {
        login: Login::new(&program),
        sent: Vec::new(),
        ended: false,
    };
    let mut full = replies
        .windows(FULL_NEEDED.len())
        .any(|part| part == FULL_NEEDED);
    if size == 0 {
        full = packets(replies).any(|payload| payload == FULL_NEEDED);
        conversation.receive_packets(replies, &parameters);
    } else {
        for piece in replies.chunks(usize::from(size)) {
            conversation.receive(piece, &parameters);
        }
    }
    check_sent(&conversation.sent, allowed, full);
}

/// A workload of commands on keys, with defaults for all but the protocol.
fn keys(resp2: bool) -> KeyValue {
    let protocol = if resp2 { "resp2" } else { "resp3" };
    let fields = MapDeserializer::<_, Error>::new([("protocol", protocol)].into_iter());
    KeyValue::deserialize(fields).expect("all else has a default")
}

/// Check a login to a store, to which the client sends the password first: no reply of the store makes the client send more.
fn check_store(replies: &[u8], size: usize, parameters: &LoginParameters<'_>) {
    let mut sent = Vec::new();
    let mut login = protocol::login(parameters, &mut sent).expect("a channel");
    let negotiation = sent.len();
    for piece in replies.chunks(size.max(1)) {
        match login.feed(piece, parameters, &mut sent) {
            Ok(None) => {}
            Ok(Some(_)) => break,
            Err(failed) => {
                assert!(
                    !failed.message.contains(PASSWORD),
                    "the password is in a message"
                );
                break;
            }
        }
    }
    // TLS may retry its handshake, or answer invalid bytes with an alert.
    assert!(
        sent.len() <= negotiation + 4096,
        "a store made the client speak"
    );
}

/// Check a login to PostgreSQL: packets are messages, each beginning with its type.
fn check_postgres(replies: &[u8], size: usize, parameters: &LoginParameters<'_>, allowed: Allowed) {
    let mut sent = Vec::new();
    let mut login = protocol::login(parameters, &mut sent).expect("a channel");
    let pieces: Vec<Vec<u8>> = if size == 0 {
        packets(replies).filter_map(as_message).collect()
    } else {
        replies.chunks(size).map(<[u8]>::to_vec).collect()
    };
    for piece in pieces {
        match login.feed(&piece, parameters, &mut sent) {
            Ok(None) => {}
            Ok(Some(session)) => {
                assert!(!session.channel.is_handshaking(), "ready before TLS is");
                break;
            }
            Err(failed) => {
                let message = format!("{}{}", failed.message, failed.advice);
                assert!(!message.contains(PASSWORD), "the password is in a message");
                break;
            }
        }
    }
    assert!(sent.len() < MAX_SENT, "{} bytes left", sent.len());
    let shown = sent
        .windows(PASSWORD.len())
        .any(|part| part == PASSWORD.as_bytes());
    assert!(!shown || allowed.is_unix(), "the password leaves");
}

fn as_message(payload: &[u8]) -> Option<Vec<u8>> {
    let (&kind, body) = payload.split_first()?;
    let length = (body.len() as u32 + 4).to_be_bytes();
    Some([&[kind][..], &length, body].concat())
}

/// Payloads, each after a byte with its length; the last one may be shorter.
fn packets(mut replies: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (&length, rest) = replies.split_first()?;
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(length)));
        replies = rest;
        Some(payload)
    })
}

struct Conversation {
    login: Login,
    /// All bytes sent; in clear unless TLS has begun.
    sent: Vec<u8>,
    ended: bool,
}

impl Conversation {
    fn receive(&mut self, bytes: &[u8], parameters: &LoginParameters<'_>) {
        if self.ended {
            return;
        }
        match self.login.feed(bytes, parameters, &mut self.sent) {
            Ok(None) => {}
            Ok(Some(session)) => {
                assert!(!session.channel.is_handshaking(), "ready before TLS is");
                self.ended = true;
            }
            Err(failed) => {
                let message = format!("{}{}", failed.message, failed.advice);
                assert!(!message.contains(PASSWORD), "the password is in a message");
                self.ended = true;
            }
        }
    }

    fn receive_packets(&mut self, replies: &[u8], parameters: &LoginParameters<'_>) {
        for (count, payload) in packets(replies).enumerate() {
            if self.ended {
                return;
            }
            assert!(count < MAX_PACKETS, "a login without an end");
            let mut packet = Vec::new();
            let number = self.login.stream.framer.sequence();
            frame::write_packet(&mut packet, number, payload);
            self.receive(&packet, parameters);
        }
    }
}

fn check_sent(sent: &[u8], allowed: Allowed, full: bool) {
    assert!(sent.len() < MAX_SENT, "{} bytes left", sent.len());
    let shown = sent
        .windows(PASSWORD.len())
        .any(|part| part == PASSWORD.as_bytes());
    assert!(
        !shown || (allowed.is_unix() && (allowed.cleartext() || full)),
        "the password leaves"
    );
    if allowed.encrypts() {
        // The request for TLS is followed by TLS records.
        return;
    }
    let (mut framer, mut left) = (Framer::new(MAX_PACKET_BYTES), sent);
    framer.expect(1);
    let mut first = true;
    loop {
        let number = left.get(3).copied().unwrap_or_default();
        framer.expect(number);
        match framer.next(&mut left) {
            Ok(Some(payload)) => {
                let requests = payload == SEND_KEY && !first;
                assert!(
                    !requests || (allowed.fetches() && !allowed.is_unix()),
                    "a key is requested"
                );
                first = false;
            }
            Ok(None) => break,
            Err(error) => panic!("what left is no packet: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use howfar_wire::mysql::server;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Inputs that the fuzzer has kept.
    #[test]
    fn the_corpus_is_survived() {
        let address = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/conversation");
        let entries = std::fs::read_dir(address).expect("the corpus");
        let mut count = 0;
        for entry in entries {
            conversation(&std::fs::read(entry.expect("an entry").path()).expect("a file"));
            count += 1;
        }
        assert!(count > 0, "an empty corpus tests nothing");
    }

    fn greeting() -> Vec<u8> {
        let mut packet = Vec::new();
        server::greeting(&mut packet, "8.4.0", 7, [9; 20], false);
        packet.split_off(4)
    }

    /// Payloads that a server may send.
    fn steps() -> Vec<Vec<u8>> {
        let switch = |plugin: &str| [b"\xFE", plugin.as_bytes(), b"\0", &[9; 20], b"\0"].concat();
        vec![
            greeting(),
            switch("mysql_native_password"),
            switch("caching_sha2_password"),
            switch("mysql_clear_password"),
            switch("sha256_password"),
            switch("dialog"),
            b"\x01\x03".to_vec(),
            FULL_NEEDED.to_vec(),
            b"\x01-----BEGIN PUBLIC KEY-----\nMAA=\n-----END PUBLIC KEY-----\n".to_vec(),
            b"\0\0\0\x02\0\0\0".to_vec(),
            b"\xFF\x15\x04#28000Access denied".to_vec(),
            b"\x02\0".to_vec(),
        ]
    }

    fn behind_lengths<'a>(payloads: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<u8> {
        let each = payloads.into_iter().flat_map(|payload| {
            let length = u8::try_from(payload.len()).expect("short");
            [&[length], &payload[..]].concat()
        });
        each.collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn any_bytes_end_a_login(data in vec(any::<u8>(), 0..300)) {
            conversation(&data);
        }

        /// Steps in any order, with some of their bytes changed.
        #[test]
        fn any_steps_end_a_login(
            allowed in 0..16_u8,
            greets in any::<bool>(),
            order in vec(0..steps().len(), 0..12),
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        ) {
            let steps = steps();
            let first = greets.then_some(&steps[0]);
            let replies = first.into_iter().chain(order.iter().map(|&at| &steps[at]));
            let mut data = [&[allowed, 0][..], &behind_lengths(replies)].concat();
            for (at, byte) in changes {
                let at = at.index(data.len());
                if at > 1 {
                    data[at] = byte;
                }
            }
            conversation(&data);
        }
    }

    /// Messages that PostgreSQL may send, each with its type and body.
    fn postgres_steps() -> Vec<Vec<u8>> {
        [
            &b"R\0\0\0\0"[..],
            b"R\0\0\0\x03",
            b"R\0\0\0\x05salt",
            b"R\0\0\0\x0aSCRAM-SHA-256\0\0",
            b"R\0\0\0\x0br=x,s=c2FsdA==,i=1",
            b"R\0\0\0\x0cv=AAAA",
            b"Sserver_version\x0015\0",
            b"K\0\0\0\x01\0\0\0\x02",
            b"ZI",
            b"1",
            b"NSNOTICE\0\0",
            b"ESFATAL\0VFATAL\0C28P01\0Mno\0\0",
        ]
        .map(<[u8]>::to_vec)
        .to_vec()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Steps of PostgreSQL in any order, with some of their bytes changed.
        #[test]
        fn any_steps_end_a_login_to_postgresql(
            allowed in 0..16_u8,
            prepares in any::<bool>(),
            order in vec(0..postgres_steps().len(), 0..12),
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        ) {
            let steps = postgres_steps();
            let replies = behind_lengths(order.iter().map(|&at| &steps[at]));
            let allowed = allowed | 32 | (u8::from(prepares) << 6);
            let mut data = [&[allowed, 0][..], &replies].concat();
            for (at, byte) in changes {
                let at = at.index(data.len());
                if at > 1 {
                    data[at] = byte;
                }
            }
            conversation(&data);
        }
    }

    /// The check works: it detects the password where it is sent.
    #[test]
    fn what_leaves_is_seen() {
        let steps = steps();
        let sent = |allowed: u8| {
            let replies = behind_lengths([&steps[0], &steps[3]]);
            std::panic::catch_unwind(|| conversation(&[&[allowed, 0][..], &replies].concat()))
                .is_ok()
        };
        assert!(sent(0) && sent(1 | 4));
        let clear = [b"....", PASSWORD.as_bytes(), b"\0"].concat();
        let seen =
            |allowed| std::panic::catch_unwind(|| check_sent(&clear, Allowed(allowed), false));
        assert!(seen(2 | 4 | 8).is_err(), "not over TCP");
        assert!(seen(1 | 8).is_err(), "not without consent");
        assert!(seen(1 | 4 | 8).is_ok());
    }
}
