//! What is on the way, in the order in which it is due.
//!
//! Slices that are due after all before them, which without reordering are all, stand in a queue that costs nothing to keep in
//! order; only those that overtake are in a heap beside it.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use crate::effects::Nanos;

/// How late a patient slice may leave so that those due soon after it leave with it: a fiftieth of the delay, within these bounds. To
/// wake for each costs a third of the emulator's time at 10 Gb/s, where a super-packet takes 55 µs of the wire. Only transfers in bulk
/// are patient: a request, an answer, a lone packet of any kind leave when they are due.
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
    /// Which bit of it is spoilt.
    pub(crate) flaw: Option<u32>,
    /// A copy of the slice before it, whose times it shares.
    pub(crate) copy: bool,
    /// It leaves after one that had come later.
    pub(crate) overtaken: bool,
    /// Place among all that was admitted.
    pub(super) order: u64,
    pub(super) arrival: Nanos,
    pub(super) depart: Nanos,
}

#[derive(Debug)]
pub(super) struct InFlight<T> {
    queue: VecDeque<Slice<T>>,
    overtaking: BinaryHeap<Overtaking<T>>,
    /// The latest comer that has left.
    newest: u64,
    patience: Nanos,
}

impl<T: Copy> InFlight<T> {
    /// `delay` of the direction.
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

    /// The direction has another delay.
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

    /// When to look for what is due: when the first slice is, or later by the patience if all before the last of those that then
    /// leave with it are patient.
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

    /// The next slice, if it is due at `now`. Of those due together the first comer is the first.
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

    /// Take out what has not left the bottleneck at `now`, in the order in which it came.
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

    /// When the last of what is on the way is due.
    pub(super) fn last_due(&self) -> Option<Nanos> {
        let overtaking = self.overtaking.iter().map(|Overtaking(slice)| slice.due);
        overtaking
            .chain(self.queue.back().map(|slice| slice.due))
            .max()
    }

    /// When the last of what is on the way had left the bottleneck.
    pub(super) fn last_depart(&self) -> Option<Nanos> {
        let overtaking = self.overtaking.iter().map(|Overtaking(slice)| slice);
        overtaking
            .chain(&self.queue)
            .map(|slice| slice.depart)
            .max()
    }
}

/// The heap gives its greatest first: the one that is due first.
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
