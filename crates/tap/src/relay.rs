//! The thread that moves bytes: an epoll, the connections, and a timer for what is due.
//!
//! A timer fires tens of microseconds late, so the thread wakes a little early and spins until the time has come. The time for which
//! bytes were really held is counted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use howfar_contract::jobs::Target;
use howfar_record::Direction;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{self, Shutdown};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::address::{self, ConnectError};
use crate::end::{End, INTEREST, drain, now_ns};
use crate::flow::{Flow, Passed};
use crate::jobs::TapCounts;
use crate::upstream::Upstream;

const EVENTS: usize = 256;
const BUFFER: usize = 64 * 1024;
const LISTENER: u64 = u64::MAX;
const TIMER: u64 = u64::MAX - 1;
const WAKE: u64 = u64::MAX - 2;
/// Maximum connections; further ones are closed at once.
const MOST_CONNECTIONS: usize = 65_536;
/// Connections accepted in succession before others are served again.
const AT_ONCE: usize = 16;
/// How long before the due time the timer wakes the thread.
const EARLY_NS: u64 = 80_000;

#[derive(Debug)]
struct Connection {
    client: End,
    server: Upstream,
    opened_ns: u64,
    /// Before this time, a client on a real path would still be connecting.
    ready_ns: u64,
    to_server: Flow,
    to_client: Flow,
    last: Option<Direction>,
    /// The time of its valid entry in `Relay::due`; its entries with other times are stale.
    armed_ns: u64,
}

/// Passes connections on to one server.
#[derive(Debug)]
pub(crate) struct Relay {
    listener: OwnedFd,
    target: Target,
    epoll: OwnedFd,
    timer: OwnedFd,
    wake: Arc<OwnedFd>,
    delay_ns: u64,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    due: BinaryHeap<Reverse<(u64, usize)>>,
    buffer: Vec<u8>,
    to_server: Passed,
    to_client: Passed,
    counts: TapCounts,
}

impl Relay {
    /// `wake` becomes readable when [`Relay::turn`] must return.
    pub(crate) fn new(listener: OwnedFd, target: Target, wake: Arc<OwnedFd>) -> io::Result<Self> {
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        epoll::add(
            &epoll,
            &listener,
            EventData::new_u64(LISTENER),
            EventFlags::IN,
        )?;
        epoll::add(&epoll, &timer, EventData::new_u64(TIMER), EventFlags::IN)?;
        epoll::add(&epoll, &*wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        Ok(Self {
            listener,
            target,
            epoll,
            timer,
            wake,
            delay_ns: 0,
            connections: Vec::new(),
            free: Vec::new(),
            due: BinaryHeap::new(),
            buffer: vec![0; BUFFER],
            to_server: Passed::default(),
            to_client: Passed::default(),
            counts: TapCounts::default(),
        })
    }

    /// Set the delay from now on. Returns the counts since the last call.
    pub(crate) fn set_delay(&mut self, delay_ns: u64) -> TapCounts {
        self.delay_ns = delay_ns;
        let mut counts = std::mem::take(&mut self.counts);
        let to_server = std::mem::take(&mut self.to_server);
        let to_client = std::mem::take(&mut self.to_client);
        counts.open = self.connections.iter().flatten().count() as u64;
        counts.round_trips = to_client.turns;
        counts.bytes_to_server = to_server.bytes;
        counts.bytes_to_client = to_client.bytes;
        counts.held_ns = [to_server, to_client]
            .iter()
            .map(|way| way.held_ns.checked_div(way.turns).unwrap_or(0))
            .sum();
        counts
    }

    /// Wait for events and process them. Returns after each wait.
    pub(crate) fn turn(&mut self) -> io::Result<()> {
        let spinning = self.arm()?;
        let mut events = Vec::with_capacity(EVENTS);
        let wait = spinning.then_some(Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        });
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            wait.as_ref(),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events {
            match event.data.u64() {
                LISTENER => self.accept()?,
                TIMER => drain(&self.timer),
                WAKE => drain(&self.wake),
                token => self.hear(token, event.flags),
            }
        }
        let now = now_ns();
        while let Some(&Reverse((at_ns, index))) = self.due.peek() {
            if at_ns > now {
                break;
            }
            self.due.pop();
            match self.connections.get_mut(index).and_then(Option::as_mut) {
                Some(connection) if connection.armed_ns == at_ns => connection.armed_ns = u64::MAX,
                _ => continue,
            }
            self.serve(index);
        }
        Ok(())
    }

