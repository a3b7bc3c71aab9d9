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
pub(super) const VALID_PAGE: &[u8] =
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

/// Read a request; returns whether to keep the connection, `None` if the client has closed it.
fn read_request(stream: &mut UnixStream) -> Option<bool> {
    let mut keep = false;
    loop {
        let mut header = [0; 8];
        stream.read_exact(&mut header).ok()?;
        let mut content = vec![0; usize::from(u16::from_be_bytes([header[4], header[5]]))];
        stream.read_exact(&mut content).ok()?;
        match header[1] {
            1 => keep = content[2] & 1 == 1,
            5 => return Some(keep),
            _ => {}
        }
    }
}

static NEXT_SOCKET: AtomicU32 = AtomicU32::new(0);

/// The path of a socket, removed when the test ends.
struct Socket(String);

impl Socket {
    fn new() -> Self {
        let number = NEXT_SOCKET.fetch_add(1, Ordering::Relaxed);
        let name = format!("howfar-fastcgi-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        Self(path.to_str().expect("the path is text").to_owned())
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
    let listener = UnixListener::bind(&socket.0).expect("the path is new");
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            serve(stream);
        }
    });
    socket
}

/// An application that answers each request with the same bytes, then closes the connection.
fn answering_application(bytes: Vec<u8>) -> Socket {
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
    serde_json::from_value(job).expect("the job is valid")
}

fn run_setup(job: &PageJob) -> Result<PageSetup, Failed> {
    let Application::FastCgi(fastcgi) = &job.application else {
        panic!("not an application");
    };
    setup(job, fastcgi, &[0])
}

fn worker_page(job: &PageJob) -> Box<dyn Page> {
    let mut page = run_setup(job).expect("the setup works").pages.remove(0);
    page.open().expect("open");
    page
}

/// The failure of the first page from an application that answers with `bytes`.
pub(super) fn request_failure(bytes: Vec<u8>) -> Failed {
    let socket = answering_application(bytes);
    worker_page(&job(&socket, false))
        .run_page(&mut PageRecord::default())
        .expect_err("the page is invalid")
}

/// The numbers of connects and of waits for the queue.
fn count_latencies(record: &PageRecord) -> [usize; 2] {
    let count = |kind| {
        record
            .latencies
            .iter()
            .filter(|latency| latency.0 == kind)
            .count()
    };
    [count(CONNECT_INDEX), count(QUEUE_INDEX)]
}

#[test]
fn each_page_uses_its_own_connection() {
    let (sender, requests) = mpsc::channel();
    let socket = application(move |mut stream| {
        let Some(keep) = read_request(&mut stream) else {
            return;
        };
        stream.write_all(&reply(VALID_PAGE)).expect("it is sent");
        // The client must send nothing more, and close without waiting for this side to close.
        let rest = stream.read(&mut [0; 1]).expect("the client closes");
        sender
            .send((keep, rest, now_ns()))
            .expect("the test receives");
    });
    let job = job(&socket, false);
    let setup = run_setup(&job).expect("the setup works");
    assert_eq!(setup.receipt.peer_pid, Some(std::process::id()));
    assert_eq!(setup.receipt.peer_address, socket.0);
    assert_eq!(setup.pages.len(), 2);
    for mut page in setup.pages {
        page.open().expect("open");
        for _ in 0..3 {
            let mut record = PageRecord::default();
            let ended_ns = page.run_page(&mut record).expect("the page is valid");
            assert_eq!(count_latencies(&record), [1, 0]);
            let reported: Vec<_> = record.reported.into_iter().collect();
            assert_eq!(reported, [("cpu_ns".to_owned(), 7), ("hits".to_owned(), 2)]);
            assert_eq!(
                (record.counters.queries, record.counters.round_trips),
                (1, 1)
            );
            assert_eq!(record.counters.to_client, reply(VALID_PAGE).len() as u64);
            let (keep, rest, closed_ns) = requests.recv().expect("a request came");
            assert_eq!((keep, rest), (false, 0));
            assert!(ended_ns <= closed_ns, "a page ends before its close");
        }
        page.close();
    }
}

#[test]
fn a_connection_is_kept_until_the_application_closes_it() {
    // Two pages over each connection, then the application closes it.
    let socket = application(|mut stream| {
        for _ in 0..2 {
            let Some(keep) = read_request(&mut stream) else {
                return;
            };
            assert!(keep);
            stream.write_all(&reply(VALID_PAGE)).expect("it is sent");
        }
    });
    let mut page = worker_page(&job(&socket, true));
    let (mut connects, mut reopened) = (0, 0);
    for number in 0..6 {
        let mut record = PageRecord::default();
        page.run_page(&mut record).expect("the page is valid");
        connects += count_latencies(&record)[0];
        reopened += record.reopened;
        assert!(connects <= number / 2);
    }
    assert_eq!(
        (connects, reopened),
        (2, 2),
        "the first connection was opened before the pages"
    );
}

