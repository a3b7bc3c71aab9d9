//! Tests of the rules for round trips on generated conversations: when a round trip begins, what belongs to it, what is counted.

use howfar_record::{Conversation, Direction, Phase, RoundTrip, Salt};
use proptest::prelude::*;

use Direction::{ToClient, ToServer};
use Phase::{Connect, Hidden, Operation};

type Script = Vec<(Direction, Vec<u8>)>;

fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_le_bytes();
    [&length[..3], &[sequence], payload].concat()
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

/// A command of Redis.
fn command(words: &[&str]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", words.len());
    for word in words {
        out.extend([format!("${}\r\n{word}\r\n", word.len())]);
    }
    out.into_bytes()
}

const OK: &[u8] = b"\0\0\0\x02\0\0\0";

/// Messages of one protocol.
struct Messages {
    login: Script,
    request_and_answer: (Vec<u8>, Vec<u8>),
    /// A request that no server answers.
    unanswered: Option<Vec<u8>>,
    /// A message that a server sends unrequested while no answer is due.
    idle_push: Option<Vec<u8>>,
    /// A message that a server sends unrequested while an answer is due.
    busy_push: Option<Vec<u8>>,
}

fn mysql_login(capabilities: u32) -> Script {
    let mut greeting = b"\x0a8.0\0".to_vec();
    greeting.extend_from_slice(&[1, 0, 0, 0]);
    greeting.extend_from_slice(b"saltsalt\0\xff\xff\x08\x02\x00\xff\xff\x15");
    greeting.extend_from_slice(&[0; 10]);
    greeting.extend_from_slice(b"saltsaltsalt\0mysql_native_password\0");
    let mut login = (capabilities | 0x200 | 0x8000).to_le_bytes().to_vec();
    login.extend_from_slice(&[0; 28]);
    login.extend_from_slice(b"user\0\0");
    vec![
        (ToClient, packet(0, &greeting)),
        (ToServer, packet(1, &login)),
        (ToClient, packet(2, OK)),
    ]
}

fn postgres_login() -> Script {
    let startup = b"\0\0\0\x15\0\x03\0\0user\0me\0\0xxxx".to_vec();
    let welcome = [message(b'R', &[0; 4]), message(b'Z', b"I")].concat();
    vec![(ToServer, startup), (ToClient, welcome)]
}

