//! An application's own computing: arithmetic until the thread has used as much CPU time as requested.
//!
//! Measured by the thread's CPU clock, not the wall clock: a page that has to wait for a CPU computes just as much.

use std::hint::black_box;

use rustix::time::{ClockId, clock_gettime};

/// Computing time between two readings of the clock: a reading costs a few hundred nanoseconds.
const CHUNK_NS: u64 = 20_000;
/// Steps of one trial: long enough to time.
const TRIAL: u64 = 100_000;
const TRIALS: u32 = 5;

/// CPU time that this thread has used.
pub(crate) fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Speed of the arithmetic on this machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    steps_per_us: u64,
}

impl Pace {
    /// Measure the pace: the fastest of several trials, since disturbances only slow a trial down.
    pub(crate) fn measure() -> Self {
        let trial = || {
            let began = thread_cpu_ns();
            compute(TRIAL);
            (thread_cpu_ns() - began).max(1)
        };
        let fastest = (0..TRIALS).map(|_| trial()).min().unwrap_or(1);
        Self {
            steps_per_us: (TRIAL * 1000 / fastest).max(1),
        }
    }
}

/// Compute `steps` that depend on each other: none can be optimised away or run in parallel.
fn compute(steps: u64) {
    let mut value = 0x9E37_79B9_7F4A_7C15_u64;
    for step in 0..steps {
        value = (value ^ (value >> 29))
            .wrapping_mul(0xBF58_476D_1CE4_E5B9)
            .wrapping_add(step);
    }
    black_box(value);
}

/// Uses CPU time for one worker.
#[derive(Debug)]
pub(crate) struct Burner {
    pace: Pace,
    /// CPU time used beyond the request: subtracted from the next request.
    credit_ns: u64,
}

impl Burner {
    pub(crate) fn new(pace: Pace) -> Self {
        Self { pace, credit_ns: 0 }
    }

    /// Use `requested_ns` of CPU time.
    pub(crate) fn burn(&mut self, requested_ns: u64) {
        let saved = self.credit_ns.min(requested_ns);
        let needed_ns = requested_ns - saved;
        self.credit_ns -= saved;
        if needed_ns == 0 {
            return;
        }
        let began = thread_cpu_ns();
        let mut used = 0;
        while used < needed_ns {
            let chunk_ns = (needed_ns - used).min(CHUNK_NS);
            compute(chunk_ns * self.pace.steps_per_us / 1000);
            used = thread_cpu_ns() - began;
        }
        self.credit_ns += (used - needed_ns).min(CHUNK_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time used is at least the time requested, and excess is compensated. The bounds hold on a busy machine too, because the
    /// clock is the thread's own.
    #[test]
    fn what_is_asked_is_used() {
        let mut burner = Burner::new(Pace::measure());
        for requested_ns in [7_000, 50_000, 1_000_000] {
            let began = thread_cpu_ns();
            for _ in 0..20 {
                burner.burn(requested_ns);
            }
            let used = thread_cpu_ns() - began;
            let requested = 20 * requested_ns;
            // Up to a chunk may be credit of the requests before, and the clock readings at both ends are not counted.
            assert!(used + CHUNK_NS >= requested, "{used} of {requested}");
            assert!(
                used < requested + requested / 2 + 20 * CHUNK_NS,
                "{used} of {requested}"
            );
        }
        burner.burn(0);
    }
}
