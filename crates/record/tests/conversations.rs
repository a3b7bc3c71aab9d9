//! Tests of conversations as real clients have them, and of properties that hold for any bytes.

use std::sync::Arc;

use howfar_record::{Conversation, Direction, Phase, RoundTrip, Salt};
use proptest::prelude::*;

use Direction::{ToClient, ToServer};

fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_le_bytes();
    [&length[..3], &[sequence], payload].concat()
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

type Script = Vec<(Direction, Vec<u8>)>;

/// Feed each part of the script in pieces of `size` bytes, a microsecond apart; returns the round trips and the conversation.
fn play(script: &Script, size: usize, salt: &Salt) -> (Vec<RoundTrip>, Conversation) {
    let mut conversation = Conversation::new(0, true);
    let (mut round_trips, mut now_ns) = (Vec::new(), 0);
    for (direction, bytes) in script {
        for piece in bytes.chunks(size) {
            now_ns += 1_000;
            round_trips.extend(conversation.feed(*direction, now_ns, piece, 0, salt));
        }
    }
    round_trips.extend(conversation.close());
    (round_trips, conversation)
}

fn describe(round_trips: &[RoundTrip]) -> Vec<String> {
    round_trips
        .iter()
        .map(|round_trip| {
            let phase = match round_trip.phase {
                Phase::Connect => "connect ",
                Phase::Operation => "",
                Phase::Hidden => "hidden ",
                Phase::Close => "close ",
            };
            let rows = round_trip
                .rows
                .map_or_else(String::new, |rows| format!(" rows {rows}"));
            let failed = if round_trip.failed { " failed" } else { "" };
            let digest = round_trip.digest.as_deref().unwrap_or("-");
            format!(
                "{phase}{} x{}: {digest}{rows}{failed}",
                round_trip.command, round_trip.requests
            )
        })
        .collect()
}

const OK: &[u8] = b"\0\0\0\x02\0\0\0";

fn greeting_and_login(deprecates_eof: bool) -> Script {
    let mut greeting = b"\x0a8.0\0".to_vec();
    greeting.extend_from_slice(&[1, 0, 0, 0]);
    greeting.extend_from_slice(b"saltsalt\0\xff\xf7\x08\x02\x00\xff\xdf\x15");
    greeting.extend_from_slice(&[0; 10]);
    greeting.extend_from_slice(b"saltsaltsalt\0mysql_native_password\0");
    let capabilities: u32 = 0x200 | 0x8000 | if deprecates_eof { 1 << 24 } else { 0 };
    let mut login = capabilities.to_le_bytes().to_vec();
    login.extend_from_slice(&[0; 28]);
    login.extend_from_slice(b"user\0\0");
    vec![
        (ToClient, packet(0, &greeting)),
        (ToServer, packet(1, &login)),
        (ToClient, packet(2, OK)),
    ]
}

/// A MySQL script. `deprecates_eof`: no EOF separates columns and rows.
fn mysql(deprecates_eof: bool) -> Script {
    let packets = |payloads: &[&[u8]]| {
        let payloads = payloads.iter().filter(|payload| !payload.is_empty());
        let packets = payloads
            .zip(1..)
            .map(|(payload, number)| packet(number, payload));
        packets.flatten().collect::<Vec<u8>>()
    };
    let eof: &[u8] = b"\xfe\0\0\x02\0";
    let end: &[u8] = if deprecates_eof {
        b"\xfe\0\0\x02\0\0\0"
    } else {
        eof
    };
    let separator: &[u8] = if deprecates_eof { b"" } else { eof };
    let rows = packets(&[b"\x01", b"column", separator, b"\x03abc", b"\x03def", end]);
    let header: &[u8] = b"\0\x07\0\0\0\x01\0\x01\0\0\0\0";
    let prepared = packets(&[header, b"parameter", separator, b"column", separator]);
    let close_and_ping = [packet(0, b"\x19\x07\0\0\0"), packet(0, b"\x0e")].concat();
    let mut script = greeting_and_login(deprecates_eof);
    for (request, answer) in [
        (
            packet(0, b"\x03SELECT c FROM t WHERE id = 4711"),
            rows.clone(),
        ),
        (packet(0, b"\x16SELECT c FROM t WHERE id = ?"), prepared),
        (packet(0, b"\x17\x07\0\0\0\0\x01\0\0\0secret"), rows),
        (close_and_ping, packet(1, OK)),
        (
            packet(0, b"\x03INSERT INTO t VALUES (1)"),
            packet(1, b"\xff\x26\x04#23000secret"),
        ),
    ] {
        script.extend([(ToServer, request), (ToClient, answer)]);
    }
    script.push((ToServer, packet(0, b"\x01")));
    script
}

