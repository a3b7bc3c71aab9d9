//! Sleeping until a given time and waking on time, and releasing packets early enough to leave on time on average: pure arithmetic on
//! clock readings that the caller passes in.
//!
//! A sleeper wakes late, by an amount that depends on the machine (2 µs on bare metal, 50 µs on a virtual machine whose CPUs halt).
//! So it asks to be woken early, by as much as it usually is late, and spins until the due time. Spinning may use only a share of the
//! CPU time; when that share is used up, the sleeper wakes late, and its lateness is recorded.

use crate::effects::Nanos;

/// Maximum lead: how long before the due time a sleeper asks to be woken. Also the maximum lead of an early release.
const MAX_LEAD: Nanos = 60_000;
/// Minimum lead: a shorter wait is spent spinning, because going to sleep costs more.
const MIN_LEAD: Nanos = 3_000;
/// How fast the lead adapts: a late waking adds `LEAD_STEP`, any other subtracts a sixteenth of it. The lead settles where one waking
/// in seventeen is late. Settling at one in four saved a tenth of the CPU, but the p99 error of a round trip was two to six times as
/// large.
const LEAD_STEP: Nanos = 2_000;
const STEP_DOWN_DIVISOR: Nanos = 16;
/// Spinning may use 1/`SPIN_DIVISOR` of the elapsed time. At a high packet rate that is little for each packet, but then the CPU stays
/// awake and wakes on time; at one waking per millisecond it is 31 µs for each.
const SPIN_DIVISOR: Nanos = 32;
/// Unused spinning time accumulates up to this.
const MAX_SPIN_BUDGET: Nanos = 2_000_000;

/// How to wait for a due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Spin: read the clock until it is time.
    Spin,
    /// Sleep until this time, then plan again.
    Sleep(Nanos),
}

#[derive(Debug)]
pub(crate) struct Sleeper {
    lead: Nanos,
    spin_budget: Nanos,
    updated_at: Nanos,
}

impl Sleeper {
    pub(crate) fn new(now: Nanos) -> Self {
        Self {
            lead: MIN_LEAD,
            spin_budget: MAX_SPIN_BUDGET,
            updated_at: now,
        }
    }

    /// Choose how to wait from `now` until `due`, which is later.
    pub(crate) fn plan_wait(&mut self, now: Nanos, due: Nanos) -> Wait {
        self.spin_budget = (self.spin_budget + now.saturating_sub(self.updated_at) / SPIN_DIVISOR)
            .min(MAX_SPIN_BUDGET);
        self.updated_at = now;
        let lead = self.lead.min(self.spin_budget).max(MIN_LEAD);
        if due.saturating_sub(now) <= lead {
            Wait::Spin
        } else {
            Wait::Sleep(due - lead)
        }
    }

    /// Record that `duration` was spent spinning.
    pub(crate) fn record_spin(&mut self, duration: Nanos) {
        self.spin_budget = self.spin_budget.saturating_sub(duration);
    }

    /// Adapt the lead to a sleep that should have ended at `wake_at` and ended at `ended_at`.
    pub(crate) fn record_sleep(&mut self, wake_at: Nanos, ended_at: Nanos) {
        self.lead = if ended_at > wake_at + self.lead {
            (self.lead + LEAD_STEP).min(MAX_LEAD)
        } else {
            self.lead
                .saturating_sub(LEAD_STEP / STEP_DOWN_DIVISOR)
                .max(MIN_LEAD)
        };
    }
}

/// Lateness beyond this is a stall, not the usual lateness: it counts as this much.
const MAX_LATENESS: Nanos = 200_000;
/// Averaging window, in packets.
const WINDOW_PACKETS: i64 = 64;

/// How early to release packets so that they leave on time on average: by their usual lateness. The remaining errors average out, so
/// they add nothing to the mean round trip.
#[derive(Debug)]
pub(crate) struct EarlyRelease {
    /// In parts of 1/[`WINDOW_PACKETS`] ns.
    scaled_lead: i64,
    max_lead: Nanos,
}

impl EarlyRelease {
    /// Release packets early by at most a quarter of `delay`, the minimum one-way delay of a direction of the link.
    pub(crate) fn new(delay: Nanos) -> Self {
        let mut early_release = Self {
            scaled_lead: 0,
            max_lead: 0,
        };
        early_release.set_delay(delay);
        early_release
    }

    /// Adapt to a new minimum delay of the direction; the usual lateness that was learned is kept.
    pub(crate) fn set_delay(&mut self, delay: Nanos) {
        self.max_lead = (delay / 4).min(MAX_LEAD);
        self.scaled_lead = self.scaled_lead.min(self.max_lead as i64 * WINDOW_PACKETS);
    }

