//! Sleeping until a moment and waking on time: pure arithmetic on clock readings that the caller passes in.
//!
//! A sleeper wakes late, by an amount that depends on the machine (2 µs on bare metal, 50 µs on a virtual machine whose processors
//! halt). So it asks to be woken earlier by its usual lateness, and spins for the rest. Spinning costs processor time, of which
//! only a share is allowed; without it the sleeper is late, and its lateness is recorded.

use crate::effects::Nanos;

/// Maximum lead: how much earlier than due a sleeper asks to be woken.
const LEAD_MAX: Nanos = 60_000;
/// Minimum lead: a shorter wait is spent spinning, because going to sleep costs more.
const LEAD_MIN: Nanos = 3_000;
/// How fast the lead adapts: a late waking adds `STEP`, any other subtracts a sixteenth of it. The lead settles where one waking in
/// seventeen is late. Settling at one in four saved a tenth of the CPU, but the p99 error of a round trip was two to six times as
/// large.
const STEP: Nanos = 2_000;
const STEPS_BACK: Nanos = 16;
/// Spinning may use 1/`SHARE` of the time: little at a high packet rate, when the processor is awake and wakes on time, and
/// enough for one waking per millisecond, however late it is.
const SHARE: Nanos = 32;
/// Unused spinning time accumulates up to this.
const SAVED_MAX: Nanos = 2_000_000;

/// What to do while waiting for a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// Spin: read the clock until it is time.
    Watch,
    /// Sleep until this moment, then ask again.
    Sleep(Nanos),
}

#[derive(Debug)]
pub(crate) struct Sleeper {
    lead: Nanos,
    saved: Nanos,
    last: Nanos,
}

impl Sleeper {
    pub(crate) fn new(now: Nanos) -> Self {
        Self {
            lead: LEAD_MIN,
            saved: SAVED_MAX,
            last: now,
        }
    }

    /// What to do at `now` until `due`, which is later.
    pub(crate) fn until(&mut self, now: Nanos, due: Nanos) -> Until {
        self.saved = (self.saved + now.saturating_sub(self.last) / SHARE).min(SAVED_MAX);
        self.last = now;
        let lead = self.lead.min(self.saved).max(LEAD_MIN);
        if due.saturating_sub(now) <= lead {
            Until::Watch
        } else {
            Until::Sleep(due - lead)
        }
    }

    /// Record that `time` was spent spinning.
    pub(crate) fn watched(&mut self, time: Nanos) {
        self.saved = self.saved.saturating_sub(time);
    }

    /// Adapt the lead to a sleep that should have ended at `wanted` and ended at `woken`.
    pub(crate) fn slept(&mut self, wanted: Nanos, woken: Nanos) {
        self.lead = if woken > wanted + self.lead {
            (self.lead + STEP).min(LEAD_MAX)
        } else {
            self.lead.saturating_sub(STEP / STEPS_BACK).max(LEAD_MIN)
        };
    }
}

/// Lateness beyond this is a stall and is clamped: it does not show the usual lateness.
const STALL: Nanos = 200_000;
/// Averaging window, in packets.
const MEMORY: i64 = 64;

/// How early to release packets so that they leave on time on average: by their usual lateness. The remaining error is symmetric
/// and adds nothing to the mean round trip.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// In parts of 1/[`MEMORY`] ns.
    parts: i64,
    most: Nanos,
}

impl Ahead {
    /// `delay`: the direction's delay. A packet never leaves early by more than a quarter of it.
    pub(crate) fn new(delay: Nanos) -> Self {
        let mut this = Self { parts: 0, most: 0 };
        this.set(delay);
        this
    }

    /// The direction's delay changed; keep what was learned about the machine.
    pub(crate) fn set(&mut self, delay: Nanos) {
        self.most = (delay / 4).min(LEAD_MAX);
        self.parts = self.parts.min(self.most as i64 * MEMORY);
    }

    pub(crate) fn time(&self) -> Nanos {
        (self.parts / MEMORY) as Nanos
    }

