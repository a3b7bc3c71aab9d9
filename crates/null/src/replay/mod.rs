//! Replay of a recording's round trips with their sizes and times, without their contents. The server answers each request with the
//! number of bytes and after the time that the request gives. The client makes the round trips one after the other and keeps the gaps
//! between them.
//!
//! Without gaps and service times this measures the cost of a round trip of each size on a path. `stream` is the socket, with or
//! without TLS; `speech` is the format of the bytes on it. Both sides spin while they wait, as the application and the server compute:
//! a sleeping CPU would have to be woken.

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

/// Maximum wait spent only with spinning; a longer wait sleeps first, because it stands for a timer, not for a computation.
const MAX_SPIN_NS: u64 = 20_000_000;
const BUFFER_BYTES: usize = 64 * 1024;

/// Measures how long a thread has waited for a CPU while other programs ran.
struct CpuWait {
    file: Option<File>,
    total_ns: u64,
}

impl CpuWait {
    /// Measure the calling thread.
    fn new() -> Self {
        let mut cpu_wait = Self {
            file: File::open("/proc/thread-self/schedstat").ok(),
            total_ns: 0,
        };
        cpu_wait.since_last_call();
        cpu_wait
    }

    /// The wait since the last call, in nanoseconds; 0 if the kernel does not report it.
    fn since_last_call(&mut self) -> u64 {
        let mut text = [0; 96];
        let read = self
            .file
            .as_ref()
            .and_then(|file| file.read_at(&mut text, 0).ok())
            .unwrap_or(0);
        let total_ns = std::str::from_utf8(&text[..read])
            .ok()
            .and_then(|text| text.split_ascii_whitespace().nth(1)?.parse().ok())
            .unwrap_or(self.total_ns);
        let since_ns = total_ns.saturating_sub(self.total_ns);
        self.total_ns = total_ns;
        since_ns
    }
}

/// Wait until `due_ns`; returns the time at which the wait ended.
fn wait_until(due_ns: u64) -> u64 {
    loop {
        let now = now_ns();
        if now >= due_ns {
            return now;
        }
        if due_ns - now > MAX_SPIN_NS {
            std::thread::sleep(std::time::Duration::from_nanos(due_ns - now - MAX_SPIN_NS));
        } else {
            std::hint::spin_loop();
        }
    }
}
