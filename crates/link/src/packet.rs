//! Parses packets as a port delivers them: a virtio-net header of 10 bytes, then a frame, which may be a super-packet of many TCP
//! segments or UDP datagrams whose checksum is still to be completed. The frame may or may not have an Ethernet header.

use std::ops::Range;

/// What the shaper needs to know of a packet: `segments` on the wire, each of `wire` bytes except the last, which has `wire_last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Train {
    pub(crate) segments: u32,
    pub(crate) wire: u32,
    pub(crate) wire_last: u32,
    /// No program waits for this particular packet: it may leave a little late together with the ones after it, see
    /// `Shaper::next_wake`.
    pub(crate) deferrable: bool,
}

impl Train {
    /// A packet that is never cut.
    pub(crate) fn single(wire: u32) -> Self {
        Self {
            segments: 1,
            wire,
            wire_last: wire,
            deferrable: false,
        }
    }

    pub(crate) fn bytes(self, first: u32, count: u32) -> u64 {
        let full = u64::from(count) * u64::from(self.wire);
        if first + count == self.segments {
            full - u64::from(self.wire) + u64::from(self.wire_last)
        } else {
            full
        }
    }
}

/// Length of the virtio-net header, which `PACKET_VNET_HDR` puts before each frame.
pub(crate) const VNET_LEN: usize = 10;
/// Length of the link header of a frame from a packet socket.
pub(crate) const ETHERNET_LEN: usize = 14;
/// Preamble with its delimiter (8), frame check sequence (4), gap (12): what the wire carries beyond the frame.
const FRAMING_BYTES: u32 = 24;
/// A shorter frame is padded on the wire.
const MIN_FRAME_BYTES: u32 = 60;
/// A super-packet of more segments than this (24 kB) is part of a bulk transfer, not a single answer that a client waits for.
const MAX_ANSWER_SEGMENTS: u32 = 16;
/// TCP flags of a bare acknowledgement.
const ACK: u8 = 0x10;
const TCP: u8 = 6;
/// Longest frame header that the slicer rewrites.
pub(crate) const MAX_HEADER_BYTES: usize = 256;

pub(crate) const NEEDS_CSUM: u8 = 1;
pub(crate) const GSO_NONE: u8 = 0;
pub(crate) const GSO_TCPV4: u8 = 1;
pub(crate) const GSO_TCPV6: u8 = 4;
pub(crate) const GSO_UDP_L4: u8 = 5;
pub(crate) const GSO_ECN: u8 = 0x80;

/// The virtio-net header, in the byte order of the machine (on little-endian machines there is no other choice).
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
    /// Read the first bytes of `packet`; None when it is too short.
    pub(crate) fn read(packet: &[u8]) -> Option<Self> {
        let raw: &[u8; VNET_LEN] = packet.first_chunk()?;
        let word = |at: usize| u16::from_ne_bytes([raw[at], raw[at + 1]]);
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

/// What lies above IP in a packet that can be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

/// How a packet divides into segments. Offsets count from the start of the frame, after the virtio-net header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) vnet: Vnet,
    /// Where the network header begins: the length of the link header.
    pub(crate) network: usize,
    /// The transport protocol and where its header begins; None if the packet is never cut.
    pub(crate) transport: Option<(Transport, usize)>,
    /// Where the payload begins; each segment on the wire repeats the headers before it.
    pub(crate) headers: usize,
    /// Length of the frame.
    pub(crate) length: usize,
    /// Payload bytes of each segment but the last.
    pub(crate) payload: usize,
    pub(crate) segments: u32,
}

impl Layout {
    /// Parse a packet whose link header has `link` bytes; None if it is too short. Only super-packets of a known kind can be cut.
    pub(crate) fn parse(packet: &[u8], link: usize) -> Option<Self> {
        let vnet = Vnet::read(packet)?;
        let frame = packet.get(VNET_LEN..)?;
        if frame.len() < link {
            return None;
        }
        let mut layout = Self {
            vnet,
            network: link,
            transport: None,
            headers: 0,
            length: frame.len(),
            payload: frame.len(),
            segments: 1,
        };
        if vnet.gso_type == GSO_NONE || vnet.gso_size == 0 {
            return Some(layout);
        }
        layout.payload = usize::from(vnet.gso_size);
        layout.headers = usize::from(vnet.hdr_len).min(frame.len());
        if let Some((kind, start, headers)) = parse_transport(frame, vnet, link) {
            layout.transport = Some((kind, start));
            layout.headers = headers;
        }
        let payload = frame.len() - layout.headers;
        layout.segments = payload.div_ceil(layout.payload).max(1) as u32;
        Some(layout)
    }

    pub(crate) fn is_sliceable(&self) -> bool {
        self.transport.is_some() && self.segments > 1
    }

