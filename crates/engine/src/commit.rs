//! The commit that this program was built from, for `howfar --version`. `build.rs` embeds it.

use std::process::ExitCode;

#[allow(clippy::print_stdout)]
pub(crate) fn print() -> ExitCode {
    println!("{}", env!("HOWFAR_COMMIT"));
    ExitCode::SUCCESS
}
