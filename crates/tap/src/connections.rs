//! The part that both taps share: the listening socket, the connections, and waiting for their events.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use howfar_contract::jobs::Target;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{self, sockopt};

use crate::address::{self, ConnectError};
use crate::end::{SocketEnd, clear_counter, now_ns, timespec};

const MAX_EVENTS: usize = 256;
/// Token of the listening socket's events.
pub(crate) const LISTENER_TOKEN: u64 = u64::MAX;
const WAKE_TOKEN: u64 = u64::MAX - 1;
/// Reported once when bytes come or room becomes available (edge-triggered).
const INTEREST: EventFlags = EventFlags::IN
    .union(EventFlags::OUT)
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);

/// Pause before retrying a server whose queue is full.
pub(crate) const RETRY_NS: u64 = 1_000_000;
/// How long after the client's connect such a server is retried.
const RETRY_TIMEOUT_NS: u64 = 10_000_000_000;

/// The state of the connection to the server.
#[derive(Debug)]
pub(crate) enum Upstream {
    /// Not connected; connect at this time.
    Due {
        at_ns: u64,
    },
    /// TCP: the handshake is in progress.
    Connecting(SocketEnd),
    Open(SocketEnd),
}

/// A connection of the application and its connection to the server. `S`: the state that one kind of tap keeps for it.
#[derive(Debug)]
pub(crate) struct Connection<S> {
    pub(crate) client: SocketEnd,
    pub(crate) server: Upstream,
    pub(crate) opened_ns: u64,
    pub(crate) state: S,
}

/// The connections to one server. The events of connection `index` have the tokens `2 * index` (client) and `2 * index + 1`
/// (server).
#[derive(Debug)]
pub(crate) struct Connections<S> {
    listener: OwnedFd,
    pub(crate) target: Target,
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    slots: Vec<Option<Connection<S>>>,
    /// Indices of the empty slots.
    free_slots: Vec<usize>,
    /// Connections that could not be made to the server, and why the last one failed.
    pub(crate) refused: u64,
    pub(crate) refusal: Option<String>,
}

impl<S> Connections<S> {
    /// `wake` becomes readable when the tap must return from [`Self::wait`].
    pub(crate) fn new(listener: OwnedFd, target: Target, wake: Arc<OwnedFd>) -> io::Result<Self> {
        let connections = Self {
            listener,
            target,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            wake,
            slots: Vec::new(),
            free_slots: Vec::new(),
            refused: 0,
            refusal: None,
        };
        connections.watch(&connections.listener, LISTENER_TOKEN)?;
        connections.watch(&connections.wake, WAKE_TOKEN)?;
        Ok(connections)
    }

    /// Report that `descriptor` is readable, by an event with this token.
    pub(crate) fn watch(&self, descriptor: &OwnedFd, token: u64) -> rustix::io::Result<()> {
        epoll::add(
            &self.epoll,
            descriptor,
            EventData::new_u64(token),
            EventFlags::IN,
        )
    }

    /// Whether another connection may be accepted; if not, it counts as refused.
    pub(crate) fn admit(&mut self, max: usize) -> bool {
        let has_room = self.open_count() < max;
        if !has_room {
            self.refuse("the tap has no room for more connections".to_owned());
        }
        has_room
    }

    pub(crate) fn open_count(&self) -> usize {
        self.slots.len() - self.free_slots.len()
    }