    /// Payload of segments `first .. first + count`, as offsets into the frame.
    pub(crate) fn payload_range(&self, first: u32, count: u32) -> Range<usize> {
        let start = self.headers + first as usize * self.payload;
        let end = (self.headers + (first + count) as usize * self.payload).min(self.length);
        start..end
    }

    /// The packet as a train of segments on the wire. A super-packet of an unknown kind is one segment, at the wire cost of all.
    pub(crate) fn train(&self) -> Train {
        let last = self.length - self.payload_range(0, self.segments - 1).end;
        let wire = self.wire_bytes(self.headers + self.payload);
        let wire_last = self.wire_bytes(self.headers + last);
        match self.segments {
            1 => Train::single(self.wire_bytes(self.length)),
            _ if self.transport.is_none() => Train::single(wire * (self.segments - 1) + wire_last),
            segments => Train {
                segments,
                wire,
                wire_last,
                deferrable: segments > MAX_ANSWER_SEGMENTS,
            },
        }
    }

    /// Wire bytes of a frame of `length` on Ethernet, even if the port has no Ethernet header: the same segment costs the same.
    fn wire_bytes(&self, length: usize) -> u32 {
        ((length + ETHERNET_LEN - self.network) as u32).max(MIN_FRAME_BYTES) + FRAMING_BYTES
    }
}

/// Is the packet a TCP acknowledgement and nothing else?
pub(crate) fn is_bare_acknowledgement(packet: &[u8], link: usize) -> bool {
    let ip = packet.get(VNET_LEN + link..).unwrap_or_default();
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

/// The transport protocol, where its header begins and where its payload begins; None if the packet cannot be cut. To be cut, its
/// checksum must still be incomplete, and its headers must match the virtio-net header. A VLAN tag shifts them: tagged packets are
/// never cut.
fn parse_transport(frame: &[u8], vnet: Vnet, link: usize) -> Option<(Transport, usize, usize)> {
    let start = usize::from(vnet.csum_start);
    let version = frame.get(link)? >> 4;
    if link == ETHERNET_LEN {
        let ethertype = if version == 4 {
            [0x08, 0x00]
        } else {
            [0x86, 0xdd]
        };
        if frame.get(12..14)? != ethertype {
            return None;
        }
    }
    let network_fits = match version {
        4 => {
            let header = usize::from(frame[link] & 0x0f) * 4;
            header >= 20 && start == link + header
        }
        // Extension headers may lie in between; `csum_start`, which the sender sets, marks where they end.
        6 => start >= link + 40,
        _ => false,
    };
    let kind = match (vnet.gso_type & !GSO_ECN, version) {
        (GSO_TCPV4, 4) | (GSO_TCPV6, 6) if vnet.csum_offset == 16 => Transport::Tcp,
        (GSO_UDP_L4, 4 | 6) if vnet.csum_offset == 6 => Transport::Udp,
        _ => return None,
    };
    if !network_fits || vnet.flags & NEEDS_CSUM == 0 {
        return None;
    }
    let headers = match kind {
        Transport::Tcp => start + usize::from(frame.get(start + 12)? >> 4) * 4,
        Transport::Udp => start + 8,
    };
    let min_header = if kind == Transport::Tcp { 20 } else { 8 };
    (headers >= start + min_header && headers <= MAX_HEADER_BYTES && headers < frame.len())
        .then_some((kind, start, headers))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A virtio-net header, a link header of `link` bytes, IPv4 or IPv6 and TCP with `options`, then `payload` bytes.
    fn tcp(link: usize, version: u8, flags: u8, options: usize, payload: usize) -> Vec<u8> {
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
        [vec![0; VNET_LEN + link], ip, header, vec![0; payload]].concat()
    }

    #[test]
    fn a_bare_acknowledgement_is_that_and_nothing_else() {
        for (link, version) in [(14, 4), (14, 6), (0, 4), (0, 6)] {
            assert!(is_bare_acknowledgement(
                &tcp(link, version, ACK, 12, 0),
                link
            ));
            assert!(
                !is_bare_acknowledgement(&tcp(link, version, ACK, 12, 1), link),
                "data"
            );
            for flags in [0x02, 0x11, 0x12, 0x14, 0x18] {
                assert!(!is_bare_acknowledgement(
                    &tcp(link, version, flags, 0, 0),
                    link
                ));
            }
            // A short frame is padded, as on a real Ethernet.
            let padded = [tcp(link, version, ACK, 0, 0), vec![0; 6]].concat();
            assert!(is_bare_acknowledgement(&padded, link));
            for length in 0..VNET_LEN + link + 33 {
                assert!(!is_bare_acknowledgement(&padded[..length], link), "torn");
            }
        }
    }
}
