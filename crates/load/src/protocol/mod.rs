//! The protocols that the engine speaks, by the interface [`Protocol`].
//!
//! To add a protocol, add a module with its [`Protocol`], a line in [`protocols!`] and a line in [`login`].

mod memcached;
mod mysql;
mod postgresql;
mod redis;

use howfar_contract::jobs::{self, SqlProtocol};
use howfar_contract::{Failed, internal};
use howfar_wire::keyvalue::{self, ExpectReplies};

use crate::connection_error::ConnectionError;
use crate::handshake::KeyValueHandshake;
use crate::session::{Handshake, LoginParameters, Outcome, Protocol, Replies, Request};
use crate::workload::commands::Commands;

/// Begin to log in with the protocol of the workload.
pub(crate) fn login(
    parameters: &LoginParameters<'_>,
    out: &mut Vec<u8>,
) -> Result<Box<dyn Handshake>, Failed> {
    use howfar_wire::{memcached, mysql, postgres, redis};
    let protocol = parameters.program.commands().map(Commands::protocol);
    match protocol {
        None => match parameters.program.protocol() {
            SqlProtocol::Mysql => mysql::Answer::login(parameters, out),
            SqlProtocol::Postgresql => postgres::Answer::login(parameters, out),
        },
        Some(jobs::Protocol::Resp2 | jobs::Protocol::Resp3) => {
            redis::Replies::login(parameters, out)
        }
        Some(jobs::Protocol::MemcachedText | jobs::Protocol::MemcachedMeta) => {
            memcached::Replies::login(parameters, out)
        }
    }
}

/// Begin to log in to a key-value store.
fn key_value_login(
    replies: Replies,
    parameters: &LoginParameters<'_>,
    out: &mut Vec<u8>,
) -> Result<Box<dyn Handshake>, Failed> {
    let Some(commands) = parameters.program.commands() else {
        return Err(internal("a key-value store for a workload of statements"));
    };
    let handshake = KeyValueHandshake::begin(commands.protocol(), replies, parameters, out)?;
    Ok(Box::new(handshake))
}

/// Append the text of a statement and, if a request holds a complete transaction, of its further statements. Returns their number.
#[inline]
fn write_statements(
    request: Request<'_>,
    sql: &mut Vec<u8>,
    quote: impl Fn(&mut Vec<u8>, &[u8]) + Copy,
) -> u64 {
    let Request {
        program,
        due,
        cursor,
        memory,
        ..
    } = request;
    program.write_text(due, cursor, memory, sql, quote);
    let mut count = 1;
    if program.is_multi() {
        while let Some(next) = cursor.next(program) {
            sql.push(b';');
            program.write_text(next, cursor, memory, sql, quote);
            count += 1;
        }
    }
    count
}

/// Append the commands of `request`, and register them with `replies`.
#[inline]
fn encode_commands(
    request: Request<'_>,
    out: &mut Vec<u8>,
    replies: &mut impl ExpectReplies,
) -> u64 {
    let Request {
        program,
        due,
        cursor,
        ..
    } = request;
    let Some(commands) = program.commands() else {
        unreachable!("a session of commands belongs to a workload of commands")
    };
    commands.write(due, cursor, out, replies)
}

/// Translate the result of decoding replies to commands: true if all have come.
#[inline]
fn commands_outcome(
    ended: Result<bool, keyvalue::Malformed>,
) -> Result<Option<Outcome>, ConnectionError> {
    match ended {
        Ok(ended) => Ok(ended.then_some(Outcome::Commands)),
        Err(error) => Err(ConnectionError::MalformedKeyValue(error)),
    }
}
