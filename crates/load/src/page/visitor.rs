//! A page that a real application makes, asked for over FastCGI.

use howfar_record::jobs::{FastCgi, PageJob};
use howfar_record::{FailCode, Failed};

use super::Company;
use crate::failure;

/// Everything before the first page: the receipt, and a visitor for each worker.
pub(super) fn company(_job: &PageJob, asked: &FastCgi, _cpus: &[u32]) -> Result<Company, Failed> {
    Err(Failed::new(
        FailCode::BadJob,
        format!(
            "pages of {} cannot be asked for: this engine does not speak FastCGI yet",
            failure::place(&asked.target)
        ),
        "Use an engine that does.",
    ))
}
