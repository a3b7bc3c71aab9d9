//! Tests page jobs with an application over FastCGI: the result has the figures that its pages report, and a bad page ends the job.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::fake::FakeServer;
use crate::process::{run_engine, run_engine_with};

const PAGE: &str = "X-Howfar-Page: wall_ns=70,hits=3\r\n\r\npage done\n";

pub(crate) fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let header = [1, kind, 0, 1, 0, content.len() as u8, 0, 0];
    [&header, content].concat()
}

pub(crate) fn read_request(stream: &mut (impl Read + ?Sized)) -> std::io::Result<()> {
    loop {
        let mut header = [0; 8];
        stream.read_exact(&mut header)?;
        let length = u16::from_be_bytes([header[4], header[5]]);
        stream.read_exact(&mut vec![0; usize::from(length)])?;
        // The empty body is the last part of the request.
        if header[1] == 5 {
            return Ok(());
        }
    }
}

/// Start an application that answers each request with this page, and counts the requests.
fn start_application(page: &'static str) -> (FakeServer, Arc<AtomicU64>) {
    let requests = Arc::new(AtomicU64::new(0));
    let server_requests = Arc::clone(&requests);
    let fake = FakeServer::listening("visitor", move |mut stream| {
        let requests = Arc::clone(&server_requests);
        thread::spawn(move || {
            while read_request(&mut stream).is_ok() {
                requests.fetch_add(1, Ordering::Relaxed);
                let reply = [record(6, page.as_bytes()), record(3, &[0; 8])].concat();
                if stream.write_all(&reply).is_err() {
                    return;
                }
            }
        });
    });
    (fake, requests)
}

fn page_job(fake: &FakeServer, keep_connection: bool) -> Value {
    json!({
        "job": "page", "version": 2, "workers": 2, "seed": 1, "warmup_ns": 0, "measure_ns": 1_000_000_000,
        "application": {
            "kind": "fastcgi", "target": {"kind": "unix", "path": fake.path}, "ends_with": "page done\n",
            "keep_connection": keep_connection, "parameters": {"REQUEST_METHOD": "GET"},
        },
    })
}

/// Run a page job; returns the exit code, the last event and the first.
fn run(fake: &FakeServer, keep_connection: bool) -> (Option<i32>, Value, Value) {
    let (code, mut events) = run_engine("page", &format!("{}\n", page_job(fake, keep_connection)));
    (
        code,
        events.pop().expect("the engine writes an event"),
        events.drain(..).next().unwrap_or_default(),
    )
}

fn histogram<'a>(finished: &'a Value, kind: &str) -> Option<&'a Value> {
    let histograms = finished["histograms"].as_array();
    let histograms = histograms.expect("the field is a list");
    histograms
        .iter()
        .find(|histogram| histogram["kind"] == kind)
}

#[test]
fn figures_of_pages_are_summed_over_the_window() {
    for keep_connection in [false, true] {
        let (fake, requests) = start_application(PAGE);
        let (code, finished, ready) = run(&fake, keep_connection);
        assert_eq!(code, Some(0), "{finished}");
        assert_eq!(ready["receipt"]["protocol_mode"], "fastcgi");
        assert_eq!(ready["receipt"]["peer_pid"], std::process::id());
        let pages = finished["transactions"]
            .as_u64()
            .expect("pages are counted");
        assert!(pages > 0);
        // Pages that end after the window are requested but not counted.
        assert!(pages <= requests.load(Ordering::Relaxed));
        assert_eq!(
            finished["app_counters"],
            json!({"hits": 3 * pages, "wall_ns": 70 * pages})
        );
        let reported = histogram(&finished, "told.wall_ns").expect("the figure has a histogram");
        assert_eq!(
            (&reported["count"], &reported["min_ns"]),
            (&json!(pages), &json!(70))
        );
        assert!(histogram(&finished, "told.hits").is_none());
        let connects = histogram(&finished, "connect.application");
        assert_eq!(
            connects.map(|histogram| histogram["count"].as_u64()),
            (!keep_connection).then_some(Some(pages))
        );
    }
}

/// A page is in progress when the window ends. The application completes it when the result is known, or after 1.7 s; an engine that
/// waits for pages waits up to 2 s. A busy machine may delay a result once; an engine that waits delays it each time.
#[test]
fn the_result_does_not_wait_for_pages_in_progress() {
    assert!((0..3).any(|_| count_timed_out_pages() == 0));
}

/// Number of pages that the application completed after 1.7 s, before the result was known.
fn count_timed_out_pages() -> u64 {
    let signal = Arc::new((Mutex::new(false), Condvar::new()));
    let timeouts = Arc::new(AtomicU64::new(0));
    let (server_signal, server_timeouts) = (Arc::clone(&signal), Arc::clone(&timeouts));
    let fake = FakeServer::listening("slow", move |mut stream| {
        let (signal, timeouts) = (Arc::clone(&server_signal), Arc::clone(&server_timeouts));
        thread::spawn(move || {
            if read_request(&mut stream).is_ok() {
                let (is_known, condition) = &*signal;
                let is_known = is_known.lock().expect("no thread panicked");
                let timeout = Duration::from_millis(1700);
                let (_is_known, outcome) = condition
                    .wait_timeout_while(is_known, timeout, |is_known| !*is_known)
                    .expect("no thread panicked");
                timeouts.fetch_add(u64::from(outcome.timed_out()), Ordering::Relaxed);
                let _ =
                    stream.write_all(&[record(6, PAGE.as_bytes()), record(3, &[0; 8])].concat());
            }
        });
    });
    let code = run_engine_with("page", &format!("{}\n", page_job(&fake, false)), |event| {
        if event["event"] == "finished" {
            *signal.0.lock().expect("no thread panicked") = true;
            signal.1.notify_all();
        }
    });
    assert_eq!(code, Some(0));
    timeouts.load(Ordering::Relaxed)
}

#[test]
fn a_bad_page_ends_the_job() {
    let (fake, _) = start_application("Status: 500\r\n\r\nno database\n");
    let (code, failed, _) = run(&fake, false);
    assert_eq!((code, &failed["code"]), (Some(1), &json!("server_error")));
    let message = failed["message"].as_str().expect("the message is a text");
    assert!(message.contains("status 500"), "{message}");
    assert!(message.contains("`no database`"), "{message}");
}
