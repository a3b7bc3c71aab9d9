//! The clocks of this machine, and how to make a thread wake on time.

use std::num::NonZeroU64;

use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::effects::Nanos;
use crate::job::Realtime;
use crate::sys;

/// Maximum credible age of a kernel stamp: with an older one, the real-time clock must have been set in between. The limit is long,
/// because a packet may have waited for a thread that did not run; such a wait must be counted as lateness.
const MAX_STAMP_AGE: i128 = 60_000_000_000;
/// How much later than the reading of the clocks a stamp may be: the packet may have arrived after the reading.
const MAX_STAMP_AHEAD: i128 = 1_000_000_000;
/// A low real-time priority: it only has to be above every normal thread.
const REALTIME_PRIORITY: i32 = 10;
/// Time slice in the normal class: the shortest that the kernel grants.
const TIME_SLICE: Nanos = 100_000;

/// The monotonic clock.
pub(crate) fn now() -> Nanos {
    read_clock(ClockId::Monotonic)
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu() -> Nanos {
    read_clock(ClockId::ThreadCPUTime)
}

fn read_clock(clock: ClockId) -> Nanos {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The real-time clock counts as set if it has moved by more than this, plus a thousandth of the elapsed time, against the
/// monotonic one since the previous batch: clock discipline moves it by less than a thousandth, and the thread may pause between
/// the two readings of a batch.
const MIN_CLOCK_STEP: i128 = 2_000_000;

/// Converts kernel stamps, which use the real-time clock, to the monotonic clock. Both clocks are read once for a batch of packets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StampConverter {
    monotonic: Nanos,
    real: i128,
    /// The real-time clock was set since the previous batch: a stamp may be from before or after that.
    was_set: bool,
}

impl StampConverter {
    pub(crate) fn read() -> Self {
        let real = i128::from(read_clock(ClockId::Realtime));
        Self {
            monotonic: now(),
            real,
            was_set: false,
        }
    }

    /// Read the clocks again for the next batch.
    pub(crate) fn refresh(self) -> Self {
        Self::read().compare_with(self)
    }

    /// Detect whether the real-time clock was set since the reading `before`.
    fn compare_with(self, before: Self) -> Self {
        let offset = |stamps: Self| stamps.real - i128::from(stamps.monotonic);
        let elapsed = i128::from(self.monotonic.saturating_sub(before.monotonic));
        let drift = (offset(self) - offset(before)).abs();
        Self {
            was_set: drift > MIN_CLOCK_STEP + elapsed / 1000,
            ..self
        }
    }

    /// The time of a stamp on the monotonic clock; now if the stamp is missing or not credible.
    pub(crate) fn to_monotonic(self, stamp: Option<i128>) -> Nanos {
        match stamp.map(|stamp| self.real - stamp) {
            Some(age) if !self.was_set && (-MAX_STAMP_AHEAD..MAX_STAMP_AGE).contains(&age) => {
                (i128::from(self.monotonic) - age).max(0) as u64
            }
            _ => now(),
        }
    }
}

pub(crate) fn timespec(time: Nanos) -> Timespec {
    Timespec {
        tv_sec: (time / 1_000_000_000) as i64,
        tv_nsec: (time % 1_000_000_000) as i64,
    }
}

/// How the kernel schedules a thread of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheduling {
    /// The real-time class.
    Realtime,
    /// The normal class, with a short time slice.
    ShortSlice,
    Normal,
}

/// Make the calling thread wake on time, as well as its permissions allow.
pub(crate) fn wake_on_time(realtime: Realtime) -> Scheduling {
    // By default the kernel deliberately fires timers of a normal thread up to 50 µs late. No kernel refuses this setting; without
    // it the link is only less exact, which calibration and lateness show.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    if realtime == Realtime::Off {
        Scheduling::Normal
    } else if sys::set_realtime(REALTIME_PRIORITY).is_ok() {
        Scheduling::Realtime
    } else if sys::set_short_slice(TIME_SLICE).is_ok() {
        Scheduling::ShortSlice
    } else {
        // Older kernels do not support custom slices.
        Scheduling::Normal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_converted_to_the_monotonic_clock() {
        let stamps = StampConverter {
            monotonic: 100_000_000_000,
            real: 1_700_000_000_000_000_000,
            was_set: false,
        };
        let stamp = |age: i128| Some(stamps.real - age);
        assert_eq!(stamps.to_monotonic(stamp(0)), 100_000_000_000);
        assert_eq!(stamps.to_monotonic(stamp(1_234)), 99_999_998_766);
        assert_eq!(stamps.to_monotonic(stamp(-50)), 100_000_000_050);
        // The machine was paused for 59 s.
        assert_eq!(stamps.to_monotonic(stamp(59_000_000_000)), 41_000_000_000);
        let before = now();
        for not_credible in [stamp(MAX_STAMP_AGE), stamp(-2 * MAX_STAMP_AHEAD), None] {
            assert!(stamps.to_monotonic(not_credible) >= before);
        }
    }

    /// The real-time clock is set 5 s ahead within ten milliseconds: a stamp from before the change would seem to be 5 s old.
    #[test]
    fn setting_the_clock_does_not_make_packets_older() {
        let before = StampConverter {
            monotonic: 100_000_000_000,
            real: 1_700_000_000_000_000_000,
            was_set: false,
        };
        let read_later = |step: i128| {
            let (monotonic, real) = (before.monotonic + 10_000_000, before.real + 10_000_000);
            let stamps = StampConverter {
                monotonic,
                real: real + step,
                was_set: false,
            };
            stamps.compare_with(before)
        };
        let stamp = Some(before.real + 9_000_000);
        assert_eq!(read_later(0).to_monotonic(stamp), 100_009_000_000);
        assert_eq!(
            read_later(100_000).to_monotonic(stamp),
            100_008_900_000,
            "clock discipline moves the clock by this much"
        );
        let now = now();
        assert!(read_later(5_000_000_000).to_monotonic(stamp) >= now);
        assert!(read_later(-5_000_000_000).to_monotonic(stamp) >= now);
        let next = read_later(5_000_000_000).refresh();
        assert!(
            next.was_set,
            "the real clocks differ from those of the test"
        );
        assert!(!next.refresh().was_set);
    }
}
