//! Creates, warms and drops a workload's tables: sysbench's `prepare`, `prewarm` and `cleanup`.
//!
//! [`schema`] defines the statements sent to the server and [`rows`] the rows; here the pieces of work are dealt to connections and
//! progress is reported. Nothing here is measured load.

mod keys;
mod pgbench;
mod rows;
mod schema;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use howfar_contract::events::{TablesDone, TablesProgress};
use howfar_contract::jobs::{PsMode, SqlProtocol, Sysbench, TablesJob, Workload};
use howfar_contract::{Failed, internal};
use howfar_wire::mysql::handshake::Account;

use crate::channel::Wanted;
use crate::client::{Client, Limits};
use crate::clock::now_ns;
use crate::distribution::Ids;
use crate::login::Entry;
use crate::socket::Address;
use crate::window::emit_event;
use crate::workload::Program;
use rows::{BULK_BYTES, Rows};
use schema::{Piece, Work};

/// Interval between progress events.
const TELL_EVERY: Duration = Duration::from_millis(500);
/// Bytes of a packet before its SQL: header and command.
const BEFORE_SQL: usize = 5;

/// State shared by the connections.
#[derive(Debug)]
struct Site {
    job: TablesJob,
    address: Address,
    wanted: Wanted,
    connections: u32,
    /// Rows inserted, or keys done.
    inserted: AtomicU64,
    /// Pieces done.
    pieces: AtomicU64,
    doing: Mutex<String>,
    /// A connection failed: begin no new piece.
    stop: AtomicBool,
}

/// Run a job to its end, emitting its events.
pub(crate) fn run(job: TablesJob) -> Result<(), Failed> {
    job.check()?;
    let began_ns = now_ns();
    let address = Address::parse(&job.target)?;
    let wanted = Wanted::new(&job.session, &job.target)?;
    let connections = match job.workload.key_value() {
        Some(_) => job.connections,
        None => Work::of(&job)?.connections(job.connections),
    };
    let site = Arc::new(Site {
        job,
        address,
        wanted,
        connections,
        inserted: AtomicU64::new(0),
        pieces: AtomicU64::new(0),
        doing: Mutex::new("connecting".to_owned()),
        stop: AtomicBool::new(false),
    });
    let ended = start(&site)?;
    attend(&site, &ended)?;
    emit_event(&TablesDone {
        rows: site.inserted.load(Ordering::Relaxed),
        elapsed_ns: now_ns() - began_ns,
    })
}

/// Start a thread for each connection; each sends its outcome.
fn start(site: &Arc<Site>) -> Result<Receiver<Result<(), Failed>>, Failed> {
    let (sender, ended) = mpsc::channel();
    for number in 0..site.connections {
        let (site, sender) = (Arc::clone(site), sender.clone());
        thread::Builder::new()
            .name(format!("tables {number}"))
            .spawn(move || {
                // Fails if the receiver is gone because another connection has failed.
                let _ = sender.send(site.work(u64::from(number)));
            })
            .map_err(|error| internal(format!("starting a thread: {error}")))?;
    }
    Ok(ended)
}

/// Report progress until all are done. A failure ends the job at once: connections still waiting for the server end with the process.
fn attend(site: &Site, ended: &Receiver<Result<(), Failed>>) -> Result<(), Failed> {
    let mut left = site.connections;
    let mut reported_at = now_ns();
    while left > 0 {
        let patience = TELL_EVERY.saturating_sub(Duration::from_nanos(now_ns() - reported_at));
        match ended.recv_timeout(patience) {
            Ok(Ok(())) => left -= 1,
            Ok(Err(failed)) => {
                site.stop.store(true, Ordering::Relaxed);
                return Err(failed);
            }
            Err(RecvTimeoutError::Timeout) => {
                emit_event(&site.progress()?)?;
                reported_at = now_ns();
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(internal("a thread ended without a word"));
            }
        }
    }
    Ok(())
}

impl Site {
    fn progress(&self) -> Result<TablesProgress, Failed> {
        if let Some(load) = self.job.workload.key_value() {
            return Ok(TablesProgress {
                done: self.inserted.load(Ordering::Relaxed),
                total: load.keys,
                doing: "keys".to_owned(),
            });
        }
        let work = Work::of(&self.job)?;
        let in_rows = work.rows_each() > 0;
        let done = if in_rows {
            &self.inserted
        } else {
            &self.pieces
        };
        Ok(TablesProgress {
            done: done.load(Ordering::Relaxed),
            total: work.pieces() * work.rows_each().max(1),
            doing: self
                .doing
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        })
    }

