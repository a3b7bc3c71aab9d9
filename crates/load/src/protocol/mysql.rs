//! MySQL and MariaDB: statements as text or prepared.

use howfar_contract::Failed;
use howfar_wire::mysql::row::RowHandling;
use howfar_wire::mysql::{self, Answer, command};

use super::write_statements;
use crate::connection_error::ConnectionError;
use crate::login::Login;
use crate::session::{Handshake, LoginParameters, Outcome, Protocol, Request};
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
        if let Some(Slot::Prepared { id, used }) = request.statements.get_mut(request.due.slot) {
            let is_first = !std::mem::replace(used, true);
            let (cursor, memory) = (request.cursor, request.memory);
            request
                .program
                .write_execute(request.due, cursor, memory, (*id, is_first), out);
            self.begin(true);
            return 1;
        }
        let mut count = 0;
        command::query_with(out, |sql| {
            count = write_statements(request, sql, Self::quote);
        });
        self.begin(false);
        count
    }

    #[inline]
    fn decode(
        &mut self,
        input: &[u8],
        types: &[u8],
        handling: &mut RowHandling,
    ) -> Result<Option<Outcome>, ConnectionError> {
        match self.feed(input, types, handling) {
            Ok(outcome) => Ok(outcome.map(|outcome| match outcome {
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
