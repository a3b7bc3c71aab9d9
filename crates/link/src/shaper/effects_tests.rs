//! Tests of the shaper with its effects: what arrives, what does not, and in which order.

use proptest::prelude::*;

use super::tests::{direction, direction_with, packets, single, train};
use super::*;
use crate::effects::rate::MAX_SLICE_TIME;

const ALL_LOST: &str = r#""loss":{"kind":"independent","probability":1.0}"#;
const TRAIN: Train = train(44, 1538, 1538);

fn take_all<T: Copy>(shaper: &mut Shaper<T>) -> Vec<Slice<T>> {
    std::iter::from_fn(|| shaper.take(Nanos::MAX)).collect()
}

#[test]
fn a_lost_segment_has_used_the_bottleneck() {
    // A Gilbert-Elliott chain that alternates: segments 1, 3, 5 … are lost. At 1 Gb/s each takes 12.304 µs, lost or not.
    let alternate = r#""loss":{"kind":"gilbert_elliott","to_bad":1.0,"to_good":1.0,"loss_good":0.0,"loss_bad":1.0}"#;
    let mut shaper = Shaper::new(0, &direction_with(1_000_000_000, 5_000, 1 << 20, alternate));
    let admission = shaper.offer(0, TRAIN, ());
    assert_eq!(
        (admission.admitted, admission.lost, admission.slices),
        (44, 22, 22)
    );
    assert_eq!(admission.queue_bytes, 44 * 1538);
    for (index, slice) in take_all(&mut shaper).iter().enumerate() {
        assert_eq!((slice.first, slice.count), (index as u32 * 2, 1));
        assert_eq!(slice.due, (u64::from(slice.first) + 1) * 12_304 + 5_000);
    }
}

#[test]
fn a_new_rate_moves_lost_segments_that_wait() {
    // Three frames of 1 ms at 12.304 Mb/s, all lost; after 1.5 ms loss ends and the rate is ten times as high. The second and third
    // are sent again from 1 ms on, 0.1 ms each: a fourth leaves at 1.5 + 0.1 ms.
    let mut shaper = Shaper::new(0, &direction_with(12_304_000, 0, 1 << 20, ALL_LOST));
    for _ in 0..3 {
        assert_eq!(shaper.offer(0, single(1538), ()).slices, 0);
    }
    shaper.set(1_500_000, &direction(123_040_000, 0, 1 << 20));
    shaper.offer(1_500_000, single(1538), ());
    assert_eq!(shaper.next_due(), Some(1_600_000));
    // The same with a slower rate: the second ends at 1 + 10 ms, the third at 21, the fourth at 31.
    let mut shaper = Shaper::new(0, &direction_with(12_304_000, 0, 1 << 20, ALL_LOST));
    for _ in 0..3 {
        shaper.offer(0, single(1538), ());
    }
    shaper.set(1_500_000, &direction(1_230_400, 0, 1 << 20));
    shaper.offer(1_500_000, single(1538), ());
    assert_eq!(shaper.next_due(), Some(31_000_000));
}

