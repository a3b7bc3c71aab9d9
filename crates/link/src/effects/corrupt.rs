//! Corruption on the line: a segment arrives with one bit flipped and its checksum unchanged.
//!
//! The bit is in the payload, or in the transport header if there is no payload: padding and the frame header have no checksum.
//! A UDP datagram over IPv4 without a checksum is delivered with the error, as on a real line.

use std::ops::Range;

use super::random_events::{Independent, RandomEvents};
use super::random_stream::RandomStream;
use crate::packet::{ETHERNET_LEN, GSO_NONE, NEEDS_CSUM, TCP, VNET_LEN, Vnet};
use crate::slicer::{fold_carries, sum_words};

/// Headers between the IPv6 and the transport header: hop-by-hop, routing, destination.
const EXTENSIONS: [u8; 3] = [0, 43, 60];
/// Maximum number of such headers that are followed.
const MAX_EXTENSIONS: usize = 8;

/// Decides which segments are corrupted, and where.
#[derive(Debug)]
pub(crate) struct Corrupt {
    pub(crate) events: RandomEvents<Independent>,
    flaws: RandomStream,
}

impl Corrupt {
    pub(crate) fn new(chance: f64, random: RandomStream, flaws: RandomStream) -> Self {
        Self {
            events: RandomEvents::new(Independent::new(random, chance)),
            flaws,
        }
    }

    /// Decide on the next segment; returns its flaw, a random number that selects the bit, if it is corrupted.
    pub(crate) fn next_flaw(&mut self) -> Option<u32> {
        self.events.step().then(|| self.flaws.bits() as u32)
    }
}

/// Flip the bit of `packet` (virtio-net header and frame) that `flaw` selects. A checksum that was left to the receiver is completed
/// first: otherwise the receiver would take it for correct. Returns false if the receiver could not notice the error, because the
/// packet is an uncut super-packet, or if the packet is too short.
pub(crate) fn flip_bit(packet: &mut [u8], flaw: u32) -> bool {
    let Some(mut vnet) = Vnet::read(packet) else {
        return false;
    };
    if vnet.gso_type != GSO_NONE || packet.len() <= VNET_LEN + ETHERNET_LEN {
        return false;
    }
    let (vnet_header, frame) = packet.split_at_mut(VNET_LEN);
    let bytes = corruptible_bytes(frame);
    if vnet.flags & NEEDS_CSUM != 0 && !write_checksum(frame, bytes.end, vnet) {
        return false;
    }
    vnet.flags = 0;
    (vnet.csum_start, vnet.csum_offset) = (0, 0);
    vnet.write(
        vnet_header
            .first_chunk_mut()
            .expect("the slice has VNET_LEN bytes"),
    );
    let bits = (bytes.len() * 8) as u64;
    let bit = ((u64::from(flaw) * bits) >> 32) as usize;
    frame[bytes.start + bit / 8] ^= 1 << (bit % 8);
    true
}

/// Write the checksum of `csum_start .. end`, whose field holds the pseudo-header sum. Returns false if the field lies beyond
/// `end`.
fn write_checksum(frame: &mut [u8], end: usize, vnet: Vnet) -> bool {
    let start = usize::from(vnet.csum_start);
    let field = start + usize::from(vnet.csum_offset);
    if field + 2 > end {
        return false;
    }
    let sum = !fold_carries(sum_words(&frame[start..end]));
    // In one's complement 0xffff equals zero; UDP requires 0xffff, because zero means that there is no checksum.
    let sum = if sum == 0 { 0xffff } else { sum };
    frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    true
}

/// The range of bytes in which a bit may be flipped; never empty.
fn corruptible_bytes(frame: &[u8]) -> Range<usize> {
    let after_ethernet = ETHERNET_LEN..frame.len();
    let Some((transport, protocol, end)) = locate_transport(frame) else {
        return after_ethernet;
    };
    let payload = match protocol {
        TCP => frame
            .get(transport + 12)
            .map_or(end, |byte| transport + usize::from(byte >> 4) * 4),
        _ => transport + 8,
    };
    if payload < end {
        payload..end
    } else if transport < end {
        transport..end
    } else {
        after_ethernet
    }
}