    /// Set the timer for what is due next; true if that is too soon to wait, so that the caller must spin.
    fn arm(&mut self) -> io::Result<bool> {
        let Some(&Reverse((at_ns, _))) = self.due.peek() else {
            return Ok(false);
        };
        let now = now_ns();
        if at_ns <= now + EARLY_NS {
            return Ok(true);
        }
        let at = at_ns - EARLY_NS;
        let value = Timespec {
            tv_sec: (at / 1_000_000_000) as i64,
            tv_nsec: (at % 1_000_000_000) as i64,
        };
        let once = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: value,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
        Ok(false)
    }

    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..AT_ONCE {
            let Some(socket) = address::accept(&self.listener)? else {
                return Ok(());
            };
            self.counts.connections += 1;
            if self.connections.len() - self.free.len() >= MOST_CONNECTIONS {
                self.refuse("the tap has no room for more connections".to_owned());
                continue;
            }
            let now = now_ns();
            let connection = Connection {
                client: End::new(socket),
                // When the handshake would be complete at the server on the path: after 1.5 round trips.
                server: Upstream::Due {
                    at_ns: now + self.delay_ns + self.delay_ns / 2,
                },
                opened_ns: now,
                ready_ns: now + self.delay_ns,
                to_server: Flow::default(),
                to_client: Flow::default(),
                last: None,
                armed_ns: u64::MAX,
            };
            let index = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            let token = EventData::new_u64(index as u64 * 2);
            epoll::add(&self.epoll, &connection.client.socket, token, INTEREST)?;
            self.connections[index] = Some(connection);
            self.serve(index);
        }
        Ok(())
    }

    fn hear(&mut self, token: u64, flags: EventFlags) {
        let index = (token / 2) as usize;
        let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        if token & 1 == 0 {
            connection.client.hear(flags);
        } else {
            connection.server.hear(flags);
        }
        self.serve(index);
    }

    /// Move what can be moved now; a connection that is over or broken is closed.
    fn serve(&mut self, index: usize) {
        let Some(mut connection) = self.connections.get_mut(index).and_then(Option::take) else {
            return;
        };
        // What falls due during `advance` is served right after it; what was due and is left waits until the receiver has room.
        let now = now_ns();
        match self.advance(&mut connection, index) {
            Ok(true) => {
                let times = [
                    connection.to_server.next_due_ns(),
                    connection.to_client.next_due_ns(),
                ];
                let next = match connection.server {
                    Upstream::Due { at_ns } => Some(at_ns),
                    Upstream::Connecting(_) => None,
                    Upstream::Open(_) => times
                        .into_iter()
                        .flatten()
                        .filter(|&at| at != u64::MAX)
                        .min(),
                };
                let sooner = |&at_ns: &u64| at_ns > now && at_ns < connection.armed_ns;
                if let Some(at_ns) = next.filter(sooner) {
                    connection.armed_ns = at_ns;
                    self.due.push(Reverse((at_ns, index)));
                }
                self.connections[index] = Some(connection);
            }
            Ok(false) => self.free.push(index),
            Err(error) => {
                if !matches!(connection.server, Upstream::Open(_)) {
                    self.refuse(error.to_string());
                }
                self.free.push(index);
            }
        }
    }

    fn refuse(&mut self, reason: String) {
        self.counts.refused += 1;
        self.counts.refusal = Some(reason);
    }

    /// True while the connection lives.
    fn advance(&mut self, connection: &mut Connection, index: usize) -> Result<bool, ConnectError> {
        self.connect(connection, index)?;
        let half = self.delay_ns / 2;
        loop {
            let read = self.read_both(connection, half)?;
            let Upstream::Open(server) = &mut connection.server else {
                return Ok(true);
            };
            let now = now_ns();
            let written = pass(&mut connection.to_server, server, now, &mut self.to_server)?
                | pass(
                    &mut connection.to_client,
                    &mut connection.client,
                    now,
                    &mut self.to_client,
                )?;
            if connection.to_server.is_over() && connection.to_client.is_over() {
                return Ok(false);
            }
            if !read && !written {
                return Ok(true);
            }
        }
    }

    fn read_both(
        &mut self,
        connection: &mut Connection,
        half_ns: u64,
    ) -> Result<bool, ConnectError> {
        let mut any = false;
        while connection.client.readable && connection.to_server.has_room() {
            let Some(count) = received(connection.client.read(&mut self.buffer))? else {
                break;
            };
            let now = now_ns();
            let from = now.max(connection.ready_ns);
            any = true;
            if count == 0 {
                connection.to_server.end(from, half_ns);
                break;
            }
            // What is sent during the connect also waits for the connect, so its time held is not that of a round trip.
            let begins = connection.last != Some(Direction::ToServer) && now >= connection.ready_ns;
            connection.last = Some(Direction::ToServer);
            connection
                .to_server
                .push(&self.buffer[..count], from, half_ns, begins);
        }
        if let Upstream::Open(server) = &mut connection.server {
            while server.readable && connection.to_client.has_room() {
                let Some(count) = received(server.read(&mut self.buffer))? else {
                    break;
                };
                let now = now_ns();
                any = true;
                if count == 0 {
                    connection.to_client.end(now, half_ns);
                    break;
                }
                let begins = connection.last == Some(Direction::ToServer);
                connection.last = Some(Direction::ToClient);
                connection
                    .to_client
                    .push(&self.buffer[..count], now, half_ns, begins);
            }
        }
        Ok(any)
    }

    fn connect(&mut self, connection: &mut Connection, index: usize) -> Result<(), ConnectError> {
        let (client, opened_ns) = (&connection.client.socket, connection.opened_ns);
        let server = &mut connection.server;
        server.connect(&self.target, client, opened_ns, |socket| {
            let token = EventData::new_u64(index as u64 * 2 + 1);
            epoll::add(&self.epoll, socket, token, INTEREST)
        })
    }
}

