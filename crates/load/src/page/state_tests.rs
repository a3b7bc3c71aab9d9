//! Tests of the state, with made-up times.

use std::sync::mpsc::{Receiver, channel};

use howfar_contract::parse_job;

use super::*;
use crate::tally::PassedEdge;

const JOB: &str = r#"{"job":"page","version":2,"workers":2,"seed":1,"warmup_ns":0,"measure_ns":1,
    "application":{"kind":"script","redis":{"target":{"kind":"unix","path":"/s"},"user":"","database":""},
    "redis_keys":{"kind":"key_value","protocol":"resp2"},"steps":[{"kind":"cpu","cpu_ns":1}]}}"#;

/// A window 1000..4000 in slices of 1000, after an origin at 0.
fn state(change: &str) -> (State, Receiver<WorkerEvent>) {
    let text = JOB.replace("\"workers\"", &format!("{change}\"workers\""));
    let job: PageJob = parse_job("page", &text).expect("the job is valid");
    let (to_coordinator, events) = channel();
    let mut state = State::new(&job, &["turn.redis"], to_coordinator);
    let window = Window {
        start_ns: 1000,
        end_ns: 4000,
        interval_ns: 1000,
    };
    state.begin(0, window);
    (state, events)
}

impl State {
    /// Run a page on `worker` from `began` to `ended`, if there is one.
    fn run_page(&mut self, worker: usize, began: u64, ended: u64) -> bool {
        self.pass_due_edges(began);
        if !matches!(self.assign(worker, began, began), Assignment::Page) {
            return false;
        }
        let mut record = PageRecord::default();
        record.counters.round_trips = 2;
        record.latencies = vec![(0, 7), (0, 9)];
        record.services.push(ServiceUse {
            round_trips: 2,
            ..page_record::zero_usage("redis")
        });
        record.reported = BTreeMap::from([("cpu_ns".to_owned(), 50), ("rows".to_owned(), 3)]);
        self.end_page(worker, &record, ended);
        true
    }
}

/// The page puts numbers into the names that it reports.
#[test]
fn the_number_of_reported_names_is_bounded() {
    let (mut state, _events) = state("");
    state.pass_due_edges(1500);
    for number in 0..1000 {
        let assigned = state.assign(0, 1500, 1500);
        assert!(matches!(assigned, Assignment::Page));
        let reported = BTreeMap::from([(format!("request_{number}_ns"), 1)]);
        let record = PageRecord {
            reported,
            ..PageRecord::default()
        };
        state.end_page(0, &record, 1600);
    }
    let sums = state.sums();
    assert_eq!(sums.reported.len(), MAX_NAMES + 1);
    assert_eq!(sums.reported[OMITTED_NAMES], 1000 - MAX_NAMES as u64);
    assert_eq!(sums.kinds.len(), 1 + MAX_NAMES);
}

fn totals(events: &Receiver<WorkerEvent>) -> crate::counts::Totals {
    let (mut totals, mut is_over) = (crate::counts::Totals::default(), false);
    for event in events.try_iter() {
        match event {
            WorkerEvent::Passed(PassedEdge::Slice { slice, .. }) => totals.add_slice(&slice),
            WorkerEvent::Passed(PassedEdge::End(end)) => {
                totals.add(&end);
                is_over = true;
            }
            _ => {}
        }
    }
    assert!(is_over, "the events contain the end of the window");
    totals
}

#[test]
fn pages_that_end_in_the_window_count() {
    let (mut state, events) = state("");
    for (began, ended) in [(100, 900), (900, 1100), (1100, 3999), (3999, 4001)] {
        assert!(state.run_page(0, began, ended));
    }
    let totals = totals(&events);
    assert_eq!((totals.transactions, totals.counters.round_trips), (2, 4));
    assert_eq!(totals.in_flight.count(), 1);
    let kinds: Vec<u64> = totals.kinds.iter().map(Latency::count).collect();
    assert_eq!(
        kinds,
        [4, 2],
        "two round trips per page, and one reported time"
    );
    assert_eq!(state.sums.kinds, ["turn.redis", "told.cpu_ns"]);
    let reported = BTreeMap::from([("cpu_ns".to_owned(), 100), ("rows".to_owned(), 6)]);
    assert_eq!(state.sums.reported, reported);
    assert_eq!(state.sums.services[0].round_trips, 4);
    // Two workers: one was busy for 200 and 2899 ns, the other not at all.
    assert!((totals.shares.busy[0] - 3099.0).abs() < 1.0);
}

