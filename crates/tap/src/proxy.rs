//! Passes connections on to one server: accepts clients, connects to the server, and moves bytes in both directions while sockets are
//! ready and bytes are due.
//!
//! How bytes are moved is a [`Mover`]'s decision. A timer fires tens of microseconds late, so the thread wakes a little early and spins
//! until the due time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use howfar_contract::jobs::Target;
use howfar_record::Direction;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{self, Shutdown, sockopt};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::address::{self, ConnectError};
use crate::end::{SocketEnd, clear_counter, now_ns, timespec};

const MAX_EVENTS: usize = 256;
const LISTENER_TOKEN: u64 = u64::MAX;
const WAKE_TOKEN: u64 = u64::MAX - 1;
const TIMER_TOKEN: u64 = u64::MAX - 2;
/// Reported once when bytes come or room becomes available (edge-triggered).
const INTEREST: EventFlags = EventFlags::IN
    .union(EventFlags::OUT)
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);

/// Maximum clients accepted, or steps of a connection, before others are served.
const MAX_STEPS: usize = 16;
/// How long before the due time the timer wakes the thread.
const WAKE_LEAD_NS: u64 = 80_000;
/// Pause before retrying a server whose queue is full.
const RETRY_NS: u64 = 1_000_000;
/// How long after the client's connect such a server is retried.
const RETRY_TIMEOUT_NS: u64 = 10_000_000_000;

/// A way to move bytes from one side of a connection to the other.
pub(crate) trait Mover {
    /// Bytes of one direction that were taken from the sender and not yet given to the receiver.
    type Store: Store;
    /// What the mover keeps for a connection.
    type State;
    /// Maximum connections; further ones are closed at once.
    const MAX_CONNECTIONS: usize;
    /// Whether bytes are taken from a client before the server is connected.
    const TAKES_BEFORE_CONNECT: bool;

    /// Make the stores of a connection: to the server, and to the client.
    fn make_stores() -> io::Result<[Self::Store; 2]>;

    /// Begin a connection whose client was accepted at `now`. Also returns when to connect to the server.
    fn open(&mut self, client: &OwnedFd, stores: [&Self::Store; 2], now: u64)
    -> (Self::State, u64);

    /// Move bytes from the sender into the store. Returns how many; `None` if none are available now, `Some(0)` if the sender has ended.
    fn take(
        &mut self,
        state: &mut Self::State,
        direction: Direction,
        store: &mut Self::Store,
        sender: &mut SocketEnd,
    ) -> rustix::io::Result<Option<usize>>;

    /// Move bytes that are due from the store to the receiver. Returns how many.
    fn give(
        &mut self,
        direction: Direction,
        store: &mut Self::Store,
        receiver: &mut SocketEnd,
    ) -> rustix::io::Result<usize>;

    /// Note a new socket to the server, which may still be connecting.
    fn note_connecting(&mut self, _state: &Self::State, _server: &OwnedFd, _target: &Target) {}

    /// Note the end of a connection.
    fn note_closed(&mut self, _state: &Self::State) {}
}

/// Bytes of one direction that were taken from the sender and not yet given to the receiver.
pub(crate) trait Store: Debug {
    fn has_room(&self) -> bool;

    /// Whether all bytes have been given.
    fn is_empty(&self) -> bool;

    /// When the next bytes are due; `None` if they are due whenever the receiver has room.
    fn next_due_ns(&self) -> Option<u64>;

    /// Drop the bytes, because the receiver has gone.
    fn clear(&mut self);
}

/// How far a stream's end has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamEnd {
    /// The sender may send more.
    Open,
    /// The sender has ended; the receiver does not know it yet.
    Sent,
    /// The receiver's side has been shut.
    Passed,
    /// The receiver has gone before the sender ended. Bytes are read and dropped, because a server that cannot write does not read the
    /// rest of its requests either.
    ReceiverGone,
}

/// One direction of a connection.
#[derive(Debug)]
struct Stream<S> {
    direction: Direction,
    store: S,
    end: StreamEnd,
}

impl<S: Store> Stream<S> {
    const fn new(direction: Direction, store: S) -> Self {
        Self {
            direction,
            store,
            end: StreamEnd::Open,
        }
    }

    /// Whether the receiver gets nothing more.
    fn is_over(&self) -> bool {
        matches!(self.end, StreamEnd::Passed | StreamEnd::ReceiverGone)
    }

