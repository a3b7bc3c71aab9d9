//! The interface that the engine needs of a protocol, and the protocols that it speaks.
//!
//! To add a protocol, add a module with its [`Protocol`], a line in [`protocols!`] and a line in [`login`]. A session's protocol is a
//! variant of one `enum`, so that one event loop serves all and the hot path calls nothing through a pointer.

mod memcached;
mod mysql;
mod postgresql;
mod redis;

use howfar_contract::jobs::{self, SqlProtocol};
use howfar_contract::{Failed, internal};
use howfar_wire::keyvalue::{self, Expects};

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

/// Append the commands of `request`, and register them with `replies`.
#[inline]
fn encode_commands(request: Request<'_>, out: &mut Vec<u8>, replies: &mut impl Expects) -> u64 {
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

#[inline]
fn commands_outcome(
    ended: Result<bool, keyvalue::Malformed>,
) -> Result<Option<Outcome>, ConnectionError> {
    match ended {
        Ok(ended) => Ok(ended.then_some(Outcome::Commands)),
        Err(error) => Err(ConnectionError::MalformedKeyValue(error)),
    }
}