/// Treat a reset as the end of the stream: what the side sent before must still be passed on.
fn received(read: rustix::io::Result<Option<usize>>) -> rustix::io::Result<Option<usize>> {
    match read {
        Err(Errno::CONNRESET) => Ok(Some(0)),
        read => read,
    }
}

/// Pass on what is due, then the end of the stream; true if anything was passed on.
fn pass(flow: &mut Flow, to: &mut End, now_ns: u64, total: &mut Passed) -> Result<bool, Errno> {
    if flow.is_over() || flow.next_due_ns().is_none_or(|due| due > now_ns) {
        return Ok(false);
    }
    let mut gone = false;
    let (passed, emptied) = flow.drain(now_ns, |bytes| match to.write(bytes) {
        Err(Errno::PIPE | Errno::CONNRESET) => {
            gone = true;
            Ok(0)
        }
        written => written,
    })?;
    total.add(passed);
    if gone {
        // What the receiver sent before it closed must still be passed on.
        flow.abandon();
        return Ok(true);
    }
    if emptied && flow.ends_now(now_ns) {
        // This fails if the receiver has gone, and then does not matter.
        let _ = net::shutdown(&to.socket, Shutdown::Write);
        return Ok(true);
    }
    Ok(passed.bytes > 0)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::end::made::{Rig, a_client_killed_while_both_wait};

    fn relay(name: &str) -> (Rig, Relay) {
        let (rig, listener) = Rig::new(name);
        let relay = Relay::new(listener, rig.target.clone(), Arc::clone(&rig.wake));
        (rig, relay.expect("a relay"))
    }

    /// A large answer keeps bytes waiting all the time: the connection still has only one entry in `due`, however often it is served.
    #[test]
    fn a_stream_has_one_turn_at_a_time() {
        const CHUNKS: usize = 400;
        let (rig, mut relay) = relay("relay");
        relay.set_delay(2_000_000);
        let mut client = rig.client();
        let (mut accepted, mut sent, mut seen, mut most) = (None, 0, 0, 0);
        let mut buffer = [0; 4096];
        while seen < CHUNKS {
            relay.turn().expect("a turn");
            most = most.max(relay.due.len());
            accepted = accepted.or_else(|| rig.server.accept().ok());
            if let Some((stream, _)) = accepted.as_mut().filter(|_| sent < CHUNKS) {
                sent += stream.write(b"x").expect("room");
            }
            seen += client.read(&mut buffer).unwrap_or(0);
        }
        // Entries made stale by an earlier one are removed when their time comes.
        assert!(most <= 4, "{most} turns of one connection");
    }

    #[test]
    fn a_dead_client_leaves_no_server_waiting() {
        let (rig, mut relay) = relay("gone");
        a_client_killed_while_both_wait(&rig, || {
            rustix::io::write(&*rig.wake, &1u64.to_ne_bytes()).expect("a counter");
            relay.turn().expect("a turn");
        });
    }
}
