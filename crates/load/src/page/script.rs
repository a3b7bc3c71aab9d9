//! A scripted web page, which the load generator itself runs: round trips to databases and stores, with CPU work in between.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use howfar_contract::events::ServiceUse;
use howfar_contract::jobs::{
    PageConnect, PageJob, PageScript, PageStep, Service, SqlProtocol, Store, Workload,
};
use howfar_contract::{FailCode, Failed, internal};

use super::cpu::{Burner, ComputeSpeed};
use super::page_record::zero_usage;
use super::service::{Buffers, ServiceConnection, ServiceEndpoint};
use super::{Page, PageRecord, PageSetup};
use crate::clock::{now_ns, thread_cpu_ns};
use crate::random_stream::RandomStream;
use crate::session::{Outcome, Request};
use crate::statements::Statements;
use crate::tables::unprepared_program;
use crate::workload::{Cursor, Memory, Program};

/// Indices of the services in all arrays here. In `LATENCY_KINDS` a service has its round trips at its index, and its connects at
/// `CONNECT` plus its index.
const MYSQL: usize = 0;
const POSTGRESQL: usize = 1;
const REDIS: usize = 2;
const MEMCACHED: usize = 3;
const SERVICE_COUNT: usize = 4;
const LATENCY_KINDS: [&str; 2 * SERVICE_COUNT + 1] = [
    "turn.mysql",
    "turn.postgresql",
    "turn.redis",
    "turn.memcached",
    "connect.mysql",
    "connect.postgresql",
    "connect.redis",
    "connect.memcached",
    "cpu",
];
const SERVICE_NAMES: [&str; SERVICE_COUNT] = ["mysql", "postgresql", "redis", "memcached"];
const CONNECT: usize = SERVICE_COUNT;
const CPU: usize = 2 * SERVICE_COUNT;
/// Part of the seed of keys, which makes them independent of the values in statements.
const KEY_STREAM: u64 = 0x5061_6765_0000_0000;

/// What all workers share: the services, and the script that each of them runs.
struct SharedScript {
    endpoints: [Option<ServiceEndpoint>; SERVICE_COUNT],
    /// Index of the SQL service.
    sql_index: usize,
    /// For each service, whether a step uses it.
    is_needed: [bool; SERVICE_COUNT],
    steps: Vec<PageStep>,
    rounds: u64,
    connects_per_page: bool,
    seed: u64,
}

impl SharedScript {
    fn endpoint(&self, service: usize) -> Result<&ServiceEndpoint, Failed> {
        self.endpoints[service]
            .as_ref()
            .ok_or_else(|| internal("a step uses a service that the job lacks"))
    }
}

/// Prepare a job before its first page: open connections, make a receipt of each service, and a page for each worker.
pub(super) fn setup(job: &PageJob, script: &PageScript, cpus: &[u32]) -> Result<PageSetup, Failed> {
    let shared = Arc::new(share_script(job, script)?);
    let mut receipts = Vec::new();
    let mut open_connections: [Vec<ServiceConnection>; SERVICE_COUNT] = Default::default();
    for (service, endpoint) in shared.endpoints.iter().enumerate() {
        let Some(endpoint) = endpoint else { continue };
        let (receipt, connections) =
            endpoint.open_with_receipt(script.connect, job.workers, cpus)?;
        receipts.push((endpoint.name, receipt));
        if shared.is_needed[service] && !shared.connects_per_page {
            open_connections[service] = connections;
            open_connections[service].reverse();
        } else {
            connections.into_iter().for_each(ServiceConnection::close);
        }
    }
    let (_, first_receipt) = receipts
        .first()
        .cloned()
        .ok_or_else(|| internal("a script without a service"))?;
    let speed = ComputeSpeed::measure();
    let pages = (0..u64::from(job.workers)).map(|worker| {
        let connections = open_connections.each_mut().map(Vec::pop);
        Box::new(ScriptWorker::new(&shared, worker, connections, speed)) as Box<dyn Page>
    });
    let pages = pages.collect();
    // Connections that no worker took.
    open_connections
        .into_iter()
        .flatten()
        .for_each(ServiceConnection::close);
    Ok(PageSetup {
        receipt: first_receipt,
        services: BTreeMap::from_iter(receipts),
        kinds: LATENCY_KINDS.to_vec(),
        pages,
    })
}

