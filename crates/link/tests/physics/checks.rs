//! Checks that must hold on any machine, however busy: lower bounds of times, upper bounds of rates, counts. The table measures how
//! exact the link is, and so does the calibration before each use.

use std::process::Child;

use serde_json::{Value, json};

use crate::drive::{self, Job, direction_parameters, own, usual};
use crate::faults;
use crate::rig::{Rig, SERVER, ip};
use crate::streams;

pub(crate) type Check = (&'static str, fn(&Rig));

pub(crate) const ALL: &[Check] = &[
    ("round trips take what was asked", round_trips),
    ("a bottleneck carries its rate", rate),
    ("a short queue drops, and nothing else does", short_queue),
    ("bytes arrive as they were sent", integrity),
    (
        "every checksum is right, of TCP and UDP, IPv4 and IPv6",
        streams::checksums,
    ),
    (
        "a turned bit is a wrong checksum, and mended",
        streams::corruption,
    ),
    (
        "a faulty line has the faults that were asked",
        faults::all_at_once,
    ),
    ("nothing passes while the line is down", faults::outage),
    ("parameters change while bytes are on the way", live_change),
    ("the directions are not confused", directions),
    ("the link ends with its stdin", end_of_stdin),
    ("what cannot be joined is refused", refusals),
    ("an interface that vanishes ends the link", vanished),
];

pub(crate) fn count(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is no count"))
}

/// Each direction adds half of the round trip time; the fastest round trip is late by no more than a busy machine's hiccup. A
/// packet may leave early by the usual lateness, at most 60 µs and a quarter of its delay: the link keeps the mean.
fn round_trips(rig: &Rig) {
    let (_echo, port) = drive::echo(&rig.server);
    let mut link = drive::link(&usual(0, 0), &usual(0, 0));
    for (rtt, rounds) in [(1_000_000, 200), (10_000_000, 40), (40_000_000, 10)] {
        drive::set(&mut link, &usual(1_000_000_000, rtt));
        let measured = drive::rtt(&rig.client, port, rounds);
        let min_ns = count(&measured["min_ns"]);
        let early = (rtt / 4).min(120_000);
        assert!(min_ns >= rtt - early, "{min_ns} ns for {rtt} ns");
        assert!(min_ns <= rtt + 1_000_000, "{min_ns} ns for {rtt} ns");
        assert_eq!(count(&measured["count"]), rounds);
        assert_eq!(drive::unmodelled(&drive::stats(&mut link)), 0);
    }
}

/// 1448 bytes of payload in each 1538 on the wire: 94.15 % of the rate. The window's ends may cut a slice of 100 µs. Goodput is
/// never more; it is less if the sender gets little processor time, so at least one of five runs must reach 95 % of it.
fn rate(rig: &Rig) {
    let (_echo, port) = drive::echo(&rig.server);
    for (rate, direction) in [(50_000_000, "to_server"), (200_000_000, "to_client")] {
        let shares = (0..5).map(|_| rate_once(rig, port, rate, direction));
        let best = shares
            .inspect(|share| assert!(*share < 1.02, "{direction}: {share:.3} of the goodput"))
            .find(|share| *share >= 0.95);
        assert!(best.is_some(), "{direction}: five times below 95 %");
    }
}

/// Goodput as a share of the expected goodput.
fn rate_once(rig: &Rig, port: u64, rate: u64, direction: &str) -> f64 {
    let mut link = drive::link(&usual(rate, 2_000_000), &usual(rate, 2_000_000));
    let measured = drive::goodput(&rig.client, port, direction, 500, 1_500);
    assert_eq!(measured["mss"], 1448);
    let stats = drive::stats(&mut link);
    assert_eq!(drive::unmodelled(&stats), 0, "{stats}");
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
    let (_echo, port) = drive::echo(&rig.server);
    let mut link = drive::link(
        &direction_parameters(20_000_000, 1_000_000, QUEUE),
        &usual(20_000_000, 1_000_000),
    );
    let measured = drive::goodput(&rig.client, port, "to_server", 300, 1_200);
    let stats = drive::stats(&mut link);
    let dropped = count(&stats["to_server"]["drops"]["queue"]);
    assert!(dropped > 0, "{stats}");
    assert!(
        count(&stats["to_server"]["queue_bytes_max"]) <= QUEUE,
        "{stats}"
    );
    assert!(count(&measured["retransmits"]) > 0, "{measured}");
    assert_eq!(
        count(&stats["to_client"]["drops"]["queue"]) + drive::unmodelled(&stats),
        0,
        "{stats}"
    );
}

pub(crate) fn mirror(rig: &Rig, port: u64, length: u64) -> Child {
    let own = std::env::current_exe().expect("own path");
    let mut command = rig.client.command(own.to_str().expect("a path in UTF-8"));
    command
        .args(["mirror", SERVER, &port.to_string(), &length.to_string()])
        .spawn()
        .expect("the mirror starts")
}

/// Data arrives intact as complete super-packets, as slices of them, and as super-packets that the queue admitted in part.
fn integrity(rig: &Rig) {
    let (_echo, port) = drive::echo(&rig.server);
    for (both, length) in [
        (usual(0, 0), 30_000_000),
        (usual(500_000_000, 1_000_000), 20_000_000),
        (
            direction_parameters(100_000_000, 1_000_000, 60_000),
            6_000_000,
        ),
    ] {
        let mut link = drive::link(&both, &both);
        let code = mirror(rig, port, length).wait().expect("the mirror ends");
        assert!(code.success(), "with {both}");
        assert_eq!(drive::unmodelled(&drive::stats(&mut link)), 0);
    }
}

/// With a queue that holds everything, no segment is lost by any change.
fn live_change(rig: &Rig) {
    let (_echo, port) = drive::echo(&rig.server);
    let deep = |rate, rtt| direction_parameters(rate, rtt, 1 << 28);
    let mut link = drive::link(&deep(100_000_000, 1_000_000), &deep(100_000_000, 1_000_000));
    let mut transfer = mirror(rig, port, 8_000_000);
    let mut changes = 0;
    while transfer.try_wait().expect("the mirror lives").is_none() {
        let rate = [50_000_000, 1_000_000_000, 0, 200_000_000][changes % 4];
        drive::set(&mut link, &deep(rate, [200_000, 5_000_000, 0][changes % 3]));
        changes += 1;
        std::thread::sleep(std::time::Duration::from_millis(3));
    }
    assert!(transfer.wait().expect("the mirror ends").success());
    assert!(changes > 3, "the transfer was over before anything changed");
    let stats = drive::stats(&mut link);
    let modelled =
        count(&stats["to_server"]["drops"]["queue"]) + count(&stats["to_client"]["drops"]["queue"]);
    assert_eq!(modelled + drive::unmodelled(&stats), 0, "{stats}");
    drive::set(&mut link, &deep(0, 30_000_000));
    assert!(count(&drive::rtt(&rig.client, port, 5)["min_ns"]) >= 30_000_000);
    drive::set(&mut link, &deep(0, 2_000_000));
    assert!(count(&drive::rtt(&rig.client, port, 20)["min_ns"]) < 30_000_000);
}

/// Slow to the server, fast to the client: each transfer sees its own rate.
fn directions(rig: &Rig) {
    let (_echo, port) = drive::echo(&rig.server);
    let _link = drive::link(
        &usual(10_000_000, 1_000_000),
        &usual(100_000_000, 1_000_000),
    );
    let bits = |direction| {
        drive::goodput(&rig.client, port, direction, 300, 1_000)["bits_per_second"]
            .as_f64()
            .expect("a number")
    };
    let (up, down) = (bits("to_server"), bits("to_client"));
    assert!(
        up < 10_500_000.0 && down > 40_000_000.0,
        "{up} up, {down} down"
    );
}

fn end_of_stdin(_rig: &Rig) {
    let link = drive::link(&usual(0, 0), &usual(0, 0));
    assert_eq!(link.end(), Some(0));
}

fn refused(job: &Value, code: &str, word: &str) {
    let mut link = Job::start(own("link"), job);
    let event = link.event();
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

fn refusals(_rig: &Rig) {
    let both = usual(0, 0);
    let job = drive::link_job("lc", "nowhere", &both, &both);
    refused(&job, "interface", "nowhere");
    let mut other = job.clone();
    other["version"] = json!(7);
    refused(&other, "bad_job", "contract 7");
    let mut unknown = job;
    unknown["lost"] = json!(0.1);
    refused(&unknown, "bad_job", "lost");
}

/// A link whose interface vanishes; only this check uses these interfaces.
fn vanished(_rig: &Rig) {
    let both = usual(0, 0);
    ip("link add dev lx type veth peer name ly");
    ip("link set dev lx up");
    ip("link set dev ly up");
    let job = drive::link_job("lx", "ly", &both, &both);
    let mut link = Job::start(own("link"), &job);
    assert_eq!(link.event()["event"], "link_ready");
    ip("link delete dev lx");
    let event = link.event();
    assert_eq!(
        (&event["event"], &event["code"]),
        (&json!("failed"), &json!("interface")),
        "{event}"
    );
    assert_eq!(link.end(), Some(1));
}
