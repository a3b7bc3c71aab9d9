//! A blocking client: one connection, one statement at a time, for work outside the measured load.
//!
//! Logging in is done by `login` and `connecting`. The measured load never uses this client: `connection` is built for it.

mod results;

use std::os::fd::OwnedFd;

use howfar_contract::jobs::Target;
use howfar_contract::{FailCode, Failed};
use howfar_wire::mysql::ServerError;

use crate::channel::Channel;
use crate::connecting::open_blocking;
use crate::exchange::Exchange;
use crate::failure;
use crate::session::{LoginParameters, Replies};
use crate::socket::{Address, send_some};

pub(crate) use results::{AnswerEnd, Results, RowCounts};

const NO_STATEMENT: &str = "the connection";

/// Rows of text values; `None` is SQL's NULL.
pub(crate) type Rows = Vec<Vec<Option<String>>>;

/// Time limits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// For the connection and the login.
    pub(crate) connect_ns: u64,
    /// For sending a statement, and for its answer.
    pub(crate) statement_timeout_ns: u64,
}

/// A connection that is logged in. Dropping it sends the protocol's goodbye.
#[derive(Debug)]
pub(crate) struct Client<'a> {
    socket: OwnedFd,
    channel: Channel,
    replies: Replies,
    target: &'a Target,
    statement_timeout_ns: u64,
    /// The first words of the statement in progress, quoted; `None` between statements.
    statement: Option<String>,
}

impl<'a> Client<'a> {
    pub(crate) fn open(
        parameters: &LoginParameters<'a>,
        address: &Address,
        limits: Limits,
    ) -> Result<Self, Failed> {
        let (socket, session) = open_blocking(parameters, address, limits.connect_ns)?;
        Ok(Self {
            socket,
            channel: session.channel,
            replies: session.replies,
            target: parameters.target,
            statement_timeout_ns: limits.statement_timeout_ns,
            statement: None,
        })
    }

    /// Run `sql` and wait for its end; rows are skipped.
    pub(crate) fn execute(&mut self, sql: &str) -> Result<RowCounts, Failed> {
        self.start(sql.as_bytes())?;
        self.finish()
    }

    /// Run `sql`; an error from the server is not a failure.
    pub(crate) fn attempt(&mut self, sql: &str) -> Result<(), Failed> {
        match self.execute(sql) {
            Err(failed) if failed.code == FailCode::ServerError => {
                self.statement = None;
                Ok(())
            }
            outcome => outcome.map(drop),
        }
    }

    /// Run `sql` and return its rows: for answers that are small by nature.
    pub(crate) fn query(&mut self, sql: &str) -> Result<Rows, Failed> {
        self.start(sql.as_bytes())?;
        let mut results = Results::for_replies(&self.replies, true);
        self.read_answer(&mut results)?;
        Ok(results.finish().1)
    }

    /// Append a request to run the SQL that `write` appends.
    pub(crate) fn query_with(&self, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        self.replies.query_with(out, write);
    }

    /// Send `sql` and return when it is sent: the caller can build the next statement while the server works.
    pub(crate) fn start(&mut self, sql: &[u8]) -> Result<(), Failed> {
        let mut packet = Vec::with_capacity(sql.len() + 8);
        self.replies.query(&mut packet, sql);
        self.start_packet(&packet, sql)
    }

    /// Send a complete packet that holds `sql`.
    pub(crate) fn start_packet(&mut self, packet: &[u8], sql: &[u8]) -> Result<(), Failed> {
        assert!(
            self.statement.is_none(),
            "another statement is still in progress"
        );
        self.statement = Some(format!("`{}`", statement_summary(sql)));
        self.exchange(|exchange, statement| exchange.send(packet, statement))
    }

    /// Wait for the end of the statement in progress.
    pub(crate) fn finish(&mut self) -> Result<RowCounts, Failed> {
        let mut results = Results::for_replies(&self.replies, false);
        self.read_answer(&mut results)?;
        Ok(results.finish().0)
    }

