//! Tests of the dispatcher with real threads that block.

use std::sync::{Arc, mpsc};
use std::thread;

use howfar_contract::parse_job;

use super::*;

/// A burst of three pages, 150 ms after the load begins: half of the 300 ms (3 pages / 10 per s) between bursts.
const JOB: &str = r#"{"job":"page","version":2,"workers":3,"seed":1,"warmup_ns":0,"measure_ns":1,
    "arrivals":{"rate_per_s":10,"shape":"bursts","burst":3},
    "application":{"kind":"script","redis":{"target":{"kind":"unix","path":"/s"},"user":"","database":""},
    "redis_keys":{"kind":"key_value","protocol":"resp2"},"steps":[{"kind":"cpu","cpu_ns":1}]}}"#;
const TIMEOUT: Duration = Duration::from_secs(20);

/// One worker waits for the burst and two sleep: a worker that takes a page must wake another, or pages would wait although workers
/// are idle.
#[test]
fn all_workers_get_a_page_of_one_burst() {
    let job: PageJob = parse_job("page", JOB).expect("the job is valid");
    let (to_coordinator, _events) = mpsc::channel();
    let dispatcher = Arc::new(Dispatcher::new(&job, &[], to_coordinator));
    let (served_sender, served_receiver) = mpsc::channel();
    let workers: Vec<_> = (0..3)
        .map(|worker| {
            let (dispatcher, served_sender) = (Arc::clone(&dispatcher), served_sender.clone());
            thread::spawn(move || {
                if dispatcher.next(worker, None, now_ns()) {
                    served_sender
                        .send(worker)
                        .expect("the receiver outlives the workers");
                }
            })
        })
        .collect();
    while dispatcher.lock().idle < workers.len() {
        thread::yield_now();
    }
    let origin_ns = now_ns();
    let window = Window {
        start_ns: origin_ns,
        end_ns: origin_ns + 60_000_000_000,
        interval_ns: 1_000_000_000,
    };
    dispatcher.begin(origin_ns, window);
    let mut served: Vec<usize> = (0..3)
        .filter_map(|_| served_receiver.recv_timeout(TIMEOUT).ok())
        .collect();
    dispatcher.close();
    for worker in workers {
        worker.join().expect("no worker panics");
    }
    served.sort_unstable();
    assert_eq!(served, [0, 1, 2]);
}
