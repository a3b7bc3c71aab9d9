//! The split of a compressed stream does not change its meaning; garbage is refused, never causes a panic and never expands beyond
//! bounds.

use howfar_wire::mysql::compress::{Algorithm, Codec, FRAME_HEADER_LEN, Unpacker};
use howfar_wire::mysql::{Malformed, frame};
use proptest::prelude::*;

fn algorithm() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        (1_u8..=9).prop_map(|level| Algorithm::Zlib { level }),
        (1_u8..=12).prop_map(|level| Algorithm::Zstd { level }),
    ]
}

/// Payloads, of which some are compressible.
fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..400),
        prop::collection::vec(0_u8..3, 0..4000),
    ]
}

/// The frames of a server's answer, cut anywhere and numbered from 1.
fn write_frames(codec: &mut Codec, packets: &[u8], cuts: &[usize]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = packets;
    let mut number = 1_u8;
    for &cut in cuts.iter().cycle() {
        let (part, tail) = rest.split_at(cut.min(rest.len()));
        codec.write_frame(number, part, &mut out);
        number = number.wrapping_add(1);
        rest = tail;
        if rest.is_empty() {
            break;
        }
    }
    out
}

fn unpack(codec: &mut Codec, stream: &[u8], sizes: &[usize]) -> Result<Vec<u8>, Malformed> {
    let mut unpacker = Unpacker::default();
    unpacker.expect_answers(1);
    let mut out = Vec::new();
    let mut rest = stream;
    let mut sizes = sizes.iter().cycle();
    while !rest.is_empty() {
        let size = sizes
            .next()
            .map_or(rest.len(), |&size| size.clamp(1, rest.len()));
        let (piece, tail) = rest.split_at(size);
        rest = tail;
        unpacker.feed(codec, piece, &mut out)?;
    }
    Ok(out)
}

proptest! {
    #[test]
    fn packed_commands_are_unpacked_in_any_split(
        algorithm in algorithm(),
        payloads in prop::collection::vec(payload(), 1..6),
        sizes in prop::collection::vec(1_usize..200, 1..10),
    ) {
        let mut codec = Codec::new(algorithm).expect("the level is valid");
        for payload in payloads {
            let mut packets = Vec::new();
            frame::write_packet(&mut packets, 0, &payload);
            let mut frames = Vec::new();
            codec.pack(&packets, &mut frames);
            prop_assert!(frames.len() <= packets.len() + FRAME_HEADER_LEN, "a frame adds at most its header");
            // The client's frames begin at 0, as a new unpacker expects.
            let mut unpacker = Unpacker::default();
            let mut out = Vec::new();
            let mut rest = frames.as_slice();
            let mut cycle = sizes.iter().cycle();
            while !rest.is_empty() {
                let size = cycle.next().map_or(1, |&size| size.min(rest.len()));
                unpacker.feed(&mut codec, &rest[..size], &mut out).expect("the frames are valid");
                rest = &rest[size..];
            }
            prop_assert_eq!(out, packets);
        }
    }

    #[test]
    fn a_split_does_not_change_the_packets(
        algorithm in algorithm(),
        payload in payload(),
        cuts in prop::collection::vec(1_usize..700, 1..6),
        sizes in prop::collection::vec(1_usize..300, 1..9),
    ) {
        let mut codec = Codec::new(algorithm).expect("the level is valid");
        let mut packets = Vec::new();
        frame::write_packet(&mut packets, 1, &payload);
        let stream = write_frames(&mut codec, &packets, &cuts);
        prop_assert_eq!(unpack(&mut codec, &stream, &sizes), Ok(packets));
    }

    #[test]
    fn garbage_never_panics_and_never_expands_beyond_bounds(
        algorithm in algorithm(),
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        sizes in prop::collection::vec(1_usize..50, 1..5),
        has_valid_header in any::<bool>(),
    ) {
        let mut bytes = bytes;
        if has_valid_header && bytes.len() > 3 {
            bytes[3] = 1;
            bytes[1] = 0;
            bytes[2] = 0;
        }
        let mut codec = Codec::new(algorithm).expect("the level is valid");
        if let Ok(out) = unpack(&mut codec, &bytes, &sizes) {
            prop_assert!(out.len() <= frame::MAX_PAYLOAD * (1 + bytes.len() / FRAME_HEADER_LEN));
        }
    }

    #[test]
    fn a_flipped_byte_never_panics(algorithm in algorithm(), payload in payload(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut codec = Codec::new(algorithm).expect("the level is valid");
        let mut packets = Vec::new();
        frame::write_packet(&mut packets, 1, &payload);
        let mut stream = write_frames(&mut codec, &packets, &[500]);
        let at = at.index(stream.len());
        stream[at] = to;
        drop(unpack(&mut codec, &stream, &[64]));
    }
}

/// No call produces more than its limit, even from few bytes: the rest is refused, not buffered.
#[test]
fn frames_that_expand_beyond_the_limit_are_refused() {
    for algorithm in [Algorithm::Zlib { level: 6 }, Algorithm::Zstd { level: 3 }] {
        let mut codec = Codec::new(algorithm).expect("the level is valid");
        let mut frames = Vec::new();
        for number in 1..=3 {
            codec.write_frame(number, &vec![0; frame::MAX_PAYLOAD], &mut frames);
        }
        let mut unpacker = Unpacker::default();
        unpacker.expect_answers(1);
        let mut out = Vec::new();
        let outcome = unpacker.feed(&mut codec, &frames, &mut out);
        assert!(matches!(outcome, Err(Malformed::Compressed(_))));
        assert!(out.len() <= 1 << 25);
    }
}
