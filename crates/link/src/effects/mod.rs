//! The effects of a link on packets, one in each file; each is pure arithmetic on its arguments, without a clock.
//!
//! Order of the effects along the path, and why:
//!
//! 1. `outage`: is the line up when the packet arrives? A line that is down loses it before queue and bottleneck.
//! 2. `queue`: may the segment wait? The queue is before the bottleneck because segments wait for the bottleneck.
//! 3. `rate` (or `trace`): when has its last bit left the bottleneck?
//! 4. `faults`, on the line beyond: `loss`, `corrupt`, `duplicate`. A segment lost or corrupted here has used its time on the
//!    bottleneck, as one lost in the air or on a cable has; loss that freed the bottleneck would raise the goodput of the others. A
//!    copy is made beyond the bottleneck and costs it nothing. A lost segment is neither corrupted nor copied; a corrupted one may
//!    be copied.
//! 5. `delay` and `jitter`: when is it at the far end?
//!
//! Loss, corruption and duplication apply to each segment; jitter and delay to slices, which take at most 100 µs on the wire,
//! because the many segments of a super-packet would have come one after the other. Random numbers come from
//! `random_stream`, a stream for each effect; `effect_slot` decides which numbers are used when the settings change.

pub(crate) mod corrupt;
pub(crate) mod delay;
pub(crate) mod duplicate;
pub(crate) mod effect_slot;
pub(crate) mod faults;
pub(crate) mod jitter;
pub(crate) mod loss;
pub(crate) mod outage;
pub(crate) mod queue;
pub(crate) mod random_events;
pub(crate) mod random_stream;
pub(crate) mod rate;
pub(crate) mod trace;

/// Nanoseconds of a monotonic clock, or a length of time.
pub(crate) type Nanos = u64;
