//! The coordinator opens the first connections, starts the workers, sets the start of the load and collects results. It runs in the
//! main thread and does none of the workers' work.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use howfar_contract::events::{Finished, Ready};
use howfar_contract::jobs::{Connect, LoadJob};
use howfar_contract::{FailCode, Failed, internal};
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::acknowledged::{LogFile, OutcomeCounts};
use crate::channel::ChannelOptions;
use crate::clock::now_ns;
use crate::connecting::open_blocking;
use crate::connection::Connection;
use crate::receipt::{self, ReceiptContext};
use crate::remote_start;
use crate::ring::Ring;
use crate::socket::{Address, allow_descriptors};
use crate::tally::Window;
use crate::transport::Transport;
use crate::window::{WindowCollector, emit_event};
use crate::worker::driver::Driver;
use crate::worker::{self, Command, Plan, WorkerConfig, WorkerEvent};
use crate::workload::Program;

/// Time limit for workers to end their sessions.
const GOODBYE_LIMIT: Duration = Duration::from_secs(2);
/// Check for stalled connections at least this often.
const DEADLINE_CHECK_NS: u64 = 1_000_000_000;
/// Check connections that are being opened at least this often.
const OPENING_CHECK: Duration = Duration::from_millis(50);

/// Check and parse a job; return its plan and the CPUs that it may use.
pub(crate) fn make_plan(job: LoadJob) -> Result<(Arc<Plan>, Vec<u32>), Failed> {
    let program = check(&job)?;
    let address = Address::parse(&job.login.target)?;
    let channel_options = ChannelOptions::new(&job.session, &job.login.target)?;
    let plan = Arc::new(Plan {
        job,
        address,
        channel_options,
        program: Arc::new(program),
        begun_transactions: AtomicU64::new(0),
        log: OnceLock::new(),
    });
    allow_descriptors(plan.all_connections())?;
    Ok((plan, allowed_cpus()?))
}

/// Run a job to its end, emitting its events.
pub(crate) fn run(job: LoadJob) -> Result<(), Failed> {
    if let Some(path) = &job.acknowledged {
        LogFile::check_is_new(path)?;
    }
    let (plan, cpus) = make_plan(job)?;
    let rings = plan.make_rings(plan.worker_count(&cpus))?;
    let began = now_ns();
    let (first_connections, mut receipt) = open_first_connections(&plan, &cpus)?;
    receipt.driver = Driver::name(&rings);
    let mut workers = Workers::start(&plan, &cpus, first_connections, rings)?;
    let prepared_statements = workers.wait_until_opened()?;
    emit_event(&Ready {
        services: BTreeMap::new(),
        receipt,
        connections: plan.job.connections,
        prepared_statements,
        connect_ns: now_ns() - began,
    })?;

    let origin_ns = remote_start::wait_for_origin(plan.job.waits_for_begin)?;
    let start_ns = origin_ns + plan.job.warmup_ns;
    let window = Window {
        start_ns,
        end_ns: start_ns + plan.job.measure_ns,
        interval_ns: plan.job.interval_ns,
    };
    begin_log(&plan, origin_ns)?;
    workers.send_to_all(Command::Start { origin_ns, window });
    let finished = workers.collect_results(&plan, window);
    workers.stop(if finished.is_ok() {
        Command::Stop
    } else {
        Command::Abandon
    });
    let logged = workers.close_log(&plan);
    let mut finished = finished?;
    let (stopped, answered) = workers.answered;
    finished.answered = (stopped == workers.channels.len()).then_some(answered);
    logged?;
    emit_event(&finished)
}

/// Check a job, and build the program that its connections run.
pub(crate) fn check(job: &LoadJob) -> Result<Program, Failed> {
    job.check()?;
    let (protocol, pipeline) = (job.protocol, job.session.pipeline);
    let program =
        Program::with_protocol(protocol, pipeline, &job.workload, job.connections, job.seed);
    program.map_err(|reason| Failed::new(FailCode::BadJob, reason, "Correct the workload."))
}

fn begin_log(plan: &Plan, origin_ns: u64) -> Result<(), Failed> {
    if let Some(path) = &plan.job.acknowledged {
        let file = LogFile::create(path, plan.job.connections, origin_ns)?;
        // Setting the log cannot fail: it is set only here.
        let _ = plan.log.set(file);
    }
    Ok(())
}

/// The CPUs that this process may use.
pub(crate) fn allowed_cpus() -> Result<Vec<u32>, Failed> {
    let allowed = sched_getaffinity(None)
        .map_err(|error| internal(format!("reading the CPU mask: {error}")))?;
    let cpus = (0..CpuSet::MAX_CPU)
        .filter(|&cpu| allowed.is_set(cpu))
        .map(|cpu| cpu as u32);
    Ok(cpus.collect())
}