#[test]
fn mysql_is_decoded_with_and_without_the_deprecated_eof() {
    for deprecates_eof in [false, true] {
        let (found, conversation) = play(&mysql(deprecates_eof), 1 << 16, &Salt::default());
        assert_eq!(
            describe(&found),
            [
                "connect greeting x0: -",
                "connect login x1: -",
                "select x1: SELECT c FROM t WHERE id = ? rows 2",
                "prepare x1: SELECT c FROM t WHERE id = ?",
                "execute x1: SELECT c FROM t WHERE id = ? rows 2",
                "ping x1: -",
                "insert x1: INSERT INTO t VALUES (?) failed",
                "close quit x1: -",
            ]
        );
        let summary = conversation.summary();
        assert_eq!(
            (
                summary.protocol,
                summary.login_round_trips,
                summary.login_ns
            ),
            ("mysql", 2, 3_000)
        );
        assert_eq!((found[0].begun_ns, found[0].answered_ns), (0, 1_000));
    }
}

/// The greeting of a packaged MariaDB is longer than the part of an answer that is kept, and ends with a capability that changes answers.
#[test]
fn a_long_greeting_is_read_to_its_end() {
    let mut greeting = b"\x0a5.5.5-10.11.14-MariaDB-0+deb12u2 from Debian\0".to_vec();
    greeting.extend_from_slice(&[1, 0, 0, 0]);
    greeting.extend_from_slice(b"saltsalt\0\xfe\xf7\x2d\x02\x00\xff\x81\x15");
    greeting.extend_from_slice(&[0; 6]);
    greeting.extend_from_slice(&(1_u32 << 4).to_le_bytes());
    greeting.extend_from_slice(b"saltsaltsalt\0mysql_native_password\0");
    let mut login = (0x200_u32 | 0x8000 | (1 << 24)).to_le_bytes().to_vec();
    login.extend_from_slice(&[0; 24]);
    login.extend_from_slice(&(1_u32 << 4).to_le_bytes());
    login.extend_from_slice(b"user\0\0");
    let rows = [
        packet(1, b"\x01\0"),
        packet(2, b"\x03abc"),
        packet(3, b"\x03def"),
        packet(4, b"\xfe\0\0\x02\0\0\0"),
    ];
    let script = vec![
        (ToClient, packet(0, &greeting)),
        (ToServer, packet(1, &login)),
        (ToClient, packet(2, OK)),
        (ToServer, packet(0, b"\x17\x07\0\0\0\0\x01\0\0\0")),
        (ToClient, rows.concat()),
    ];
    let (found, _) = play(&script, 1 << 16, &Salt::default());
    assert_eq!(found[2].rows, Some(2));
}

#[test]
fn round_trips_of_an_encrypted_connection_are_counted_without_names() {
    let mut script = mysql(true);
    script.truncate(1);
    let mut request = (0x200_u32 | 0x800 | (1 << 24)).to_le_bytes().to_vec();
    request.extend_from_slice(&[0; 28]);
    script.push((ToServer, packet(1, &request)));
    script.push((ToServer, b"\x16\x03\x01 hello".to_vec()));
    script.push((ToClient, b"\x16\x03\x03 hello".to_vec()));
    script.push((ToServer, b"\x17\x03\x03 secret".to_vec()));
    script.push((ToClient, b"\x17\x03\x03 secret".to_vec()));
    let (found, mut conversation) = play(&script, 1 << 16, &Salt::default());
    assert_eq!(
        describe(&found),
        [
            "connect greeting x0: -",
            "connect login x1: -",
            "hidden blind x0: blind"
        ]
    );
    assert!(conversation.summary().tls);
    assert_eq!(conversation.take_counts().1["encrypted"], 1);
}

