//! One worker: a thread with its share of the connections, one driver, one heap of timers. It shares no mutable state.
//!
//! Here: its life cycle, and the loop over epoll. [`uring`] has the loop over an `io_uring`, [`driver`] the choice between them.
//! [`traffic`] is the hot path, [`connections`] opens and closes connections, [`window_edges`] handles the edges of the
//! measured window, [`keys`] writes the key log. After a send nothing is read before epoll reports bytes: one send and one receive
//! per query, and one wait that serves all connections that are ready. A worker's only connection in a closed loop blocks in its
//! receive instead.

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
use crate::clock::{now_ns, timespec};
use crate::connection::{Connection, State, Work};
use crate::context::WorkerContext;
use crate::schedule::Schedule;
use crate::tally::{PassedEdge, Tally, Window};
use driver::Driver;
pub(crate) use plan::Plan;

const NO_TIME: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};
/// Maximum number of events that one wait returns.
const MAX_EVENTS: usize = 256;
/// Size of a worker's single receive buffer: most answers come in one piece, and the server sends at most 16 KiB at once.
const BUFFER_BYTES: usize = 64 * 1024;
/// Token of `wake_fd`.
const WAKE: u64 = u64::MAX;
/// Token of the timer that ends a wait: it is exact, whereas epoll's own timeout is in whole milliseconds on older kernels.
const ALARM: u64 = u64::MAX - 1;
/// Edge-triggered: reported once when bytes come, not again while they wait, so that epoll need not check each socket twice. A
/// receive that does not fill the buffer has emptied the socket; one that fills it is repeated. The close of a connection is
/// reported together with its last bytes, and not again.
const INTEREST: EventFlags = EventFlags::IN
    .union(EventFlags::RDHUP)
    .union(EventFlags::ET);

/// A worker checks its commands and time limits after decoding this many bytes, however many events wait: if compressed, they may
/// be a thousand times the bytes received.
const MAX_UNCHECKED_BYTES: u64 = 16 << 20;

/// A worker that blocks on its only connection checks for commands at least this often.
const MAX_UNCHECKED_NS: u64 = 1_000_000;

/// A command from the coordinator to a worker; each is followed by a write to the worker's `wake_fd`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Command {
    /// The load begins at `origin_ns`.
    Start {
        origin_ns: u64,
        window: Window,
    },
    /// The window ends at `at_ns`, because all the work is done or a connection was lost.
    EndWindow {
        at_ns: u64,
    },
    Stop,
    /// Stop without waiting for answers.
    Abandon,
}

/// An event that a worker sends to the coordinator.
#[derive(Debug)]
pub(crate) enum WorkerEvent {
    Opened {
        prepared: u32,
    },
    Passed(PassedEdge),
    /// No further transaction may begin, and none is in progress.
    Drained,
    /// A connection is lost, which ends the window.
    Interrupted(Failed),
    /// The worker's part of the log is written.
    Logged(OutcomeCounts),
    Failed(Failed),
    /// The worker's last event, with the number of statements that were answered.
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
    pub(crate) commands: Receiver<Command>,
    /// An eventfd: a write to it makes the worker check the clock and its commands.
    pub(crate) wake_fd: Arc<OwnedFd>,
    pub(crate) to_coordinator: Sender<WorkerEvent>,
}

/// The load, once it has begun.
struct Load {
    tally: Tally,
    schedule: Option<Schedule>,
    /// Open loop: connections without a transaction, each with the time at which it became free; the longest-waiting is first.
    free_connections: VecDeque<(u32, u64)>,
}

struct Worker<'a> {
    plan: &'a Plan,
    share: (usize, usize),
    epoll: OwnedFd,
    driver: Driver,
    connections: Vec<Connection>,
    context: WorkerContext,
    load: Option<Load>,
    log: Option<Log<'a>>,
    /// Times at which connections continue: ends of pauses, starts in the ramp, retries of a connect.
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    /// Connections that wait to be opened.
    queued_connections: VecDeque<u32>,
    /// Number of connections being opened.
    opening_count: usize,
    /// Number of connections with load whose work is over because no further transaction may begin.
    drained_connections: usize,
    /// Number of connections that carry load (not the idle ones).
    used_connections: usize,
    is_drained: bool,
    has_reported_opened: bool,
    is_stopping: bool,
    /// Number of connections that still have a socket or need one.
    remaining_connections: usize,
    commands: Receiver<Command>,
    wake_fd: Arc<OwnedFd>,
    alarm: OwnedFd,
    to_coordinator: Sender<WorkerEvent>,
    buffer: Vec<u8>,
}

