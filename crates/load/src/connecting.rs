//! One connection while it opens: from `connect` to its last prepared statement, without blocking.

use std::os::fd::OwnedFd;

use howfar_contract::Failed;
use howfar_wire::mysql::Malformed;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{self, RecvFlags};
use rustix::time::Timespec;

use crate::clock::now_ns;
use crate::failure;
use crate::login::{Entry, Session};
use crate::protocol::{self, Handshake};
use crate::socket::{Address, Begun, decided};
use crate::wire::send_some;

const BUFFER: usize = 16 * 1024;
/// Receives in a row before somebody looks at the clock: a login needs a few.
const IN_A_ROW: u32 = 32;
/// Between two looks while the server's queue is full.
const BUSY_NS: i64 = 2_000_000;
const POLL_NS: i64 = 50_000_000;

/// A connection that is not ready.
pub(crate) struct Connecting {
    pub(crate) socket: OwnedFd,
    pub(crate) began_ns: u64,
    handshake: Box<dyn Handshake>,
    /// Ready but for what is unsent.
    session: Option<Session>,
    connected: bool,
    unsent: Vec<u8>,
    /// The socket had more than was taken: no event will say so.
    pub(crate) more: bool,
}

impl std::fmt::Debug for Connecting {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Connecting")
            .field("doing", &self.doing())
            .finish_non_exhaustive()
    }
}

impl Connecting {
    /// Begin to connect; `None`: the server's queue of new connections is full.
    pub(crate) fn begin(
        entry: &Entry<'_>,
        address: &Address,
        began_ns: u64,
    ) -> Result<Option<Self>, Failed> {
        let begun = address
            .connect()
            .map_err(|error| failure::refused(entry.target, &error))?;
        let (socket, connected) = match begun {
            Begun::Connected(socket) => (socket, true),
            Begun::Pending(socket) => (socket, false),
            Begun::Busy => return Ok(None),
        };
        let mut unsent = Vec::new();
        let mut handshake = protocol::login(entry, &mut unsent)?;
        // A client without a word to say is ready when its socket is.
        let session = handshake.feed(&[], entry, &mut unsent)?;
        Ok(Some(Self {
            socket,
            began_ns,
            handshake,
            session,
            connected,
            unsent,
            more: false,
        }))
    }

    /// What it waits for, for messages.
    pub(crate) fn doing(&self) -> &'static str {
        if self.connected {
            self.handshake.doing()
        } else {
            "the connection"
        }
    }

    /// The socket may be ready: go as far as it lets.
    pub(crate) fn progress(
        &mut self,
        entry: &Entry<'_>,
        buffer: &mut [u8],
    ) -> Result<Option<Session>, Failed> {
        let target = entry.target;
        if !self.connected {
            decided(&self.socket).map_err(|error| failure::refused(target, &error))?;
            self.connected = true;
        }
        self.more = false;
        for _ in 0..IN_A_ROW {
            let sent = send_some(&self.socket, &self.unsent)
                .map_err(|error| failure::broken(target, &error))?;
            self.unsent.drain(..sent);
            if self.unsent.is_empty() && self.session.is_some() {
                return Ok(self.session.take());
            }
            match retry_on_intr(|| net::recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT)) {
                Ok((0, _)) => {
                    let doing = format!("while it was waited for {}", self.doing());
                    return Err(failure::gone(target, &doing));
                }
                Ok((count, _)) if self.session.is_none() => {
                    let (raw, out) = (&buffer[..count], &mut self.unsent);
                    self.session = self.handshake.feed(raw, entry, out)?;
                }
                Ok(_) => {
                    let early = Malformed::Unexpected("bytes came although nothing was asked");
                    return Err(failure::malformed(target, early));
                }
                // Not yet connected: the kernel says so on the first look.
                Err(Errno::AGAIN | Errno::NOTCONN) => return Ok(None),
                Err(error) => return Err(failure::broken(target, &error.into())),
            }
        }
        self.more = true;
        Ok(None)
    }

    /// The failure of one that took too long.
    pub(crate) fn too_slow(&self, entry: &Entry<'_>, limit_ns: u64) -> Failed {
        failure::too_slow(entry.target, self.doing(), limit_ns)
    }
}

/// Open one connection and wait for it.
pub(crate) fn open_one(
    entry: &Entry<'_>,
    address: &Address,
    limit_ns: u64,
) -> Result<(OwnedFd, Session), Failed> {
    let deadline = now_ns() + limit_ns;
    let mut buffer = vec![0; BUFFER];
    let mut connecting = loop {
        if let Some(connecting) = Connecting::begin(entry, address, now_ns())? {
            break connecting;
        }
        if now_ns() > deadline {
            return Err(failure::too_slow(entry.target, "accepting", limit_ns));
        }
        wait(&mut [], BUSY_NS);
    };
    loop {
        let mut interest = PollFlags::IN;
        if !connecting.connected || !connecting.unsent.is_empty() {
            interest |= PollFlags::OUT;
        }
        // A session that has nothing to say may be ready with its socket.
        if !connecting.connected || connecting.session.is_none() {
            wait(&mut [PollFd::new(&connecting.socket, interest)], POLL_NS);
        }
        if let Some(session) = connecting.progress(entry, &mut buffer)? {
            return Ok((connecting.socket, session));
        }
        if now_ns() > deadline {
            return Err(connecting.too_slow(entry, limit_ns));
        }
    }
}

/// Whatever ends the wait, the next turn of the caller's loop finds out.
fn wait(sockets: &mut [PollFd<'_>], most_ns: i64) {
    let patience = Timespec {
        tv_sec: 0,
        tv_nsec: most_ns,
    };
    let _ = poll(sockets, Some(&patience));
}
