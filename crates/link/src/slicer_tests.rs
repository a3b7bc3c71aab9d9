//! Tests of the slicer: whatever a super-packet is cut into, a receiver sees the same stream of bytes with valid headers.

use proptest::prelude::*;

use super::*;
use crate::packet::{GSO_TCPV4, GSO_TCPV6, NEEDS_CSUM, Vnet};

const SEQUENCE: u32 = 0xffff_fe00;
const IDENTIFICATION: u16 = 0xfffe;

/// A TCP super-packet as a kernel hands it over: checksum of the pseudo-header in place, the rest left to do.
fn super_packet(v6: bool, options: usize, gso_size: u16, payload: usize, flags: u8) -> Vec<u8> {
    let tcp_bytes = 20 + options + payload;
    let ip_header = if v6 { 40 } else { 20 };
    let tcp = ETHERNET + ip_header;
    let mut frame = vec![0x02; 12];
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((tcp_bytes as u16).to_be_bytes());
        frame.extend([6, 64]);
        frame.extend((1..=32_u8).map(|byte| byte.wrapping_mul(37)));
    } else {
        frame.extend([0x08, 0x00, 0x45, 0]);
        frame.extend(((20 + tcp_bytes) as u16).to_be_bytes());
        frame.extend(IDENTIFICATION.to_be_bytes());
        frame.extend([0x40, 0, 64, 6, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2]);
        let sum = !fold(sum_words(0, &frame[ETHERNET..]));
        frame[ETHERNET + 10..ETHERNET + 12].copy_from_slice(&sum.to_be_bytes());
    }
    let pseudo = pseudo_header_sum(&frame[ETHERNET..], tcp_bytes);
    frame.extend([0xc3, 0x50, 0x0c, 0xea]);
    frame.extend(SEQUENCE.to_be_bytes());
    frame.extend([
        1,
        2,
        3,
        4,
        ((20 + options) / 4 * 16) as u8,
        flags,
        0xff,
        0xff,
    ]);
    frame.extend(pseudo.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(std::iter::repeat_n(1, options));
    frame.extend((0..payload).map(|index| (index * 31 % 251) as u8));
    let many = payload > usize::from(gso_size);
    let kind = if v6 { GSO_TCPV6 } else { GSO_TCPV4 } | if flags & CWR > 0 { GSO_ECN } else { 0 };
    let vnet = Vnet {
        flags: NEEDS_CSUM,
        gso_type: if many { kind } else { GSO_NONE },
        hdr_len: (tcp + 20 + options) as u16,
        gso_size: if many { gso_size } else { 0 },
        csum_start: tcp as u16,
        csum_offset: 16,
    };
    let mut packet = vec![0; VNET];
    vnet.write(packet.first_chunk_mut().expect("ten bytes"));
    packet.extend(frame);
    packet
}

/// Check one slice as a receiver would, after completing the checksum as the kernel would; its sequence number and payload.
fn receive(packet: &[u8]) -> (u32, Vec<u8>, u8) {
    let vnet = Vnet::read(packet).expect("a header");
    let frame = &packet[VNET..];
    let tcp = usize::from(vnet.csum_start);
    let ip = &frame[ETHERNET..tcp];
    let tcp_bytes = frame.len() - tcp;
    if ip[0] >> 4 == 4 {
        assert_eq!(
            fold(sum_words(0, ip)),
            0xffff,
            "the checksum of the IPv4 header"
        );
        assert_eq!(
            usize::from(u16::from_be_bytes([ip[2], ip[3]])),
            frame.len() - ETHERNET
        );
    } else {
        assert_eq!(usize::from(u16::from_be_bytes([ip[4], ip[5]])), tcp_bytes);
    }
    let field = u16::from_be_bytes([frame[tcp + 16], frame[tcp + 17]]);
    assert_eq!(
        field,
        pseudo_header_sum(ip, tcp_bytes),
        "what is left to do starts from the pseudo-header"
    );
    let mut done = frame[tcp..].to_vec();
    let sum = !fold(sum_words(0, &done));
    done[16..18].copy_from_slice(&sum.to_be_bytes());
    let verified = fold(sum_words(
        u64::from(pseudo_header_sum(ip, tcp_bytes)),
        &done,
    ));
    assert_eq!(verified, 0xffff, "the completed TCP checksum");
    let headers = usize::from(done[12] >> 4) * 4;
    if vnet.gso_type == GSO_NONE {
        assert_eq!(vnet.gso_size, 0);
    } else {
        assert!(
            done.len() - headers > usize::from(vnet.gso_size),
            "only a train is called one"
        );
    }
    let sequence = u32::from_be_bytes([done[4], done[5], done[6], done[7]]);
    (sequence, done[headers..].to_vec(), done[13])
}

