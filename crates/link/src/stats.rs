//! Counters of one direction since the link began or since the last reset.

use crate::clock::thread_cpu;
use crate::effects::Nanos;
use crate::event::{DirectionStats, Drops};
use hdrhistogram::Histogram;

/// Maximum lateness that is recorded; greater values count as this one.
const MAX_LATENESS: u64 = 60_000_000_000;

#[derive(Debug)]
pub(crate) struct Counters {
    /// The counts so far. Drops of the socket, lateness and CPU time are filled in by [`Self::to_stats`].
    pub(crate) counts: DirectionStats,
    /// Packets of a kind that a virtio-net header cannot describe: the kernel drops them.
    pub(crate) refused: u64,
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
            counts: DirectionStats::default(),
            refused: 0,
            lateness_sum: 0,
            slices: 0,
            lateness: Histogram::new_with_bounds(1, MAX_LATENESS, 2).expect("the bounds are valid"),
            cpu_start: thread_cpu(),
            socket_start: Some(0),
        }
    }

    /// Record a slice that was due at `due` and left at `departed`.
    pub(crate) fn record_departure(&mut self, due: Nanos, departed: Nanos) {
        self.lateness
            .saturating_record(departed.saturating_sub(due));
        self.lateness_sum += departed as i64 - due as i64;
        self.slices += 1;
    }

    /// Record that the queue now holds `bytes`.
    pub(crate) fn record_queue(&mut self, bytes: u64) {
        let counts = &mut self.counts;
        counts.queue_bytes_max = counts.queue_bytes_max.max(bytes);
        counts.queue_bytes_lately = counts.queue_bytes_lately.max(bytes);
    }

    /// The statistics; `socket_drops` is the socket's total since it was opened, None if unknown.
    pub(crate) fn to_stats(&self, socket_drops: Option<u64>) -> DirectionStats {
        let quantile = |fraction| self.lateness.value_at_quantile(fraction);
        DirectionStats {
            drops: Drops {
                socket: socket_drops
                    .zip(self.socket_start)
                    .map(|(total, start)| total.saturating_sub(start) + self.refused),
                ..self.counts.drops
            },
            lateness_mean_ns: (self.slices > 0).then(|| self.lateness_sum / self.slices as i64),
            lateness_p50_ns: quantile(0.5),
            lateness_p99_ns: quantile(0.99),
            lateness_p999_ns: quantile(0.999),
            lateness_max_ns: self.lateness.max(),
            cpu_ns: thread_cpu() - self.cpu_start,
            ..self.counts.clone()
        }
    }

    /// Restart all counters except `queue_bytes_lately`.
    pub(crate) fn reset(&mut self, socket_drops: Option<u64>) {
        self.counts = DirectionStats {
            queue_bytes_lately: self.counts.queue_bytes_lately,
            ..DirectionStats::default()
        };
        self.refused = 0;
        // Clear in place: this thread's lateness is measured, and a new histogram would take longer to make.
        self.lateness.reset();
        (self.lateness_sum, self.slices) = (0, 0);
        self.cpu_start = thread_cpu();
        self.socket_start = socket_drops;
    }
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
    fn a_reset_keeps_the_recent_queue_depth() {
        let mut counters = Counters::new();
        let queue_depths = |counters: &Counters| {
            let stats = counters.to_stats(None);
            (stats.queue_bytes_max, stats.queue_bytes_lately)
        };
        counters.record_queue(900);
        counters.record_queue(300);
        assert_eq!(queue_depths(&counters), (900, 900));
        counters.counts.queue_bytes_lately = 100;
        counters.record_queue(200);
        assert_eq!(queue_depths(&counters), (900, 200));
        counters.reset(None);
        assert_eq!(queue_depths(&counters), (0, 200));
    }

    #[test]
    fn drops_that_the_socket_does_not_report_are_unknown_not_zero() {
        let mut counters = Counters::new();
        assert_eq!(counters.to_stats(None).drops.socket, None);
        assert_eq!(counters.to_stats(Some(1)).drops.socket, Some(1));
        counters.reset(None);
        assert_eq!(
            counters.to_stats(Some(1)).drops.socket,
            None,
            "the drops before the reset are unknown"
        );
        counters.reset(Some(4));
        assert_eq!(counters.to_stats(Some(4)).drops.socket, Some(0));
    }
}
