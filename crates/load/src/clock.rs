//! The monotonic clock, in nanoseconds. Only the shells (worker, coordinator) read it.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since an arbitrary moment; never goes back.
#[inline]
pub(crate) fn now_ns() -> u64 {
    read(ClockId::Monotonic)
}

/// Nanoseconds since 1970.
pub(crate) fn unix_ns() -> u64 {
    read(ClockId::Realtime)
}

#[inline]
fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
