//! The kernel's clocks, in nanoseconds.

use rustix::time::{ClockId, clock_gettime};

#[inline]
pub(crate) fn now_ns() -> u64 {
    read(ClockId::Monotonic)
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu_ns() -> u64 {
    read(ClockId::ThreadCPUTime)
}

#[inline]
fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
