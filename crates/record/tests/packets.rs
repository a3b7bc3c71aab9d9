//! Captured packets, in any order, duplicated or lost, give bytes in order, each once, and a count of those that are missing.

use howfar_record::{Capture, Direction, Event, Link, Packet, Segments};
use proptest::prelude::*;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
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

/// A connection whose sequence numbers wrap around, with `pieces` pieces of four bytes.
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

/// The first of an answer's three segments is lost, and sent again at 900 ns.
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

/// A file of one packet in each format.
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
        assert!(!capture.is_cut());
        let mut cut = Capture::open(&file[..file.len() - 1]).expect("a capture");
        while cut.packet().expect("readable").is_some() {}
        assert!(cut.is_cut());
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
    fn any_bytes_are_packets_or_not(all in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..10), which in 0..6) {
        let (mut segments, mut events) = (Segments::new(3306, None), Vec::new());
        let link = [Link::Null, Link::Ethernet, Link::Raw, Link::Cooked, Link::Cooked2, Link::Ppp][which as usize];
        for bytes in &all {
            segments.take(&Packet { at_ns: 1, link, bytes: bytes.clone() }, &mut events);
            if let Ok(mut capture) = Capture::open(bytes.as_slice()) {
                while let Ok(Some(_)) = capture.packet() {}
            }
        }
    }
}

fn at(at_ns: u64, one: Packet) -> Packet {
    Packet { at_ns, ..one }
}

/// A complete connection: its opening, alternating requests and answers of these lengths, and its end; a microsecond between packets.
fn whole(lengths: &[usize], resets: bool) -> Vec<Packet> {
    let (mut up, mut down) = (u32::MAX - 9, 500_u32);
    let mut packets = vec![
        packet(true, up, 0, SYN, b""),
        packet(false, down, up.wrapping_add(1), SYN | ACK, b""),
    ];
    (up, down) = (up.wrapping_add(1), down + 1);
    for (number, &length) in lengths.iter().enumerate() {
        let (payload, to_server) = (vec![number as u8; length], number % 2 == 0);
        let (sequence, acknowledged) = if to_server { (up, down) } else { (down, up) };
        packets.push(packet(to_server, sequence, acknowledged, ACK, &payload));
        let of = if to_server { &mut up } else { &mut down };
        *of = of.wrapping_add(length as u32);
    }
    if resets {
        packets.push(packet(true, up, down, RST, b""));
    } else {
        packets.push(packet(true, up, down, FIN | ACK, b""));
        packets.push(packet(false, down, up.wrapping_add(1), FIN | ACK, b""));
    }
    (1_000..)
        .step_by(1_000)
        .zip(packets)
        .map(|(at_ns, one)| at(at_ns, one))
        .collect()
}

/// Make the packets' times monotonic.
fn in_order(packets: &mut [Packet]) {
    let mut now = 0;
    for one in packets {
        now = now.max(one.at_ns);
        one.at_ns = now;
    }
}

fn copy(one: &Packet) -> Packet {
    Packet {
        at_ns: one.at_ns,
        link: one.link,
        bytes: one.bytes.clone(),
    }
}

proptest! {
    // [cap-1]
    /// A repeated packet changes nothing, whichever packet it is, wherever it comes again.
    #[test]
    fn what_is_repeated_changes_nothing(
        lengths in prop::collection::vec(1_usize..9, 1..12), resets in any::<bool>(),
        again in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..20), 0..20), swapped in any::<bool>(),
    ) {
        let mut packets = whole(&lengths, resets);
        if swapped && lengths.len() > 1 {
            // Only packets of the client and the handshake, of which two are swapped.
            packets.retain(|one| one.bytes[20..22] == 40_000_u16.to_be_bytes() || one.bytes[33] & SYN != 0);
            let last = packets.len() - 2;
            packets.swap(2, last.max(2));
        }
        in_order(&mut packets);
        let expected = played(&packets).3;
        let mut repeated: Vec<Packet> = packets.iter().map(copy).collect();
        for (which, behind) in again {
            let which = which.index(repeated.len());
            let again = copy(&repeated[which]);
            repeated.insert((which + 1 + behind).min(repeated.len()), again);
        }
        in_order(&mut repeated);
        prop_assert_eq!(played(&repeated).3, expected);
    }
}

