//! The start of a load at a time that another process chooses: it sends `begin` on stdin, and the answer is `begun`.

use howfar_contract::events::{Begun, Used};
use howfar_contract::jobs::UsageJob;
use howfar_contract::{Failed, read_begin};

use crate::clock::{now_ns, sleep_until};
use crate::usage::Usage;
use crate::window::emit_event;

/// Time between the start command and the start of a load, so that all workers receive the command in time.
const LEAD_NS: u64 = 1_000_000;

/// Return when the load begins: soon or, if `waits_for_begin`, at the time in the next line of stdin, for which it waits. That time may have
/// passed: then part of the warm-up is missed, but the window is the same on all hosts.
pub(crate) fn wait_for_origin(waits_for_begin: bool) -> Result<u64, Failed> {
    if !waits_for_begin {
        return Ok(now_ns() + LEAD_NS);
    }
    let begin = read_begin()?;
    let soonest_ns = now_ns() + LEAD_NS;
    emit_event(&Begun {
        at_ns: begin.at_ns.max(soonest_ns),
        late_ns: soonest_ns.saturating_sub(begin.at_ns),
    })?;
    Ok(begin.at_ns)
}

/// Run a usage job to its end.
pub(crate) fn run_usage(job: &UsageJob) -> Result<(), Failed> {
    job.check()?;
    let start_ns = wait_for_origin(true)? + job.warmup_ns;
    sleep_until(start_ns);
    let before = Usage::at_start(&job.observe)?;
    sleep_until(start_ns + job.measure_ns);
    let usage = Usage::at_end(&job.observe)?.since(&before);
    emit_event(&Used {
        // The first entry is this process, whose usage is of no interest.
        cpu: usage.into_iter().skip(1).collect(),
    })
}
