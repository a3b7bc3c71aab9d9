//! Decodes the answer to one text query from a stream cut anywhere; counts or keeps the rows.

mod mysql;
mod postgres;

use howfar_wire::mysql::ServerError;

use super::Rows;
use crate::connection_error::ConnectionError;
use crate::session::Replies;

/// Maximum number of rows that are kept.
const MAX_KEPT_ROWS: usize = 1 << 16;

/// Row counts of a statement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RowCounts {
    /// Rows returned.
    pub(crate) rows: u64,
    /// Rows changed.
    pub(crate) affected: u64,
}

/// How an answer ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AnswerEnd {
    Done,
    Failed(ServerError),
}

/// The part of an answer received so far.
#[derive(Debug)]
pub(crate) enum Results {
    MySql(mysql::Results),
    Postgres(postgres::Results),
}

impl Results {
    /// Results of an answer in the protocol of `replies`; `keep`: its rows are kept, not only counted.
    pub(crate) fn for_replies(replies: &Replies, keep: bool) -> Self {
        match replies {
            Replies::Postgres(_) => Self::Postgres(postgres::Results::new(keep)),
            _ => Self::MySql(mysql::Results::new(keep)),
        }
    }

    /// Decode all of `input`; returns how the answer ended once it is complete.
    pub(crate) fn feed(&mut self, input: &[u8]) -> Result<Option<AnswerEnd>, ConnectionError> {
        match self {
            Self::MySql(results) => results.feed(input).map_err(ConnectionError::Malformed),
            Self::Postgres(results) => results
                .feed(input)
                .map_err(ConnectionError::MalformedPostgres),
        }
    }

    /// The counts and the rows that were kept.
    pub(crate) fn finish(self) -> (RowCounts, Rows) {
        match self {
            Self::MySql(results) => results.finish(),
            Self::Postgres(results) => results.finish(),
        }
    }
}