    /// The work of connection `number`: every n-th piece.
    fn work(&self, number: u64) -> Result<(), Failed> {
        let program = match self.job.workload.key_value() {
            None => nothing_prepared(self.job.protocol),
            Some(_) => Program::new(&self.job.workload, self.connections, self.job.seed)
                .map_err(internal)?,
        };
        let entry = Entry {
            target: &self.job.target,
            account: Account {
                user: &self.job.user,
                password: &self.job.password,
                database: &self.job.database,
            },
            wanted: &self.wanted,
            program: &program,
            decode: false,
            read_only: false,
        };
        if let Some(load) = self.job.workload.key_value() {
            return keys::work(self, load, &entry, number);
        }
        let work = Work::of(&self.job)?;
        let limits = Limits {
            connect_ns: self.job.connect_timeout_ns,
            stall_ns: self.job.stall_timeout_ns,
        };
        let mut client = Client::open(&entry, &self.address, limits)?;
        for statement in work.setup() {
            client.execute(statement)?;
        }
        let loader = match self.job.workload.sysbench() {
            Some(load) if work.rows_each() > 0 => Some(Loader::new(&mut client, load, self)?),
            _ => None,
        };
        let mut mine = (number..work.pieces()).step_by(self.connections as usize);
        let going = || !self.stop.load(Ordering::Relaxed);
        while let Some(at) = mine.next().filter(|_| going()) {
            self.piece(&work.piece(at), loader.as_ref(), &mut client)?;
            self.pieces.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn piece(
        &self,
        piece: &Piece,
        loader: Option<&Loader>,
        client: &mut Client<'_>,
    ) -> Result<(), Failed> {
        piece
            .doing
            .clone_into(&mut self.doing.lock().unwrap_or_else(PoisonError::into_inner));
        self.statements(&piece.before, client)?;
        if let (Some(table), Some(loader)) = (piece.load, loader) {
            loader.load(table, client, self)?;
        }
        self.statements(&piece.after, client)
    }

    fn statements(&self, statements: &[String], client: &mut Client<'_>) -> Result<(), Failed> {
        for statement in statements {
            let answered = client.execute(statement)?;
            // A custom workload inserts rows by its list. Creating an index by copying the table also changes rows, but adds none.
            if self.job.workload.sysbench().is_none() {
                let rows = answered.affected;
                self.inserted.fetch_add(rows, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

/// A program for logins that prepare no statements.
pub(crate) fn nothing_prepared(protocol: SqlProtocol) -> Program {
    let none = Sysbench {
        db_ps_mode: PsMode::Disable,
        ..Sysbench::default()
    };
    Program::speaking(protocol, 1, &Workload::OltpPointSelect(none), 1, 0)
        .expect("the defaults are a workload")
}

/// Fills tables over one connection.
#[derive(Debug)]
struct Loader {
    ids: Ids,
    size: u64,
    auto_inc: bool,
    seed: u64,
    limit: usize,
}

impl Loader {
    fn new(client: &mut Client<'_>, load: &Sysbench, site: &Site) -> Result<Self, Failed> {
        let allowed = match site.job.protocol {
            SqlProtocol::Mysql => longest_packet(client)?,
            SqlProtocol::Postgresql => usize::MAX,
        };
        Ok(Self {
            ids: Ids::new(&load.distribution, load.table_size),
            size: load.table_size,
            auto_inc: load.auto_inc,
            seed: site.job.seed,
            // The command's byte counts as well.
            limit: BULK_BYTES.min(allowed.saturating_sub(1)),
        })
    }

    /// Fill a table; the next INSERT is built while the server works on the last.
    fn load(&self, table: u32, client: &mut Client<'_>, site: &Site) -> Result<(), Failed> {
        let mut rows = Rows::new(self.seed, table, self.size, self.auto_inc, &self.ids);
        let mut packet = Vec::with_capacity(self.limit + BEFORE_SQL);
        let mut waiting = 0;
        loop {
            packet.clear();
            let mut made = 0;
            client.query_with(&mut packet, |out| made = rows.insert(self.limit, out));
            if waiting > 0 {
                client.finish()?;
                site.inserted.fetch_add(waiting, Ordering::Relaxed);
            }
            if made == 0 || site.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            client.start_packet(&packet, &packet[BEFORE_SQL..])?;
            waiting = made;
        }
    }
}

/// The maximum packet that a server with MySQL's protocol accepts.
fn longest_packet(client: &mut Client<'_>) -> Result<usize, Failed> {
    let answer = client.query("SELECT @@max_allowed_packet")?;
    let value = answer
        .first()
        .and_then(|row| row.first()?.as_deref()?.parse::<usize>().ok());
    value.ok_or_else(|| internal("the server did not say its max_allowed_packet"))
}