#[test]
fn a_kept_connection_that_is_closed_before_an_answer_is_no_failure() {
    // With the request unread, partly read and completely read: the kernel distinguishes these, the client does not.
    for read_bytes in [0, 1, usize::MAX] {
        let mut first = true;
        let socket = application(move |mut stream| {
            if std::mem::take(&mut first) {
                match read_bytes {
                    0 => {}
                    usize::MAX => drop(read_request(&mut stream)),
                    count => stream
                        .read_exact(&mut vec![0; count])
                        .expect("a request came"),
                }
                return;
            }
            while read_request(&mut stream).is_some() {
                stream.write_all(&reply(VALID_PAGE)).expect("it is sent");
            }
        });
        let mut page = worker_page(&job(&socket, true));
        let mut record = PageRecord::default();
        page.run_page(&mut record).expect("the page is valid");
        assert_eq!((count_latencies(&record)[0], record.reopened), (1, 1));
        let mut next = PageRecord::default();
        page.run_page(&mut next).expect("the page is valid");
        assert_eq!(next.reopened, 0);
        assert_eq!(
            record.counters.to_server, next.counters.to_server,
            "the request is counted once per page"
        );
    }
}

#[test]
fn a_connection_that_is_closed_within_an_answer_is_a_failure() {
    // A new connection without an answer is a failure, too.
    for (bytes, connects) in [(record(STDOUT, b"\r\nhalf"), 0), (Vec::new(), 1)] {
        let socket = answering_application(bytes);
        let mut record = PageRecord::default();
        let failed = worker_page(&job(&socket, true))
            .run_page(&mut record)
            .expect_err("the page is invalid");
        assert_eq!(failed.code, FailCode::ServerGone);
        assert_eq!(count_latencies(&record)[0], connects);
    }
}

#[test]
fn a_page_may_come_byte_by_byte_in_many_small_records() {
    let mut bytes: Vec<u8> = VALID_PAGE
        .chunks(3)
        .flat_map(|part| record(STDOUT, part))
        .collect();
    bytes.extend(record(END, &[0; 8]));
    let socket = application(move |mut stream| {
        if read_request(&mut stream).is_some() {
            for byte in &bytes {
                stream.write_all(&[*byte]).expect("it is sent");
                thread::sleep(Duration::from_micros(50));
            }
        }
    });
    let mut record = PageRecord::default();
    worker_page(&job(&socket, false))
        .run_page(&mut record)
        .expect("the page is valid");
    assert_eq!(record.reported.len(), 2);
}

#[test]
fn a_page_that_never_comes_times_out() {
    let socket = application(std::mem::forget);
    let mut job = job(&socket, false);
    job.stall_timeout_ns = 50_000_000;
    let failed = worker_page(&job)
        .run_page(&mut PageRecord::default())
        .expect_err("the page is invalid");
    assert_eq!(failed.code, FailCode::Stalled);
    assert!(failed.message.contains("page"), "{failed:?}");
}

#[test]
fn a_missing_application_gets_its_own_advice() {
    let socket = Socket::new();
    let Err(failed) = run_setup(&job(&socket, false)) else {
        panic!("nothing listens on the socket");
    };
    assert_eq!(failed.code, FailCode::Connect);
    assert!(
        failed.advice.contains("Start the application"),
        "{failed:?}"
    );
}

/// A socket whose queue is full, and the connections that fill it.
fn fill_queue(path: &str) -> (OwnedFd, Vec<UnixStream>) {
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = raw::socket(family, kind, None).expect("it opens");
    let address = SocketAddrUnix::new(path).expect("a valid path");
    bind(&socket, &address).expect("the path is new");
    listen(&socket, 1).expect("it listens");
    let filling = Address::Unix(address);
    let mut fill = Vec::new();
    while let ConnectStart::Connected(socket) = filling.connect().expect("no other error") {
        fill.push(UnixStream::from(socket));
    }
    (socket, fill)
}

#[test]
fn a_wait_for_a_full_queue_is_counted() {
    let socket = Socket::new();
    let (listener, fill) = fill_queue(&socket.0);
    let mut job = job(&socket, false);
    let Err(failed) = run_setup(&job) else {
        panic!("the queue is full");
    };
    assert_eq!(failed.code, FailCode::Connect);
    assert!(failed.message.contains("no room"), "{failed:?}");

    job.connect_timeout_ns = 20_000_000_000;
    let Application::FastCgi(fastcgi) = &job.application else {
        panic!("not an application");
    };
    let endpoint = Arc::new(ApplicationEndpoint::new(&job, fastcgi).expect("the address is valid"));
    let mut page = FastCgiWorker {
        endpoint,
        worker: 0,
        persistent: None,
        reply: Reply::new(fastcgi.ends_with.len()),
        buffer: vec![0; BUFFER_BYTES],
    };
    let client = thread::spawn(move || {
        let mut record = PageRecord::default();
        page.run_page(&mut record).map(|_| record)
    });
    // Wait until the client's thread sleeps in the kernel for room in the queue.
    let stat = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let is_waiting = || {
        let tasks = std::fs::read_dir("/proc/self/task").expect("tasks");
        tasks.flatten().any(|task| {
            stat(&format!("{}/wchan", task.path().display())).contains("unix_wait_for_peer")
        })
    };
    for _ in 0..600 {
        if is_waiting() {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    drop(fill);
    let listener = UnixListener::from(listener);
    let mut served = false;
    while !served {
        let (mut stream, _) = listener.accept().expect("a client connects");
        if read_request(&mut stream).is_some() {
            stream.write_all(&reply(VALID_PAGE)).expect("it is sent");
            served = true;
        }
    }
    let record = client.join().expect("no panic").expect("valid");
    assert_eq!(count_latencies(&record), [1, 1]);
}
