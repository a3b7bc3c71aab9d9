//! The clocks, in nanoseconds. Pure modules do not read them: their callers pass the time.

use rustix::io::Errno;
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds since an arbitrary origin; never decreases.
#[inline]
pub(crate) fn now_ns() -> u64 {
    read(ClockId::Monotonic)
}

/// Nanoseconds since 1970.
pub(crate) fn unix_ns() -> u64 {
    read(ClockId::Realtime)
}

/// Sleep until `at_ns` of the monotonic clock; returns at once if it has passed.
pub(crate) fn sleep_until(at_ns: u64) {
    let until = timespec(at_ns);
    while at_ns > now_ns() {
        let slept = clock_nanosleep_absolute(ClockId::Monotonic, &until);
        if !matches!(slept, Ok(()) | Err(Errno::INTR)) {
            return;
        }
    }
}

/// CPU time that this thread has used.
pub(crate) fn thread_cpu_ns() -> u64 {
    read(ClockId::ThreadCPUTime)
}

pub(crate) fn timespec(ns: u64) -> Timespec {
    Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    }
}

#[inline]
fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
