//! The check driven by a fuzzer and a property test: a login against arbitrary bytes of a server. Not in any other build.
//!
//! The first byte of the input selects the job's properties. The second selects the form of the rest, the server's bytes: 0 for
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
const MAX_SENT_BYTES: usize = 16 * 1024;
/// Request for the server's public key.
const KEY_REQUEST: &[u8] = &[2];
/// The server's request for the password itself.
const PASSWORD_REQUEST: &[u8] = &[1, 4];

/// Properties of the job, one in each bit of a byte.
#[derive(Debug, Clone, Copy)]
struct JobProperties(u8);

impl JobProperties {
    fn is_unix(self) -> bool {
        self.0 & 1 != 0
    }

    fn fetches_key(self) -> bool {
        self.0 & 2 != 0
    }

    fn allows_cleartext(self) -> bool {
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
            return Workload::KeyValue(keys(self.fetches_key()));
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
                direct: self.is_postgres() && self.fetches_key(),
                ..Tls::default()
            }),
            fetch_server_key: self.fetches_key(),
            allow_cleartext_password: self.allows_cleartext(),
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
    let Some((&[properties, size], replies)) = data.split_first_chunk::<2>() else {
        return;
    };
    let properties = JobProperties(properties);
    let (session, target) = (properties.session(), properties.target());
    let channel_options = ChannelOptions::new(&session, &target).expect("the job names no files");
    let workload = properties.workload();
    let protocol = if properties.is_postgres() {
        SqlProtocol::Postgresql
    } else {
        SqlProtocol::Mysql
    };
    let program =
        Program::with_protocol(protocol, 1, &workload, 1, 1).expect("the workload is valid");
    let account = Account {
        user: "somebody",
        password: PASSWORD,
        database: if properties.is_store() { "3" } else { "db" },
    };
    let parameters = LoginParameters::new(&target, account, &channel_options, &program);
    if properties.is_store() {
        return check_store(replies, usize::from(size), &parameters);
    }
    if properties.is_postgres() {
        return check_postgres(replies, usize::from(size), &parameters, properties);
    }
    let (mut login, mut sent) = (Login::new(&program), Vec::new());
    let mut asks_for_password = replies
        .windows(PASSWORD_REQUEST.len())
        .any(|part| part == PASSWORD_REQUEST);
    if size == 0 {
        asks_for_password = packets(replies).any(|payload| payload == PASSWORD_REQUEST);
        for (count, payload) in packets(replies).enumerate() {
            assert!(count < MAX_PACKETS, "the number of packets is limited");
            let mut packet = Vec::new();
            let number = login.stream.framer.sequence();
            frame::write_packet(&mut packet, number, payload);
            if has_ended(&mut login, &packet, &parameters, &mut sent) {
                break;
            }
        }
    } else {
        let mut pieces = replies.chunks(usize::from(size));
        pieces.any(|piece| has_ended(&mut login, piece, &parameters, &mut sent));
    }
    check_sent(&sent, properties, asks_for_password);
}

/// Feed bytes of the server to a login, and check its outcome if that ended it. All bytes sent are appended to `sent`.
fn has_ended(
    login: &mut dyn Handshake,
    bytes: &[u8],
    parameters: &LoginParameters<'_>,
    sent: &mut Vec<u8>,
) -> bool {
    match login.feed(bytes, parameters, sent) {
        Ok(None) => return false,
        Ok(Some(session)) => {
            let is_ready = !session.channel.is_handshaking();
            assert!(is_ready, "the session is not ready before TLS is");
        }
        Err(failed) => {
            let message = format!("{}{}", failed.message, failed.advice);
            assert!(!message.contains(PASSWORD), "the password is in a message");
        }
    }
    true
}

/// A workload of commands on keys, with defaults for all but the protocol.
fn keys(resp2: bool) -> KeyValue {
    let protocol = if resp2 { "resp2" } else { "resp3" };
    let fields = MapDeserializer::<_, Error>::new([("protocol", protocol)].into_iter());
    KeyValue::deserialize(fields).expect("all other fields have defaults")
}

/// Check a login to a store, to which the client sends the password first: no reply of the store makes the client send more.
fn check_store(replies: &[u8], size: usize, parameters: &LoginParameters<'_>) {
    let mut sent = Vec::new();
    let mut login = protocol::login(parameters, &mut sent).expect("the channel can begin");
    let negotiation = sent.len();
    let mut pieces = replies.chunks(size.max(1));
    pieces.any(|piece| has_ended(login.as_mut(), piece, parameters, &mut sent));
    // TLS may retry its handshake, or answer invalid bytes with an alert.
    let excess = sent.len() - negotiation;
    assert!(excess <= 4096, "a store makes the client send nothing");
}

/// Check a login to PostgreSQL: packets are messages, each beginning with its type.
fn check_postgres(
    replies: &[u8],
    size: usize,
    parameters: &LoginParameters<'_>,
    properties: JobProperties,
) {
    let mut sent = Vec::new();
    let mut login = protocol::login(parameters, &mut sent).expect("the channel can begin");
    let pieces: Vec<Vec<u8>> = if size == 0 {
        packets(replies).filter_map(to_message).collect()
    } else {
        replies.chunks(size).map(<[u8]>::to_vec).collect()
    };
    let mut pieces = pieces.iter();
    pieces.any(|piece| has_ended(login.as_mut(), piece, parameters, &mut sent));
    check_password(&sent, properties.is_unix());
}

