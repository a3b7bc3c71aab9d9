//! The clocks, in nanoseconds. Pure modules do not read them: their callers pass the time.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since an arbitrary origin; never decreases.
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