    pub(crate) fn lead(&self) -> Nanos {
        (self.scaled_lead / WINDOW_PACKETS) as Nanos
    }

    /// Learn from a packet that was due at `due` and left at `departed`.
    pub(crate) fn record_departure(&mut self, due: Nanos, departed: Nanos) {
        let lateness =
            (departed as i64 - due as i64).clamp(-(MAX_LATENESS as i64), MAX_LATENESS as i64);
        self.scaled_lead =
            (self.scaled_lead + lateness).clamp(0, self.max_lead as i64 * WINDOW_PACKETS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_on_time_on_average() {
        let mut early_release = EarlyRelease::new(100_000);
        let mut sum = 0;
        for number in 0..20_000_u64 {
            // The machine is late by 2 to 22 µs, once in a hundred times by a millisecond.
            let late = if number % 100 == 0 {
                1_000_000
            } else {
                2_000 + number * 7_919 % 20_000
            };
            let due = number * 250_000;
            let departed = due - early_release.lead() + late;
            early_release.record_departure(due, departed);
            if number >= 10_000 && number % 100 != 0 {
                sum += departed as i64 - due as i64;
            }
        }
        assert!((sum / 9_900).abs() < 2_500, "{}", sum / 9_900);
    }

    #[test]
    fn a_packet_leaves_early_by_at_most_a_quarter_of_the_delay() {
        let mut early_release = EarlyRelease::new(8_000);
        for _ in 0..10_000 {
            early_release.record_departure(0, 50_000);
        }
        assert_eq!(early_release.lead(), 2_000);
        assert_eq!(EarlyRelease::new(0).lead(), 0);
    }

    #[test]
    fn the_learned_lead_survives_a_change_of_the_delay() {
        let mut early_release = EarlyRelease::new(400_000);
        for _ in 0..10_000 {
            early_release.record_departure(0, 20_000);
        }
        let learned = early_release.lead();
        early_release.set_delay(10_000_000);
        assert_eq!(early_release.lead(), learned);
        early_release.set_delay(8_000);
        assert_eq!(early_release.lead(), 2_000);
        early_release.set_delay(0);
        assert_eq!(early_release.lead(), 0);
    }

    /// As long as nothing is clamped, `scaled_lead` is the sum of all lateness; it never goes below zero, so packets do not leave
    /// early on average.
    #[test]
    fn bursts_do_not_make_the_mean_early() {
        let mut early_release = EarlyRelease::new(10_000_000);
        let (mut sum, mut count) = (0_i64, 0_i64);
        for burst in 0..2_000_u64 {
            let due = burst * 1_000_000;
            // The packets of a burst leave one after the other: the sleeper wakes for the first, and each takes 5 µs.
            let mut departed = due - early_release.lead() + burst * 7_919 % 30_000;
            for _ in 0..=(burst % 20) {
                early_release.record_departure(due, departed);
                sum += departed as i64 - due as i64;
                count += 1;
                departed += 5_000;
            }
        }
        assert!(sum >= 0, "{sum}");
        assert!(sum / count < 2_000, "{}", sum / count);
    }

    #[test]
    fn the_lead_adapts_to_the_usual_lateness() {
        let mut sleeper = Sleeper::new(0);
        for round in 1..1_000 {
            let now = round * 1_000_000;
            let Wait::Sleep(wake_at) = sleeper.plan_wait(now, now + 500_000) else {
                panic!("there is time to sleep")
            };
            sleeper.record_sleep(wake_at, wake_at + 40_000);
        }
        assert!(
            (39_000..=42_000).contains(&sleeper.lead),
            "{}",
            sleeper.lead
        );
        assert_eq!(sleeper.plan_wait(2_000_000_000, 2_000_030_000), Wait::Spin);
    }

    #[test]
    fn spinning_is_limited_by_its_budget() {
        let mut sleeper = Sleeper::new(0);
        for _ in 0..1_000 {
            sleeper.record_sleep(0, 1_000_000);
        }
        assert_eq!(sleeper.plan_wait(0, 50_000), Wait::Spin);
        sleeper.record_spin(MAX_SPIN_BUDGET);
        assert_eq!(
            sleeper.plan_wait(0, 50_000),
            Wait::Sleep(47_000),
            "without a budget, only the minimum lead is spent spinning"
        );
        assert_eq!(
            sleeper.plan_wait(1_600_000, 1_650_000),
            Wait::Spin,
            "the budget grows by a thirty-second of the elapsed time"
        );
    }
}
