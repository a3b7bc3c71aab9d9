//! Repeats recorded pages against a real server: one thread, as in the application, runs one statement after the other with the
//! recorded gaps between them. It spins through gaps, because the application computes there: a sleep would let the CPU go idle,
//! and waking it takes time.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use howfar_contract::events::Repeated;
use howfar_contract::jobs::{RepeatJob, RepeatPage, SqlProtocol, find_preopened_connections};
use howfar_contract::{Failed, internal};

use crate::channel::ChannelOptions;
use crate::client::{Client, Limits};
use crate::clock::now_ns;
use crate::session::LoginParameters;
use crate::socket::Address;
use crate::tables::unprepared_program;
use crate::window::emit_event;

/// Maximum time to spin. Longer gaps sleep first: they are timers, not computations.
const MAX_SPIN_NS: u64 = 20_000_000;

/// Run a job to its end, and emit an event for each page.
pub(crate) fn run(job: &RepeatJob) -> Result<(), Failed> {
    job.check()?;
    let address = Address::parse(&job.login.target)?;
    let channel_options = ChannelOptions::new(&job.session, &job.login.target)?;
    let program = unprepared_program(job.protocol);
    let parameters = LoginParameters {
        read_only: job.read_only,
        ..LoginParameters::from_login(&job.login, &channel_options, &program)
    };
    let limits = Limits {
        connect_ns: job.connect_timeout_ns,
        statement_timeout_ns: job.stall_timeout_ns,
    };
    let open = || Client::open(&parameters, &address, limits);
    let mut clients = HashMap::new();
    let steps = job.pages.iter().flat_map(|page| &page.steps);
    let steps = steps.map(|step| (step.connection, step.opens));
    for connection in find_preopened_connections(steps) {
        clients.insert(connection, make_read_only(open()?, job)?);
    }
    for page in &job.pages {
        emit_event(&repeat_page(page, job, &mut clients, &open)?)?;
    }
    Ok(())
}

/// Make a new connection read only if the job requests it.
fn make_read_only<'a>(mut client: Client<'a>, job: &RepeatJob) -> Result<Client<'a>, Failed> {
    if job.read_only && job.protocol == SqlProtocol::Mysql {
        client.execute("SET SESSION TRANSACTION READ ONLY")?;
    }
    Ok(client)
}

fn repeat_page<'a>(
    page: &RepeatPage,
    job: &RepeatJob,
    clients: &mut HashMap<u32, Client<'a>>,
    open: &impl Fn() -> Result<Client<'a>, Failed>,
) -> Result<Repeated, Failed> {
    let began_ns = now_ns();
    let mut result = Repeated {
        took_ns: 0,
        opened_ns: Vec::new(),
        round_trips_ns: Vec::with_capacity(page.steps.len()),
        client_late_ns: 0,
    };
    let (mut last_ns, mut preparing_ns) = (began_ns, 0);
    for step in &page.steps {
        let due_ns = last_ns + step.gap_ns;
        let sent_ns = wait_until(due_ns);
        result.client_late_ns += sent_ns - due_ns;
        if step.opens {
            // Close the old connection first, as the application would.
            clients.remove(&step.connection);
            let client = open()?;
            let opened_ns = now_ns();
            result.opened_ns.push(opened_ns - sent_ns);
            clients.insert(step.connection, make_read_only(client, job)?);
            preparing_ns += now_ns() - opened_ns;
        }
        last_ns = now_ns();
        if let Some(index) = step.statement {
            let client = clients
                .get_mut(&step.connection)
                .ok_or_else(|| internal("a step has no connection"))?;
            let statement = &job.statements[index as usize];
            if step.may_fail {
                client.attempt(statement)?;
            } else {
                client.execute(statement)?;
            }
            let ended_ns = now_ns();
            result.round_trips_ns.push(ended_ns - last_ns);
            last_ns = ended_ns;
        }
    }
    result.took_ns = wait_until(last_ns + page.rest_ns) - began_ns - preparing_ns;
    Ok(result)
}

/// Wait until `due_ns`; returns the time when the wait ended.
fn wait_until(due_ns: u64) -> u64 {
    loop {
        let now = now_ns();
        if now >= due_ns {
            return now;
        }
        if due_ns - now > MAX_SPIN_NS {
            thread::sleep(Duration::from_nanos(due_ns - now - MAX_SPIN_NS));
        } else {
            std::hint::spin_loop();
        }
    }
}
