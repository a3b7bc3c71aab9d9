//! Observes when the keys that a load writes become visible to other connections: polls for the next keys of each of the load's
//! connections, over a separate connection, and logs each key when it is first seen.
//!
//! A connection draws its keys in order, one transaction at a time, so polling for a few keys per connection is enough.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use howfar_contract::events::{Watched, Watching};
use howfar_contract::jobs::{SqlProtocol, WatchJob};
use howfar_contract::{FailCode, Failed};

use crate::acknowledged::{KeyOutcome, Log, LogFile};
use crate::channel::ChannelOptions;
use crate::client::{Client, Limits};
use crate::clock::now_ns;
use crate::session::LoginParameters;
use crate::socket::Address;
use crate::tables::unprepared_program;
use crate::window::emit_event;

/// Number of keys polled for per connection: the server may refuse up to all but one of this many successive keys.
const KEYS_AHEAD: u64 = 4;

/// Run a job until its time is up, stdin ends, or the server is gone.
pub(crate) fn run(job: &WatchJob) -> Result<(), Failed> {
    job.check()?;
    LogFile::check_is_new(&job.seen)?;
    let address = Address::parse(&job.login.target)?;
    let channel_options = ChannelOptions::new(&job.session, &job.login.target)?;
    let program = unprepared_program(job.protocol);
    let parameters = LoginParameters::from_login(&job.login, &channel_options, &program);
    let limits = Limits {
        connect_ns: job.connect_timeout_ns,
        statement_timeout_ns: job.stall_timeout_ns,
    };
    let mut client = Client::open(&parameters, &address, limits)?;
    let mut next_keys = NextKeys::new(job);
    client.query(&next_keys.poll_sql())?;

    let began_ns = now_ns();
    let file = LogFile::create(&job.seen, job.connections, began_ns)?;
    let mut log = Log::new(&file);
    let stdin_ended = watch_stdin()?;
    emit_event(&Watching {})?;
    let mut polls = Polls::default();
    let end_ns = began_ns + job.watch_ns;
    let outcome = polls.poll_until_end(
        &mut client,
        &mut next_keys,
        &mut log,
        (end_ns, job.pause_ns),
        &stdin_ended,
    );
    let interrupted = match outcome {
        Err(failed) if is_server_loss(&failed) => Some(failed),
        outcome => outcome.map(|()| None)?,
    };
    let closed = file.close(&log.end()?)?;
    emit_event(&Watched {
        path: closed.path,
        keys: closed.records,
        polls: polls.count,
        longest_poll_ns: polls.longest_ns,
        elapsed_ns: now_ns() - began_ns,
        interrupted,
    })
}

fn is_server_loss(failed: &Failed) -> bool {
    matches!(failed.code, FailCode::ServerGone | FailCode::Stalled)
}

/// Start a thread that reads stdin; returns a flag that is set when stdin ends.
fn watch_stdin() -> Result<Arc<AtomicBool>, Failed> {
    let stdin_ended = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stdin_ended);
    crate::spawn_thread("stdin", move || {
        // Input is ignored.
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        flag.store(true, Ordering::Relaxed);
    })?;
    Ok(stdin_ended)
}

#[derive(Debug, Default)]
struct Polls {
    count: u64,
    longest_ns: u64,
}

impl Polls {
    /// Poll until the time is up, or until a poll after `stdin_ended` is set finds nothing new.
    fn poll_until_end(
        &mut self,
        client: &mut Client<'_>,
        next_keys: &mut NextKeys,
        log: &mut Log<'_>,
        (end_ns, pause_ns): (u64, u64),
        stdin_ended: &AtomicBool,
    ) -> Result<(), Failed> {
        while now_ns() < end_ns {
            // Read before the poll, so that the last poll sees all keys that were visible when stdin ended.
            let is_last = stdin_ended.load(Ordering::Relaxed);
            let new_keys = self.poll(client, next_keys, log)?;
            if is_last && new_keys == 0 {
                break;
            }
            if pause_ns > 0 && !is_last {
                thread::sleep(Duration::from_nanos(pause_ns));
            }
        }
        Ok(())
    }