    fn read_answer(&mut self, results: &mut Results) -> Result<(), Failed> {
        let (target, mut end) = (self.target, None);
        self.exchange(|exchange, statement| {
            exchange.request(&[], statement, |bytes| {
                end = results
                    .feed(bytes)
                    .map_err(|error| error.translate(target, None))?;
                Ok(end.is_some())
            })
        })?;
        if let Some(AnswerEnd::Failed(error)) = end {
            return Err(self.statement_error(&error));
        }
        self.statement = None;
        Ok(())
    }

    /// Send or receive. The limit applies to the complete answer, however its bytes trickle in: an answer is small.
    fn exchange(
        &mut self,
        exchange_step: impl FnOnce(&mut Exchange<'_>, &str) -> Result<(), Failed>,
    ) -> Result<(), Failed> {
        let statement = self.statement.as_deref().unwrap_or(NO_STATEMENT);
        let mut exchange = Exchange {
            target: self.target,
            socket: &self.socket,
            channel: &mut self.channel,
            idle_timeout_ns: self.statement_timeout_ns,
            total_timeout_ns: self.statement_timeout_ns,
        };
        exchange_step(&mut exchange, statement).map_err(|mut failed| {
            if failed.code == FailCode::Stalled {
                failed.message = format!(
                    "{statement} on {} did not end within {:.1} s",
                    failure::target_name(self.target),
                    self.statement_timeout_ns as f64 / 1e9
                );
            }
            failed
        })
    }

    fn statement_error(&self, error: &ServerError) -> Failed {
        let statement = self.statement.as_deref().unwrap_or(NO_STATEMENT);
        let mut failed = failure::statement_failed(self.target, statement, error);
        let advice = match error.code.to_string().as_str() {
            "1050" | "42P07" => "Drop the tables first (`cleanup`), or use another database.",
            "1044" | "1142" | "1227" | "42501" => {
                "Give the account the privileges CREATE, DROP, INDEX, INSERT and SELECT on the database."
            }
            "1146" | "42P01" => {
                "Create the tables first (`prepare`), at least as many as requested."
            }
            "1114" | "1021" | "1030" | "53100" => {
                "Free disk space on the server, or request fewer rows."
            }
            "1286" => "Choose a storage engine that the server supports (see SHOW ENGINES).",
            _ => return failed,
        };
        advice.clone_into(&mut failed.advice);
        failed
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        if self.statement.is_none() {
            let bytes = self.replies.sealed_goodbye(&mut self.channel);
            // The work is done, so errors are ignored: the server may be gone.
            let _ = send_some(&self.socket, &bytes);
        }
    }
}

/// A statement's first words: enough to identify it, but no quoted text, which might be a password.
fn statement_summary(sql: &[u8]) -> String {
    const MAX_WORDS: usize = 5;
    let is_word_or_space =
        |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_' || byte.is_ascii_whitespace();
    let prefix: String = sql
        .iter()
        .take_while(is_word_or_space)
        .take(160)
        .map(|&byte| char::from(byte))
        .collect();
    let first_words: Vec<&str> = prefix.split_ascii_whitespace().take(MAX_WORDS).collect();
    if first_words.is_empty() {
        "a statement".to_owned()
    } else {
        first_words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::statement_summary;

    #[test]
    fn a_statement_summary_has_no_quoted_text() {
        let statement_summary = |sql: &str| statement_summary(sql.as_bytes());
        assert_eq!(
            statement_summary("CREATE TABLE sbtest1(\n  id INTEGER"),
            "CREATE TABLE sbtest1"
        );
        assert_eq!(statement_summary("SET PASSWORD='secret'"), "SET PASSWORD");
        assert_eq!(
            statement_summary("CREATE USER u IDENTIFIED BY 'secret'"),
            "CREATE USER u IDENTIFIED BY"
        );
        assert_eq!(statement_summary("'secret'"), "a statement");
    }
}
