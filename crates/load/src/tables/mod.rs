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
use std::time::Duration;

use howfar_contract::events::{TablesDone, TablesProgress};
use howfar_contract::jobs::{PsMode, SqlProtocol, Sysbench, TablesJob, Workload};
use howfar_contract::{Failed, internal};

use crate::channel::ChannelOptions;
use crate::client::{Client, Limits};
use crate::clock::now_ns;
use crate::distribution::IdSampler;
use crate::session::LoginParameters;
use crate::socket::Address;
use crate::window::emit_event;
use crate::workload::Program;
use rows::{BULK_BYTES, Rows};
use schema::{Piece, TableWork};

/// Interval between progress events.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// Bytes of a packet before its SQL: header and command.
const SQL_OFFSET: usize = 5;

/// The job, and the state that its connections share.
#[derive(Debug)]
struct TablesContext {
    job: TablesJob,
    address: Address,
    channel_options: ChannelOptions,
    connections: u32,
    /// Rows inserted, or keys done.
    rows_done: AtomicU64,
    /// Pieces done.
    pieces_done: AtomicU64,
    /// Description of the piece that was begun last.
    current_piece: Mutex<String>,
    /// Whether a connection failed; no new piece is begun then.
    has_failed: AtomicBool,
}

/// Run a job to its end, emitting its events.
pub(crate) fn run(job: TablesJob) -> Result<(), Failed> {
    job.check()?;
    let began_ns = now_ns();
    let address = Address::parse(&job.login.target)?;
    let channel_options = ChannelOptions::new(&job.session, &job.login.target)?;
    let connections = match job.workload.key_value() {
        Some(_) => job.connections,
        None => TableWork::from_job(&job)?.connections(job.connections),
    };
    let context = Arc::new(TablesContext {
        job,
        address,
        channel_options,
        connections,
        rows_done: AtomicU64::new(0),
        pieces_done: AtomicU64::new(0),
        current_piece: Mutex::new("connecting".to_owned()),
        has_failed: AtomicBool::new(false),
    });
    let outcomes = start_connections(&context)?;
    report_progress(&context, &outcomes)?;
    emit_event(&TablesDone {
        rows: context.rows_done.load(Ordering::Relaxed),
        elapsed_ns: now_ns() - began_ns,
    })
}

/// Start a thread for each connection; each sends its outcome.
fn start_connections(context: &Arc<TablesContext>) -> Result<Receiver<Result<(), Failed>>, Failed> {
    let (sender, outcomes) = mpsc::channel();
    for number in 0..context.connections {
        let (context, sender) = (Arc::clone(context), sender.clone());
        crate::spawn_thread(format!("tables {number}"), move || {
            // Fails if the receiver is dropped because another connection has failed.
            let _ = sender.send(context.run_share(u64::from(number)));
        })?;
    }
    Ok(outcomes)
}

/// Report progress until all connections are done. A failure ends the job at once: connections that still wait for
/// the server end with the process.
fn report_progress(
    context: &TablesContext,
    outcomes: &Receiver<Result<(), Failed>>,
) -> Result<(), Failed> {
    let mut running_connections = context.connections;
    let mut last_report_ns = now_ns();
    while running_connections > 0 {
        let timeout =
            PROGRESS_INTERVAL.saturating_sub(Duration::from_nanos(now_ns() - last_report_ns));
        match outcomes.recv_timeout(timeout) {
            Ok(Ok(())) => running_connections -= 1,
            Ok(Err(failed)) => {
                context.has_failed.store(true, Ordering::Relaxed);
                return Err(failed);
            }
            Err(RecvTimeoutError::Timeout) => {
                emit_event(&context.progress()?)?;
                last_report_ns = now_ns();
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(internal("a thread ended without a result"));
            }
        }
    }
    Ok(())
}

impl TablesContext {
    fn progress(&self) -> Result<TablesProgress, Failed> {
        if let Some(load) = self.job.workload.key_value() {
            return Ok(TablesProgress {
                done: self.rows_done.load(Ordering::Relaxed),
                total: load.keys,
                doing: "keys".to_owned(),
            });
        }
        let work = TableWork::from_job(&self.job)?;
        let done_counter = if work.rows_each() > 0 {
            &self.rows_done
        } else {
            &self.pieces_done
        };
        Ok(TablesProgress {
            done: done_counter.load(Ordering::Relaxed),
            total: work.pieces() * work.rows_each().max(1),
            doing: self
                .current_piece
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        })
    }

