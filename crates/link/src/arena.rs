//! Memory for the packets in flight: chunks are filled one after another, and each is free again when all packets in it have left,
//! in any order.
//!
//! The number of chunks is bounded, and growing needs no copy. The chunk that was emptied last is filled first, because its bytes are
//! still in the CPU's cache.

/// Bytes of one chunk.
const CHUNK_BYTES: usize = 1 << 20;
/// Largest packet: 64 KiB of IP, the frame's header, the virtio-net header, rounded up.
pub(crate) const MAX_PACKET_BYTES: usize = 65_536 + 256;

/// Where a packet is stored.
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
    used_bytes: usize,
    /// Slices of packets in this chunk that have not been released.
    holders: usize,
}

/// Memory for the packets in flight.
#[derive(Debug)]
pub(crate) struct Arena {
    chunks: Vec<Chunk>,
    /// Index of the chunk that is being filled; it is never among the free ones.
    current: Option<usize>,
    /// Indices of the free chunks; the last to become free is filled first.
    free_chunks: Vec<usize>,
    /// Chunks that have memory.
    backed_chunks: usize,
    max_chunks: usize,
}

impl Arena {
    /// An arena for at least `bytes` of packets. Memory is allocated only when packets need it.
    pub(crate) fn new(bytes: u64) -> Self {
        let mut arena = Self {
            chunks: Vec::new(),
            current: None,
            free_chunks: Vec::new(),
            backed_chunks: 0,
            max_chunks: 0,
        };
        arena.set_limit(bytes);
        arena
    }

    /// Change the bound on memory. If it gets lower, packets that exceed it are kept until they leave.
    pub(crate) fn set_limit(&mut self, bytes: u64) {
        let usable = (CHUNK_BYTES - MAX_PACKET_BYTES) as u64;
        self.max_chunks = bytes.div_ceil(usable) as usize + 2;
        for index in 0..self.free_chunks.len() {
            self.shrink(self.free_chunks[index]);
        }
    }

    /// Provide space for one packet of any size; None when the bound is reached.
    pub(crate) fn reserve(&mut self) -> Option<&mut [u8]> {
        let current = match self.current {
            Some(index) if CHUNK_BYTES - self.chunks[index].used_bytes >= MAX_PACKET_BYTES => index,
            _ => self.provide_chunk()?,
        };
        self.current = Some(current);
        let chunk = &mut self.chunks[current];
        Some(&mut chunk.bytes[chunk.used_bytes..chunk.used_bytes + MAX_PACKET_BYTES])
    }

    /// Keep the first `length` bytes of the space that [`Self::reserve`] returned last, for one holder.
    pub(crate) fn commit(&mut self, length: usize) -> Slot {
        assert!(
            length <= MAX_PACKET_BYTES,
            "the packet fits into the reserved space"
        );
        let index = self.current.expect("space was reserved before");
        let chunk = &mut self.chunks[index];
        let slot = Slot {
            chunk: index as u32,
            offset: chunk.used_bytes as u32,
            length: length as u32,
        };
        // Separate cache lines: the next packet may be written while this one is read by the kernel.
        chunk.used_bytes += length.next_multiple_of(64);
        chunk.holders += 1;
        slot
    }

