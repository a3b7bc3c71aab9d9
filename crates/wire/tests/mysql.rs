//! Any split of a stream means the same; garbage is refused and never causes a panic.

use howfar_wire::mysql::answer::Done;
use howfar_wire::mysql::handshake::{Account, Greeting};
use howfar_wire::mysql::row::Work;
use howfar_wire::mysql::{Answer, Framer, Malformed, Outcome, command, frame};
use proptest::prelude::*;

/// Feed `stream` in pieces of the given sizes (repeated as needed).
fn outcome(
    stream: &[u8],
    sizes: &[usize],
    caches: bool,
    mut work: Work,
) -> Result<Option<Outcome>, Malformed> {
    let mut answer = Answer::new(caches);
    answer.begin(true);
    let mut rest = stream;
    let mut sizes = sizes.iter().cycle();
    while !rest.is_empty() {
        let size = sizes
            .next()
            .map_or(rest.len(), |&size| size.clamp(1, rest.len()));
        let (piece, tail) = rest.split_at(size);
        rest = tail;
        if let Some(outcome) = answer.feed(piece, &[254], &mut work)? {
            assert!(rest.is_empty(), "the answer ended early");
            return Ok(Some(outcome));
        }
    }
    Ok(None)
}

fn definition() -> Vec<u8> {
    let mut payload = b"\x03def\x06sbtest\x07sbtest1\x07sbtest1\x01c\x01c\x0c".to_vec();
    payload.extend_from_slice(&[45, 0, 0xE0, 1, 0, 0, 254, 1, 0, 0, 0, 0]);
    payload
}

fn result_set(rows: &[Vec<u8>], with_definitions: bool, caches: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let count: &[u8] = if caches {
        &[1, u8::from(with_definitions)]
    } else {
        &[1]
    };
    let mut sequence = frame::write_packet(&mut out, 1, count);
    if with_definitions {
        sequence = frame::write_packet(&mut out, sequence, &definition());
    }
    sequence = frame::write_packet(&mut out, sequence, b"\xFE\0\0\x02\0");
    for row in rows {
        let mut payload = vec![0, 0];
        if row.len() < 251 {
            payload.push(row.len() as u8);
        } else {
            payload.push(0xFC);
            payload.extend_from_slice(&(row.len() as u16).to_le_bytes());
        }
        payload.extend_from_slice(row);
        sequence = frame::write_packet(&mut out, sequence, &payload);
    }
    frame::write_packet(&mut out, sequence, b"\xFE\0\0\x02\0");
    out
}

/// One result with columns and this number of `rows`.
fn read(rows: u64) -> Outcome {
    Outcome::Done(Done {
        rows,
        reads: 1,
        ..Done::default()
    })
}

fn works() -> [Work; 3] {
    [Work::Skip, Work::touch(), Work::Decode]
}

proptest! {
    #[test]
    fn any_split_counts_the_same_rows(
        rows in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..400), 0..12),
        sizes in prop::collection::vec(1_usize..200, 1..20),
        caches in any::<bool>(),
        defined in any::<bool>(),
    ) {
        let stream = result_set(&rows, defined || !caches, caches);
        for work in works() {
            prop_assert_eq!(outcome(&stream, &sizes, caches, work), Ok(Some(read(rows.len() as u64))));
        }
    }

    #[test]
    fn a_truncated_answer_never_ends(rows in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6), cut in any::<prop::sample::Index>()) {
        let stream = result_set(&rows, true, true);
        let cut = cut.index(stream.len());
        for work in works() {
            prop_assert_eq!(outcome(&stream[..cut], &[7], true, work), Ok(None));
        }
    }

    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..600), sizes in prop::collection::vec(1_usize..50, 1..5), caches in any::<bool>()) {
        for work in works() {
            drop(outcome(&bytes, &sizes, caches, work));
        }
        drop(Greeting::parse(&bytes));
        let mut framer = Framer::new(1000);
        let mut rest = bytes.as_slice();
        while let Ok(Some(_)) = framer.next(&mut rest) {}
    }

    #[test]
    fn a_flipped_byte_never_panics(rows in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut stream = result_set(&rows, true, true);
        let at = at.index(stream.len());
        stream[at] = to;
        for work in works() {
            let mut answer = Answer::new(true);
            answer.begin(true);
            let mut work = work;
            drop(answer.feed(&stream, &[254], &mut work));
        }
    }

    #[test]
    fn framing_round_trips(payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..8), sizes in prop::collection::vec(1_usize..60, 1..9)) {
        let mut stream = Vec::new();
        let mut sequence = 0;
        for payload in &payloads {
            sequence = frame::write_packet(&mut stream, sequence, payload);
        }
        let mut framer = Framer::new(1 << 20);
        let mut got = Vec::new();
        let mut rest = stream.as_slice();
        for &size in sizes.iter().cycle() {
            if rest.is_empty() { break; }
            let (mut piece, tail) = rest.split_at(size.min(rest.len()));
            rest = tail;
            while let Some(payload) = framer.next(&mut piece).expect("well formed") {
                got.push(payload.to_vec());
            }
        }
        prop_assert_eq!(got, payloads);
        prop_assert!(framer.is_idle());
    }

    #[test]
    fn execute_carries_its_values(statement in any::<u32>(), values in prop::collection::vec(any::<i64>(), 0..40), first in any::<bool>()) {
        let mut packet = vec![0xAA];
        let mut execute = command::Execute::begin(&mut packet, statement, first, values.len());
        for value in &values {
            execute.integer(*value);
        }
        execute.end();
        let packet = &packet[1..];
        prop_assert_eq!(packet.len() - frame::HEADER, frame::header([packet[0], packet[1], packet[2], packet[3]]).0);
        prop_assert_eq!(&packet[5..9], statement.to_le_bytes());
        let tail = &packet[packet.len() - 8 * values.len()..];
        for (at, value) in values.iter().enumerate() {
            prop_assert_eq!(&tail[8 * at..8 * at + 8], value.to_le_bytes());
        }
    }
}

