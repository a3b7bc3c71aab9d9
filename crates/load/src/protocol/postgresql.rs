//! PostgreSQL: statements as text, unnamed or prepared, one at a time or as a pipeline.

use howfar_contract::Failed;
use howfar_wire::mysql::row::RowHandling;
use howfar_wire::postgres::{self, Answer, request};

use super::write_statements;
use crate::connection_error::ConnectionError;
use crate::login::PostgresLogin;
use crate::session::{Handshake, LoginParameters, Outcome, Protocol, Request};
use crate::statements::Slot;

impl Protocol for Answer {
    fn login(
        parameters: &LoginParameters<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Box<dyn Handshake>, Failed> {
        Ok(Box::new(PostgresLogin::begin(parameters, out)?))
    }

    /// A transaction that is restarted after an error first rolls back the failed block.
    #[inline]
    fn encode(&mut self, request: Request<'_>, out: &mut Vec<u8>) -> u64 {
        let rollbacks = u32::from(self.has_failed_block());
        if rollbacks > 0 {
            request::query_with(out, |sql| sql.extend_from_slice(b"ROLLBACK"));
        }
        let mut count = 0;
        if request.program.is_text(request.due) {
            request::query_with(out, |sql| {
                count = write_statements(request, sql, Self::quote);
            });
        } else {
            count = encode_extended(request, out);
        }
        self.begin(rollbacks + 1);
        count + u64::from(rollbacks)
    }

    #[inline]
    fn decode(
        &mut self,
        input: &[u8],
        _types: &[u8],
        handling: &mut RowHandling,
    ) -> Result<Option<Outcome>, ConnectionError> {
        match self.feed(input, handling) {
            Ok(outcome) => Ok(outcome.map(|outcome| match outcome {
                postgres::Outcome::Done(done) => Outcome::Done(done),
                postgres::Outcome::Failed(error) => Outcome::Failed(error),
            })),
            Err(error) => Err(ConnectionError::MalformedPostgres(error)),
        }
    }

    fn quote(out: &mut Vec<u8>, bytes: &[u8]) {
        request::quote(out, bytes);
    }

    fn goodbye(&self, out: &mut Vec<u8>) {
        request::terminate(out);
    }

    /// True: a server may send notices, parameters and notifications at any time.
    fn allows_unsolicited(&self) -> bool {
        true
    }
}

/// Append statements in the extended protocol, with bound values: as many as the pipeline allows, and one Sync. Returns their number.
#[inline]
fn encode_extended(request: Request<'_>, out: &mut Vec<u8>) -> u64 {
    let Request {
        program,
        mut due,
        cursor,
        memory,
        statements,
    } = request;
    let mut count = 1;
    loop {
        match statements.get_mut(due.slot) {
            Some(Slot::Prepared { id, .. }) => {
                program.write_bind(due, cursor, memory, Some(*id), out);
            }
            _ => program.write_unnamed(due, cursor, memory, out, Answer::quote),
        }
        request::execute(out);
        if count == u64::from(program.pipeline()) {
            break;
        }
        match cursor.next(program) {
            Some(next) => due = next,
            None => break,
        }
        count += 1;
    }
    request::sync(out);
    count
}
