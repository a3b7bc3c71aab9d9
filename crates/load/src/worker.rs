//! One worker: a thread with a CPU of its own, its share of the connections, one epoll. It shares nothing that changes.
//!
//! After a send nothing is read before epoll says that there is something: one send and one receive a query, and a wait that
//! serves all connections that are ready. For a lone connection a blocking receive would spare a call, but was not seen to cost less.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use howfar_record::Failed;
use howfar_record::jobs::LoadJob;
use howfar_wire::mysql::command;
use howfar_wire::mysql::handshake::Account;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::channel::{self, Wanted};
use crate::clock::now_ns;
use crate::connection::{Broken, Connection, Tools, send_some};
use crate::failure;
use crate::login::{Entry, internal};
use crate::opening::open;
use crate::socket::Address;
use crate::tally::{Passed, Tally, Window};
use crate::workload::Program;

const EVENTS: usize = 256;
/// One for all connections of a worker: most answers come in one piece, and the server sends at most 16 KiB at once.
const BUFFER: usize = 64 * 1024;
const BELL: u64 = u64::MAX;
/// Told once when bytes come, not again while they wait: spares epoll a second look at each socket. A receive that fills less
/// than the buffer has emptied the socket; one that fills it is repeated.
const INTEREST: EventFlags = EventFlags::IN.union(EventFlags::ET);

/// What the conductor and all workers read.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) job: LoadJob,
    pub(crate) address: Address,
    pub(crate) wanted: Wanted,
    pub(crate) program: Arc<Program>,
}

impl Plan {
    /// One for each CPU, no more than connections.
    pub(crate) fn workers(&self, cpus: &[u32]) -> usize {
        cpus.len().min(self.job.connections as usize)
    }

    pub(crate) fn entry(&self) -> Entry<'_> {
        let account = Account {
            user: &self.job.user,
            password: &self.job.password,
            database: &self.job.database,
        };
        let decode = self.job.client_work == howfar_record::jobs::ClientWork::Decode;
        Entry {
            target: &self.job.target,
            account,
            wanted: &self.wanted,
            program: &self.program,
            decode,
        }
    }
}

/// From the conductor to a worker; each is followed by a ring of its bell.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    Start(Window),
    Stop,
}

/// From a worker to the conductor.
#[derive(Debug)]
pub(crate) enum Report {
    Opened { prepared: u32 },
    Passed(Passed),
    Failed(Failed),
    Stopped,
}

/// A worker's place: its CPU, its connections and its lines to the conductor.
#[derive(Debug)]
pub(crate) struct Seat {
    /// The CPU that is its own, if one is.
    pub(crate) pinned: Option<u32>,
    pub(crate) ids: Vec<u64>,
    /// Connections that are open already.
    pub(crate) open: Vec<Connection>,
    pub(crate) orders: Receiver<Order>,
    /// Rung to make a worker look at the clock and at its orders.
    pub(crate) bell: Arc<OwnedFd>,
    pub(crate) reports: Sender<Report>,
}

/// The life of a worker. Everything that it has to say goes through its reports.
pub(crate) fn run(plan: &Plan, seat: Seat) -> Result<(), Failed> {
    if let Some(cpu) = seat.pinned {
        let mut cpus = CpuSet::new();
        cpus.set(cpu as usize);
        sched_setaffinity(None, &cpus)
            .map_err(|error| internal(format!("pinning to CPU {cpu}: {error}")))?;
    }
    let mut connections = seat.open;
    let program = &plan.program;
    open(
        &plan.entry(),
        &plan.address,
        &mut seat.ids.iter().copied(),
        plan.job.connect_timeout_ns,
        &mut |id, socket, session| {
            connections.push(Connection::new(socket, id, session, program));
        },
    )?;
    let prepared = connections.iter().map(Connection::prepared).sum();
    // A conductor that is gone has told why; then there is nobody to report to.
    let _ = seat.reports.send(Report::Opened { prepared });
    let Ok(Order::Start(window)) = seat.orders.recv() else {
        return Ok(());
    };
    let mut worker = Worker {
        plan,
        epoll: epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| internal(format!("epoll: {error}")))?,
        connections,
        tools: Tools::new(
            Arc::clone(program),
            plan.job.client_work,
            Tally::new(window),
        ),
        orders: seat.orders,
        bell: seat.bell,
        reports: seat.reports,
        stopping: false,
        left: 0,
    };
    worker.start()?;
    worker.serve()?;
    let _ = worker.reports.send(Report::Stopped);
    Ok(())
}

/// A conductor that is gone has told why; then there is nobody to report to.
fn pass_on(reports: &Sender<Report>, passed: Passed) {
    let _ = reports.send(Report::Passed(passed));
}

/// What a receive brought.
enum Received {
    Nothing,
    /// `full`: the buffer was, so there may be more.
    Part {
        full: bool,
    },
    /// An answer was whole.
    Answer,
}

struct Worker<'a> {
    plan: &'a Plan,
    epoll: OwnedFd,
    connections: Vec<Connection>,
    tools: Tools,
    orders: Receiver<Order>,
    bell: Arc<OwnedFd>,
    reports: Sender<Report>,
    stopping: bool,
    /// Connections that still wait for an answer.
    left: usize,
}

