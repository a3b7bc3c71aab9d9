//! Sets, reads or deletes all keys of a workload, which take the place of tables in a key-value store.

use std::sync::atomic::Ordering;

use howfar_contract::jobs::{Action, KeyValue};
use howfar_contract::{Failed, internal};

use super::TablesContext;
use crate::connecting::open_blocking;
use crate::exchange::Exchange;
use crate::failure;
use crate::session::{LoginParameters, Outcome, Replies};
use crate::workload::commands::{Commands, Verb};
use howfar_wire::mysql::row::RowHandling;

/// A request is sent once it has this many bytes.
const BATCH_BYTES: usize = 64 * 1024;
/// Maximum commands in a request, which limits the replies to reads.
const BATCH_KEYS: u64 = 256;

/// Do the share of connection `number`: every n-th batch of keys, with n connections.
pub(super) fn process_keys(
    context: &TablesContext,
    load: &KeyValue,
    parameters: &LoginParameters<'_>,
    number: u64,
) -> Result<(), Failed> {
    let commands = parameters
        .program
        .commands()
        .ok_or_else(|| internal("a workload of keys without commands"))?;
    let (socket, mut session) =
        open_blocking(parameters, &context.address, context.job.connect_timeout_ns)?;
    let mut exchange = Exchange {
        target: &context.job.login.target,
        socket: &socket,
        channel: &mut session.channel,
        idle_timeout_ns: context.job.stall_timeout_ns,
        // No limit: a batch of long values may take long over a slow path.
        total_timeout_ns: u64::MAX,
    };
    let verb = match context.job.action {
        Action::Prepare => Verb::Set,
        Action::Warmup => Verb::Get,
        Action::Cleanup => Verb::Delete,
    };
    let connections = u64::from(context.connections);
    let mut first = 1 + number * BATCH_KEYS;
    while first <= load.keys && !context.has_failed.load(Ordering::Relaxed) {
        let last = load.keys.min(first + BATCH_KEYS - 1);
        let mut next = first;
        while next <= last {
            let batch_start = next;
            let mut request = Vec::new();
            let replies = session
                .replies
                .commands()
                .ok_or_else(|| internal("a store that answers no commands"))?;
            replies.begin();
            while next <= last && request.len() < BATCH_BYTES {
                commands.write_command(verb, next, &mut request, replies);
                next += 1;
            }
            let hits = send_batch(
                &mut exchange,
                &request,
                &mut session.replies,
                parameters,
                commands,
            )?;
            let key_count = match context.job.action {
                // Count only keys found: a store that has evicted keys answers without an error.
                Action::Warmup => u64::from(hits),
                Action::Prepare | Action::Cleanup => next - batch_start,
            };
            context.rows_done.fetch_add(key_count, Ordering::Relaxed);
        }
        first += connections * BATCH_KEYS;
    }
    Ok(())
}

/// Send one request and receive all its replies; returns the number of keys found. Any error of the server ends the job.
fn send_batch(
    exchange: &mut Exchange<'_>,
    request: &[u8],
    replies: &mut Replies,
    parameters: &LoginParameters<'_>,
    commands: &Commands,
) -> Result<u32, Failed> {
    let mut handling = RowHandling::Skip;
    exchange.request(request, "a batch of keys", |bytes| {
        match replies.decode(bytes, &[], &mut handling) {
            Ok(outcome) => Ok(matches!(outcome, Some(Outcome::Commands))),
            Err(error) => Err(error.translate(parameters.target, Some(commands.protocol()))),
        }
    })?;
    let counts = replies.counts();
    match counts.and_then(|counts| counts.errors.first()) {
        None => Ok(counts.map_or(0, |counts| counts.hits)),
        Some(error_reply) => Err(failure::command_failed(
            parameters.target,
            "command",
            error_reply,
        )),
    }
}
