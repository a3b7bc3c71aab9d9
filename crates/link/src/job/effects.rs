//! The requested effects: chances, distributions and schedules, checked when they are read.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::MAX_DELAY;
use crate::effects::Nanos;

/// A day: a longer time is a mistaken unit.
const MAX_TIME: Nanos = 86_400_000_000_000;
const MAX_SHAPE: f64 = 100.0;

/// How the delay of one packet differs from that of another.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Jitter {
    /// The delay varies around its mean. What would make it negative is taken as no delay at all.
    #[schemars(title = "NormalJitter")]
    Normal {
        /// Standard deviation.
        #[schemars(range(min = 1, max = 60_000_000_000_u64))]
        deviation_ns: Nanos,
    },
    /// What comes on top of the delay, with a heavy tail: a Pareto distribution moved to begin at zero (Lomax).
    #[schemars(title = "ParetoJitter")]
    Pareto {
        #[schemars(range(min = 1, max = 60_000_000_000_u64))]
        mean_ns: Nanos,
        /// The tail's exponent: lower is heavier. The variance is finite above 2.
        #[serde(default = "default_shape")]
        #[schemars(range(max = 100.0), extend("exclusiveMinimum" = 1.0))]
        shape: f64,
    },
    /// What comes on top of the delay, drawn from measured values with equal chances.
    #[schemars(title = "EmpiricalJitter")]
    Empirical {
        #[schemars(length(min = 1, max = 100_000), inner(range(max = 60_000_000_000_u64)))]
        extra_ns: Vec<Nanos>,
    },
}

/// Which segments the line loses.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Loss {
    /// Each segment is lost with the same chance, whatever became of the others.
    #[schemars(title = "IndependentLoss")]
    Independent {
        #[schemars(range(min = 0.0, max = 1.0))]
        probability: f64,
    },
    /// Gilbert's and Elliott's chain of two states, one step a segment; each state loses segments with a chance of
    /// its own.
    #[schemars(title = "BurstLoss")]
    GilbertElliott {
        #[schemars(range(min = 0.0, max = 1.0))]
        to_bad: f64,
        #[schemars(range(min = 0.0, max = 1.0))]
        to_good: f64,
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0))]
        loss_good: f64,
        #[serde(default = "default_loss_bad")]
        #[schemars(range(min = 0.0, max = 1.0))]
        loss_bad: f64,
    },
}

/// The line is down: what arrives at it is lost. Times count from the job or the `set` that brought them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[expect(
    clippy::struct_field_names,
    reason = "the contract's names carry their unit"
)]
pub(crate) struct Outage {
    #[schemars(range(max = howfar_contract::LONGEST_NS))]
    pub(crate) at_ns: Nanos,
    #[schemars(range(min = 1, max = howfar_contract::LONGEST_NS))]
    pub(crate) for_ns: Nanos,
    /// Again after each such time; None: once.
    #[schemars(range(min = 1, max = howfar_contract::LONGEST_NS))]
    #[serde(default)]
    pub(crate) every_ns: Option<Nanos>,
}

/// One step of a rate trace; 0 bit/s is a line that stands still while its queue fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RateStep {
    #[schemars(range(min = 1, max = howfar_contract::LONGEST_NS))]
    pub(crate) for_ns: Nanos,
    #[schemars(range(max = 1_000_000_000_000_u64))]
    pub(crate) rate_bps: u64,
}

const fn default_shape() -> f64 {
    3.0
}

const fn default_loss_bad() -> f64 {
    1.0
}

pub(super) fn check_chance(name: &str, chance: f64) -> Result<(), String> {
    if (0.0..=1.0).contains(&chance) {
        Ok(())
    } else {
        Err(format!("{name} is {chance}, not in 0 .. 1"))
    }
}

fn check_time(name: &str, time: Nanos, min: Nanos, max: Nanos) -> Result<(), String> {
    if (min..=max).contains(&time) {
        Ok(())
    } else {
        Err(format!("{name} is {time}, not in {min} .. {max} ns"))
    }
}

impl Jitter {
    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Self::Normal { deviation_ns } => {
                check_time("jitter.deviation_ns", *deviation_ns, 1, MAX_DELAY)
            }
            Self::Pareto { mean_ns, shape } => {
                if !(*shape > 1.0 && *shape <= MAX_SHAPE) {
                    return Err(format!(
                        "jitter.shape is {shape}, not above 1 and up to 100"
                    ));
                }
                check_time("jitter.mean_ns", *mean_ns, 1, MAX_DELAY)
            }
            Self::Empirical { extra_ns } => {
                if extra_ns.is_empty() {
                    return Err("jitter.extra_ns is empty".to_owned());
                }
                extra_ns
                    .iter()
                    .try_for_each(|extra| check_time("jitter.extra_ns", *extra, 0, MAX_DELAY))
            }
        }
    }
}

impl Loss {
    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Self::Independent { probability } => check_chance("loss.probability", *probability),
            Self::GilbertElliott {
                to_bad,
                to_good,
                loss_good,
                loss_bad,
            } => {
                check_chance("loss.to_bad", *to_bad)?;
                check_chance("loss.to_good", *to_good)?;
                check_chance("loss.loss_good", *loss_good)?;
                check_chance("loss.loss_bad", *loss_bad)
            }
        }
    }
}

impl Outage {
    pub(super) fn check(self) -> Result<(), String> {
        check_time("outages.at_ns", self.at_ns, 0, MAX_TIME)?;
        check_time("outages.for_ns", self.for_ns, 1, MAX_TIME)?;
        self.every_ns.map_or(Ok(()), |every| {
            check_time("outages.every_ns", every, 1, MAX_TIME)
        })
    }
}

/// Check the steps of a rate trace, which may be empty.
pub(super) fn check_trace(steps: &[RateStep], max_rate: u64) -> Result<(), String> {
    for step in steps {
        check_time("rate_trace.for_ns", step.for_ns, 1, MAX_TIME)?;
        if step.rate_bps > max_rate {
            return Err("rate_trace.rate_bps is above 1 Tb/s".to_owned());
        }
    }
    if !steps.is_empty() && steps.iter().all(|step| step.rate_bps == 0) {
        return Err("rate_trace is a line on which nothing ever passes".to_owned());
    }
    Ok(())
}
