//! The conductor: opens, starts, tells the time, collects. It runs beside the workers and does nothing on their behalf.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use howfar_record::Failed;
use howfar_record::events::Ready;
use howfar_record::jobs::{LoadJob, Workload};
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::channel::Wanted;
use crate::clock::now_ns;
use crate::connection::Connection;
use crate::login::{Session, internal};
use crate::opening::open;
use crate::receipt;
use crate::socket::Address;
use crate::tally::Window;
use crate::window::{Collected, tell};
use crate::worker::{self, Order, Plan, Report, Seat};
use crate::workload::Program;

/// Between the order and the first moment of the warm-up: time for all workers to take it.
const LEAD_NS: u64 = 1_000_000;
/// How long workers may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(2);
/// Longest time between two looks at stalled connections.
const PATROL_NS: u64 = 1_000_000_000;

/// Run a job to its end, emitting its events.
pub(crate) fn conduct(job: LoadJob) -> Result<(), Failed> {
    job.check()?;
    let address = Address::parse(&job.target)?;
    let wanted = Wanted::new(&job.session, &job.target)?;
    let Workload::OltpReadOnly(load) = &job.workload else {
        return Err(internal("this workload is not spoken yet"));
    };
    let program = Arc::new(Program::new(load, job.seed));
    let plan = Arc::new(Plan {
        job,
        address,
        wanted,
        program,
    });
    let cpus = own_cpus()?;

    let began = now_ns();
    let (first, receipt) = first_connections(&plan, &cpus)?;
    let mut crew = Crew::hire(&plan, &cpus, first)?;
    let prepared_statements = crew.opened()?;
    tell(&Ready {
        receipt,
        connections: plan.job.connections,
        prepared_statements,
        connect_ns: now_ns() - began,
    })?;

    let start_ns = now_ns() + LEAD_NS + plan.job.warmup_ns;
    let window = Window {
        start_ns,
        end_ns: start_ns + plan.job.measure_ns,
        interval_ns: plan.job.interval_ns,
    };
    crew.order(Order::Start(window));
    crew.attend(&plan.job, window)?;
    crew.dismiss();
    Ok(())
}

