//! One direction of a link as a pure queue: packets go in with their arrival time, slices of them come out with the time at which
//! they are due. It has no clock and does no I/O: the caller passes the time in.
//!
//! `effects` describes the order of the effects and the reasons for it. All decisions on a packet are made when it arrives.

use std::collections::VecDeque;

use crate::effects::Nanos;
use crate::effects::delay::Propagation;
use crate::effects::effect_slot::EffectSlot;
use crate::effects::faults::{Faults, Verdict};
use crate::effects::jitter::Jitter;
use crate::effects::outage::Outages;
use crate::effects::queue::DropTail;
use crate::effects::rate::Bottleneck;
use crate::job::{self, Direction};

mod in_flight;

use crate::packet::Train;
use in_flight::InFlight;
pub(crate) use in_flight::Slice;

/// What becomes of a packet that was offered to the shaper.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Admission {
    /// Slices that the packet was sent as, each to be taken once.
    pub(crate) slices: u32,
    /// Number of segments, from the first on, for which the queue had room.
    pub(crate) admitted: u32,
    /// Admitted segments that the line will lose.
    pub(crate) lost: u32,
    /// Segments for which the queue had no room.
    pub(crate) dropped: u32,
    /// Segments that came while the line was down.
    pub(crate) outage: u32,
    /// Bytes in the queue after admission.
    pub(crate) queue_bytes: u64,
}

/// A packet that was admitted.
#[derive(Debug, Clone, Copy)]
struct AdmittedPacket<T> {
    packet: T,
    train: Train,
    arrival: Nanos,
    /// Jitter of the current slice, which is added to the delay.
    extra_delay: i64,
}

/// A lost segment: it never arrives, but it takes its time on the bottleneck.
#[derive(Debug, Clone, Copy)]
struct LostSegment {
    sequence: u64,
    arrival: Nanos,
    departure: Nanos,
    wire_bytes: u64,
}

/// Queue, bottleneck and line of one direction.
#[derive(Debug)]
pub(crate) struct Shaper<T> {
    outages: Outages,
    queue: DropTail,
    bottleneck: Bottleneck,
    faults: Faults,
    jitter: EffectSlot<job::Jitter, Jitter>,
    propagation: Propagation,
    in_flight: InFlight<T>,
    /// Lost segments that may still wait before the bottleneck: a change of the rate changes their departure, too.
    lost: VecDeque<LostSegment>,
    /// Sequence number of the latest arrival.
    sequence: u64,
    last_arrival: Nanos,
    /// When the last slice that was taken, or lost segment that was forgotten, left the bottleneck.
    last_departure: Nanos,
}

impl<T: Copy> Shaper<T> {
    /// Make a shaper whose schedules begin at `now`.
    pub(crate) fn new(now: Nanos, direction: &Direction) -> Self {
        let mut jitter = EffectSlot::off("jitter");
        jitter.set_one_stream(direction, direction.jitter.as_ref(), Jitter::new);
        Self {
            outages: Outages::new(&direction.outages, now),
            queue: DropTail::new(direction.queue_bytes),
            bottleneck: Bottleneck::new(direction, now, 0),
            faults: Faults::new(direction),
            jitter,
            propagation: make_propagation(direction, 0),
            in_flight: InFlight::new(direction.effective_delay()),
            lost: VecDeque::new(),
            sequence: 0,
            last_arrival: 0,
            last_departure: 0,
        }
    }

