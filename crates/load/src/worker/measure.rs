//! Counts answers in the tally, and handles connections that cannot continue.

use howfar_contract::Failed;

use super::Worker;
use crate::connection::Step;
use crate::connection_error::ConnectionError;
use crate::counts::Stage;
use crate::session::Outcome;

impl Worker<'_> {
    /// Count an answered statement and record its times.
    #[inline]
    pub(super) fn measure(&mut self, index: usize, now: u64, last_byte_ns: u64, outcome: &Outcome) {
        let connection = &self.connections[index];
        let (Some(load), Some(transaction)) = (&mut self.load, connection.transaction()) else {
            return;
        };
        let Step::AwaitingAnswer {
            sent_ns,
            first_byte_ns,
        } = transaction.step
        else {
            return;
        };
        load.tally.answered += match outcome {
            Outcome::Done(done) => {
                u64::from(done.reads) + u64::from(done.writes) + u64::from(done.others)
            }
            Outcome::Commands | Outcome::Failed(_) => 1,
        };
        match outcome {
            // Statements sent together have no times of their own.
            Outcome::Done(_) if self.context.program.sends_several() => {}
            Outcome::Done(_) => {
                load.tally
                    .record_statement(transaction.kind(), now - sent_ns);
            }
            Outcome::Commands => {
                let counts = connection
                    .transport()
                    .and_then(|transport| transport.replies.counts());
                let error_replies = counts.map_or(&[][..], |counts| &counts.errors);
                if error_replies.is_empty() {
                    load.tally
                        .record_statement(transaction.kind(), now - sent_ns);
                }
                for error_reply in error_replies {
                    load.tally.count_error(error_reply.word.code());
                }
            }
            Outcome::Failed(error) => load.tally.count_error(error.code),
        }
        if let Some(first) = first_byte_ns.filter(|_| last_byte_ns > 0) {
            load.tally.record_stage(Stage::Wait, first - sent_ns);
            load.tally
                .record_stage(Stage::Transfer, last_byte_ns - first);
            load.tally.record_stage(Stage::Parse, now - last_byte_ns);
        }
    }

    #[cold]
    pub(super) fn handle_error(
        &mut self,
        index: usize,
        error: &ConnectionError,
    ) -> Result<(), Failed> {
        let protocol = self.plan.job.workload.key_value().map(|load| load.protocol);
        let failed = error.translate(&self.plan.job.login.target, protocol);
        match error {
            ConnectionError::Io(_) => self.handle_loss(index, failed),
            _ => Err(failed),
        }
    }
}
