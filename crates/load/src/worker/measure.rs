//! Counts an answer in the tally, and handles a connection that cannot continue.

use howfar_contract::Failed;

use super::Worker;
use crate::connection::Broken;
use crate::counts::Stage;
use crate::protocol::Outcome;

impl Worker<'_> {
    /// Count an answered statement and record its times.
    #[inline]
    pub(super) fn measure(&mut self, index: usize, now: u64, last_byte_ns: u64, outcome: &Outcome) {
        let connection = &self.connections[index];
        let Some(load) = &mut self.load else { return };
        load.tally.answered += match outcome {
            Outcome::Done(done) => {
                u64::from(done.reads) + u64::from(done.writes) + u64::from(done.others)
            }
            Outcome::Commands | Outcome::Failed(_) => 1,
        };
        match outcome {
            // Statements sent together have no times of their own.
            Outcome::Done(_) if self.tools.program.sends_several() => {}
            Outcome::Done(_) => {
                load.tally
                    .statement(connection.kind(), now - connection.sent_ns);
            }
            Outcome::Commands => {
                let counts = connection
                    .wire
                    .as_ref()
                    .and_then(|wire| wire.replies.counts());
                let refused = counts.map_or(&[][..], |counts| &counts.refused);
                if refused.is_empty() {
                    load.tally
                        .statement(connection.kind(), now - connection.sent_ns);
                }
                for refusal in refused {
                    load.tally.error(refusal.word.code());
                }
            }
            Outcome::Failed(error) => load.tally.error(error.code),
        }
        if last_byte_ns > 0 {
            let first = connection.first_byte_ns;
            load.tally.stage(Stage::Wait, first - connection.sent_ns);
            load.tally.stage(Stage::Transfer, last_byte_ns - first);
            load.tally.stage(Stage::Parse, now - last_byte_ns);
        }
    }

    #[cold]
    pub(super) fn broke(&mut self, index: usize, broken: &Broken) -> Result<(), Failed> {
        let protocol = self.plan.job.workload.key_value().map(|load| load.protocol);
        let failed = broken.translate(&self.plan.job.target, protocol);
        match broken {
            Broken::Io(_) => self.lost(index, failed),
            _ => Err(failed),
        }
    }
}