fn share_script(job: &PageJob, script: &PageScript) -> Result<SharedScript, Failed> {
    let limits = (job.connect_timeout_ns, job.stall_timeout_ns);
    let endpoint = |index: usize, service: Option<&Service>, workload: Option<Workload>| {
        service
            .map(|service| {
                let protocol = match index {
                    POSTGRESQL => SqlProtocol::Postgresql,
                    _ => SqlProtocol::Mysql,
                };
                let program = build_program(job, protocol, workload)?;
                ServiceEndpoint::new(SERVICE_NAMES[index], service, program, limits)
            })
            .transpose()
    };
    let key_workload = |keys: Option<&_>| keys.cloned().map(Workload::KeyValue);
    let queries = script.queries().map(Workload::Custom);
    let sql_index = match script.protocol() {
        SqlProtocol::Mysql => MYSQL,
        SqlProtocol::Postgresql => POSTGRESQL,
    };
    let mut is_needed = [false; SERVICE_COUNT];
    for step in &script.steps {
        match step {
            PageStep::Query { .. } => is_needed[sql_index] = true,
            PageStep::Get { store, .. } => is_needed[service_index(*store)] = true,
            PageStep::Cpu { .. } => {}
        }
    }
    Ok(SharedScript {
        endpoints: [
            endpoint(MYSQL, script.mysql.as_ref(), queries.clone())?,
            endpoint(POSTGRESQL, script.postgresql.as_ref(), queries)?,
            endpoint(
                REDIS,
                script.redis.as_ref(),
                key_workload(script.redis_keys.as_ref()),
            )?,
            endpoint(
                MEMCACHED,
                script.memcached.as_ref(),
                key_workload(script.memcached_keys.as_ref()),
            )?,
        ],
        sql_index,
        is_needed,
        steps: script.steps.clone(),
        rounds: u64::from(script.rounds),
        connects_per_page: script.connect == PageConnect::PerPage,
        seed: job.seed,
    })
}

fn build_program(
    job: &PageJob,
    protocol: SqlProtocol,
    workload: Option<Workload>,
) -> Result<Program, Failed> {
    let Some(workload) = workload else {
        return Ok(unprepared_program(protocol));
    };
    Program::with_protocol(protocol, 1, &workload, job.workers, job.seed)
        .map_err(|reason| Failed::new(FailCode::BadJob, reason, "Correct the steps of the page."))
}

fn service_index(store: Store) -> usize {
    match store {
        Store::Redis => REDIS,
        Store::Memcached => MEMCACHED,
    }
}

/// The state of one worker, which runs the script again and again.
struct ScriptWorker {
    script: Arc<SharedScript>,
    worker: u64,
    /// Number of rounds begun so far, over all pages. Each round has its own random numbers.
    rounds_begun: u64,
    connections: [Option<ServiceConnection>; SERVICE_COUNT],
    memory: Memory,
    cursor: Cursor,
    key_streams: [RandomStream; SERVICE_COUNT],
    buffers: Buffers,
    burner: Burner,
    usage: [ServiceUse; SERVICE_COUNT],
}

impl ScriptWorker {
    fn new(
        script: &Arc<SharedScript>,
        worker: u64,
        connections: [Option<ServiceConnection>; SERVICE_COUNT],
        speed: ComputeSpeed,
    ) -> Self {
        let default_program = unprepared_program(SqlProtocol::Mysql);
        let program = script.endpoints[script.sql_index]
            .as_ref()
            .map_or(&default_program, |endpoint| &endpoint.program);
        Self {
            memory: program.memory(worker),
            cursor: program.transaction(worker, 0),
            script: Arc::clone(script),
            worker,
            rounds_begun: 0,
            connections,
            key_streams: [RandomStream::new(0, 0, 0); SERVICE_COUNT],
            buffers: Buffers::new(),
            burner: Burner::new(speed),
            usage: SERVICE_NAMES.map(zero_usage),
        }
    }

    /// Begin the next round, with a transaction and keys of its own.
    fn begin_round(&mut self, script: &SharedScript) {
        if let Some(endpoint) = &script.endpoints[script.sql_index] {
            self.cursor = endpoint.program.transaction(self.worker, self.rounds_begun);
        }
        for store in [REDIS, MEMCACHED] {
            let seed = script.seed ^ KEY_STREAM ^ store as u64;
            self.key_streams[store] = RandomStream::new(seed, self.worker, self.rounds_begun);
        }
        self.rounds_begun += 1;
    }

    fn run_step(
        &mut self,
        script: &SharedScript,
        step: &PageStep,
        record: &mut PageRecord,
    ) -> Result<(), Failed> {
        match step {
            PageStep::Cpu { cpu_ns } => self.burner.burn(*cpu_ns),
            PageStep::Query { repeat, .. } => {
                for _ in 0..*repeat {
                    self.run_query(script, record)?;
                }
            }
            PageStep::Get {
                store,
                keys_each,
                repeat,
            } => {
                for _ in 0..*repeat {
                    self.run_get(script, service_index(*store), *keys_each, record)?;
                }
            }
        }
        Ok(())
    }

    fn run_query(&mut self, script: &SharedScript, record: &mut PageRecord) -> Result<(), Failed> {
        let sql_index = script.sql_index;
        let endpoint = script.endpoint(sql_index)?;
        let program = &endpoint.program;
        let Some(statement) = self.cursor.next(program) else {
            return Err(internal(
                "a round runs more queries than its transaction has",
            ));
        };
        let connection = get_connection(
            &mut self.connections[sql_index],
            endpoint,
            sql_index,
            &mut self.usage,
            record,
        )?;
        self.buffers.packet.clear();
        let request = Request {
            program,
            due: statement,
            cursor: &mut self.cursor,
            memory: &mut self.memory,
            statements: &mut Statements::default(),
        };
        connection.replies.encode(request, &mut self.buffers.packet);
        let operation = (self.worker, program.kinds()[statement.kind].name.as_str());
        round_trip(
            connection,
            endpoint,
            sql_index,
            &mut self.buffers,
            operation,
            &mut self.usage,
            record,
        )
    }

