//! One direction of a link as a pure queue: packets go in with the moment of their arrival, slices of them come out with
//! the moment at which they are due. No clock, no input or output: whoever drives it says what time it is.

use std::collections::VecDeque;

use crate::effects::Nanos;
use crate::effects::delay::Propagation;
use crate::effects::queue::DropTail;
use crate::effects::rate::Bottleneck;
use crate::job::Direction;

/// Longest time on the wire of one slice. A super-packet that came at once leaves as a row of slices, so that a slow line
/// does not deliver 64 KiB in one instant; 100 µs bounds the row at about 10 000 slices a second at any rate.
pub(crate) const QUANTUM: Nanos = 100_000;

/// What the shaper needs to know of a packet: `segments` on the wire, all of `wire` bytes but the last of `wire_last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Train {
    pub(crate) segments: u32,
    pub(crate) wire: u32,
    pub(crate) wire_last: u32,
}

impl Train {
    fn bytes(self, first: u32, count: u32) -> u64 {
        let full = u64::from(count) * u64::from(self.wire);
        if first + count == self.segments {
            full - u64::from(self.wire) + u64::from(self.wire_last)
        } else {
            full
        }
    }
}

/// Segments `first .. first + count` of a packet, due together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slice<T> {
    pub(crate) packet: T,
    pub(crate) first: u32,
    pub(crate) count: u32,
    /// No later slice of this packet follows.
    pub(crate) last: bool,
    pub(crate) due: Nanos,
    pub(crate) wire_bytes: u64,
    arrival: Nanos,
    depart: Nanos,
}

/// What became of an offered packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Admission {
    /// Segments admitted; they are the first ones.
    pub(crate) admitted: u32,
    /// Segments for which the queue had no room.
    pub(crate) dropped: u32,
    /// Bytes in the queue after admission.
    pub(crate) queue_bytes: u64,
}

/// Queue, bottleneck and line of one direction.
#[derive(Debug)]
pub(crate) struct Shaper<T> {
    queue: DropTail,
    bottleneck: Bottleneck,
    propagation: Propagation,
    slices: VecDeque<Slice<T>>,
    last_arrival: Nanos,
}

impl<T: Copy> Shaper<T> {
    pub(crate) fn new(direction: &Direction) -> Self {
        Self {
            queue: DropTail::new(direction.queue_bytes),
            bottleneck: Bottleneck::new(direction.rate_bps()),
            propagation: Propagation::new(direction.effective_delay()),
            slices: VecDeque::new(),
            last_arrival: 0,
        }
    }

    /// A packet arrived at `arrival`. Arrivals are in order; one that claims to be earlier than the last counts as simultaneous.
    pub(crate) fn offer(&mut self, arrival: Nanos, train: Train, packet: T) -> Admission {
        assert!(train.segments > 0, "a packet has at least one segment");
        let arrival = arrival.max(self.last_arrival);
        self.last_arrival = arrival;
        let before = self.bottleneck.backlog(arrival);
        let admitted = self.room(before, train);
        let per_slice = self.segments_per_slice(train);
        let mut first = 0;
        while first < admitted {
            let count = per_slice.min(admitted - first);
            let wire_bytes = train.bytes(first, count);
            let depart = self.bottleneck.depart(arrival, wire_bytes);
            let due = self.propagation.due(depart);
            let last = first + count == admitted;
            self.slices.push_back(Slice {
                packet,
                first,
                count,
                last,
                due,
                wire_bytes,
                arrival,
                depart,
            });
            first += count;
        }
        Admission {
            admitted,
            dropped: train.segments - admitted,
            queue_bytes: self.bottleneck.backlog(arrival),
        }
    }

    /// When the next slice is due.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        self.slices.front().map(|slice| slice.due)
    }

    /// The next slice, if it is due at `now`.
    pub(crate) fn take(&mut self, now: Nanos) -> Option<Slice<T>> {
        if self.next_due()? > now {
            return None;
        }
        self.slices.pop_front()
    }

    /// Change the parameters at `now`. What has left the bottleneck keeps its arrival; what waits in the queue, and is
    /// never dropped by the change, leaves at the new rate and takes the new delay.
    pub(crate) fn set(&mut self, now: Nanos, direction: &Direction) {
        self.queue.set(direction.queue_bytes);
        self.propagation.set(direction.effective_delay());
        let waiting = self.slices.partition_point(|slice| slice.depart <= now);
        let before = waiting
            .checked_sub(1)
            .and_then(|index| self.slices.get(index));
        let (free, due) = before.map_or((now, 0), |slice| (slice.depart, slice.due));
        self.bottleneck.set(direction.rate_bps(), free);
        self.propagation.rewind(due);
        for slice in self.slices.range_mut(waiting..) {
            slice.depart = self.bottleneck.depart(slice.arrival, slice.wire_bytes);
            slice.due = self.propagation.due(slice.depart);
        }
    }

    /// How many of the train's segments fit behind a backlog of `before` bytes.
    fn room(&self, before: u64, train: Train) -> u32 {
        let whole = train.bytes(0, train.segments);
        if self.bottleneck.bytes_in(QUANTUM).is_none() || self.queue.holds(before + whole) {
            return train.segments;
        }
        let mut backlog = before;
        for index in 0..train.segments {
            let wire = train.bytes(index, 1);
            if !self.queue.admits(backlog, wire) {
                return index;
            }
            backlog += wire;
        }
        train.segments
    }

    fn segments_per_slice(&self, train: Train) -> u32 {
        let Some(bytes) = self.bottleneck.bytes_in(QUANTUM) else {
            return train.segments;
        };
        u32::try_from(bytes / u64::from(train.wire.max(1)))
            .unwrap_or(u32::MAX)
            .max(1)
    }
}

#[cfg(test)]
#[path = "shaper_tests.rs"]
mod tests;
