//! Tests of the FastCGI client against small applications in this process.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use howfar_contract::jobs::Application;
use howfar_contract::{FailCode, Failed};
use rustix::net::{self as raw, bind, listen};

use super::*;
use crate::socket::ConnectStart;

pub(super) const STDOUT: u8 = 6;
pub(super) const STDERR: u8 = 7;
pub(super) const END: u8 = 3;
pub(super) const GOOD: &[u8] =
    b"X-Howfar-Page: cpu_ns=7,hits=2\r\nContent-type: text/html\r\n\r\n<p>page done\n";
pub(super) const SECRET: &str = "/a/secret/path";

pub(super) fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = (content.len() as u16).to_be_bytes();
    let padding = content.len() as u8 % 8;
    let mut out = vec![1, kind, 0, 1, high, low, padding, 0];
    out.extend_from_slice(content);
    out.resize(out.len() + usize::from(padding), 0);
    out
}

/// A complete reply with this response.
pub(super) fn reply(content: &[u8]) -> Vec<u8> {
    [
        record(STDOUT, content),
        record(STDOUT, b""),
        record(END, &[0; 8]),
    ]
    .concat()
}

/// Read a request; returns whether to keep the connection, `None` if the other side is gone.
fn read_request(stream: &mut UnixStream) -> Option<bool> {
    let mut keep = false;
    loop {
        let mut head = [0; 8];
        stream.read_exact(&mut head).ok()?;
        let mut content = vec![0; usize::from(u16::from_be_bytes([head[4], head[5]]))];
        stream.read_exact(&mut content).ok()?;
        match head[1] {
            1 => keep = content[2] & 1 == 1,
            5 => return Some(keep),
            _ => {}
        }
    }
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// The path of a socket, removed when the test ends.
struct Socket(String);

impl Socket {
    fn new() -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("howfar-visitor-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        Self(path.to_str().expect("a path of text").to_owned())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// An application that serves one connection after another, until the test ends.
fn application(mut serve: impl FnMut(UnixStream) + Send + 'static) -> Socket {
    let socket = Socket::new();
    let listener = UnixListener::bind(&socket.0).expect("a socket");
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            serve(stream);
        }
    });
    socket
}

/// An application that answers each request with the same bytes, then closes the connection.
fn answering(bytes: Vec<u8>) -> Socket {
    application(move |mut stream| {
        if read_request(&mut stream).is_some() {
            let _ = stream.write_all(&bytes);
        }
    })
}

fn job(socket: &Socket, keep: bool) -> PageJob {
    let job = serde_json::json!({
        "job": "page", "version": 2, "workers": 2, "seed": 1, "warmup_ns": 0, "measure_ns": 1_000_000_000,
        "connect_timeout_ns": 200_000_000, "stall_timeout_ns": 20_000_000_000_u64,
        "application": {
            "kind": "fastcgi", "target": {"kind": "unix", "path": socket.0}, "ends_with": "page done\n",
            "keep_connection": keep,
            "parameters": {"SCRIPT_FILENAME": SECRET, "REQUEST_METHOD": "GET"},
        },
    });
    serde_json::from_value(job).expect("a job")
}

fn setup_of(job: &PageJob) -> Result<PageSetup, Failed> {
    let Application::FastCgi(fastcgi) = &job.application else {
        panic!("not an application");
    };
    setup(job, fastcgi, &[0])
}

fn worker_page(job: &PageJob) -> Box<dyn Page> {
    let mut page = setup_of(job).expect("a setup").pages.remove(0);
    page.open().expect("open");
    page
}

/// The failure of the first page from an application that answers with `bytes`.
pub(super) fn failure_of(bytes: Vec<u8>) -> Failed {
    let socket = answering(bytes);
    worker_page(&job(&socket, false))
        .run_one(&mut PageRecord::default())
        .expect_err("no page")
}

fn count(record: &PageRecord, kind: usize) -> usize {
    record.latencies.iter().filter(|one| one.0 == kind).count()
}