/// Open the first connections, and make the receipt of what was negotiated. Connection 0 is queried for the receipt. Connection 1
/// shows what only later connections can: whether TLS sessions are resumed, and how many round trips opening then takes.
pub(crate) fn open_first_connections(
    plan: &Plan,
    cpus: &[u32],
) -> Result<(Vec<Connection>, howfar_contract::events::Receipt), Failed> {
    let limit_ns = plan.job.connect_timeout_ns;
    let parameters = plan.login_parameters();
    let open = || open_blocking(&parameters, &plan.address, limit_ns);
    let context = ReceiptContext {
        parameters: &parameters,
        address: &plan.address,
        limit_ns,
        mode: plan.job.workload.ps_mode(),
        threads: plan.worker_count(cpus) as u32,
        cpus,
    };
    let (mut receipt, socket, session) = receipt::open_with_receipt(context, open)?;
    let mut sessions = vec![(socket, session)];
    let connects_each_time = plan.job.session.connect == Connect::PerTransaction;
    if connects_each_time || plan.job.session.tls.is_some() && plan.all_connections() > 1 {
        let (socket, session) = open()?;
        receipt.connect_round_trips = receipt::connect_round_trips(&plan.address, &session);
        receipt.tls_resumed = session.tls.as_ref().map(|tls| tls.resumed);
        sessions.push((socket, session));
    }
    if connects_each_time {
        // Each transaction opens its own connection.
        for (socket, session) in sessions.drain(..) {
            Transport::new(socket, session).close_with_goodbye();
        }
    }
    let opened = sessions
        .into_iter()
        .zip(0..)
        .map(|((socket, session), id)| {
            Connection::open(id, &plan.program, Transport::new(socket, session))
        });
    Ok((opened.collect(), receipt))
}

/// All workers, with a command channel and a `wake_fd` for each.
struct Workers {
    channels: Vec<(Sender<Command>, Arc<OwnedFd>)>,
    worker_events: Receiver<WorkerEvent>,
    /// Number of workers that have not ended.
    running: usize,
    /// Number of workers that have completed their part of the log, and the sum of its counts.
    logged: (usize, OutcomeCounts),
    /// Number of workers that have stopped, and the number of statements that the servers answered to them.
    answered: (usize, u64),
}

