//! Sets, reads or deletes all keys of a workload, which take the place of tables in a key-value store.

use std::sync::atomic::Ordering;

use howfar_contract::jobs::{Action, KeyValue};
use howfar_contract::{Failed, internal};

use super::Site;
use crate::connecting::open_one;
use crate::exchange::Exchange;
use crate::failure;
use crate::login::Entry;
use crate::protocol::{Outcome, Replies};
use crate::workload::commands::{Commands, Verb};
use howfar_wire::mysql::row::Work;

/// A request is sent once it has this many bytes.
const BATCH_BYTES: usize = 64 * 1024;
/// Maximum commands in a request, which limits the replies to reads.
const BATCH: u64 = 256;

/// The work of connection `number` of a job: every n-th batch of keys.
pub(super) fn work(
    site: &Site,
    load: &KeyValue,
    entry: &Entry<'_>,
    number: u64,
) -> Result<(), Failed> {
    let commands = entry
        .program
        .commands()
        .ok_or_else(|| internal("a workload of keys without commands"))?;
    let (socket, mut session) = open_one(entry, &site.address, site.job.connect_timeout_ns)?;
    let mut exchange = Exchange {
        target: &site.job.target,
        socket: &socket,
        channel: &mut session.channel,
        limit_ns: site.job.stall_timeout_ns,
        // No limit: a batch of long values may take long over a slow path.
        most_ns: u64::MAX,
    };
    let verb = match site.job.action {
        Action::Prepare => Verb::Set,
        Action::Warmup => Verb::Get,
        Action::Cleanup => Verb::Delete,
    };
    let connections = u64::from(site.connections);
    let mut first = 1 + number * BATCH;
    while first <= load.keys && !site.stop.load(Ordering::Relaxed) {
        let last = load.keys.min(first + BATCH - 1);
        let mut next = first;
        while next <= last {
            let begun = next;
            let mut request = Vec::new();
            let replies = session
                .replies
                .commands()
                .ok_or_else(|| internal("a store that answers no commands"))?;
            replies.begin();
            while next <= last && request.len() < BATCH_BYTES {
                commands.write_one(verb, next, &mut request, replies);
                next += 1;
            }
            let hits = answered(
                &mut exchange,
                &request,
                &mut session.replies,
                entry,
                commands,
            )?;
            let done = match site.job.action {
                // Count only keys found: a store that has evicted keys answers without an error.
                Action::Warmup => u64::from(hits),
                Action::Prepare | Action::Cleanup => next - begun,
            };
            site.inserted.fetch_add(done, Ordering::Relaxed);
        }
        first += connections * BATCH;
    }
    Ok(())
}

/// Send one request and receive all its replies; returns the number of keys found. Any error of the server ends the job.
fn answered(
    exchange: &mut Exchange<'_>,
    request: &[u8],
    replies: &mut Replies,
    entry: &Entry<'_>,
    commands: &Commands,
) -> Result<u32, Failed> {
    let mut work = Work::Skip;
    exchange.ask(request, "a batch of keys", |bytes| {
        match replies.decode(bytes, &[], &mut work) {
            Ok(ended) => Ok(matches!(ended, Some(Outcome::Commands))),
            Err(broken) => Err(broken.translate(entry.target, Some(commands.protocol()))),
        }
    })?;
    let counts = replies.counts();
    match counts.and_then(|counts| counts.refused.first()) {
        None => Ok(counts.map_or(0, |counts| counts.hits)),
        Some(refusal) => Err(failure::command(entry.target, "command", refusal)),
    }
}