/// One request is due every 100 ns, and a page takes 250 ns: the backlog grows, and every request is counted.
#[test]
fn each_due_page_is_answered_or_unanswered() {
    let (mut state, events) = state(r#""arrivals":{"rate_per_s":1e7,"shape":"constant"},"#);
    let (mut now, mut answered) = (0, 0);
    while now < 3700 {
        now += 250;
        answered += u64::from(state.run_page(0, now, now + 240));
    }
    assert!(matches!(state.assign(1, now, now), Assignment::Page));
    state.pass_due_edges(4000);
    let totals = totals(&events);
    assert_eq!(totals.due, 30);
    assert_eq!(totals.transactions + totals.unanswered_count, totals.due);
    assert!(
        totals.transactions < answered,
        "some pages were due before the window"
    );
    assert_eq!(
        (totals.backlog_max > 0, totals.in_flight.count()),
        (true, 1)
    );
}

#[test]
fn a_limited_number_of_pages_ends_with_the_last() {
    let (mut state, events) = state(r#""pages":2,"#);
    assert!(state.run_page(0, 500, 800), "the warm-up has no limit");
    assert!(state.run_page(0, 1000, 1500));
    assert!(matches!(state.assign(1, 1500, 1500), Assignment::Page));
    assert!(!state.run_page(0, 1600, 1700), "the limit is reached");
    let drained = |event: WorkerEvent| matches!(event, WorkerEvent::Drained);
    assert!(!events.try_iter().any(drained), "one page is in progress");
    state.end_page(1, &PageRecord::default(), 1900);
    assert!(!state.run_page(1, 1900, 2000));
    assert!(events.try_iter().any(drained));
}

#[test]
fn reopened_connections_are_counted() {
    let (mut state, events) = state("");
    state.pass_due_edges(1000);
    for (began, ended) in [(1000, 1500), (3900, 4100)] {
        assert!(matches!(state.assign(0, began, began), Assignment::Page));
        let record = PageRecord {
            reopened: 2,
            ..PageRecord::default()
        };
        state.end_page(0, &record, ended);
    }
    assert_eq!(
        totals(&events).reconnects,
        2,
        "the page that ended after the window does not count"
    );
}

/// Three pages may begin, and more are due: the schedule ends with the third.
#[test]
fn a_limit_ends_an_open_loop_without_a_backlog() {
    let (mut state, events) =
        state(r#""pages":3,"arrivals":{"rate_per_s":1e7,"shape":"constant"},"#);
    // Clear the backlog from before the window.
    while state.run_page(0, 990, 995) {}
    assert!(state.run_page(0, 1060, 1100));
    assert!(state.run_page(0, 1160, 1200));
    state.pass_due_edges(1300);
    assert!(matches!(state.assign(1, 1300, 1300), Assignment::Page));
    assert!(!state.run_page(0, 1600, 1700), "the limit is reached");
    state.end_page(1, &PageRecord::default(), 1800);
    assert!(!state.run_page(1, 1800, 1900));
    let all: Vec<WorkerEvent> = events.try_iter().collect();
    assert!(
        all.iter()
            .any(|event| matches!(event, WorkerEvent::Drained))
    );
    state.end_at(1900);
    state.pass_due_edges(1900);
    let totals = totals(&events);
    assert_eq!((totals.due, totals.transactions), (3, 3));
    assert_eq!((totals.unanswered_count, totals.backlog_max), (0, 0));
}
