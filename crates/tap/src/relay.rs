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
use crate::end::{INTEREST, SocketEnd, clear_counter, now_ns};
use crate::flow::{Flow, PassedCounts};
use crate::jobs::TapCounts;
use crate::upstream::Upstream;

const MAX_EVENTS: usize = 256;
const BUFFER_BYTES: usize = 64 * 1024;
const LISTENER_TOKEN: u64 = u64::MAX;
const TIMER_TOKEN: u64 = u64::MAX - 1;
const WAKE_TOKEN: u64 = u64::MAX - 2;
/// Maximum connections; further ones are closed at once.
const MAX_CONNECTIONS: usize = 65_536;
/// Connections accepted in succession before others are served again.
const ACCEPT_BATCH: usize = 16;
/// How long before the due time the timer wakes the thread.
const WAKE_LEAD_NS: u64 = 80_000;

#[derive(Debug)]
struct Connection {
    client: SocketEnd,
    server: Upstream,
    opened_ns: u64,
    /// Before this time, a client on a real path would still be connecting.
    ready_ns: u64,
    to_server: Flow,
    to_client: Flow,
    last_direction: Option<Direction>,
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
    to_server: PassedCounts,
    to_client: PassedCounts,
    counts: TapCounts,
}

impl Relay {
    /// `wake` becomes readable when [`Relay::process_events`] must return.
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
            EventData::new_u64(LISTENER_TOKEN),
            EventFlags::IN,
        )?;
        epoll::add(
            &epoll,
            &timer,
            EventData::new_u64(TIMER_TOKEN),
            EventFlags::IN,
        )?;
        epoll::add(
            &epoll,
            &*wake,
            EventData::new_u64(WAKE_TOKEN),
            EventFlags::IN,
        )?;
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
            buffer: vec![0; BUFFER_BYTES],
            to_server: PassedCounts::default(),
            to_client: PassedCounts::default(),
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
        counts.round_trips = to_client.runs;
        counts.bytes_to_server = to_server.bytes;
        counts.bytes_to_client = to_client.bytes;
        counts.held_ns = [to_server, to_client]
            .iter()
            .map(|passed| passed.held_ns.checked_div(passed.runs).unwrap_or(0))
            .sum();
        counts
    }

    /// Wait for events and process them. Returns after each wait.
    pub(crate) fn process_events(&mut self) -> io::Result<()> {
        let must_spin = self.arm_timer()?;
        let mut events = Vec::with_capacity(MAX_EVENTS);
        let wait = must_spin.then_some(Timespec {
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
                LISTENER_TOKEN => self.accept()?,
                TIMER_TOKEN => clear_counter(&self.timer),
                WAKE_TOKEN => clear_counter(&self.wake),
                token => self.handle_readiness(token, event.flags),
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
    fn arm_timer(&mut self) -> io::Result<bool> {
        let Some(&Reverse((at_ns, _))) = self.due.peek() else {
            return Ok(false);
        };
        let now = now_ns();
        if at_ns <= now + WAKE_LEAD_NS {
            return Ok(true);
        }
        let at = at_ns - WAKE_LEAD_NS;
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
        for _ in 0..ACCEPT_BATCH {
            let Some(socket) = address::accept(&self.listener)? else {
                return Ok(());
            };
            self.counts.connections += 1;
            if self.connections.len() - self.free.len() >= MAX_CONNECTIONS {
                self.refuse("the tap has no room for more connections".to_owned());
                continue;
            }
            let now = now_ns();
            let connection = Connection {
                client: SocketEnd::new(socket),
                // When the handshake would be complete at the server on the path: after 1.5 round trips.
                server: Upstream::Due {
                    at_ns: now + self.delay_ns + self.delay_ns / 2,
                },
                opened_ns: now,
                ready_ns: now + self.delay_ns,
                to_server: Flow::default(),
                to_client: Flow::default(),
                last_direction: None,
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

    fn handle_readiness(&mut self, token: u64, flags: EventFlags) {
        let index = (token / 2) as usize;
        let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        if token & 1 == 0 {
            connection.client.handle_readiness(flags);
        } else {
            connection.server.handle_readiness(flags);
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
        let half_ns = self.delay_ns / 2;
        loop {
            let read = self.read_both(connection, half_ns)?;
            let Upstream::Open(server) = &mut connection.server else {
                return Ok(true);
            };
            let now = now_ns();
            let written = pass_due(&mut connection.to_server, server, now, &mut self.to_server)?
                | pass_due(
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
        let mut has_read = false;
        while connection.client.readable && connection.to_server.has_room() {
            let Some(count) = reset_as_end(connection.client.read(&mut self.buffer))? else {
                break;
            };
            let now = now_ns();
            let from = now.max(connection.ready_ns);
            has_read = true;
            if count == 0 {
                connection.to_server.record_end(from, half_ns);
                break;
            }
            // What is sent during the connect also waits for the connect, so its time held is not that of a round trip.
            let begins_run = connection.last_direction != Some(Direction::ToServer)
                && now >= connection.ready_ns;
            connection.last_direction = Some(Direction::ToServer);
            connection
                .to_server
                .push(&self.buffer[..count], from, half_ns, begins_run);
        }
        if let Upstream::Open(server) = &mut connection.server {
            while server.readable && connection.to_client.has_room() {
                let Some(count) = reset_as_end(server.read(&mut self.buffer))? else {
                    break;
                };
                let now = now_ns();
                has_read = true;
                if count == 0 {
                    connection.to_client.record_end(now, half_ns);
                    break;
                }
                let begins_run = connection.last_direction == Some(Direction::ToServer);
                connection.last_direction = Some(Direction::ToClient);
                connection
                    .to_client
                    .push(&self.buffer[..count], now, half_ns, begins_run);
            }
        }
        Ok(has_read)
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
fn reset_as_end(read: rustix::io::Result<Option<usize>>) -> rustix::io::Result<Option<usize>> {
    match read {
        Err(Errno::CONNRESET) => Ok(Some(0)),
        read => read,
    }
}

/// Pass on what is due, then the end of the stream; true if anything was passed on.
fn pass_due(
    flow: &mut Flow,
    to: &mut SocketEnd,
    now_ns: u64,
    total: &mut PassedCounts,
) -> Result<bool, Errno> {
    if flow.is_over() || flow.next_due_ns().is_none_or(|due| due > now_ns) {
        return Ok(false);
    }
    let mut receiver_gone = false;
    let (passed, emptied) = flow.drain(now_ns, |bytes| match to.write(bytes) {
        Err(Errno::PIPE | Errno::CONNRESET) => {
            receiver_gone = true;
            Ok(0)
        }
        written => written,
    })?;
    total.add(passed);
    if receiver_gone {
        // What the receiver sent before it closed must still be passed on.
        flow.abandon();
        return Ok(true);
    }
    if emptied && flow.must_shut_now(now_ns) {
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
    use crate::end::test_rig::{Rig, check_client_killed_while_both_wait};

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
        let (mut accepted, mut sent, mut received, mut max_entries) = (None, 0, 0, 0);
        let mut buffer = [0; 4096];
        while received < CHUNKS {
            relay.process_events().expect("a turn");
            max_entries = max_entries.max(relay.due.len());
            accepted = accepted.or_else(|| rig.server.accept().ok());
            if let Some((stream, _)) = accepted.as_mut().filter(|_| sent < CHUNKS) {
                sent += stream.write(b"x").expect("room");
            }
            received += client.read(&mut buffer).unwrap_or(0);
        }
        // Entries made stale by an earlier one are removed when their time comes.
        assert!(max_entries <= 4, "{max_entries} turns of one connection");
    }

    #[test]
    fn a_dead_client_leaves_no_server_waiting() {
        let (rig, mut relay) = relay("gone");
        check_client_killed_while_both_wait(&rig, || {
            rustix::io::write(&*rig.wake, &1u64.to_ne_bytes()).expect("a counter");
            relay.process_events().expect("a turn");
        });
    }
}
