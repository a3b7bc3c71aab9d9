//! The buffers that a ring receives into: memory shared with the kernel. Received bytes are copied out, and buffers returned at once.
#![allow(unsafe_code)] // the memory is shared with the kernel, which fills it

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

/// Initial number of buffers given to the kernel: fewer buffers fit better into the CPU's cache.
const INITIAL_BUFFERS: u16 = 256;
/// Maximum number of buffers: the kernel's limit for one ring.
const MAX_BUFFERS: usize = 1 << 15;
/// Maximum total size of the buffers in bytes.
const MAX_BYTES: usize = 32 << 20;
const PAGE: usize = 4096;

/// Receive buffers: the ring of entries from which the kernel takes buffers, followed by the buffers themselves.
///
/// There is memory for one buffer per connection, within [`MAX_BYTES`]. The kernel is given only as many as it turns out to need:
/// whenever it has run out of them, their number is doubled.
pub(super) struct ReceiveBuffers {
    base: NonNull<u8>,
    /// Number of entries: a power of two.
    entries: u16,
    provided: u16,
    /// Bytes that a buffer holds, and bytes from one buffer to the next.
    size: usize,
    stride: usize,
    tail: u16,
}

// SAFETY: it owns its memory, and besides the kernel only the holder of the `&mut` writes there.
unsafe impl Send for ReceiveBuffers {}

impl ReceiveBuffers {
    /// Buffers for `connections`, of `size` bytes each.
    pub(super) fn new(connections: usize, size: usize) -> io::Result<Self> {
        // Page-aligned buffers would begin in the same few sets of the CPU's cache: shift them by an odd number of lines.
        let shift = if size < PAGE { 0 } else { 5 * 64 };
        let stride = size + shift;
        let max_fitting = MAX_BUFFERS.min(MAX_BYTES / stride);
        // The greatest power of two that fits.
        let max_entries = (max_fitting + 1).next_power_of_two() / 2;
        let entries = connections
            .next_power_of_two()
            .min(max_entries)
            .max(usize::from(INITIAL_BUFFERS)) as u16;
        // SAFETY: the layout is not empty.
        let base = unsafe { alloc_zeroed(Self::layout(entries, stride)?) };
        let Some(base) = NonNull::new(base) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        let mut buffers = Self {
            base,
            entries,
            provided: 0,
            size,
            stride,
            tail: 0,
        };
        buffers.provide_up_to(INITIAL_BUFFERS);
        Ok(buffers)
    }

    /// Double the number of buffers, as far as there is room.
    #[cold]
    pub(super) fn grow(&mut self) {
        self.provide_up_to(self.provided.saturating_mul(2));
    }

    fn provide_up_to(&mut self, count: u16) {
        let count = count.min(self.entries);
        for id in self.provided..count {
            self.provide(id);
        }
        self.provided = count;
    }

    /// Number of entries: the maximum number of replies per call.
    pub(super) fn entries(&self) -> u16 {
        self.entries
    }

    /// Offset of the first buffer, after `entries`.
    fn buffers_offset(entries: u16) -> usize {
        (usize::from(entries) * size_of::<BufRingEntry>()).next_multiple_of(PAGE)
    }

    fn layout(entries: u16, stride: usize) -> io::Result<Layout> {
        let buffers = usize::from(entries) * stride;
        Layout::from_size_align(Self::buffers_offset(entries) + buffers, PAGE)
            .map_err(io::Error::other)
    }

    /// Address of the ring of entries, aligned to a page.
    pub(super) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// A buffer's address.
    fn buffer(&self, id: u16) -> NonNull<u8> {
        assert!(
            id < self.entries,
            "the kernel names only buffers that it was given"
        );
        let offset = Self::buffers_offset(self.entries) + usize::from(id) * self.stride;
        // SAFETY: inside the allocation, whose layout has `entries` buffers.
        unsafe { self.base.add(offset) }
    }

    /// Copy the bytes out of a buffer, and give it back to the kernel.
    #[inline]
    pub(super) fn copy_out(&mut self, id: u16, destination: &mut [u8]) {
        let count = destination.len();
        assert!(count <= self.size, "the buffer holds all the bytes");
        let source = self.buffer(id);
        // SAFETY: the completion that names the buffer made it ours until `provide`, and its bytes are initialised.
        destination.copy_from_slice(unsafe { slice::from_raw_parts(source.as_ptr(), count) });
        self.provide(id);
    }

    fn provide(&mut self, id: u16) {
        let address = self.buffer(id).as_ptr() as u64;
        #[allow(clippy::cast_ptr_alignment)] // the allocation begins at a page
        let ring = self.base.as_ptr().cast::<BufRingEntry>();
        // SAFETY: the entry is inside the allocation, aligned, zeroed at the start, and not read by the kernel before the tail has
        // passed it. The tail lies in bytes of the first entry that hold no field set here; only this side writes it.
        unsafe {
            let entry = &mut *ring.add(usize::from(self.tail & (self.entries - 1)));
            entry.set_addr(address);
            entry.set_len(self.size as u32);
            entry.set_bid(id);
            self.tail = self.tail.wrapping_add(1);
            let tail = BufRingEntry::tail(ring).cast_mut().cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }
}

impl Drop for ReceiveBuffers {
    fn drop(&mut self) {
        if let Ok(layout) = Self::layout(self.entries, self.stride) {
            // SAFETY: allocated with this layout, and the ring that used it is gone.
            unsafe { dealloc(self.base.as_ptr(), layout) }
        }
    }
}
