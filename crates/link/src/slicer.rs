//! Cutting a super-packet into smaller super-packets: new headers for a run of its segments, the payload untouched.
//!
//! What the segments would have carried had the sender's network card cut them: the sequence number and the IP
//! identification advance, the lengths shrink, FIN and PSH stay with the last segment and CWR with the first, the IPv4
//! header checksum is made anew, and the TCP checksum is again the sum of the pseudo-header, for the receiver or a card to
//! complete.

use crate::packet::{ETHERNET, GSO_ECN, GSO_NONE, HEADERS_MAX, Layout, VNET};

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;
/// TCP's number in the pseudo-header.
const TCP: u64 = 6;

/// New virtio-net and frame headers of one slice.
#[derive(Debug)]
pub(crate) struct Headers {
    bytes: [u8; VNET + HEADERS_MAX],
    length: usize,
}

impl Headers {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Headers for segments `first .. first + count` of `packet` (virtio-net header and frame), whose layout is sliceable.
pub(crate) fn headers(packet: &[u8], layout: &Layout, first: u32, count: u32) -> Headers {
    assert!(
        layout.sliceable(),
        "only a train of TCP segments can be cut"
    );
    assert!(
        count > 0 && first + count <= layout.segments,
        "the slice lies within the packet"
    );
    let mut bytes = [0; VNET + HEADERS_MAX];
    let length = VNET + layout.headers;
    bytes[..length].copy_from_slice(&packet[..length]);
    let (vnet, frame) = bytes.split_at_mut(VNET);
    write_vnet(
        vnet.first_chunk_mut().expect("the array holds it"),
        layout,
        first,
        count,
    );
    let frame = &mut frame[..layout.headers];
    let payload = layout.payload_of(first, count).len();
    write_network(frame, layout, first, payload);
    write_tcp(frame, layout, first, count, payload);
    Headers { bytes, length }
}

fn write_vnet(out: &mut [u8; VNET], layout: &Layout, first: u32, count: u32) {
    let mut vnet = layout.vnet;
    vnet.hdr_len = layout.headers as u16;
    if count == 1 {
        vnet.gso_type = GSO_NONE;
        vnet.gso_size = 0;
    } else if first > 0 {
        vnet.gso_type &= !GSO_ECN;
    }
    vnet.write(out);
}

fn write_network(frame: &mut [u8], layout: &Layout, first: u32, payload: usize) {
    let tcp_bytes = layout.headers - layout.tcp + payload;
    let ip = &mut frame[ETHERNET..layout.tcp];
    if ip[0] >> 4 == 6 {
        let bytes = (ip.len() - 40 + tcp_bytes) as u16;
        ip[4..6].copy_from_slice(&bytes.to_be_bytes());
        return;
    }
    let total = (ip.len() + tcp_bytes) as u16;
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    let id = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(first as u16);
    ip[4..6].copy_from_slice(&id.to_be_bytes());
    ip[10..12].fill(0);
    let sum = !fold(sum_words(0, ip));
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
}

fn write_tcp(frame: &mut [u8], layout: &Layout, first: u32, count: u32, payload: usize) {
    let pseudo = pseudo_header_sum(
        &frame[ETHERNET..layout.tcp],
        layout.headers - layout.tcp + payload,
    );
    let tcp = &mut frame[layout.tcp..];
    let offset = first.wrapping_mul(layout.payload as u32);
    let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]).wrapping_add(offset);
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
    if first + count < layout.segments {
        tcp[13] &= !(FIN | PSH);
    }
    if first > 0 {
        tcp[13] &= !CWR;
    }
    tcp[16..18].copy_from_slice(&pseudo.to_be_bytes());
}

/// Sum over the addresses, the protocol and the length of TCP, folded and not complemented: what a sender that leaves the
/// checksum to its card writes into the field.
pub(crate) fn pseudo_header_sum(ip: &[u8], tcp_bytes: usize) -> u16 {
    let addresses = if ip[0] >> 4 == 6 {
        &ip[8..40]
    } else {
        &ip[12..20]
    };
    fold(sum_words(TCP + tcp_bytes as u64, addresses))
}

/// Add the 16-bit big-endian words of `bytes`, the last padded with zero.
pub(crate) fn sum_words(start: u64, bytes: &[u8]) -> u64 {
    let mut sum = start;
    let mut words = bytes.chunks_exact(2);
    for word in &mut words {
        sum += u64::from(u16::from_be_bytes([word[0], word[1]]));
    }
    if let [last] = words.remainder() {
        sum += u64::from(*last) << 8;
    }
    sum
}

pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
#[path = "slicer_tests.rs"]
mod tests;
