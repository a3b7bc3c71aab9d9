//! Corruption on the line: a segment arrives with one bit flipped and its checksum unchanged.
//!
//! The bit is one of the payload, or of the transport header if there is no payload; never one that no checksum covers (padding,
//! the frame header). A UDP datagram over IPv4 without a checksum is delivered with the error, as on a real line.

use std::ops::Range;

use super::draws::Draws;
use super::random_events::{Independent, RandomEvents};
use crate::packet::{ETHERNET_LEN, GSO_NONE, NEEDS_CSUM, VNET_LEN, Vnet};
use crate::slicer::{fold_carries, sum_words};

const TCP: u8 = 6;
/// Headers between the IPv6 and the transport header: hop-by-hop, routing, destination.
const EXTENSIONS: [u8; 3] = [0, 43, 60];
/// Maximum number of such headers that are followed.
const MAX_EXTENSIONS: usize = 8;

/// Which segments are corrupted, and where.
#[derive(Debug)]
pub(crate) struct Corrupt {
    events: RandomEvents<Independent>,
    flaws: Draws,
}

impl Corrupt {
    pub(crate) fn new(chance: f64, draws: Draws, flaws: Draws) -> Self {
        Self {
            events: RandomEvents::new(Independent::new(draws, chance)),
            flaws,
        }
    }

    pub(crate) fn events(&mut self) -> &mut RandomEvents<Independent> {
        &mut self.events
    }

    /// The next segment's flaw, if it has one.
    pub(crate) fn flaw(&mut self) -> Option<u32> {
        self.events.step().then(|| self.flaws.bits() as u32)
    }
}

/// Flip the bit of `packet` (virtio-net header and frame, whose link header has `link` bytes) that `flaw` selects. A checksum that
/// was left to the receiver is completed first: otherwise the receiver would take it for correct. Returns false if the receiver
/// could not notice the error, because the packet is an uncut super-packet, or if the packet is too short.
pub(crate) fn flip_bit(packet: &mut [u8], link: usize, flaw: u32) -> bool {
    let Some(mut vnet) = Vnet::read(packet) else {
        return false;
    };
    if vnet.gso_type != GSO_NONE || packet.len() <= VNET_LEN + link {
        return false;
    }
    let (head, frame) = packet.split_at_mut(VNET_LEN);
    let bytes = corruptible_bytes(frame, link);
    if vnet.flags & NEEDS_CSUM != 0 && !write_checksum(frame, bytes.end, vnet) {
        return false;
    }
    vnet.flags = 0;
    (vnet.csum_start, vnet.csum_offset) = (0, 0);
    vnet.write(head.first_chunk_mut().expect("it was split there"));
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
    let sum = !fold_carries(sum_words(0, &frame[start..end]));
    // The same number in one's complement, and for UDP the only valid form: zero means no checksum.
    let sum = if sum == 0 { 0xffff } else { sum };
    frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    true
}

/// The bytes of which one may be corrupted; never empty.
fn corruptible_bytes(frame: &[u8], link: usize) -> Range<usize> {
    let after_link_header = link..frame.len();
    let Some((transport, protocol, end)) = transport(frame, link) else {
        return after_link_header;
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
        after_link_header
    }
}