/// Where the transport header begins, its protocol number, and where the datagram ends; None if the frame is not IP.
fn locate_transport(frame: &[u8]) -> Option<(usize, u8, usize)> {
    if !matches!(frame.get(12..14)?, [0x08, 0x00] | [0x86, 0xdd]) {
        return None;
    }
    let ip = frame.get(ETHERNET_LEN..)?;
    let word = |offset: usize| {
        Some(usize::from(u16::from_be_bytes([
            *ip.get(offset)?,
            *ip.get(offset + 1)?,
        ])))
    };
    if ip.first()? >> 4 == 4 {
        let end = (ETHERNET_LEN + word(2)?).min(frame.len());
        let start = ETHERNET_LEN + usize::from(ip[0] & 0x0f) * 4;
        return Some((start, *ip.get(9)?, end));
    }
    if ip.first()? >> 4 != 6 {
        return None;
    }
    let end = (ETHERNET_LEN + 40 + word(4)?).min(frame.len());
    let (mut offset, mut next) = (40, *ip.get(6)?);
    for _ in 0..MAX_EXTENSIONS {
        if !EXTENSIONS.contains(&next) {
            break;
        }
        next = *ip.get(offset)?;
        offset += (usize::from(*ip.get(offset + 1)?) + 1) * 8;
    }
    Some((ETHERNET_LEN + offset, next, end))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packet::Layout;
    use crate::slicer::cut_segment;
    use crate::slicer::tests::{SentPacket, is_checksum_valid};

    proptest! {
        /// One bit differs from what the receiver would have seen, and the checksum shows it.
        #[test]
        fn one_bit_is_flipped_and_the_checksum_shows_it(sent: SentPacket, index in 0_u32..60, flaw: u32) {
            let packet = sent.packet();
            let layout = Layout::parse(&packet).expect("the packet is long enough");
            let intact = cut_segment(&packet, &layout, index % layout.segments);
            let mut corrupted = intact.clone();
            prop_assert!(flip_bit(&mut corrupted, flaw));
            prop_assert_eq!(corrupted[0], 0, "the checksum is complete");
            prop_assert!(!is_checksum_valid(&corrupted[VNET_LEN..]));
            // The intact segment with its checksum completed is valid, and the corrupted one differs from it in one bit only.
            let mut completed = intact.clone();
            let vnet = Vnet::read(&intact).expect("the packet has a virtio-net header");
            let end = intact.len() - VNET_LEN;
            prop_assert!(write_checksum(&mut completed[VNET_LEN..], end, vnet));
            prop_assert!(is_checksum_valid(&completed[VNET_LEN..]));
            let byte_pairs = completed[VNET_LEN..].iter().zip(&corrupted[VNET_LEN..]);
            prop_assert_eq!(byte_pairs.map(|(a, b)| (a ^ b).count_ones()).sum::<u32>(), 1);
        }

        /// No bytes from a wire make it panic.
        #[test]
        fn any_bytes_are_accepted(mut bytes in prop::collection::vec(any::<u8>(), 0..120), flaw: u32, ip in 0_usize..3) {
            if bytes.len() > 30 && ip > 0 {
                bytes[1] = GSO_NONE;
                let ethertype = [[8, 0], [0x86, 0xdd]][ip - 1];
                bytes[22..24].copy_from_slice(&ethertype);
                bytes[24] = [0x45, 0x60][ip - 1];
            }
            flip_bit(&mut bytes, flaw);
        }
    }

    #[test]
    fn padding_is_never_corrupted_but_frames_without_ip_are() {
        // An IPv4 packet of 28 bytes (UDP without payload or checksum) in a frame of 60: only the 8 bytes of UDP.
        let mut packet = vec![0; VNET_LEN + 60];
        packet[VNET_LEN + 12..VNET_LEN + 18].copy_from_slice(&[8, 0, 0x45, 0, 0, 28]);
        packet[VNET_LEN + 23] = 17;
        for flaw in (0..64).map(|bit| bit << 26) {
            let mut corrupted = packet.clone();
            assert!(flip_bit(&mut corrupted, flaw));
            assert_eq!(corrupted[VNET_LEN + 42..], packet[VNET_LEN + 42..]);
            assert_eq!(corrupted[..VNET_LEN + 34], packet[..VNET_LEN + 34]);
            assert_ne!(corrupted, packet);
        }
        // An ARP request: any byte after its Ethernet header.
        packet[VNET_LEN + 12..VNET_LEN + 14].copy_from_slice(&[8, 6]);
        assert!(flip_bit(&mut packet, u32::MAX));
        assert_eq!(packet[VNET_LEN + 59], 0x80);
    }

    #[test]
    fn an_uncut_super_packet_is_not_corrupted() {
        let mut packet = vec![1; 200];
        packet[1] = 3;
        let original = packet.clone();
        assert!(!flip_bit(&mut packet, 5));
        assert_eq!(packet, original);
    }
}
