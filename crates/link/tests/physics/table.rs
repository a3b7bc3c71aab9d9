//! Prints how the link behaves at many settings, as tables for a human.

use serde_json::Value;

use crate::drive::{self, usual_direction};
use crate::rig::Rig;

/// Print the tables. `rtt` or `goodput`, a rate in Mb/s and an RTT in microseconds select a part; without any, all is printed.
pub(crate) fn print(rig: &Rig, selection: &[String]) {
    let is_named = |name: &str| selection.iter().any(|word| word == name);
    let numbers: Vec<u64> = selection
        .iter()
        .filter_map(|word| word.parse().ok())
        .collect();
    if is_named("rtt") || !is_named("goodput") {
        print_round_trips(rig, &numbers);
    }
    if is_named("goodput") || !is_named("rtt") {
        print_goodput(rig, &numbers);
    }
}

/// Whether a setting (rate, RTT) begins with the selected numbers.
fn is_selected(numbers: &[u64], setting: [u64; 2]) -> bool {
    setting.starts_with(&numbers[..numbers.len().min(2)])
}

fn to_f64(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn to_us(value: &Value) -> f64 {
    to_f64(value) / 1e3
}

fn print_round_trips(rig: &Rig, numbers: &[u64]) {
    println!(
        "rate Mb/s  RTT us |     min     p50     p99     max | excess p50 | late p50   p99  p999   max us | cpu us/packet | drops"
    );
    let (_echo, port) = drive::start_echo(&rig.server);
    let mut link = drive::start_link(&usual_direction(0, 0), &usual_direction(0, 0));
    for (rate, rtt_us, count) in [
        (0, 0, 5_000),
        (0, 100, 5_000),
        (1_000, 100, 5_000),
        (1_000, 200, 5_000),
        (1_000, 1_000, 2_000),
        (100, 1_000, 2_000),
        (1_000, 10_000, 200),
        (1_000, 85_000, 30),
    ] {
        if !is_selected(numbers, [rate, rtt_us]) {
            continue;
        }
        drive::set_both(
            &mut link,
            &usual_direction(rate * 1_000_000, rtt_us * 1_000),
        );
        drive::read_stats(&mut link);
        let rtt = drive::measure_rtt(&rig.client, port, count);
        let stats = drive::read_stats(&mut link);
        let up = &stats["to_server"];
        let cpu = (to_f64(&up["cpu_ns"]) + to_f64(&stats["to_client"]["cpu_ns"]))
            / 1e3
            / (to_f64(&up["packets"]) + to_f64(&stats["to_client"]["packets"]));
        println!(
            "{rate:9} {rtt_us:7} | {:7.1} {:7.1} {:7.1} {:7.1} | {:10.1} | {:8.1} {:5.1} {:5.1} {:8.1} | {cpu:13.2} | {}",
            to_us(&rtt["min_ns"]),
            to_us(&rtt["p50_ns"]),
            to_us(&rtt["p99_ns"]),
            to_us(&rtt["max_ns"]),
            to_us(&rtt["p50_ns"]) - rtt_us as f64,
            to_us(&up["lateness_p50_ns"]),
            to_us(&up["lateness_p99_ns"]),
            to_us(&up["lateness_p999_ns"]),
            to_us(&up["lateness_max_ns"]),
            up["drops"],
        );
    }
}

fn print_goodput(rig: &Rig, numbers: &[u64]) {
    println!(
        "rate Mb/s  RTT us direction | Mb/s expected    % | retransmits | emulator cores per Gb/s | late p999 us | unmodelled, queue drops"
    );
    let (_echo, port) = drive::start_echo(&rig.server);
    for (rate, rtt_us) in [
        (100, 200),
        (100, 1_000),
        (100, 10_000),
        (100, 100_000),
        (1_000, 200),
        (1_000, 1_000),
        (1_000, 10_000),
        (1_000, 100_000),
        (10_000, 200),
        (10_000, 1_000),
        (10_000, 10_000),
        (10_000, 85_000),
        (0, 0),
    ] {
        if !is_selected(numbers, [rate, rtt_us]) {
            continue;
        }
        let mut link = drive::start_link(
            &usual_direction(rate * 1_000_000, rtt_us * 1_000),
            &usual_direction(rate * 1_000_000, rtt_us * 1_000),
        );
        let warm_up = if rtt_us < 50_000 { 1_500 } else { 8_000 };
        for direction in ["to_server", "to_client"] {
            drive::read_stats(&mut link);
            let result = drive::measure_goodput(&rig.client, port, direction, warm_up, 3_000);
            let stats = drive::read_stats(&mut link);
            let expected = rate as f64 * 1448.0 / 1538.0;
            let measured = to_f64(&result["bits_per_second"]) / 1e6;
            let cpu = to_f64(&stats["to_server"]["cpu_ns"]) + to_f64(&stats["to_client"]["cpu_ns"]);
            println!(
                "{rate:9} {rtt_us:7} {direction} | {measured:8.2} {expected:8.2} {:6.2} | {} | {:.4} | {:.1} | {} {}",
                measured / expected * 100.0,
                result["retransmits"],
                cpu / (to_f64(&stats[direction]["wire_bytes"]) * 8.0),
                to_us(&stats[direction]["lateness_p999_ns"]),
                drive::count_unmodelled_drops(&stats),
                stats[direction]["drops"]["queue"],
            );
        }
    }
}
