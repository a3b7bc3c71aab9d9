//! The queue before the bottleneck: it is bounded in bytes, drops at its tail, and decides on each segment separately.

/// A drop-tail queue. Its limit counts bytes on the wire, including the unsent rest of the segment being sent.
#[derive(Debug)]
pub(crate) struct DropTail {
    limit: u64,
}

impl DropTail {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit }
    }

    /// Whether a segment of `wire_bytes` may join a queue that holds `backlog` bytes. An idle bottleneck takes any segment.
    pub(crate) fn admits(&self, backlog: u64, wire_bytes: u64) -> bool {
        backlog == 0 || self.fits(backlog + wire_bytes)
    }

    /// Whether a queue of `bytes` is within the limit.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        bytes <= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_exact() {
        let queue = DropTail::new(3_000);
        assert!(queue.admits(1_500, 1_500));
        assert!(!queue.admits(1_501, 1_500));
        assert!(
            queue.admits(0, 9_000),
            "an idle line takes a segment larger than its queue"
        );
    }
}
