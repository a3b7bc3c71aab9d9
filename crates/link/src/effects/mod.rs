//! What a link does to packets. One effect, one file; each is arithmetic on numbers that it is given, without a clock.
//!
//! Order along the way: the queue decides whether a segment may wait, the rate says when its last bit has left the
//! bottleneck, the delay says when that bit is at the far end.

pub(crate) mod delay;
pub(crate) mod queue;
pub(crate) mod rate;

/// Nanoseconds of a monotonic clock, or a length of time.
pub(crate) type Nanos = u64;
