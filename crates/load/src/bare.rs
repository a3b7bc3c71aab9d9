//! The minimum that a client of a load job can do: each connection sends the same bytes again as soon as their answer has arrived.
//!
//! For comparison: nothing is chosen, decoded or recorded, and the end of an answer is recognised by its length, which is that of the
//! first answer. A single connection sends and receives with blocking calls; more are served by rings, with as many threads as the
//! load would have. The clock is read once per answer, as by every client that reports a latency.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use howfar_contract::events::Ready;
use howfar_contract::jobs::{Driver as Requested, LoadJob};
use howfar_contract::{FailCode, Failed, internal};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{self, RecvFlags, SendFlags};

use crate::clock::now_ns;
use crate::connecting::open_blocking;
use crate::connection::{Connection, NextStep};
use crate::connection_error::ConnectionError;
use crate::context::WorkerContext;
use crate::coordinator;
use crate::failure;
use crate::ring::{Event, Ring, Token};
use crate::transport::Transport;
use crate::window::emit_event;
use crate::worker::driver::Driver;
use crate::worker::{Plan, pin_thread};

const BUFFER_BYTES: usize = 64 * 1024;

/// A connection reduced to its socket and the bytes to exchange.
struct BareConnection {
    socket: OwnedFd,
    request: Vec<u8>,
    answer_bytes: usize,
    /// Bytes of the answer still to come.
    missing_bytes: usize,
    token: Token,
}

/// Open a job's connections, report `ready`, and exchange bytes until the end of its window.
pub(crate) fn run(mut job: LoadJob) -> Result<(), Failed> {
    job.driver = if job.connections > 1 {
        Requested::IoUring
    } else {
        Requested::Epoll
    };
    let (plan, cpus) = coordinator::make_plan(job)?;
    let workers = plan.worker_count(&cpus);
    let rings = plan.make_rings(workers)?;
    let began = now_ns();
    let (first, mut receipt) = coordinator::open_first_connections(&plan, &cpus)?;
    receipt.driver = Driver::name(&rings);
    let mut shares: Vec<Vec<BareConnection>> = (0..workers).map(|_| Vec::new()).collect();
    let mut first = first.into_iter();
    for id in 0..u64::from(plan.job.connections) {
        let connection = match first.next() {
            Some(connection) => connection,
            None => open_connection(&plan, id)?,
        };
        shares[id as usize % workers].push(measure_exchange(&plan, connection)?);
    }
    emit_event(&Ready {
        services: BTreeMap::new(),
        receipt,
        connections: plan.job.connections,
        prepared_statements: 0,
        connect_ns: now_ns() - began,
    })?;
    let mut rings = rings.into_iter();
    let threads: Vec<_> = shares
        .into_iter()
        .enumerate()
        .map(|(index, connections)| {
            let pinned = (workers == cpus.len()).then_some(cpus[index]);
            let (plan, ring) = (Arc::clone(&plan), rings.next());
            thread::spawn(move || exchange(&plan, pinned, connections, ring))
        })
        .collect();
    threads.into_iter().try_for_each(|thread| {
        let ended = thread.join();
        ended.unwrap_or_else(|_| Err(internal("a bare loop panicked")))
    })
}

fn open_connection(plan: &Plan, id: u64) -> Result<Connection, Failed> {
    let (socket, session) = open_blocking(
        &plan.login_parameters(),
        &plan.address,
        plan.job.connect_timeout_ns,
    )?;
    let transport = Transport::new(socket, session);
    Ok(Connection::open(id, &plan.program, transport))
}

