//! Passes connections on without holding bytes in this process: the kernel moves them from the socket into a pipe, and from the pipe
//! into the other socket. If this process is killed, another one that holds the same descriptors can continue at the same byte.
//!
//! A pipe is filled only when it is empty, so it holds exactly the bytes in transit. The recorder gets a copy (`tee`).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use howfar_contract::jobs::Target;
use howfar_record::Direction;
use rustix::event::epoll::{self, EventData};
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::address::{self, ConnectError, peer_credentials};
use crate::application::Application;
use crate::end::{INTEREST, SocketEnd, clear_counter, now_ns};
use crate::keep::Keeper;
use crate::pipe::{Pipe, move_bytes};
use crate::record::{Recorder, Totals};
use crate::upstream::{RETRY_NS, Upstream};

const MAX_EVENTS: usize = 256;
const MAX_STEPS: usize = 16;
/// Interval between checks whether the application still runs.
const CHECK_INTERVAL_NS: u64 = 500_000_000;
const LISTENER_TOKEN: u64 = u64::MAX;
const WAKE_TOKEN: u64 = u64::MAX - 1;
/// Maximum connections; further ones are closed at once. Each needs six descriptors.
const MAX_CONNECTIONS: usize = 16_384;

/// A connection of the application and its connection to the server.
#[derive(Debug)]
struct RelayedConnection {
    id: u64,
    client: SocketEnd,
    server: Upstream,
    opened_ns: u64,
    to_server: Pipe,
    to_client: Pipe,
}

/// Passes connections on to one server.
#[derive(Debug)]
pub(crate) struct Passer {
    listener: OwnedFd,
    target: Target,
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    connections: Vec<Option<RelayedConnection>>,
    free: Vec<usize>,
    /// Connections that have more to do now.
    busy: Vec<usize>,
    /// Connections that will try again to reach the server.
    retrying: Vec<usize>,
    spare_pipes: Option<(Pipe, Pipe)>,
    next_id: u64,
    pub(crate) totals: Totals,
    pub(crate) keeper: Option<Keeper>,
    pub(crate) recorder: Option<Recorder>,
}