impl Worker<'_> {
    fn start(&mut self) -> Result<(), Failed> {
        self.watch(&self.bell, BELL)?;
        for index in 0..self.connections.len() {
            self.watch(&self.connections[index].socket, index as u64)?;
        }
        self.left = self.connections.len();
        for index in 0..self.connections.len() {
            let connection = &mut self.connections[index];
            let sent = connection.start(now_ns(), &mut self.tools);
            self.after_send(index, sent)?;
        }
        Ok(())
    }

    fn watch(&self, socket: &OwnedFd, token: u64) -> Result<(), Failed> {
        epoll::add(&self.epoll, socket, EventData::new_u64(token), INTEREST)
            .map_err(|error| internal(format!("epoll: {error}")))
    }

    fn serve(&mut self) -> Result<(), Failed> {
        let mut buffer = vec![0; BUFFER];
        let mut events = Vec::with_capacity(EVENTS);
        while self.left > 0 {
            events.clear();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                None,
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(internal(format!("epoll: {error}"))),
            }
            for event in &events {
                match event.data.u64() {
                    BELL => self.rung()?,
                    index => self.ready(index as usize, event.flags, &mut buffer)?,
                }
            }
        }
        Ok(())
    }

    #[inline]
    fn ready(&mut self, index: usize, flags: EventFlags, buffer: &mut [u8]) -> Result<(), Failed> {
        if flags.contains(EventFlags::OUT) {
            self.flush(index)?;
        }
        // Another full buffer cannot follow for ever: an answer has an end, and nothing is sent before it.
        while let Received::Part { full: true } =
            self.receive(index, RecvFlags::DONTWAIT, buffer)?
        {}
        Ok(())
    }

    /// Take what came; after a whole answer send the next statement.
    #[inline]
    fn receive(
        &mut self,
        index: usize,
        flags: RecvFlags,
        buffer: &mut [u8],
    ) -> Result<Received, Failed> {
        let connection = &mut self.connections[index];
        let count = match net::recv(&connection.socket, &mut *buffer, flags) {
            Ok((0, _)) => {
                return Err(failure::gone(
                    &self.plan.job.target,
                    "in the middle of the load",
                ));
            }
            Ok((count, _)) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
            Err(error) => return Err(failure::broken(&self.plan.job.target, &error.into())),
        };
        let reports = &self.reports;
        let clock = |tally: &mut Tally| {
            let now = now_ns();
            tally.advance(now, &mut |passed| pass_on(reports, passed));
            now
        };
        let received = connection.received(&buffer[..count], &mut self.tools, clock);
        if !connection.unsent.is_empty() {
            self.flush(index)?;
        }
        match received {
            Ok(None) => Ok(Received::Part {
                full: count == buffer.len(),
            }),
            Ok(Some(_)) if self.stopping => {
                self.leave(index);
                Ok(Received::Answer)
            }
            Ok(Some(now)) => {
                let sent = self.connections[index].send(now, &mut self.tools);
                self.after_send(index, sent)?;
                Ok(Received::Answer)
            }
            Err(broken) => Err(self.translate(broken)),
        }
    }

    #[inline]
    fn after_send(&mut self, index: usize, sent: std::io::Result<()>) -> Result<(), Failed> {
        sent.map_err(|error| failure::broken(&self.plan.job.target, &error))?;
        if self.connections[index].unsent.is_empty() {
            Ok(())
        } else {
            self.interest(index)
        }
    }

    #[cold]
    fn interest(&self, index: usize) -> Result<(), Failed> {
        let connection = &self.connections[index];
        let flags = if connection.unsent.is_empty() {
            INTEREST
        } else {
            INTEREST | EventFlags::OUT
        };
        epoll::modify(
            &self.epoll,
            &connection.socket,
            EventData::new_u64(index as u64),
            flags,
        )
        .map_err(|error| internal(format!("epoll: {error}")))
    }

    #[cold]
    fn flush(&mut self, index: usize) -> Result<(), Failed> {
        let connection = &mut self.connections[index];
        let sent = send_some(&connection.socket, &connection.unsent)
            .map_err(|error| failure::broken(&self.plan.job.target, &error))?;
        connection.unsent.drain(..sent);
        self.interest(index)
    }

    /// Say goodbye on a connection that has its answer.
    fn leave(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let mut quit = Vec::new();
        command::quit(&mut quit);
        let mut bytes = Vec::new();
        // A channel that cannot say goodbye is shut all the same.
        let _ = connection.channel.seal(&quit, &mut bytes);
        // The work is done: a server that is gone by now changes nothing.
        let _ = send_some(&connection.socket, &bytes);
        let _ = net::shutdown(&connection.socket, net::Shutdown::Both);
        // Not registered when there is no epoll.
        let _ = epoll::delete(&self.epoll, &connection.socket);
        self.left -= 1;
    }

    #[cold]
    fn rung(&mut self) -> Result<(), Failed> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.bell, &mut count);
        if matches!(self.orders.try_recv(), Ok(Order::Stop)) {
            self.stopping = true;
        }
        let now = now_ns();
        let reports = &self.reports;
        self.tools
            .tally
            .advance(now, &mut |passed| pass_on(reports, passed));
        let limit = self.plan.job.stall_timeout_ns;
        match self
            .connections
            .iter()
            .find(|connection| now.saturating_sub(connection.sent_ns) > limit)
        {
            Some(late) if !self.stopping => Err(failure::stalled(
                &self.plan.job.target,
                late.id,
                late.kind().name(),
                limit,
            )),
            _ => Ok(()),
        }
    }

    #[cold]
    fn translate(&self, broken: Broken) -> Failed {
        let target = &self.plan.job.target;
        match broken {
            Broken::Channel(error) => channel::broken(target, &error),
            Broken::Malformed(error) => failure::malformed(target, error),
            Broken::Server(error, kind) => {
                failure::server(target, &format!("a {}", kind.name()), &error)
            }
        }
    }
}
