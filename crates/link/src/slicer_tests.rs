//! Tests of the slicer: however a super-packet is cut, a receiver sees the same stream of bytes with valid headers.
//!
//! The checksums are verified by a separate full sum, with the addresses that a receiver uses, not by the slicer's arithmetic.

use std::ops::Range;

use proptest::prelude::*;

use super::*;
use crate::packet::{GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, Train, Vnet};

const SEQUENCE: u32 = 0xffff_fe00;
const IDENTIFICATION: u16 = 0xfffe;
const ROUTING: u8 = 43;
const DESTINATION: u8 = 60;

/// A packet as a kernel hands it over: a super-packet, or one segment, with the pseudo-header sum in the checksum field, to be
/// completed.
#[derive(Debug, Clone)]
pub(crate) struct SentPacket {
    v6: bool,
    udp: bool,
    /// Extension headers of IPv6: type, and whether it has 16 bytes instead of 8. A routing header always has 24 and holds the last
    /// address.
    extensions: Vec<(u8, bool)>,
    /// TCP options, in words of 4 bytes.
    options: usize,
    gso_size: u16,
    payload: usize,
    flags: u8,
}

impl Arbitrary for SentPacket {
    type Parameters = ();
    type Strategy = BoxedStrategy<Self>;

    fn arbitrary_with((): ()) -> Self::Strategy {
        let kind = (any::<bool>(), any::<bool>());
        let extension = (
            prop_oneof![Just(0), Just(ROUTING), Just(DESTINATION)],
            any::<bool>(),
        );
        let extensions = prop_oneof![Just(Vec::new()), prop::collection::vec(extension, 1..4)];
        let flags = (0_u8..16, any::<bool>())
            .prop_map(|(bits, cwr)| bits | 0x10 | if cwr { CWR } else { 0 });
        let sizes = (0_usize..=10, 100_u16..9_000, 1_usize..60_000);
        (kind, extensions, sizes, flags)
            .prop_map(|((v6, udp), mut extensions, sizes, flags)| {
                if !v6 {
                    extensions.clear();
                }
                let (options, gso_size, payload) = sizes;
                Self {
                    v6,
                    udp,
                    extensions,
                    options: if udp { 0 } else { options },
                    gso_size,
                    payload,
                    flags,
                }
            })
            .boxed()
    }
}

impl SentPacket {
    fn tcp_v4(options: usize, payload: usize) -> Self {
        Self {
            v6: false,
            udp: false,
            extensions: Vec::new(),
            options,
            gso_size: 1448,
            payload,
            flags: 0x18,
        }
    }