    fn run_get(
        &mut self,
        script: &SharedScript,
        store: usize,
        keys_each: u16,
        record: &mut PageRecord,
    ) -> Result<(), Failed> {
        let endpoint = script.endpoint(store)?;
        let commands = endpoint
            .program
            .commands()
            .ok_or_else(|| internal("a store without commands"))?;
        let connection = get_connection(
            &mut self.connections[store],
            endpoint,
            store,
            &mut self.usage,
            record,
        )?;
        self.buffers.packet.clear();
        let replies = connection
            .replies
            .commands()
            .ok_or_else(|| internal("a store that answers no commands"))?;
        commands.write_read(
            keys_each,
            &mut self.key_streams[store],
            &mut self.buffers.packet,
            replies,
        );
        let name = if keys_each == 1 {
            "command.get"
        } else {
            "command.multi_get"
        };
        let operation = (self.worker, name);
        round_trip(
            connection,
            endpoint,
            store,
            &mut self.buffers,
            operation,
            &mut self.usage,
            record,
        )
    }
}

/// Return the connection to a service; open it first if it is not open.
fn get_connection<'a>(
    slot: &'a mut Option<ServiceConnection>,
    endpoint: &ServiceEndpoint,
    service: usize,
    usage: &mut [ServiceUse; SERVICE_COUNT],
    record: &mut PageRecord,
) -> Result<&'a mut ServiceConnection, Failed> {
    if slot.is_none() {
        let began_ns = now_ns();
        *slot = Some(endpoint.open()?);
        record.add_latency(CONNECT + service, now_ns() - began_ns);
        usage[service].connects += 1;
    }
    slot.as_mut()
        .ok_or_else(|| internal("a connection that was just opened is not there"))
}

/// Make one round trip: a request, and its answer to the last byte.
fn round_trip(
    connection: &mut ServiceConnection,
    endpoint: &ServiceEndpoint,
    service: usize,
    buffers: &mut Buffers,
    operation: (u64, &str),
    usage: &mut [ServiceUse; SERVICE_COUNT],
    record: &mut PageRecord,
) -> Result<(), Failed> {
    let sent_ns = now_ns();
    let (outcome, received_bytes) = connection.run_request(endpoint, buffers, operation)?;
    record.add_latency(service, now_ns() - sent_ns);
    match &outcome {
        Outcome::Done(done) => record.counters.add_answer(done),
        Outcome::Commands => {
            if let Some(counts) = connection.replies.counts() {
                record.counters.add_commands(counts);
                usage[service].hits += u64::from(counts.hits);
                usage[service].misses += u64::from(counts.misses);
            }
        }
        Outcome::Failed(_) => {}
    }
    let usage = &mut usage[service];
    usage.requests += 1;
    usage.round_trips += 1;
    usage.bytes.to_server += buffers.packet.len() as u64;
    usage.bytes.to_client += received_bytes;
    Ok(())
}

impl Page for ScriptWorker {
    fn open(&mut self) -> Result<(), Failed> {
        let script = Arc::clone(&self.script);
        if script.connects_per_page {
            return Ok(());
        }
        for (service, endpoint) in script.endpoints.iter().enumerate() {
            let is_missing = script.is_needed[service] && self.connections[service].is_none();
            if let Some(endpoint) = endpoint.as_ref().filter(|_| is_missing) {
                self.connections[service] = Some(endpoint.open()?);
            }
        }
        Ok(())
    }

    fn run_page(&mut self, record: &mut PageRecord) -> Result<u64, Failed> {
        let script = Arc::clone(&self.script);
        let cpu_at_start_ns = thread_cpu_ns();
        self.usage = SERVICE_NAMES.map(zero_usage);
        for _ in 0..script.rounds {
            self.begin_round(&script);
            for step in &script.steps {
                self.run_step(&script, step, record)?;
            }
        }
        if script.connects_per_page {
            self.close();
        }
        record.add_latency(CPU, thread_cpu_ns() - cpu_at_start_ns);
        let ended_ns = now_ns();
        for (usage, endpoint) in self.usage.iter().zip(&script.endpoints) {
            if endpoint.is_some() {
                record.counters.queries += usage.requests;
                record.counters.round_trips += usage.round_trips;
                record.counters.to_server += usage.bytes.to_server;
                record.counters.to_client += usage.bytes.to_client;
                record.services.push(*usage);
            }
        }
        Ok(ended_ns)
    }

    fn sockets(&self) -> Vec<Arc<OwnedFd>> {
        self.connections
            .iter()
            .flatten()
            .map(ServiceConnection::socket)
            .collect()
    }

    fn close(&mut self) {
        for connection in &mut self.connections {
            if let Some(connection) = connection.take() {
                connection.close();
            }
        }
    }
}