    /// Learn from a packet that was due at `due` and left at `left`.
    pub(crate) fn left(&mut self, due: Nanos, left: Nanos) {
        let late = (left as i64 - due as i64).clamp(-(STALL as i64), STALL as i64);
        self.parts = (self.parts + late).clamp(0, self.most as i64 * MEMORY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_on_time_in_the_mean() {
        let mut ahead = Ahead::new(100_000);
        let mut sum = 0;
        for number in 0..20_000_u64 {
            // The machine is late by 2 to 22 µs, once in a hundred times by a millisecond.
            let late = if number % 100 == 0 {
                1_000_000
            } else {
                2_000 + number * 7_919 % 20_000
            };
            let due = number * 250_000;
            let left = due - ahead.time() + late;
            ahead.left(due, left);
            if number >= 10_000 && number % 100 != 0 {
                sum += left as i64 - due as i64;
            }
        }
        assert!((sum / 9_900).abs() < 2_500, "{}", sum / 9_900);
    }

    #[test]
    fn no_packet_leaves_before_a_short_delay_allows_it() {
        let mut ahead = Ahead::new(8_000);
        for _ in 0..10_000 {
            ahead.left(0, 50_000);
        }
        assert_eq!(ahead.time(), 2_000);
        assert_eq!(Ahead::new(0).time(), 0);
    }

    #[test]
    fn what_is_usual_stays_when_the_delay_changes() {
        let mut ahead = Ahead::new(400_000);
        for _ in 0..10_000 {
            ahead.left(0, 20_000);
        }
        let usual = ahead.time();
        ahead.set(10_000_000);
        assert_eq!(ahead.time(), usual);
        ahead.set(8_000);
        assert_eq!(ahead.time(), 2_000);
        ahead.set(0);
        assert_eq!(ahead.time(), 0);
    }

    /// `parts` accumulates the lateness itself, so the sum of all lateness does not go below zero, except by what the end of a
    /// burst subtracts.
    #[test]
    fn bursts_do_not_make_the_mean_early() {
        let mut ahead = Ahead::new(10_000_000);
        let (mut sum, mut count) = (0_i64, 0_i64);
        for burst in 0..2_000_u64 {
            let due = burst * 1_000_000;
            // The packets of a burst leave one after the other: the sleeper wakes for the first, and each takes 5 µs.
            let mut left = due - ahead.time() + burst * 7_919 % 30_000;
            for _ in 0..=(burst % 20) {
                ahead.left(due, left);
                sum += left as i64 - due as i64;
                count += 1;
                left += 5_000;
            }
        }
        assert!(sum >= 0, "{sum}");
        assert!(sum / count < 2_000, "{}", sum / count);
    }

    #[test]
    fn the_lead_follows_what_is_usual() {
        let mut sleeper = Sleeper::new(0);
        for round in 1..1_000 {
            let now = round * 1_000_000;
            let Until::Sleep(wanted) = sleeper.until(now, now + 500_000) else {
                panic!("there is time to sleep")
            };
            sleeper.slept(wanted, wanted + 40_000);
        }
        assert!(
            (39_000..=42_000).contains(&sleeper.lead),
            "{}",
            sleeper.lead
        );
        assert_eq!(sleeper.until(2_000_000_000, 2_000_030_000), Until::Watch);
    }

    #[test]
    fn watching_is_rationed() {
        let mut sleeper = Sleeper::new(0);
        for _ in 0..1_000 {
            sleeper.slept(0, 1_000_000);
        }
        assert_eq!(sleeper.until(0, 50_000), Until::Watch);
        sleeper.watched(SAVED_MAX);
        assert_eq!(
            sleeper.until(0, 50_000),
            Until::Sleep(47_000),
            "nothing is saved, the least lead remains"
        );
        assert_eq!(
            sleeper.until(1_600_000, 1_650_000),
            Until::Watch,
            "a thirty-second part of the time since"
        );
    }
}
