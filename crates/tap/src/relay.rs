//! The tap that delays: it reads bytes, holds them until they are due, and writes them.
//!
//! A timer fires tens of microseconds late, so the thread wakes a little early and spins until the due time. The time for which bytes
//! were really held is counted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use howfar_contract::jobs::Target;
use howfar_record::Direction;
use rustix::io::Errno;
use rustix::net::{self, Shutdown};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::address::ConnectError;
use crate::connections::{Connection, Connections, LISTENER_TOKEN, Upstream};
use crate::end::{SocketEnd, clear_counter, now_ns, timespec};
use crate::flow::{Flow, PassedCounts};
use crate::jobs::TapCounts;

const BUFFER_BYTES: usize = 64 * 1024;
const TIMER_TOKEN: u64 = LISTENER_TOKEN - 2;
/// Maximum connections; further ones are closed at once.
const MAX_CONNECTIONS: usize = 65_536;
/// Connections accepted in succession before others are served again.
const ACCEPT_BATCH: usize = 16;
/// How long before the due time the timer wakes the thread.
const WAKE_LEAD_NS: u64 = 80_000;

/// The state of a connection.
#[derive(Debug)]
struct DelayState {
    /// When a client on a real path would be connected.
    ready_ns: u64,
    to_server: Flow,
    to_client: Flow,
    last_direction: Option<Direction>,
    /// The time of the connection's valid entry in `Relay::due`; its other entries are stale. `u64::MAX` without an entry.
    armed_ns: u64,
}

/// Passes connections on to one server with a delay.
#[derive(Debug)]
pub(crate) struct Relay {
    connections: Connections<DelayState>,
    timer: OwnedFd,
    delay_ns: u64,
    /// Times at which connections must be served, and their indices.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    buffer: Vec<u8>,
    to_server: PassedCounts,
    to_client: PassedCounts,
    /// Clients accepted since the counts were last taken.
    accepted: u64,
}

impl Relay {
    /// `wake` becomes readable when [`Relay::process_events`] must return.
    pub(crate) fn new(listener: OwnedFd, target: Target, wake: Arc<OwnedFd>) -> io::Result<Self> {
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let connections = Connections::new(listener, target, wake)?;
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        connections.watch(&timer, TIMER_TOKEN)?;
        Ok(Self {
            connections,
            timer,
            delay_ns: 0,
            due: BinaryHeap::new(),
            buffer: vec![0; BUFFER_BYTES],
            to_server: PassedCounts::default(),
            to_client: PassedCounts::default(),
            accepted: 0,
        })
    }

    /// Set a new delay. Returns the counts since the last call.
    pub(crate) fn set_delay(&mut self, delay_ns: u64) -> TapCounts {
        self.delay_ns = delay_ns;
        let to_server = std::mem::take(&mut self.to_server);
        let to_client = std::mem::take(&mut self.to_client);
        TapCounts {
            connections: std::mem::take(&mut self.accepted),
            refused: std::mem::take(&mut self.connections.refused),
            refusal: self.connections.refusal.take(),
            open: self.connections.open_count() as u64,
            round_trips: to_client.runs,
            bytes_to_server: to_server.bytes,
            bytes_to_client: to_client.bytes,
            held_ns: [to_server, to_client]
                .iter()
                .map(|passed| passed.held_ns.checked_div(passed.runs).unwrap_or(0))
                .sum(),
        }
    }

