//! Counts the bytes that arrive within a measured window.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::{RecvFlags, recv};

use crate::clock::now;

/// Maximum bytes that one read takes from the socket.
const MAX_READ_BYTES: usize = 1 << 20;
/// The clock is checked at least this often while the sender is silent.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The bytes that arrived and the time they took, from the read that ended the warm-up to the read that ended the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) bytes: u64,
    pub(super) elapsed_ns: u64,
}

/// Receive for the warm-up and then for the window. The kernel discards the bytes without copying them. A sender that closes early is
/// an error; a sender that pauses is not, and its window counts fewer bytes.
pub(super) fn receive(stream: &TcpStream, warmup_ns: u64, measure_ns: u64) -> io::Result<Window> {
    let original_timeout = stream.read_timeout()?;
    stream.set_read_timeout(Some(CHECK_INTERVAL))?;
    let begin = now();
    let mut buffer = vec![0_u8; MAX_READ_BYTES];
    let mut total = 0_u64;
    let mut window_start = None;
    loop {
        // On TCP, TRUNC means: count the bytes and discard them.
        match recv(stream, &mut buffer[..], RecvFlags::TRUNC) {
            Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((_, bytes)) => total += bytes as u64,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let time = now();
        match window_start {
            None if time - begin >= warmup_ns => window_start = Some((time, total)),
            Some((start, bytes_before)) if time - start >= measure_ns => {
                stream.set_read_timeout(original_timeout)?;
                return Ok(Window {
                    bytes: total - bytes_before,
                    elapsed_ns: time - start,
                });
            }
            _ => {}
        }
    }
}