    /// Offer a packet that arrived at `arrival`. Arrivals are in order; one earlier than the last counts as simultaneous with it.
    pub(crate) fn offer(&mut self, arrival: Nanos, train: Train, packet: T) -> Admission {
        assert!(train.segments > 0, "a packet has at least one segment");
        let arrival = arrival.max(self.last_arrival);
        self.last_arrival = arrival;
        let backlog = self.bottleneck.backlog(arrival);
        if self.outages.is_down(arrival) {
            return Admission {
                outage: train.segments,
                queue_bytes: backlog,
                ..Admission::default()
            };
        }
        self.forget_lost(arrival);
        let admitted = self.count_fitting(backlog, train);
        let mut admission = Admission {
            admitted,
            dropped: train.segments - admitted,
            ..Admission::default()
        };
        let mut admitted_packet = AdmittedPacket {
            packet,
            train,
            arrival,
            extra_delay: 0,
        };
        let mut first = 0;
        while first < admitted {
            let count = self
                .segments_per_slice(arrival, train)
                .min(admitted - first);
            admitted_packet.extra_delay = self.jitter.get().map_or(0, Jitter::sample);
            if self.faults.is_any_on() {
                self.send_in_pieces(&admitted_packet, first, count, &mut admission);
            } else {
                self.send(&admitted_packet, first, count, None, false);
                admission.slices += 1;
            }
            first += count;
        }
        admission.queue_bytes = self.bottleneck.backlog(arrival);
        admission
    }

    /// Bytes in the queue at `now`.
    pub(crate) fn backlog(&self, now: Nanos) -> u64 {
        self.bottleneck.backlog(now)
    }

