//! The coordinator opens connections, starts the workers, sets the time and collects results. It runs alongside the workers and does
//! none of their work.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use howfar_contract::events::{Finished, Ready};
use howfar_contract::jobs::{Connect, LoadJob};
use howfar_contract::{FailCode, Failed, internal};
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::acknowledged::{LogFile, OutcomeCounts};
use crate::channel::Wanted;
use crate::clock::now_ns;
use crate::connecting::open_one;
use crate::connection::{Connection, State};
use crate::held;
use crate::receipt::{self, ReceiptContext};
use crate::ring::Ring;
use crate::socket::{Address, allow_descriptors};
use crate::tally::Window;
use crate::window::{Collected, emit_event};
use crate::wire::Wire;
use crate::worker::driver::{Driver, rings};
use crate::worker::{self, Order, Plan, Report, WorkerConfig};
use crate::workload::Program;

/// Time limit for workers to end their sessions.
const GOODBYE: Duration = Duration::from_secs(2);
/// Check for stalled connections at least this often.
const PATROL_NS: u64 = 1_000_000_000;
/// Check connections that are being opened at least this often.
const OPENING: Duration = Duration::from_millis(50);

/// The plan of a job, checked and parsed, and the CPUs that it may use.
pub(crate) fn planned(job: LoadJob) -> Result<(Arc<Plan>, Vec<u32>), Failed> {
    job.check()?;
    let address = Address::parse(&job.target)?;
    let wanted = Wanted::new(&job.session, &job.target)?;
    let program = program(&job)?;
    let plan = Arc::new(Plan {
        job,
        address,
        wanted,
        program: Arc::new(program),
        begun: AtomicU64::new(0),
        log: OnceLock::new(),
    });
    allow_descriptors(plan.all_connections())?;
    Ok((plan, own_cpus()?))
}

/// Run a job to its end, emitting its events.
pub(crate) fn run(job: LoadJob) -> Result<(), Failed> {
    if let Some(path) = &job.acknowledged {
        LogFile::must_be_new(path)?;
    }
    let (plan, cpus) = planned(job)?;
    let rings = rings(&plan, plan.workers(&cpus))?;
    let began = now_ns();
    let (first, mut receipt) = first_connections(&plan, &cpus)?;
    receipt.driver = Driver::name(&rings);
    let mut workers = Workers::start(&plan, &cpus, first, rings)?;
    let prepared_statements = workers.opened()?;
    emit_event(&Ready {
        services: BTreeMap::new(),
        receipt,
        connections: plan.job.connections,
        prepared_statements,
        connect_ns: now_ns() - began,
    })?;

    let origin_ns = held::origin_ns(plan.job.held)?;
    let start_ns = origin_ns + plan.job.warmup_ns;
    let window = Window {
        start_ns,
        end_ns: start_ns + plan.job.measure_ns,
        interval_ns: plan.job.interval_ns,
    };
    begin_log(&plan, origin_ns)?;
    workers.order(Order::Start { origin_ns, window });
    let finished = workers.attend(&plan, window);
    workers.dismiss(if finished.is_ok() {
        Order::Stop
    } else {
        Order::Abandon
    });
    let logged = workers.close_log(&plan);
    let mut finished = finished?;
    let (stopped, answered) = workers.answered;
    finished.answered = (stopped == workers.channels.len()).then_some(answered);
    logged?;
    emit_event(&finished)
}

/// The program that the job's connections run.
fn program(job: &LoadJob) -> Result<Program, Failed> {
    let (protocol, pipeline) = (job.protocol, job.session.pipeline);
    let program = Program::speaking(protocol, pipeline, &job.workload, job.connections, job.seed);
    program.map_err(|wrong| {
        Failed::new(
            FailCode::BadJob,
            format!("the job does not follow the contract: {wrong}"),
            "Correct the workload.",
        )
    })
}

fn begin_log(plan: &Plan, origin_ns: u64) -> Result<(), Failed> {
    if let Some(path) = &plan.job.acknowledged {
        let file = LogFile::create(path, plan.job.connections, origin_ns)?;
        // Cannot fail: it is set only here.
        let _ = plan.log.set(file);
    }
    Ok(())
}