fn messages(parts: &[(u8, &[u8])]) -> Vec<u8> {
    parts
        .iter()
        .flat_map(|(kind, body)| message(*kind, body))
        .collect()
}

fn postgres() -> Script {
    let startup = b"\0\0\0\x15\0\x03\0\0user\0me\0\0xxxx".to_vec();
    let setting: &[u8] = b"standard_conforming_strings\0on\0";
    let bind: (u8, &[u8]) = (b'B', b"\0s1\0\0\0\0\x01\0\0\0\x06secret\0\0");
    let execute: (u8, &[u8]) = (b'E', b"\0\0\0\0\0");
    let pipeline = messages(&[bind, execute, bind, execute, bind, execute, (b'S', b"")]);
    let ready: (u8, &[u8]) = (b'Z', b"I");
    vec![
        (ToServer, startup),
        (ToClient, message(b'R', &[0, 0, 0, 10])),
        (ToServer, message(b'p', b"SCRAM")),
        (
            ToClient,
            messages(&[(b'R', &[0; 4]), (b'S', setting), ready]),
        ),
        (ToServer, message(b'Q', b"SELECT 'secret'\0")),
        (
            ToClient,
            messages(&[
                (b'T', b"x"),
                (b'D', b"secret"),
                (b'C', b"SELECT 1\0"),
                ready,
            ]),
        ),
        (
            ToServer,
            messages(&[(b'P', b"s1\0UPDATE t SET a = $1\0\0\0"), (b'H', b"")]),
        ),
        (ToClient, message(b'1', b"")),
        (ToServer, pipeline),
        (
            ToClient,
            messages(&[(b'2', b""), (b'C', b"UPDATE 1\0"), ready]),
        ),
        (ToClient, message(b'A', b"secret")),
        (ToServer, message(b'Q', b"COPY t FROM STDIN\0")),
        (ToClient, message(b'G', b"\0\0\0")),
        (ToServer, messages(&[(b'd', b"secret"), (b'c', b"")])),
        (ToClient, messages(&[(b'E', b"secret"), ready])),
        (ToServer, message(b'X', b"")),
    ]
}

#[test]
fn postgresql_is_decoded_in_all_its_protocols() {
    let (found, mut conversation) = play(&postgres(), 1 << 16, &Salt::default());
    assert_eq!(
        describe(&found),
        [
            "connect login x1: -",
            "connect login x1: -",
            "select x1: SELECT ? rows 1",
            "prepare x1: UPDATE t SET a = ?",
            "update x3: UPDATE t SET a = ? rows 0",
            "copy x1: COPY t FROM STDIN",
            "copy data x1: copy data failed",
            "close quit x1: -",
        ]
    );
    let (commands, unknown) = conversation.take_counts();
    assert_eq!(
        (commands["update"], unknown["pushed by the server"]),
        (3, 1)
    );
    assert_eq!(
        found[4].ended_ns, found[4].answered_ns,
        "a later push does not belong to the answer"
    );
}