    /// Wait for events, at most `timeout_ns`.
    pub(crate) fn wait(&self, timeout_ns: Option<u64>) -> io::Result<Vec<Event>> {
        let timeout = timeout_ns.map(timespec);
        let mut events = Vec::with_capacity(MAX_EVENTS);
        let space = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.epoll, space, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(events),
            Err(error) => Err(error.into()),
        }
    }

    /// Update a connection's readiness. Returns its index if it is open; None if the event was the request to return.
    pub(crate) fn handle_event(&mut self, event: Event) -> Option<usize> {
        let token = event.data.u64();
        if token == WAKE_TOKEN {
            clear_counter(&self.wake);
            return None;
        }
        let index = (token / 2) as usize;
        let connection = self.slots.get_mut(index)?.as_mut()?;
        if token & 1 == 0 {
            connection.client.handle_readiness(event.flags);
        } else if let Upstream::Connecting(end) | Upstream::Open(end) = &mut connection.server {
            end.handle_readiness(event.flags);
        }
        Some(index)
    }

    /// Accept a client; None if none waits.
    pub(crate) fn accept(&self) -> io::Result<Option<OwnedFd>> {
        address::accept(&self.listener)
    }

    /// Add a connection; returns its index.
    pub(crate) fn add(&mut self, connection: Connection<S>) -> rustix::io::Result<usize> {
        let index = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        add_socket(&self.epoll, &connection.client.socket, index * 2)?;
        if let Upstream::Connecting(server) | Upstream::Open(server) = &connection.server {
            add_socket(&self.epoll, &server.socket, index * 2 + 1)?;
        }
        self.slots[index] = Some(connection);
        Ok(index)
    }

    /// Take a connection out of its slot, to serve it.
    pub(crate) fn take(&mut self, index: usize) -> Option<Connection<S>> {
        self.slots.get_mut(index)?.take()
    }

    /// Put a connection back after it was served.
    pub(crate) fn put_back(&mut self, index: usize, connection: Connection<S>) {
        self.slots[index] = Some(connection);
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Connection<S>> {
        self.slots.get_mut(index)?.as_mut()
    }

    /// Free the slot of a connection that ended, with an error or without. An error before the server was reached is a refusal.
    pub(crate) fn free(
        &mut self,
        index: usize,
        connection: &Connection<S>,
        error: Option<ConnectError>,
    ) {
        if let Some(error) = error.filter(|_| !matches!(connection.server, Upstream::Open(_))) {
            self.refuse(error.to_string());
        }
        self.free_slots.push(index);
    }

    /// Count a connection that cannot be made.
    fn refuse(&mut self, reason: String) {
        self.refused += 1;
        self.refusal = Some(reason);
    }

    /// Advance the connection to the server as far as it allows now; `on_socket` is called with a new socket.
    pub(crate) fn connect(
        &self,
        connection: &mut Connection<S>,
        index: usize,
        on_socket: impl FnOnce(&OwnedFd),
    ) -> Result<(), ConnectError> {
        let server = &mut connection.server;
        match server {
            Upstream::Due { at_ns } if *at_ns <= now_ns() => {
                match address::connect(&self.target, &connection.client.socket) {
                    Ok(socket) => {
                        add_socket(&self.epoll, &socket, index * 2 + 1)?;
                        on_socket(&socket);
                        let end = SocketEnd::new(socket);
                        *server = match self.target {
                            Target::Unix { .. } => Upstream::Open(end),
                            Target::Tcp { .. } => Upstream::Connecting(end),
                        };
                    }
                    Err(ConnectError::Kernel(Errno::AGAIN))
                        if now_ns() < connection.opened_ns + RETRY_TIMEOUT_NS =>
                    {
                        *at_ns = now_ns() + RETRY_NS;
                    }
                    Err(error) => return Err(error),
                }
            }
            Upstream::Connecting(end) if end.readable || end.writable => {
                sockopt::socket_error(&end.socket)??;
                // A connect that another process began may not be complete yet.
                if net::getpeername(&end.socket).is_ok() {
                    let connecting = std::mem::replace(server, Upstream::Due { at_ns: 0 });
                    if let Upstream::Connecting(end) = connecting {
                        *server = Upstream::Open(end);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn add_socket(epoll: &OwnedFd, socket: &OwnedFd, token: usize) -> rustix::io::Result<()> {
    epoll::add(epoll, socket, EventData::new_u64(token as u64), INTEREST)
}
