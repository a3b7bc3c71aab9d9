//! Writes the log of acknowledged keys, and ends the window of a job that has lost its server.

use howfar_contract::Failed;
use howfar_contract::jobs::OnDisconnect;
use howfar_wire::ErrorCode;

use super::{Worker, WorkerEvent};
use crate::acknowledged::{KeyOutcome, Log};
use crate::clock::now_ns;
use crate::connection::NextStep;
use crate::failure;

impl Worker<'_> {
    /// Log the outcome of a complete answer. `code` is the server's error, if it is one.
    #[inline]
    pub(super) fn log_answer(
        &mut self,
        index: usize,
        now: u64,
        code: Option<ErrorCode>,
        next_step: &NextStep,
    ) -> Result<(), Failed> {
        if self.log.is_none() {
            return Ok(());
        }
        match (code, next_step) {
            (Some(code), _) => self.log_key(index, now, KeyOutcome::Refused(code)),
            (None, NextStep::Transaction) => self.log_key(index, now, KeyOutcome::Acknowledged),
            (None, _) => Ok(()),
        }
    }

    /// Log `outcome` for the key of the transaction under way, if it has drawn one.
    pub(super) fn log_key(
        &mut self,
        index: usize,
        now: u64,
        outcome: KeyOutcome,
    ) -> Result<(), Failed> {
        let Some(log) = &mut self.log else {
            return Ok(());
        };
        let connection = &mut self.connections[index];
        let (Some(key), Some(sent_ns)) = (connection.memory.take_key(), connection.last_sent_ns())
        else {
            return Ok(());
        };
        log.write(key, connection.id, sent_ns, now, outcome)
    }

    /// End the log; keys without an answer are logged as unknown.
    pub(super) fn end_log(&mut self) -> Result<(), Failed> {
        let now = now_ns();
        for index in 0..self.connections.len() {
            self.log_key(index, now, KeyOutcome::Unknown)?;
        }
        if let Some(log) = self.log.take() {
            let counts = log.end()?;
            self.send_event(WorkerEvent::Logged(counts));
        }
        Ok(())
    }

    pub(super) fn begin_log(&mut self) {
        self.log = self.plan.log.get().map(Log::new);
    }

    /// End the worker without closing its sessions.
    pub(super) fn abandon(&mut self) {
        self.is_stopping = true;
        self.remaining_connections = 0;
    }

    /// Whether a lost connection ends the window instead of failing the job.
    pub(super) fn loss_ends_window(&self) -> bool {
        self.load.is_some() && self.plan.job.session.on_disconnect == OnDisconnect::End
    }

    /// Close a lost connection for good and report it; its transaction stays unfinished.
    #[cold]
    pub(super) fn end_window_early(&mut self, index: usize, failed: Failed) -> Result<(), Failed> {
        self.log_key(index, now_ns(), KeyOutcome::Unknown)?;
        if let Some(load) = &mut self.load {
            load.free_connections
                .retain(|&(free_index, _)| free_index as usize != index);
        }
        if let Some(transport) = self.connections[index].lose() {
            self.close_transport(transport, false);
        }
        self.send_event(WorkerEvent::Interrupted(failed));
        Ok(())
    }

    /// Handle a connection that has waited for an answer beyond its limit.
    #[cold]
    pub(super) fn handle_stall(&mut self, index: usize) -> Result<(), Failed> {
        let connection = &self.connections[index];
        let failed = failure::stalled(
            &self.plan.job.login.target,
            connection.id,
            connection.statement_name(&self.context.program),
            self.plan.job.stall_timeout_ns,
        );
        if self.loss_ends_window() {
            return self.end_window_early(index, failed);
        }
        Err(failed)
    }
}
