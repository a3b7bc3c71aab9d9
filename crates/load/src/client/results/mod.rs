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
    /// For an answer in the protocol of `replies`, whose rows are counted or kept.
    pub(crate) fn for_replies(replies: &Replies, keep: bool) -> Self {
        match replies {
            Replies::Postgres(_) => Self::Postgres(postgres::Results::new(keep)),
            _ if keep => Self::MySql(mysql::Results::keeping()),
            _ => Self::MySql(mysql::Results::counting()),
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

    pub(crate) fn row_counts(&self) -> RowCounts {
        match self {
            Self::MySql(results) => results.row_counts(),
            Self::Postgres(results) => results.row_counts(),
        }
    }

    pub(crate) fn into_rows(self) -> Rows {
        match self {
            Self::MySql(results) => results.into_rows(),
            Self::Postgres(results) => results.into_rows(),
        }
    }
}
