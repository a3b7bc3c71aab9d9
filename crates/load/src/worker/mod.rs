//! One worker: a thread with its share of the connections, one driver, one heap of timers. It shares no mutable state.
//!
//! Here: its life cycle, and the loop over epoll. [`uring`] has the loop over an `io_uring`, [`driver`] the choice between them.
//! [`traffic`] is the hot path, [`connections`] opens and closes connections, [`window_edges`] passes the edges of the measured
//! window,
//! [`keys`] writes the key log. After a send nothing is read before epoll reports bytes: one send and one receive per query, and one
//! wait that serves all connections that are ready. A worker's only connection in a closed loop blocks in its receive instead.

mod connections;
pub(crate) mod driver;
mod keys;
mod measure;
mod plan;
mod traffic;
mod uring;
mod window_edges;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use howfar_contract::jobs::{Connect, OnDisconnect};
use howfar_contract::{Failed, internal};
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::acknowledged::{Log, OutcomeCounts};
use crate::clock::now_ns;
use crate::connection::{Connection, State, Tools};
use crate::schedule::Schedule;
use crate::tally::{Passed, Tally, Window};
use driver::Driver;
pub(crate) use plan::Plan;

const EVENTS: usize = 256;
/// Size of a worker's single receive buffer: most answers come in one piece, and the server sends at most 16 KiB at once.
const BUFFER: usize = 64 * 1024;
const WAKE: u64 = u64::MAX;
/// Token of the timer that ends a wait: it is exact, whereas epoll's own timeout is in whole milliseconds on older kernels.
const ALARM: u64 = u64::MAX - 1;
/// Edge-triggered: reported once when bytes come, not again while they wait, so that epoll need not check each socket twice. A receive
/// that does not fill the buffer has emptied the socket; one that fills it is repeated. The close of a connection is reported together
/// with its last bytes, and not again.
const INTEREST: EventFlags = EventFlags::IN
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);

/// A worker checks its orders and time limits after decoding this many bytes, however many events wait: compressed, these bytes may be
/// a thousand times those received.
const LOOK_BYTES: u64 = 16 << 20;

/// A worker that blocks on its only connection checks for orders at least this often.
const LOOK_NS: u64 = 1_000_000;

/// An order from the coordinator to a worker; each is followed by a write to the worker's `wake_fd`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    /// The load begins at `origin_ns`.
    Start {
        origin_ns: u64,
        window: Window,
    },
    /// All the work is done, or a connection was lost: the window ends at `at_ns`.
    EndWindow {
        at_ns: u64,
    },
    Stop,
    /// Stop without waiting for answers.
    Abandon,
}

/// A report from a worker to the coordinator.
#[derive(Debug)]
pub(crate) enum Report {
    Opened {
        prepared: u32,
    },
    Passed(Passed),
    /// No further transaction may begin, and none is in progress.
    Drained,
    /// A connection is lost, and with it the rest of the window.
    Interrupted(Failed),
    /// The worker's part of the log is written.
    Logged(OutcomeCounts),
    Failed(Failed),
    /// The last report: the number of statements that were answered.
    Stopped(u64),
}

/// The parameters of a new worker: its CPU, its connections and its channels to the coordinator.
#[derive(Debug)]
pub(crate) struct WorkerConfig {
    /// The worker's number, and the number of workers.
    pub(crate) share: (usize, usize),
    /// The CPU to which the worker is pinned, if any.
    pub(crate) pinned: Option<u32>,
    pub(crate) driver: Driver,
    pub(crate) connections: Vec<Connection>,
    pub(crate) orders: Receiver<Order>,
    /// An eventfd: a write to it makes the worker check the clock and its orders.
    pub(crate) wake_fd: Arc<OwnedFd>,
    pub(crate) reports: Sender<Report>,
}

/// The load, once it has begun.
struct Load {
    tally: Tally,
    schedule: Option<Schedule>,
    /// Open loop: connections without work, longest-waiting first.
    free: VecDeque<u32>,
}