    /// Do the share of connection `number`. With n connections, that is every n-th piece.
    fn run_share(&self, number: u64) -> Result<(), Failed> {
        let program = match self.job.workload.key_value() {
            None => unprepared_program(self.job.protocol),
            Some(_) => Program::new(&self.job.workload, self.connections, self.job.seed)
                .map_err(internal)?,
        };
        let parameters =
            LoginParameters::from_login(&self.job.login, &self.channel_options, &program);
        if let Some(load) = self.job.workload.key_value() {
            return keys::process_keys(self, load, &parameters, number);
        }
        let work = TableWork::from_job(&self.job)?;
        let limits = Limits {
            connect_ns: self.job.connect_timeout_ns,
            statement_timeout_ns: self.job.stall_timeout_ns,
        };
        let mut client = Client::open(&parameters, &self.address, limits)?;
        for statement in work.setup() {
            client.execute(statement)?;
        }
        let loader = match self.job.workload.sysbench() {
            Some(load) if work.rows_each() > 0 => Some(Loader::new(&mut client, load, self)?),
            _ => None,
        };
        let mut own_pieces = (number..work.pieces()).step_by(self.connections as usize);
        let may_continue = || !self.has_failed.load(Ordering::Relaxed);
        while let Some(index) = own_pieces.next().filter(|_| may_continue()) {
            self.run_piece(&work.piece(index), loader.as_ref(), &mut client)?;
            self.pieces_done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn run_piece(
        &self,
        piece: &Piece,
        loader: Option<&Loader>,
        client: &mut Client<'_>,
    ) -> Result<(), Failed> {
        let mut current_piece = self
            .current_piece
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        current_piece.clone_from(&piece.description);
        drop(current_piece);
        self.run_statements(&piece.before, client)?;
        if let (Some(table), Some(loader)) = (piece.load, loader) {
            loader.fill_table(table, client, self)?;
        }
        self.run_statements(&piece.after, client)
    }

    fn run_statements(&self, statements: &[String], client: &mut Client<'_>) -> Result<(), Failed> {
        for statement in statements {
            let row_counts = client.execute(statement)?;
            // A custom workload inserts rows by its list. Creating an index by copying the table also changes rows, but adds none.
            if self.job.workload.sysbench().is_none() {
                let rows = row_counts.affected;
                self.rows_done.fetch_add(rows, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

/// A program for logins that prepare no statements.
pub(crate) fn unprepared_program(protocol: SqlProtocol) -> Program {
    let load = Sysbench {
        db_ps_mode: PsMode::Disable,
        ..Sysbench::default()
    };
    Program::with_protocol(protocol, 1, &Workload::OltpPointSelect(load), 1, 0)
        .expect("the default workload is valid")
}

/// Fills tables over one connection.
#[derive(Debug)]
struct Loader {
    ids: IdSampler,
    size: u64,
    auto_inc: bool,
    seed: u64,
    /// Maximum bytes of an INSERT.
    max_insert_bytes: usize,
}

impl Loader {
    fn new(
        client: &mut Client<'_>,
        load: &Sysbench,
        context: &TablesContext,
    ) -> Result<Self, Failed> {
        let max_packet_bytes = match context.job.protocol {
            SqlProtocol::Mysql => query_max_packet_bytes(client)?,
            SqlProtocol::Postgresql => usize::MAX,
        };
        Ok(Self {
            ids: IdSampler::new(&load.distribution, load.table_size),
            size: load.table_size,
            auto_inc: load.auto_inc,
            seed: context.job.seed,
            // The command's byte counts as well.
            max_insert_bytes: BULK_BYTES.min(max_packet_bytes.saturating_sub(1)),
        })
    }

    /// Fill a table; the next INSERT is built while the server works on the last.
    fn fill_table(
        &self,
        table: u32,
        client: &mut Client<'_>,
        context: &TablesContext,
    ) -> Result<(), Failed> {
        let mut rows = Rows::new(self.seed, table, self.size, self.auto_inc, &self.ids);
        let mut packet = Vec::with_capacity(self.max_insert_bytes + SQL_OFFSET);
        let mut unfinished_rows = 0;
        loop {
            packet.clear();
            let mut built_rows = 0;
            client.query_with(&mut packet, |out| {
                built_rows = rows.insert(self.max_insert_bytes, out);
            });
            if unfinished_rows > 0 {
                client.finish()?;
                context
                    .rows_done
                    .fetch_add(unfinished_rows, Ordering::Relaxed);
            }
            if built_rows == 0 || context.has_failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            client.start_packet(&packet, &packet[SQL_OFFSET..])?;
            unfinished_rows = built_rows;
        }
    }
}

/// Query the maximum packet that a server with MySQL's protocol accepts.
fn query_max_packet_bytes(client: &mut Client<'_>) -> Result<usize, Failed> {
    let answer = client.query("SELECT @@max_allowed_packet")?;
    let value = answer
        .first()
        .and_then(|row| row.first()?.as_deref()?.parse::<usize>().ok());
    value.ok_or_else(|| internal("the server did not say its max_allowed_packet"))
}
