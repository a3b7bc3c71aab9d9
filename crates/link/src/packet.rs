//! Parses packets as a port delivers them: a virtio-net header of 10 bytes, then a frame, which may be a super-packet of many TCP
//! segments or UDP datagrams whose checksum is still to be completed.

use std::ops::Range;

/// The size of a packet for the shaper: the number of segments, and the bytes that each takes on the wire; the last may take fewer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Train {
    pub(crate) segments: u32,
    pub(crate) wire_bytes: u32,
    pub(crate) last_wire_bytes: u32,
    /// No program waits for this particular packet: it may leave a little late together with the ones after it, see
    /// `Shaper::next_wake`.
    pub(crate) is_deferrable: bool,
}

impl Train {
    /// A packet that is never cut.
    pub(crate) fn single(wire_bytes: u32) -> Self {
        Self {
            segments: 1,
            wire_bytes,
            last_wire_bytes: wire_bytes,
            is_deferrable: false,
        }
    }

    /// Wire bytes of segments `first .. first + count`.
    pub(crate) fn bytes(self, first: u32, count: u32) -> u64 {
        let full_segments = u64::from(count) * u64::from(self.wire_bytes);
        if first + count == self.segments {
            full_segments - u64::from(self.wire_bytes) + u64::from(self.last_wire_bytes)
        } else {
            full_segments
        }
    }
}

/// Length of the virtio-net header, which `PACKET_VNET_HDR` puts before each frame.
pub(crate) const VNET_LEN: usize = 10;
/// Length of the Ethernet header.
pub(crate) const ETHERNET_LEN: usize = 14;
/// Bytes on the wire beyond the frame: preamble with its delimiter (8), frame check sequence (4), gap (12).
const FRAMING_BYTES: u32 = 24;
/// A shorter frame is padded on the wire.
const MIN_FRAME_BYTES: u32 = 60;
/// A super-packet of more segments than this (24 kB) is part of a bulk transfer, not a single answer that a client waits for.
const MAX_ANSWER_SEGMENTS: u32 = 16;
/// The TCP flags of an acknowledgement without data.
const ACK: u8 = 0x10;
pub(crate) const TCP: u8 = 6;
/// Longest frame header that the slicer rewrites.
pub(crate) const MAX_HEADER_BYTES: usize = 256;

pub(crate) const NEEDS_CSUM: u8 = 1;
pub(crate) const GSO_NONE: u8 = 0;
pub(crate) const GSO_TCPV4: u8 = 1;
pub(crate) const GSO_TCPV6: u8 = 4;
pub(crate) const GSO_UDP_L4: u8 = 5;
pub(crate) const GSO_ECN: u8 = 0x80;

/// The virtio-net header, in the byte order of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Vnet {
    pub(crate) flags: u8,
    pub(crate) gso_type: u8,
    pub(crate) hdr_len: u16,
    pub(crate) gso_size: u16,
    pub(crate) csum_start: u16,
    pub(crate) csum_offset: u16,
}

impl Vnet {
    /// Parse the header of `packet`; None if it is too short.
    pub(crate) fn read(packet: &[u8]) -> Option<Self> {
        let raw: &[u8; VNET_LEN] = packet.first_chunk()?;
        let word = |offset: usize| u16::from_ne_bytes([raw[offset], raw[offset + 1]]);
        Some(Self {
            flags: raw[0],
            gso_type: raw[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        })
    }

    pub(crate) fn write(self, out: &mut [u8; VNET_LEN]) {
        out[0] = self.flags;
        out[1] = self.gso_type;
        out[2..4].copy_from_slice(&self.hdr_len.to_ne_bytes());
        out[4..6].copy_from_slice(&self.gso_size.to_ne_bytes());
        out[6..8].copy_from_slice(&self.csum_start.to_ne_bytes());
        out[8..10].copy_from_slice(&self.csum_offset.to_ne_bytes());
    }
}

/// The transport protocol of a packet that can be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

/// How a packet divides into segments. Offsets count from the start of the frame, after the virtio-net header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) vnet: Vnet,
    /// The transport protocol and where its header begins; None if the packet is never cut.
    pub(crate) transport: Option<(Transport, usize)>,
    /// Length of all headers; each segment on the wire repeats them.
    pub(crate) header_bytes: usize,
    pub(crate) frame_bytes: usize,
    /// Payload bytes of each segment but the last.
    pub(crate) segment_payload: usize,
    pub(crate) segments: u32,
}