fn redis() -> Script {
    vec![
        (ToServer, b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n".to_vec()),
        (ToClient, b"%1\r\n+server\r\n+redis\r\n".to_vec()),
        (
            ToServer,
            b"*2\r\n$3\r\nget\r\n$6\r\nsecret\r\n*2\r\n$3\r\nGET\r\n$6\r\nsecreT\r\n".to_vec(),
        ),
        (ToClient, b"$6\r\nsecret\r\n$-1\r\n".to_vec()),
        (ToServer, b"*2\r\n$6\r\nSECRET\r\n$1\r\nx\r\n".to_vec()),
        (ToClient, b"-ERR unknown command 'SECRET'\r\n".to_vec()),
        (ToServer, b"*1\r\n$4\r\nEXEC\r\n".to_vec()),
        (ToClient, b"*2\r\n*1\r\n:1\r\n-ERR in it\r\n".to_vec()),
        (ToClient, b">2\r\n+invalidate\r\n*0\r\n".to_vec()),
    ]
}

#[test]
fn redis_is_decoded_with_pipelines_and_pushes() {
    let (found, mut conversation) = play(&redis(), 1 << 16, &Salt::default());
    assert_eq!(
        describe(&found),
        [
            "connect hello x1: HELLO",
            "get x2: GET",
            "other x1: OTHER failed",
            "exec x1: EXEC"
        ]
    );
    assert_eq!(conversation.take_counts().1["pushed by the server"], 1);
}

fn memcached() -> Script {
    vec![
        (ToServer, b"set secret 0 0 6\r\nsecret\r\n".to_vec()),
        (ToClient, b"STORED\r\n".to_vec()),
        (ToServer, b"get secret other\r\n".to_vec()),
        (ToClient, b"VALUE secret 0 5\r\nERROR\r\nEND\r\n".to_vec()),
        (ToServer, b"incr secret 1\r\n".to_vec()),
        (ToClient, b"CLIENT_ERROR not a number\r\n".to_vec()),
        (
            ToServer,
            b"set secret 0 0 1 noreply\r\nx\r\nmg secret v\r\n".to_vec(),
        ),
        (ToClient, b"VA 1\r\nx\r\n".to_vec()),
        (ToServer, b"quit\r\n".to_vec()),
    ]
}

#[test]
fn memcached_is_decoded() {
    let (found, conversation) = play(&memcached(), 1 << 16, &Salt::default());
    assert_eq!(
        describe(&found),
        [
            "set x1: set",
            "get x1: get",
            "incr x1: incr failed",
            "mg x1: mg",
            "quit x1: quit"
        ]
    );
    assert_eq!(conversation.summary().protocol, "memcached");
}

#[test]
fn the_binary_protocol_of_memcached_is_decoded() {
    let get = [
        &b"\x80\0\0\x06"[..],
        &[0; 4],
        &[0, 0, 0, 6],
        &[0; 12],
        b"secret",
    ]
    .concat();
    let missing = [&b"\x81\0\0\0\0\0\0\x01"[..], &[0; 16]].concat();
    let (found, _) = play(
        &vec![(ToServer, get), (ToClient, missing)],
        7,
        &Salt::default(),
    );
    assert_eq!(describe(&found), ["get x1: get"]);
}

#[test]
fn equal_statements_have_equal_keys() {
    let salt = Salt::default();
    let keys = |sql: &[u8]| {
        let mut script = mysql(true);
        script.truncate(3);
        script.push((ToServer, packet(0, &[b"\x03", sql].concat())));
        script.push((ToClient, packet(1, b"\0\0\0\x02\0\0\0")));
        play(&script, 1 << 16, &salt)
            .0
            .pop()
            .expect("the statement is a round trip")
            .keys
    };
    assert_eq!(keys(b"SELECT 1"), keys(b"SELECT  1"));
    assert_ne!(keys(b"SELECT 1"), keys(b"SELECT 2"));
}

proptest! {
    /// The split of the bytes changes only the times of round trips.
    #[test]
    fn any_split_has_the_same_round_trips(size in 1_usize..40, protocol in 0..4) {
        let script = match protocol { 0 => mysql(true), 1 => postgres(), 2 => redis(), _ => memcached() };
        let salt = Salt::default();
        let without_times = |mut round_trips: Vec<RoundTrip>| {
            for trip in &mut round_trips {
                (trip.begun_ns, trip.sent_ns, trip.answered_ns, trip.ended_ns) = (0, 0, 0, 0);
            }
            round_trips
        };
        prop_assert_eq!(without_times(play(&script, size, &salt).0), without_times(play(&script, 1 << 16, &salt).0));
    }

    /// No bytes, splits or holes cause a panic, and no more bytes are counted than came.
    #[test]
    fn any_bytes_are_counted_at_most_once(
        protocol in 0..5,
        random_pieces in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..40), 0_usize..100), 0..20),
        script_length in 0_usize..9,
    ) {
        let mut script = match protocol { 0 => mysql(false), 1 => postgres(), 2 => redis(), 3 => memcached(), _ => Vec::new() };
        script.truncate(script_length);
        let salt = Salt::default();
        let mut conversation = Conversation::new(0, true);
        let (mut round_trips, mut bytes) = (Vec::new(), 0);
        let pieces = script.into_iter().map(|(direction, bytes)| (direction == ToServer, bytes, 0)).chain(random_pieces);
        for (to_server, piece, skipped) in pieces.filter(|(_, piece, skipped)| piece.len() + skipped > 0) {
            bytes += (piece.len() + skipped) as u64;
            let direction = if to_server { ToServer } else { ToClient };
            round_trips.extend(conversation.feed(direction, 1, &piece, skipped, &salt));
        }
        round_trips.extend(conversation.close());
        let counted: u64 = round_trips.iter().map(|trip| trip.bytes_to_server + trip.bytes_to_client).sum();
        prop_assert!(counted <= bytes);
    }
}

