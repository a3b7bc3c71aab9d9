//! Tests that captured packets, reordered, repeated or lost, give the bytes in order and without repetition, and a count of missing bytes.

use howfar_record::{Capture, Direction, Event, Link, Packet, Segments};
use proptest::prelude::*;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

fn packet(to_server: bool, sequence: u32, acknowledged: u32, flags: u8, payload: &[u8]) -> Packet {
    let (source_port, destination_port) = if to_server {
        (40_000_u16, 3306_u16)
    } else {
        (3306, 40_000)
    };
    let mut tcp = Vec::new();
    tcp.extend_from_slice(&source_port.to_be_bytes());
    tcp.extend_from_slice(&destination_port.to_be_bytes());
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

/// Bytes to the server, bytes to the client, number of missing bytes, and events of these packets. A missing byte is a `?`.
fn replay(packets: &[Packet]) -> (Vec<u8>, Vec<u8>, u64, Vec<Event>) {
    let (mut segments, mut events) = (Segments::new(3306, None), Vec::new());
    for packet in packets {
        segments.feed(packet, &mut events);
    }
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    for event in &events {
        if let Event::Bytes {
            direction,
            bytes,
            skipped,
            ..
        } = event
        {
            let stream = if *direction == Direction::ToServer {
                &mut to_server
            } else {
                &mut to_client
            };
            stream.extend_from_slice(bytes);
            stream.extend(std::iter::repeat_n(b'?', *skipped));
        }
    }
    (to_server, to_client, segments.missing, events)
}

/// A connection whose sequence numbers wrap around, with `pieces` pieces of four bytes.
fn connection(pieces: u32) -> Vec<Packet> {
    let (client_sequence, server_sequence) = (u32::MAX - 20, 77);
    let mut packets = vec![
        packet(true, client_sequence, 0, SYN, b""),
        packet(
            false,
            server_sequence,
            client_sequence.wrapping_add(1),
            SYN | ACK,
            b"",
        ),
    ];
    for number in 0..pieces {
        let sequence = client_sequence.wrapping_add(1 + number * 4);
        packets.push(packet(
            true,
            sequence,
            server_sequence + 1,
            ACK,
            format!("{number:04}").as_bytes(),
        ));
    }
    packets
}

#[test]
fn acknowledged_bytes_that_were_not_captured_are_missing() {
    let mut packets = connection(6);
    packets.remove(4);
    packets.push(packet(
        false,
        78,
        (u32::MAX - 20).wrapping_add(25),
        ACK,
        b"answer",
    ));
    let (up, down, missing, _) = replay(&packets);
    assert_eq!(
        (up.as_slice(), down.as_slice(), missing),
        (
            b"00000001????000300040005".as_slice(),
            b"answer".as_slice(),
            4
        )
    );
}

/// The first of an answer's three segments is lost and sent again at 900 ns.
#[test]
fn bytes_after_a_missing_segment_have_its_time() {
    let mut packets = connection(1);
    let acknowledged = (u32::MAX - 20).wrapping_add(5);
    for (at_ns, sequence, payload) in [(100, 82, b"bbbb"), (200, 86, b"cccc"), (900, 78, b"aaaa")] {
        packets.push(Packet {
            at_ns,
            ..packet(false, sequence, acknowledged, ACK, payload)
        });
    }
    let (_, down, missing, events) = replay(&packets);
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
fn a_connection_ends_when_both_directions_have_ended() {
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
    let (up, down, missing, events) = replay(&packets);
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

/// A pcap file and a pcapng file of one packet, with integers in the byte order of the two functions.
fn capture_files(
    bytes: &[u8],
    from_u32: fn(u32) -> [u8; 4],
    from_u16: fn(u16) -> [u8; 2],
) -> [Vec<u8>; 2] {
    let length = bytes.len() as u32;
    let numbers = |numbers: &[u32]| {
        let bytes = numbers.iter().flat_map(|&number| from_u32(number));
        bytes.collect::<Vec<u8>>()
    };
    let mut pcap = numbers(&[0xA1B2_3C4D, 0, 0, 0, 65_535, 101, 2, 3, length, length]);
    pcap.extend_from_slice(bytes);
    let mut pcapng = numbers(&[0x0A0D_0D0A, 28, 0x1A2B_3C4D, 0, 0, 0, 28, 1, 28]);
    pcapng.extend([from_u16(101), from_u16(0)].concat());
    pcapng.extend(from_u32(0));
    pcapng.extend([from_u16(9), from_u16(1)].concat());
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
    pcapng.extend(from_u32(32 + padded));
    [pcap, pcapng]
}

#[test]
fn files_of_both_formats_and_byte_orders_are_read() {
    let bytes = packet(true, 1, 0, ACK, b"x").bytes;
    let little_endian = capture_files(&bytes, u32::to_le_bytes, u16::to_le_bytes);
    let big_endian = capture_files(&bytes, u32::to_be_bytes, u16::to_be_bytes);
    for file in little_endian.into_iter().chain(big_endian) {
        let mut capture = Capture::open(file.as_slice()).expect("the file is a capture");
        let found = capture
            .next_packet()
            .expect("the file is readable")
            .expect("the file has a packet");
        assert_eq!(
            (found.at_ns, found.link, &found.bytes),
            (2_000_000_003, Link::Raw, &bytes)
        );
        assert!(
            capture
                .next_packet()
                .expect("the file is readable")
                .is_none()
        );
        assert!(!capture.is_cut());
        let mut cut = Capture::open(&file[..file.len() - 1]).expect("the file is a capture");
        while cut.next_packet().expect("the file is readable").is_some() {}
        assert!(cut.is_cut());
    }
    assert!(Capture::open(b"no capture at all".as_slice()).is_err());
}

proptest! {
    #[test]
    fn order_and_repetition_do_not_change_the_bytes(order in prop::collection::vec(2_usize..22, 0..40)) {
        let packets = connection(20);
        let mut mixed: Vec<Packet> = Vec::new();
        mixed.extend([0, 1].map(|index: usize| copy(&packets[index])));
        mixed.extend(order.iter().map(|&index| copy(&packets[index])));
        mixed.extend(packets[2..].iter().map(copy));
        let expected = (0..20).map(|number| format!("{number:04}")).collect::<Vec<_>>().concat();
        let (up, _, missing, _) = replay(&mixed);
        prop_assert_eq!((String::from_utf8_lossy(&up).into_owned(), missing), (expected, 0));
    }

    #[test]
    fn no_bytes_cause_a_panic(payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..10), link in 0_usize..6) {
        let (mut segments, mut events) = (Segments::new(3306, None), Vec::new());
        let link = [Link::Null, Link::Ethernet, Link::Raw, Link::Cooked, Link::Cooked2, Link::Ppp][link];
        for bytes in &payloads {
            segments.feed(&Packet { at_ns: 1, link, bytes: bytes.clone() }, &mut events);
            if let Ok(mut capture) = Capture::open(bytes.as_slice()) {
                while let Ok(Some(_)) = capture.next_packet() {}
            }
        }
    }
}

fn with_time(at_ns: u64, packet: Packet) -> Packet {
    Packet { at_ns, ..packet }
}

/// A complete connection: its opening, alternating requests and answers of these lengths, and its end, by a reset if `is_reset`; a
/// microsecond between packets.
fn complete_connection(lengths: &[usize], is_reset: bool) -> Vec<Packet> {
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
        let next_sequence = if to_server { &mut up } else { &mut down };
        *next_sequence = next_sequence.wrapping_add(length as u32);
    }
    if is_reset {
        packets.push(packet(true, up, down, RST, b""));
    } else {
        packets.push(packet(true, up, down, FIN | ACK, b""));
        packets.push(packet(false, down, up.wrapping_add(1), FIN | ACK, b""));
    }
    (1_000..)
        .step_by(1_000)
        .zip(packets)
        .map(|(at_ns, packet)| with_time(at_ns, packet))
        .collect()
}

/// Make the packets' times monotonic.
fn make_monotonic(packets: &mut [Packet]) {
    let mut now_ns = 0;
    for packet in packets {
        now_ns = now_ns.max(packet.at_ns);
        packet.at_ns = now_ns;
    }
}

fn copy(packet: &Packet) -> Packet {
    Packet {
        at_ns: packet.at_ns,
        link: packet.link,
        bytes: packet.bytes.clone(),
    }
}

proptest! {
    // [cap-1]
    /// No packet changes the events when it is repeated, wherever the repetition comes.
    #[test]
    fn a_repeated_packet_changes_nothing(
        lengths in prop::collection::vec(1_usize..9, 1..12), is_reset in any::<bool>(),
        repetitions in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..20), 0..20), are_swapped in any::<bool>(),
    ) {
        let mut packets = complete_connection(&lengths, is_reset);
        if are_swapped && lengths.len() > 1 {
            // Only the handshake and the client's packets are kept, of which two are swapped.
            packets.retain(|packet| packet.bytes[20..22] == 40_000_u16.to_be_bytes() || packet.bytes[33] & SYN != 0);
            let last = packets.len() - 2;
            packets.swap(2, last.max(2));
        }
        make_monotonic(&mut packets);
        let expected = replay(&packets).3;
        let mut repeated: Vec<Packet> = packets.iter().map(copy).collect();
        for (index, distance) in repetitions {
            let index = index.index(repeated.len());
            let repetition = copy(&repeated[index]);
            repeated.insert((index + 1 + distance).min(repeated.len()), repetition);
        }
        make_monotonic(&mut repeated);
        prop_assert_eq!(replay(&repeated).3, expected);
    }
}