/// Run a worker to its end. It communicates only by the events that it sends.
pub(crate) fn run(plan: &Plan, config: WorkerConfig) -> Result<(), Failed> {
    if let Some(cpu) = config.pinned {
        pin_thread(cpu)?;
    }
    // By default timers may fire up to 50 µs late. If this call fails, pauses and arrivals are merely less exact.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
    let context = WorkerContext::new(
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
        remaining_connections: config.connections.len(),
        used_connections: plan.used_connections(&config.connections),
        connections: config.connections,
        context,
        load: None,
        log: None,
        timers: BinaryHeap::new(),
        queued_connections: VecDeque::new(),
        opening_count: 0,
        drained_connections: 0,
        is_drained: false,
        has_reported_opened: false,
        is_stopping: false,
        commands: config.commands,
        wake_fd: config.wake_fd,
        alarm: timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )
        .map_err(|error| internal(format!("making a timer: {error}")))?,
        to_coordinator: config.to_coordinator,
        buffer: vec![0; BUFFER_BYTES],
    };
    worker.watch(&worker.wake_fd, WAKE, INTEREST)?;
    worker.watch(&worker.alarm, ALARM, INTEREST)?;
    let outcome = worker.run_loop();
    let log_outcome = worker.end_log();
    outcome.and(log_outcome)?;
    let answered = worker.load.as_ref().map_or(0, |load| load.tally.answered);
    worker.send_event(WorkerEvent::Stopped(answered));
    Ok(())
}

/// Let the calling thread run on one CPU only.
pub(crate) fn pin_thread(cpu: u32) -> Result<(), Failed> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu as usize);
    sched_setaffinity(None, &cpus)
        .map_err(|error| internal(format!("pinning to CPU {cpu}: {error}")))
}