impl Layout {
    /// Parse a packet; None if it is too short. Only super-packets of a known kind can be cut.
    pub(crate) fn parse(packet: &[u8]) -> Option<Self> {
        let vnet = Vnet::read(packet)?;
        let frame = packet.get(VNET_LEN..)?;
        if frame.len() < ETHERNET_LEN {
            return None;
        }
        let mut layout = Self {
            vnet,
            transport: None,
            header_bytes: 0,
            frame_bytes: frame.len(),
            segment_payload: frame.len(),
            segments: 1,
        };
        if vnet.gso_type == GSO_NONE || vnet.gso_size == 0 {
            return Some(layout);
        }
        layout.segment_payload = usize::from(vnet.gso_size);
        layout.header_bytes = usize::from(vnet.hdr_len).min(frame.len());
        if let Some((transport, start, header_bytes)) = parse_transport(frame, vnet) {
            layout.transport = Some((transport, start));
            layout.header_bytes = header_bytes;
        }
        let payload = frame.len() - layout.header_bytes;
        layout.segments = payload.div_ceil(layout.segment_payload).max(1) as u32;
        Some(layout)
    }

    pub(crate) fn is_sliceable(&self) -> bool {
        self.transport.is_some() && self.segments > 1
    }

    /// Payload of segments `first .. first + count`, as offsets into the frame.
    pub(crate) fn payload_range(&self, first: u32, count: u32) -> Range<usize> {
        let offset = |segment: u32| self.header_bytes + segment as usize * self.segment_payload;
        let (start, end) = (offset(first), offset(first + count).min(self.frame_bytes));
        start..end
    }

    /// The packet as a train of segments on the wire. A super-packet of an unknown kind counts as one segment that takes
    /// the wire bytes of all its segments.
    pub(crate) fn train(&self) -> Train {
        let last_payload = self.frame_bytes - self.payload_range(0, self.segments - 1).end;
        let wire_bytes = framed_bytes(self.header_bytes + self.segment_payload);
        let last_wire_bytes = framed_bytes(self.header_bytes + last_payload);
        match self.segments {
            1 => Train::single(framed_bytes(self.frame_bytes)),
            _ if self.transport.is_none() => {
                Train::single(wire_bytes * (self.segments - 1) + last_wire_bytes)
            }
            segments => Train {
                segments,
                wire_bytes,
                last_wire_bytes,
                is_deferrable: segments > MAX_ANSWER_SEGMENTS,
            },
        }
    }
}

/// The bytes that a frame of `frame_bytes` takes on the wire.
fn framed_bytes(frame_bytes: usize) -> u32 {
    (frame_bytes as u32).max(MIN_FRAME_BYTES) + FRAMING_BYTES
}

/// Whether the packet is a TCP acknowledgement without data or other flags.
pub(crate) fn is_bare_acknowledgement(packet: &[u8]) -> bool {
    let ip = packet.get(VNET_LEN + ETHERNET_LEN..).unwrap_or_default();
    let (protocol, header, length) = match *ip {
        [first, _, high, low, _, _, _, _, _, protocol, ..] if first >> 4 == 4 => {
            let length = usize::from(u16::from_be_bytes([high, low]));
            (protocol, usize::from(first & 0x0f) * 4, length)
        }
        [first, _, _, _, high, low, protocol, ..] if first >> 4 == 6 => {
            let length = usize::from(u16::from_be_bytes([high, low]));
            (protocol, 40, 40 + length)
        }
        _ => return false,
    };
    let Some(&[offset, flags]) = ip.get(header + 12..header + 14) else {
        return false;
    };
    protocol == TCP && flags == ACK && length == header + usize::from(offset >> 4) * 4
}