// [cap-1]
#[test]
fn a_connection_begins_at_its_first_packet_though_that_was_lost_on_the_way() {
    let mut packets = whole(&[4, 4], false);
    let first = copy(&packets[0]);
    for one in &mut packets {
        one.at_ns += 1_000_000_000;
    }
    let mut again = copy(&first);
    again.at_ns += 50_000; // a capture on all interfaces sees each packet twice
    packets.insert(0, first);
    packets.insert(1, again);
    let mut segments = Segments::new(3306, None);
    for one in &packets {
        segments.take(one, &mut Vec::new());
    }
    assert_eq!(
        (segments.repeated_syns, segments.repeated_syns_ns),
        (1, 1_000_000_000)
    );
    let (_, _, _, events) = played(&packets);
    let opened: Vec<&Event> = events
        .iter()
        .filter(|event| matches!(event, Event::Opened { .. }))
        .collect();
    assert_eq!(
        opened,
        [&Event::Opened {
            id: 1,
            at_ns: 1_000,
            is_new: true
        }]
    );
}

/// The addresses of a connection that has ended may be used again.
#[test]
fn another_beginning_is_another_connection() {
    let mut packets = whole(&[4, 4], true);
    packets.push(at(9_000, packet(true, 7, 0, SYN, b"")));
    packets.push(at(9_001, packet(true, 8, 1, ACK, b"again")));
    // Long after its end: the middle of a connection whose beginning was not seen.
    packets.push(at(9_002, packet(true, 13, 1, RST, b"")));
    packets.push(at(90_000_000_000, packet(true, 99, 1, ACK, b"late")));
    let opened = played(&packets)
        .3
        .into_iter()
        .filter_map(|event| match event {
            Event::Opened { is_new, .. } => Some(is_new),
            _ => None,
        });
    assert_eq!(opened.collect::<Vec<bool>>(), [true, true, false]);
}

fn ethernet(kind: u16, inner: &[u8]) -> Vec<u8> {
    [&[2; 12][..], &kind.to_be_bytes(), inner].concat()
}

fn ip_4(protocol: u8, inner: &[u8]) -> Vec<u8> {
    let mut out = vec![0x45, 0];
    out.extend_from_slice(&(20 + inner.len() as u16).to_be_bytes());
    out.extend_from_slice(&[0, 0, 0, 0, 64, protocol, 0, 0, 10, 9, 9, 1, 10, 9, 9, 2]);
    [out.as_slice(), inner].concat()
}

fn udp(port: u16, head: &[u8], inner: &[u8]) -> Vec<u8> {
    let length = (8 + head.len() + inner.len()) as u16;
    let ports = [
        &50_000_u16.to_be_bytes()[..],
        &port.to_be_bytes(),
        &length.to_be_bytes(),
        &[0; 2],
    ];
    ip_4(17, &[&ports.concat(), head, inner].concat())
}

/// Encapsulate an IP packet in another one.
fn tunnel(which: usize, inner: &[u8]) -> Vec<u8> {
    let frame = ethernet(0x0800, inner);
    match which {
        0 => udp(4789, &[8, 0, 0, 0, 0, 0, 77, 0], &frame),
        1 => udp(8472, &[8, 0, 0, 0, 0, 0, 77, 0], &frame),
        2 => udp(6081, &[1, 0, 0x65, 0x58, 0, 0, 77, 0, 9, 9, 9, 9], &frame),
        3 => ip_4(47, &[&[0, 0, 8, 0][..], inner].concat()),
        4 => ip_4(47, &[&[0xB0, 0, 8, 0][..], &[9; 12], inner].concat()),
        5 => ip_4(47, &[&[0x10, 0, 0x88, 0xBE][..], &[9; 12], &frame].concat()),
        6 => ip_4(4, inner),
        _ => {
            let mut out = vec![0x60, 0, 0, 0];
            out.extend_from_slice(&(8 + inner.len() as u16).to_be_bytes());
            out.extend_from_slice(&[60, 64]);
            out.extend_from_slice(&[3; 32]);
            [out.as_slice(), &[4, 0, 0, 0, 0, 0, 0, 0], inner].concat()
        }
    }
}

