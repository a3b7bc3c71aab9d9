//! Requests pages from an application over FastCGI: the figures that its pages report arrive in the result, and a bad page ends the
//! job.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::fake::Fake;
use crate::process::{engine_for, engine_telling};

const PAGE: &str = "X-Howfar-Page: wall_ns=70,hits=3\r\n\r\npage done\n";

pub(crate) fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let head = [1, kind, 0, 1, 0, content.len() as u8, 0, 0];
    [&head, content].concat()
}

pub(crate) fn read_request(stream: &mut (impl Read + ?Sized)) -> std::io::Result<()> {
    loop {
        let mut head = [0; 8];
        stream.read_exact(&mut head)?;
        let length = u16::from_be_bytes([head[4], head[5]]);
        stream.read_exact(&mut vec![0; usize::from(length)])?;
        // The end of the request's body, which is empty.
        if head[1] == 5 {
            return Ok(());
        }
    }
}

/// An application that answers each request with this page, and counts the requests.
fn application(page: &'static str) -> (Fake, Arc<AtomicU64>) {
    let requests = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&requests);
    let fake = Fake::listening("visitor", move |mut stream| {
        let counted = Arc::clone(&counted);
        thread::spawn(move || {
            while read_request(&mut stream).is_ok() {
                counted.fetch_add(1, Ordering::Relaxed);
                let reply = [record(6, page.as_bytes()), record(3, &[0; 8])].concat();
                if stream.write_all(&reply).is_err() {
                    return;
                }
            }
        });
    });
    (fake, requests)
}

fn job(fake: &Fake, keep: bool) -> Value {
    json!({
        "job": "page", "version": 2, "workers": 2, "seed": 1, "warmup_ns": 0, "measure_ns": 1_000_000_000,
        "application": {
            "kind": "fastcgi", "target": {"kind": "unix", "path": fake.path}, "ends_with": "page done\n",
            "keep_connection": keep, "parameters": {"REQUEST_METHOD": "GET"},
        },
    })
}

fn run(fake: &Fake, keep: bool) -> (Option<i32>, Value, Value) {
    let (code, mut events) = engine_for("page", &format!("{}\n", job(fake, keep)));
    (
        code,
        events.pop().expect("a last event"),
        events.drain(..).next().unwrap_or_default(),
    )
}

fn histogram<'a>(finished: &'a Value, kind: &str) -> Option<&'a Value> {
    let all = finished["histograms"].as_array().expect("histograms");
    all.iter().find(|one| one["kind"] == kind)
}

#[test]
fn what_pages_tell_is_summed_over_the_window() {
    for keep in [false, true] {
        let (fake, requests) = application(PAGE);
        let (code, finished, ready) = run(&fake, keep);
        assert_eq!(code, Some(0), "{finished}");
        assert_eq!(ready["receipt"]["protocol_mode"], "fastcgi");
        assert_eq!(ready["receipt"]["peer_pid"], std::process::id());
        let pages = finished["transactions"].as_u64().expect("a count");
        assert!(pages > 0);
        // Pages that end after the window are requested but not counted.
        assert!(pages <= requests.load(Ordering::Relaxed));
        assert_eq!(
            finished["told"],
            json!({"hits": 3 * pages, "wall_ns": 70 * pages})
        );
        let reported = histogram(&finished, "told.wall_ns").expect("a latency");
        assert_eq!(
            (&reported["count"], &reported["min_ns"]),
            (&json!(pages), &json!(70))
        );
        assert!(histogram(&finished, "told.hits").is_none());
        let connects = histogram(&finished, "connect.application");
        assert_eq!(
            connects.map(|one| one["count"].as_u64()),
            (!keep).then_some(Some(pages))
        );
    }
}

/// A page is in progress when the window ends. It is completed once the result is known, or after 1.7 s; an engine that waits for it
/// would do so for up to 2 s. A busy machine may delay a result once; an engine that waits delays it each time.
#[test]
fn the_result_does_not_wait_for_pages_in_hand() {
    assert!((0..3).any(|_| pages_that_outlived_the_result() == 0));
}

/// Number of pages that the application ended after its 1.7 s, and not because the result was known.
fn pages_that_outlived_the_result() -> u64 {
    let signal = Arc::new((Mutex::new(false), Condvar::new()));
    let waited = Arc::new(AtomicU64::new(0));
    let (heard, in_vain) = (Arc::clone(&signal), Arc::clone(&waited));
    let fake = Fake::listening("slow", move |mut stream| {
        let (heard, in_vain) = (Arc::clone(&heard), Arc::clone(&in_vain));
        thread::spawn(move || {
            if read_request(&mut stream).is_ok() {
                let (known, changed) = &*heard;
                let known = known.lock().expect("a lock");
                let patience = Duration::from_millis(1700);
                let (_known, out) = changed
                    .wait_timeout_while(known, patience, |known| !*known)
                    .expect("a lock");
                in_vain.fetch_add(u64::from(out.timed_out()), Ordering::Relaxed);
                let _ =
                    stream.write_all(&[record(6, PAGE.as_bytes()), record(3, &[0; 8])].concat());
            }
        });
    });
    let code = engine_telling("page", &format!("{}\n", job(&fake, false)), |event| {
        if event["event"] == "finished" {
            *signal.0.lock().expect("a lock") = true;
            signal.1.notify_all();
        }
    });
    assert_eq!(code, Some(0));
    waited.load(Ordering::Relaxed)
}

#[test]
fn a_bad_page_ends_the_job() {
    let (fake, _) = application("Status: 500\r\n\r\nno database\n");
    let (code, failed, _) = run(&fake, false);
    assert_eq!((code, &failed["code"]), (Some(1), &json!("server_error")));
    let message = failed["message"].as_str().expect("a text");
    assert!(message.contains("status 500"), "{message}");
    assert!(message.contains("`no database`"), "{message}");
}
