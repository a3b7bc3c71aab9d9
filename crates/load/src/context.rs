//! The buffers and settings that the connections of one worker share.

use std::sync::Arc;

use howfar_contract::jobs::{ClientWork, IgnoredErrors};
use howfar_wire::mysql::row::RowHandling;

use crate::workload::Program;

/// Buffers and settings of a worker, shared by its connections.
#[derive(Debug)]
pub(crate) struct WorkerContext {
    pub(crate) program: Arc<Program>,
    pub(crate) ignored: IgnoredErrors,
    pub(crate) packet: Vec<u8>,
    pub(crate) sealed: Vec<u8>,
    /// Decoded bytes received since the worker last checked its commands and time limits.
    pub(crate) unchecked_bytes: u64,
    pub(crate) plain: Vec<u8>,
    pub(crate) row_handling: RowHandling,
}

impl WorkerContext {
    pub(crate) fn new(
        program: Arc<Program>,
        client_work: ClientWork,
        ignored: IgnoredErrors,
    ) -> Self {
        let row_handling = match client_work {
            ClientWork::Skip => RowHandling::Skip,
            ClientWork::Touch => RowHandling::touch(),
            ClientWork::Decode => RowHandling::Decode,
        };
        Self {
            program,
            ignored,
            packet: Vec::new(),
            sealed: Vec::new(),
            unchecked_bytes: 0,
            plain: Vec::new(),
            row_handling,
        }
    }
}
