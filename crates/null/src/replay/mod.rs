//! Round trips of a recording, sizes and times without words: a server that answers each request with as many bytes, after as long, as
//! the request says, and a client that makes the round trips one after the other and keeps the gaps between them.
//!
//! With neither gaps nor service times this measures what a round trip of each size costs on a path. `stream` is the socket, with TLS or
//! without, `speech` what the bytes on it look like. Both sides spin, as the application and the server compute: a processor that sleeps would have to be woken.

mod client;
pub(crate) mod jobs;
mod server;
mod speech;
mod stream;

use std::fs::File;
use std::os::unix::fs::FileExt;

pub(crate) use client::replay;
pub(crate) use server::serve;

use crate::clock::now_ns;

/// Longer waits sleep first: a timer, not a computation.
const LONGEST_SPIN_NS: u64 = 20_000_000;
const BUFFER: usize = 64 * 1024;

/// How long a thread has waited for a processor: other programs had them.
struct Queued {
    file: Option<File>,
    before_ns: u64,
}

impl Queued {
    /// The wait of the thread that makes it.
    fn new() -> Self {
        let mut queued = Self {
            file: File::open("/proc/thread-self/schedstat").ok(),
            before_ns: 0,
        };
        queued.since();
        queued
    }

    /// Since the last call; 0 where the kernel does not say.
    fn since(&mut self) -> u64 {
        let mut text = [0; 96];
        let read = self
            .file
            .as_ref()
            .and_then(|file| file.read_at(&mut text, 0).ok())
            .unwrap_or(0);
        let now_ns = std::str::from_utf8(&text[..read])
            .ok()
            .and_then(|text| text.split_ascii_whitespace().nth(1)?.parse().ok())
            .unwrap_or(self.before_ns);
        let since = now_ns.saturating_sub(self.before_ns);
        self.before_ns = now_ns;
        since
    }
}

/// Wait until then; the time it was when that was over.
fn wait_until(due_ns: u64) -> u64 {
    loop {
        let now = now_ns();
        if now >= due_ns {
            return now;
        }
        if due_ns - now > LONGEST_SPIN_NS {
            std::thread::sleep(std::time::Duration::from_nanos(
                due_ns - now - LONGEST_SPIN_NS,
            ));
        } else {
            std::hint::spin_loop();
        }
    }
}
