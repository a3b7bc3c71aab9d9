//! The decoder gives the same result however its input is split, compressed or not, and never panics on garbage.

use howfar_wire::mysql::answer::AnswerCounts;
use howfar_wire::mysql::compress::{Algorithm, Codec, Unpacker};
use howfar_wire::mysql::handshake::{Account, Greeting};
use howfar_wire::mysql::row::RowHandling;
use howfar_wire::mysql::{Answer, Framer, Malformed, Outcome, command, frame};
use proptest::prelude::*;

/// Split `bytes` into pieces whose lengths cycle through `sizes`.
fn split<'a>(mut bytes: &'a [u8], sizes: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    sizes.iter().cycle().map_while(move |&size| {
        let (piece, rest) = bytes.split_at(size.min(bytes.len()));
        bytes = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Feed the pieces to `answer`; its outcome, if it is complete. No piece may follow the one that completes it.
fn answer_outcome<'a>(
    mut answer: Answer,
    types: &[u8],
    pieces: impl Iterator<Item = &'a [u8]>,
    mut handling: RowHandling,
) -> Result<Option<Outcome>, Malformed> {
    let mut outcome = None;
    for piece in pieces {
        assert!(outcome.is_none(), "no piece follows the end of the answer");
        outcome = answer.feed(piece, types, &mut handling)?;
    }
    Ok(outcome)
}

/// Decode an answer with binary rows of one column, fed in pieces whose lengths cycle through `sizes`.
fn binary_outcome(
    stream: &[u8],
    sizes: &[usize],
    caches_metadata: bool,
    handling: RowHandling,
) -> Result<Option<Outcome>, Malformed> {
    let mut answer = Answer::new(caches_metadata);
    answer.begin(true);
    answer_outcome(answer, &[254], split(stream, sizes), handling)
}

fn column_definition() -> Vec<u8> {
    let mut payload = b"\x03def\x06sbtest\x07sbtest1\x07sbtest1\x01c\x01c\x0c".to_vec();
    payload.extend_from_slice(&[45, 0, 0xE0, 1, 0, 0, 254, 1, 0, 0, 0, 0]);
    payload
}

fn result_set(rows: &[Vec<u8>], has_definitions: bool, caches_metadata: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let header: &[u8] = if caches_metadata {
        &[1, u8::from(has_definitions)]
    } else {
        &[1]
    };
    let mut sequence = frame::write_packet(&mut out, 1, header);
    if has_definitions {
        sequence = frame::write_packet(&mut out, sequence, &column_definition());
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

/// The outcome of one result set with this number of rows.
fn result_set_outcome(rows: u64) -> Outcome {
    Outcome::Done(AnswerCounts {
        rows,
        reads: 1,
        ..AnswerCounts::default()
    })
}

fn all_row_handlings() -> [RowHandling; 3] {
    [RowHandling::Skip, RowHandling::touch(), RowHandling::Decode]
}

proptest! {
    #[test]
    fn splitting_does_not_change_the_number_of_rows(
        rows in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..400), 0..12),
        sizes in prop::collection::vec(1_usize..200, 1..20),
        caches_metadata in any::<bool>(),
        has_definitions in any::<bool>(),
    ) {
        let stream = result_set(&rows, has_definitions || !caches_metadata, caches_metadata);
        for handling in all_row_handlings() {
            prop_assert_eq!(binary_outcome(&stream, &sizes, caches_metadata, handling), Ok(Some(result_set_outcome(rows.len() as u64))));
        }
    }

    #[test]
    fn a_truncated_answer_never_ends(rows in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6), cut in any::<prop::sample::Index>()) {
        let stream = result_set(&rows, true, true);
        let cut = cut.index(stream.len());
        for handling in all_row_handlings() {
            prop_assert_eq!(binary_outcome(&stream[..cut], &[7], true, handling), Ok(None));
        }
    }

    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..600), sizes in prop::collection::vec(1_usize..50, 1..5), caches_metadata in any::<bool>()) {
        for handling in all_row_handlings() {
            drop(binary_outcome(&bytes, &sizes, caches_metadata, handling));
        }
        drop(Greeting::parse(&bytes));
        let mut framer = Framer::new(1000);
        let mut rest = bytes.as_slice();
        while let Ok(Some(_)) = framer.next(&mut rest) {}
    }

    #[test]
    fn a_changed_byte_never_causes_a_panic(rows in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut stream = result_set(&rows, true, true);
        let at = at.index(stream.len());
        stream[at] = to;
        for handling in all_row_handlings() {
            drop(binary_outcome(&stream, &[stream.len()], true, handling));
        }
    }

    #[test]
    fn written_packets_are_read_back(payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..8), sizes in prop::collection::vec(1_usize..60, 1..9)) {
        let mut stream = Vec::new();
        let mut sequence = 0;
        for payload in &payloads {
            sequence = frame::write_packet(&mut stream, sequence, payload);
        }
        let mut framer = Framer::new(1 << 20);
        let mut found = Vec::new();
        for mut piece in split(&stream, &sizes) {
            while let Some(payload) = framer.next(&mut piece).expect("the packets are valid") {
                found.push(payload.to_vec());
            }
        }
        prop_assert_eq!(found, payloads);
        prop_assert!(framer.is_idle());
    }

    #[test]
    fn an_execute_command_contains_its_values(statement in any::<u32>(), values in prop::collection::vec(any::<i64>(), 0..40), first in any::<bool>()) {
        let mut packet = vec![0xAA];
        let mut execute = command::Execute::begin(&mut packet, statement, first, values.len());
        for value in &values {
            execute.integer(*value);
        }
        execute.end();
        let packet = &packet[1..];
        prop_assert_eq!(packet.len() - frame::HEADER_LEN, frame::parse_header([packet[0], packet[1], packet[2], packet[3]]).0);
        prop_assert_eq!(&packet[5..9], statement.to_le_bytes());
        let tail = &packet[packet.len() - 8 * values.len()..];
        for (at, value) in values.iter().enumerate() {
            prop_assert_eq!(&tail[8 * at..8 * at + 8], value.to_le_bytes());
        }
    }
}