    /// Wait for events and process them. Returns after each wait.
    pub(crate) fn process_events(&mut self) -> io::Result<()> {
        let must_spin = self.arm_timer()?;
        for event in self.connections.wait(must_spin.then_some(0))? {
            match event.data.u64() {
                LISTENER_TOKEN => self.accept()?,
                TIMER_TOKEN => clear_counter(&self.timer),
                _ => {
                    if let Some(index) = self.connections.handle_event(event) {
                        self.serve(index);
                    }
                }
            }
        }
        let now = now_ns();
        while let Some(&Reverse((at_ns, index))) = self.due.peek() {
            if at_ns > now {
                break;
            }
            self.due.pop();
            match self.connections.get_mut(index) {
                Some(connection) if connection.state.armed_ns == at_ns => {
                    connection.state.armed_ns = u64::MAX;
                    self.serve(index);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Set the timer for the next due time; true if that is too soon to sleep, so that the caller must spin.
    fn arm_timer(&mut self) -> io::Result<bool> {
        let Some(&Reverse((at_ns, _))) = self.due.peek() else {
            return Ok(false);
        };
        let now = now_ns();
        if at_ns <= now + WAKE_LEAD_NS {
            return Ok(true);
        }
        let timer_spec = Itimerspec {
            it_interval: Timespec::default(),
            it_value: timespec(at_ns - WAKE_LEAD_NS),
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &timer_spec)?;
        Ok(false)
    }

    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..ACCEPT_BATCH {
            let Some(socket) = self.connections.accept()? else {
                return Ok(());
            };
            self.accepted += 1;
            if !self.connections.admit(MAX_CONNECTIONS) {
                continue;
            }
            let now = now_ns();
            let connection = Connection {
                client: SocketEnd::new(socket),
                // On a real path the server would see the handshake completed after 1.5 round trips.
                server: Upstream::Due {
                    at_ns: now + self.delay_ns + self.delay_ns / 2,
                },
                opened_ns: now,
                state: DelayState {
                    ready_ns: now + self.delay_ns,
                    to_server: Flow::default(),
                    to_client: Flow::default(),
                    last_direction: None,
                    armed_ns: u64::MAX,
                },
            };
            let index = self.connections.add(connection)?;
            self.serve(index);
        }
        Ok(())
    }

    /// Move the bytes that can be moved now; a connection that is over or broken is closed.
    fn serve(&mut self, index: usize) {
        let Some(mut connection) = self.connections.take(index) else {
            return;
        };
        // Bytes that become due during `advance` are served right after it; bytes due before that wait until the receiver has room.
        let now = now_ns();
        match self.advance(&mut connection, index) {
            Ok(true) => {
                let state = &mut connection.state;
                let next_ns = match connection.server {
                    Upstream::Due { at_ns } => Some(at_ns),
                    Upstream::Connecting(_) => None,
                    Upstream::Open(_) => [&state.to_server, &state.to_client]
                        .into_iter()
                        .filter_map(Flow::next_due_ns)
                        .filter(|&at_ns| at_ns != u64::MAX)
                        .min(),
                };
                if let Some(at_ns) = next_ns.filter(|&at_ns| at_ns > now && at_ns < state.armed_ns)
                {
                    state.armed_ns = at_ns;
                    self.due.push(Reverse((at_ns, index)));
                }
                self.connections.put_back(index, connection);
            }
            outcome => self.connections.free(index, &connection, outcome.err()),
        }
    }

    /// Move the bytes that can be moved now; false if the connection is over.
    fn advance(
        &mut self,
        connection: &mut Connection<DelayState>,
        index: usize,
    ) -> Result<bool, ConnectError> {
        self.connections.connect(connection, index, |_| ())?;
        let half_delay_ns = self.delay_ns / 2;
        loop {
            let has_read = self.read_both(connection, half_delay_ns)?;
            let Upstream::Open(server) = &mut connection.server else {
                return Ok(true);
            };
            let now = now_ns();
            let state = &mut connection.state;
            let has_written = pass_due(&mut state.to_server, server, now, &mut self.to_server)?
                | pass_due(
                    &mut state.to_client,
                    &mut connection.client,
                    now,
                    &mut self.to_client,
                )?;
            if state.to_server.is_over() && state.to_client.is_over() {
                return Ok(false);
            }
            if !has_read && !has_written {
                return Ok(true);
            }
        }
    }

    /// Read from both sides; true if anything was read.
    fn read_both(
        &mut self,
        connection: &mut Connection<DelayState>,
        half_delay_ns: u64,
    ) -> Result<bool, ConnectError> {
        let mut has_read = false;
        let state = &mut connection.state;
        while connection.client.readable && state.to_server.has_room() {
            let Some(count) = reset_as_end(connection.client.read(&mut self.buffer))? else {
                break;
            };
            let now = now_ns();
            let start_ns = now.max(state.ready_ns);
            has_read = true;
            if count == 0 {
                state.to_server.record_end(start_ns, half_delay_ns);
                break;
            }
            // Bytes sent during the connect also wait for the connect, so the time for which they are held is not that of a round trip.
            let begins_run =
                state.last_direction != Some(Direction::ToServer) && now >= state.ready_ns;
            state.last_direction = Some(Direction::ToServer);
            state
                .to_server
                .push(&self.buffer[..count], start_ns, half_delay_ns, begins_run);
        }
        if let Upstream::Open(server) = &mut connection.server {
            while server.readable && state.to_client.has_room() {
                let Some(count) = reset_as_end(server.read(&mut self.buffer))? else {
                    break;
                };
                let now = now_ns();
                has_read = true;
                if count == 0 {
                    state.to_client.record_end(now, half_delay_ns);
                    break;
                }
                let begins_run = state.last_direction == Some(Direction::ToServer);
                state.last_direction = Some(Direction::ToClient);
                state
                    .to_client
                    .push(&self.buffer[..count], now, half_delay_ns, begins_run);
            }
        }
        Ok(has_read)
    }
}

/// Treat a reset as the end of the stream: bytes that the peer sent before must still be passed on.
fn reset_as_end(read: rustix::io::Result<Option<usize>>) -> rustix::io::Result<Option<usize>> {
    match read {
        Err(Errno::CONNRESET) => Ok(Some(0)),
        read => read,
    }
}

/// Pass on the bytes that are due, then the end of the stream; true if anything was passed on.
fn pass_due(
    flow: &mut Flow,
    receiver: &mut SocketEnd,
    now_ns: u64,
    total: &mut PassedCounts,
) -> Result<bool, Errno> {
    if flow.is_over() || flow.next_due_ns().is_none_or(|due| due > now_ns) {
        return Ok(false);
    }
    let mut is_receiver_gone = false;
    let (passed, is_emptied) = flow.drain(now_ns, |bytes| match receiver.write(bytes) {
        Err(Errno::PIPE | Errno::CONNRESET) => {
            is_receiver_gone = true;
            Ok(0)
        }
        written => written,
    })?;
    total.add(passed);
    if is_receiver_gone {
        // Bytes that the receiver sent before it closed must still be passed on.
        flow.abandon();
        return Ok(true);
    }
    if is_emptied && flow.must_shut_now(now_ns) {
        // The shutdown fails only if the receiver has gone.
        let _ = net::shutdown(&receiver.socket, Shutdown::Write);
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
        (rig, relay.expect("the relay starts"))
    }

    /// A large answer keeps bytes waiting all the time: the connection still has only one entry in `due`, however often it is served.
    #[test]
    fn a_waiting_connection_has_one_entry_in_the_due_queue() {
        const CHUNKS: usize = 400;
        let (rig, mut relay) = relay("relay");
        relay.set_delay(2_000_000);
        let mut client = rig.connect();
        let (mut accepted, mut sent, mut received, mut max_entries) = (None, 0, 0, 0);
        let mut buffer = [0; 4096];
        while received < CHUNKS {
            relay.process_events().expect("the events are processed");
            max_entries = max_entries.max(relay.due.len());
            accepted = accepted.or_else(|| rig.server.accept().ok());
            if let Some((stream, _)) = accepted.as_mut().filter(|_| sent < CHUNKS) {
                sent += stream.write(b"x").expect("the socket has room");
            }
            received += client.read(&mut buffer).unwrap_or(0);
        }
        // Entries made stale by an earlier one are removed when their time comes.
        assert!(max_entries <= 4, "{max_entries} entries of one connection");
    }

    #[test]
    fn a_server_does_not_wait_for_a_killed_client() {
        let (rig, mut relay) = relay("gone");
        check_client_killed_while_both_wait(&rig, || {
            rustix::io::write(&*rig.wake, &1u64.to_ne_bytes()).expect("the counter is not full");
            relay.process_events().expect("the events are processed");
        });
    }
}
