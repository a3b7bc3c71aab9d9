//! Counters of one direction since the link began or since the last reset.

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

use crate::effects::Nanos;
use crate::event::{DirectionStats, Drops};

/// Lateness above this is counted as this.
const MAX_LATENESS: u64 = 60_000_000_000;

#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) packets: u64,
    pub(crate) segments: u64,
    pub(crate) wire_bytes: u64,
    pub(crate) admitted: u64,
    /// `socket` is filled in only when the counters are read.
    pub(crate) drops: Drops,
    /// Packets that the kernel could not describe in a virtio-net header.
    pub(crate) refused: u64,
    pub(crate) duplicated: u64,
    pub(crate) corrupted: u64,
    pub(crate) reordered: u64,
    pub(crate) queue_bytes_max: u64,
    /// Maximum since the counters were last read, with or without a reset.
    pub(crate) queue_bytes_lately: u64,
    lateness: Histogram<u64>,
    /// Sum of the lateness; packets that left early count as negative.
    lateness_sum: i64,
    slices: u64,
    cpu_start: Nanos,
    /// The socket's drops at the last reset; None if unknown.
    socket_start: Option<u64>,
}

impl Counters {
    /// Start counting; to be called in the thread whose CPU time is counted.
    pub(crate) fn new() -> Self {
        Self {
            packets: 0,
            segments: 0,
            wire_bytes: 0,
            admitted: 0,
            drops: Drops::default(),
            refused: 0,
            duplicated: 0,
            corrupted: 0,
            reordered: 0,
            queue_bytes_max: 0,
            queue_bytes_lately: 0,
            lateness_sum: 0,
            slices: 0,
            lateness: Histogram::new_with_bounds(1, MAX_LATENESS, 2).expect("the bounds are right"),
            cpu_start: thread_cpu(),
            socket_start: Some(0),
        }
    }

    /// A slice that was due at `due` left at `now`, the moment just before the send that took it.
    pub(crate) fn record_departure(&mut self, due: Nanos, now: Nanos) {
        self.lateness.saturating_record(now.saturating_sub(due));
        self.lateness_sum += now as i64 - due as i64;
        self.slices += 1;
    }

    /// Record that the queue now holds `bytes`.
    pub(crate) fn record_queue(&mut self, bytes: u64) {
        self.queue_bytes_max = self.queue_bytes_max.max(bytes);
        self.queue_bytes_lately = self.queue_bytes_lately.max(bytes);
    }

    /// The statistics; `socket_drops` is the socket's total since it was opened, None if unknown.
    pub(crate) fn to_stats(&self, socket_drops: Option<u64>) -> DirectionStats {
        let quantile = |part| self.lateness.value_at_quantile(part);
        DirectionStats {
            packets: self.packets,
            segments: self.segments,
            wire_bytes: self.wire_bytes,
            admitted: self.admitted,
            drops: Drops {
                socket: socket_drops
                    .zip(self.socket_start)
                    .map(|(total, start)| total.saturating_sub(start) + self.refused),
                ..self.drops
            },
            duplicated: self.duplicated,
            corrupted: self.corrupted,
            reordered: self.reordered,
            queue_bytes_max: self.queue_bytes_max,
            queue_bytes_lately: self.queue_bytes_lately,
            lateness_mean_ns: (self.slices > 0).then(|| self.lateness_sum / self.slices as i64),
            lateness_p50_ns: quantile(0.5),
            lateness_p99_ns: quantile(0.99),
            lateness_p999_ns: quantile(0.999),
            lateness_max_ns: self.lateness.max(),
            cpu_ns: thread_cpu() - self.cpu_start,
        }
    }

    /// Restart all counters except `queue_bytes_lately`.
    pub(crate) fn reset(&mut self, socket_drops: Option<u64>) {
        self.packets = 0;
        self.segments = 0;
        self.wire_bytes = 0;
        self.admitted = 0;
        self.drops = Drops::default();
        self.refused = 0;
        (self.duplicated, self.corrupted, self.reordered) = (0, 0, 0);
        self.queue_bytes_max = 0;
        self.lateness.reset();
        (self.lateness_sum, self.slices) = (0, 0);
        self.cpu_start = thread_cpu();
        self.socket_start = socket_drops;
    }
}

fn thread_cpu() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_of_the_socket_count_from_the_last_reset() {
        let mut counters = Counters::new();
        counters.refused = 2;
        assert_eq!(counters.to_stats(Some(5)).drops.socket, Some(7));
        counters.reset(Some(5));
        assert_eq!(counters.to_stats(Some(6)).drops.socket, Some(1));
    }

    #[test]
    fn the_recent_depth_of_the_queue_is_forgotten_by_who_asked_and_not_by_a_reset() {
        let mut counters = Counters::new();
        counters.record_queue(900);
        counters.record_queue(300);
        let stats = counters.to_stats(None);
        assert_eq!(
            (stats.queue_bytes_max, stats.queue_bytes_lately),
            (900, 900)
        );
        counters.queue_bytes_lately = 100;
        counters.record_queue(200);
        let stats = counters.to_stats(None);
        assert_eq!(
            (stats.queue_bytes_max, stats.queue_bytes_lately),
            (900, 200)
        );
        counters.reset(None);
        let stats = counters.to_stats(None);
        assert_eq!((stats.queue_bytes_max, stats.queue_bytes_lately), (0, 200));
    }

    #[test]
    fn what_the_socket_does_not_tell_is_unknown_and_not_zero() {
        let mut counters = Counters::new();
        assert_eq!(counters.to_stats(None).drops.socket, None);
        assert_eq!(counters.to_stats(Some(1)).drops.socket, Some(1));
        counters.reset(None);
        assert_eq!(
            counters.to_stats(Some(1)).drops.socket,
            None,
            "of how many before the reset nothing is known"
        );
        counters.reset(Some(4));
        assert_eq!(counters.to_stats(Some(4)).drops.socket, Some(0));
    }
}