    /// Set the number of holders of the packet committed last; each will release it once. With 0 its memory is free at once.
    pub(crate) fn set_holders(&mut self, slot: Slot, holders: u32) {
        let chunk = &mut self.chunks[slot.chunk as usize];
        chunk.holders = chunk.holders - 1 + holders as usize;
        if holders == 0 {
            let length = (slot.length as usize).next_multiple_of(64);
            assert_eq!(
                chunk.used_bytes,
                slot.offset as usize + length,
                "the packet is the last one in its chunk"
            );
            chunk.used_bytes = slot.offset as usize;
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
        chunk.used_bytes = 0;
        if self.current != Some(index) {
            self.free_chunks.push(index);
            self.shrink(index);
        }
    }

    /// Provide an empty chunk; None if the bound allows no more.
    fn provide_chunk(&mut self) -> Option<usize> {
        if self.chunks.len() - self.free_chunks.len() >= self.max_chunks {
            return None;
        }
        let index = self.free_chunks.pop().unwrap_or_else(|| {
            self.chunks.push(Chunk {
                bytes: Box::default(),
                used_bytes: 0,
                holders: 0,
            });
            self.chunks.len() - 1
        });
        let chunk = &mut self.chunks[index];
        if chunk.bytes.is_empty() {
            chunk.bytes = vec![0; CHUNK_BYTES].into_boxed_slice();
            self.backed_chunks += 1;
        }
        Some(index)
    }

    /// Give a free chunk's memory back to the system if more chunks have memory than the bound allows.
    fn shrink(&mut self, index: usize) {
        if self.backed_chunks > self.max_chunks && !self.chunks[index].bytes.is_empty() {
            self.chunks[index].bytes = Box::default();
            self.backed_chunks -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    fn store(arena: &mut Arena, value: u8, length: usize) -> Option<Slot> {
        arena.reserve()?[..length].fill(value);
        Some(arena.commit(length))
    }

    #[test]
    fn packets_keep_their_bytes_until_they_are_released() {
        let mut arena = Arena::new(8 << 20);
        let mut kept = VecDeque::new();
        for round in 0..2_000_u32 {
            let slot =
                store(&mut arena, round as u8, 3_000 + round as usize).expect("the arena has room");
            kept.push_back((round as u8, slot));
            if kept.len() > 900 {
                let (value, slot) = kept.pop_front().expect("there are over 900");
                assert!(arena.get(slot).iter().all(|byte| *byte == value));
                arena.release(slot);
            }
        }
        for (value, slot) in kept {
            assert!(arena.get(slot).iter().all(|byte| *byte == value));
            arena.release(slot);
        }
        assert_eq!(arena.chunks.len() - arena.free_chunks.len(), 1);
    }

    #[test]
    fn the_limit_holds_and_released_memory_is_used_again() {
        let mut arena = Arena::new(1);
        let mut slots = Vec::new();
        while let Some(slot) = store(&mut arena, 1, 60_000) {
            slots.push(slot);
        }
        assert_eq!(
            slots.len(),
            3 * 17,
            "three chunks hold seventeen such packets each"
        );
        for slot in slots {
            arena.release(slot);
        }
        assert!(store(&mut arena, 1, 60_000).is_some());
    }

    #[test]
    fn packets_may_be_released_in_any_order() {
        let mut arena = Arena::new(16 << 20);
        let mut kept = Vec::new();
        for round in 0..3_000_usize {
            let value = (round * 7) as u8;
            let slot = store(&mut arena, value, 40_000).expect("the arena has room");
            let holders = round % 3;
            arena.set_holders(slot, holders as u32);
            kept.extend(std::iter::repeat_n((value, slot), holders));
            // All but 60 are released, out of order.
            while kept.len() > 60 {
                let (value, slot) = kept.swap_remove(round * 31 % kept.len());
                assert!(arena.get(slot).iter().all(|byte| *byte == value));
                arena.release(slot);
            }
        }
        for (_, slot) in kept {
            arena.release(slot);
        }
        assert!(
            arena
                .chunks
                .iter()
                .all(|chunk| chunk.holders == 0 && chunk.used_bytes == 0)
        );
        assert_eq!(arena.chunks.len() - arena.free_chunks.len(), 1);
    }

    #[test]
    fn a_lower_limit_frees_memory() {
        let mut arena = Arena::new(64 << 20);
        let slots: Vec<_> = (0..600)
            .filter_map(|_| store(&mut arena, 1, 60_000))
            .collect();
        assert!(arena.backed_chunks > 30);
        arena.set_limit(1);
        for slot in slots {
            arena.release(slot);
        }
        assert_eq!(arena.backed_chunks, 3);
    }

    #[test]
    fn an_emptied_chunk_is_filled_again_from_its_start() {
        let mut arena = Arena::new(1 << 20);
        let first = store(&mut arena, 1, 100).expect("the arena has room");
        arena.release(first);
        let second = store(&mut arena, 2, 100).expect("the arena has room");
        assert_eq!(first, second);
    }
}