/// Send the request twice, since the first may carry more (such as parameter types), and measure the length of the answer.
fn measure_exchange(plan: &Plan, mut connection: Connection) -> Result<BareConnection, Failed> {
    let mut context = WorkerContext::new(
        Arc::clone(&plan.program),
        plan.job.client_work,
        plan.job.ignore_errors.clone(),
    );
    let target = &plan.job.login.target;
    let translate = |error: ConnectionError| error.translate(target, None);
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut answer_bytes = 0;
    for _ in 0..2 {
        connection.begin(0, 0, &plan.program);
        connection
            .send(0, &mut context, &mut Driver::Epoll)
            .map_err(translate)?;
        answer_bytes = 0;
        let outcome = loop {
            let Some(transport) = connection.transport() else {
                return Err(internal("an open connection has a socket"));
            };
            ioctl_fionbio(&transport.socket, false)
                .map_err(|error| failure::connection_broken(target, &error.into()))?;
            let (count, _) =
                net::recv(&transport.socket, buffer.as_mut_slice(), RecvFlags::empty())
                    .map_err(|error| failure::connection_broken(target, &error.into()))?;
            if count == 0 {
                return Err(failure::connection_closed(
                    target,
                    "before the bare loop began",
                ));
            }
            answer_bytes += count;
            if let Some(outcome) = connection
                .decode(&buffer[..count], &mut context)
                .map_err(translate)?
            {
                break outcome;
            }
        };
        if let NextStep::Refused(_) = connection.handle_outcome(outcome, &context) {
            let refused = "the server refuses what the bare loop would send";
            return Err(Failed::new(
                FailCode::ServerError,
                refused.to_owned(),
                "Make the tables of the workload first.",
            ));
        }
    }
    let Some(transport) = connection.close() else {
        return Err(internal("an open connection has a socket"));
    };
    Ok(BareConnection {
        socket: transport.socket,
        request: context.packet,
        answer_bytes,
        missing_bytes: answer_bytes,
        token: Token::default(),
    })
}

/// Exchange bytes on one thread's share of the connections until the end of the window.
fn exchange(
    plan: &Plan,
    pinned: Option<u32>,
    mut connections: Vec<BareConnection>,
    ring: Option<Ring>,
) -> Result<(), Failed> {
    if let Some(cpu) = pinned {
        pin_thread(cpu)?;
    }
    let until_ns = now_ns() + plan.job.warmup_ns + plan.job.measure_ns;
    let mut buffer = vec![0; BUFFER_BYTES];
    let outcome = match ring {
        None => exchange_blocking(plan, &connections[0], until_ns, &mut buffer),
        Some(ring) => exchange_over_ring(plan, ring, &mut connections, until_ns, &mut buffer),
    };
    outcome.map_err(|error| failure::connection_broken(&plan.job.login.target, &error))
}

/// Send and receive on a single connection, blocking.
fn exchange_blocking(
    plan: &Plan,
    connection: &BareConnection,
    until_ns: u64,
    buffer: &mut [u8],
) -> io::Result<()> {
    let timeout = Duration::from_nanos(plan.job.stall_timeout_ns);
    sockopt::set_socket_timeout(&connection.socket, Timeout::Recv, Some(timeout))?;
    while now_ns() < until_ns {
        net::send(&connection.socket, &connection.request, SendFlags::NOSIGNAL)?;
        let mut missing_bytes = connection.answer_bytes;
        while missing_bytes > 0 {
            let (count, _) = net::recv(&connection.socket, &mut *buffer, RecvFlags::empty())?;
            if count == 0 {
                return Err(Errno::CONNRESET.into());
            }
            missing_bytes = missing_bytes.checked_sub(count).ok_or(Errno::BADMSG)?;
        }
    }
    Ok(())
}

/// Send and receive over a ring: the requests that follow all the answers received together are submitted in one call.
fn exchange_over_ring(
    plan: &Plan,
    mut ring: Ring,
    connections: &mut [BareConnection],
    until_ns: u64,
    buffer: &mut [u8],
) -> io::Result<()> {
    ring.start()?;
    for (index, connection) in connections.iter_mut().enumerate() {
        connection.token = ring.register(&connection.socket, index)?;
        ring.send(&connection.socket, connection.token, &connection.request)?;
    }
    let mut now = now_ns();
    while now < until_ns {
        ring.wait(Some(plan.job.stall_timeout_ns))?;
        let mut received_any = false;
        while let Some(event) = ring.next(buffer) {
            received_any = true;
            let (Event::Received { token, .. } | Event::Starved { token }) = event else {
                return Err(Errno::CONNRESET.into());
            };
            let connection = &mut connections[token.index()];
            if let Event::Received { count, .. } = event {
                connection.missing_bytes = connection
                    .missing_bytes
                    .checked_sub(count)
                    .ok_or(Errno::BADMSG)?;
            }
            if connection.missing_bytes == 0 {
                now = now_ns();
                connection.missing_bytes = connection.answer_bytes;
                ring.send(&connection.socket, token, &connection.request)?;
            }
            if !matches!(event, Event::Received { is_armed: true, .. }) {
                ring.arm_receive(&connection.socket, token)?;
            }
        }
        if !received_any {
            return Err(Errno::TIMEDOUT.into());
        }
    }
    Ok(())
}