// [cap-1]
#[test]
fn a_connection_begins_at_its_first_syn_even_if_that_was_lost() {
    let mut packets = complete_connection(&[4, 4], false);
    let first = copy(&packets[0]);
    for packet in &mut packets {
        packet.at_ns += 1_000_000_000;
    }
    let mut second = copy(&first);
    second.at_ns += 50_000; // a capture on all interfaces contains each packet twice
    packets.insert(0, first);
    packets.insert(1, second);
    let mut segments = Segments::new(3306, None);
    for packet in &packets {
        segments.feed(packet, &mut Vec::new());
    }
    assert_eq!(
        (segments.repeated_syns, segments.repeated_syns_ns),
        (1, 1_000_000_000)
    );
    let (_, _, _, events) = replay(&packets);
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

/// The addresses of an ended connection may be reused.
#[test]
fn a_new_syn_opens_a_new_connection() {
    let mut packets = complete_connection(&[4, 4], true);
    packets.push(with_time(9_000, packet(true, 7, 0, SYN, b"")));
    packets.push(with_time(9_001, packet(true, 8, 1, ACK, b"again")));
    // The last packet, long after this end, belongs to a connection whose beginning was not captured.
    packets.push(with_time(9_002, packet(true, 13, 1, RST, b"")));
    packets.push(with_time(90_000_000_000, packet(true, 99, 1, ACK, b"late")));
    let opened = replay(&packets)
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

fn udp(port: u16, header: &[u8], inner: &[u8]) -> Vec<u8> {
    let length = (8 + header.len() + inner.len()) as u16;
    let ports = [
        &50_000_u16.to_be_bytes()[..],
        &port.to_be_bytes(),
        &length.to_be_bytes(),
        &[0; 2],
    ];
    ip_4(17, &[&ports.concat(), header, inner].concat())
}

/// Encapsulate an IP packet in another one.
fn tunnel(kind: usize, inner: &[u8]) -> Vec<u8> {
    let frame = ethernet(0x0800, inner);
    match kind {
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

/// An IP packet as captured on an interface of some link type.
fn frame(kind: usize, inner: &[u8]) -> (Link, Vec<u8>) {
    match kind {
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
    fn a_connection_is_found_in_every_common_encapsulation(
        lengths in prop::collection::vec(1_usize..9, 1..6), tunnels in prop::collection::vec(0_usize..8, 0..3), frame_kind in 0_usize..10,
        cut_bytes in 1_usize..60,
    ) {
        let packets = complete_connection(&lengths, false);
        let encapsulate = |packet: &Packet| {
            let inner = tunnels.iter().fold(packet.bytes.clone(), |inner, &kind| tunnel(kind, &inner));
            let (link, bytes) = frame(if inner[0] >> 4 == 4 { frame_kind } else { 9 }, &inner);
            Packet { at_ns: packet.at_ns, link, bytes }
        };
        let encapsulated: Vec<Packet> = packets.iter().map(encapsulate).collect();
        prop_assert_eq!(replay(&encapsulated).3, replay(&packets).3);
        // Truncated packets are counted, wherever they end.
        let (mut segments, mut events) = (Segments::new(3306, None), Vec::new());
        for mut packet in encapsulated {
            packet.bytes.truncate(packet.bytes.len().saturating_sub(cut_bytes));
            segments.feed(&packet, &mut events);
        }
        prop_assert_eq!(segments.packets + segments.skipped.values().sum::<u64>(), packets.len() as u64);
    }
}

// [cap-5]
#[test]
fn skipped_packets_are_counted_by_reason() {
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
        segments.feed(
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
fn the_time_between_an_uncaptured_answer_and_the_next_request_is_not_waiting() {
    for captured in [b"aaaa".as_slice(), b""] {
        let mut packets = connection(1);
        let request_end = (u32::MAX - 20).wrapping_add(5);
        packets[2].at_ns = 100;
        if !captured.is_empty() {
            packets.push(with_time(
                300,
                packet(false, 78, request_end, ACK, captured),
            ));
        }
        packets.push(with_time(
            5_000_000_300,
            packet(true, request_end, 78 + 8, ACK, b"next"),
        ));
        let (mut segments, mut events) = (Segments::new(3306, None), Vec::new());
        for packet in &packets {
            segments.feed(packet, &mut events);
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

/// A container's connection as captured on all interfaces: before and after the translation of its address.
#[test]
fn a_connection_captured_before_and_after_translation_is_counted_once() {
    let (mut segments, mut events) = (Segments::new(3306, None), Vec::new());
    let translate = |packet: &Packet, to_server: bool| {
        let mut bytes = packet.bytes.clone();
        // Offsets of the client's address and port: the source towards the server, the destination from it.
        let (address, port) = if to_server { (12, 20) } else { (16, 22) };
        bytes[address..address + 4].copy_from_slice(&[10, 0, 0, 9]);
        bytes[port..port + 2].copy_from_slice(&50_001_u16.to_be_bytes());
        Packet {
            bytes,
            ..copy(packet)
        }
    };
    let mut packets = connection(3);
    packets.push(packet(
        false,
        78,
        (u32::MAX - 20).wrapping_add(13),
        ACK,
        b"answer",
    ));
    for packet in &packets {
        segments.feed(packet, &mut events);
        let to_server = packet.bytes[22..24] == 3306_u16.to_be_bytes();
        segments.feed(&translate(packet, to_server), &mut events);
    }
    let opened = events
        .iter()
        .filter(|event| matches!(event, Event::Opened { .. }));
    assert_eq!((opened.count(), segments.copied), (1, packets.len() as u64));
    let (up, down, ..) = replay(&packets);
    assert_eq!((up.len(), down.as_slice()), (12, b"answer".as_slice()));
}

#[test]
fn packets_with_earlier_times_are_counted() {
    let mut packets = connection(3);
    packets[3].at_ns = 2_000_000;
    packets[4].at_ns = 1_000_000;
    let (mut segments, mut events) = (Segments::new(3306, None), Vec::new());
    for packet in &packets {
        segments.feed(packet, &mut events);
    }
    assert_eq!(segments.disordered, 1);
}