/// The transport protocol, where its header begins and where its payload begins; None if the packet cannot be cut. A packet can
/// be cut if its checksum is still incomplete and its headers match the virtio-net header. A VLAN tag shifts the headers, so tagged
/// packets are never cut.
fn parse_transport(frame: &[u8], vnet: Vnet) -> Option<(Transport, usize, usize)> {
    let start = usize::from(vnet.csum_start);
    let version = frame.get(ETHERNET_LEN)? >> 4;
    let ethertype = if version == 4 {
        [0x08, 0x00]
    } else {
        [0x86, 0xdd]
    };
    if frame.get(12..14)? != ethertype {
        return None;
    }
    let network_fits = match version {
        4 => {
            let header = usize::from(frame[ETHERNET_LEN] & 0x0f) * 4;
            header >= 20 && start == ETHERNET_LEN + header
        }
        // Extension headers may lie in between; `csum_start`, which the sender sets, marks where they end.
        6 => start >= ETHERNET_LEN + 40,
        _ => false,
    };
    let transport = match (vnet.gso_type & !GSO_ECN, version) {
        (GSO_TCPV4, 4) | (GSO_TCPV6, 6) if vnet.csum_offset == 16 => Transport::Tcp,
        (GSO_UDP_L4, 4 | 6) if vnet.csum_offset == 6 => Transport::Udp,
        _ => return None,
    };
    if !network_fits || vnet.flags & NEEDS_CSUM == 0 {
        return None;
    }
    let header_bytes = match transport {
        Transport::Tcp => start + usize::from(frame.get(start + 12)? >> 4) * 4,
        Transport::Udp => start + 8,
    };
    let min_header = if transport == Transport::Tcp { 20 } else { 8 };
    (header_bytes >= start + min_header
        && header_bytes <= MAX_HEADER_BYTES
        && header_bytes < frame.len())
    .then_some((transport, start, header_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet of IPv4 or IPv6 and TCP with `options` and `payload` bytes; its virtio-net and Ethernet headers are zeros.
    fn tcp_packet(version: u8, flags: u8, options: usize, payload: usize) -> Vec<u8> {
        let segment = 20 + options + payload;
        let mut ip = if version == 4 {
            vec![0; 20]
        } else {
            vec![0; 40]
        };
        let total = (if version == 4 { 20 + segment } else { segment }) as u16;
        if version == 4 {
            (ip[0], ip[9]) = (0x45, TCP);
            ip[2..4].copy_from_slice(&total.to_be_bytes());
        } else {
            (ip[0], ip[6]) = (0x60, TCP);
            ip[4..6].copy_from_slice(&total.to_be_bytes());
        }
        let mut header = vec![0; 20 + options];
        (header[12], header[13]) = ((((20 + options) / 4) << 4) as u8, flags);
        [
            vec![0; VNET_LEN + ETHERNET_LEN],
            ip,
            header,
            vec![0; payload],
        ]
        .concat()
    }

    #[test]
    fn a_bare_acknowledgement_has_no_data_and_no_other_flags() {
        for version in [4, 6] {
            assert!(is_bare_acknowledgement(&tcp_packet(version, ACK, 12, 0)));
            assert!(!is_bare_acknowledgement(&tcp_packet(version, ACK, 12, 1)));
            for flags in [0x02, 0x11, 0x12, 0x14, 0x18] {
                assert!(!is_bare_acknowledgement(&tcp_packet(version, flags, 0, 0)));
            }
            // A short frame is padded, as on a real Ethernet.
            let padded = [tcp_packet(version, ACK, 0, 0), vec![0; 6]].concat();
            assert!(is_bare_acknowledgement(&padded));
            for length in 0..VNET_LEN + ETHERNET_LEN + 33 {
                assert!(!is_bare_acknowledgement(&padded[..length]), "truncated");
            }
        }
    }
}
