//! An application's own computing: arithmetic until the thread has used as much CPU time as requested.
//!
//! Measured by the thread's CPU clock, not the wall clock: a page that has to wait for a CPU computes just as much.

use std::hint::black_box;

use crate::clock::thread_cpu_ns;

/// Computing time between two readings of the clock: a reading costs a few hundred nanoseconds.
const CHUNK_NS: u64 = 20_000;
/// Steps of one trial: long enough to time.
const TRIAL_STEPS: u64 = 100_000;
const TRIALS: u32 = 5;

/// Speed of the arithmetic on this machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ComputeSpeed {
    steps_per_us: u64,
}

impl ComputeSpeed {
    /// Measure the speed: the fastest of several trials, since disturbances only slow a trial down.
    pub(crate) fn measure() -> Self {
        let trial = || {
            let began = thread_cpu_ns();
            compute(TRIAL_STEPS);
            (thread_cpu_ns() - began).max(1)
        };
        let fastest = (0..TRIALS).map(|_| trial()).min().unwrap_or(1);
        Self {
            steps_per_us: (TRIAL_STEPS * 1000 / fastest).max(1),
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

/// Uses up CPU time for one worker, as an application's own computing would.
#[derive(Debug)]
pub(crate) struct Burner {
    speed: ComputeSpeed,
    /// CPU time used beyond the request: subtracted from the next request.
    credit_ns: u64,
}

impl Burner {
    pub(crate) fn new(speed: ComputeSpeed) -> Self {
        Self {
            speed,
            credit_ns: 0,
        }
    }

    /// Use `requested_ns` of CPU time.
    pub(crate) fn burn(&mut self, requested_ns: u64) {
        let credit_ns = self.credit_ns.min(requested_ns);
        let needed_ns = requested_ns - credit_ns;
        self.credit_ns -= credit_ns;
        if needed_ns == 0 {
            return;
        }
        let began = thread_cpu_ns();
        let mut used_ns = 0;
        while used_ns < needed_ns {
            let chunk_ns = (needed_ns - used_ns).min(CHUNK_NS);
            compute(chunk_ns * self.speed.steps_per_us / 1000);
            used_ns = thread_cpu_ns() - began;
        }
        self.credit_ns += (used_ns - needed_ns).min(CHUNK_NS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time used is at least the time requested, and excess is compensated. The bounds hold on a busy machine too, because the
    /// clock is the thread's own.
    #[test]
    fn the_requested_cpu_time_is_used() {
        let mut burner = Burner::new(ComputeSpeed::measure());
        for requested_ns in [7_000, 50_000, 1_000_000] {
            let began = thread_cpu_ns();
            for _ in 0..20 {
                burner.burn(requested_ns);
            }
            let used_ns = thread_cpu_ns() - began;
            let total_ns = 20 * requested_ns;
            // Up to a chunk may be credit of the requests before, and the clock readings at both ends are not counted.
            assert!(used_ns + CHUNK_NS >= total_ns, "{used_ns} of {total_ns}");
            // In an emulator, reading the clock takes longer than a chunk.
            let emulated = std::env::var_os("HOWFAR_EMULATED").is_some();
            assert!(
                emulated || used_ns < total_ns + total_ns / 2 + 20 * CHUNK_NS,
                "{used_ns} of {total_ns}"
            );
        }
        burner.burn(0);
    }
}
