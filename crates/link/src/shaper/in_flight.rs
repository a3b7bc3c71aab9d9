//! Slices in flight, in the order in which they are due.
//!
//! A slice due after all earlier ones (without reordering, every slice) is in a queue, which costs nothing to keep in order; only
//! slices that overtake are in a separate heap.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use crate::effects::Nanos;

/// How late a patient slice may leave so that slices due soon after it leave with it: a fiftieth of the delay, within these bounds.
/// Waking for each slice costs a third of the emulator's time at 10 Gb/s, where a super-packet takes 55 µs on the wire. Only bulk
/// transfers and bare acknowledgements are patient: a request, an answer, or a packet of any kind with none soon after it leaves
/// when it is due.
pub(crate) const PATIENCE: Nanos = 60_000;
const MOST_PATIENCE: Nanos = 300_000;
const PATIENCE_OF_DELAY: Nanos = 50;

/// Segments `first .. first + count` of a packet, due together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slice<T> {
    pub(crate) packet: T,
    pub(crate) first: u32,
    pub(crate) count: u32,
    pub(crate) due: Nanos,
    pub(crate) wire_bytes: u64,
    pub(crate) patient: bool,
    /// Selects the bit that is corrupted, if any.
    pub(crate) flaw: Option<u32>,
    /// A copy of the slice before it, whose times it shares.
    pub(crate) copy: bool,
    /// It leaves after a slice that came later.
    pub(crate) overtaken: bool,
    /// Sequence number in the order of admission.
    pub(super) order: u64,
    pub(super) arrival: Nanos,
    pub(super) depart: Nanos,
}

#[derive(Debug)]
pub(super) struct InFlight<T> {
    queue: VecDeque<Slice<T>>,
    overtaking: BinaryHeap<Overtaking<T>>,
    /// Highest `order` of the slices that have left.
    newest: u64,
    patience: Nanos,
}

impl<T: Copy> InFlight<T> {
    /// `delay`: the direction's.
    pub(super) fn new(delay: Nanos) -> Self {
        let mut this = Self {
            queue: VecDeque::new(),
            overtaking: BinaryHeap::new(),
            newest: 0,
            patience: PATIENCE,
        };
        this.set_delay(delay);
        this
    }

    /// The direction's delay changed.
    pub(super) fn set_delay(&mut self, delay: Nanos) {
        self.patience = (delay / PATIENCE_OF_DELAY).clamp(PATIENCE, MOST_PATIENCE);
    }

    pub(super) fn push(&mut self, slice: Slice<T>) {
        if self.queue.back().is_none_or(|last| last.due <= slice.due) {
            self.queue.push_back(slice);
        } else {
            self.overtaking.push(Overtaking(slice));
        }
    }

    pub(super) fn next_due(&self) -> Option<Nanos> {
        let first = self.queue.front().map(|slice| slice.due);
        match self.overtaking.peek() {
            None => first,
            Some(Overtaking(slice)) => Some(first.map_or(slice.due, |due| due.min(slice.due))),
        }
    }

    /// When to check for due slices: when the first is due; or, if it is patient, when the last slice within the patience is due
    /// that has only patient slices before it.
    pub(super) fn next_wake(&self) -> Option<Nanos> {
        let first = self.next_due()?;
        if !self.overtaking.is_empty() {
            return Some(first);
        }
        let mut wake = first;
        let mut patient = true;
        for slice in &self.queue {
            if !patient || slice.due > first + self.patience {
                break;
            }
            wake = slice.due;
            patient = slice.patient;
        }
        Some(wake)
    }

    /// The next slice, if it is due at `now`. Of slices due together, the first to arrive is returned first.
    pub(super) fn take(&mut self, now: Nanos) -> Option<Slice<T>> {
        let mut slice = if self.overtaker_is_next() {
            self.overtaking.peek().filter(|next| next.0.due <= now)?;
            self.overtaking.pop()?.0
        } else {
            self.queue.front().filter(|next| next.due <= now)?;
            self.queue.pop_front()?
        };
        slice.overtaken = slice.order < self.newest;
        self.newest = self.newest.max(slice.order);
        Some(slice)
    }

    fn overtaker_is_next(&self) -> bool {
        let Some(Overtaking(one)) = self.overtaking.peek() else {
            return false;
        };
        let first = self.queue.front();
        first.is_none_or(|other| (one.due, one.order) < (other.due, other.order))
    }

    /// Take out the slices that have not left the bottleneck at `now`, in order of arrival.
    pub(super) fn waiting(&mut self, now: Nanos) -> Vec<Slice<T>> {
        let queue = std::mem::take(&mut self.queue);
        let overtaking = std::mem::take(&mut self.overtaking);
        let (gone, mut waiting): (Vec<_>, Vec<_>) = queue
            .into_iter()
            .chain(overtaking.into_iter().map(|Overtaking(slice)| slice))
            .partition(|slice| slice.depart <= now);
        for slice in gone {
            self.push(slice);
        }
        waiting.sort_unstable_by_key(|slice| slice.order);
        waiting
    }

    /// When the last slice in flight is due.
    pub(super) fn last_due(&self) -> Option<Nanos> {
        let overtaking = self.overtaking.iter().map(|Overtaking(slice)| slice.due);
        overtaking
            .chain(self.queue.back().map(|slice| slice.due))
            .max()
    }

    /// When the last slice in flight left the bottleneck.
    pub(super) fn last_depart(&self) -> Option<Nanos> {
        let overtaking = self.overtaking.iter().map(|Overtaking(slice)| slice);
        overtaking
            .chain(&self.queue)
            .map(|slice| slice.depart)
            .max()
    }
}

/// An entry of the heap, which returns the greatest first: the order is reversed, so that this is the slice due first.
#[derive(Debug)]
struct Overtaking<T>(Slice<T>);

impl<T> Overtaking<T> {
    fn key(&self) -> (Nanos, u64) {
        (self.0.due, self.0.order)
    }
}

impl<T> Ord for Overtaking<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl<T> PartialOrd for Overtaking<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Overtaking<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for Overtaking<T> {}