    /// Take bytes, or the stream's end, from the sender; true if there were any.
    fn take<M: Mover<Store = S>>(
        &mut self,
        mover: &mut M,
        state: &mut M::State,
        sender: &mut SocketEnd,
    ) -> rustix::io::Result<bool> {
        let taken = match self.end {
            _ if !sender.readable => None,
            StreamEnd::Open if self.store.has_room() => {
                mover.take(state, self.direction, &mut self.store, sender)?
            }
            StreamEnd::ReceiverGone => sender.read(&mut [0; 16 << 10])?,
            _ => None,
        };
        if taken == Some(0) {
            self.end = match self.end {
                StreamEnd::ReceiverGone => StreamEnd::Passed,
                _ => StreamEnd::Sent,
            };
        }
        Ok(taken.is_some())
    }

    /// Give the receiver the bytes that are due, and the stream's end after the last; true if there were any.
    fn give<M: Mover<Store = S>>(
        &mut self,
        mover: &mut M,
        receiver: &mut SocketEnd,
    ) -> rustix::io::Result<bool> {
        if self.is_over() {
            return Ok(false);
        }
        let given = match mover.give(self.direction, &mut self.store, receiver) {
            // Bytes that the receiver sent before it closed must still be passed on.
            Err(Errno::PIPE | Errno::CONNRESET) => {
                self.store.clear();
                if self.end == StreamEnd::Open {
                    self.end = StreamEnd::ReceiverGone;
                    return Ok(true);
                }
                0
            }
            given => given?,
        };
        if self.end == StreamEnd::Sent && self.store.is_empty() {
            self.end = StreamEnd::Passed;
            // The shutdown fails only if the receiver has gone.
            let _ = net::shutdown(&receiver.socket, Shutdown::Write);
            return Ok(true);
        }
        Ok(given > 0)
    }
}

/// The state of the connection to the server.
#[derive(Debug)]
enum Upstream {
    /// Not connected; connect at this time.
    Due {
        at_ns: u64,
    },
    /// TCP: the handshake is in progress.
    Connecting(SocketEnd),
    Open(SocketEnd),
}

/// A connection of the application and its connection to the server. `S` and `T`: the mover's store and state.
#[derive(Debug)]
struct Connection<S, T> {
    client: SocketEnd,
    server: Upstream,
    opened_ns: u64,
    /// The time of the connection's valid entry in `Proxy::due`; its other entries are stale.
    armed_ns: Option<u64>,
    to_server: Stream<S>,
    to_client: Stream<S>,
    state: T,
}

/// How a connection continues after it was served.
enum Progress {
    /// When a socket is ready or bytes are due.
    Waiting,
    /// At once; others were served less.
    Unfinished,
    Over,
}

/// The connections to one server. The events of connection `index` have the tokens `2 * index` (client) and `2 * index + 1`
/// (server).
#[derive(Debug)]
pub(crate) struct Proxy<M: Mover> {
    pub(crate) mover: M,
    listener: OwnedFd,
    target: Target,
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    timer: OwnedFd,
    slots: Vec<Option<Connection<M::Store, M::State>>>,
    /// Indices of the empty slots.
    free_slots: Vec<usize>,
    /// Times at which connections must be served, and their indices.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    /// Stores for the next connection, made in advance, so that few system calls lie between accepting and `Mover::open`.
    spare_stores: Option<[M::Store; 2]>,
    /// Accepted clients.
    pub(crate) accepted: u64,
    /// Connections that could not be made to the server, and why the last one failed.
    pub(crate) refused: u64,
    pub(crate) refusal: Option<String>,
}