// [app-10]
#[test]
fn page_names_keep_the_requested_parts() {
    let name = |page_keys: &str, target: &str| {
        let page_keys: Arc<[String]> = page_keys.split(',').map(str::to_owned).collect();
        let mut conversation = Conversation::new(0, true);
        conversation.set_page_keys(&page_keys);
        let request = format!("GET {target} HTTP/1.1\r\n\r\n");
        let salt = Salt::default();
        conversation.feed(ToServer, 1, request.as_bytes(), 0, &salt);
        let answer = b"HTTP/1.1 200 OK\r\n\r\n";
        conversation.feed(ToClient, 2, answer, 0, &salt);
        let round_trip = conversation.close().expect("the request is answered");
        round_trip.digest.expect("the page has a name")
    };
    // Marks of pages follow the same rule and are tested with the same table.
    let table = include_str!("../../../tests/data/page_names.tsv");
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let row: Vec<&str> = line.split('\t').collect();
        assert_eq!(name(row[0], row[1]), row[2], "{line}");
    }
}

#[test]
fn http_requests_are_named_by_their_paths() {
    let script = vec![
        (
            ToServer,
            b"GET /post/4711/comments?token=secret HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
        ),
        (
            ToClient,
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_vec(),
        ),
        (
            ToServer,
            b"POST /cart HTTP/1.1\r\nContent-Length: 6\r\n\r\nsecret".to_vec(),
        ),
        (ToClient, b"HTTP/1.1 503 Busy\r\n\r\n".to_vec()),
        (
            ToServer,
            b"POST /big HTTP/1.1\r\nExpect: 100-continue\r\n\r\n".to_vec(),
        ),
        (ToClient, b"HTTP/1.1 100 Continue\r\n\r\n".to_vec()),
        (ToServer, b"GET /secret HTTP/1.1\nsecret".to_vec()),
        (ToClient, b"HTTP/1.1 200 OK\r\n\r\n".to_vec()),
        (ToServer, b"I, secret, say\n".to_vec()),
        (ToClient, b"HTTP/1.1 400 What\r\n\r\n".to_vec()),
    ];
    for size in [1, 3, 1000] {
        let (found, conversation) = play(&script, size, &Salt::default());
        assert_eq!(conversation.summary().protocol, "http");
        assert_eq!(
            describe(&found),
            [
                "get x1: /post/*/comments",
                "post x1: POST /cart failed",
                "post x1: POST /big",
                "data x0: data",
                "data x0: data"
            ],
            "in pieces of {size}"
        );
    }
}

#[test]
fn a_line_of_memcached_beyond_the_maximum_is_ignored() {
    let script = vec![
        (ToServer, b"get k\r\n".to_vec()),
        (ToClient, vec![b'x'; 64 * 1024 + 1]),
    ];
    let (found, _) = play(&script, 64 * 1024, &Salt::default());
    assert_eq!(describe(&found), ["get x1: get"]);
}