impl Worker<'_> {
    /// Send an event. The error is ignored: a coordinator that has ended has already reported why.
    fn send_event(&self, event: WorkerEvent) {
        let _ = self.to_coordinator.send(event);
    }

    fn watch(&self, socket: &OwnedFd, token: u64, interest: EventFlags) -> Result<(), Failed> {
        epoll::add(&self.epoll, socket, EventData::new_u64(token), interest)
            .map_err(|error| internal(format!("epoll: {error}")))
    }

    fn run_loop(&mut self) -> Result<(), Failed> {
        if let Driver::Ring(ring) = &self.driver {
            ring.start().map_err(|error| uring::ring_failure(&error))?;
            self.open_all()?;
            return self.serve_ring();
        }
        self.open_all()?;
        self.serve_epoll()
    }

    fn serve_epoll(&mut self) -> Result<(), Failed> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut events = Vec::with_capacity(MAX_EVENTS);
        let mut checked_ns = 0;
        while self.remaining_connections > 0 {
            if let Some(index) = self.sole_waiting_connection() {
                let answered = self.await_answer(index, &mut buffer)?;
                let now = now_ns();
                if answered && now < checked_ns + MAX_UNCHECKED_NS {
                    continue;
                }
                checked_ns = now;
                self.pass_due_edges(now);
                events.clear();
                self.poll(&mut events, Some(0))?;
                self.handle_events(&events, &mut buffer)?;
                continue;
            }
            events.clear();
            let max_wait_ns = self.max_wait_ns();
            self.poll(&mut events, max_wait_ns)?;
            self.handle_events(&events, &mut buffer)?;
            if max_wait_ns.is_some() {
                self.handle_due()?;
            }
        }
        Ok(())
    }

    fn handle_events(&mut self, events: &[Event], buffer: &mut [u8]) -> Result<(), Failed> {
        for event in events {
            match event.data.u64() {
                WAKE => self.handle_wakeup()?,
                // The alarm only ends the wait; the clock shows what is due.
                ALARM => {}
                index => self.handle_ready(index as usize, event.flags, buffer)?,
            }
            self.check_after_work()?;
        }
        Ok(())
    }

    /// Check commands and time limits after decoding [`MAX_UNCHECKED_BYTES`].
    #[inline]
    fn check_after_work(&mut self) -> Result<(), Failed> {
        if self.context.unchecked_bytes < MAX_UNCHECKED_BYTES {
            return Ok(());
        }
        self.context.unchecked_bytes = 0;
        self.handle_wakeup()
    }

    /// The worker's only connection, if it is in a closed loop and awaits an answer: then nothing else can come next, and a blocking
    /// receive is cheaper than a wait and a receive.
    #[inline]
    fn sole_waiting_connection(&self) -> Option<usize> {
        let load = self.load.as_ref()?;
        let [connection] = &self.connections[..] else {
            return None;
        };
        let awaits_answer = connection.awaits_answer()
            && connection
                .transport()
                .is_some_and(|transport| transport.unsent.is_empty());
        (awaits_answer && load.schedule.is_none() && self.timers.is_empty() && !self.is_stopping)
            .then_some(0)
    }

    /// Append the events of epoll, waiting up to `max_wait_ns`; `None` waits without limit.
    #[inline]
    fn poll(&self, events: &mut Vec<Event>, max_wait_ns: Option<u64>) -> Result<(), Failed> {
        let timeout = match max_wait_ns {
            Some(0) => Some(&NO_TIME),
            Some(wait_ns) => {
                self.set_alarm(wait_ns)?;
                None
            }
            None => None,
        };
        let spare_events = rustix::buffer::spare_capacity(events);
        match epoll::wait(&self.epoll, spare_events, timeout) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(internal(format!("epoll: {error}"))),
        }
    }

    /// End the next wait after `wait_ns`, which must be above 0.
    fn set_alarm(&self, wait_ns: u64) -> Result<(), Failed> {
        let timer_spec = Itimerspec {
            it_interval: NO_TIME,
            it_value: timespec(wait_ns),
        };
        timerfd_settime(&self.alarm, TimerfdTimerFlags::empty(), &timer_spec)
            .map(drop)
            .map_err(|error| internal(format!("setting a timer: {error}")))
    }

    /// Time to wait for sockets: until the next timer, or the next arrival if a connection is free to serve it. Without either,
    /// no limit: the coordinator writes to `wake_fd` at the edges of the window.
    #[inline]
    fn max_wait_ns(&self) -> Option<u64> {
        let mut next_ns = self.timers.peek().map(|Reverse((when_ns, _))| *when_ns);
        if let Some(Load {
            schedule: Some(schedule),
            free_connections,
            ..
        }) = &self.load
        {
            if !free_connections.is_empty() && !self.is_stopping {
                let due_ns = schedule.next_ns();
                next_ns = Some(next_ns.map_or(due_ns, |timer_ns| timer_ns.min(due_ns)));
            }
        }
        next_ns.map(|when_ns| when_ns.saturating_sub(now_ns()))
    }

    /// Handle the window edges, timers and arrivals that are due.
    fn handle_due(&mut self) -> Result<(), Failed> {
        let now = now_ns();
        self.pass_due_edges(now);
        while let Some(&Reverse((when_ns, index))) = self.timers.peek() {
            if when_ns > now {
                break;
            }
            self.timers.pop();
            if self.connections[index as usize].timer_ns() == Some(when_ns) {
                self.handle_timer(index as usize, now)?;
            }
        }
        self.serve_arrivals(now)
    }

    fn handle_timer(&mut self, index: usize, now: u64) -> Result<(), Failed> {
        if let State::WaitingToRetry { opening, .. } = self.connections[index].state {
            self.enqueue(index, Some(opening.since_ns), opening.after_loss);
            return self.open_waiting(now);
        }
        match self.connections[index].work {
            Work::Active(_) => self.send(index, now),
            Work::Idle { .. } => self.start_next(index, now),
            Work::Finished => Ok(()),
        }
    }

    fn reconnects(&self) -> bool {
        self.plan.job.session.on_disconnect == OnDisconnect::Reconnect && !self.is_stopping
    }

    fn connects_each_time(&self) -> bool {
        self.plan.job.session.connect == Connect::PerTransaction
    }
}
