//! Compressed streams mean the same in any split; garbage is refused, never causes a panic and never expands beyond bounds.

use howfar_wire::mysql::compress::{Algorithm, Codec, HEAD, Unpacker};
use howfar_wire::mysql::frame;
use proptest::prelude::*;

fn algorithm() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        (1_u8..=9).prop_map(|level| Algorithm::Zlib { level }),
        (1_u8..=12).prop_map(|level| Algorithm::Zstd { level }),
    ]
}

/// Payloads of which some compress and some do not.
fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..400),
        prop::collection::vec(0_u8..3, 0..4000),
    ]
}

/// An answer as a server frames it: cut anywhere, frames numbered from 1.
fn answer(codec: &mut Codec, packets: &[u8], cuts: &[usize]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = packets;
    let mut number = 1_u8;
    for &cut in cuts.iter().cycle() {
        let (part, tail) = rest.split_at(cut.min(rest.len()));
        codec.frame(number, part, &mut out);
        number = number.wrapping_add(1);
        rest = tail;
        if rest.is_empty() {
            break;
        }
    }
    out
}

fn unpack(
    codec: &mut Codec,
    stream: &[u8],
    sizes: &[usize],
) -> Result<Vec<u8>, howfar_wire::mysql::Malformed> {
    let mut unpacker = Unpacker::default();
    unpacker.sent(1);
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
    fn packing_round_trips_in_any_split(
        algorithm in algorithm(),
        payloads in prop::collection::vec(payload(), 1..6),
        sizes in prop::collection::vec(1_usize..200, 1..10),
    ) {
        let mut codec = Codec::new(algorithm).expect("a codec");
        for payload in payloads {
            let mut packets = Vec::new();
            frame::write_packet(&mut packets, 0, &payload);
            let mut framed = Vec::new();
            codec.pack(&packets, &mut framed);
            prop_assert!(framed.len() <= packets.len() + HEAD, "never more than the head");
            // The client's frames begin at 0, which is what a new unpacker expects.
            let mut unpacker = Unpacker::default();
            let mut out = Vec::new();
            let mut rest = framed.as_slice();
            let mut cycle = sizes.iter().cycle();
            while !rest.is_empty() {
                let size = cycle.next().map_or(1, |&size| size.min(rest.len()));
                unpacker.feed(&mut codec, &rest[..size], &mut out).expect("own frames");
                rest = &rest[size..];
            }
            prop_assert_eq!(out, packets);
        }
    }

    #[test]
    fn a_split_changes_nothing(
        algorithm in algorithm(),
        payload in payload(),
        cuts in prop::collection::vec(1_usize..700, 1..6),
        sizes in prop::collection::vec(1_usize..300, 1..9),
    ) {
        let mut codec = Codec::new(algorithm).expect("a codec");
        let mut packets = Vec::new();
        frame::write_packet(&mut packets, 1, &payload);
        let stream = answer(&mut codec, &packets, &cuts);
        prop_assert_eq!(unpack(&mut codec, &stream, &sizes), Ok(packets));
    }

    #[test]
    fn garbage_never_panics_and_never_swells(
        algorithm in algorithm(),
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        sizes in prop::collection::vec(1_usize..50, 1..5),
        numbered in any::<bool>(),
    ) {
        let mut bytes = bytes;
        if numbered && bytes.len() > 3 {
            bytes[3] = 1;
            bytes[1] = 0;
            bytes[2] = 0;
        }
        let mut codec = Codec::new(algorithm).expect("a codec");
        if let Ok(out) = unpack(&mut codec, &bytes, &sizes) {
            prop_assert!(out.len() <= frame::MAX_PAYLOAD * (1 + bytes.len() / HEAD));
        }
    }

    #[test]
    fn a_flipped_byte_never_panics(algorithm in algorithm(), payload in payload(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut codec = Codec::new(algorithm).expect("a codec");
        let mut packets = Vec::new();
        frame::write_packet(&mut packets, 1, &payload);
        let mut stream = answer(&mut codec, &packets, &[500]);
        let at = at.index(stream.len());
        stream[at] = to;
        drop(unpack(&mut codec, &stream, &[64]));
    }
}
