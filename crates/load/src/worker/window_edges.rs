//! Edges of the measured window, and commands from the coordinator.

use howfar_contract::Failed;

use super::{Command, Load, Worker, WorkerEvent};
use crate::clock::now_ns;
use crate::connection::{State, Work};
use crate::failure::TimeLimit;
use crate::schedule::Schedule;
use crate::tally::{Edge, Tally, Window};
use crate::tcp_info;

impl Worker<'_> {
    /// Pass every edge up to `now`, the clock's last reading. Cheap when there is none.
    #[inline]
    pub(super) fn pass_due_edges(&mut self, now: u64) {
        while let Some(load) = &self.load {
            if now < load.tally.next_edge_ns() {
                return;
            }
            self.pass_edge();
        }
    }

    #[cold]
    fn pass_edge(&mut self) {
        let Some(load) = &mut self.load else { return };
        let edge_ns = load.tally.next_edge_ns();
        if let Some(schedule) = &mut load.schedule {
            load.tally.count_due_requests(schedule);
        }
        match load.tally.next_edge() {
            Edge::Start => {
                for connection in &mut self.connections {
                    connection.window_transactions = 0;
                    connection.busy_ns = 0;
                }
            }
            Edge::SliceEnd { is_last: true } => self.close_window(edge_ns),
            Edge::SliceEnd { is_last: false } | Edge::None => {}
        }
        let Some(load) = &mut self.load else { return };
        let to_coordinator = &self.to_coordinator;
        load.tally.pass_edge(&mut |passed| {
            // The error is ignored: a coordinator that has ended has already reported why.
            let _ = to_coordinator.send(WorkerEvent::Passed(passed));
        });
    }

    /// Record each connection's share, TCP facts and unfinished transaction at the end of the window.
    fn close_window(&mut self, end_ns: u64) {
        let starved = self.ring().map_or(0, |ring| ring.starved());
        let Some(load) = &mut self.load else { return };
        load.tally.totals.starved = starved;
        let used = u64::from(self.plan.job.connections);
        let used_connections = self
            .connections
            .iter()
            .filter(|connection| connection.id < used);
        for connection in used_connections {
            load.tally
                .totals
                .shares
                .add_connection(connection.window_transactions, connection.busy_ns);
            let info = connection
                .transport()
                .and_then(|transport| tcp_info::read(&transport.socket));
            load.tally.totals.tcp.extend(info);
            load.tally.totals.lost_at_end += u64::from(connection.state.is_lost());
            let Some(transaction) = connection.transaction() else {
                continue;
            };
            let age_ns = end_ns.saturating_sub(transaction.began_ns);
            load.tally.totals.in_flight.record(age_ns);
            if load.schedule.is_some() {
                load.tally.count_unanswered(transaction.intended_ns);
            }
        }
    }

    #[cold]
    pub(super) fn handle_wakeup(&mut self) -> Result<(), Failed> {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&*self.wake_fd, &mut counter);
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Start { origin_ns, window } => self.start(origin_ns, window),
                Command::EndWindow { at_ns } => {
                    if let Some(load) = &mut self.load {
                        load.tally.end_at(at_ns);
                    }
                }
                Command::Stop => self.stop(),
                Command::Abandon => self.abandon(),
            }
        }
        if let Some(log) = &mut self.log {
            log.flush()?;
        }
        let now = now_ns();
        self.pass_due_edges(now);
        self.check_deadlines(now)
    }

    /// Start the load; each connection begins at its time in the ramp.
    fn start(&mut self, origin_ns: u64, window: Window) {
        let job = &self.plan.job;
        let arrivals = self.plan.arrivals(self.used_connections, self.share.1);
        let schedule = arrivals
            .map(|arrivals| Schedule::new(&arrivals, self.share, job.seed, origin_ns, job.ramp_ns));
        let kinds = self.context.program.kinds().len();
        let is_open_loop = schedule.is_some();
        self.load = Some(Load {
            tally: Tally::new(window, kinds, is_open_loop),
            schedule,
            free_connections: std::collections::VecDeque::new(),
        });
        self.begin_log();
        let used = u64::from(job.connections);
        let step_ns = if is_open_loop { 0 } else { job.ramp_ns / used };
        for index in 0..self.connections.len() {
            let id = self.connections[index].id;
            if id >= used {
                continue;
            }
            // Begin no transaction before the load does: those before the window do not count towards a limited number.
            let first_ns = origin_ns + step_ns * id;
            self.connections[index].work = Work::Idle {
                first_ns: Some(first_ns),
            };
            self.set_timer(first_ns, index);
        }
        self.drain_if_unused();
    }

    /// Report a worker that has only idle connections as drained from the start.
    fn drain_if_unused(&mut self) {
        if self.plan.job.transactions > 0 && self.used_connections == 0 {
            self.is_drained = true;
            self.send_event(WorkerEvent::Drained);
        }
    }

    /// Handle connections that have waited too long for an answer or to be opened.
    fn check_deadlines(&mut self, now: u64) -> Result<(), Failed> {
        if self.is_stopping {
            return Ok(());
        }
        let (stall_ns, open_ns) = (
            self.plan.job.stall_timeout_ns,
            self.plan.job.connect_timeout_ns,
        );
        for index in 0..self.connections.len() {
            let connection = &self.connections[index];
            match &connection.state {
                State::Open(_)
                    if connection.awaits_answer()
                        && connection
                            .last_sent_ns()
                            .is_some_and(|sent_ns| now.saturating_sub(sent_ns) > stall_ns) =>
                {
                    self.handle_stall(index)?;
                }
                State::Connecting(opening, connecting)
                    if now.saturating_sub(opening.since_ns) > open_ns =>
                {
                    let failed = connecting.timeout_failure(
                        &self.plan.login_parameters(),
                        TimeLimit::for_opening(open_ns),
                    );
                    if !self.loss_ends_window() {
                        return Err(failed);
                    }
                    self.opening_count -= 1;
                    self.end_window_early(index, failed)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}
