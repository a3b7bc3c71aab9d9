//! Prints how the link behaves at many settings, as tables for a human.

use serde_json::Value;

use crate::drive::{self, usual};
use crate::rig::Rig;

/// Print the tables. `rtt` or `goodput`, a rate in Mb/s and an RTT in microseconds select a part; without any, all is printed.
pub(crate) fn print(rig: &Rig, which: &[String]) {
    let chosen = |name: &str, others: &[&str]| {
        which.iter().any(|word| word == name)
            || !which.iter().any(|word| others.contains(&word.as_str()))
    };
    let numbers: Vec<u64> = which.iter().filter_map(|word| word.parse().ok()).collect();
    if chosen("rtt", &["rtt", "goodput"]) {
        round_trips(rig, &numbers);
    }
    if chosen("goodput", &["rtt", "goodput"]) {
        goodput(rig, &numbers);
    }
}

/// Whether a setting begins with the chosen numbers.
fn matches(numbers: &[u64], setting: [u64; 2]) -> bool {
    setting.starts_with(&numbers[..numbers.len().min(2)])
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

fn micros(value: &Value) -> f64 {
    number(value) / 1e3
}

fn round_trips(rig: &Rig, numbers: &[u64]) {
    println!(
        "rate Mb/s  RTT us |     min     p50     p99     max | excess p50 | late p50   p99  p999   max us | cpu us/packet | drops"
    );
    let (_echo, port) = drive::echo(&rig.server);
    let mut link = drive::link(&usual(0, 0), &usual(0, 0));
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
        if !matches(numbers, [rate, rtt_us]) {
            continue;
        }
        drive::set(&mut link, &usual(rate * 1_000_000, rtt_us * 1_000));
        drive::stats(&mut link);
        let rtt = drive::rtt(&rig.client, port, count);
        let stats = drive::stats(&mut link);
        let up = &stats["to_server"];
        let cpu = (number(&up["cpu_ns"]) + number(&stats["to_client"]["cpu_ns"]))
            / 1e3
            / (number(&up["packets"]) + number(&stats["to_client"]["packets"]));
        println!(
            "{rate:9} {rtt_us:7} | {:7.1} {:7.1} {:7.1} {:7.1} | {:10.1} | {:8.1} {:5.1} {:5.1} {:8.1} | {cpu:13.2} | {}",
            micros(&rtt["min_ns"]),
            micros(&rtt["p50_ns"]),
            micros(&rtt["p99_ns"]),
            micros(&rtt["max_ns"]),
            micros(&rtt["p50_ns"]) - rtt_us as f64,
            micros(&up["lateness_p50_ns"]),
            micros(&up["lateness_p99_ns"]),
            micros(&up["lateness_p999_ns"]),
            micros(&up["lateness_max_ns"]),
            up["drops"],
        );
    }
}

fn goodput(rig: &Rig, numbers: &[u64]) {
    println!(
        "rate Mb/s  RTT us direction | Mb/s expected    % | retransmits | emulator cores per Gb/s | late p999 us | unmodelled, queue drops"
    );
    let (_echo, port) = drive::echo(&rig.server);
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
        if !matches(numbers, [rate, rtt_us]) {
            continue;
        }
        let mut link = drive::link(
            &usual(rate * 1_000_000, rtt_us * 1_000),
            &usual(rate * 1_000_000, rtt_us * 1_000),
        );
        let warm_up = if rtt_us < 50_000 { 1_500 } else { 8_000 };
        for direction in ["to_server", "to_client"] {
            drive::stats(&mut link);
            let result = drive::goodput(&rig.client, port, direction, warm_up, 3_000);
            let stats = drive::stats(&mut link);
            let expected = rate as f64 * 1448.0 / 1538.0;
            let got = number(&result["bits_per_second"]) / 1e6;
            let cpu = number(&stats["to_server"]["cpu_ns"]) + number(&stats["to_client"]["cpu_ns"]);
            println!(
                "{rate:9} {rtt_us:7} {direction} | {got:8.2} {expected:8.2} {:6.2} | {} | {:.4} | {:.1} | {} {}",
                got / expected * 100.0,
                result["retransmits"],
                cpu / (number(&stats[direction]["wire_bytes"]) * 8.0),
                micros(&stats[direction]["lateness_p999_ns"]),
                drive::unmodelled(&stats),
                stats[direction]["drops"]["queue"],
            );
        }
    }
}