impl Passer {
    /// `wake` becomes readable when [`Passer::process_events`] must return.
    pub(crate) fn new(listener: OwnedFd, target: Target, wake: Arc<OwnedFd>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let level = epoll::EventFlags::IN;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER_TOKEN), level)?;
        epoll::add(&epoll, &*wake, EventData::new_u64(WAKE_TOKEN), level)?;
        Ok(Self {
            listener,
            target,
            epoll,
            wake,
            connections: Vec::new(),
            free: Vec::new(),
            busy: Vec::new(),
            retrying: Vec::new(),
            spare_pipes: None,
            next_id: 1,
            totals: Totals::default(),
            keeper: None,
            recorder: None,
        })
    }

    /// Ask the recorder for its last event; false if its queue has no room now.
    pub(crate) fn finish_recording(&mut self) -> bool {
        let survives = self.keeper.as_ref().is_some_and(|keeper| !keeper.is_lost());
        let (open, totals) = (self.open_count(), &self.totals);
        let is_done = self
            .recorder
            .as_mut()
            .is_none_or(|recorder| recorder.finish(totals, open, survives));
        if is_done {
            self.recorder = None;
        }
        is_done
    }

    pub(crate) fn open_count(&self) -> usize {
        self.connections.len() - self.free.len()
    }

    /// Pass connections on until none is open and no process of the application is left.
    pub(crate) fn serve_application(&mut self, application: &Application) -> io::Result<()> {
        let mut next_check_ns = now_ns();
        loop {
            self.process_events(Some(CHECK_INTERVAL_NS))?;
            if self.open_count() == 0 && now_ns() >= next_check_ns {
                if !application.is_running() {
                    return Ok(());
                }
                next_check_ns = now_ns() + CHECK_INTERVAL_NS;
            }
        }
    }

    /// Wait for events, at most `max_wait_ns`, and process them.
    pub(crate) fn process_events(&mut self, max_wait_ns: Option<u64>) -> io::Result<()> {
        let max_wait_ns = if !self.busy.is_empty() {
            Some(0)
        } else if !self.retrying.is_empty() {
            Some(RETRY_NS)
        } else {
            max_wait_ns
        };
        let wait = max_wait_ns.map(|ns| Timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        });
        let mut events = Vec::with_capacity(MAX_EVENTS);
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            wait.as_ref(),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = std::mem::take(&mut self.busy)
            .into_iter()
            .chain(std::mem::take(&mut self.retrying));
        for index in ready {
            self.serve(index);
        }
        for event in events {
            match event.data.u64() {
                LISTENER_TOKEN => self.accept()?,
                WAKE_TOKEN => clear_counter(&self.wake),
                token => self.handle_readiness(token, event.flags),
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..MAX_STEPS {
            // Made in advance, to leave few system calls between accepting a connection and sharing it with the keeper.
            if self.spare_pipes.is_none() {
                self.spare_pipes = Some((Pipe::new()?, Pipe::new()?));
            }
            let Some(socket) = address::accept(&self.listener)? else {
                return Ok(());
            };
            if self.open_count() >= MAX_CONNECTIONS {
                self.refuse("the tap has no room for more connections".to_owned());
                continue;
            }
            let (to_server, to_client) = self.spare_pipes.take().expect("made above");
            let id = self.next_id;
            if let Some(keeper) = &mut self.keeper {
                keeper.send_opened(id, &socket, [&to_server, &to_client]);
            }
            let opened_ns = now_ns();
            if let Some(recorder) = &mut self.recorder {
                recorder.record_opened(id, opened_ns, &socket);
            }
            self.add(id, socket, None, to_server, to_client)?;
        }
        Ok(())
    }

    /// Pass on a connection that has been accepted; `server`: its connection to the server, if it has one already.
    pub(crate) fn add(
        &mut self,
        id: u64,
        client: OwnedFd,
        server: Option<OwnedFd>,
        to_server: Pipe,
        to_client: Pipe,
    ) -> io::Result<()> {
        self.next_id = self.next_id.max(id + 1);
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let now = now_ns();
        epoll::add(
            &self.epoll,
            &client,
            EventData::new_u64(index as u64 * 2),
            INTEREST,
        )?;
        let server = match server {
            Some(socket) => {
                epoll::add(
                    &self.epoll,
                    &socket,
                    EventData::new_u64(index as u64 * 2 + 1),
                    INTEREST,
                )?;
                Upstream::Connecting(SocketEnd::assume_ready(socket))
            }
            None => Upstream::Due { at_ns: now },
        };
        self.connections[index] = Some(RelayedConnection {
            id,
            client: SocketEnd::assume_ready(client),
            server,
            opened_ns: now,
            to_server,
            to_client,
        });
        self.serve(index);
        Ok(())
    }

    fn handle_readiness(&mut self, token: u64, flags: epoll::EventFlags) {
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
        let outcome = self
            .connect(&mut connection, index)
            .and_then(|()| Ok(self.advance(&mut connection, index)?));
        if matches!(outcome, Ok(true)) {
            self.connections[index] = Some(connection);
            return;
        }
        if let Err(error) = outcome {
            if !matches!(connection.server, Upstream::Open(_)) {
                self.refuse(error.to_string());
            }
        }
        self.free.push(index);
        if let Some(keeper) = &mut self.keeper {
            keeper.send_closed(connection.id);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.record_closed(connection.id, now_ns());
        }
    }

    fn refuse(&mut self, reason: String) {
        self.totals.refused += 1;
        self.totals.refusal = Some(reason);
    }

    /// True while the connection lives.
    fn advance(&mut self, connection: &mut RelayedConnection, index: usize) -> Result<bool, Errno> {
        let Upstream::Open(server) = &mut connection.server else {
            if matches!(connection.server, Upstream::Due { .. }) {
                self.retrying.push(index);
            }
            return Ok(true);
        };
        let client = &mut connection.client;
        for _ in 0..MAX_STEPS {
            let mut moved = false;
            let (taken, passed) = move_bytes(&mut connection.to_server, client, server)?;
            if taken > 0 {
                self.totals.taken_to_server += taken as u64;
                if let Some(recorder) = &mut self.recorder {
                    recorder.record_bytes(
                        connection.id,
                        Direction::ToServer,
                        now_ns(),
                        &connection.to_server.read,
                        taken,
                    );
                }
            }
            self.totals.passed_to_server += passed as u64;
            moved |= taken + passed > 0;
            let (taken, passed) = move_bytes(&mut connection.to_client, server, client)?;
            if taken > 0 {
                self.totals.taken_to_client += taken as u64;
                if let Some(recorder) = &mut self.recorder {
                    recorder.record_bytes(
                        connection.id,
                        Direction::ToClient,
                        now_ns(),
                        &connection.to_client.read,
                        taken,
                    );
                }
            }
            self.totals.passed_to_client += passed as u64;
            moved |= taken + passed > 0;
            moved |= (connection.to_client.receiver_gone && server.readable)
                || (connection.to_server.receiver_gone && client.readable);
            let peer_gone = (client.is_hung_up && connection.to_server.receiver_shut)
                || (server.is_hung_up && connection.to_client.receiver_shut);
            if peer_gone
                || (connection.to_server.receiver_shut && connection.to_client.receiver_shut)
            {
                return Ok(false);
            }
            if !moved {
                return Ok(true);
            }
        }
        self.busy.push(index);
        Ok(true)
    }

    fn connect(
        &mut self,
        connection: &mut RelayedConnection,
        index: usize,
    ) -> Result<(), ConnectError> {
        let (client, opened_ns) = (&connection.client.socket, connection.opened_ns);
        let server = &mut connection.server;
        server.connect(&self.target, client, opened_ns, |socket| {
            let token = EventData::new_u64(index as u64 * 2 + 1);
            epoll::add(&self.epoll, socket, token, INTEREST)?;
            if let Some(keeper) = &mut self.keeper {
                keeper.send_connected(connection.id, socket);
            }
            if matches!(self.target, Target::Unix { .. }) {
                self.totals.server_pid = peer_credentials(socket).map(|(pid, _)| pid);
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::end::test_rig::{Rig, check_client_killed_while_both_wait};

    #[test]
    fn a_dead_client_leaves_no_server_waiting() {
        let (rig, listener) = Rig::new("pass");
        let mut passer =
            Passer::new(listener, rig.target.clone(), Arc::clone(&rig.wake)).expect("a passer");
        check_client_killed_while_both_wait(&rig, || {
            passer.process_events(Some(0)).expect("a turn");
        });
    }
}