struct Worker<'a> {
    plan: &'a Plan,
    share: (usize, usize),
    epoll: OwnedFd,
    driver: Driver,
    connections: Vec<Connection>,
    tools: Tools,
    load: Option<Load>,
    log: Option<Log<'a>>,
    /// (when, connection): ends of pauses, starts in the ramp, retries of a connect.
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    /// Connections that wait to be opened, and the number of those being opened.
    to_open: VecDeque<u32>,
    opening: usize,
    /// Number of used connections whose work is over because no further transaction may begin.
    at_rest: usize,
    /// Number of connections that carry load (not the idle ones).
    used: usize,
    drained: bool,
    opened: bool,
    stopping: bool,
    /// Number of connections that still have a socket or need one.
    left: usize,
    orders: Receiver<Order>,
    wake_fd: Arc<OwnedFd>,
    alarm: OwnedFd,
    reports: Sender<Report>,
    buffer: Vec<u8>,
}

/// Run a worker to its end. It communicates only through its reports.
pub(crate) fn run(plan: &Plan, config: WorkerConfig) -> Result<(), Failed> {
    if let Some(cpu) = config.pinned {
        let mut cpus = CpuSet::new();
        cpus.set(cpu as usize);
        sched_setaffinity(None, &cpus)
            .map_err(|error| internal(format!("pinning to CPU {cpu}: {error}")))?;
    }
    // Timers of pauses and arrivals fire when they are due, not up to 50 µs later. If the call fails, they are merely less exact.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let tools = Tools::new(
        Arc::clone(&plan.program),
        plan.job.client_work,
        plan.job.ignore_errors.clone(),
    );
    let mut worker = Worker {
        plan,
        share: config.share,
        epoll: epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| internal(format!("epoll: {error}")))?,
        driver: config.driver,
        left: config.connections.len(),
        used: plan.used(&config.connections),
        connections: config.connections,
        tools,
        load: None,
        log: None,
        timers: BinaryHeap::new(),
        to_open: VecDeque::new(),
        opening: 0,
        at_rest: 0,
        drained: false,
        opened: false,
        stopping: false,
        orders: config.orders,
        wake_fd: config.wake_fd,
        alarm: timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )
        .map_err(|error| internal(format!("making a timer: {error}")))?,
        reports: config.reports,
        buffer: vec![0; BUFFER],
    };
    worker.watch(&worker.wake_fd, WAKE, INTEREST)?;
    worker.watch(&worker.alarm, ALARM, INTEREST)?;
    let served = worker.live();
    let logged = worker.end_log();
    served.and(logged)?;
    let answered = worker.load.as_ref().map_or(0, |load| load.tally.answered);
    worker.report(Report::Stopped(answered));
    Ok(())
}

