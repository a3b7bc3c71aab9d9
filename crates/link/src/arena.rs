//! Memory of the packets that are on the way: chunks filled one after the other and emptied in the same order.
//!
//! Bounded by the number of chunks; growing needs no copy; a line that has run empty starts again at the first byte of a
//! chunk that is still in the processor's cache.

use std::collections::VecDeque;

/// Bytes of one chunk.
const CHUNK: usize = 1 << 20;
/// Largest packet: 64 KiB of IP, the frame's header, the virtio-net header, rounded up.
pub(crate) const PACKET_MAX: usize = 65_536 + 256;

/// Where a packet lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    chunk: u64,
    offset: usize,
    length: usize,
}

#[derive(Debug)]
struct Chunk {
    bytes: Box<[u8]>,
    used: usize,
    live: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Arena {
    chunks: VecDeque<Chunk>,
    /// Number of the first of `chunks` since the beginning.
    first: u64,
    spare: Vec<Box<[u8]>>,
    limit: usize,
}

impl Arena {
    /// Room for at least `bytes` of packets. Memory is touched only as it is used.
    pub(crate) fn new(bytes: u64) -> Self {
        let mut arena = Self {
            chunks: VecDeque::new(),
            first: 0,
            spare: Vec::new(),
            limit: 0,
        };
        arena.set_limit(bytes);
        arena
    }

    /// Change the bound. Packets above a lower bound stay until they leave.
    pub(crate) fn set_limit(&mut self, bytes: u64) {
        let usable = (CHUNK - PACKET_MAX) as u64;
        self.limit = bytes.div_ceil(usable) as usize + 2;
        self.spare
            .truncate(self.limit.saturating_sub(self.chunks.len()));
    }

    /// Room for one packet of any size; None when the bound is reached.
    pub(crate) fn room(&mut self) -> Option<&mut [u8]> {
        if self
            .chunks
            .back()
            .is_none_or(|chunk| CHUNK - chunk.used < PACKET_MAX)
        {
            if self.chunks.len() >= self.limit {
                return None;
            }
            let bytes = self
                .spare
                .pop()
                .unwrap_or_else(|| vec![0; CHUNK].into_boxed_slice());
            self.chunks.push_back(Chunk {
                bytes,
                used: 0,
                live: 0,
            });
        }
        let chunk = self.chunks.back_mut()?;
        Some(&mut chunk.bytes[chunk.used..chunk.used + PACKET_MAX])
    }

    /// Keep the first `length` bytes of the room given last.
    pub(crate) fn keep(&mut self, length: usize) -> Place {
        assert!(length <= PACKET_MAX, "a packet fits its room");
        let chunk = self.first + self.chunks.len() as u64 - 1;
        let back = self.chunks.back_mut().expect("room was given before");
        let place = Place {
            chunk,
            offset: back.used,
            length,
        };
        // Cache lines of their own: the next packet may be written while this one is read by the kernel.
        back.used += length.next_multiple_of(64);
        back.live += 1;
        place
    }

    /// Take back the packet that was kept last: it never got on its way.
    pub(crate) fn forget(&mut self, place: Place) {
        let back = self.chunks.back_mut().expect("the packet lies in it");
        assert_eq!(
            back.used,
            place.offset + place.length.next_multiple_of(64),
            "only the last one can be taken back"
        );
        back.used = place.offset;
        back.live -= 1;
    }

    pub(crate) fn get(&self, place: Place) -> &[u8] {
        let chunk = &self.chunks[(place.chunk - self.first) as usize];
        &chunk.bytes[place.offset..place.offset + place.length]
    }

    /// The packet has left. Packets leave in the order in which they came.
    pub(crate) fn release(&mut self, place: Place) {
        assert_eq!(place.chunk, self.first, "packets leave in order");
        let alone = self.chunks.len() == 1;
        let front = self.chunks.front_mut().expect("the packet lies in it");
        front.live -= 1;
        if front.live > 0 {
            return;
        }
        if alone {
            front.used = 0;
        } else if let Some(chunk) = self.chunks.pop_front() {
            self.first += 1;
            if self.spare.len() + self.chunks.len() < self.limit {
                self.spare.push(chunk.bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(arena: &mut Arena, value: u8, length: usize) -> Option<Place> {
        arena.room()?[..length].fill(value);
        Some(arena.keep(length))
    }

    #[test]
    fn packets_keep_their_bytes_until_they_leave() {
        let mut arena = Arena::new(8 << 20);
        let mut there = VecDeque::new();
        for round in 0..2_000_u32 {
            let place = put(&mut arena, round as u8, 3_000 + round as usize).expect("room");
            there.push_back((round as u8, place));
            if there.len() > 900 {
                let (value, place) = there.pop_front().expect("some");
                assert!(arena.get(place).iter().all(|byte| *byte == value));
                arena.release(place);
            }
        }
        for (value, place) in there {
            assert!(arena.get(place).iter().all(|byte| *byte == value));
            arena.release(place);
        }
        assert_eq!(arena.chunks.len(), 1);
    }

    #[test]
    fn the_bound_holds_and_room_returns() {
        let mut arena = Arena::new(1);
        let mut places = Vec::new();
        while let Some(place) = put(&mut arena, 1, 60_000) {
            places.push(place);
        }
        assert_eq!(
            places.len(),
            3 * 17,
            "three chunks of seventeen such packets"
        );
        for place in places {
            arena.release(place);
        }
        assert!(put(&mut arena, 1, 60_000).is_some());
    }

    #[test]
    fn an_empty_line_starts_again_at_the_same_place() {
        let mut arena = Arena::new(1 << 20);
        let first = put(&mut arena, 1, 100).expect("room");
        arena.release(first);
        let second = put(&mut arena, 2, 100).expect("room");
        assert_eq!(first, second);
    }
}
