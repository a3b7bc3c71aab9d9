//! Memory for the packets in flight: chunks are filled one after another, and each is free again when all packets in it have left,
//! in whatever order.
//!
//! The number of chunks is bounded; growing needs no copy; an emptied chunk is filled again from its first byte, which is still in
//! the processor's cache.

/// Bytes of one chunk.
const CHUNK: usize = 1 << 20;
/// Largest packet: 64 KiB of IP, the frame's header, the virtio-net header, rounded up.
pub(crate) const PACKET_MAX: usize = 65_536 + 256;

/// Where a packet lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    chunk: u32,
    offset: u32,
    length: u32,
}

#[derive(Debug)]
struct Chunk {
    /// Empty when the chunk is free and its memory was given back.
    bytes: Box<[u8]>,
    used: usize,
    /// Slices not yet released of packets in this chunk.
    holders: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Arena {
    chunks: Vec<Chunk>,
    /// The chunk that is being filled; it is never among the free ones.
    filling: Option<usize>,
    /// Free chunks; the last to become free is the first to be filled.
    free: Vec<usize>,
    /// Chunks that have memory.
    backed: usize,
    limit: usize,
}

impl Arena {
    /// An arena for at least `bytes` of packets. Memory is touched only when it is used.
    pub(crate) fn new(bytes: u64) -> Self {
        let mut arena = Self {
            chunks: Vec::new(),
            filling: None,
            free: Vec::new(),
            backed: 0,
            limit: 0,
        };
        arena.set_limit(bytes);
        arena
    }

    /// Change the bound. If it gets lower, packets beyond it stay until they leave.
    pub(crate) fn set_limit(&mut self, bytes: u64) {
        let usable = (CHUNK - PACKET_MAX) as u64;
        self.limit = bytes.div_ceil(usable) as usize + 2;
        for index in 0..self.free.len() {
            self.give_back(self.free[index]);
        }
    }

    /// Room for one packet of any size; None when the bound is reached.
    pub(crate) fn room(&mut self) -> Option<&mut [u8]> {
        let filling = match self.filling {
            Some(index) if CHUNK - self.chunks[index].used >= PACKET_MAX => index,
            _ => self.next_chunk()?,
        };
        self.filling = Some(filling);
        let chunk = &mut self.chunks[filling];
        Some(&mut chunk.bytes[chunk.used..chunk.used + PACKET_MAX])
    }

    /// Keep the first `length` bytes of the room given last, for one holder.
    pub(crate) fn keep(&mut self, length: usize) -> Slot {
        assert!(length <= PACKET_MAX, "a packet fits its room");
        let index = self.filling.expect("room was given before");
        let chunk = &mut self.chunks[index];
        let slot = Slot {
            chunk: index as u32,
            offset: chunk.used as u32,
            length: length as u32,
        };
        // Separate cache lines: the next packet may be written while this one is read by the kernel.
        chunk.used += length.next_multiple_of(64);
        chunk.holders += 1;
        slot
    }

    /// Set the number of holders of the packet kept last; each will release it once. With 0 its memory is taken back at once:
    /// nothing of it was sent on.
    pub(crate) fn hold(&mut self, slot: Slot, holders: u32) {
        let chunk = &mut self.chunks[slot.chunk as usize];
        chunk.holders = chunk.holders - 1 + holders as usize;
        if holders == 0 {
            let length = (slot.length as usize).next_multiple_of(64);
            assert_eq!(
                chunk.used,
                slot.offset as usize + length,
                "only the last one can be taken back"
            );
            chunk.used = slot.offset as usize;
        }
    }

    pub(crate) fn get(&self, slot: Slot) -> &[u8] {
        let start = slot.offset as usize;
        &self.chunks[slot.chunk as usize].bytes[start..start + slot.length as usize]
    }

