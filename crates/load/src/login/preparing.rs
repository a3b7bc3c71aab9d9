//! The login from the server's OK to the last prepared statement, in few round trips.

use howfar_wire::mysql::reply::{self, Prepared};
use howfar_wire::mysql::{Malformed, ServerError, command};

use super::{Entry, PacketStream, Wrong};
use crate::statements::{Slot, Statements};
use crate::workload::Program;

/// Maximum prepares sent without waiting for answers: saves round trips, and both directions stay far below a socket's buffer.
const AHEAD: usize = 64;
/// "This command is not supported in the prepared statement protocol yet."
const CANNOT_PREPARE: u16 = 1295;

/// Statements are prepared in order: `sent` are requested, `done` are answered.
pub(super) struct Preparing {
    wanted: Vec<usize>,
    sent: usize,
    done: usize,
    /// Packets of the present answer still to come, and the number of its packets that belong to columns.
    packets: usize,
    column_packets: usize,
}

impl Preparing {
    pub(super) fn new(program: &Program) -> Self {
        let wanted = program.to_prepare();
        Self {
            wanted,
            sent: 0,
            done: 0,
            packets: 0,
            column_packets: 0,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.done == self.wanted.len()
    }

    /// Request the next statements, once all requested ones are answered.
    pub(super) fn ask_ahead(&mut self, stream: &mut PacketStream, entry: &Entry<'_>) {
        stream.framer.expect(1);
        if self.sent > self.done {
            return;
        }
        let upto = self.wanted.len().min(self.sent + AHEAD);
        let mut sql = Vec::new();
        for &slot in &self.wanted[self.sent..upto] {
            sql.clear();
            entry.program.write_prepare(slot, &mut sql);
            command::prepare(&mut stream.packets, &sql);
        }
        stream.turns += u32::from(upto > self.sent);
        self.sent = upto;
    }

    /// True when the last statement is prepared.
    pub(super) fn packet(
        &mut self,
        payload: &[u8],
        stream: &mut PacketStream,
        statements: &mut Statements,
        entry: &Entry<'_>,
    ) -> Result<bool, Wrong> {
        let first = payload.first().copied().ok_or(Malformed::Short("packet"))?;
        let Some(&slot) = self.wanted.get(self.done) else {
            return Err(Malformed::Unexpected("bytes came although nothing was asked").into());
        };
        if self.packets > 0 {
            self.packets -= 1;
            // The last packet ends the list.
            if entry.decode && (1..self.column_packets).contains(&self.packets) {
                statements.add_type(slot, reply::column_type(payload)?);
            }
        } else if first == reply::ERR {
            let error = ServerError::parse(payload)?;
            if error.code.number() != Some(CANNOT_PREPARE) {
                return Err(Wrong::Prepare(error));
            }
            statements.set(slot, Slot::Text);
        } else {
            let head = Prepared::parse(payload)?;
            self.column_packets = list(head.columns);
            self.packets = list(head.parameters) + self.column_packets;
            statements.set(
                slot,
                Slot::Prepared {
                    id: head.statement,
                    used: false,
                },
            );
        }
        if self.packets > 0 {
            return Ok(false);
        }
        self.done += 1;
        self.ask_ahead(stream, entry);
        Ok(self.is_done())
    }
}

/// Number of packets of a list of definitions: none, or one each and its end.
fn list(count: u16) -> usize {
    if count == 0 {
        0
    } else {
        usize::from(count) + 1
    }
}