fn messages(protocol: usize) -> Messages {
    match protocol {
        0 => Messages {
            login: mysql_login(0),
            request_and_answer: (packet(0, b"\x03DO 1"), packet(1, OK)),
            unanswered: Some(packet(0, b"\x19\x07\0\0\0")),
            idle_push: Some(packet(0, b"\xff\x47\x04#08S01too long at rest")),
            busy_push: None,
        },
        1 => Messages {
            login: postgres_login(),
            request_and_answer: (
                message(b'Q', b"DO 1\0"),
                [message(b'C', b"DO\0"), message(b'Z', b"I")].concat(),
            ),
            unanswered: None,
            idle_push: Some(message(b'N', b"M a notice\0\0")),
            busy_push: Some(message(b'A', b"\0\0\0\x01news\0\0")),
        },
        2 => Messages {
            login: vec![
                (ToServer, command(&["HELLO", "3"])),
                (ToClient, b"%1\r\n+proto\r\n:3\r\n".to_vec()),
            ],
            request_and_answer: (command(&["GET", "k"]), b"$1\r\nv\r\n".to_vec()),
            unanswered: Some(
                [
                    command(&["CLIENT", "REPLY", "SKIP"]),
                    command(&["SET", "k", "v"]),
                ]
                .concat(),
            ),
            idle_push: Some(b">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$1\r\nm\r\n".to_vec()),
            busy_push: Some(b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n".to_vec()),
        },
        _ => Messages {
            login: Vec::new(),
            request_and_answer: (
                b"get k\r\n".to_vec(),
                b"VALUE k 0 1\r\nv\r\nEND\r\n".to_vec(),
            ),
            unanswered: Some(b"set k 0 0 1 noreply\r\nv\r\n".to_vec()),
            idle_push: None,
            busy_push: None,
        },
    }
}

/// A part of a conversation. `cut`: where a pause cuts its bytes, in 16ths.
#[derive(Debug, Clone)]
enum Action {
    Request {
        cut: usize,
        has_push: bool,
    },
    /// `is_joined`: sent together with the next request.
    Unanswered {
        cut: usize,
        is_joined: bool,
    },
    Push {
        cut: usize,
    },
}

/// A conversation, and the expected times of its answered round trips: begun, sent, answered, ended.
struct Player {
    conversation: Conversation,
    now_ns: u64,
    round_trips: Vec<RoundTrip>,
    expected: Vec<(u64, u64, u64, u64)>,
    pushes: u64,
}

impl Player {
    /// Send the bytes in one or two pieces; returns the times of the first and the last piece.
    fn send(&mut self, direction: Direction, bytes: &[u8], cut: usize, salt: &Salt) -> (u64, u64) {
        let (first, rest) = bytes.split_at(bytes.len() * cut / 16);
        let mut times = Vec::new();
        for piece in [first, rest] {
            if !piece.is_empty() {
                self.now_ns += 1_000;
                times.push(self.now_ns);
                let round_trip = self
                    .conversation
                    .feed(direction, self.now_ns, piece, 0, salt);
                self.round_trips.extend(round_trip);
            }
        }
        (times[0], *times.last().expect("the bytes are not empty"))
    }

    /// Play an action. `joined`: unanswered requests to send together with the next request.
    fn play(&mut self, action: &Action, joined: &mut Vec<u8>, messages: &Messages, salt: &Salt) {
        match action {
            Action::Request { cut, has_push } => {
                let (request, answer) = &messages.request_and_answer;
                let flight = [joined.as_slice(), request].concat();
                let is_joined = !std::mem::take(joined).is_empty();
                let (begun, sent) =
                    self.send(ToServer, &flight, if is_joined { 0 } else { *cut }, salt);
                if let (true, Some(push)) = (*has_push, &messages.busy_push) {
                    self.send(ToClient, push, *cut, salt);
                    self.pushes += 1;
                }
                let (answered, ended) = self.send(ToClient, answer, 16 - cut, salt);
                self.expected.push((begun, sent, answered, ended));
            }
            Action::Unanswered { cut, is_joined } => {
                let Some(request) = &messages.unanswered else {
                    return;
                };
                if *is_joined {
                    joined.extend_from_slice(request);
                } else if joined.is_empty() {
                    self.send(ToServer, request, *cut, salt);
                }
            }
            Action::Push { cut } => {
                if let Some(push) = messages.idle_push.as_ref().filter(|_| joined.is_empty()) {
                    self.send(ToClient, push, *cut, salt);
                    self.pushes += 1;
                }
            }
        }
    }
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let cut = 0_usize..16;
    prop::collection::vec(
        prop_oneof![
            (cut.clone(), any::<bool>())
                .prop_map(|(cut, has_push)| Action::Request { cut, has_push }),
            (cut.clone(), any::<bool>())
                .prop_map(|(cut, is_joined)| Action::Unanswered { cut, is_joined }),
            cut.prop_map(|cut| Action::Push { cut }),
        ],
        1..20,
    )
}

fn times(round_trip: &RoundTrip) -> (u64, u64, u64, u64) {
    (
        round_trip.begun_ns,
        round_trip.sent_ns,
        round_trip.answered_ns,
        round_trip.ended_ns,
    )
}

proptest! {
    // [rec-1] [rec-3]
    /// A round trip begins with the first byte of a request that will be answered, and ends with its answer. Unanswered requests and
    /// unrequested messages change none of its times, however the bytes are cut.
    #[test]
    fn only_answered_requests_have_times(protocol in 0_usize..4, actions in actions()) {
        let (messages, salt) = (messages(protocol), Salt::default());
        let mut player = Player {
            conversation: Conversation::new(0, true), now_ns: 0, round_trips: Vec::new(), expected: Vec::new(), pushes: 0,
        };
        // A protocol is recognised by its first request.
        let first = Action::Request { cut: 0, has_push: false };
        for (direction, bytes) in &messages.login {
            player.send(*direction, bytes, 0, &salt);
        }
        let mut joined = Vec::new();
        for action in [first].iter().chain(&actions) {
            player.play(action, &mut joined, &messages, &salt);
        }
        let Player { mut conversation, mut round_trips, expected, pushes, .. } = player;
        round_trips.extend(conversation.close());
        let answered: Vec<_> = round_trips
            .iter()
            .filter(|round_trip| round_trip.phase == Operation && round_trip.ended_ns > round_trip.sent_ns)
            .map(times)
            .collect();
        prop_assert_eq!(answered, expected);
        let counted = conversation.take_counts().1.get("pushed by the server").copied().unwrap_or(0);
        prop_assert_eq!(counted, pushes);
        prop_assert!(round_trips.iter().all(|round_trip| !round_trip.failed));
    }
}

/// A round trip: statement or command, requests, rows, and nanoseconds from the request to the end of the answer.
type TripSummary = (String, u32, Option<u64>, u64);

/// A connection after a login; pieces are a microsecond apart.
struct Session {
    conversation: Conversation,
    salt: Salt,
    now_ns: u64,
    round_trips: Vec<RoundTrip>,
}

impl Session {
    fn new(login: &Script) -> Self {
        let mut session = Self {
            conversation: Conversation::new(0, true),
            salt: Salt::default(),
            now_ns: 0,
            round_trips: Vec::new(),
        };
        for (direction, bytes) in login {
            session.send(*direction, bytes, 0);
        }
        session
    }

    fn send(&mut self, direction: Direction, bytes: &[u8], skipped: usize) {
        self.now_ns += 1_000;
        let round_trip = self
            .conversation
            .feed(direction, self.now_ns, bytes, skipped, &self.salt);
        self.round_trips.extend(round_trip);
    }

    /// Send the bytes before `hole`, skip the hole, then send the bytes after it.
    fn send_with_hole(&mut self, direction: Direction, bytes: &[u8], hole: std::ops::Range<usize>) {
        self.send(direction, &bytes[..hole.start], hole.len());
        if hole.end < bytes.len() {
            self.send(direction, &bytes[hole.end..], 0);
        }
    }

    fn request(&mut self, request: &[u8], answer: &[u8]) {
        self.send(ToServer, request, 0);
        self.send(ToClient, answer, 0);
    }

    /// Returns the round trips, and the reasons for what is not known.
    fn end(mut self) -> (Vec<TripSummary>, Vec<&'static str>) {
        self.round_trips.extend(self.conversation.close());
        let round_trips = self.round_trips.iter().map(|round_trip| {
            let name = round_trip
                .digest
                .clone()
                .unwrap_or_else(|| round_trip.command.to_owned());
            (
                name,
                round_trip.requests,
                round_trip.rows,
                round_trip.ended_ns - round_trip.sent_ns,
            )
        });
        let unknown = self.conversation.take_counts().1.into_keys().collect();
        (round_trips.collect(), unknown)
    }
}

/// A confirmation of a subscription in RESP2 or RESP3.
fn confirmation(protocol: u8, word: &str, count: u8) -> Vec<u8> {
    let mark = if protocol == 2 { '*' } else { '>' };
    format!(
        "{mark}3\r\n${}\r\n{word}\r\n$4\r\nnews\r\n:{count}\r\n",
        word.len()
    )
    .into_bytes()
}

// [rec-3]
#[test]
fn a_subscriber_waits_only_for_confirmations() {
    for protocol in [2, 3] {
        let mark = if protocol == 2 { '*' } else { '>' };
        let text = format!("{mark}3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$2\r\nm1\r\n");
        let pong = if protocol == 2 {
            "*2\r\n$4\r\npong\r\n$0\r\n\r\n"
        } else {
            "+PONG\r\n"
        };
        let mut session = Session::new(&vec![]);
        session.request(
            &command(&["SUBSCRIBE", "news", "more"]),
            &confirmation(protocol, "subscribe", 1),
        );
        session.send(ToClient, &confirmation(protocol, "subscribe", 2), 0);
        session.send(ToClient, text.as_bytes(), 0);
        session.send(ToServer, &command(&["PING"]), 0);
        session.send(ToClient, text.as_bytes(), 0);
        session.send(ToClient, pong.as_bytes(), 0);
        session.send(ToClient, text.as_bytes(), 0);
        session.request(
            &command(&["UNSUBSCRIBE"]),
            &confirmation(protocol, "unsubscribe", 1),
        );
        session.send(ToClient, &confirmation(protocol, "unsubscribe", 0), 0);
        // Without subscriptions, an answer may have the form of a message.
        session.request(
            &command(&["LRANGE", "a", "0", "1"]),
            b"*2\r\n$7\r\nmessage\r\n$1\r\na\r\n",
        );
        let (round_trips, unknown) = session.end();
        let expected = [
            ("SUBSCRIBE", 2_000),
            ("PING", 2_000),
            ("UNSUBSCRIBE", 1_000),
            ("LRANGE", 1_000),
        ];
        let round_trips: Vec<(&str, u64)> = round_trips
            .iter()
            .map(|round_trip| (round_trip.0.as_str(), round_trip.3))
            .collect();
        assert_eq!(round_trips, expected, "RESP{protocol}");
        assert_eq!(unknown, ["pushed by the server"]);
    }
}

// [rec-3]
#[test]
fn streams_of_the_server_belong_to_no_round_trip() {
    let streams = [
        (
            vec![],
            &b"*1\r\n$5\r\nPSYNC\r\n"[..],
            "PSYNC",
            "replication stream",
        ),
        (
            mysql_login(0),
            b"\x01\0\0\0\x12",
            "binlog_dump",
            "replication stream",
        ),
        (
            vec![],
            b"watch fetchers\r\n",
            "watch",
            "stream of log lines",
        ),
    ];
    for (login, request, name, reason) in streams {
        let mut session = Session::new(&login);
        let answer: &[u8] = if name == "watch" {
            b"OK\r\n"
        } else {
            b"+OK\r\n"
        };
        session.request(request, answer);
        for _ in 0..9 {
            session.send(ToClient, b"+what comes\r\n", 0);
            session.send(ToServer, b"REPLCONF ACK 1\r\n", 0);
        }
        let (round_trips, unknown) = session.end();
        let last = round_trips.last().expect("the request is a round trip");
        assert_eq!((last.0.as_str(), last.3), (name, 1_000));
        assert_eq!(unknown, [reason]);
    }
    let mut session = Session::new(&vec![]);
    session.request(&command(&["MONITOR"]), b"+OK\r\n");
    session.send(ToClient, b"+1700000000.1 [0 a:1] \"GET\"\r\n", 0);
    session.send(ToServer, &command(&["RESET"]), 0);
    session.send(ToClient, b"+1700000000.2 [0 a:1] \"GET\"\r\n", 0);
    session.send(ToClient, b"+RESET\r\n", 0);
    let (round_trips, _) = session.end();
    let round_trips: Vec<(&str, u64)> = round_trips
        .iter()
        .map(|round_trip| (round_trip.0.as_str(), round_trip.3))
        .collect();
    assert_eq!(round_trips, [("MONITOR", 1_000), ("RESET", 2_000)]);
}

/// A query and its answer of `count` rows.
fn rows(is_mysql: bool, count: usize) -> (Vec<u8>, Vec<u8>) {
    let row = [b'x'; 40];
    if is_mysql {
        let mut answer = [
            packet(1, b"\x01"),
            packet(2, b"column"),
            packet(3, b"\xfe\0\0\x02\0"),
        ]
        .concat();
        for number in 0..count {
            answer.extend(packet(number as u8, &[&[40][..], &row].concat()));
        }
        answer.extend(packet(9, b"\xfe\0\0\x02\0"));
        return (packet(0, b"\x03SELECT a FROM t"), answer);
    }
    let mut answer = message(b'T', b"x");
    for _ in 0..count {
        answer.extend(message(b'D', &row));
    }
    answer.extend([message(b'C', b"SELECT 9\0"), message(b'Z', b"I")].concat());
    (message(b'Q', b"SELECT a FROM t\0"), answer)
}

proptest! {
    // [rec-8]
    /// If part of an answer was not seen, its number of rows is unknown, not too small.
    #[test]
    fn rows_are_exact_or_unknown(is_mysql in any::<bool>(), count in 0_usize..30, start in 0_usize..2_000, length in 0_usize..2_000) {
        let (request, answer) = rows(is_mysql, count);
        let start = start.min(answer.len());
        let hole = start..(start + length).min(answer.len());
        let is_complete = hole.is_empty();
        let mut session = Session::new(&if is_mysql { mysql_login(0) } else { postgres_login() });
        session.send(ToServer, &request, 0);
        session.send_with_hole(ToClient, &answer, hole);
        let rows = session.end().0.pop().expect("the query is a round trip").2;
        prop_assert!(rows == Some(count as u64) || (rows.is_none() && !is_complete), "{:?} of {}", rows, count);
    }

    // [rec-10]
    /// A statement with a hole has its digest and is counted once, wherever the hole ends.
    #[test]
    fn a_statement_with_a_hole_is_counted_once(protocol in 0_usize..3, start in 100_usize..3_000, tail in 0_usize..60) {
        let value = vec![b'y'; 4_000];
        let text = [&b"SELECT LENGTH('"[..], &value, b"')"].concat();
        let mut session = Session::new(&if protocol == 0 { mysql_login(0) } else { postgres_login() });
        let statement = match protocol {
            0 => packet(0, &[b"\x03", text.as_slice()].concat()),
            1 => message(b'Q', &[text.as_slice(), b"\0"].concat()),
            _ => {
                let bind = [b"\0\0\0\0\0\x01\0\0\x0f\xa0", value.as_slice(), b"\0\0"].concat();
                let parts = [
                    message(b'P', b"\0SELECT LENGTH($1)\0\0\0"), message(b'B', &bind),
                    message(b'E', b"\0\0\0\0\0"), message(b'S', b""),
                ];
                parts.concat()
            }
        };
        // The hole ends before the short messages at the end of a flight, which the tap keeps.
        let end = statement.len() - if protocol == 2 { tail.max(25) } else { tail };
        session.send_with_hole(ToServer, &statement, start..end);
        let answer = if protocol == 0 { packet(1, OK) } else { message(b'Z', b"I") };
        session.send(ToClient, &answer, 0);
        let (mut round_trips, unknown) = session.end();
        let last = round_trips.pop().expect("the statement is a round trip");
        prop_assert_eq!((last.0.as_str(), last.1), ("SELECT LENGTH(?)", 1));
        prop_assert!(unknown.contains(&"statement longer than kept"));
    }
}

/// A hole in the data of a long COPY is not reported as missed requests.
#[test]
fn a_hole_in_a_copy_misses_no_request() {
    let piece = message(b'd', &[b'x'; 500]);
    let mut session = Session::new(&postgres_login());
    session.request(
        &message(b'Q', b"COPY t FROM STDIN\0"),
        &message(b'G', b"\0\0\0"),
    );
    session.send_with_hole(ToServer, &piece.repeat(9), 700..2_000);
    session.send(
        ToClient,
        &[message(b'C', b"COPY 9\0"), message(b'Z', b"I")].concat(),
        0,
    );
    let (round_trips, unknown) = session.end();
    assert_eq!(
        round_trips.last().map(|round_trip| round_trip.0.as_str()),
        Some("copy data")
    );
    assert!(unknown.is_empty(), "{unknown:?}");
}

// [rec-9]
#[test]
fn rows_of_a_suspended_portal_are_counted() {
    let mut session = Session::new(&postgres_login());
    let rows = [
        message(b'D', b"x"),
        message(b'D', b"x"),
        message(b's', b""),
        message(b'Z', b"T"),
    ];
    let execute = [message(b'E', b"\0\0\0\0\x02"), message(b'S', b"")].concat();
    session.request(&execute, &rows.concat());
    assert_eq!(
        session
            .end()
            .0
            .pop()
            .expect("the execution is a round trip")
            .2,
        Some(2)
    );
}

// [rec-17]
#[test]
fn a_single_sync_and_an_empty_query_have_names() {
    let mut session = Session::new(&postgres_login());
    let ready = message(b'Z', b"I");
    session.request(&message(b'S', b""), &ready);
    let empty = [message(b'I', b""), ready.clone()].concat();
    session.request(&message(b'Q', b"\0"), &empty);
    let extended = [
        message(b'P', b"\0\0\0\0"),
        message(b'B', b"\0\0\0\0\0\0\0\0"),
        message(b'E', b"\0\0\0\0\0"),
        message(b'S', b""),
    ];
    session.request(&extended.concat(), &empty);
    let names: Vec<(String, u32)> = session
        .end()
        .0
        .into_iter()
        .map(|round_trip| (round_trip.0, round_trip.1))
        .collect();
    assert_eq!(
        names[1..],
        [
            ("sync".to_owned(), 1),
            ("empty query".to_owned(), 1),
            ("empty query".to_owned(), 1)
        ]
    );
}

// [rec-12]
#[test]
fn the_first_round_trips_inside_tls_may_be_login() {
    let mut session = Session::new(&vec![]);
    session.request(&[0, 0, 0, 8, 4, 210, 22, 47], b"S");
    session.request(b"\x16\x03\x01 hello", b"\x16\x03\x03 again");
    session.request(b"\x14\x03\x03 hello", b"\x16\x03\x03 hello");
    for _ in 0..4 {
        session.request(b"\x17\x03\x03 secret", b"\x17\x03\x03 secret");
    }
    session.round_trips.extend(session.conversation.close());
    let phases: Vec<Phase> = session
        .round_trips
        .iter()
        .map(|round_trip| round_trip.phase)
        .collect();
    assert_eq!(
        phases,
        [Connect, Connect, Connect, Hidden, Hidden, Hidden, Operation]
    );
    assert_eq!(session.conversation.summary().login_round_trips, 3);
    assert_eq!(
        session.conversation.take_counts().1["round trips inside TLS that may be login"],
        3
    );
}

// [cap-3]
#[test]
fn an_answer_whose_request_was_not_recorded_is_no_round_trip() {
    let cases = [
        (
            b"$3\r\npen\r\n".to_vec(),
            command(&["GET", "k"]),
            "GET",
            "redis",
        ),
        (
            packet(1, OK),
            packet(0, b"\x03SELECT 1 AS answer_to_everything"),
            "blind",
            "unknown",
        ),
        // The first byte of the length is that of a Redis command here, and that of TLS in the next case.
        (
            packet(1, OK),
            packet(0, &[b"\x03SELECT ", [b'1'; 34].as_slice()].concat()),
            "blind",
            "unknown",
        ),
        (
            packet(1, OK),
            packet(0, &[b"\x03SELECT ", [b'1'; 782].as_slice()].concat()),
            "blind",
            "unknown",
        ),
        (
            message(b'Z', b"I"),
            message(b'Q', b"SELECT 1\0"),
            "blind",
            "unknown",
        ),
        (
            b"END\r\n".to_vec(),
            b"get k\r\n".to_vec(),
            "get",
            "memcached",
        ),
    ];
    for (answer, request, name, protocol) in cases {
        let mut session = Session::new(&vec![]);
        session.conversation = Conversation::new(0, false);
        session.send(ToClient, &answer, 0);
        let mut tail = command(&["SET", "k", "value"]);
        tail.drain(..9);
        if protocol == "redis" {
            session.request(&tail, b"+OK\r\n");
        }
        session.request(&request, &answer);
        assert_eq!(session.conversation.summary().protocol, protocol);
        assert_eq!(session.conversation.summary().login_round_trips, 0);
        let round_trips = session.end().0;
        assert_eq!(
            round_trips.last().map(|round_trip| round_trip.0.as_str()),
            Some(name)
        );
        assert_eq!(round_trips.len(), if protocol == "redis" { 2 } else { 1 });
    }
}

// [cap-8]
#[test]
fn the_answer_shows_the_protocol_of_command_lines() {
    for (request, answer, protocol, name, requests) in [
        (
            &b"SET key0 value\r\n"[..],
            &b"+OK\r\n"[..],
            "redis",
            "SET",
            1,
        ),
        (
            b"PING\r\nPING\r\nPING\r\n",
            b"+PONG\r\n+PONG\r\n+PONG\r\n",
            "redis",
            "PING",
            3,
        ),
        (b"get key\r\n", b"$-1\r\n", "redis", "GET", 1),
        (b"get key\r\n", b"END\r\n", "memcached", "get", 1),
        (
            b"set key 0 0 5\r\nvalue\r\n",
            b"STORED\r\n",
            "memcached",
            "set",
            1,
        ),
        (b"hgetall key\r\n", b"*0\r\n", "redis", "HGETALL", 1),
        (b"mg key v\r\n", b"EN\r\n", "memcached", "mg", 1),
    ] {
        for cut in [0, 4, request.len()] {
            let mut session = Session::new(&vec![]);
            for piece in [&request[..cut], &request[cut..]] {
                if !piece.is_empty() {
                    session.send(ToServer, piece, 0);
                }
            }
            session.send(ToClient, answer, 0);
            assert_eq!(session.conversation.summary().protocol, protocol);
            let (round_trips, unknown) = session.end();
            assert_eq!(
                (round_trips[0].0.as_str(), round_trips[0].1),
                (name, requests)
            );
            assert_eq!((round_trips.len(), unknown.len()), (1, 0));
        }
    }
}

// [cap-7]
#[test]
fn statements_with_attributes_have_their_names() {
    let login = mysql_login(1 << 27);
    let mut session = Session::new(&login);
    for attributes in [&b"\0\x01"[..], b"\x01\x01\0\x01\xfe\0\x0btraceparent\x0200"] {
        let request = [b"\x03", attributes, b"SELECT name FROM item WHERE id = 1"].concat();
        session.request(&packet(0, &request), &packet(1, OK));
    }
    let (round_trips, unknown) = session.end();
    assert!(
        round_trips[2..]
            .iter()
            .all(|round_trip| round_trip.0 == "SELECT name FROM item WHERE id = ?")
    );
    assert_eq!((round_trips.len(), unknown.len()), (4, 0));
}