impl Workers {
    /// Start the workers; connections are dealt round robin. With as many workers as CPUs, each is pinned to its own CPU. With fewer,
    /// they may move: a worker pinned to a CPU that another process keeps busy would wait while other CPUs are idle.
    fn start(
        plan: &Arc<Plan>,
        cpus: &[u32],
        first_connections: Vec<Connection>,
        rings: Vec<Ring>,
    ) -> Result<Self, Failed> {
        let (to_coordinator, worker_events) = mpsc::channel();
        let workers = plan.worker_count(cpus);
        let mut shares: Vec<Vec<Connection>> = (0..workers).map(|_| Vec::new()).collect();
        let unopened = (first_connections.len() as u64..plan.all_connections())
            .map(|id| Connection::new(id, &plan.program));
        for connection in first_connections.into_iter().chain(unopened) {
            shares[connection.id as usize % workers].push(connection);
        }
        let mut channels = Vec::with_capacity(workers);
        let mut rings = rings.into_iter();
        for (index, connections) in shares.into_iter().enumerate() {
            let wake_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|error| internal(format!("eventfd: {error}")))?;
            let wake_fd = Arc::new(wake_fd);
            let (command_sender, commands) = mpsc::channel();
            let config = WorkerConfig {
                share: (index, workers),
                pinned: (workers == cpus.len()).then_some(cpus[index]),
                driver: rings
                    .next()
                    .map_or(Driver::Epoll, |ring| Driver::Ring(Box::new(ring))),
                connections,
                commands,
                wake_fd: Arc::clone(&wake_fd),
                to_coordinator: to_coordinator.clone(),
            };
            let plan = Arc::clone(plan);
            crate::spawn_thread(format!("load-{index}"), move || run_worker(&plan, config))?;
            channels.push((command_sender, wake_fd));
        }
        Ok(Self {
            running: channels.len(),
            channels,
            worker_events,
            logged: (0, OutcomeCounts::default()),
            answered: (0, 0),
        })
    }

    fn send_to_all(&self, command: Command) {
        for (command_sender, _) in &self.channels {
            // The error is ignored: a worker that has ended has already reported why.
            let _ = command_sender.send(command);
        }
        self.wake();
    }

    fn wake(&self) {
        for (_, wake_fd) in &self.channels {
            let _ = rustix::io::write(&**wake_fd, &1_u64.to_ne_bytes());
        }
    }

    /// Wait until all workers have opened their connections, and wake them now and then to check their time limits. Returns the number
    /// of statements prepared.
    fn wait_until_opened(&mut self) -> Result<u32, Failed> {
        let (mut prepared_statements, mut unopened_workers) = (0, self.channels.len());
        while unopened_workers > 0 {
            match self.worker_events.recv_timeout(OPENING_CHECK) {
                Ok(WorkerEvent::Opened { prepared }) => {
                    prepared_statements += prepared;
                    unopened_workers -= 1;
                }
                Ok(WorkerEvent::Failed(failed)) => return Err(failed),
                Err(RecvTimeoutError::Timeout) => self.wake(),
                other => {
                    return Err(internal(format!(
                        "a worker sent {other:?} before the start of the load"
                    )));
                }
            }
        }
        Ok(prepared_statements)
    }

    /// Collect the events of the workers from the start of the load until the window is complete.
    fn collect_results(&mut self, plan: &Plan, window: Window) -> Result<Finished, Failed> {
        let mut window_collector =
            WindowCollector::new(plan.window_options(), window, self.channels.len());
        let check_interval_ns = DEADLINE_CHECK_NS.min(plan.job.stall_timeout_ns / 4 + 1);
        let mut next_check_ns = now_ns() + check_interval_ns;
        let mut drained_workers = 0;
        while !window_collector.is_complete() {
            let now = now_ns();
            let edge_ns = window_collector.next_edge();
            if now >= edge_ns || now >= next_check_ns {
                window_collector.advance_to(now)?;
                self.wake();
                next_check_ns = now + check_interval_ns;
            }
            let wake_ns = window_collector.next_edge().min(next_check_ns);
            match self
                .worker_events
                .recv_timeout(Duration::from_nanos(wake_ns.saturating_sub(now_ns())))
            {
                Ok(WorkerEvent::Passed(passed)) => window_collector.add_edge(passed)?,
                Ok(WorkerEvent::Failed(failed)) => {
                    self.running -= 1;
                    return Err(failed);
                }
                Ok(WorkerEvent::Logged(counts)) => self.add_log_counts(&counts),
                Ok(WorkerEvent::Interrupted(failed)) => {
                    if let Some(at_ns) = window_collector.interrupt(failed, now_ns())? {
                        self.send_to_all(Command::EndWindow { at_ns });
                    }
                }
                Ok(WorkerEvent::Drained) => {
                    drained_workers += 1;
                    if drained_workers == self.channels.len() {
                        let at_ns = window_collector.end_now(now_ns());
                        self.send_to_all(Command::EndWindow { at_ns });
                    }
                }
                Ok(other) => return Err(internal(format!("a worker sent {other:?} under load"))),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(internal("all workers are gone"));
                }
            }
        }
        let kinds = plan.program.kinds().iter();
        let kinds: Vec<&str> = kinds.map(|kind| kind.name.as_str()).collect();
        window_collector.finish(&kinds)
    }

    /// Let the workers end their sessions; sessions that they cannot end in time are abandoned.
    fn stop(&mut self, command: Command) {
        for command in [command, Command::Abandon] {
            self.send_to_all(command);
            while self.running > 0 {
                match self.worker_events.recv_timeout(GOODBYE_LIMIT) {
                    Ok(WorkerEvent::Stopped(answered)) => {
                        self.running -= 1;
                        self.answered = (self.answered.0 + 1, self.answered.1 + answered);
                    }
                    Ok(WorkerEvent::Failed(_)) => self.running -= 1,
                    Ok(WorkerEvent::Logged(counts)) => self.add_log_counts(&counts),
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
        }
    }

    fn add_log_counts(&mut self, counts: &OutcomeCounts) {
        self.logged.0 += 1;
        self.logged.1.add(counts);
    }

    /// Close the log and report its path; an error if a worker did not end its part.
    fn close_log(&self, plan: &Plan) -> Result<(), Failed> {
        let Some(file) = plan.log.get() else {
            return Ok(());
        };
        let (logged_workers, counts) = &self.logged;
        if *logged_workers < self.channels.len() {
            let missing = self.channels.len() - logged_workers;
            return Err(internal(format!(
                "{missing} workers did not end their part of the log"
            )));
        }
        emit_event(&file.close(counts)?)
    }
}

/// Run a worker; a panic becomes an event.
fn run_worker(plan: &Plan, config: WorkerConfig) {
    let to_coordinator = config.to_coordinator.clone();
    if let Err(failed) = crate::catch_panics("a worker", || worker::run(plan, config)) {
        // The error is ignored: a coordinator that has ended has already reported why.
        let _ = to_coordinator.send(WorkerEvent::Failed(failed));
    }
}
