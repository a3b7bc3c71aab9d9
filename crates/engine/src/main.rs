//! `howfar-engine`: one job as JSON on stdin, events as JSON lines on stdout. Subcommands name the job; the work is in the crates.
//!
//! Not for people: `howfar` starts it. `howfar-engine info` says which contract it speaks.

use std::process::ExitCode;

fn main() -> ExitCode {
    // The engine must never outlive the process that asked for it.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).ok();
    match std::env::args().nth(1).as_deref() {
        Some("info") => info(),
        Some("load") => howfar_load::run(),
        Some("page") => howfar_load::run_page(),
        Some("tables") => howfar_load::run_tables(),
        Some("watch") => howfar_load::run_watch(),
        Some("link") => howfar_link::run(),
        Some("null") => howfar_null::serve(),
        Some("pingpong") => howfar_null::ping_pong(),
        Some("echo" | "rtt" | "goodput") => howfar_link::probe::run(),
        _ => {
            eprintln!(
                "usage: howfar-engine info|load|page|tables|watch|link|echo|rtt|goodput|null|pingpong   (a job as JSON on stdin)"
            );
            ExitCode::from(2)
        }
    }
}

#[allow(clippy::print_stdout)]
fn info() -> ExitCode {
    println!(
        "{}",
        serde_json::json!({
            "event": "info",
            "version": env!("CARGO_PKG_VERSION"),
            "protocol": howfar_record::PROTOCOL_VERSION,
            "debug": cfg!(debug_assertions),
        })
    );
    ExitCode::SUCCESS
}