/// Where the transport header begins, its protocol number, and where the datagram ends; None if the frame is not IP.
fn transport(frame: &[u8], link: usize) -> Option<(usize, u8, usize)> {
    if link == ETHERNET_LEN && !matches!(frame.get(12..14)?, [0x08, 0x00] | [0x86, 0xdd]) {
        return None;
    }
    let ip = frame.get(link..)?;
    let word = |at: usize| {
        Some(usize::from(u16::from_be_bytes([
            *ip.get(at)?,
            *ip.get(at + 1)?,
        ])))
    };
    if ip.first()? >> 4 == 4 {
        let end = (link + word(2)?).min(frame.len());
        return Some((link + usize::from(ip[0] & 0x0f) * 4, *ip.get(9)?, end));
    }
    if ip.first()? >> 4 != 6 {
        return None;
    }
    let end = (link + 40 + word(4)?).min(frame.len());
    let (mut at, mut next) = (40, *ip.get(6)?);
    for _ in 0..MAX_EXTENSIONS {
        if !EXTENSIONS.contains(&next) {
            break;
        }
        next = *ip.get(at)?;
        at += (usize::from(*ip.get(at + 1)?) + 1) * 8;
    }
    Some((link + at, next, end))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::packet::Layout;
    use crate::slicer::cut_segment;
    use crate::slicer::tests::{Sent, checksum_fits};

    proptest! {
        /// Whatever is spoilt: one bit differs from what the receiver would have seen, and the checksum shows it.
        #[test]
        fn one_bit_is_wrong_and_is_noticed(sent: Sent, index in 0_u32..60, flaw: u32) {
            let packet = sent.packet();
            let layout = Layout::parse(&packet, sent.link()).expect("a packet");
            let right = cut_segment(&packet, &layout, index % layout.segments);
            let mut wrong = right.clone();
            prop_assert!(flip_bit(&mut wrong, sent.link(), flaw));
            prop_assert_eq!(wrong[0], 0, "nothing is left to do");
            prop_assert!(!checksum_fits(&wrong[VNET_LEN..], sent.link()));
            // The right segment with its checksum completed is valid, and the corrupted one differs from it in one bit only.
            let differing_bits = |one: &[u8], other: &[u8]| {
                one.iter().zip(other).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>()
            };
            let mut completed = right.clone();
            let vnet = Vnet::read(&right).expect("a header");
            let end = right.len() - VNET_LEN;
            prop_assert!(write_checksum(&mut completed[VNET_LEN..], end, vnet));
            prop_assert!(checksum_fits(&completed[VNET_LEN..], sent.link()));
            prop_assert_eq!(differing_bits(&completed[VNET_LEN..], &wrong[VNET_LEN..]), 1);
        }

        /// Nothing that comes off a wire makes it panic.
        #[test]
        fn any_bytes_are_borne(mut bytes in prop::collection::vec(any::<u8>(), 0..120), flaw: u32, ip in 0_usize..3, link in 0_usize..2) {
            if bytes.len() > 30 && ip > 0 {
                bytes[1] = GSO_NONE;
                let ethertype = [[8, 0], [0x86, 0xdd]][ip - 1];
                bytes[22..24].copy_from_slice(&ethertype);
                bytes[24] = [0x45, 0x60][ip - 1];
            }
            flip_bit(&mut bytes, [0, ETHERNET_LEN][link], flaw);
        }
    }

    #[test]
    fn padding_is_not_spoilt_and_other_frames_are() {
        // An IPv4 packet of 28 bytes (UDP without payload or checksum) in a frame of 60: only the 8 bytes of UDP.
        let mut packet = vec![0; VNET_LEN + 60];
        packet[VNET_LEN + 12..VNET_LEN + 18].copy_from_slice(&[8, 0, 0x45, 0, 0, 28]);
        packet[VNET_LEN + 23] = 17;
        for flaw in (0..64).map(|bit| bit << 26) {
            let mut wrong = packet.clone();
            assert!(flip_bit(&mut wrong, ETHERNET_LEN, flaw));
            assert_eq!(wrong[VNET_LEN + 42..], packet[VNET_LEN + 42..]);
            assert_eq!(wrong[..VNET_LEN + 34], packet[..VNET_LEN + 34]);
            assert_ne!(wrong, packet);
        }
        // An ARP request: anything after its link header.
        packet[VNET_LEN + 12..VNET_LEN + 14].copy_from_slice(&[8, 6]);
        let mut wrong = packet.clone();
        assert!(flip_bit(&mut wrong, ETHERNET_LEN, u32::MAX));
        assert_eq!(wrong[VNET_LEN + 59], 0x80);
    }

    #[test]
    fn a_train_that_nobody_cut_is_left_alone() {
        let mut packet = vec![1; 200];
        packet[1] = 3;
        let before = packet.clone();
        assert!(!flip_bit(&mut packet, ETHERNET_LEN, 5));
        assert_eq!(packet, before);
    }
}