#[test]
fn a_payload_of_16_mib_goes_in_several_packets() {
    for extra in [0, 1, 77] {
        let payload = vec![7; frame::MAX_PAYLOAD + extra];
        let mut stream = Vec::new();
        assert_eq!(frame::write_packet(&mut stream, 0, &payload), 2);
        assert_eq!(stream.len(), payload.len() + 2 * frame::HEADER);
        let mut framer = Framer::new(1 << 25);
        let mut rest = stream.as_slice();
        assert_eq!(
            framer
                .next(&mut rest)
                .expect("well formed")
                .expect("whole")
                .len(),
            payload.len()
        );
        let mut small = Framer::new(1 << 16);
        assert!(matches!(
            small.next(&mut stream.as_slice()),
            Err(Malformed::TooLong { .. })
        ));
    }
}

#[test]
fn a_row_of_16_mib_is_one_row() {
    let mut stream = Vec::new();
    let mut sequence = frame::write_packet(&mut stream, 1, &[1, 0]);
    sequence = frame::write_packet(&mut stream, sequence, b"\xFE\0\0\x02\0");
    sequence = frame::write_packet(&mut stream, sequence, &vec![0; frame::MAX_PAYLOAD + 9]);
    frame::write_packet(&mut stream, sequence, b"\xFE\0\0\x02\0");
    for work in [Work::Skip, Work::touch()] {
        assert_eq!(outcome(&stream, &[4096, 3], true, work), Ok(Some(read(1))));
    }
}

#[test]
fn errors_and_trailing_bytes_are_seen() {
    let mut stream = Vec::new();
    frame::write_packet(&mut stream, 1, b"\xFF\xBD\x04#40001Deadlock found");
    let Ok(Some(Outcome::Failed(error))) = outcome(&stream, &[3], true, Work::Skip) else {
        panic!("an error")
    };
    assert_eq!(
        (error.code, error.state.as_str(), error.message.as_str()),
        (1213.into(), "40001", "Deadlock found")
    );
    stream.push(0);
    assert!(outcome(&stream, &[4096], true, Work::Skip).is_err());
    let mut wrong_number = Vec::new();
    frame::write_packet(&mut wrong_number, 2, b"\0\0\0\x02\0\0\0");
    assert_eq!(
        outcome(&wrong_number, &[1], true, Work::Skip),
        Err(Malformed::Sequence {
            expected: 1,
            got: 2
        })
    );
}

#[test]
fn a_greeting_is_read_and_answered_without_tls_or_compression() {
    let mut payload = b"\x0a5.5.5-10.11.19-MariaDB\0\x05\0\0\0FeL.>-g?\0".to_vec();
    payload.extend_from_slice(b"\xfe\xff\x08\x02\0\xff\x81\x15\0\0\0\0\0\0\x1d\0\0\0Ct?yfs02J^zj\0mysql_native_password\0");
    let greeting = Greeting::parse(&payload).expect("a greeting");
    assert_eq!(greeting.version, "5.5.5-10.11.19-MariaDB");
    assert_eq!((greeting.connection, greeting.extended), (5, 0x1D));
    assert_eq!(&greeting.scramble, b"FeL.>-g?Ct?yfs02J^zj");
    assert_eq!(greeting.plugin, "mysql_native_password");
    let session = greeting.session();
    assert!(session.caches_metadata());
    let (tls, compression, zstd) = (1 << 11, 1 << 5, 1 << 26);
    assert_eq!(session.capabilities & (tls | compression | zstd), 0);
    let account = Account {
        user: "root",
        password: "hidden",
        database: "sbtest",
    };
    let mut out = Vec::new();
    assert_eq!(
        session.login(&mut out, 1, &account, "mysql_native_password", &[]),
        2
    );
    assert!(out.ends_with(b"root\0\0sbtest\0mysql_native_password\0"));
    assert!(!format!("{account:?}").contains("hidden"));
    for cut in 0..payload.len() - 22 {
        assert!(Greeting::parse(&payload[..cut]).is_err());
    }
}
