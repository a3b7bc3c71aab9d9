//! Reading a packet as a packet socket gives it: a virtio-net header of 10 bytes, then an Ethernet frame, which may be a
//! super-packet of many TCP segments with its checksum left to do.

use std::ops::Range;

use crate::shaper::Train;

/// Length of the virtio-net header, which `PACKET_VNET_HDR` puts before each frame.
pub(crate) const VNET: usize = 10;
pub(crate) const ETHERNET: usize = 14;
/// Preamble with its delimiter (8), frame check sequence (4), gap (12): what the wire carries beyond the frame.
const FRAMING: u32 = 24;
/// A shorter frame is padded on the wire.
const FRAME_MIN: u32 = 60;
/// Longest frame header that the slicer rewrites.
pub(crate) const HEADERS_MAX: usize = 256;

pub(crate) const NEEDS_CSUM: u8 = 1;
pub(crate) const GSO_NONE: u8 = 0;
pub(crate) const GSO_TCPV4: u8 = 1;
pub(crate) const GSO_TCPV6: u8 = 4;
pub(crate) const GSO_ECN: u8 = 0x80;

/// The virtio-net header, in the byte order of the machine (little-endian machines only have one).
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
        let raw: &[u8; VNET] = packet.first_chunk()?;
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

    pub(crate) fn write(self, out: &mut [u8; VNET]) {
        out[0] = self.flags;
        out[1] = self.gso_type;
        out[2..4].copy_from_slice(&self.hdr_len.to_ne_bytes());
        out[4..6].copy_from_slice(&self.gso_size.to_ne_bytes());
        out[6..8].copy_from_slice(&self.csum_start.to_ne_bytes());
        out[8..10].copy_from_slice(&self.csum_offset.to_ne_bytes());
    }
}

/// How a packet falls into segments. Offsets count from the start of the frame, after the virtio-net header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) vnet: Vnet,
    /// Where the network header ends and TCP begins; 0 when the packet cannot be sliced.
    pub(crate) tcp: usize,
    /// Where the payload begins; each segment on the wire repeats what is before.
    pub(crate) headers: usize,
    /// Length of the frame.
    pub(crate) length: usize,
    /// Payload bytes of each segment but the last.
    pub(crate) payload: usize,
    pub(crate) segments: u32,
}

impl Layout {
    /// Look at a packet. What is not a super-packet of a known kind is one that travels whole.
    pub(crate) fn of(packet: &[u8]) -> Option<Self> {
        let vnet = Vnet::read(packet)?;
        let frame = packet.get(VNET..)?;
        if frame.len() < ETHERNET {
            return None;
        }
        let whole = Self {
            vnet,
            tcp: 0,
            headers: 0,
            length: frame.len(),
            payload: frame.len(),
            segments: 1,
        };
        if vnet.gso_type == GSO_NONE || vnet.gso_size == 0 {
            return Some(whole);
        }
        let payload = usize::from(vnet.gso_size);
        let headers = usize::from(vnet.hdr_len);
        let counted = |headers: usize, tcp: usize| {
            let segments = frame.len().saturating_sub(headers).div_ceil(payload).max(1) as u32;
            Some(Self {
                vnet,
                tcp,
                headers,
                length: frame.len(),
                payload,
                segments,
            })
        };
        match tcp_headers(frame, vnet) {
            Some((tcp, headers)) => counted(headers, tcp),
            None => counted(headers.min(frame.len()), 0),
        }
    }

    pub(crate) fn sliceable(&self) -> bool {
        self.tcp > 0 && self.segments > 1
    }

    /// Payload of segments `first .. first + count`, as offsets into the frame.
    pub(crate) fn payload_of(&self, first: u32, count: u32) -> Range<usize> {
        let start = self.headers + first as usize * self.payload;
        let end = (self.headers + (first + count) as usize * self.payload).min(self.length);
        start..end
    }

    /// What the packet is on the wire.
    pub(crate) fn train(&self) -> Train {
        let wire = |payload: usize| ((self.headers + payload) as u32).max(FRAME_MIN) + FRAMING;
        if self.segments == 1 {
            let bytes = (self.length as u32).max(FRAME_MIN) + FRAMING;
            return Train {
                segments: 1,
                wire: bytes,
                wire_last: bytes,
            };
        }
        let last = self.payload_of(self.segments - 1, 1).len();
        Train {
            segments: self.segments,
            wire: wire(self.payload),
            wire_last: wire(last),
        }
    }
}

/// Where TCP and its payload begin, when the packet is TCP whose checksum is left to do and whose headers are as expected.
fn tcp_headers(frame: &[u8], vnet: Vnet) -> Option<(usize, usize)> {
    let tcp = usize::from(vnet.csum_start);
    let ethertype = u16::from_be_bytes([frame[12], frame[13]]);
    let family_fits = match vnet.gso_type & !GSO_ECN {
        GSO_TCPV4 => {
            let header = usize::from(frame.get(ETHERNET)? & 0x0f) * 4;
            ethertype == 0x0800 && header >= 20 && tcp == ETHERNET + header
        }
        GSO_TCPV6 => ethertype == 0x86dd && tcp >= ETHERNET + 40,
        _ => false,
    };
    if !family_fits || vnet.flags & NEEDS_CSUM == 0 || vnet.csum_offset != 16 {
        return None;
    }
    let headers = tcp + usize::from(frame.get(tcp + 12)? >> 4) * 4;
    (headers >= tcp + 20 && headers <= HEADERS_MAX && headers < frame.len())
        .then_some((tcp, headers))
}