impl<M: Mover> Proxy<M> {
    /// `wake` becomes readable when [`Self::process_events`] must return.
    pub(crate) fn new(
        mover: M,
        listener: OwnedFd,
        target: Target,
        wake: Arc<OwnedFd>,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer_flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, timer_flags)?;
        for (descriptor, token) in [
            (&listener, LISTENER_TOKEN),
            (&wake, WAKE_TOKEN),
            (&timer, TIMER_TOKEN),
        ] {
            epoll::add(
                &epoll,
                descriptor,
                EventData::new_u64(token),
                EventFlags::IN,
            )?;
        }
        Ok(Self {
            mover,
            listener,
            target,
            epoll,
            wake,
            timer,
            slots: Vec::new(),
            free_slots: Vec::new(),
            due: BinaryHeap::new(),
            spare_stores: None,
            accepted: 0,
            refused: 0,
            refusal: None,
        })
    }

    pub(crate) fn open_count(&self) -> usize {
        self.slots.len() - self.free_slots.len()
    }

    /// Number of times at which connections must be served, stale ones included.
    #[cfg(test)]
    pub(crate) fn due_count(&self) -> usize {
        self.due.len()
    }

    /// Wait for events, at most `max_wait_ns`, and process them.
    pub(crate) fn process_events(&mut self, max_wait_ns: Option<u64>) -> io::Result<()> {
        let must_spin = self.arm_timer()?;
        for event in self.wait(if must_spin { Some(0) } else { max_wait_ns })? {
            match event.data.u64() {
                LISTENER_TOKEN => self.accept()?,
                WAKE_TOKEN => clear_counter(&self.wake),
                TIMER_TOKEN => clear_counter(&self.timer),
                token => self.handle_readiness(token, event.flags),
            }
        }
        let now = now_ns();
        while let Some(&Reverse((at_ns, index))) = self.due.peek() {
            if at_ns > now {
                break;
            }
            self.due.pop();
            if let Some(connection) = &mut self.slots[index] {
                if connection.armed_ns == Some(at_ns) {
                    connection.armed_ns = None;
                    self.serve(index);
                }
            }
        }
        Ok(())
    }

    /// Set the timer for the next due time; true if that is too soon to sleep, so that the caller must spin.
    fn arm_timer(&self) -> io::Result<bool> {
        let Some(&Reverse((at_ns, _))) = self.due.peek() else {
            return Ok(false);
        };
        if at_ns <= now_ns() + WAKE_LEAD_NS {
            return Ok(true);
        }
        let timer_spec = Itimerspec {
            it_interval: Timespec::default(),
            it_value: timespec(at_ns - WAKE_LEAD_NS),
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &timer_spec)?;
        Ok(false)
    }

    fn wait(&self, timeout_ns: Option<u64>) -> io::Result<Vec<Event>> {
        let timeout = timeout_ns.map(timespec);
        let mut events = Vec::with_capacity(MAX_EVENTS);
        let space = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.epoll, space, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(events),
            Err(error) => Err(error.into()),
        }
    }

    /// Update a connection's readiness and serve it, if it is still open.
    fn handle_readiness(&mut self, token: u64, flags: EventFlags) {
        let index = (token / 2) as usize;
        let Some(Some(connection)) = self.slots.get_mut(index) else {
            return;
        };
        if token & 1 == 0 {
            connection.client.handle_readiness(flags);
        } else if let Upstream::Connecting(end) | Upstream::Open(end) = &mut connection.server {
            end.handle_readiness(flags);
        }
        self.serve(index);
    }

    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..MAX_STEPS {
            let stores = match self.spare_stores.take() {
                Some(stores) => stores,
                None => M::make_stores()?,
            };
            let Some(client) = address::accept(&self.listener)? else {
                self.spare_stores = Some(stores);
                return Ok(());
            };
            self.accepted += 1;
            if self.open_count() >= M::MAX_CONNECTIONS {
                self.refuse("the tap has no room for more connections".to_owned());
                continue;
            }
            let opened_ns = now_ns();
            let (state, at_ns) = self.mover.open(&client, stores.each_ref(), opened_ns);
            self.insert(client, Upstream::Due { at_ns }, opened_ns, stores, state)?;
        }
        Ok(())
    }

    /// Pass on a connection that another process accepted. `server`: its connection to the server, if it already has one.
    pub(crate) fn adopt(
        &mut self,
        client: OwnedFd,
        server: Option<OwnedFd>,
        stores: [M::Store; 2],
        state: M::State,
    ) -> io::Result<()> {
        let opened_ns = now_ns();
        let server = match server {
            Some(socket) => Upstream::Connecting(SocketEnd::new(socket)),
            None => Upstream::Due { at_ns: opened_ns },
        };
        self.insert(client, server, opened_ns, stores, state)
    }

    fn insert(
        &mut self,
        client: OwnedFd,
        server: Upstream,
        opened_ns: u64,
        [to_server, to_client]: [M::Store; 2],
        state: M::State,
    ) -> io::Result<()> {
        let index = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        add_socket(&self.epoll, &client, index * 2)?;
        if let Upstream::Connecting(end) | Upstream::Open(end) = &server {
            add_socket(&self.epoll, &end.socket, index * 2 + 1)?;
        }
        self.slots[index] = Some(Connection {
            client: SocketEnd::new(client),
            server,
            opened_ns,
            armed_ns: None,
            to_server: Stream::new(Direction::ToServer, to_server),
            to_client: Stream::new(Direction::ToClient, to_client),
            state,
        });
        self.serve(index);
        Ok(())
    }

    /// Count a connection that cannot be made.
    fn refuse(&mut self, reason: String) {
        self.refused += 1;
        self.refusal = Some(reason);
    }

    /// Move the bytes that can be moved now; a connection that is over or broken is closed.
    fn serve(&mut self, index: usize) {
        let Some(mut connection) = self.slots[index].take() else {
            return;
        };
        // Bytes that become due during `advance` are served right after it; bytes due before that wait until the receiver has room.
        let now = now_ns();
        let next_ns = match self.advance(&mut connection, index) {
            Ok(Progress::Waiting) => connection.next_due_ns().filter(|&at_ns| at_ns > now),
            Ok(Progress::Unfinished) => Some(now),
            outcome => {
                // An error before the server was reached is a refusal.
                if let (Err(error), false) = (outcome, connection.is_open()) {
                    self.refuse(error.to_string());
                }
                self.free_slots.push(index);
                self.mover.note_closed(&connection.state);
                return;
            }
        };
        let is_earlier = |at_ns: &u64| connection.armed_ns.is_none_or(|armed| *at_ns < armed);
        if let Some(at_ns) = next_ns.filter(is_earlier) {
            connection.armed_ns = Some(at_ns);
            self.due.push(Reverse((at_ns, index)));
        }
        self.slots[index] = Some(connection);
    }

    /// Connect to the server when that is due, and move the bytes that can be moved now.
    fn advance(
        &mut self,
        connection: &mut Connection<M::Store, M::State>,
        index: usize,
    ) -> Result<Progress, ConnectError> {
        self.connect(connection, index)?;
        if !M::TAKES_BEFORE_CONNECT && !connection.is_open() {
            return Ok(Progress::Waiting);
        }
        let Connection {
            client,
            server,
            to_server,
            to_client,
            state,
            ..
        } = connection;
        for _ in 0..MAX_STEPS {
            let mut has_moved = to_server.take(&mut self.mover, state, client)?;
            if let Upstream::Open(server) = server {
                has_moved |= to_server.give(&mut self.mover, server)?;
                has_moved |= to_client.take(&mut self.mover, state, server)?;
                has_moved |= to_client.give(&mut self.mover, client)?;
                let is_over = to_server.is_over() && (to_client.is_over() || client.is_hung_up)
                    || to_client.is_over() && server.is_hung_up;
                if is_over {
                    return Ok(Progress::Over);
                }
            }
            if !has_moved {
                return Ok(Progress::Waiting);
            }
        }
        Ok(Progress::Unfinished)
    }

    /// Advance the connection to the server as far as it allows now.
    fn connect(
        &mut self,
        connection: &mut Connection<M::Store, M::State>,
        index: usize,
    ) -> Result<(), ConnectError> {
        let server = &mut connection.server;
        match server {
            Upstream::Due { at_ns } if *at_ns <= now_ns() => {
                match address::connect(&self.target, &connection.client.socket) {
                    Ok(socket) => {
                        add_socket(&self.epoll, &socket, index * 2 + 1)?;
                        let mover = &mut self.mover;
                        mover.note_connecting(&connection.state, &socket, &self.target);
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
            Upstream::Connecting(end) => {
                sockopt::socket_error(&end.socket)??;
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

impl<S: Store, T> Connection<S, T> {
    fn is_open(&self) -> bool {
        matches!(self.server, Upstream::Open(_))
    }

    /// When the connection must be served even if no socket becomes ready.
    fn next_due_ns(&self) -> Option<u64> {
        match self.server {
            Upstream::Due { at_ns } => Some(at_ns),
            Upstream::Connecting(_) => None,
            Upstream::Open(_) => [&self.to_server, &self.to_client]
                .into_iter()
                .filter_map(|stream| stream.store.next_due_ns())
                .min(),
        }
    }
}

fn add_socket(epoll: &OwnedFd, socket: &OwnedFd, token: usize) -> rustix::io::Result<()> {
    epoll::add(epoll, socket, EventData::new_u64(token as u64), INTEREST)
}
