//! Why an open connection cannot continue.

use std::io;

use howfar_contract::Failed;
use howfar_contract::jobs::{Protocol, Target};
use howfar_wire::keyvalue;
use howfar_wire::mysql::Malformed;
use howfar_wire::postgres;

use crate::channel::{self, ChannelError};
use crate::failure;

/// Why a connection cannot continue.
#[derive(Debug)]
pub(crate) enum ConnectionError {
    Channel(ChannelError),
    Malformed(Malformed),
    /// Bytes that do not follow the protocol of a key-value store.
    MalformedKeyValue(keyvalue::Malformed),
    /// Bytes that do not follow PostgreSQL's protocol.
    MalformedPostgres(postgres::Malformed),
    Io(io::Error),
}

impl ConnectionError {
    /// The failure as the contract defines it.
    pub(crate) fn translate(&self, target: &Target, protocol: Option<Protocol>) -> Failed {
        match self {
            Self::Io(error) => failure::connection_broken(target, error),
            Self::Channel(error) => channel::translate_error(target, error),
            Self::Malformed(error) => failure::malformed_mysql(target, *error),
            Self::MalformedPostgres(error) => failure::malformed_postgres(target, *error),
            Self::MalformedKeyValue(error) => failure::malformed_key_value(target, protocol, error),
        }
    }
}

impl From<ChannelError> for ConnectionError {
    fn from(error: ChannelError) -> Self {
        Self::Channel(error)
    }
}