    /// Release the packet for one holder.
    pub(crate) fn release(&mut self, slot: Slot) {
        let index = slot.chunk as usize;
        let chunk = &mut self.chunks[index];
        chunk.holders -= 1;
        if chunk.holders > 0 {
            return;
        }
        chunk.used = 0;
        if self.filling != Some(index) {
            self.free.push(index);
            self.give_back(index);
        }
    }

    /// Provide an empty chunk; None if the bound allows no more.
    fn next_chunk(&mut self) -> Option<usize> {
        if self.chunks.len() - self.free.len() >= self.limit {
            return None;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.chunks.push(Chunk {
                bytes: Box::default(),
                used: 0,
                holders: 0,
            });
            self.chunks.len() - 1
        });
        let chunk = &mut self.chunks[index];
        if chunk.bytes.is_empty() {
            chunk.bytes = vec![0; CHUNK].into_boxed_slice();
            self.backed += 1;
        }
        Some(index)
    }

    /// Return a free chunk's memory if more chunks have memory than the bound allows.
    fn give_back(&mut self, index: usize) {
        if self.backed > self.limit && !self.chunks[index].bytes.is_empty() {
            self.chunks[index].bytes = Box::default();
            self.backed -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    fn put(arena: &mut Arena, value: u8, length: usize) -> Option<Slot> {
        arena.room()?[..length].fill(value);
        Some(arena.keep(length))
    }

    #[test]
    fn packets_keep_their_bytes_until_they_leave() {
        let mut arena = Arena::new(8 << 20);
        let mut there = VecDeque::new();
        for round in 0..2_000_u32 {
            let slot = put(&mut arena, round as u8, 3_000 + round as usize).expect("room");
            there.push_back((round as u8, slot));
            if there.len() > 900 {
                let (value, slot) = there.pop_front().expect("some");
                assert!(arena.get(slot).iter().all(|byte| *byte == value));
                arena.release(slot);
            }
        }
        for (value, slot) in there {
            assert!(arena.get(slot).iter().all(|byte| *byte == value));
            arena.release(slot);
        }
        assert_eq!(arena.chunks.len() - arena.free.len(), 1);
    }

    #[test]
    fn the_bound_holds_and_room_returns() {
        let mut arena = Arena::new(1);
        let mut places = Vec::new();
        while let Some(slot) = put(&mut arena, 1, 60_000) {
            places.push(slot);
        }
        assert_eq!(
            places.len(),
            3 * 17,
            "three chunks of seventeen such packets"
        );
        for slot in places {
            arena.release(slot);
        }
        assert!(put(&mut arena, 1, 60_000).is_some());
    }

    #[test]
    fn packets_leave_in_any_order() {
        let mut arena = Arena::new(16 << 20);
        let mut there = Vec::new();
        for round in 0..3_000_usize {
            let value = (round * 7) as u8;
            let slot = put(&mut arena, value, 40_000).expect("room");
            let holders = round % 3;
            arena.hold(slot, holders as u32);
            there.extend(std::iter::repeat_n((value, slot), holders));
            // All but 60 are released, out of order.
            while there.len() > 60 {
                let (value, slot) = there.swap_remove(round * 31 % there.len());
                assert!(arena.get(slot).iter().all(|byte| *byte == value));
                arena.release(slot);
            }
        }
        for (_, slot) in there {
            arena.release(slot);
        }
        assert!(
            arena
                .chunks
                .iter()
                .all(|chunk| chunk.holders == 0 && chunk.used == 0)
        );
        assert_eq!(arena.chunks.len() - arena.free.len(), 1);
    }

    #[test]
    fn a_lower_bound_gives_memory_back() {
        let mut arena = Arena::new(64 << 20);
        let places: Vec<_> = (0..600)
            .filter_map(|_| put(&mut arena, 1, 60_000))
            .collect();
        assert!(arena.backed > 30);
        arena.set_limit(1);
        for slot in places {
            arena.release(slot);
        }
        assert_eq!(arena.backed, 3);
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