    /// When the next slice is due.
    #[cfg(test)]
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        self.in_flight.next_due()
    }

    /// When to check again for due slices: when the next one is due, or a little later if it is deferrable and others follow soon.
    pub(crate) fn next_wake(&self) -> Option<Nanos> {
        self.in_flight.next_wake()
    }

    /// The next slice, if it is due at `now`.
    pub(crate) fn take(&mut self, now: Nanos) -> Option<Slice<T>> {
        let slice = self.in_flight.take(now)?;
        self.last_departure = self.last_departure.max(slice.departure);
        Some(slice)
    }

    /// Change the parameters at `now`. Slices that have left the bottleneck keep their arrival time; those waiting in the queue are
    /// never dropped by the change, leave at the new rate and take the new delay. Loss, corruption, duplication and slicing were
    /// decided on arrival: after a change to a slower rate, waiting slices take longer. Random effects whose settings do not change
    /// continue their sequence of decisions, see `effects::effect_slot`.
    pub(crate) fn set(&mut self, now: Nanos, direction: &Direction) {
        let waiting = self.in_flight.take_waiting(now);
        self.forget_lost(now);
        let lost = std::mem::take(&mut self.lost);
        // All slices that were taken were due by now.
        let last_due = self.in_flight.last_due().unwrap_or(0).max(now);
        self.outages = Outages::new(&direction.outages, now);
        self.queue = DropTail::new(direction.queue_bytes);
        self.in_flight.set_delay(direction.effective_delay());
        self.bottleneck = Bottleneck::new(direction, now, self.free_at(now));
        self.faults.set(direction);
        self.jitter
            .set_one_stream(direction, direction.jitter.as_ref(), Jitter::new);
        self.propagation = make_propagation(direction, last_due);
        self.resend(now, waiting, lost);
    }

    /// Send a slice over a line with faults: without the segments that are lost, and in pieces if some are corrupted or duplicated.
    fn send_in_pieces(
        &mut self,
        admitted_packet: &AdmittedPacket<T>,
        first: u32,
        count: u32,
        admission: &mut Admission,
    ) {
        let (mut next, end) = (first, first + count);
        while next < end {
            let clean = self.faults.skip_clean(end - next);
            if clean > 0 {
                self.send(admitted_packet, next, clean, None, false);
                admission.slices += 1;
                next += clean;
                continue;
            }
            match self.faults.next() {
                Verdict::Lost => {
                    self.send_lost(admitted_packet, next);
                    admission.lost += 1;
                }
                Verdict::Arrives {
                    flaw,
                    is_duplicated,
                } => {
                    self.send(admitted_packet, next, 1, flaw, is_duplicated);
                    admission.slices += 1 + u32::from(is_duplicated);
                }
            }
            next += 1;
        }
    }

    fn send(
        &mut self,
        admitted_packet: &AdmittedPacket<T>,
        first: u32,
        count: u32,
        flaw: Option<u32>,
        is_duplicated: bool,
    ) {
        let wire_bytes = admitted_packet.train.bytes(first, count);
        let departure = self.bottleneck.depart(admitted_packet.arrival, wire_bytes);
        let due = self.propagation.due(departure, admitted_packet.extra_delay);
        for is_copy in [false, true] {
            self.sequence += 1;
            self.in_flight.push(Slice {
                packet: admitted_packet.packet,
                first,
                count,
                due,
                wire_bytes,
                is_deferrable: admitted_packet.train.is_deferrable,
                flaw,
                is_copy,
                was_overtaken: false,
                sequence: self.sequence,
                arrival: admitted_packet.arrival,
                departure,
            });
            if !is_duplicated {
                break;
            }
        }
    }

    fn send_lost(&mut self, admitted_packet: &AdmittedPacket<T>, index: u32) {
        let wire_bytes = admitted_packet.train.bytes(index, 1);
        let departure = self.bottleneck.depart(admitted_packet.arrival, wire_bytes);
        self.sequence += 1;
        self.lost.push_back(LostSegment {
            sequence: self.sequence,
            arrival: admitted_packet.arrival,
            departure,
            wire_bytes,
        });
    }

    /// Forget the lost segments that have left the bottleneck at `now`.
    fn forget_lost(&mut self, now: Nanos) {
        while let Some(lost) = self.lost.front().filter(|lost| lost.departure <= now) {
            self.last_departure = self.last_departure.max(lost.departure);
            self.lost.pop_front();
        }
    }

    /// When the bottleneck can begin to send the slices that wait at `now`.
    fn free_at(&self, now: Nanos) -> Nanos {
        let departed = self.in_flight.last_departure().unwrap_or(0);
        departed.max(self.last_departure).min(now)
    }

    /// Send the waiting slices and lost segments again, in order of arrival.
    fn resend(&mut self, now: Nanos, waiting: Vec<Slice<T>>, lost: VecDeque<LostSegment>) {
        let mut lost = lost.into_iter().peekable();
        let (mut departure, mut due) = (0, 0);
        for mut slice in waiting {
            while let Some(earlier) = lost.next_if(|lost| lost.sequence < slice.sequence) {
                self.resend_lost(earlier);
            }
            if !slice.is_copy {
                let extra = self.jitter.get().map_or(0, Jitter::sample);
                departure = self.bottleneck.depart(slice.arrival, slice.wire_bytes);
                due = self.propagation.due(departure, extra).max(now);
            }
            (slice.departure, slice.due) = (departure, due);
            self.in_flight.push(slice);
        }
        lost.for_each(|lost| self.resend_lost(lost));
    }

    fn resend_lost(&mut self, lost: LostSegment) {
        let departure = self.bottleneck.depart(lost.arrival, lost.wire_bytes);
        self.lost.push_back(LostSegment { departure, ..lost });
    }

    /// How many of the train's segments fit behind a backlog of `backlog` bytes.
    fn count_fitting(&self, mut backlog: u64, train: Train) -> u32 {
        let total = train.bytes(0, train.segments);
        if self.bottleneck.is_unlimited() || self.queue.fits(backlog + total) {
            return train.segments;
        }
        for index in 0..train.segments {
            let wire_bytes = train.bytes(index, 1);
            if !self.queue.admits(backlog, wire_bytes) {
                return index;
            }
            backlog += wire_bytes;
        }
        train.segments
    }

    fn segments_per_slice(&self, arrival: Nanos, train: Train) -> u32 {
        let bytes = self.bottleneck.max_slice_bytes(arrival);
        bytes.map_or(train.segments, |bytes| {
            (bytes / train.wire_bytes.max(1)).max(1)
        })
    }
}

/// A line on which everything already in flight arrives by `last_due`. Reordering needs jitter: without it, packets do not overtake
/// even when the delay gets shorter.
fn make_propagation(direction: &Direction, last_due: Nanos) -> Propagation {
    let reorder = direction.reorder && direction.jitter.is_some();
    Propagation::new(direction.effective_delay(), reorder, last_due)
}

#[cfg(test)]
mod effects_tests;
#[cfg(test)]
mod tests;