/// An IP packet as an interface of some link type captures it.
fn framed(which: usize, inner: &[u8]) -> (Link, Vec<u8>) {
    match which {
        0 => (Link::Ethernet, ethernet(0x0800, inner)),
        1 => (
            Link::Ethernet,
            ethernet(0x8100, &[&[0, 5, 8, 0][..], inner].concat()),
        ),
        2 => (
            Link::Ethernet,
            ethernet(0x9100, &[&[0, 5, 0x81, 0, 0, 6, 8, 0][..], inner].concat()),
        ),
        3 => (
            Link::Ethernet,
            ethernet(
                0x8864,
                &[&[0x11, 0, 0, 1, 0, 9, 0, 0x21][..], inner].concat(),
            ),
        ),
        4 => (
            Link::Ethernet,
            ethernet(
                0x8847,
                &[&[0, 6, 0x40, 64, 0, 6, 0x41, 64][..], inner].concat(),
            ),
        ),
        5 => (
            Link::Cooked,
            [&[0; 14][..], &[0x81, 0, 0, 5, 8, 0], inner].concat(),
        ),
        6 => (Link::Cooked2, [&[8, 0][..], &[0; 18], inner].concat()),
        7 => (Link::Null, [&[0, 0, 0, 2][..], inner].concat()),
        8 => (Link::Ppp, [&[0xFF, 3, 0, 0x21][..], inner].concat()),
        _ => (Link::Raw, inner.to_vec()),
    }
}

proptest! {
    // [cap-4] [cap-5]
    #[test]
    fn a_connection_is_found_below_every_common_wrapping(
        lengths in prop::collection::vec(1_usize..9, 1..6), tunnels in prop::collection::vec(0_usize..8, 0..3), frame in 0_usize..10,
        cut in 1_usize..60,
    ) {
        let packets = whole(&lengths, false);
        let wrap = |one: &Packet| {
            let inner = tunnels.iter().fold(one.bytes.clone(), |inner, &which| tunnel(which, &inner));
            let inner = if frame == 9 || inner[0] >> 4 == 4 { framed(frame, &inner) } else { framed(9, &inner) };
            Packet { at_ns: one.at_ns, link: inner.0, bytes: inner.1 }
        };
        let wrapped: Vec<Packet> = packets.iter().map(wrap).collect();
        prop_assert_eq!(played(&wrapped).3, played(&packets).3);
        // Truncated packets are counted, wherever they end.
        let (mut segments, mut events) = (Segments::new(3306, None), Vec::new());
        for mut one in wrapped {
            one.bytes.truncate(one.bytes.len().saturating_sub(cut));
            segments.take(&one, &mut events);
        }
        prop_assert_eq!(segments.packets + segments.skipped.values().sum::<u64>(), packets.len() as u64);
    }
}

