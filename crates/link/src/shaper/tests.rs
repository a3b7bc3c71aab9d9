//! Tests of the shaper: examples with the arithmetic written out, and properties against a model that sends segment by segment.

use proptest::prelude::*;

use super::in_flight::MIN_DEFERRAL;
use super::*;
use crate::effects::rate::MAX_SLICE_TIME;
use crate::job::Direction;

pub(super) fn direction(rate: u64, delay_ns: u64, queue_bytes: u64) -> Direction {
    direction_with(rate, delay_ns, queue_bytes, r#""seed":0"#)
}

/// A direction with additional JSON fields. `rate`: 0 if unshaped.
pub(super) fn direction_with(
    rate: u64,
    delay_ns: u64,
    queue_bytes: u64,
    fields: &str,
) -> Direction {
    let rate = if rate == 0 {
        "null".to_owned()
    } else {
        rate.to_string()
    };
    serde_json::from_str(&format!(
        r#"{{"rate_bps":{rate},"delay_ns":{delay_ns},"queue_bytes":{queue_bytes},{fields}}}"#
    ))
    .expect("the direction is valid")
}

pub(super) fn single(wire_bytes: u32) -> Train {
    Train::single(wire_bytes)
}

pub(super) const fn train(segments: u32, wire_bytes: u32, last_wire_bytes: u32) -> Train {
    Train {
        segments,
        wire_bytes,
        last_wire_bytes,
        is_deferrable: false,
    }
}

#[test]
fn rate_and_delay_add() {
    // 1538 bytes at 1 Gb/s take 12.304 µs; the second waits for the first.
    let mut shaper = Shaper::new(0, &direction(1_000_000_000, 100_000, 1_000_000));
    shaper.offer(1_000, single(1538), 'a');
    shaper.offer(1_000, single(1538), 'b');
    assert_eq!(shaper.next_due(), Some(1_000 + 12_304 + 100_000));
    assert_eq!(shaper.take(113_303), None);
    assert_eq!(shaper.take(113_304).map(|slice| slice.packet), Some('a'));
    assert_eq!(shaper.next_due(), Some(1_000 + 2 * 12_304 + 100_000));
}

#[test]
fn a_super_packet_leaves_in_slices_of_at_most_100_us() {
    // 44 segments at 1 Gb/s: 8 of 12.304 µs fit 100 µs; the last slice has the remaining 4.
    let train = train(44, 1538, 800);
    let mut shaper = Shaper::new(0, &direction(1_000_000_000, 0, 1_000_000));
    let admission = shaper.offer(0, train, ());
    assert_eq!((admission.admitted, admission.dropped), (44, 0));
    let mut slices = Vec::new();
    while let Some(slice) = shaper.take(u64::MAX) {
        slices.push((slice.first, slice.count, slice.due));
    }
    assert_eq!(slices.len(), 6);
    assert_eq!(slices[0], (0, 8, 8 * 12_304));
    assert_eq!(slices[5], (40, 4, 43 * 12_304 + 6_400));
}

#[test]
fn the_queue_cuts_a_super_packet_where_it_is_full() {
    // Room for 10 full segments and a half: ten are admitted, in order.
    let train = train(44, 1538, 1538);
    let mut shaper = Shaper::new(0, &direction(1_000_000, 0, 1538 * 10 + 700));
    let admission = shaper.offer(0, train, ());
    assert_eq!(
        admission,
        Admission {
            slices: 10,
            admitted: 10,
            dropped: 34,
            queue_bytes: 15_380,
            ..Admission::default()
        }
    );
    // One more has room as soon as 838 bytes have left: 1538 × 10 − 838 + 1538 = the limit.
    let has_room = 838 * 8_000;
    assert_eq!(shaper.offer(has_room - 8_000, single(1538), ()).admitted, 0);
    assert_eq!(shaper.offer(has_room, single(1538), ()).admitted, 1);
}

#[test]
fn without_rate_or_delay_everything_passes_at_once() {
    let mut shaper = Shaper::new(0, &direction(0, 0, 1));
    assert_eq!(shaper.offer(5, train(44, 1538, 100), ()).admitted, 44);
    let slice = shaper.take(5).expect("the slice is due");
    assert_eq!(
        (slice.first, slice.count, slice.wire_bytes),
        (0, 44, 43 * 1538 + 100)
    );
}

#[test]
fn a_new_rate_moves_only_waiting_slices() {
    // Three frames of 1 ms each at 12.304 Mb/s; after 1.5 ms the rate is ten times as high.
    let mut shaper = Shaper::new(0, &direction(12_304_000, 500_000, 1_000_000));
    for name in ['a', 'b', 'c'] {
        shaper.offer(0, single(1538), name);
    }
    shaper.set(1_500_000, &direction(123_040_000, 0, 1));
    // The first has left the bottleneck: 1 ms + 0.5 ms. The others leave the bottleneck from 1 ms on, 0.1 ms each, but must not overtake
    // the first.
    let due_times: Vec<_> = std::iter::from_fn(|| shaper.take(u64::MAX))
        .map(|slice| (slice.packet, slice.due))
        .collect();
    assert_eq!(
        due_times,
        [('a', 1_500_000), ('b', 1_500_000), ('c', 1_500_000)]
    );
}

/// A packet to offer: the pause before it, its segments, the wire bytes of each and of the last.
pub(super) fn packets() -> impl Strategy<Value = Vec<(u64, Train)>> {
    let trains = (1_u32..50, 84_u32..1539).prop_flat_map(|(segments, wire_bytes)| {
        (84..=wire_bytes).prop_map(move |last| match segments {
            1 => single(last),
            _ => train(segments, wire_bytes, last),
        })
    });
    prop::collection::vec((0_u64..300_000, trains), 1..60)
}

proptest! {
    /// Compared with a model of single segments in exact fractions: which are admitted, and when the last bit of each slice
    /// arrives.
    #[test]
    fn slices_depart_as_single_segments_would(
        offers in packets(), rate in 1_000_000_u64..20_000_000_000, delay in 0_u64..1_000_000, queue in 1_u64..400_000,
    ) {
        let mut shaper = Shaper::new(0, &direction(rate, delay, queue));
        // The time at which the bottleneck is free, in 1/rate nanoseconds, so that nothing is rounded.
        let (mut free, mut now) = (0_u128, 0_u64);
        let (rate_wide, mut expected, mut dropped) = (u128::from(rate), Vec::new(), 0);
        for (index, (pause, train)) in offers.iter().enumerate() {
            now += pause;
            free = free.max(u128::from(now) * rate_wide);
            let mut admitted = 0;
            for segment in 0..train.segments {
                let wire_bytes = if segment + 1 == train.segments { train.last_wire_bytes } else { train.wire_bytes };
                let backlog = (free - u128::from(now) * rate_wide).div_ceil(8_000_000_000) as u64;
                if backlog > 0 && backlog + u64::from(wire_bytes) > queue { break }
                free += u128::from(wire_bytes) * 8_000_000_000;
                expected.push((index, segment, (free / rate_wide) as u64 + delay));
                admitted += 1;
            }
            let admission = shaper.offer(now, *train, index);
            prop_assert_eq!(admission.admitted, admitted);
            prop_assert_eq!(admission.admitted + admission.dropped, train.segments);
            dropped += admission.dropped;
        }
        let mut segments = expected.into_iter();
        let (mut last_due, mut taken) = (0, 0);
        while let Some(due) = shaper.next_due() {
            prop_assert!(due == 0 || shaper.take(due - 1).is_none());
            let slice = shaper.take(due).expect("the slice is due");
            prop_assert!(due >= last_due, "slices come in order");
            last_due = due;
            taken += slice.count;
            for segment in slice.first..slice.first + slice.count {
                let (index, expected_segment, expected_due) = segments.next().expect("the segment was admitted");
                prop_assert_eq!((slice.packet, segment), (index, expected_segment));
                if segment + 1 == slice.first + slice.count {
                    prop_assert!(due.abs_diff(expected_due) <= 1, "{} against {}", due, expected_due);
                } else {
                    prop_assert!(expected_due <= due + 1 && due - expected_due.min(due) <= MAX_SLICE_TIME);
                }
            }
        }
        prop_assert_eq!(segments.next(), None);
        prop_assert_eq!(taken + dropped, offers.iter().map(|(_, train)| train.segments).sum::<u32>());
    }

    /// Changes of rate and delay at any time lose, duplicate and reorder nothing.
    #[test]
    fn changes_lose_nothing(
        offers in packets(), changes in prop::collection::vec((0_u64..2_000_000_000, 0_u64..500_000), 60), every in 1_usize..7,
    ) {
        let mut shaper = Shaper::new(0, &direction(50_000_000, 100_000, 1 << 40));
        let (mut now, mut due) = (0, 0);
        let mut taken = Vec::new();
        for (index, (pause, train)) in offers.iter().enumerate() {
            now += pause;
            while let Some(slice) = shaper.take(now) {
                prop_assert!(slice.due >= due);
                due = slice.due;
                taken.push((slice.packet, slice.first, slice.count));
            }
            shaper.offer(now, *train, index);
            if index % every == 0 {
                let (rate, delay) = changes[index];
                shaper.set(now, &direction(rate, delay, 1 << 40));
            }
        }
        while let Some(slice) = shaper.take(u64::MAX) {
            prop_assert!(slice.due >= due);
            due = slice.due;
            taken.push((slice.packet, slice.first, slice.count));
        }
        let mut next = (0, 0);
        for (packet, first, count) in taken {
            prop_assert_eq!((packet, first), next);
            next = if first + count == offers[packet].1.segments { (packet + 1, 0) } else { (packet, first + count) };
        }
        prop_assert_eq!(next, (offers.len(), 0));
    }
}

/// When the pump wakes for packets that arrive every `interval` at 1 Gb/s, where 1538 bytes take 12.304 µs.
fn wake_times(are_deferrable: &[bool], interval: Nanos, delay: Nanos) -> Vec<Nanos> {
    let mut shaper = Shaper::new(0, &direction(1_000_000_000, delay, 1 << 20));
    let max_deferral = (delay / 50).clamp(MIN_DEFERRAL, 300_000);
    for (index, is_deferrable) in are_deferrable.iter().enumerate() {
        let train = Train {
            is_deferrable: *is_deferrable,
            ..single(1_538)
        };
        shaper.offer(index as u64 * interval, train, index);
    }
    let mut times = Vec::new();
    while let Some(wake) = shaper.next_wake() {
        assert!(
            shaper
                .next_due()
                .is_some_and(|due| wake >= due && wake <= due + max_deferral)
        );
        times.push(wake);
        while shaper.take(wake).is_some() {}
    }
    times
}

#[test]
fn deferrable_slices_leave_together_and_the_others_on_time() {
    let due = |index: u64| index * 20_000 + 12_304;
    // The first four slices are within 60 µs (0, 20, 40, 60) and leave together; then the other three.
    assert_eq!(wake_times(&[true; 7], 20_000, 0), [due(3), due(6)]);
    // The slices before one that is not deferrable leave with it, and it does not wait for those after it.
    assert_eq!(
        wake_times(&[true, false, true, true], 20_000, 0),
        [due(1), due(3)]
    );
    assert_eq!(wake_times(&[false; 3], 20_000, 0), [due(0), due(1), due(2)]);
    // A slice without others soon after it leaves on time.
    assert_eq!(wake_times(&[true; 3], 70_000, 0), [12_304, 82_304, 152_304]);
    // A fiftieth of 5 ms is 100 µs, and a fiftieth of a second is beyond the bound.
    assert_eq!(
        wake_times(&[true; 3], 70_000, 5_000_000),
        [5_082_304, 5_152_304]
    );
    assert_eq!(
        wake_times(&[true; 6], 70_000, 1_000_000_000),
        [1_000_292_304, 1_000_362_304]
    );
}