#[test]
fn a_payload_of_16_mib_is_split_over_packets() {
    for extra in [0, 1, 77] {
        let payload = vec![7; frame::MAX_PAYLOAD + extra];
        let mut stream = Vec::new();
        assert_eq!(frame::write_packet(&mut stream, 0, &payload), 2);
        assert_eq!(stream.len(), payload.len() + 2 * frame::HEADER_LEN);
        let mut framer = Framer::new(1 << 25);
        let mut rest = stream.as_slice();
        assert_eq!(
            framer
                .next(&mut rest)
                .expect("the packets are valid")
                .expect("the payload is complete")
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
    for handling in [RowHandling::Skip, RowHandling::touch()] {
        assert_eq!(
            binary_outcome(&stream, &[4096, 3], true, handling),
            Ok(Some(result_set_outcome(1)))
        );
    }
}

#[test]
fn errors_are_returned_and_trailing_bytes_refused() {
    let mut stream = Vec::new();
    frame::write_packet(&mut stream, 1, b"\xFF\xBD\x04#40001Deadlock found");
    let Ok(Some(Outcome::Failed(error))) = binary_outcome(&stream, &[3], true, RowHandling::Skip)
    else {
        panic!("the outcome is an error")
    };
    assert_eq!(
        (error.code, error.state.as_str(), error.message.as_str()),
        (1213.into(), "40001", "Deadlock found")
    );
    stream.push(0);
    assert!(binary_outcome(&stream, &[4096], true, RowHandling::Skip).is_err());
    let mut wrong_sequence = Vec::new();
    frame::write_packet(&mut wrong_sequence, 2, b"\0\0\0\x02\0\0\0");
    assert_eq!(
        binary_outcome(&wrong_sequence, &[1], true, RowHandling::Skip),
        Err(Malformed::Sequence {
            expected: 1,
            received: 2
        })
    );
}

#[test]
fn a_greeting_is_parsed_and_answered_without_tls_or_compression() {
    let mut payload = b"\x0a5.5.5-10.11.19-MariaDB\0\x05\0\0\0FeL.>-g?\0".to_vec();
    payload.extend_from_slice(b"\xfe\xff\x08\x02\0\xff\x81\x15\0\0\0\0\0\0\x1d\0\0\0Ct?yfs02J^zj\0mysql_native_password\0");
    let greeting = Greeting::parse(&payload).expect("the greeting is valid");
    assert_eq!(greeting.version, "5.5.5-10.11.19-MariaDB");
    assert_eq!(
        (greeting.connection_id, greeting.extended_capabilities),
        (5, 0x1D)
    );
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

/// The result of one statement of a query with several.
#[derive(Debug, Clone)]
enum StatementResult {
    Affected(u8),
    Rows(Vec<Vec<u8>>),
}

fn statement_results() -> impl Strategy<Value = Vec<StatementResult>> {
    let row = prop::collection::vec(any::<u8>(), 0..250);
    let result = prop_oneof![
        (0_u8..3).prop_map(StatementResult::Affected),
        prop::collection::vec(row, 0..6).prop_map(StatementResult::Rows),
    ];
    prop::collection::vec(result, 1..7)
}

/// All results as consecutively numbered packets, and the counts that are expected of them.
fn write_results(results: &[StatementResult]) -> (Vec<u8>, AnswerCounts) {
    let (mut out, mut sequence, mut counts) = (Vec::new(), 1, AnswerCounts::default());
    for (number, result) in results.iter().enumerate() {
        // Status flags: autocommit, and whether another result follows.
        let status = 2 | if number + 1 < results.len() { 8 } else { 0 };
        match result {
            StatementResult::Affected(count) => {
                let ok = [0, *count, 0, status, 0, 0, 0];
                sequence = frame::write_packet(&mut out, sequence, &ok);
                counts.affected += u64::from(*count);
                counts.writes += u32::from(*count > 0);
                counts.others += u32::from(*count == 0);
            }
            StatementResult::Rows(rows) => {
                sequence = frame::write_packet(&mut out, sequence, &[1]);
                sequence = frame::write_packet(&mut out, sequence, &column_definition());
                sequence = frame::write_packet(&mut out, sequence, b"\xFE\0\0\x02\0");
                for row in rows {
                    let row = [&[row.len() as u8], row.as_slice()].concat();
                    sequence = frame::write_packet(&mut out, sequence, &row);
                }
                let end = [0xFE, 0, 0, status, 0];
                sequence = frame::write_packet(&mut out, sequence, &end);
                counts.rows += rows.len() as u64;
                counts.reads += 1;
            }
        }
    }
    (out, counts)
}

/// Decode an answer with rows in the text protocol.
fn text_outcome<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    handling: RowHandling,
) -> Result<Option<Outcome>, Malformed> {
    let mut answer = Answer::new(false);
    answer.begin(false);
    answer_outcome(answer, &[], pieces, handling)
}

fn piece_sizes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1_usize..300, 1..8)
}

