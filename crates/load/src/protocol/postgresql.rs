//! PostgreSQL: statements as text, unnamed or prepared, one at a time or as a pipeline.

use howfar_contract::Failed;
use howfar_wire::mysql::row::Work;
use howfar_wire::postgres::{self, Answer, request};

use crate::connection_error::ConnectionError;
use crate::login::PostgresLogin;
use crate::session::LoginParameters;
use crate::session::{Handshake, Outcome, Protocol, Request};
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
        let before = u32::from(self.has_failed_block());
        if before > 0 {
            request::query_with(out, |sql| sql.extend_from_slice(b"ROLLBACK"));
        }
        let count = if request.program.is_text(request.due) {
            encode_simple(request, out)
        } else {
            encode_extended(request, out)
        };
        self.begin(before + 1);
        count + u64::from(before)
    }

    #[inline]
    fn decode(
        &mut self,
        input: &[u8],
        _types: &[u8],
        work: &mut Work,
    ) -> Result<Option<Outcome>, ConnectionError> {
        match self.feed(input, work) {
            Ok(ended) => Ok(ended.map(|ended| match ended {
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

/// Append statements in the simple protocol, with values in the text. Returns their number.
fn encode_simple(request: Request<'_>, out: &mut Vec<u8>) -> u64 {
    let Request {
        program,
        due,
        cursor,
        memory,
        ..
    } = request;
    let mut count = 1;
    request::query_with(out, |sql| {
        program.write_text(due, cursor, memory, sql, Answer::quote);
        if program.is_multi() {
            while let Some(next) = cursor.next(program) {
                sql.push(b';');
                program.write_text(next, cursor, memory, sql, Answer::quote);
                count += 1;
            }
        }
    });
    count
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