proptest! {
    #[test]
    fn the_stream_is_intact(
        v6: bool, options in 0_usize..=10, gso_size in 100_u16..9_000, payload in 1_usize..60_000,
        flags in (0_u8..16).prop_map(|bits| bits | 0x10), cwr: bool, cuts in prop::collection::vec(1_u32..20, 1..700),
    ) {
        let flags = if cwr { flags | CWR } else { flags };
        let packet = super_packet(v6, options * 4, gso_size, payload, flags);
        let layout = Layout::of(&packet).expect("a packet");
        prop_assert_eq!(layout.segments as usize, payload.div_ceil(usize::from(gso_size)));
        prop_assume!(layout.sliceable());
        let (mut first, mut stream, mut id) = (0, Vec::new(), IDENTIFICATION);
        for cut in cuts.iter().cycle() {
            let count = (*cut).min(layout.segments - first);
            let range = layout.payload_of(first, count);
            let mut slice = headers(&packet, &layout, first, count).as_bytes().to_vec();
            slice.extend(&packet[VNET + range.start..VNET + range.end]);
            let (sequence, bytes, seen) = receive(&slice);
            prop_assert_eq!(sequence, SEQUENCE.wrapping_add(stream.len() as u32));
            stream.extend(bytes);
            let last = first + count == layout.segments;
            prop_assert_eq!(seen & (FIN | PSH), if last { flags & (FIN | PSH) } else { 0 });
            prop_assert_eq!(seen & CWR > 0, cwr && first == 0);
            prop_assert_eq!(seen & !(FIN | PSH | CWR), flags & !(FIN | PSH | CWR));
            if !v6 {
                prop_assert_eq!(&slice[VNET + ETHERNET + 4..][..2], &id.to_be_bytes());
                id = id.wrapping_add(count as u16);
            }
            first += count;
            if last { break }
        }
        prop_assert_eq!(&stream[..], &packet[packet.len() - payload..]);
    }

    /// Nothing that comes off a wire makes the parser panic, and what it says of a packet lies within the packet.
    #[test]
    fn any_bytes_are_borne(mut bytes in prop::collection::vec(any::<u8>(), 0..400), tcp: bool) {
        if tcp && bytes.len() > 30 {
            bytes[..2].copy_from_slice(&[NEEDS_CSUM, GSO_TCPV4]);
            bytes[6..10].copy_from_slice(&[34, 0, 16, 0]);
            bytes[22..25].copy_from_slice(&[8, 0, 0x45]);
        }
        if let Some(layout) = Layout::of(&bytes) {
            let train = layout.train();
            prop_assert!(train.segments > 0 && train.wire_last <= train.wire.max(84));
            if layout.sliceable() {
                for first in 0..layout.segments {
                    headers(&bytes, &layout, first, 1);
                    prop_assert!(layout.payload_of(first, 1).end <= layout.length);
                }
            }
        }
    }
}

#[test]
fn a_segment_costs_its_frame_and_24_bytes() {
    // 1448 bytes of payload, 32 of TCP, 20 of IP, 14 of Ethernet, 24 of framing: 1538; the last one has 552 less.
    let packet = super_packet(false, 12, 1448, 1448 * 9 + 896, 0x18);
    let train = Layout::of(&packet).expect("a packet").train();
    assert_eq!(
        (train.segments, train.wire, train.wire_last),
        (10, 1538, 986)
    );
    // An acknowledgement of 66 bytes is 90 on the wire; a frame below 60 bytes is padded: 84.
    let train = Layout::of(&super_packet(false, 12, 1448, 0, 0x10))
        .expect("a packet")
        .train();
    assert_eq!((train.segments, train.wire), (1, 90));
    let train = Layout::of(&super_packet(false, 0, 1448, 0, 0x10))
        .expect("a packet")
        .train();
    assert_eq!((train.segments, train.wire), (1, 84));
}
