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
use rustix::net::{self, Shutdown};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use rustix::time::Timespec;

use crate::address::{self, ConnectError, peer};
use crate::end::{End, INTEREST, drain, now_ns};
use crate::keep::Keeper;
use crate::record::Recorder;
use crate::upstream::{RETRY_NS, Upstream};

const EVENTS: usize = 256;
const AT_ONCE: usize = 16;
/// Default capacity of a pipe; splicing more at once gains nothing.
const PIPE_BYTES: usize = 64 * 1024;
const LISTENER: u64 = u64::MAX;
const WAKE: u64 = u64::MAX - 1;
/// Maximum connections; further ones are closed at once. Each needs six descriptors.
const MOST_CONNECTIONS: usize = 16_384;

/// The pipe of one direction, and the state of its stream.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) read: OwnedFd,
    pub(crate) write: OwnedFd,
    held: usize,
    /// The sender has ended its stream.
    ended: bool,
    /// The receiver's side has been shut.
    shut: bool,
    /// The receiver has gone before the sender ended.
    abandoned: bool,
}

impl Pipe {
    fn new() -> rustix::io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self::of(read, write, 0))
    }

    /// A pipe that another process filled.
    pub(crate) fn adopt(read: OwnedFd, write: OwnedFd) -> rustix::io::Result<Self> {
        let held = rustix::io::ioctl_fionread(&read)? as usize;
        Ok(Self::of(read, write, held))
    }

    const fn of(read: OwnedFd, write: OwnedFd, held: usize) -> Self {
        Self {
            read,
            write,
            held,
            ended: false,
            shut: false,
            abandoned: false,
        }
    }
}

/// A connection of the application and its connection to the server.
#[derive(Debug)]
struct Relayed {
    id: u64,
    client: End,
    server: Upstream,
    opened_ns: u64,
    to_server: Pipe,
    to_client: Pipe,
}

/// Bytes taken and passed on, and failed connections to the server.
#[derive(Debug, Default, Clone)]
pub(crate) struct Totals {
    pub(crate) taken_to_server: u64,
    pub(crate) taken_to_client: u64,
    pub(crate) passed_to_server: u64,
    pub(crate) passed_to_client: u64,
    pub(crate) refused: u64,
    pub(crate) refusal: Option<String>,
    /// The process that listens on the server's Unix socket.
    pub(crate) server_pid: Option<i32>,
}

/// Passes connections on to one server.
#[derive(Debug)]
pub(crate) struct Passer {
    listener: OwnedFd,
    target: Target,
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    connections: Vec<Option<Relayed>>,
    free: Vec<usize>,
    /// Connections that have more to do now.
    busy: Vec<usize>,
    /// Connections that will try again to reach the server.
    waiting: Vec<usize>,
    spare: Option<(Pipe, Pipe)>,
    next_id: u64,
    pub(crate) totals: Totals,
    pub(crate) keeper: Option<Keeper>,
    pub(crate) recorder: Option<Recorder>,
}

impl Passer {
    /// `wake` becomes readable when [`Passer::turn`] must return.
    pub(crate) fn new(listener: OwnedFd, target: Target, wake: Arc<OwnedFd>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let level = epoll::EventFlags::IN;
        epoll::add(&epoll, &listener, EventData::new_u64(LISTENER), level)?;
        epoll::add(&epoll, &*wake, EventData::new_u64(WAKE), level)?;
        Ok(Self {
            listener,
            target,
            epoll,
            wake,
            connections: Vec::new(),
            free: Vec::new(),
            busy: Vec::new(),
            waiting: Vec::new(),
            spare: None,
            next_id: 1,
            totals: Totals::default(),
            keeper: None,
            recorder: None,
        })
    }

    /// Ask the recorder for its last event; false if its queue has no room now.
    pub(crate) fn finish_recording(&mut self) -> bool {
        let survives = self.keeper.as_ref().is_some_and(|keeper| !keeper.is_lost());
        let (open, totals) = (self.open(), &self.totals);
        let is_done = self
            .recorder
            .as_mut()
            .is_none_or(|recorder| recorder.finish(totals, open, survives));
        if is_done {
            self.recorder = None;
        }
        is_done
    }

    pub(crate) fn open(&self) -> usize {
        self.connections.len() - self.free.len()
    }

