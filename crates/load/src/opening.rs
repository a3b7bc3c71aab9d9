//! Opens many connections at once, each from `connect` to its last prepared statement.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use howfar_record::Failed;
use howfar_wire::mysql::Malformed;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags};
use rustix::time::Timespec;

use crate::clock::now_ns;
use crate::connection::send_some;
use crate::failure;
use crate::login::{Entry, Login, Session, internal};
use crate::socket::{Address, Begun, decided};

/// Connections on their way in at a time, per worker: enough to hide a long round trip, below the usual length of a server's queue.
const AT_ONCE: usize = 128;
const EVENTS: usize = 64;
const BUFFER: usize = 16 * 1024;
/// While the server's queue is full, and otherwise (for the deadlines only).
const BUSY_NS: i64 = 2_000_000;
const QUIET_NS: i64 = 50_000_000;

struct Opening {
    socket: OwnedFd,
    login: Login,
    /// Ready but for what is unsent.
    session: Option<Session>,
    connected: bool,
    unsent: Vec<u8>,
    deadline_ns: u64,
}

/// Open one connection for each of `ids` and hand it to `ready`. Every connection has `limit_ns` from connect to ready.
pub(crate) fn open(
    entry: &Entry<'_>,
    address: &Address,
    ids: &mut dyn Iterator<Item = u64>,
    limit_ns: u64,
    ready: &mut dyn FnMut(u64, OwnedFd, Session),
) -> Result<(), Failed> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
        .map_err(|error| internal(format!("epoll: {error}")))?;
    let mut door = Door {
        entry,
        address,
        limit_ns,
        epoll,
        inside: BTreeMap::new(),
        waiting: None,
    };
    let mut buffer = vec![0; BUFFER];
    loop {
        let busy = door.let_in(ids)?;
        if door.inside.is_empty() && !busy {
            return Ok(());
        }
        let mut events = Vec::with_capacity(EVENTS);
        let patience = Timespec {
            tv_sec: 0,
            tv_nsec: if busy { BUSY_NS } else { QUIET_NS },
        };
        match epoll::wait(
            &door.epoll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&patience),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(internal(format!("epoll: {error}"))),
        }
        for event in &events {
            let id = event.data.u64();
            if let Some(session) = door.progress(id, &mut buffer)? {
                if let Some(opening) = door.inside.remove(&id) {
                    epoll::delete(&door.epoll, &opening.socket)
                        .map_err(|error| internal(format!("epoll: {error}")))?;
                    ready(id, opening.socket, session);
                }
            }
        }
        door.check_deadlines()?;
    }
}

struct Door<'a> {
    entry: &'a Entry<'a>,
    address: &'a Address,
    limit_ns: u64,
    epoll: OwnedFd,
    inside: BTreeMap<u64, Opening>,
    /// The connection that found the server's queue full, and until when it may try.
    waiting: Option<(u64, u64)>,
}

impl Door<'_> {
    /// Begin as many connections as may be under way; true when the server's queue is full.
    fn let_in(&mut self, ids: &mut dyn Iterator<Item = u64>) -> Result<bool, Failed> {
        while self.inside.len() < AT_ONCE {
            let next = self
                .waiting
                .take()
                .or_else(|| ids.next().map(|id| (id, now_ns() + self.limit_ns)));
            let Some((id, deadline_ns)) = next else {
                return Ok(false);
            };
            let target = self.entry.target;
            let (socket, connected) = match self
                .address
                .connect()
                .map_err(|error| failure::refused(target, &error))?
            {
                Begun::Connected(socket) => (socket, true),
                Begun::Pending(socket) => (socket, false),
                Begun::Busy if now_ns() < deadline_ns => {
                    self.waiting = Some((id, deadline_ns));
                    return Ok(true);
                }
                Begun::Busy => return Err(failure::too_slow(target, "accepting", self.limit_ns)),
            };
            let interest = if connected {
                EventFlags::IN
            } else {
                EventFlags::OUT
            };
            epoll::add(&self.epoll, &socket, EventData::new_u64(id), interest)
                .map_err(|error| internal(format!("epoll: {error}")))?;
            let login = Login::new(self.entry.program);
            self.inside.insert(
                id,
                Opening {
                    socket,
                    login,
                    session: None,
                    connected,
                    unsent: Vec::new(),
                    deadline_ns,
                },
            );
        }
        Ok(false)
    }

    fn progress(&mut self, id: u64, buffer: &mut [u8]) -> Result<Option<Session>, Failed> {
        let target = self.entry.target;
        let Some(opening) = self.inside.get_mut(&id) else {
            return Ok(None);
        };
        if !opening.connected {
            decided(&opening.socket).map_err(|error| failure::refused(target, &error))?;
            opening.connected = true;
        }
        match net::recv(&opening.socket, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => {
                return Err(failure::gone(
                    target,
                    &format!("while it was waited for {}", opening.login.doing()),
                ));
            }
            Ok((count, _)) if opening.session.is_none() => {
                opening.session =
                    opening
                        .login
                        .feed(&buffer[..count], self.entry, &mut opening.unsent)?;
            }
            Ok(_) => {
                let early = Malformed::Unexpected("bytes came although nothing was asked");
                return Err(failure::malformed(target, early));
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(failure::broken(target, &error.into())),
        }
        let sent = send_some(&opening.socket, &opening.unsent)
            .map_err(|error| failure::broken(target, &error))?;
        opening.unsent.drain(..sent);
        if opening.unsent.is_empty() && opening.session.is_some() {
            return Ok(opening.session.take());
        }
        let interest = if opening.unsent.is_empty() {
            EventFlags::IN
        } else {
            EventFlags::IN | EventFlags::OUT
        };
        epoll::modify(
            &self.epoll,
            &opening.socket,
            EventData::new_u64(id),
            interest,
        )
        .map_err(|error| internal(format!("epoll: {error}")))?;
        Ok(None)
    }

    fn check_deadlines(&self) -> Result<(), Failed> {
        let now = now_ns();
        match self
            .inside
            .values()
            .find(|opening| now > opening.deadline_ns)
        {
            None => Ok(()),
            Some(late) => {
                let doing = if late.connected {
                    late.login.doing()
                } else {
                    "the connection"
                };
                Err(failure::too_slow(self.entry.target, doing, self.limit_ns))
            }
        }
    }
}
