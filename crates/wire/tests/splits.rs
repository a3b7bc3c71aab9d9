//! Answers of several statements mean the same in any split, plain and through compressed frames that are cut anywhere themselves.

use howfar_wire::mysql::answer::Done;
use howfar_wire::mysql::compress::{Algorithm, Codec, Unpacker};
use howfar_wire::mysql::row::Work;
use howfar_wire::mysql::{Answer, Malformed, Outcome, frame};
use proptest::prelude::*;

/// The result of one of several statements.
#[derive(Debug, Clone)]
enum Part {
    Affected(u8),
    Rows(Vec<Vec<u8>>),
}

fn part() -> impl Strategy<Value = Part> {
    let row = prop::collection::vec(any::<u8>(), 0..250);
    prop_oneof![
        (0_u8..3).prop_map(Part::Affected),
        prop::collection::vec(row, 0..6).prop_map(Part::Rows),
    ]
}

fn definition() -> Vec<u8> {
    let mut payload = b"\x03def\x06sbtest\x07sbtest1\x07sbtest1\x01c\x01c\x0c".to_vec();
    payload.extend_from_slice(&[45, 0, 0xE0, 1, 0, 0, 254, 1, 0, 0, 0, 0]);
    payload
}

/// The packets of all parts, numbered consecutively, and their sum.
fn answer(parts: &[Part]) -> (Vec<u8>, Done) {
    let (mut out, mut sequence, mut sum) = (Vec::new(), 1, Done::default());
    for (number, part) in parts.iter().enumerate() {
        // Status flags: autocommit, and whether another result follows.
        let status = 2 | if number + 1 < parts.len() { 8 } else { 0 };
        match part {
            Part::Affected(count) => {
                let ok = [0, *count, 0, status, 0, 0, 0];
                sequence = frame::write_packet(&mut out, sequence, &ok);
                sum.affected += u64::from(*count);
                sum.writes += u32::from(*count > 0);
                sum.others += u32::from(*count == 0);
            }
            Part::Rows(rows) => {
                sequence = frame::write_packet(&mut out, sequence, &[1]);
                sequence = frame::write_packet(&mut out, sequence, &definition());
                sequence = frame::write_packet(&mut out, sequence, b"\xFE\0\0\x02\0");
                for row in rows {
                    let row = [&[row.len() as u8], row.as_slice()].concat();
                    sequence = frame::write_packet(&mut out, sequence, &row);
                }
                let end = [0xFE, 0, 0, status, 0];
                sequence = frame::write_packet(&mut out, sequence, &end);
                sum.rows += rows.len() as u64;
                sum.reads += 1;
            }
        }
    }
    (out, sum)
}

/// `bytes` in pieces of the given sizes, repeated as needed.
fn cut<'a>(mut bytes: &'a [u8], sizes: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    sizes.iter().cycle().map_while(move |&size| {
        let (piece, rest) = bytes.split_at(size.min(bytes.len()));
        bytes = rest;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The outcome of the answer, which must come with the last of the pieces.
fn outcome<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    mut work: Work,
) -> Result<Option<Outcome>, Malformed> {
    let mut answer = Answer::new(false);
    answer.begin(false);
    let mut ended = None;
    for piece in pieces {
        assert!(ended.is_none(), "the answer ended early");
        ended = answer.feed(piece, &[], &mut work)?;
    }
    Ok(ended)
}

fn works() -> [Work; 3] {
    [Work::Skip, Work::touch(), Work::Decode]
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1_usize..300, 1..8)
}

proptest! {
    #[test]
    fn several_statements_in_any_split(parts in prop::collection::vec(part(), 1..7), sizes in sizes()) {
        let (stream, sum) = answer(&parts);
        for work in works() {
            prop_assert_eq!(outcome(cut(&stream, &sizes), work), Ok(Some(Outcome::Done(sum))));
        }
    }

    #[test]
    fn the_same_through_compressed_frames(
        parts in prop::collection::vec(part(), 1..7),
        frames in sizes(),
        sizes in sizes(),
        zstd in any::<bool>(),
    ) {
        let algorithm = if zstd { Algorithm::Zstd { level: 3 } } else { Algorithm::Zlib { level: 6 } };
        let mut codec = Codec::new(algorithm).expect("a codec");
        let (stream, sum) = answer(&parts);
        let mut framed = Vec::new();
        for (number, piece) in cut(&stream, &frames).enumerate() {
            codec.frame((number + 1) as u8, piece, &mut framed);
        }
        let mut unpacker = Unpacker::default();
        unpacker.sent(1);
        let mut unpacked = Vec::new();
        for piece in cut(&framed, &sizes) {
            let mut out = Vec::new();
            unpacker.feed(&mut codec, piece, &mut out).expect("well formed");
            unpacked.push(out);
        }
        for work in works() {
            let pieces = unpacked.iter().map(Vec::as_slice).filter(|piece| !piece.is_empty());
            prop_assert_eq!(outcome(pieces, work), Ok(Some(Outcome::Done(sum))));
        }
    }
}

/// However few bytes are sent, no call produces more than its limit: the rest is refused, not buffered.
#[test]
fn what_swells_is_refused() {
    for algorithm in [Algorithm::Zlib { level: 6 }, Algorithm::Zstd { level: 3 }] {
        let mut codec = Codec::new(algorithm).expect("a codec");
        let mut framed = Vec::new();
        for number in 1..=3 {
            codec.frame(number, &vec![0; frame::MAX_PAYLOAD], &mut framed);
        }
        let mut unpacker = Unpacker::default();
        unpacker.sent(1);
        let mut out = Vec::new();
        let refused = unpacker.feed(&mut codec, &framed, &mut out);
        assert!(matches!(refused, Err(Malformed::Compressed(_))));
        assert!(out.len() <= 1 << 25);
    }
}