    pub(crate) fn packet(&self) -> Vec<u8> {
        let datagram = self.transport();
        let mut frame = vec![0x02; 12];
        frame.extend(if self.v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
        frame.extend(self.network_header(datagram.len()));
        let start = frame.len();
        frame.extend(datagram);
        let (_, pseudo) = pseudo_header(&frame).expect("the IP header is valid");
        let offset = if self.udp { 6 } else { 16 };
        let sum = plain_sum(&pseudo);
        frame[start + offset..start + offset + 2].copy_from_slice(&sum.to_be_bytes());
        let is_super_packet = self.payload > usize::from(self.gso_size);
        let ecn = if !self.udp && self.flags & CWR > 0 {
            GSO_ECN
        } else {
            0
        };
        let kind = match (self.udp, self.v6) {
            (true, _) => GSO_UDP_L4,
            (false, true) => GSO_TCPV6,
            (false, false) => GSO_TCPV4,
        };
        let vnet = Vnet {
            flags: NEEDS_CSUM,
            gso_type: if is_super_packet {
                kind | ecn
            } else {
                GSO_NONE
            },
            hdr_len: (frame.len() - self.payload) as u16,
            gso_size: if is_super_packet { self.gso_size } else { 0 },
            csum_start: start as u16,
            csum_offset: offset as u16,
        };
        let mut packet = vec![0; VNET_LEN];
        vnet.write(packet.first_chunk_mut().expect("ten bytes"));
        packet.extend(frame);
        packet
    }

    /// TCP or UDP header, without a checksum yet, and payload.
    fn transport(&self) -> Vec<u8> {
        let mut datagram = vec![0xc3, 0x50, 0x0c, 0xea];
        if self.udp {
            datagram.extend(((8 + self.payload) as u16).to_be_bytes());
            datagram.extend([0, 0]);
        } else {
            datagram.extend(SEQUENCE.to_be_bytes());
            datagram.extend([1, 2, 3, 4, ((5 + self.options) * 16) as u8, self.flags]);
            datagram.extend([0xff, 0xff, 0, 0, 0, 0]);
            datagram.extend(std::iter::repeat_n(1, self.options * 4));
        }
        datagram.extend((0..self.payload).map(|index| (index * 31 % 251) as u8));
        datagram
    }

    /// The network header in front of `transport_bytes` bytes.
    fn network_header(&self, transport_bytes: usize) -> Vec<u8> {
        let protocol = if self.udp { 17 } else { 6 };
        if !self.v6 {
            let mut ip = vec![0x45, 0];
            ip.extend(((20 + transport_bytes) as u16).to_be_bytes());
            ip.extend(IDENTIFICATION.to_be_bytes());
            ip.extend([0x40, 0, 64, protocol, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2]);
            let sum = !plain_sum(&ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            return ip;
        }
        let mut extensions = Vec::new();
        for (index, (kind, long)) in self.extensions.iter().enumerate() {
            let next = self
                .extensions
                .get(index + 1)
                .map_or(protocol, |next| next.0);
            let words = if *kind == ROUTING { 2 } else { u8::from(*long) };
            extensions.extend([next, words]);
            // A routing header of type 2 with one segment left: its address is that of the final receiver.
            let segments_left = if *kind == ROUTING { [2, 1] } else { [0, 0] };
            extensions.extend(segments_left);
            extensions.extend((0..4 + words * 8).map(|byte| byte.wrapping_mul(29)));
        }
        let mut ip = vec![0x60, 0, 0, 0];
        ip.extend(((extensions.len() + transport_bytes) as u16).to_be_bytes());
        ip.extend([
            self.extensions.first().map_or(protocol, |first| first.0),
            64,
        ]);
        ip.extend((1..=32_u8).map(|byte| byte.wrapping_mul(37)));
        ip.extend(extensions);
        ip
    }
}

/// Ones' complement sum of the 16-bit words, as RFC 1071 defines it: word by word, adding each carry at once.
fn plain_sum(bytes: &[u8]) -> u16 {
    bytes.chunks(2).fold(0_u16, |sum, pair| {
        let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
        let (sum, carry) = sum.overflowing_add(word);
        sum + u16::from(carry)
    })
}

/// The range of the transport header and payload in a frame, and the pseudo-header that its receiver uses (RFC 793, RFC 8200).
fn pseudo_header(frame: &[u8]) -> Option<(Range<usize>, Vec<u8>)> {
    let ip = &frame[ETHERNET_LEN..];
    let word = |offset: usize| usize::from(u16::from_be_bytes([ip[offset], ip[offset + 1]]));
    let range = |start: usize, end: usize| ETHERNET_LEN + start..ETHERNET_LEN + end;
    if ip[0] >> 4 == 4 {
        let (start, end) = (usize::from(ip[0] & 15) * 4, word(2));
        let mut pseudo = ip[12..20].to_vec();
        pseudo.extend([0, ip[9]]);
        pseudo.extend(((end - start) as u16).to_be_bytes());
        return (plain_sum(&ip[..start]) == 0xffff).then_some((range(start, end), pseudo));
    }
    let (mut next, mut start, end) = (ip[6], 40, 40 + word(4));
    let mut destination = &ip[24..40];
    while [0, ROUTING, DESTINATION].contains(&next) {
        if next == ROUTING {
            destination = &ip[start + 8..start + 24];
        }
        next = ip[start];
        start += (usize::from(ip[start + 1]) + 1) * 8;
    }
    let mut pseudo = [&ip[8..24], destination].concat();
    pseudo.extend(((end - start) as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, next]);
    Some((range(start, end), pseudo))
}

/// Whether a receiver would accept this frame, whose checksum is complete.
pub(crate) fn is_checksum_valid(frame: &[u8]) -> bool {
    pseudo_header(frame).is_some_and(|(range, mut bytes)| {
        bytes.extend(&frame[range]);
        plain_sum(&bytes) == 0xffff
    })
}

/// Receive one slice, after completing the checksum as the kernel would; returns the transport header and the payload.
fn receive(packet: &[u8], is_udp: bool) -> (Vec<u8>, Vec<u8>) {
    let vnet = Vnet::read(packet).expect("the packet has a virtio-net header");
    let mut frame = packet[VNET_LEN..].to_vec();
    let (range, pseudo) = pseudo_header(&frame).expect("the IP header is valid");
    assert_eq!(range.start, usize::from(vnet.csum_start));
    assert_eq!(range.end, frame.len(), "IP's length is that of the frame");
    let field = range.start + usize::from(vnet.csum_offset);
    assert_eq!(
        frame[field..field + 2],
        plain_sum(&pseudo).to_be_bytes(),
        "the checksum field holds the pseudo-header's sum"
    );
    let sum = !plain_sum(&frame[range.clone()]);
    frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    assert!(is_checksum_valid(&frame));
    let datagram = &frame[range];
    let header_bytes = if is_udp {
        let length = u16::from_be_bytes([datagram[4], datagram[5]]);
        assert_eq!(usize::from(length), datagram.len(), "the length in UDP");
        8
    } else {
        usize::from(datagram[12] >> 4) * 4
    };
    if vnet.gso_type == GSO_NONE {
        assert_eq!(vnet.gso_size, 0);
    } else {
        assert!(
            datagram.len() - header_bytes > usize::from(vnet.gso_size),
            "a super-packet has more than one segment"
        );
    }
    assert_eq!(
        usize::from(vnet.hdr_len),
        frame.len() - (datagram.len() - header_bytes)
    );
    let (header, payload) = datagram.split_at(header_bytes);
    (header.to_vec(), payload.to_vec())
}

proptest! {
    #[test]
    fn slices_carry_the_same_stream(sent: SentPacket, cuts in prop::collection::vec(1_u32..20, 1..700)) {
        let packet = sent.packet();
        let layout = Layout::parse(&packet).expect("the packet is long enough");
        prop_assert_eq!(layout.segments as usize, sent.payload.div_ceil(usize::from(sent.gso_size)));
        prop_assert_eq!(layout.is_sliceable(), layout.segments > 1);
        prop_assume!(layout.is_sliceable());
        let (mut first, mut stream, mut id) = (0, Vec::new(), IDENTIFICATION);
        for cut in cuts.iter().cycle() {
            let count = (*cut).min(layout.segments - first);
            let range = layout.payload_range(first, count);
            let mut slice = slice_headers(&packet, &layout, first, count).as_bytes().to_vec();
            slice.extend(&packet[VNET_LEN + range.start..VNET_LEN + range.end]);
            if count == 1 {
                prop_assert_eq!(&slice, &cut_segment(&packet, &layout, first));
            }
            let (header, payload) = receive(&slice, sent.udp);
            let is_last = first + count == layout.segments;
            if !sent.udp {
                let sequence = SEQUENCE.wrapping_add(stream.len() as u32);
                prop_assert_eq!(&header[4..8], &sequence.to_be_bytes());
                let (seen, flags) = (header[13], sent.flags);
                prop_assert_eq!(seen & (FIN | PSH), if is_last { flags & (FIN | PSH) } else { 0 });
                prop_assert_eq!(seen & CWR > 0, flags & CWR > 0 && first == 0);
                prop_assert_eq!(seen & !(FIN | PSH | CWR), flags & !(FIN | PSH | CWR));
            }
            stream.extend(payload);
            if !sent.v6 {
                prop_assert_eq!(&slice[VNET_LEN + ETHERNET_LEN + 4..][..2], &id.to_be_bytes());
                id = id.wrapping_add(count as u16);
            }
            first += count;
            if is_last { break }
        }
        prop_assert_eq!(&stream[..], &packet[packet.len() - sent.payload..]);
    }

    /// No bytes from a wire make the parser panic, and the offsets that it returns lie within the packet.
    #[test]
    fn any_bytes_are_accepted(mut bytes in prop::collection::vec(any::<u8>(), 0..400), kind in 0_usize..5) {
        if kind > 0 && bytes.len() > 30 {
            bytes[..2].copy_from_slice(&[NEEDS_CSUM, [GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, GSO_UDP_L4][kind - 1]]);
            let v6 = kind % 2 == 0;
            let start = ETHERNET_LEN + if v6 { 40 } else { 20 };
            bytes[6..10].copy_from_slice(&[start as u8, 0, if kind > 2 { 6 } else { 16 }, 0]);
            bytes[22..24].copy_from_slice(if v6 { &[0x86, 0xdd] } else { &[8, 0] });
            bytes[VNET_LEN + ETHERNET_LEN] = if v6 { 0x60 } else { 0x45 };
        }
        if let Some(layout) = Layout::parse(&bytes) {
            let train = layout.train();
            prop_assert!(train.segments > 0 && train.last_wire_bytes <= train.wire_bytes.max(84));
            for first in 0..if layout.is_sliceable() { layout.segments } else { 0 } {
                slice_headers(&bytes, &layout, first, 1);
                prop_assert!(layout.payload_range(first, 1).end <= layout.frame_bytes);
            }
        }
    }
}

fn parse_train(sent: &SentPacket) -> Train {
    Layout::parse(&sent.packet())
        .expect("the packet is long enough")
        .train()
}

#[test]
fn a_segment_costs_its_frame_and_24_bytes() {
    // 1448 bytes of payload, 32 of TCP, 20 of IP, 14 of Ethernet, 24 of framing: 1538; the last one has 552 less.
    let train = parse_train(&SentPacket::tcp_v4(3, 1448 * 9 + 896));
    assert_eq!(
        (train.segments, train.wire_bytes, train.last_wire_bytes),
        (10, 1538, 986)
    );
    // An acknowledgement of 66 bytes is 90 on the wire; a frame below 60 bytes is padded: 84.
    let train = parse_train(&SentPacket::tcp_v4(3, 0));
    assert_eq!((train.segments, train.wire_bytes), (1, 90));
    let train = parse_train(&SentPacket::tcp_v4(0, 0));
    assert_eq!((train.segments, train.wire_bytes), (1, 84));
    // QUIC's usual 1252 bytes over IPv6: 8 of UDP, 40, 14 and 24.
    let quic = SentPacket {
        v6: true,
        udp: true,
        gso_size: 1252,
        ..SentPacket::tcp_v4(0, 1252 * 3)
    };
    let train = parse_train(&quic);
    assert_eq!((train.segments, train.wire_bytes), (3, 1338));
}

#[test]
fn a_super_packet_with_a_vlan_tag_is_not_cut_but_costs_all_its_segments() {
    // A VLAN tag of 4 bytes after the addresses; 10 segments of 1538 + 4.
    let mut packet = SentPacket::tcp_v4(3, 1448 * 10).packet();
    packet.splice(VNET_LEN + 12..VNET_LEN + 12, [0x81, 0x00, 0, 5]);
    packet[2] += 4;
    packet[6] += 4;
    let layout = Layout::parse(&packet).expect("the packet is long enough");
    assert!(!layout.is_sliceable());
    let train = layout.train();
    assert_eq!((train.segments, train.wire_bytes), (1, 10 * 1542));
}