#[test]
fn a_copy_follows_its_segment_and_costs_no_time() {
    let mut shaper = Shaper::new(
        0,
        &direction_with(1_000_000_000, 0, 1 << 20, r#""duplicate":1.0"#),
    );
    let admission = shaper.offer(0, TRAIN, ());
    assert_eq!((admission.slices, admission.queue_bytes), (88, 44 * 1538));
    for (index, pair) in take_all(&mut shaper).chunks(2).enumerate() {
        assert_eq!([pair[0].is_copy, pair[1].is_copy], [false, true]);
        for slice in pair {
            assert_eq!((slice.first, slice.count), (index as u32, 1));
            assert_eq!(slice.due, (index as u64 + 1) * 12_304);
            assert!(!slice.was_overtaken);
        }
    }
}

#[test]
fn corrupted_segments_travel_alone() {
    let mut shaper = Shaper::new(
        0,
        &direction_with(0, 0, 1 << 20, r#""corrupt":0.05,"seed":4"#),
    );
    shaper.offer(0, TRAIN, ());
    shaper.offer(0, TRAIN, ());
    let slices = take_all(&mut shaper);
    assert!(slices.iter().any(|slice| slice.flaw.is_some()));
    assert!(slices.iter().any(|slice| slice.count > 5));
    assert!(
        slices
            .iter()
            .all(|slice| slice.flaw.is_none() || slice.count == 1)
    );
    assert_eq!(slices.iter().map(|slice| slice.count).sum::<u32>(), 88);
}

#[test]
fn an_outage_loses_only_arriving_packets() {
    // Down from 2 to 3 ms after 1 s; 1538 bytes at 12.304 Mb/s take 1 ms.
    let outage = r#""outages":[{"at_ns":2000000,"for_ns":1000000,"every_ns":null}]"#;
    let second = 1_000_000_000;
    let mut shaper = Shaper::new(second, &direction_with(12_304_000, 0, 1 << 20, outage));
    for name in ['a', 'b', 'c'] {
        assert_eq!(
            shaper
                .offer(second + 1_999_999, single(1538), name)
                .admitted,
            1
        );
    }
    let down = shaper.offer(second + 2_500_000, TRAIN, 'x');
    assert_eq!(
        (down.outage, down.slices, down.admitted, down.dropped),
        (44, 0, 0, 0)
    );
    assert_eq!(
        shaper.offer(second + 3_000_000, single(1538), 'd').admitted,
        1
    );
    let due_times = take_all(&mut shaper)
        .iter()
        .map(|slice| (slice.packet, slice.due - second - 1_999_999))
        .collect::<Vec<_>>();
    let names = ['a', 'b', 'c', 'd'];
    assert_eq!(
        due_times,
        std::iter::zip(names, (1..).map(|ms| ms * 1_000_000)).collect::<Vec<_>>()
    );
    // `set` restarts the schedule.
    shaper.set(second * 2, &direction_with(0, 0, 1, outage));
    assert_eq!(
        shaper.offer(second * 2 + 2_999_999, single(84), 'y').outage,
        1
    );
}

#[test]
fn a_trace_stands_still_and_its_queue_fills() {
    // 1 ms at 12.304 Mb/s carries one frame of 1538; then 9 ms without a bit.
    let trace =
        r#""rate_trace":[{"for_ns":1000000,"rate_bps":12304000},{"for_ns":9000000,"rate_bps":0}]"#;
    let mut shaper = Shaper::new(0, &direction_with(0, 0, 3 * 1538, trace));
    let admission = shaper.offer(0, TRAIN, ());
    assert_eq!((admission.admitted, admission.queue_bytes), (3, 3 * 1538));
    assert_eq!(
        shaper.offer(9_999_999, single(1538), ()).admitted,
        1,
        "one has left"
    );
    assert_eq!(shaper.offer(9_999_999, single(84), ()).admitted, 0);
    let due_times: Vec<_> = take_all(&mut shaper)
        .iter()
        .map(|slice| slice.due)
        .collect();
    assert_eq!(due_times, [1_000_000, 11_000_000, 21_000_000, 31_000_000]);
}

const WIDE_JITTER: &str = r#""jitter":{"kind":"normal","deviation_ns":400000},"seed":9"#;

#[test]
fn without_reordering_jitter_keeps_the_order() {
    let mut shaper = Shaper::new(0, &direction_with(0, 1_000_000, 1, WIDE_JITTER));
    for index in 0..5_000 {
        shaper.offer(index * 10_000, single(84), index);
    }
    let slices = take_all(&mut shaper);
    assert!(slices.iter().map(|slice| slice.packet).eq(0..5_000));
    assert!(slices.is_sorted_by_key(|slice| slice.due));
    assert!(slices.iter().all(|slice| !slice.was_overtaken));
}

#[test]
fn with_reordering_each_slice_has_its_own_delay() {
    let mut shaper = Shaper::new(
        0,
        &direction_with(0, 2_000_000, 1, &format!(r#"{WIDE_JITTER},"reorder":true"#)),
    );
    for index in 0..5_000 {
        shaper.offer(index * 10_000, single(84), index);
    }
    let slices = take_all(&mut shaper);
    assert!(slices.is_sorted_by_key(|slice| slice.due));
    let mut newest = 0;
    for slice in &slices {
        assert_eq!(slice.was_overtaken, slice.packet < newest);
        newest = newest.max(slice.packet);
    }
    // A step of 10 µs against deviations of 400 µs: nearly all have been overtaken by some later one.
    let overtaken = slices.iter().filter(|slice| slice.was_overtaken).count();
    assert!((4_000..5_000).contains(&overtaken), "{overtaken}");
    let mean = slices
        .iter()
        .map(|slice| (slice.due - slice.packet * 10_000) as f64)
        .sum::<f64>()
        / 5_000.0;
    assert!(
        (mean - 2_000_000.0).abs() < 2.58 * 400_000.0 / 5_000_f64.sqrt(),
        "{mean}"
    );
}

/// Any of the effects, on or off.
fn effects() -> impl Strategy<Value = String> {
    let select = |options: &'static [&'static str]| prop::sample::select(options);
    (
        select(&[
            "null",
            r#"{"kind":"independent","probability":0.03}"#,
            r#"{"kind":"independent","probability":1.0}"#,
            r#"{"kind":"gilbert_elliott","to_bad":0.05,"to_good":0.3,"loss_good":0.01,"loss_bad":0.9}"#,
        ]),
        select(&[
            "null",
            r#"{"kind":"normal","deviation_ns":90000}"#,
            r#"{"kind":"pareto","mean_ns":50000,"shape":2.0}"#,
            r#"{"kind":"empirical","extra_ns":[0,70000,900000]}"#,
        ]),
        select(&["0", "0.1"]),
        select(&["0", "0.05", "1"]),
        select(&["[]", r#"[{"at_ns":200000,"for_ns":300000,"every_ns":2000000}]"#]),
        any::<bool>(),
        any::<u64>(),
    )
        .prop_map(|(loss, jitter, duplicate, corrupt, outages, reorder, seed)| {
            format!(
                r#""loss":{loss},"jitter":{jitter},"duplicate":{duplicate},"corrupt":{corrupt},"outages":{outages},"reorder":{reorder},"seed":{seed}"#
            )
        })
}

proptest! {
    /// Segments are conserved, each arrives as many times as its verdict gives, and in order unless reordering is on; a second run
    /// gives the same result.
    #[test]
    fn every_segment_has_one_outcome(
        offers in packets(), rate in prop_oneof![Just(0), 1_000_000_u64..20_000_000_000], delay in 0_u64..1_000_000,
        queue in 1_u64..400_000, effects in effects(), changed in effects(), change_at in 0_usize..60,
    ) {
        let run = |until: usize| {
            let mut shaper = Shaper::new(0, &direction_with(rate, delay, queue, &effects));
            let (mut now, mut admissions, mut slices) = (0, Vec::new(), Vec::new());
            for (index, (pause, train)) in offers.iter().enumerate().take(until) {
                now += pause;
                slices.extend(std::iter::from_fn(|| shaper.take(now)));
                if index == change_at {
                    shaper.set(now, &direction_with(rate / 3 + 1, delay / 2, queue, &changed));
                }
                admissions.push(shaper.offer(now, *train, index));
            }
            slices.extend(take_all(&mut shaper));
            prop_assert_eq!(shaper.in_flight.next_due(), None);
            Ok((admissions, slices))
        };
        let (admissions, slices) = run(offers.len())?;
        prop_assert_eq!(&(admissions.clone(), slices.clone()), &run(offers.len())?);
        for (index, ((_, train), admission)) in offers.iter().zip(&admissions).enumerate() {
            let own_slices: Vec<_> = slices.iter().filter(|slice| slice.packet == index).collect();
            prop_assert_eq!(admission.admitted + admission.dropped + admission.outage, train.segments);
            prop_assert_eq!(own_slices.len(), admission.slices as usize);
            // How many times each segment arrives as itself, and as a copy.
            let mut seen = vec![(0, 0); train.segments as usize];
            for slice in own_slices {
                for segment in slice.first..slice.first + slice.count {
                    let entry = &mut seen[segment as usize];
                    if slice.is_copy { entry.1 += 1 } else { entry.0 += 1 }
                }
                prop_assert!(slice.count == 1 || (!slice.is_copy && slice.flaw.is_none()));
                prop_assert_eq!(slice.wire_bytes, train.bytes(slice.first, slice.count));
            }
            prop_assert!(seen.iter().all(|(plain, copies)| *plain <= 1 && copies <= plain));
            let arrived = seen.iter().map(|(plain, _)| plain).sum::<u32>();
            prop_assert_eq!(arrived + admission.lost, admission.admitted);
            prop_assert!(seen[admission.admitted as usize..].iter().all(|times| *times == (0, 0)));
        }
        if !effects.contains(r#""reorder":true"#) && !changed.contains(r#""reorder":true"#) {
            prop_assert!(slices.is_sorted_by_key(|slice| (slice.packet, slice.first, slice.is_copy)));
            prop_assert!(slices.is_sorted_by_key(|slice| slice.due));
        }
    }

    /// No slice takes longer than 100 µs on the wire, unless it is a single segment, even if the rate changes meanwhile.
    #[test]
    fn a_slice_is_short(
        offers in packets(), steps in prop::collection::vec((1_u64..400_000, prop_oneof![Just(0), 1_000_000_u64..20_000_000_000]), 1..6),
        steady: bool, loss in prop_oneof![Just("null"), Just(r#"{"kind":"independent","probability":0.03}"#)],
    ) {
        let steps = steps.iter().map(|(time, rate)| format!(r#"{{"for_ns":{time},"rate_bps":{rate}}}"#)).collect::<Vec<_>>();
        let trace = format!(r#""rate_trace":[{},{{"for_ns":5000,"rate_bps":1000000000}}]"#, steps.join(","));
        let rate = if steady { 700_000_000 } else { 0 };
        let fields = format!(r#""loss":{loss}{}"#, if steady { String::new() } else { format!(",{trace}") });
        let mut shaper = Shaper::new(0, &direction_with(rate, 0, 1 << 30, &fields));
        let mut now = 0;
        for (pause, train) in &offers {
            now += pause;
            shaper.offer(now, *train, *train);
        }
        // From the end of its first byte to that of its last, on a line that sends bytes one after the other.
        let mut line = Bottleneck::new(&direction_with(rate, 0, 1, &fields), 0, 0);
        for slice in take_all(&mut shaper) {
            prop_assert!(slice.due >= slice.arrival && slice.departure == slice.due);
            if loss == "null" {
                let first = line.depart(slice.arrival, 1);
                let last = line.depart(slice.arrival, slice.wire_bytes - 1);
                prop_assert_eq!(last, slice.departure);
                prop_assert!(slice.count == 1 || last - first <= MAX_SLICE_TIME, "{} segments in {} ns", slice.count, last - first);
            }
        }
    }
}

#[test]
fn a_thousand_changes_of_the_delay_do_not_change_the_loss() {
    // 80 segments between two changes; the first loss of this seed comes later than that, so that a chain restarted at each change
    // would lose none.
    let delayed_by = |delay| {
        direction_with(
            0,
            delay,
            1 << 30,
            r#""loss":{"kind":"independent","probability":0.01},"seed":17"#,
        )
    };
    let mut shaper = Shaper::new(0, &delayed_by(0));
    let (mut lost, mut first) = (0, None);
    for round in 0..1_000_u32 {
        for index in 0..80 {
            let admission = shaper.offer(u64::from(round) * 1_000, single(1538), ());
            lost += admission.lost;
            if lost > 0 {
                first = first.or(Some(round * 80 + index));
            }
        }
        take_all(&mut shaper);
        shaper.set(u64::from(round) * 1_000, &delayed_by(u64::from(round % 7)));
    }
    assert!(first.is_some_and(|first| first >= 80), "{first:?}");
    // 800 of 80 000, with a deviation of 28: the bound is five deviations.
    assert!(lost.abs_diff(800) < 141, "{lost}");
}

#[test]
fn a_change_of_the_delay_does_not_change_the_jitter() {
    let delayed_by = |delay| {
        direction_with(
            0,
            delay,
            1 << 30,
            r#""jitter":{"kind":"normal","deviation_ns":1000},"reorder":true"#,
        )
    };
    let due_times = |change: bool| -> Vec<Nanos> {
        let mut shaper = Shaper::new(0, &delayed_by(10_000));
        (0..20)
            .map(|_| {
                if change {
                    shaper.set(0, &delayed_by(10_001));
                    shaper.set(0, &delayed_by(10_000));
                }
                shaper.offer(0, single(1538), ());
                take_all(&mut shaper)[0].due
            })
            .collect()
    };
    assert_eq!(due_times(true), due_times(false));
}
