//! The end of a job of commands, which cuts its waits short.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use howfar_contract::{Failed, internal};

/// Flag that a job is over; it may be set in the middle of a command.
#[derive(Debug, Clone, Default)]
pub(crate) struct JobOver(Arc<AtomicBool>);

impl JobOver {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The failure of a wait that the end of the job cut short.
pub(crate) fn interrupted_failure() -> Failed {
    internal("the job ended during a request")
}
