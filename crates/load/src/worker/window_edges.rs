//! Edges of the measured window, and orders from the coordinator.

use howfar_contract::Failed;

use super::{Load, Order, Report, Worker};
use crate::clock::now_ns;
use crate::connection::State;
use crate::failure::TimeLimit;
use crate::schedule::Schedule;
use crate::tally::{Edge, Tally, Window};
use crate::tcp_info;

impl Worker<'_> {
    /// Pass every edge up to `now`, the clock's last reading. Cheap when there is none.
    #[inline]
    pub(super) fn tick(&mut self, now: u64) {
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
        let at = load.tally.next_edge_ns();
        if let Some(schedule) = &mut load.schedule {
            load.tally.take_stock(schedule);
        }
        match load.tally.next_edge() {
            Edge::Start => {
                for connection in &mut self.connections {
                    connection.done = 0;
                    connection.busy_ns = 0;
                }
            }
            Edge::SliceEnd { last: true } => self.settle(at),
            Edge::SliceEnd { last: false } | Edge::None => {}
        }
        let Some(load) = &mut self.load else { return };
        let reports = &self.reports;
        load.tally.pass(&mut |passed| {
            // A coordinator that is gone has reported why.
            let _ = reports.send(Report::Passed(passed));
        });
    }

    /// The window is over: record each connection's share, TCP facts and unfinished transaction.
    fn settle(&mut self, end_ns: u64) {
        let starved = self.ring().map_or(0, |ring| ring.starved());
        let Some(load) = &mut self.load else { return };
        load.tally.totals.starved = starved;
        let used = u64::from(self.plan.job.connections);
        let of_job = self.connections.iter().filter(|one| one.id < used);
        for connection in of_job {
            load.tally
                .totals
                .shares
                .take(connection.done, connection.busy_ns);
            let sockets = connection.wire.as_ref();
            let info = sockets.and_then(|wire| tcp_info::read(&wire.socket));
            load.tally.totals.tcp.extend(info);
            load.tally.totals.lost_at_end += u64::from(connection.lost);
            if !connection.busy {
                continue;
            }
            let age_ns = end_ns.saturating_sub(connection.began_ns);
            load.tally.totals.in_flight.record(age_ns);
            if load.schedule.is_some() {
                load.tally.unanswered(connection.intended_ns);
            }
        }
    }

    #[cold]
    pub(super) fn woken(&mut self) -> Result<(), Failed> {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.wake_fd, &mut count);
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Start { origin_ns, window } => self.start(origin_ns, window),
                Order::EndWindow { at_ns } => {
                    if let Some(load) = &mut self.load {
                        load.tally.end_at(at_ns);
                    }
                }
                Order::Stop => self.stop(),
                Order::Abandon => self.abandon(),
            }
        }
        if let Some(log) = &mut self.log {
            log.flush()?;
        }
        let now = now_ns();
        self.tick(now);
        self.patrol(now)
    }

    fn start(&mut self, origin_ns: u64, window: Window) {
        let job = &self.plan.job;
        let arrivals = self.plan.arrivals(self.used, self.share.1);
        let schedule =
            arrivals.map(|own| Schedule::new(&own, self.share, job.seed, origin_ns, job.ramp_ns));
        let kinds = self.tools.program.kinds().len();
        let open_loop = schedule.is_some();
        self.load = Some(Load {
            tally: Tally::new(window, kinds, open_loop),
            schedule,
            free: std::collections::VecDeque::new(),
        });
        self.begin_log();
        let used = u64::from(job.connections);
        let step_ns = if open_loop { 0 } else { job.ramp_ns / used };
        for index in 0..self.connections.len() {
            let id = self.connections[index].id;
            if id >= used {
                continue;
            }
            // A timer starts each connection, so that a limited number of transactions begins inside the window.
            self.connections[index].state = State::Resting;
            self.at(origin_ns + step_ns * id, index);
        }
        self.rest_if_none();
    }

    /// A worker that only holds idle connections has drained from the start.
    fn rest_if_none(&mut self) {
        if self.plan.job.transactions > 0 && self.used == 0 {
            self.drained = true;
            self.report(Report::Drained);
        }
    }

    /// Handle connections that have waited too long for an answer or to be opened.
    fn patrol(&mut self, now: u64) -> Result<(), Failed> {
        if self.stopping {
            return Ok(());
        }
        let (stall_ns, open_ns) = (
            self.plan.job.stall_timeout_ns,
            self.plan.job.connect_timeout_ns,
        );
        for index in 0..self.connections.len() {
            let connection = &self.connections[index];
            match &connection.state {
                State::Asking if now.saturating_sub(connection.sent_ns) > stall_ns => {
                    self.stalled(index)?;
                }
                State::Connecting(opening)
                    if now.saturating_sub(connection.seeking_ns) > open_ns =>
                {
                    let failed = opening.too_slow(&self.plan.entry(), TimeLimit::of_load(open_ns));
                    if !self.ends_early() {
                        return Err(failed);
                    }
                    self.opening -= 1;
                    self.end_early(index, failed)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}