/// Check that not many bytes were sent, and no password in clear unless it is allowed.
fn check_password(sent: &[u8], is_allowed: bool) {
    let count = sent.len();
    assert!(count < MAX_SENT_BYTES, "{count} bytes were sent");
    let mut parts = sent.windows(PASSWORD.len());
    let has_password = parts.any(|part| part == PASSWORD.as_bytes());
    assert!(
        !has_password || is_allowed,
        "the job allows a password in clear"
    );
}

fn to_message(payload: &[u8]) -> Option<Vec<u8>> {
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

fn check_sent(sent: &[u8], properties: JobProperties, asks_for_password: bool) {
    let has_consent = properties.allows_cleartext() || asks_for_password;
    check_password(sent, properties.is_unix() && has_consent);
    if properties.encrypts() {
        // The request for TLS is followed by TLS records.
        return;
    }
    let (mut framer, mut rest) = (Framer::new(MAX_PACKET_BYTES), sent);
    framer.expect(1);
    let mut first = true;
    loop {
        let number = rest.get(3).copied().unwrap_or_default();
        framer.expect(number);
        match framer.next(&mut rest) {
            Ok(Some(payload)) => {
                let requests_key = payload == KEY_REQUEST && !first;
                assert!(
                    !requests_key || (properties.fetches_key() && !properties.is_unix()),
                    "a key is requested although the job forbids it"
                );
                first = false;
            }
            Ok(None) => break,
            Err(error) => panic!("the bytes sent are not packets: {error}"),
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
    fn the_corpus_passes_the_check() {
        let address = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/conversation");
        let entries = std::fs::read_dir(address).expect("the corpus exists");
        let mut count = 0;
        for entry in entries {
            conversation(
                &std::fs::read(entry.expect("the entry can be read").path())
                    .expect("the file can be read"),
            );
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
    fn server_packets() -> Vec<Vec<u8>> {
        let switch = |plugin: &str| [b"\xFE", plugin.as_bytes(), b"\0", &[9; 20], b"\0"].concat();
        vec![
            greeting(),
            switch("mysql_native_password"),
            switch("caching_sha2_password"),
            switch("mysql_clear_password"),
            switch("sha256_password"),
            switch("dialog"),
            b"\x01\x03".to_vec(),
            PASSWORD_REQUEST.to_vec(),
            b"\x01-----BEGIN PUBLIC KEY-----\nMAA=\n-----END PUBLIC KEY-----\n".to_vec(),
            b"\0\0\0\x02\0\0\0".to_vec(),
            b"\xFF\x15\x04#28000Access denied".to_vec(),
            b"\x02\0".to_vec(),
        ]
    }

    fn with_lengths<'a>(payloads: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<u8> {
        let each = payloads.into_iter().flat_map(|payload| {
            let length = u8::try_from(payload.len()).expect("a payload has at most 255 bytes");
            [&[length], &payload[..]].concat()
        });
        each.collect()
    }

    /// Check `data` after `changes` of bytes behind its first two.
    fn check_changed(data: &mut [u8], changes: &[(prop::sample::Index, u8)]) {
        for (index, byte) in changes {
            let index = index.index(data.len());
            if index > 1 {
                data[index] = *byte;
            }
        }
        conversation(data);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn any_bytes_end_a_login(data in vec(any::<u8>(), 0..300)) {
            conversation(&data);
        }

        /// Packets in any order, with some of their bytes changed.
        #[test]
        fn any_packets_end_a_login(
            properties in 0..16_u8,
            greets in any::<bool>(),
            order in vec(0..server_packets().len(), 0..12),
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        ) {
            let server_packets = server_packets();
            let first = greets.then_some(&server_packets[0]);
            let replies = first.into_iter().chain(order.iter().map(|&at| &server_packets[at]));
            let mut data = [&[properties, 0][..], &with_lengths(replies)].concat();
            check_changed(&mut data, &changes);
        }
    }

    /// Messages that PostgreSQL may send, each with its type and body.
    fn postgres_messages() -> Vec<Vec<u8>> {
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

        /// Messages of PostgreSQL in any order, with some of their bytes changed.
        #[test]
        fn any_messages_end_a_login_to_postgresql(
            properties in 0..16_u8,
            prepares in any::<bool>(),
            order in vec(0..postgres_messages().len(), 0..12),
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        ) {
            let server_packets = postgres_messages();
            let replies = with_lengths(order.iter().map(|&at| &server_packets[at]));
            let properties = properties | 32 | (u8::from(prepares) << 6);
            let mut data = [&[properties, 0][..], &replies].concat();
            check_changed(&mut data, &changes);
        }
    }

    /// Test of the check itself: it detects a password that is sent.
    #[test]
    fn the_check_finds_a_password_in_clear() {
        let server_packets = server_packets();
        let sent = |properties: u8| {
            let replies = with_lengths([&server_packets[0], &server_packets[3]]);
            std::panic::catch_unwind(|| conversation(&[&[properties, 0][..], &replies].concat()))
                .is_ok()
        };
        assert!(sent(0) && sent(1 | 4));
        let clear = [b"....", PASSWORD.as_bytes(), b"\0"].concat();
        let check = |properties| {
            std::panic::catch_unwind(|| check_sent(&clear, JobProperties(properties), false))
        };
        assert!(check(2 | 4 | 8).is_err(), "no cleartext over TCP");
        assert!(check(1 | 8).is_err(), "no cleartext without consent");
        assert!(check(1 | 4 | 8).is_ok());
    }
}