/// The CPUs that this process may use.
pub(crate) fn own_cpus() -> Result<Vec<u32>, Failed> {
    let allowed = sched_getaffinity(None)
        .map_err(|error| internal(format!("reading the CPU mask: {error}")))?;
    let cpus = (0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .map(|cpu| cpu as u32);
    Ok(cpus.collect())
}

/// The first connections, with the receipt of what they really are. Connection 0 is queried for it. Connection 1 shows what later
/// connections meet: whether TLS sessions are resumed, and how many round trips opening takes.
pub(crate) fn first_connections(
    plan: &Plan,
    cpus: &[u32],
) -> Result<(Vec<Connection>, howfar_contract::events::Receipt), Failed> {
    let limit_ns = plan.job.connect_timeout_ns;
    let entry = plan.entry();
    let open = || open_one(&entry, &plan.address, limit_ns);
    let context = ReceiptContext {
        entry: &entry,
        address: &plan.address,
        limit_ns,
        mode: plan.job.workload.ps_mode(),
        threads: plan.workers(cpus) as u32,
        cpus,
    };
    let (mut receipt, socket, session) = receipt::open(context, open)?;
    let mut sessions = vec![(socket, session)];
    let each_time = plan.job.session.connect == Connect::PerTransaction;
    if each_time || plan.job.session.tls.is_some() && plan.all_connections() > 1 {
        let (socket, session) = open()?;
        receipt.connect_turns = receipt::connect_turns(&plan.address, &session);
        receipt.tls_resumed = session.tls.as_ref().map(|tls| tls.resumed);
        sessions.push((socket, session));
    }
    if each_time {
        // Each transaction opens its own connection.
        for (socket, session) in sessions.drain(..) {
            Wire::new(socket, session).leave();
        }
    }
    let opened = sessions
        .into_iter()
        .zip(0..)
        .map(|((socket, session), id)| {
            let mut connection = Connection::new(id, &plan.program);
            connection.wire = Some(Box::new(Wire::new(socket, session)));
            connection.state = State::Resting;
            connection
        });
    Ok((opened.collect(), receipt))
}

/// All workers, with their channels.
struct Workers {
    channels: Vec<(Sender<Order>, Arc<OwnedFd>)>,
    reports: Receiver<Report>,
    /// Workers that have not ended.
    left: usize,
    /// Number of workers that have completed their part of the log, and the sum of its counts.
    logged: (usize, OutcomeCounts),
    /// Number of workers that have stopped, and the number of statements that they had answers to.
    answered: (usize, u64),
}

impl Workers {
    /// Start the workers; connections are dealt round robin. With as many workers as CPUs, each is pinned to its own CPU. With fewer,
    /// they may move: a worker pinned to a CPU that another process keeps busy would wait while other CPUs are idle.
    fn start(
        plan: &Arc<Plan>,
        cpus: &[u32],
        first: Vec<Connection>,
        rings: Vec<Ring>,
    ) -> Result<Self, Failed> {
        let (to_coordinator, reports) = mpsc::channel();
        let workers = plan.workers(cpus);
        let mut shares: Vec<Vec<Connection>> = (0..workers).map(|_| Vec::new()).collect();
        let closed = (first.len() as u64..plan.all_connections())
            .map(|id| Connection::new(id, &plan.program));
        for connection in first.into_iter().chain(closed) {
            shares[connection.id as usize % workers].push(connection);
        }
        let mut channels = Vec::with_capacity(workers);
        let mut rings = rings.into_iter();
        for (index, connections) in shares.into_iter().enumerate() {
            let wake_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|error| internal(format!("eventfd: {error}")))?;
            let wake_fd = Arc::new(wake_fd);
            let (channel, orders) = mpsc::channel();
            let config = WorkerConfig {
                share: (index, workers),
                pinned: (workers == cpus.len()).then_some(cpus[index]),
                driver: rings
                    .next()
                    .map_or(Driver::Epoll, |ring| Driver::Ring(Box::new(ring))),
                connections,
                orders,
                wake_fd: Arc::clone(&wake_fd),
                reports: to_coordinator.clone(),
            };
            let plan = Arc::clone(plan);
            thread::Builder::new()
                .name(format!("load-{index}"))
                .spawn(move || guarded(&plan, config))
                .map_err(|error| internal(format!("starting a thread: {error}")))?;
            channels.push((channel, wake_fd));
        }
        Ok(Self {
            left: channels.len(),
            channels,
            reports,
            logged: (0, OutcomeCounts::default()),
            answered: (0, 0),
        })
    }

    fn order(&self, order: Order) {
        for (channel, _) in &self.channels {
            // A worker that is gone has reported why.
            let _ = channel.send(order);
        }
        self.wake();
    }

    fn wake(&self) {
        for (_, wake_fd) in &self.channels {
            let _ = rustix::io::write(&**wake_fd, &1_u64.to_ne_bytes());
        }
    }

    /// Wait until all workers have opened their connections; waking makes them check their time limits. Returns the number of
    /// statements prepared.
    fn opened(&mut self) -> Result<u32, Failed> {
        let (mut sum, mut left) = (0, self.channels.len());
        while left > 0 {
            match self.reports.recv_timeout(OPENING) {
                Ok(Report::Opened { prepared }) => {
                    sum += prepared;
                    left -= 1;
                }
                Ok(Report::Failed(failed)) => return Err(failed),
                Err(RecvTimeoutError::Timeout) => self.wake(),
                other => {
                    return Err(internal(format!(
                        "a worker said {other:?} before it was asked to start"
                    )));
                }
            }
        }
        Ok(sum)
    }

    /// Collect reports from the order to start until all are complete.
    fn attend(&mut self, plan: &Plan, window: Window) -> Result<Finished, Failed> {
        let mut collected = Collected::new(plan.options(), window, self.channels.len());
        let patrol_ns = PATROL_NS.min(plan.job.stall_timeout_ns / 4 + 1);
        let mut patrol = now_ns() + patrol_ns;
        let mut drained = 0;
        while !collected.is_complete() {
            let now = now_ns();
            let edge = collected.next_edge();
            if now >= edge || now >= patrol {
                collected.reach(now)?;
                self.wake();
                patrol = now + patrol_ns;
            }
            let wake = collected.next_edge().min(patrol);
            match self
                .reports
                .recv_timeout(Duration::from_nanos(wake.saturating_sub(now_ns())))
            {
                Ok(Report::Passed(passed)) => collected.take(passed)?,
                Ok(Report::Failed(failed)) => {
                    self.left -= 1;
                    return Err(failed);
                }
                Ok(Report::Logged(counts)) => self.take_log(&counts),
                Ok(Report::Interrupted(failed)) => {
                    if let Some(at_ns) = collected.interrupt(failed, now_ns())? {
                        self.order(Order::EndWindow { at_ns });
                    }
                }
                Ok(Report::Drained) => {
                    drained += 1;
                    if drained == self.channels.len() {
                        let at_ns = collected.end_now(now_ns());
                        self.order(Order::EndWindow { at_ns });
                    }
                }
                Ok(other) => return Err(internal(format!("a worker said {other:?} under load"))),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(internal("all workers are gone"));
                }
            }
        }
        let kinds = plan.program.kinds().iter();
        let kinds: Vec<&str> = kinds.map(|kind| kind.name.as_str()).collect();
        collected.finish(&kinds)
    }

    /// Let the workers end their sessions; sessions that they cannot end in time are abandoned.
    fn dismiss(&mut self, how: Order) {
        for order in [how, Order::Abandon] {
            self.order(order);
            while self.left > 0 {
                match self.reports.recv_timeout(GOODBYE) {
                    Ok(Report::Stopped(answered)) => {
                        self.left -= 1;
                        self.answered = (self.answered.0 + 1, self.answered.1 + answered);
                    }
                    Ok(Report::Failed(_)) => self.left -= 1,
                    Ok(Report::Logged(counts)) => self.take_log(&counts),
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
        }
    }

    fn take_log(&mut self, counts: &OutcomeCounts) {
        self.logged.0 += 1;
        self.logged.1.add(counts);
    }

    /// Report the path of the log, once it is complete.
    fn close_log(&self, plan: &Plan) -> Result<(), Failed> {
        let Some(file) = plan.log.get() else {
            return Ok(());
        };
        let (workers, counts) = &self.logged;
        if *workers < self.channels.len() {
            let missing = self.channels.len() - workers;
            return Err(internal(format!(
                "{missing} workers did not end their part of the log"
            )));
        }
        emit_event(&file.close(counts)?)
    }
}

/// Run a worker; a panic becomes a report.
fn guarded(plan: &Plan, config: WorkerConfig) {
    let reports = config.reports.clone();
    if let Err(failed) = crate::unpanicked("a worker", || worker::run(plan, config)) {
        // A coordinator that is gone has reported why.
        let _ = reports.send(Report::Failed(failed));
    }
}