#[test]
fn a_page_is_asked_for_over_a_connection_of_its_own() {
    let (sender, requests) = mpsc::channel();
    let socket = application(move |mut stream| {
        let Some(keep) = read_request(&mut stream) else {
            return;
        };
        stream.write_all(&reply(GOOD)).expect("a page");
        // The client must send nothing more, and close without waiting for this side to close.
        let rest = stream.read(&mut [0; 1]).expect("an end");
        sender.send((keep, rest, now_ns())).expect("it listens");
    });
    let job = job(&socket, false);
    let setup = setup_of(&job).expect("a setup");
    assert_eq!(setup.receipt.peer_pid, Some(std::process::id()));
    assert_eq!(setup.receipt.peer_address, socket.0);
    assert_eq!(setup.pages.len(), 2);
    for mut page in setup.pages {
        page.open().expect("open");
        for _ in 0..3 {
            let mut record = PageRecord::default();
            let ended_ns = page.run_one(&mut record).expect("a page");
            assert_eq!((count(&record, CONNECT), count(&record, QUEUE)), (1, 0));
            let reported: Vec<_> = record.reported.into_iter().collect();
            assert_eq!(reported, [("cpu_ns".to_owned(), 7), ("hits".to_owned(), 2)]);
            assert_eq!(
                (record.counters.queries, record.counters.round_trips),
                (1, 1)
            );
            assert_eq!(record.counters.to_client, reply(GOOD).len() as u64);
            let (keep, rest, closed_ns) = requests.recv().expect("a request");
            assert_eq!((keep, rest), (false, 0));
            assert!(ended_ns <= closed_ns, "closing is no part of the page");
        }
        page.close();
    }
}

#[test]
fn a_connection_is_kept_where_the_application_lets_it() {
    // Two pages over each connection, then the application closes it.
    let socket = application(|mut stream| {
        for _ in 0..2 {
            let Some(keep) = read_request(&mut stream) else {
                return;
            };
            assert!(keep);
            stream.write_all(&reply(GOOD)).expect("a page");
        }
    });
    let mut page = worker_page(&job(&socket, true));
    let (mut connects, mut reopened) = (0, 0);
    for number in 0..6 {
        let mut record = PageRecord::default();
        page.run_one(&mut record).expect("a page");
        connects += count(&record, CONNECT);
        reopened += record.reopened;
        assert!(connects <= number / 2);
    }
    assert_eq!(
        (connects, reopened),
        (2, 2),
        "the first connection was there before"
    );
}

#[test]
fn a_kept_connection_that_is_closed_before_an_answer_is_no_failure() {
    // With the request unread, partly read and completely read: the kernel distinguishes these, the client does not.
    for read in [0, 1, usize::MAX] {
        let mut first = true;
        let socket = application(move |mut stream| {
            if std::mem::take(&mut first) {
                match read {
                    0 => {}
                    usize::MAX => drop(read_request(&mut stream)),
                    some => stream.read_exact(&mut vec![0; some]).expect("a request"),
                }
                return;
            }
            while read_request(&mut stream).is_some() {
                stream.write_all(&reply(GOOD)).expect("a page");
            }
        });
        let mut page = worker_page(&job(&socket, true));
        let mut record = PageRecord::default();
        page.run_one(&mut record)
            .expect("a page over another connection");
        assert_eq!((count(&record, CONNECT), record.reopened), (1, 1));
        let mut next = PageRecord::default();
        page.run_one(&mut next).expect("a page");
        assert_eq!(next.reopened, 0);
        assert_eq!(
            record.counters.to_server, next.counters.to_server,
            "once a page"
        );
    }
}

#[test]
fn a_kept_connection_that_is_closed_in_the_middle_is_one() {
    // A new connection without an answer is a failure, too.
    for (bytes, connects) in [(record(STDOUT, b"\r\nhalf"), 0), (Vec::new(), 1)] {
        let socket = answering(bytes);
        let mut record = PageRecord::default();
        let failed = worker_page(&job(&socket, true))
            .run_one(&mut record)
            .expect_err("no page");
        assert_eq!(failed.code, FailCode::ServerGone);
        assert_eq!(count(&record, CONNECT), connects);
    }
}