    /// Poll once, and log the new keys. Returns their number.
    fn poll(
        &mut self,
        client: &mut Client<'_>,
        next_keys: &mut NextKeys,
        log: &mut Log<'_>,
    ) -> Result<usize, Failed> {
        let requested_ns = now_ns();
        let rows = client.query(&next_keys.poll_sql())?;
        let seen_ns = now_ns();
        self.count += 1;
        self.longest_ns = self.longest_ns.max(seen_ns - requested_ns);
        let new_keys = rows.len();
        for row in rows {
            let key = match row.as_slice() {
                [Some(key)] => key.parse().ok(),
                _ => None,
            };
            let (key, writer) = key
                .and_then(|key| Some((key, next_keys.mark_visible(key)?)))
                .ok_or_else(unexpected_key)?;
            log.write(key as i64, writer, requested_ns, seen_ns, KeyOutcome::Seen)?;
        }
        Ok(new_keys)
    }
}

/// The keys that may become visible next.
#[derive(Debug)]
struct NextKeys {
    select: String,
    first: u64,
    step: u64,
    /// For each connection, the number of its next key.
    next_numbers: Vec<u64>,
}

impl NextKeys {
    fn new(job: &WatchJob) -> Self {
        let (column, table) = (&job.column, &job.table);
        Self {
            select: match job.protocol {
                SqlProtocol::Mysql => {
                    format!("SELECT `{column}` FROM `{table}` WHERE `{column}` IN (")
                }
                // Unquoted, so that names fold to lower case as in the statements that created them.
                SqlProtocol::Postgresql => {
                    format!("SELECT {column} FROM {table} WHERE {column} IN (")
                }
            },
            first: job.first,
            step: job.step,
            next_numbers: vec![0; job.connections as usize],
        }
    }

    fn poll_sql(&self) -> String {
        let mut sql = self.select.clone();
        for ahead in 0..KEYS_AHEAD {
            for (connection, next) in self.next_numbers.iter().enumerate() {
                let position = connection as u64 + (next + ahead) * self.next_numbers.len() as u64;
                let _ = write!(sql, "{},", self.first + self.step * position);
            }
        }
        sql.pop();
        sql.push(')');
        sql
    }

    /// Record that `key` is visible; returns the connection that wrote it, or `None` if the key was not polled for.
    fn mark_visible(&mut self, key: u64) -> Option<u64> {
        let distance = key.checked_sub(self.first)?;
        let (position, remainder) = (distance / self.step, distance % self.step);
        let connections = self.next_numbers.len() as u64;
        let (connection, number) = (position % connections, position / connections);
        let next_number = &mut self.next_numbers[connection as usize];
        if remainder > 0
            || number + KEYS_AHEAD < *next_number
            || number >= *next_number + KEYS_AHEAD
        {
            return None;
        }
        *next_number = (number + 1).max(*next_number);
        Some(connection)
    }
}

fn unexpected_key() -> Failed {
    Failed::new(
        FailCode::Protocol,
        "the server answered a poll for keys with something else",
        "Check that the address is that of the server, and that the column holds whole numbers.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_asks_for_the_next_keys_of_each_connection() {
        let mut next_keys = NextKeys {
            select: "IN (".to_owned(),
            first: 10,
            step: 5,
            next_numbers: vec![0; 2],
        };
        assert_eq!(next_keys.poll_sql(), "IN (10,15,20,25,30,35,40,45)");
        // The first connection's second key: its first one was refused.
        assert_eq!(next_keys.mark_visible(20), Some(0));
        assert_eq!(next_keys.mark_visible(15), Some(1));
        assert_eq!(next_keys.poll_sql(), "IN (30,25,40,35,50,45,60,55)");
        // Rows of one answer come in any order.
        assert_eq!(
            (next_keys.mark_visible(40), next_keys.mark_visible(30)),
            (Some(0), Some(0))
        );
        for unexpected in [9, 11, 1000] {
            assert_eq!(next_keys.mark_visible(unexpected), None, "{unexpected}");
        }
    }
}
