//! Slices in flight, in the order in which they are due.
//!
//! A slice due after all earlier ones (without reordering, every slice) is in a queue, which costs nothing to keep in order; only
//! slices that overtake are in a separate heap.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use crate::effects::Nanos;

/// How late a deferrable slice may leave so that slices due soon after it leave with it: a fiftieth of the delay, within these bounds.
/// Waking for each slice costs a third of the emulator's time at 10 Gb/s, where a super-packet takes 55 µs on the wire. Only bulk
/// transfers and bare acknowledgements are deferrable. A request, an answer, or a packet without others due soon after it leaves when
/// it is due.
pub(crate) const MIN_DEFERRAL: Nanos = 60_000;
const MAX_DEFERRAL: Nanos = 300_000;
const DEFERRAL_DIVISOR: Nanos = 50;

/// Segments `first .. first + count` of a packet, due together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slice<T> {
    pub(crate) packet: T,
    pub(crate) first: u32,
    pub(crate) count: u32,
    pub(crate) due: Nanos,
    pub(crate) wire_bytes: u64,
    pub(crate) is_deferrable: bool,
    /// Selects the bit that is corrupted, if any.
    pub(crate) flaw: Option<u32>,
    /// A copy of the slice before it, with the same times.
    pub(crate) is_copy: bool,
    /// A slice that came later left before it.
    pub(crate) was_overtaken: bool,
    /// Sequence number in the order of admission.
    pub(super) sequence: u64,
    pub(super) arrival: Nanos,
    pub(super) departure: Nanos,
}

#[derive(Debug)]
pub(super) struct InFlight<T> {
    queue: VecDeque<Slice<T>>,
    overtaking: BinaryHeap<HeapEntry<T>>,
    /// Highest `sequence` of the slices that have left.
    highest_sequence: u64,
    max_deferral: Nanos,
}

impl<T: Copy> InFlight<T> {
    /// No slices in flight yet; `delay` is the direction's delay.
    pub(super) fn new(delay: Nanos) -> Self {
        let mut in_flight = Self {
            queue: VecDeque::new(),
            overtaking: BinaryHeap::new(),
            highest_sequence: 0,
            max_deferral: MIN_DEFERRAL,
        };
        in_flight.set_delay(delay);
        in_flight
    }

    /// Adapt to a new delay of the direction.
    pub(super) fn set_delay(&mut self, delay: Nanos) {
        self.max_deferral = (delay / DEFERRAL_DIVISOR).clamp(MIN_DEFERRAL, MAX_DEFERRAL);
    }

    pub(super) fn push(&mut self, slice: Slice<T>) {
        if self.queue.back().is_none_or(|last| last.due <= slice.due) {
            self.queue.push_back(slice);
        } else {
            self.overtaking.push(HeapEntry(slice));
        }
    }

    pub(super) fn next_due(&self) -> Option<Nanos> {
        let first = self.queue.front().map(|slice| slice.due);
        match self.overtaking.peek() {
            None => first,
            Some(HeapEntry(slice)) => Some(first.map_or(slice.due, |due| due.min(slice.due))),
        }
    }

    /// When to check for due slices: when the first slice is due; if it is deferrable, later slices may be waited for, as long as all
    /// slices before them are deferrable and the first one waits at most `max_deferral`.
    pub(super) fn next_wake(&self) -> Option<Nanos> {
        let first = self.next_due()?;
        if !self.overtaking.is_empty() {
            return Some(first);
        }
        let mut wake = first;
        let mut is_deferrable = true;
        for slice in &self.queue {
            if !is_deferrable || slice.due > first + self.max_deferral {
                break;
            }
            wake = slice.due;
            is_deferrable = slice.is_deferrable;
        }
        Some(wake)
    }

    /// The next slice, if it is due at `now`. Of slices due together, the first to arrive is returned first.
    pub(super) fn take(&mut self, now: Nanos) -> Option<Slice<T>> {
        let mut slice = if self.is_overtaker_next() {
            self.overtaking.peek().filter(|next| next.0.due <= now)?;
            self.overtaking.pop()?.0
        } else {
            self.queue.front().filter(|next| next.due <= now)?;
            self.queue.pop_front()?
        };
        slice.was_overtaken = slice.sequence < self.highest_sequence;
        self.highest_sequence = self.highest_sequence.max(slice.sequence);
        Some(slice)
    }

    fn is_overtaker_next(&self) -> bool {
        let Some(HeapEntry(entry)) = self.overtaking.peek() else {
            return false;
        };
        let first = self.queue.front();
        first.is_none_or(|queued| (entry.due, entry.sequence) < (queued.due, queued.sequence))
    }

    /// Take out the slices that have not left the bottleneck at `now`, in order of arrival.
    pub(super) fn take_waiting(&mut self, now: Nanos) -> Vec<Slice<T>> {
        let queue = std::mem::take(&mut self.queue);
        let overtaking = std::mem::take(&mut self.overtaking);
        let (departed, mut waiting): (Vec<_>, Vec<_>) = queue
            .into_iter()
            .chain(overtaking.into_iter().map(|HeapEntry(slice)| slice))
            .partition(|slice| slice.departure <= now);
        for slice in departed {
            self.push(slice);
        }
        waiting.sort_unstable_by_key(|slice| slice.sequence);
        waiting
    }

    /// When the last slice in flight is due.
    pub(super) fn last_due(&self) -> Option<Nanos> {
        let overtaking = self.overtaking.iter().map(|HeapEntry(slice)| slice.due);
        overtaking
            .chain(self.queue.back().map(|slice| slice.due))
            .max()
    }

    /// When the last slice in flight left the bottleneck.
    pub(super) fn last_departure(&self) -> Option<Nanos> {
        let overtaking = self.overtaking.iter().map(|HeapEntry(slice)| slice);
        overtaking
            .chain(&self.queue)
            .map(|slice| slice.departure)
            .max()
    }
}

/// An entry of the heap. Its order is reversed, because the heap returns the greatest entry first, which must be the slice due first.
#[derive(Debug)]
struct HeapEntry<T>(Slice<T>);

impl<T> HeapEntry<T> {
    fn key(&self) -> (Nanos, u64) {
        (self.0.due, self.0.sequence)
    }
}

impl<T> Ord for HeapEntry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl<T> PartialOrd for HeapEntry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for HeapEntry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for HeapEntry<T> {}