#[test]
fn a_page_may_come_byte_by_byte_in_many_small_records() {
    let mut bytes: Vec<u8> = GOOD
        .chunks(3)
        .flat_map(|part| record(STDOUT, part))
        .collect();
    bytes.extend(record(END, &[0; 8]));
    let socket = application(move |mut stream| {
        if read_request(&mut stream).is_some() {
            for byte in &bytes {
                stream.write_all(&[*byte]).expect("a byte");
                thread::sleep(Duration::from_micros(50));
            }
        }
    });
    let mut record = PageRecord::default();
    worker_page(&job(&socket, false))
        .run_one(&mut record)
        .expect("a page");
    assert_eq!(record.reported.len(), 2);
}

#[test]
fn a_page_that_never_comes_is_given_up() {
    let socket = application(std::mem::forget);
    let mut job = job(&socket, false);
    job.stall_timeout_ns = 50_000_000;
    let failed = worker_page(&job)
        .run_one(&mut PageRecord::default())
        .expect_err("no page");
    assert_eq!(failed.code, FailCode::Stalled);
    assert!(failed.message.contains("page"), "{failed:?}");
}

#[test]
fn an_application_that_is_not_there_is_told_as_one() {
    let socket = Socket::new();
    let Err(failed) = setup_of(&job(&socket, false)) else {
        panic!("nobody listens");
    };
    assert_eq!(failed.code, FailCode::Connect);
    assert!(
        failed.advice.contains("Start the application"),
        "{failed:?}"
    );
}

/// A socket whose queue is full, and the connections that fill it.
fn full(path: &str) -> (OwnedFd, Vec<UnixStream>) {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = raw::socket(family, kind, None).expect("a socket");
    let address = SocketAddrUnix::new(path).expect("an address");
    bind(&socket, &address).expect("a name");
    listen(&socket, 1).expect("a queue");
    let filling = Address::Unix(address);
    let mut fill = Vec::new();
    while let ConnectStart::Connected(socket) = filling.connect().expect("a connect") {
        fill.push(UnixStream::from(socket));
    }
    (socket, fill)
}

#[test]
fn a_full_queue_is_waited_for_and_counted() {
    let socket = Socket::new();
    let (listener, fill) = full(&socket.0);
    let mut job = job(&socket, false);
    let Err(failed) = setup_of(&job) else {
        panic!("there is no room");
    };
    assert_eq!(failed.code, FailCode::Connect);
    assert!(failed.message.contains("no room"), "{failed:?}");

    job.connect_timeout_ns = 20_000_000_000;
    let Application::FastCgi(fastcgi) = &job.application else {
        panic!("not an application");
    };
    let endpoint = Arc::new(ApplicationEndpoint::new(&job, fastcgi).expect("a site"));
    let mut page = FastCgiWorker {
        endpoint,
        worker: 0,
        persistent: None,
        reply: Reply::new(fastcgi.ends_with.len()),
        buffer: vec![0; BUFFER_BYTES],
    };
    let asking = thread::spawn(move || {
        let mut record = PageRecord::default();
        page.run_one(&mut record).map(|_| record)
    });
    // Wait until the client's thread sleeps in the kernel for room in the queue.
    let stat = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let waits = || {
        let tasks = std::fs::read_dir("/proc/self/task").expect("tasks");
        tasks.flatten().any(|task| {
            stat(&format!("{}/wchan", task.path().display())).contains("unix_wait_for_peer")
        })
    };
    for _ in 0..600 {
        if waits() {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    drop(fill);
    let listener = UnixListener::from(listener);
    let mut served = false;
    while !served {
        let (mut stream, _) = listener.accept().expect("a connection");
        if read_request(&mut stream).is_some() {
            stream.write_all(&reply(GOOD)).expect("a page");
            served = true;
        }
    }
    let record = asking.join().expect("a thread").expect("a page");
    assert_eq!((count(&record, CONNECT), count(&record, QUEUE)), (1, 1));
}