proptest! {
    #[test]
    fn splitting_several_results_does_not_change_their_counts(results in statement_results(), sizes in piece_sizes()) {
        let (stream, counts) = write_results(&results);
        for handling in all_row_handlings() {
            prop_assert_eq!(text_outcome(split(&stream, &sizes), handling), Ok(Some(Outcome::Done(counts))));
        }
    }

    #[test]
    fn compressed_frames_do_not_change_the_counts(
        results in statement_results(),
        frame_sizes in piece_sizes(),
        sizes in piece_sizes(),
        is_zstd in any::<bool>(),
    ) {
        let algorithm = if is_zstd { Algorithm::Zstd { level: 3 } } else { Algorithm::Zlib { level: 6 } };
        let mut codec = Codec::new(algorithm).expect("the level is valid");
        let (stream, counts) = write_results(&results);
        let mut frames = Vec::new();
        for (number, piece) in split(&stream, &frame_sizes).enumerate() {
            codec.write_frame((number + 1) as u8, piece, &mut frames);
        }
        let mut unpacker = Unpacker::default();
        unpacker.expect_answers(1);
        let mut unpacked = Vec::new();
        for piece in split(&frames, &sizes) {
            let mut out = Vec::new();
            unpacker.feed(&mut codec, piece, &mut out).expect("the frames are valid");
            unpacked.push(out);
        }
        for handling in all_row_handlings() {
            let pieces = unpacked.iter().map(Vec::as_slice).filter(|piece| !piece.is_empty());
            prop_assert_eq!(text_outcome(pieces, handling), Ok(Some(Outcome::Done(counts))));
        }
    }
}