impl Worker<'_> {
    /// Send a report. A coordinator that is gone has reported why, so the error is ignored.
    fn report(&self, report: Report) {
        let _ = self.reports.send(report);
    }

    fn watch(&self, socket: &OwnedFd, token: u64, interest: EventFlags) -> Result<(), Failed> {
        epoll::add(&self.epoll, socket, EventData::new_u64(token), interest)
            .map_err(|error| internal(format!("epoll: {error}")))
    }

    fn live(&mut self) -> Result<(), Failed> {
        if let Driver::Ring(ring) = &self.driver {
            ring.start().map_err(|error| uring::broken(&error))?;
            self.open_all()?;
            return self.serve_ring();
        }
        self.open_all()?;
        self.serve()
    }

    fn serve(&mut self) -> Result<(), Failed> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut events = Vec::with_capacity(EVENTS);
        let mut looked_ns = 0;
        while self.left > 0 {
            if let Some(index) = self.alone() {
                let answered = self.await_answer(index, &mut buffer)?;
                let now = now_ns();
                if answered && now < looked_ns + LOOK_NS {
                    continue;
                }
                looked_ns = now;
                self.tick(now);
                events.clear();
                self.look(&mut events, Some(0))?;
                self.hear(&events, &mut buffer)?;
                continue;
            }
            events.clear();
            let patience_ns = self.patience_ns();
            self.look(&mut events, patience_ns)?;
            self.hear(&events, &mut buffer)?;
            if patience_ns.is_some() {
                self.on_time()?;
            }
        }
        Ok(())
    }

    fn hear(&mut self, events: &[Event], buffer: &mut [u8]) -> Result<(), Failed> {
        for event in events {
            match event.data.u64() {
                WAKE => self.woken()?,
                // The alarm only ends the wait; the clock shows what is due.
                ALARM => {}
                index => self.ready(index as usize, event.flags, buffer)?,
            }
            self.look_up()?;
        }
        Ok(())
    }

    /// Check orders and time limits after [`LOOK_BYTES`] of work.
    #[inline]
    fn look_up(&mut self) -> Result<(), Failed> {
        if self.tools.taken < LOOK_BYTES {
            return Ok(());
        }
        self.tools.taken = 0;
        self.woken()
    }

    /// The worker's only connection, if nothing but its answer can come next: in a closed loop that waits for it. A blocking receive
    /// is cheaper than a wait and a receive.
    #[inline]
    fn alone(&self) -> Option<usize> {
        let load = self.load.as_ref()?;
        let [connection] = &self.connections[..] else {
            return None;
        };
        let waits = matches!(connection.state, State::Asking)
            && connection
                .wire
                .as_ref()
                .is_some_and(|wire| wire.unsent.is_empty());
        (waits && load.schedule.is_none() && self.timers.is_empty() && !self.stopping).then_some(0)
    }

    /// Append the events of epoll, waiting up to `patience_ns`; `None` waits for ever.
    #[inline]
    fn look(&self, events: &mut Vec<Event>, patience_ns: Option<u64>) -> Result<(), Failed> {
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let patience = match patience_ns {
            Some(0) => Some(&at_once),
            Some(left) => {
                self.set_alarm(left)?;
                None
            }
            None => None,
        };
        let room = rustix::buffer::spare_capacity(events);
        match epoll::wait(&self.epoll, room, patience) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(internal(format!("epoll: {error}"))),
        }
    }

    /// End the next wait after `left_ns`, which must be above 0.
    fn set_alarm(&self, left_ns: u64) -> Result<(), Failed> {
        let nothing = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let once = Itimerspec {
            it_interval: nothing,
            it_value: Timespec {
                tv_sec: (left_ns / 1_000_000_000) as i64,
                tv_nsec: (left_ns % 1_000_000_000) as i64,
            },
        };
        timerfd_settime(&self.alarm, TimerfdTimerFlags::empty(), &once)
            .map(drop)
            .map_err(|error| internal(format!("setting a timer: {error}")))
    }

    /// How long to wait for sockets: until the next timer, or the next arrival if a connection is free to serve it. Without either,
    /// for ever: the coordinator writes to `wake_fd` at the edges of the window.
    #[inline]
    fn patience_ns(&self) -> Option<u64> {
        let mut next = self.timers.peek().map(|Reverse((when, _))| *when);
        if let Some(Load {
            schedule: Some(schedule),
            free,
            ..
        }) = &self.load
        {
            if !free.is_empty() && !self.stopping {
                let due = schedule.next_ns();
                next = Some(next.map_or(due, |timer| timer.min(due)));
            }
        }
        next.map(|when| when.saturating_sub(now_ns()))
    }

    /// Handle window edges, timers and arrivals that are due.
    fn on_time(&mut self) -> Result<(), Failed> {
        let now = now_ns();
        self.tick(now);
        while let Some(&Reverse((when, index))) = self.timers.peek() {
            if when > now {
                break;
            }
            self.timers.pop();
            let connection = &mut self.connections[index as usize];
            if connection.due_ns == when {
                connection.due_ns = 0;
                self.timer(index as usize, now)?;
            }
        }
        self.serve_arrivals(now)
    }

    fn timer(&mut self, index: usize, now: u64) -> Result<(), Failed> {
        match self.connections[index].state {
            State::Thinking => self.send(index, now),
            // The connection's first transaction.
            State::Resting if !self.connections[index].busy => {
                self.connections[index].free_ns = now;
                self.next(index, now)
            }
            State::Waiting => {
                self.connections[index].state = State::Closed;
                self.to_open.push_back(index as u32);
                self.let_in(now)
            }
            _ => Ok(()),
        }
    }

    fn reconnects(&self) -> bool {
        self.plan.job.session.on_disconnect == OnDisconnect::Reconnect && !self.stopping
    }

    fn connects_each_time(&self) -> bool {
        self.plan.job.session.connect == Connect::PerTransaction
    }
}
