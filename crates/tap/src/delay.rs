//! Delays bytes: holds them in memory until they are due, and counts for how long they were really held.
//!
//! The added delay is that of a network path: half of it in each direction, and one more round trip for a connect before data can
//! follow.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;

use howfar_record::Direction;
use rustix::io::retry_on_intr;
use rustix::net::{self, SendFlags};

use crate::end::{SocketEnd, now_ns};
use crate::flow::{Flow, PassedCounts};
use crate::jobs::TapCounts;
use crate::proxy::{Mover, Proxy};

const BUFFER_BYTES: usize = 64 * 1024;

/// The state of a delayed connection.
#[derive(Debug)]
pub(crate) struct DelayState {
    /// When a client on a real path would be connected.
    ready_ns: u64,
    last_direction: Option<Direction>,
}

/// Holds bytes until they are due.
#[derive(Debug)]
pub(crate) struct Delay {
    /// Delay of a round trip, half of it in each direction.
    added_ns: u64,
    buffer: Vec<u8>,
    to_server: PassedCounts,
    to_client: PassedCounts,
}

impl Delay {
    pub(crate) fn new() -> Self {
        // By default a timer fires up to 50 µs late. If this call fails, delays are merely less exact.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        Self {
            added_ns: 0,
            buffer: vec![0; BUFFER_BYTES],
            to_server: PassedCounts::default(),
            to_client: PassedCounts::default(),
        }
    }
}

impl Mover for Delay {
    type Store = Flow;
    type State = DelayState;
    const MAX_CONNECTIONS: usize = 65_536;
    const TAKES_BEFORE_CONNECT: bool = true;

    fn make_stores() -> io::Result<[Flow; 2]> {
        Ok(<[Flow; 2]>::default())
    }

    fn open(&mut self, _client: &OwnedFd, _stores: [&Flow; 2], now: u64) -> (DelayState, u64) {
        let state = DelayState {
            ready_ns: now + self.added_ns,
            last_direction: None,
        };
        // On a real path the server would see the handshake completed after 1.5 round trips.
        (state, now + self.added_ns + self.added_ns / 2)
    }

    fn take(
        &mut self,
        state: &mut DelayState,
        direction: Direction,
        flow: &mut Flow,
        sender: &mut SocketEnd,
    ) -> rustix::io::Result<Option<usize>> {
        let Some(count) = sender.read(&mut self.buffer)? else {
            return Ok(None);
        };
        let now = now_ns();
        // Bytes sent during the connect also wait for the connect, so the time for which they are held is not that of a round trip.
        let begins_run = match direction {
            Direction::ToServer => state.last_direction != Some(direction) && now >= state.ready_ns,
            Direction::ToClient => state.last_direction == Some(Direction::ToServer),
        };
        if count > 0 {
            state.last_direction = Some(direction);
        }
        let start_ns = now.max(state.ready_ns);
        flow.push(
            &self.buffer[..count],
            start_ns,
            self.added_ns / 2,
            begins_run,
        );
        Ok(Some(count))
    }

    fn give(
        &mut self,
        direction: Direction,
        flow: &mut Flow,
        receiver: &mut SocketEnd,
    ) -> rustix::io::Result<usize> {
        let passed = flow.drain(now_ns(), |bytes| {
            let sent = retry_on_intr(|| net::send(&receiver.socket, bytes, SendFlags::NOSIGNAL));
            receiver.written(sent)
        })?;
        match direction {
            Direction::ToServer => self.to_server.add(passed),
            Direction::ToClient => self.to_client.add(passed),
        }
        Ok(passed.bytes as usize)
    }
}

impl Proxy<Delay> {
    /// Set a new delay. Returns the counts since the last call.
    pub(crate) fn set_delay(&mut self, delay_ns: u64) -> TapCounts {
        self.mover.added_ns = delay_ns;
        let to_server = std::mem::take(&mut self.mover.to_server);
        let to_client = std::mem::take(&mut self.mover.to_client);
        TapCounts {
            connections: std::mem::take(&mut self.accepted),
            refused: std::mem::take(&mut self.refused),
            refusal: self.refusal.take(),
            open: self.open_count() as u64,
            round_trips: to_client.runs,
            bytes_to_server: to_server.bytes,
            bytes_to_client: to_client.bytes,
            held_ns: [to_server, to_client]
                .iter()
                .map(|passed| passed.held_ns.checked_div(passed.runs).unwrap_or(0))
                .sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::Arc;

    use super::*;
    use crate::end::test_rig::{Rig, check_client_killed_while_both_wait};

    fn proxy(name: &str) -> (Rig, Proxy<Delay>) {
        let (rig, listener) = Rig::new(name);
        let proxy = Proxy::new(
            Delay::new(),
            listener,
            rig.target.clone(),
            Arc::clone(&rig.wake),
        );
        (rig, proxy.expect("the tap starts"))
    }

    /// A large answer keeps bytes waiting all the time: the connection still has only one entry in `due`, however often it is served.
    #[test]
    fn a_waiting_connection_has_one_entry_in_the_due_queue() {
        const CHUNKS: usize = 400;
        let (rig, mut proxy) = proxy("delay");
        proxy.set_delay(2_000_000);
        let mut client = rig.connect();
        let (mut accepted, mut sent, mut received, mut max_entries) = (None, 0, 0, 0);
        let mut buffer = [0; 4096];
        while received < CHUNKS {
            proxy
                .process_events(None)
                .expect("the events are processed");
            max_entries = max_entries.max(proxy.due_count());
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
        let (rig, mut proxy) = proxy("gone");
        check_client_killed_while_both_wait(&rig, || {
            rustix::io::write(&*rig.wake, &1u64.to_ne_bytes()).expect("the counter is not full");
            proxy
                .process_events(None)
                .expect("the events are processed");
        });
    }
}