    /// Wait for events, at most `patience_ns`, and process them.
    pub(crate) fn turn(&mut self, patience_ns: Option<u64>) -> io::Result<()> {
        let patience_ns = if !self.busy.is_empty() {
            Some(0)
        } else if !self.waiting.is_empty() {
            Some(RETRY_NS)
        } else {
            patience_ns
        };
        let wait = patience_ns.map(|ns| Timespec {
            tv_sec: (ns / 1_000_000_000) as i64,
            tv_nsec: (ns % 1_000_000_000) as i64,
        });
        let mut events = Vec::with_capacity(EVENTS);
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            wait.as_ref(),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let again = std::mem::take(&mut self.busy)
            .into_iter()
            .chain(std::mem::take(&mut self.waiting));
        for index in again {
            self.serve(index);
        }
        for event in events {
            match event.data.u64() {
                LISTENER => self.accept()?,
                WAKE => drain(&self.wake),
                token => self.hear(token, event.flags),
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<()> {
        for _ in 0..AT_ONCE {
            // Made in advance, to leave few system calls between accepting a connection and sharing it with the keeper.
            if self.spare.is_none() {
                self.spare = Some((Pipe::new()?, Pipe::new()?));
            }
            let Some(socket) = address::accept(&self.listener)? else {
                return Ok(());
            };
            if self.open() >= MOST_CONNECTIONS {
                self.refuse("the tap has no room for more connections".to_owned());
                continue;
            }
            let (to_server, to_client) = self.spare.take().expect("made above");
            let id = self.next_id;
            if let Some(keeper) = &mut self.keeper {
                keeper.opened(id, &socket, [&to_server, &to_client]);
            }
            let opened_ns = now_ns();
            if let Some(recorder) = &mut self.recorder {
                recorder.opened(id, opened_ns, &socket);
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
                Upstream::Connecting(End::ready(socket))
            }
            None => Upstream::Due { at_ns: now },
        };
        self.connections[index] = Some(Relayed {
            id,
            client: End::ready(client),
            server,
            opened_ns: now,
            to_server,
            to_client,
        });
        self.serve(index);
        Ok(())
    }

    fn hear(&mut self, token: u64, flags: epoll::EventFlags) {
        let index = (token / 2) as usize;
        let Some(relayed) = self.connections.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        if token & 1 == 0 {
            relayed.client.hear(flags);
        } else {
            relayed.server.hear(flags);
        }
        self.serve(index);
    }

    /// Move what can be moved now; a connection that is over or broken is closed.
    fn serve(&mut self, index: usize) {
        let Some(mut relayed) = self.connections.get_mut(index).and_then(Option::take) else {
            return;
        };
        let outcome = self
            .connect(&mut relayed, index)
            .and_then(|()| Ok(self.advance(&mut relayed, index)?));
        if matches!(outcome, Ok(true)) {
            self.connections[index] = Some(relayed);
            return;
        }
        if let Err(error) = outcome {
            if !matches!(relayed.server, Upstream::Open(_)) {
                self.refuse(error.to_string());
            }
        }
        self.free.push(index);
        if let Some(keeper) = &mut self.keeper {
            keeper.closed(relayed.id);
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.closed(relayed.id, now_ns());
        }
    }

    fn refuse(&mut self, reason: String) {
        self.totals.refused += 1;
        self.totals.refusal = Some(reason);
    }

    /// True while the connection lives.
    fn advance(&mut self, relayed: &mut Relayed, index: usize) -> Result<bool, Errno> {
        let Upstream::Open(server) = &mut relayed.server else {
            if matches!(relayed.server, Upstream::Due { .. }) {
                self.waiting.push(index);
            }
            return Ok(true);
        };
        let client = &mut relayed.client;
        for _ in 0..AT_ONCE {
            let mut moved = false;
            let (taken, passed) = carry(&mut relayed.to_server, client, server)?;
            if taken > 0 {
                self.totals.taken_to_server += taken as u64;
                if let Some(recorder) = &mut self.recorder {
                    recorder.passes(
                        relayed.id,
                        Direction::ToServer,
                        now_ns(),
                        &relayed.to_server.read,
                        taken,
                    );
                }
            }
            self.totals.passed_to_server += passed as u64;
            moved |= taken + passed > 0;
            let (taken, passed) = carry(&mut relayed.to_client, server, client)?;
            if taken > 0 {
                self.totals.taken_to_client += taken as u64;
                if let Some(recorder) = &mut self.recorder {
                    recorder.passes(
                        relayed.id,
                        Direction::ToClient,
                        now_ns(),
                        &relayed.to_client.read,
                        taken,
                    );
                }
            }
            self.totals.passed_to_client += passed as u64;
            moved |= taken + passed > 0;
            moved |= (relayed.to_client.abandoned && server.readable)
                || (relayed.to_server.abandoned && client.readable);
            let gone = (client.hung_up && relayed.to_server.shut)
                || (server.hung_up && relayed.to_client.shut);
            if gone || (relayed.to_server.shut && relayed.to_client.shut) {
                return Ok(false);
            }
            if !moved {
                return Ok(true);
            }
        }
        self.busy.push(index);
        Ok(true)
    }

    fn connect(&mut self, relayed: &mut Relayed, index: usize) -> Result<(), ConnectError> {
        let (client, opened_ns) = (&relayed.client.socket, relayed.opened_ns);
        let server = &mut relayed.server;
        server.connect(&self.target, client, opened_ns, |socket| {
            let token = EventData::new_u64(index as u64 * 2 + 1);
            epoll::add(&self.epoll, socket, token, INTEREST)?;
            if let Some(keeper) = &mut self.keeper {
                keeper.connected(relayed.id, socket);
            }
            if matches!(self.target, Target::Unix { .. }) {
                self.totals.server_pid = peer(socket).map(|(pid, _)| pid);
            }
            Ok(())
        })
    }
}

/// Move bytes from one end into the pipe if it is empty, else from the pipe to the other end, and the end of the stream after them.
/// Returns how many went in and out. What goes in stays in the pipe until the next call, so that it can be recorded first.
fn carry(pipe: &mut Pipe, from: &mut End, to: &mut End) -> Result<(usize, usize), Errno> {
    if pipe.abandoned && from.readable {
        discard(pipe, from)?;
    }
    if pipe.held == 0 && !pipe.ended && from.readable {
        match splice(
            &from.socket,
            None,
            &pipe.write,
            None,
            PIPE_BYTES,
            SpliceFlags::NONBLOCK,
        ) {
            Ok(0) => pipe.ended = true,
            Ok(count) => {
                pipe.held = count;
                return Ok((count, 0));
            }
            Err(Errno::AGAIN) => from.readable = false,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    let mut passed = 0;
    if pipe.held > 0 && to.writable {
        match splice(
            &pipe.read,
            None,
            &to.socket,
            None,
            pipe.held,
            SpliceFlags::NONBLOCK,
        ) {
            Ok(count) => {
                passed = count;
                pipe.held -= count;
            }
            Err(Errno::AGAIN) => to.writable = false,
            Err(Errno::INTR) => {}
            // What the receiver sent before it closed must still be passed on.
            Err(Errno::PIPE | Errno::CONNRESET) => {
                pipe.abandoned = !pipe.ended;
                pipe.ended = true;
                pipe.held = 0;
            }
            Err(error) => return Err(error),
        }
    }
    if pipe.ended && pipe.held == 0 && !pipe.shut {
        pipe.shut = true;
        // This fails if the receiver has gone, and then does not matter.
        let _ = net::shutdown(&to.socket, Shutdown::Write);
    }
    Ok((0, passed))
}

/// Read and drop what the receiver, which has gone, does not get: a server that cannot write does not read the rest of its requests
/// either.
fn discard(pipe: &mut Pipe, from: &mut End) -> Result<(), Errno> {
    match from.read(&mut [0; 16 << 10]) {
        Ok(Some(0)) | Err(Errno::CONNRESET) => pipe.abandoned = false,
        Ok(_) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::end::made::{Rig, a_client_killed_while_both_wait};

    #[test]
    fn a_dead_client_leaves_no_server_waiting() {
        let (rig, listener) = Rig::new("pass");
        let mut passer =
            Passer::new(listener, rig.target.clone(), Arc::clone(&rig.wake)).expect("a passer");
        a_client_killed_while_both_wait(&rig, || passer.turn(Some(0)).expect("a turn"));
    }
}
