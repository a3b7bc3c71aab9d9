//! Cutting a super-packet into smaller super-packets: new headers for a run of its segments, the payload untouched.
//!
//! The headers are those that the segments would carry if the sender's network card had cut them: TCP's sequence number and the
//! IPv4 identification advance, the lengths shrink (each UDP segment is a datagram), FIN and PSH stay with the last segment and CWR
//! with the first, the IPv4 header checksum is recomputed, and the TCP or UDP checksum field again holds the pseudo-header sum, for
//! the receiver or a network card to complete.

use crate::packet::{
    ETHERNET_LEN, GSO_ECN, GSO_NONE, Layout, MAX_HEADER_BYTES, Transport, VNET_LEN,
};

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// New virtio-net and frame headers of one slice.
#[derive(Debug)]
pub(crate) struct Headers {
    bytes: [u8; VNET_LEN + MAX_HEADER_BYTES],
    length: usize,
}

impl Headers {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Headers for segments `first .. first + count` of `packet` (virtio-net header and frame), whose layout is sliceable.
pub(crate) fn slice_headers(packet: &[u8], layout: &Layout, first: u32, count: u32) -> Headers {
    assert!(
        count > 0 && first + count <= layout.segments,
        "the slice lies within the packet"
    );
    let (transport, start) = layout.transport.expect("the packet is sliceable");
    let mut bytes = [0; VNET_LEN + MAX_HEADER_BYTES];
    let length = VNET_LEN + layout.header_bytes;
    bytes[..length].copy_from_slice(&packet[..length]);
    let (vnet, frame) = bytes.split_at_mut(VNET_LEN);
    write_vnet(
        vnet.first_chunk_mut()
            .expect("the slice has VNET_LEN bytes"),
        layout,
        first,
        count,
    );
    let (lower_headers, transport_header) = frame[..layout.header_bytes].split_at_mut(start);
    let payload = layout.payload_range(first, count).len();
    let old_length = layout.frame_bytes - start;
    let new_length = transport_header.len() + payload;
    write_network(&mut lower_headers[ETHERNET_LEN..], first, new_length);
    let checksum = match transport {
        Transport::Tcp => {
            write_tcp(transport_header, layout, first, count);
            16
        }
        Transport::Udp => {
            transport_header[4..6].copy_from_slice(&(new_length as u16).to_be_bytes());
            6
        }
    };
    adjust_pseudo_header(
        &mut transport_header[checksum..checksum + 2],
        old_length,
        new_length,
    );
    Headers { bytes, length }
}

/// One segment as a separate packet.
pub(crate) fn cut_segment(packet: &[u8], layout: &Layout, index: u32) -> Vec<u8> {
    if !layout.is_sliceable() {
        return packet.to_vec();
    }
    let payload = layout.payload_range(index, 1);
    let mut bytes = slice_headers(packet, layout, index, 1).as_bytes().to_vec();
    bytes.extend_from_slice(&packet[VNET_LEN + payload.start..VNET_LEN + payload.end]);
    bytes
}

fn write_vnet(out: &mut [u8; VNET_LEN], layout: &Layout, first: u32, count: u32) {
    let mut vnet = layout.vnet;
    vnet.hdr_len = layout.header_bytes as u16;
    if count == 1 {
        vnet.gso_type = GSO_NONE;
        vnet.gso_size = 0;
    } else if first > 0 {
        vnet.gso_type &= !GSO_ECN;
    }
    vnet.write(out);
}

/// Write the network header `ip` (with its extensions) of a slice with `transport_bytes` after it.
fn write_network(ip: &mut [u8], first: u32, transport_bytes: usize) {
    if ip[0] >> 4 == 6 {
        let bytes = (ip.len() - 40 + transport_bytes) as u16;
        ip[4..6].copy_from_slice(&bytes.to_be_bytes());
        return;
    }
    let total = (ip.len() + transport_bytes) as u16;
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(first as u16);
    ip[4..6].copy_from_slice(&id.to_be_bytes());
    ip[10..12].fill(0);
    let sum = !fold_carries(sum_words(ip));
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
}

fn write_tcp(tcp: &mut [u8], layout: &Layout, first: u32, count: u32) {
    let offset = first.wrapping_mul(layout.segment_payload as u32);
    let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]).wrapping_add(offset);
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
    if first + count < layout.segments {
        tcp[13] &= !(FIN | PSH);
    }
    if first > 0 {
        tcp[13] &= !CWR;
    }
}

/// Adjust the pseudo-header sum to another length; a sender that leaves the checksum to its card writes this sum into the field. It
/// is updated incrementally (RFC 1624), because only the sender knows the addresses in it: with an IPv6 routing header they are not
/// those of the packet.
fn adjust_pseudo_header(field: &mut [u8], old_length: usize, new_length: usize) {
    let sum = u64::from(u16::from_be_bytes([field[0], field[1]]));
    let adjusted = fold_carries(sum + u64::from(!(old_length as u16)) + new_length as u64);
    field.copy_from_slice(&adjusted.to_be_bytes());
}

/// Sum of the 16-bit big-endian words of `bytes`, the last padded with zero.
pub(crate) fn sum_words(bytes: &[u8]) -> u64 {
    let mut sum = 0;
    let mut words = bytes.chunks_exact(2);
    for word in &mut words {
        sum += u64::from(u16::from_be_bytes([word[0], word[1]]));
    }
    if let [last] = words.remainder() {
        sum += u64::from(*last) << 8;
    }
    sum
}

pub(crate) fn fold_carries(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
#[path = "slicer_tests.rs"]
pub(crate) mod tests;