// [cap-5]
#[test]
fn what_is_left_out_is_counted_by_reason() {
    let inner = packet(true, 1, 0, ACK, b"x").bytes;
    let mut fragment = inner.clone();
    fragment[6] = 0x20;
    let mut elsewhere = inner.clone();
    elsewhere[23] ^= 1;
    let (mut segments, mut events) = (Segments::new(3306, None), Vec::new());
    for (link, bytes) in [
        (Link::Other(147), inner.clone()),
        (Link::Timeless, Vec::new()),
        (Link::Ethernet, ethernet(0x0806, b"who has")),
        (Link::Ethernet, ethernet(0x88CC, b"")),
        (Link::Raw, udp(53, b"", b"")),
        (Link::Raw, ip_4(50, b"secret")),
        (Link::Raw, fragment),
        (Link::Raw, elsewhere),
        (Link::Raw, inner[..30].to_vec()),
        (Link::Raw, inner),
    ] {
        segments.take(
            &Packet {
                at_ns: 1,
                link,
                bytes,
            },
            &mut events,
        );
    }
    let reasons: Vec<&str> = segments.skipped.keys().map(AsRef::as_ref).collect();
    let expected = [
        "ARP",
        "TCP of another port or address",
        "UDP",
        "cut before the end of their headers",
        "encrypted by IPsec",
        "fragments of IP",
        "of Ethernet's type 0x88cc",
        "of link type 147",
        "without a time",
    ];
    assert_eq!(reasons, expected);
    assert_eq!(segments.packets, 1);
}

/// A request, an answer of two pieces of which the last (or both) was not captured, and 5 s later the next request.
#[test]
fn what_the_application_does_after_a_lost_answer_is_no_waiting() {
    for captured in [b"aaaa".as_slice(), b""] {
        let start = u32::MAX - 20;
        let mut packets = connection(1);
        let asked = start.wrapping_add(5);
        packets[2].at_ns = 100;
        if !captured.is_empty() {
            packets.push(at(300, packet(false, 78, asked, ACK, captured)));
        }
        packets.push(at(5_000_000_300, packet(true, asked, 78 + 8, ACK, b"next")));
        let (mut segments, mut events) = (Segments::new(3306, None), Vec::new());
        for packet in &packets {
            segments.take(packet, &mut events);
        }
        let last = events
            .iter()
            .filter_map(|event| match event {
                Event::Bytes {
                    direction: Direction::ToClient,
                    at_ns,
                    ..
                } => Some(*at_ns),
                _ => None,
            })
            .max();
        assert_eq!(last, Some(if captured.is_empty() { 100 } else { 300 }));
        assert_eq!((segments.unknown_ends, segments.missing > 0), (1, true));
    }
}

/// A container's connection as seen on all interfaces: before and after the translation of its address.
#[test]
fn a_connection_seen_before_and_after_a_translation_is_one() {
    let (mut segments, mut events) = (Segments::new(3306, None), Vec::new());
    let translated = |one: &Packet, to_server: bool| {
        let mut bytes = one.bytes.clone();
        // The client's address and port: the source towards the server, the destination from it.
        let (address, port) = if to_server { (12, 20) } else { (16, 22) };
        bytes[address..address + 4].copy_from_slice(&[10, 0, 0, 9]);
        bytes[port..port + 2].copy_from_slice(&50_001_u16.to_be_bytes());
        Packet { bytes, ..copy(one) }
    };
    let mut packets = connection(3);
    packets.push(packet(
        false,
        78,
        (u32::MAX - 20).wrapping_add(13),
        ACK,
        b"answer",
    ));
    for one in &packets {
        segments.take(one, &mut events);
        let to_server = one.bytes[22..24] == 3306_u16.to_be_bytes();
        segments.take(&translated(one, to_server), &mut events);
    }
    let opened = events
        .iter()
        .filter(|event| matches!(event, Event::Opened { .. }));
    assert_eq!((opened.count(), segments.copied), (1, packets.len() as u64));
    let (up, down, ..) = played(&packets);
    assert_eq!((up.len(), down.as_slice()), (12, b"answer".as_slice()));
}

#[test]
fn packets_that_go_back_in_time_are_counted() {
    let mut packets = connection(3);
    packets[3].at_ns = 2_000_000;
    packets[4].at_ns = 1_000_000;
    let (mut segments, mut events) = (Segments::new(3306, None), Vec::new());
    for packet in &packets {
        segments.take(packet, &mut events);
    }
    assert_eq!(segments.disordered, 1);
}
