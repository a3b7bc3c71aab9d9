//! One connection on its way in: from `connect` to its last prepared statement, without blocking.

use std::os::fd::OwnedFd;

use howfar_contract::Failed;
use howfar_wire::mysql::Malformed;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags};
use rustix::time::Timespec;

use crate::clock::now_ns;
use crate::failure;
use crate::hello::Hello;
use crate::login::{Entry, Login, Session};
use crate::socket::{Address, Begun, decided};
use crate::wire::send_some;

const BUFFER: usize = 16 * 1024;
/// Receives in a row before somebody looks at the clock: a login needs a few.
const IN_A_ROW: u32 = 32;
/// Between two looks while the server's queue is full.
const BUSY_NS: i64 = 2_000_000;
const POLL_NS: i64 = 50_000_000;

/// What must be said before requests.
enum Way {
    Login(Box<Login>),
    Hello(Box<Hello>),
}

/// A connection that is not ready.
pub(crate) struct Opening {
    pub(crate) socket: OwnedFd,
    pub(crate) began_ns: u64,
    way: Way,
    /// Ready but for what is unsent.
    session: Option<Session>,
    connected: bool,
    unsent: Vec<u8>,
    /// The socket had more than was taken: no event will tell of it.
    pub(crate) more: bool,
}

impl std::fmt::Debug for Opening {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Opening")
            .field("doing", &self.doing())
            .finish_non_exhaustive()
    }
}

impl Opening {
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
        let (way, session) = match entry.program.commands() {
            None => (Way::Login(Box::new(Login::new(entry.program))), None),
            Some(commands) => {
                let mut hello = Hello::begin(commands.protocol(), entry, &mut unsent)?;
                let session = hello.feed(&[], entry, &mut unsent)?;
                (Way::Hello(Box::new(hello)), session)
            }
        };
        Ok(Some(Self {
            socket,
            began_ns,
            way,
            session,
            connected,
            unsent,
            more: false,
        }))
    }

    /// What it waits for, for messages.
    pub(crate) fn doing(&self) -> &'static str {
        if self.connected {
            match &self.way {
                Way::Login(login) => login.doing(),
                Way::Hello(hello) => hello.doing(),
            }
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
            match net::recv(&self.socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    let doing = format!("while it was waited for {}", self.doing());
                    return Err(failure::gone(target, &doing));
                }
                Ok((count, _)) if self.session.is_none() => {
                    let (raw, out) = (&buffer[..count], &mut self.unsent);
                    self.session = match &mut self.way {
                        Way::Login(login) => login.feed(raw, entry, out)?,
                        Way::Hello(hello) => hello.feed(raw, entry, out)?,
                    };
                }
                Ok(_) => {
                    let early = Malformed::Unexpected("bytes came although nothing was asked");
                    return Err(failure::malformed(target, early));
                }
                // Not yet connected: the kernel says so on the first look.
                Err(Errno::AGAIN | Errno::INTR | Errno::NOTCONN) => return Ok(None),
                Err(error) => return Err(failure::broken(target, &error.into())),
            }
        }
        self.more = true;
        Ok(None)
    }

    /// Told when it took too long.
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
    let mut opening = loop {
        if let Some(opening) = Opening::begin(entry, address, now_ns())? {
            break opening;
        }
        if now_ns() > deadline {
            return Err(failure::too_slow(entry.target, "accepting", limit_ns));
        }
        wait(&mut [], BUSY_NS);
    };
    loop {
        let mut interest = PollFlags::IN;
        if !opening.connected || !opening.unsent.is_empty() {
            interest |= PollFlags::OUT;
        }
        // A session that has nothing to say may be ready with its socket.
        if !opening.connected || opening.session.is_none() {
            wait(&mut [PollFd::new(&opening.socket, interest)], POLL_NS);
        }
        if let Some(session) = opening.progress(entry, &mut buffer)? {
            return Ok((opening.socket, session));
        }
        if now_ns() > deadline {
            return Err(opening.too_slow(entry, limit_ns));
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
