//! A faulty line with real packets: it makes as many faults as were requested, and the bytes still arrive as they were sent.

use serde_json::{Value, json};

use crate::checks::count;
use crate::drive::{self, direction_parameters};
use crate::rig::{Rig, SERVER};

/// One direction with the given effects and a queue that is never full.
fn direction_with(rate: u64, rtt_ns: u64, effects: &Value) -> Value {
    let mut parameters = direction_parameters(rate, rtt_ns, 1 << 28);
    for (name, value) in effects.as_object().expect("the effects are an object") {
        parameters[name] = value.clone();
    }
    parameters
}

/// Check a count that should be `chance` of `total` (binomial); five deviations are exceeded once in two million.
fn assert_share(name: &str, count: u64, total: u64, chance: f64) {
    let (count, total) = (count as f64, total as f64);
    let bound = 5.0 * (total * chance * (1.0 - chance)).sqrt();
    assert!(
        (count - total * chance).abs() <= bound,
        "{name}: {count} of {total} segments at {chance}"
    );
}

/// Loss, copies, flipped bits and overtaking at once, towards the server; the other direction has no faults.
pub(crate) fn all_at_once(rig: &Rig) {
    let (_echo, port) = drive::start_echo(&rig.server);
    let faults = json!({
        "loss": {"kind": "independent", "probability": 0.02},
        "duplicate": 0.05,
        "corrupt": 0.01,
        "jitter": {"kind": "normal", "deviation_ns": 100_000},
        "reorder": true,
        "seed": 11,
    });
    let mut link = drive::start_link(
        &direction_with(0, 1_000_000, &faults),
        &direction_with(0, 1_000_000, &json!({})),
    );
    let exit_status = drive::start_mirror(rig, SERVER, port, 12_000_000).wait();
    assert!(exit_status.expect("the mirror ends").success());
    let stats = drive::read_stats(&mut link);
    let (up, down) = (&stats["to_server"], &stats["to_client"]);
    let lost = count(&up["drops"]["loss"]);
    // Copies arrive in addition to the segments that they are copies of.
    let copies = count(&up["duplicated"]);
    let arrived = count(&up["segments"]) - copies;
    assert!(arrived > 8_000, "{stats}");
    assert_share("lost", lost, arrived + lost, 0.02);
    assert_share("copied", copies, arrived, 0.05);
    assert_share("corrupted", count(&up["corrupted"]), arrived, 0.01);
    assert!(count(&up["reordered"]) > 0, "{stats}");
    for figure in ["duplicated", "corrupted", "reordered"] {
        assert_eq!(count(&down[figure]), 0, "{stats}");
    }
    assert_eq!(count(&down["drops"]["loss"]), 0, "{stats}");
    assert_eq!(drive::count_unmodelled_drops(&stats), 0, "{stats}");
}

/// Both lines are down for 100 ms of each 330 ms, during four hundred round trips of a millisecond. Nothing passes during an outage;
/// TCP retransmits after 200 ms or more, so that some retransmissions pass between two outages.
pub(crate) fn outage(rig: &Rig) {
    let (_echo, port) = drive::start_echo(&rig.server);
    let down = json!({"outages": [{"at_ns": 0, "for_ns": 100_000_000, "every_ns": 330_000_000}]});
    let direction = direction_with(0, 1_000_000, &down);
    let mut link = drive::start_link(&direction, &direction);
    let round_trips = drive::measure_rtt(&rig.client, port, 400);
    let stats = drive::read_stats(&mut link);
    let lost =
        ["to_server", "to_client"].map(|direction| count(&stats[direction]["drops"]["outage"]));
    assert!(lost.iter().sum::<u64>() > 0, "{stats}");
    assert!(count(&round_trips["max_ns"]) >= 20_000_000, "{round_trips}");
    assert_eq!(drive::count_unmodelled_drops(&stats), 0, "{stats}");
}
