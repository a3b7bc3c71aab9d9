//! What answers a connection's requests, whatever the protocol: a choice made once for a job, so that one event loop serves all.

use howfar_contract::jobs::Protocol;
use howfar_wire::keyvalue::{self, CommandCounts, Expected, Refusal};
use howfar_wire::memcached::{self, Dialect};
use howfar_wire::mysql::answer::Done;
use howfar_wire::mysql::row::Work;
use howfar_wire::mysql::{self, Answer, ServerError};
use howfar_wire::redis;

use crate::connection::Broken;

/// The state of one connection's present answer.
#[derive(Debug)]
pub(crate) enum Replies {
    Sql(Answer),
    Redis(redis::Replies),
    Memcached(memcached::Replies),
}

/// How an answer ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done(Done),
    Failed(ServerError),
    /// Commands are answered, well or not: [`Replies::counts`].
    Commands,
}

/// Why a server refuses.
#[derive(Debug)]
pub(crate) enum Refused {
    Sql(ServerError),
    Command(Refusal),
}

impl From<mysql::Outcome> for Outcome {
    #[inline]
    fn from(outcome: mysql::Outcome) -> Self {
        match outcome {
            mysql::Outcome::Done(done) => Self::Done(done),
            mysql::Outcome::Failed(error) => Self::Failed(error),
        }
    }
}

impl Replies {
    /// For commands in `protocol`.
    pub(crate) fn of(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Resp2 | Protocol::Resp3 => Self::Redis(redis::Replies::default()),
            Protocol::MemcachedText => Self::Memcached(memcached::Replies::new(Dialect::Text)),
            Protocol::MemcachedMeta => Self::Memcached(memcached::Replies::new(Dialect::Meta)),
        }
    }

    /// A request of commands begins.
    #[inline]
    pub(crate) fn begin_commands(&mut self) {
        match self {
            Self::Sql(_) => unreachable!("statements are no commands"),
            Self::Redis(replies) => replies.begin(),
            Self::Memcached(replies) => replies.begin(),
        }
    }

    /// Its next command.
    #[inline]
    pub(crate) fn expect(&mut self, asked: Expected) {
        match self {
            Self::Sql(_) => unreachable!("statements are no commands"),
            Self::Redis(replies) => replies.expect(asked),
            Self::Memcached(replies) => replies.expect(asked),
        }
    }

    /// A statement was sent; `binary` when it was an execute.
    #[inline]
    pub(crate) fn begin_statement(&mut self, binary: bool) {
        match self {
            Self::Sql(answer) => answer.begin(binary),
            _ => unreachable!("commands are no statements"),
        }
    }

    /// What came of the commands.
    #[inline]
    pub(crate) fn counts(&self) -> Option<&CommandCounts> {
        match self {
            Self::Sql(_) => None,
            Self::Redis(replies) => Some(replies.counts()),
            Self::Memcached(replies) => Some(replies.counts()),
        }
    }

    /// True when bytes may follow the end of an answer in one read: what a server says unasked.
    pub(crate) fn may_go_on(&self) -> bool {
        !matches!(self, Self::Sql(_))
    }

    /// Take the bytes of `input`, all of them, and say how the answer ended once it did.
    #[inline]
    pub(crate) fn feed(
        &mut self,
        input: &[u8],
        types: &[u8],
        work: &mut Work,
    ) -> Result<Option<Outcome>, Broken> {
        match self {
            Self::Sql(answer) => match answer.feed(input, types, work) {
                Ok(ended) => Ok(ended.map(Outcome::from)),
                Err(error) => Err(Broken::Malformed(error)),
            },
            Self::Redis(replies) => ended_commands(replies.feed(input, |part| work.bytes(part))),
            Self::Memcached(replies) => {
                ended_commands(replies.feed(input, |part| work.bytes(part)))
            }
        }
    }
}

#[inline]
fn ended_commands(ended: Result<bool, keyvalue::Malformed>) -> Result<Option<Outcome>, Broken> {
    match ended {
        Ok(ended) => Ok(ended.then_some(Outcome::Commands)),
        Err(error) => Err(Broken::NotSpoken(error)),
    }
}
