//! Exchanges of bytes over a connection on which nothing else is in flight: for requests outside the measured load.
//!
//! Not here: what the bytes mean.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use howfar_contract::Failed;
use howfar_contract::jobs::Target;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags};
use rustix::time::Timespec;

use crate::channel::{self, Channel};
use crate::clock::now_ns;
use crate::failure;
use crate::socket::send_some;

const BUFFER_BYTES: usize = 16 * 1024;
/// Read the clock at least this often while nothing moves.
const POLL_NS: u64 = 50_000_000;

/// One connection, lent for some exchanges.
pub(crate) struct Exchange<'a> {
    pub(crate) target: &'a Target,
    pub(crate) socket: &'a OwnedFd,
    pub(crate) channel: &'a mut Channel,
    /// Time limit without any byte sent or received.
    pub(crate) idle_timeout_ns: u64,
    /// Time limit for one exchange, even while bytes move.
    pub(crate) total_timeout_ns: u64,
}

impl Exchange<'_> {
    /// Send `request`, and return when the socket has taken all of it.
    pub(crate) fn send(&mut self, request: &[u8], operation: &str) -> Result<(), Failed> {
        if self.channel.is_plain() {
            return self.send_sealed(request, operation);
        }
        let mut sealed = Vec::new();
        self.channel
            .seal(request, &mut sealed)
            .map_err(|error| channel::translate_error(self.target, &error))?;
        self.send_sealed(&sealed, operation)
    }

    fn send_sealed(&self, bytes: &[u8], operation: &str) -> Result<(), Failed> {
        let mut rest = bytes;
        let mut last_progress_ns = now_ns();
        while !rest.is_empty() {
            let sent = self.send_some(rest)?;
            rest = &rest[sent..];
            let now = now_ns();
            if sent > 0 {
                last_progress_ns = now;
            } else {
                self.wait_until_ready(last_progress_ns, now, PollFlags::OUT, operation)?;
            }
        }
        Ok(())
    }

    /// Send `request`, and pass received bytes to `take` until it returns true. Bytes move in both directions at once, so that
    /// neither side waits for the other to read.
    pub(crate) fn request(
        &mut self,
        request: &[u8],
        operation: &str,
        mut take: impl FnMut(&[u8]) -> Result<bool, Failed>,
    ) -> Result<(), Failed> {
        let broken = |error| channel::translate_error(self.target, &error);
        let mut unsent = Vec::new();
        self.channel.seal(request, &mut unsent).map_err(broken)?;
        let (mut buffer, mut plain) = ([MaybeUninit::uninit(); BUFFER_BYTES], Vec::new());
        let began_ns = now_ns();
        let mut last_progress_ns = began_ns;
        let mut sent = 0;
        loop {
            let count = self.send_some(&unsent[sent..])?;
            sent += count;
            let received = match net::recv(self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => {
                    let during = format!("during {operation}");
                    return Err(failure::connection_closed(self.target, &during));
                }
                Ok(((received, _), _)) => received,
                Err(Errno::AGAIN | Errno::INTR) => &mut [],
                Err(error) => return Err(failure::connection_broken(self.target, &error.into())),
            };
            if !received.is_empty() {
                plain.clear();
                self.channel
                    .open(received, &mut plain, &mut unsent)
                    .map_err(broken)?;
                if !plain.is_empty() && take(&plain)? {
                    // Send the channel's own answer, if any.
                    return self.send_sealed(&unsent[sent..], operation);
                }
                self.channel.check_not_ended().map_err(broken)?;
            }
            let now = now_ns();
            if now.saturating_sub(began_ns) > self.total_timeout_ns {
                return Err(failure::stalled(
                    self.target,
                    0,
                    operation,
                    self.total_timeout_ns,
                ));
            }
            if count + received.len() > 0 {
                last_progress_ns = now;
                continue;
            }
            let mut interest = PollFlags::IN;
            interest.set(PollFlags::OUT, sent < unsent.len());
            self.wait_until_ready(last_progress_ns, now, interest, operation)?;
        }
    }

    fn send_some(&self, bytes: &[u8]) -> Result<usize, Failed> {
        send_some(self.socket, bytes)
            .map_err(|error| failure::connection_broken(self.target, &error))
    }

    /// Wait until the socket is ready, or until it is time to read the clock again. No byte has moved since `last_progress_ns`.
    fn wait_until_ready(
        &self,
        last_progress_ns: u64,
        now: u64,
        interest: PollFlags,
        operation: &str,
    ) -> Result<(), Failed> {
        if now > last_progress_ns.saturating_add(self.idle_timeout_ns) {
            return Err(failure::stalled(
                self.target,
                0,
                operation,
                self.idle_timeout_ns,
            ));
        }
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: POLL_NS.min(self.idle_timeout_ns) as i64,
        };
        // The next iteration of the caller's loop finds out what ended the wait.
        let _ = poll(&mut [PollFd::new(self.socket, interest)], Some(&timeout));
        Ok(())
    }
}
