//! What a link does to packets. One effect, one file; each is arithmetic on numbers that it is given, without a clock.
//!
//! Order along the way, and why:
//!
//! 1. `outage`: is the line up when the packet arrives? A line that is down takes nothing, so that neither queue nor bottleneck sees it.
//! 2. `queue`: may the segment wait? It is before the bottleneck because that is what it waits for.
//! 3. `rate` (or `trace`): when has its last bit left the bottleneck?
//! 4. `faults`, the line beyond: `loss`, `corrupt`, `duplicate`. What is lost or spoilt here has used its time on the bottleneck, as what is
//!    lost in the air or on a cable has; loss that frees the bottleneck would raise the goodput of the others. A copy is
//!    made beyond it, and costs it nothing. What is lost is neither spoilt nor copied; what is spoilt may be copied.
//! 5. `delay` and `jitter`: when is it at the far end?
//!
//! Loss, corruption and duplication look at every segment; jitter and delay at slices, which are at most 100 µs of the wire, because a
//! super-packet is many segments that would have come one after the other. Random numbers come from `draws`, a stream for each effect;
//! `ongoing` says which they are when what is requested changes.

pub(crate) mod corrupt;
pub(crate) mod delay;
pub(crate) mod draws;
pub(crate) mod duplicate;
pub(crate) mod faults;
pub(crate) mod jitter;
pub(crate) mod loss;
pub(crate) mod ongoing;
pub(crate) mod outage;
pub(crate) mod queue;
pub(crate) mod random_events;
pub(crate) mod rate;
pub(crate) mod trace;

/// Nanoseconds of a monotonic clock, or a length of time.
pub(crate) type Nanos = u64;
