//! Captured packets, in any order, doubled or lost: bytes in order, each once, and what is missing counted.

use howfar_record::{Capture, Direction, Event, Link, Packet, Segments};
use proptest::prelude::*;

const FIN: u8 = 1;
const SYN: u8 = 2;
const ACK: u8 = 16;

fn packet(to_server: bool, sequence: u32, acknowledged: u32, flags: u8, payload: &[u8]) -> Packet {
    let (from, to) = if to_server {
        (40_000_u16, 3306_u16)
    } else {
        (3306, 40_000)
    };
    let mut tcp = Vec::new();
    tcp.extend_from_slice(&from.to_be_bytes());
    tcp.extend_from_slice(&to.to_be_bytes());
    tcp.extend_from_slice(&sequence.to_be_bytes());
    tcp.extend_from_slice(&acknowledged.to_be_bytes());
    tcp.extend_from_slice(&[0x50, flags, 0, 0, 0, 0, 0, 0]);
    tcp.extend_from_slice(payload);
    let mut bytes = vec![0x45, 0];
    bytes.extend_from_slice(&(20 + tcp.len() as u16).to_be_bytes());
    bytes.extend_from_slice(&[0, 0, 0, 0, 64, 6, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
    bytes.extend_from_slice(&tcp);
    Packet {
        at_ns: 1,
        link: Link::Raw,
        bytes,
    }
}

fn played(packets: &[Packet]) -> (Vec<u8>, Vec<u8>, u64, Vec<Event>) {
    let (mut segments, mut events) = (Segments::new(3306, None), Vec::new());
    for packet in packets {
        segments.take(packet, &mut events);
    }
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for event in &events {
        if let Event::Bytes {
            direction,
            bytes,
            skipped,
            ..
        } = event
        {
            let into = if *direction == Direction::ToServer {
                &mut up
            } else {
                &mut down
            };
            into.extend_from_slice(bytes);
            into.extend(std::iter::repeat_n(b'?', *skipped));
        }
    }
    (up, down, segments.missing, events)
}

/// A connection near the end of the sequence numbers; each piece of four bytes.
fn connection(pieces: u32) -> Vec<Packet> {
    let (start, other) = (u32::MAX - 20, 77);
    let mut packets = vec![
        packet(true, start, 0, SYN, b""),
        packet(false, other, start.wrapping_add(1), SYN | ACK, b""),
    ];
    for number in 0..pieces {
        let sequence = start.wrapping_add(1 + number * 4);
        packets.push(packet(
            true,
            sequence,
            other + 1,
            ACK,
            format!("{number:04}").as_bytes(),
        ));
    }
    packets
}

#[test]
fn what_was_lost_is_missing_as_soon_as_the_server_has_it() {
    let mut packets = connection(6);
    packets.remove(4);
    packets.push(packet(
        false,
        78,
        (u32::MAX - 20).wrapping_add(25),
        ACK,
        b"answer",
    ));
    let (up, down, missing, _) = played(&packets);
    assert_eq!(
        (up.as_slice(), down.as_slice(), missing),
        (
            b"00000001????000300040005".as_slice(),
            b"answer".as_slice(),
            4
        )
    );
}

/// Of an answer in three segments the first is lost, and sent again at 900.
#[test]
fn what_waited_for_a_segment_was_there_when_that_came() {
    let mut packets = connection(1);
    let acknowledged = (u32::MAX - 20).wrapping_add(5);
    for (at_ns, sequence, payload) in [(100, 82, b"bbbb"), (200, 86, b"cccc"), (900, 78, b"aaaa")] {
        packets.push(Packet {
            at_ns,
            ..packet(false, sequence, acknowledged, ACK, payload)
        });
    }
    let (_, down, missing, events) = played(&packets);
    assert_eq!((down.as_slice(), missing), (b"aaaabbbbcccc".as_slice(), 0));
    let times: Vec<u64> = events
        .iter()
        .filter_map(|event| match event {
            Event::Bytes {
                direction: Direction::ToClient,
                at_ns,
                ..
            } => Some(*at_ns),
            _ => None,
        })
        .collect();
    assert_eq!(times, [900, 900, 900]);
}

#[test]
fn a_connection_ends_when_both_sides_have() {
    let mut packets = connection(1);
    let sequence = (u32::MAX - 20).wrapping_add(5);
    packets.push(packet(true, sequence, 78, FIN | ACK, b""));
    packets.push(packet(
        false,
        78,
        sequence.wrapping_add(1),
        FIN | ACK,
        b"bye",
    ));
    packets.push(packet(true, sequence.wrapping_add(1), 82, ACK, b""));
    let (up, down, missing, events) = played(&packets);
    assert_eq!(
        (up.as_slice(), down.as_slice(), missing),
        (b"0000".as_slice(), b"bye".as_slice(), 0)
    );
    assert!(matches!(
        events.first(),
        Some(Event::Opened { is_new: true, .. })
    ));
    assert!(matches!(events.last(), Some(Event::Closed { .. })));
    assert_eq!(
        events
            .iter()
            .filter(|event| matches!(event, Event::Opened { .. }))
            .count(),
        1
    );
}

/// A file of one packet in either format.
fn files(bytes: &[u8], number: fn(u32) -> [u8; 4], half: fn(u16) -> [u8; 2]) -> [Vec<u8>; 2] {
    let length = bytes.len() as u32;
    let numbers = |all: &[u32]| all.iter().flat_map(|&one| number(one)).collect::<Vec<u8>>();
    let mut pcap = numbers(&[0xA1B2_3C4D, 0, 0, 0, 65_535, 101, 2, 3, length, length]);
    pcap.extend_from_slice(bytes);
    let mut pcapng = numbers(&[0x0A0D_0D0A, 28, 0x1A2B_3C4D, 0, 0, 0, 28, 1, 28]);
    pcapng.extend([half(101), half(0)].concat());
    pcapng.extend(number(0));
    pcapng.extend([half(9), half(1)].concat());
    pcapng.extend([9, 0, 0, 0]);
    let padded = length.next_multiple_of(4);
    pcapng.extend(numbers(&[
        28,
        6,
        32 + padded,
        0,
        0,
        2_000_000_003,
        length,
        length,
    ]));
    pcapng.extend_from_slice(bytes);
    pcapng.resize(pcapng.len() + (padded - length) as usize, 0);
    pcapng.extend(number(32 + padded));
    [pcap, pcapng]
}

#[test]
fn files_of_both_kinds_and_both_ends_are_read() {
    let bytes = packet(true, 1, 0, ACK, b"x").bytes;
    let little = files(&bytes, u32::to_le_bytes, u16::to_le_bytes);
    let big = files(&bytes, u32::to_be_bytes, u16::to_be_bytes);
    for file in little.into_iter().chain(big) {
        let mut capture = Capture::open(file.as_slice()).expect("a capture");
        let found = capture.packet().expect("readable").expect("a packet");
        assert_eq!(
            (found.at_ns, found.link, &found.bytes),
            (2_000_000_003, Link::Raw, &bytes)
        );
        assert!(capture.packet().expect("readable").is_none());
    }
    assert!(Capture::open(b"no capture at all".as_slice()).is_err());
}

proptest! {
    #[test]
    fn order_and_repeats_do_not_matter(order in prop::collection::vec(2_usize..22, 0..40)) {
        let packets = connection(20);
        let mut mixed: Vec<Packet> = Vec::new();
        let copy = |at: usize| Packet { at_ns: 1, link: Link::Raw, bytes: packets[at].bytes.clone() };
        mixed.extend([copy(0), copy(1)]);
        mixed.extend(order.iter().map(|&at| copy(at)));
        mixed.extend((2..22).map(copy));
        let expected = (0..20).map(|number| format!("{number:04}")).collect::<Vec<_>>().concat();
        let (up, _, missing, _) = played(&mixed);
        prop_assert_eq!((String::from_utf8_lossy(&up).into_owned(), missing), (expected, 0));
    }

    #[test]
    fn any_bytes_are_packets_or_not(all in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..10), which in 0..5) {
        let (mut segments, mut events) = (Segments::new(3306, None), Vec::new());
        let link = [Link::Null, Link::Ethernet, Link::Raw, Link::Cooked, Link::Cooked2][which as usize];
        for bytes in &all {
            segments.take(&Packet { at_ns: 1, link, bytes: bytes.clone() }, &mut events);
            if let Ok(mut capture) = Capture::open(bytes.as_slice()) {
                while let Ok(Some(_)) = capture.packet() {}
            }
        }
    }
}
