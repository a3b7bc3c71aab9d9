//! Checks that must hold on any machine, however busy: lower bounds of times, upper bounds of rates, and counts. How exact the link is
//! depends on the machine: `table` shows it, and each use of a link calibrates it.

use serde_json::{Value, json};

use crate::drive::{self, Job, direction_parameters, own_command, usual_direction};
use crate::faults;
use crate::rig::{Rig, SERVER, ip};
use crate::streams;

pub(crate) type Check = (&'static str, fn(&Rig));

pub(crate) const ALL: &[Check] = &[
    ("round trips take the requested time", round_trips),
    ("a bottleneck carries its rate", rate),
    ("a short queue drops, and nothing else does", short_queue),
    ("bytes arrive as they were sent", integrity),
    (
        "every checksum is right, of TCP and UDP, IPv4 and IPv6",
        streams::checksums,
    ),
    (
        "a flipped bit makes a wrong checksum, and TCP repairs it",
        streams::corruption,
    ),
    (
        "a faulty line has the requested faults",
        faults::all_at_once,
    ),
    ("nothing passes while the line is down", faults::outage),
    ("parameters change while bytes are in flight", live_change),
    ("the directions are not confused", directions),
    ("the link ends with its stdin", end_of_stdin),
    ("invalid jobs are refused", invalid_jobs),
    (
        "an interface that vanishes ends the link",
        vanished_interface,
    ),
];

pub(crate) fn count(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no count"))
}

/// Each direction adds half of the round trip time; the fastest round trip is at most 1 ms late. A packet may leave early by the
/// usual lateness, at most 60 µs and a quarter of its delay, because the link corrects the mean.
fn round_trips(rig: &Rig) {
    let (_echo, port) = drive::start_echo(&rig.server);
    let mut link = drive::start_link(&usual_direction(0, 0), &usual_direction(0, 0));
    for (rtt, rounds) in [(1_000_000, 200), (10_000_000, 40), (40_000_000, 10)] {
        drive::set_both(&mut link, &usual_direction(1_000_000_000, rtt));
        let measured = drive::measure_rtt(&rig.client, port, rounds);
        let min_ns = count(&measured["min_ns"]);
        let early = (rtt / 4).min(120_000);
        assert!(min_ns >= rtt - early, "{min_ns} ns for {rtt} ns");
        assert!(min_ns <= rtt + 1_000_000, "{min_ns} ns for {rtt} ns");
        assert_eq!(count(&measured["count"]), rounds);
        assert_eq!(
            drive::count_unmodelled_drops(&drive::read_stats(&mut link)),
            0
        );
    }
}

/// 1448 bytes of payload in each 1538 on the wire: 94.15 % of the rate. The window's ends may cut a slice of 100 µs. Goodput is
/// never more than that share; it is less if the sender gets little processor time, so at least one of five runs must reach 95 % of it.
fn rate(rig: &Rig) {
    let (_echo, port) = drive::start_echo(&rig.server);
    for (rate, direction) in [(50_000_000, "to_server"), (200_000_000, "to_client")] {
        let shares = (0..5).map(|_| measure_goodput_share(rig, port, rate, direction));
        let best = shares
            .inspect(|share| assert!(*share < 1.02, "{direction}: {share:.3} of the goodput"))
            .find(|share| *share >= 0.95);
        assert!(best.is_some(), "{direction}: five times below 95 %");
    }
}

/// Measure goodput as a share of the expected goodput.
fn measure_goodput_share(rig: &Rig, port: u64, rate: u64, direction: &str) -> f64 {
    let mut link = drive::start_link(
        &usual_direction(rate, 2_000_000),
        &usual_direction(rate, 2_000_000),
    );
    let measured = drive::measure_goodput(&rig.client, port, direction, 500, 1_500);
    assert_eq!(measured["mss"], 1448);
    let stats = drive::read_stats(&mut link);
    assert_eq!(drive::count_unmodelled_drops(&stats), 0, "{stats}");
    // All but a few segments of the transfer are full.
    let (segments, bytes) = (
        count(&stats[direction]["segments"]),
        count(&stats[direction]["wire_bytes"]),
    );
    assert!(
        bytes <= segments * 1538 && bytes >= segments * 1500,
        "{stats}"
    );
    measured["bits_per_second"].as_f64().expect("a number") / (rate as f64 * 1448.0 / 1538.0)
}

/// With a queue of ten full frames, every lost segment is counted by the link and sent again by the sender.
fn short_queue(rig: &Rig) {
    const QUEUE: u64 = 15_380;
    let (_echo, port) = drive::start_echo(&rig.server);
    let mut link = drive::start_link(
        &direction_parameters(20_000_000, 1_000_000, QUEUE),
        &usual_direction(20_000_000, 1_000_000),
    );
    let measured = drive::measure_goodput(&rig.client, port, "to_server", 300, 1_200);
    let stats = drive::read_stats(&mut link);
    let dropped = count(&stats["to_server"]["drops"]["queue"]);
    assert!(dropped > 0, "{stats}");
    assert!(
        count(&stats["to_server"]["queue_bytes_max"]) <= QUEUE,
        "{stats}"
    );
    assert!(count(&measured["retransmits"]) > 0, "{measured}");
    assert_eq!(
        count(&stats["to_client"]["drops"]["queue"]) + drive::count_unmodelled_drops(&stats),
        0,
        "{stats}"
    );
}

/// Data arrives intact as complete super-packets, as slices of them, and as super-packets that the queue admitted in part.
fn integrity(rig: &Rig) {
    let (_echo, port) = drive::start_echo(&rig.server);
    for (direction, length) in [
        (usual_direction(0, 0), 30_000_000),
        (usual_direction(500_000_000, 1_000_000), 20_000_000),
        (
            direction_parameters(100_000_000, 1_000_000, 60_000),
            6_000_000,
        ),
    ] {
        let mut link = drive::start_link(&direction, &direction);
        let status = drive::start_mirror(rig, SERVER, port, length).wait();
        assert!(
            status.expect("the mirror ends").success(),
            "with {direction}"
        );
        assert_eq!(
            drive::count_unmodelled_drops(&drive::read_stats(&mut link)),
            0
        );
    }
}

/// With a queue that holds everything, no segment is lost by any change.
fn live_change(rig: &Rig) {
    let (_echo, port) = drive::start_echo(&rig.server);
    let deep_queue = |rate, rtt| direction_parameters(rate, rtt, 1 << 28);
    let mut link = drive::start_link(
        &deep_queue(100_000_000, 1_000_000),
        &deep_queue(100_000_000, 1_000_000),
    );
    let mut transfer = drive::start_mirror(rig, SERVER, port, 8_000_000);
    let mut changes = 0;
    while transfer
        .try_wait()
        .expect("the mirror can be waited for")
        .is_none()
    {
        let rate = [50_000_000, 1_000_000_000, 0, 200_000_000][changes % 4];
        drive::set_both(
            &mut link,
            &deep_queue(rate, [200_000, 5_000_000, 0][changes % 3]),
        );
        changes += 1;
        std::thread::sleep(std::time::Duration::from_millis(3));
    }
    assert!(transfer.wait().expect("the mirror ends").success());
    assert!(changes > 3, "the transfer was over before anything changed");
    let stats = drive::read_stats(&mut link);
    let queue_drops =
        count(&stats["to_server"]["drops"]["queue"]) + count(&stats["to_client"]["drops"]["queue"]);
    assert_eq!(
        queue_drops + drive::count_unmodelled_drops(&stats),
        0,
        "{stats}"
    );
    drive::set_both(&mut link, &deep_queue(0, 30_000_000));
    assert!(count(&drive::measure_rtt(&rig.client, port, 5)["min_ns"]) >= 30_000_000);
    drive::set_both(&mut link, &deep_queue(0, 2_000_000));
    assert!(count(&drive::measure_rtt(&rig.client, port, 20)["min_ns"]) < 30_000_000);
}

/// Slow to the server, fast to the client: each transfer sees its own rate.
fn directions(rig: &Rig) {
    let (_echo, port) = drive::start_echo(&rig.server);
    let _link = drive::start_link(
        &usual_direction(10_000_000, 1_000_000),
        &usual_direction(100_000_000, 1_000_000),
    );
    let bits_per_second = |direction| {
        drive::measure_goodput(&rig.client, port, direction, 300, 1_000)["bits_per_second"]
            .as_f64()
            .expect("a number")
    };
    let (up, down) = (bits_per_second("to_server"), bits_per_second("to_client"));
    assert!(
        up < 10_500_000.0 && down > 40_000_000.0,
        "{up} up, {down} down"
    );
}

fn end_of_stdin(_rig: &Rig) {
    let link = drive::start_link(&usual_direction(0, 0), &usual_direction(0, 0));
    assert_eq!(link.end(), Some(0));
}

/// Check that the link refuses a job, with this code and a message that contains `word`.
fn check_refused(job: &Value, code: &str, word: &str) {
    let mut link = Job::start(own_command("link"), job);
    let event = link.next_event();
    assert_eq!(
        (&event["event"], &event["code"]),
        (&json!("failed"), &json!(code)),
        "{event}"
    );
    assert!(
        event["message"]
            .as_str()
            .is_some_and(|message| message.contains(word)),
        "{event}"
    );
    assert!(
        event["advice"]
            .as_str()
            .is_some_and(|advice| !advice.is_empty()),
        "{event}"
    );
    assert_eq!(link.end(), Some(1));
}

fn invalid_jobs(_rig: &Rig) {
    let direction = usual_direction(0, 0);
    let job = drive::link_job("lc", "nowhere", &direction, &direction);
    check_refused(&job, "interface", "nowhere");
    let mut other_version = job.clone();
    other_version["version"] = json!(7);
    check_refused(&other_version, "bad_job", "contract 7");
    let mut unknown_field = job;
    unknown_field["lost"] = json!(0.1);
    check_refused(&unknown_field, "bad_job", "lost");
}

/// A link whose interface vanishes; only this check uses these interfaces.
fn vanished_interface(_rig: &Rig) {
    let direction = usual_direction(0, 0);
    ip("link add dev lx type veth peer name ly");
    ip("link set dev lx up");
    ip("link set dev ly up");
    let job = drive::link_job("lx", "ly", &direction, &direction);
    let mut link = Job::start(own_command("link"), &job);
    assert_eq!(link.next_event()["event"], "link_ready");
    ip("link delete dev lx");
    let event = link.next_event();
    assert_eq!(
        (&event["event"], &event["code"]),
        (&json!("failed"), &json!("interface")),
        "{event}"
    );
    assert_eq!(link.end(), Some(1));
}
