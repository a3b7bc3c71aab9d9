//! The login from the server's OK to the last prepared statement, in few round trips.

use howfar_wire::mysql::reply::{self, Prepared};
use howfar_wire::mysql::{Malformed, ServerError, command};

use super::{LoginError, PacketStream};
use crate::session::LoginParameters;
use crate::statements::{Slot, Statements};
use crate::workload::Program;

/// Maximum prepares sent without waiting for answers: saves round trips, and both directions stay far below a socket's buffer.
const MAX_AHEAD: usize = 64;
/// "This command is not supported in the prepared statement protocol yet."
const CANNOT_PREPARE: u16 = 1295;

/// Statements are prepared in order: `sent` are requested, `done` are answered.
pub(super) struct Preparation {
    slots: Vec<usize>,
    sent: usize,
    done: usize,
    /// Number of packets of the present answer still to come, and how many of its packets belong to columns.
    packets: usize,
    column_packets: usize,
}

impl Preparation {
    pub(super) fn new(program: &Program) -> Self {
        Self {
            slots: program.slots_to_prepare(),
            sent: 0,
            done: 0,
            packets: 0,
            column_packets: 0,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.done == self.slots.len()
    }

    /// Request the next statements, once all requested ones are answered.
    pub(super) fn request_ahead(
        &mut self,
        stream: &mut PacketStream,
        parameters: &LoginParameters<'_>,
    ) {
        stream.framer.expect(1);
        if self.sent > self.done {
            return;
        }
        let end = self.slots.len().min(self.sent + MAX_AHEAD);
        let mut sql = Vec::new();
        for &slot in &self.slots[self.sent..end] {
            sql.clear();
            parameters.program.write_prepare(slot, &mut sql);
            command::prepare(&mut stream.packets, &sql);
        }
        stream.round_trips += u32::from(end > self.sent);
        self.sent = end;
    }

    /// Process a packet; true when the last statement is prepared.
    pub(super) fn handle_packet(
        &mut self,
        payload: &[u8],
        stream: &mut PacketStream,
        statements: &mut Statements,
        parameters: &LoginParameters<'_>,
    ) -> Result<bool, LoginError> {
        let first = payload.first().copied().ok_or(Malformed::Short("packet"))?;
        let Some(&slot) = self.slots.get(self.done) else {
            return Err(Malformed::Unexpected("bytes came although nothing was asked").into());
        };
        if self.packets > 0 {
            self.packets -= 1;
            // The last packet ends the list.
            if parameters.decode && (1..self.column_packets).contains(&self.packets) {
                statements.add_type(slot, reply::parse_column_type(payload)?);
            }
        } else if first == reply::ERR {
            let error = ServerError::parse(payload)?;
            if error.code.number() != Some(CANNOT_PREPARE) {
                return Err(LoginError::Prepare(error));
            }
            statements.set(slot, Slot::Text);
        } else {
            let prepared = Prepared::parse(payload)?;
            self.column_packets = definition_packets(prepared.columns);
            self.packets = definition_packets(prepared.parameters) + self.column_packets;
            statements.set(
                slot,
                Slot::Prepared {
                    id: prepared.statement,
                    used: false,
                },
            );
        }
        if self.packets > 0 {
            return Ok(false);
        }
        self.done += 1;
        self.request_ahead(stream, parameters);
        Ok(self.is_done())
    }
}

/// Number of packets of a list of `count` definitions: none if it is empty, else one for each and one for the list's end.
fn definition_packets(count: u16) -> usize {
    if count == 0 {
        0
    } else {
        usize::from(count) + 1
    }
}
