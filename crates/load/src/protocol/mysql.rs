//! MySQL and MariaDB: statements as text or prepared.

use howfar_contract::Failed;
use howfar_wire::mysql::row::Work;
use howfar_wire::mysql::{self, Answer, command};

use crate::connection_error::ConnectionError;
use crate::login::Login;
use crate::session::LoginParameters;
use crate::session::{Handshake, Outcome, Protocol, Request};
use crate::statements::Slot;

impl Protocol for Answer {
    /// Sends nothing: the server speaks first.
    fn login(
        parameters: &LoginParameters<'_>,
        _out: &mut Vec<u8>,
    ) -> Result<Box<dyn Handshake>, Failed> {
        Ok(Box::new(Login::new(parameters.program)))
    }

    #[inline]
    fn encode(&mut self, request: Request<'_>, out: &mut Vec<u8>) -> u64 {
        let Request {
            program,
            due,
            cursor,
            memory,
            statements,
        } = request;
        if let Some(Slot::Prepared { id, used }) = statements.get_mut(due.slot) {
            let first = !std::mem::replace(used, true);
            program.write_execute(due, cursor, memory, (*id, first), out);
            self.begin(true);
            return 1;
        }
        let mut count = 1;
        command::query_with(out, |sql| {
            program.write_text(due, cursor, memory, sql, Self::quote);
            if program.is_multi() {
                while let Some(next) = cursor.next(program) {
                    sql.push(b';');
                    program.write_text(next, cursor, memory, sql, Self::quote);
                    count += 1;
                }
            }
        });
        self.begin(false);
        count
    }

    #[inline]
    fn decode(
        &mut self,
        input: &[u8],
        types: &[u8],
        work: &mut Work,
    ) -> Result<Option<Outcome>, ConnectionError> {
        match self.feed(input, types, work) {
            Ok(ended) => Ok(ended.map(|ended| match ended {
                mysql::Outcome::Done(done) => Outcome::Done(done),
                mysql::Outcome::Failed(error) => Outcome::Failed(error),
            })),
            Err(error) => Err(ConnectionError::Malformed(error)),
        }
    }

    fn quote(out: &mut Vec<u8>, bytes: &[u8]) {
        command::quote(out, bytes);
    }

    fn goodbye(&self, out: &mut Vec<u8>) {
        command::quit(out);
    }
}