/// The CPUs that this process may use.
fn own_cpus() -> Result<Vec<u32>, Failed> {
    let allowed = sched_getaffinity(None)
        .map_err(|error| internal(format!("reading the CPU mask: {error}")))?;
    let cpus = (0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .map(|cpu| cpu as u32);
    Ok(cpus.collect())
}

/// The first connection, with what it really is, and over TLS a second one: it shows whether sessions are resumed.
fn first_connections(
    plan: &Plan,
    cpus: &[u32],
) -> Result<(Vec<Connection>, howfar_record::events::Receipt), Failed> {
    let (socket, mut session) = open_one(plan, 0)?;
    // The question's answer comes after the tickets, which servers send with their OK.
    let mut receipt = receipt::take(plan, &socket, &mut session, cpus)?;
    let mut opened = vec![Connection::new(socket, 0, session, &plan.program)];
    if plan.wanted.wish().tls && plan.job.connections > 1 {
        let (socket, session) = open_one(plan, 1)?;
        receipt.tls_resumed = session.facts.tls.as_ref().map(|tls| tls.resumed);
        opened.push(Connection::new(socket, 1, session, &plan.program));
    }
    Ok((opened, receipt))
}

fn open_one(plan: &Plan, id: u64) -> Result<(OwnedFd, Session), Failed> {
    let mut opened = None;
    let limit_ns = plan.job.connect_timeout_ns;
    open(
        &plan.entry(),
        &plan.address,
        &mut std::iter::once(id),
        limit_ns,
        &mut |_, socket, session| {
            opened = Some((socket, session));
        },
    )?;
    opened.ok_or_else(|| internal("a connection was lost"))
}

/// All workers, with their lines.
struct Crew {
    lines: Vec<(Sender<Order>, Arc<OwnedFd>)>,
    reports: Receiver<Report>,
}

impl Crew {
    /// Start the workers; connections are dealt round robin. With as many workers as CPUs each is pinned to its own. With fewer
    /// they may move: a worker pinned to a CPU that something else keeps busy would wait beside an idle one.
    fn hire(plan: &Arc<Plan>, cpus: &[u32], first: Vec<Connection>) -> Result<Self, Failed> {
        let (to_conductor, reports) = mpsc::channel();
        let opened = first.len() as u64;
        let mut first = first;
        let workers = plan.workers(cpus);
        let mut lines = Vec::with_capacity(workers);
        for (place, &cpu) in cpus.iter().enumerate().take(workers) {
            let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|error| internal(format!("eventfd: {error}")))?;
            let bell = Arc::new(bell);
            let (line, orders) = mpsc::channel();
            let ids = (place as u64..u64::from(plan.job.connections)).step_by(workers);
            let (open, others) = first
                .into_iter()
                .partition(|connection| connection.id % workers as u64 == place as u64);
            first = others;
            let seat = Seat {
                pinned: (workers == cpus.len()).then_some(cpu),
                ids: ids.filter(|&id| id >= opened).collect(),
                open,
                orders,
                bell: Arc::clone(&bell),
                reports: to_conductor.clone(),
            };
            let plan = Arc::clone(plan);
            thread::Builder::new()
                .name(format!("load-{place}"))
                .spawn(move || guarded(&plan, seat))
                .map_err(|error| internal(format!("starting a thread: {error}")))?;
            lines.push((line, bell));
        }
        Ok(Self { lines, reports })
    }

    fn order(&self, order: Order) {
        for (line, _) in &self.lines {
            // A worker that is gone has reported why.
            let _ = line.send(order);
        }
        self.ring();
    }

    fn ring(&self) {
        for (_, bell) in &self.lines {
            let _ = rustix::io::write(&**bell, &1_u64.to_ne_bytes());
        }
    }

    /// Wait until all have opened their connections; each has its own time limit. Gives the statements prepared.
    fn opened(&mut self) -> Result<u32, Failed> {
        let mut sum = 0;
        for _ in 0..self.lines.len() {
            match self.reports.recv() {
                Ok(Report::Opened { prepared }) => sum += prepared,
                Ok(Report::Failed(failed)) => return Err(failed),
                other => {
                    return Err(internal(format!(
                        "a worker said {other:?} before it was asked to start"
                    )));
                }
            }
        }
        Ok(sum)
    }

    /// From the order to start until all is told.
    fn attend(&mut self, job: &LoadJob, window: Window) -> Result<(), Failed> {
        let mut collected = Collected::new(job, window, self.lines.len());
        let patrol_ns = PATROL_NS.min(job.stall_timeout_ns / 4 + 1);
        let mut patrol = now_ns() + patrol_ns;
        while !collected.is_complete() {
            let now = now_ns();
            let mark = collected.next_mark();
            if now >= mark || now >= patrol {
                collected.reach(now)?;
                self.ring();
                patrol = now + patrol_ns;
            }
            let wake = collected.next_mark().min(patrol);
            match self
                .reports
                .recv_timeout(Duration::from_nanos(wake.saturating_sub(now_ns())))
            {
                Ok(Report::Passed(passed)) => collected.take(passed)?,
                Ok(Report::Failed(failed)) => return Err(failed),
                Ok(other) => return Err(internal(format!("a worker said {other:?} under load"))),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(internal("all workers are gone"));
                }
            }
        }
        collected.finish()
    }

    /// Let the workers end their sessions; what they cannot end in time ends with the process.
    fn dismiss(&mut self) {
        self.order(Order::Stop);
        let mut left = self.lines.len();
        while left > 0 {
            match self.reports.recv_timeout(GOODBYE) {
                Ok(Report::Stopped | Report::Failed(_)) => left -= 1,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}

/// A worker whose panic becomes a report.
fn guarded(plan: &Plan, seat: Seat) {
    let reports = seat.reports.clone();
    let failed = match catch_unwind(AssertUnwindSafe(|| worker::run(plan, seat))) {
        Ok(Ok(())) => return,
        Ok(Err(failed)) => failed,
        Err(panic) => internal(format!(
            "a worker panicked: {}",
            crate::panic_text(panic.as_ref())
        )),
    };
    let _ = reports.send(Report::Failed(failed));
}
