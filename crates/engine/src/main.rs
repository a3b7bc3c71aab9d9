//! `howfar-engine` reads one job as JSON from stdin and writes events as JSON lines to stdout. Its subcommand names the kind of job; the
//! work is done in the other crates.
//!
//! `howfar` starts it; it is not meant to be started by hand. `howfar-engine info` reports the version of its contract.

mod commit;
mod digests;

use std::io::Write;
use std::process::ExitCode;

use howfar_contract::Contract;
use rustix::process::Signal;
use schemars::JsonSchema;
use serde::Serialize;

fn main() -> ExitCode {
    let subcommand = std::env::args().nth(1);
    // The engine must not outlive the process that started it, except if an application depends on it.
    let death_signal = match subcommand.as_deref() {
        Some("record" | "keep") => None,
        Some("ping") => Some(Signal::TERM), // so that it can send its goodbye
        _ => Some(Signal::KILL),
    };
    rustix::process::set_parent_process_death_signal(death_signal).ok();
    // A core dump would contain passwords, and the traffic of a recording tap. A limit of one byte prevents a dump to a file, and a dump
    // that is piped into a program, for which the kernel ignores a limit of 0 (fs/coredump.c).
    let core_limit = rustix::process::Rlimit {
        current: Some(1),
        maximum: Some(1),
    };
    rustix::process::setrlimit(rustix::process::Resource::Core, core_limit).ok();
    match subcommand.as_deref() {
        Some("info") => info(),
        Some("schema") => print_schema(),
        Some("check") => check(&std::env::args().nth(2).unwrap_or_default()),
        Some("load") => howfar_load::run(),
        Some("bare") => howfar_load::run_bare(),
        Some("page") => howfar_load::run_page(),
        Some("tables") => howfar_load::run_tables(),
        Some("watch") => howfar_load::run_watch(),
        Some("ping") => howfar_load::run_ping(),
        Some("usage") => howfar_load::run_usage(),
        Some("repeat") => howfar_load::run_repeat(),
        Some("link") => howfar_link::run(),
        Some("null") => howfar_null::serve(),
        Some("pingpong") => howfar_null::ping_pong(),
        Some("answer") => howfar_null::answer(),
        Some("replay") => howfar_null::replay(),
        Some("tap") => howfar_tap::run(),
        Some("record") => howfar_tap::record(),
        Some("keep") => howfar_tap::keep(),
        Some("packets") => howfar_tap::packets(),
        Some("digests") => digests::run(),
        Some("commit") => commit::print(),
        Some("preload") => write_preload(),
        Some("echo" | "rtt" | "goodput") => howfar_link::probe::run(),
        _ => {
            eprintln!(
                "usage: howfar-engine info|schema|check KIND|load|bare|page|tables|watch|ping|usage|repeat|link|echo|rtt|goodput|null|pingpong|answer|replay|tap|record|keep|packets|digests|commit|preload   (a job as JSON on stdin)"
            );
            ExitCode::from(2)
        }
    }
}

/// Check a job of this kind without running it.
fn check(kind: &str) -> ExitCode {
    howfar_null::check(kind).unwrap_or_else(|| howfar_load::check(kind))
}

/// The version handshake.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "event", rename = "info")]
#[schemars(title = "Info")]
struct Info {
    version: &'static str,
    protocol: u32,
    /// Built without optimisation: results of such an engine are refused.
    debug: bool,
}

fn info() -> ExitCode {
    let info = Info {
        version: env!("CARGO_PKG_VERSION"),
        protocol: howfar_contract::PROTOCOL_VERSION,
        debug: cfg!(debug_assertions),
    };
    ExitCode::from(u8::from(howfar_contract::emit(&info).is_err()))
}

/// Print the schema of every message of the contract, as in `schema/contract.json`.
#[allow(clippy::print_stdout)]
fn print_schema() -> ExitCode {
    let mut contract = Contract::default();
    howfar_link::register_messages(&mut contract);
    howfar_null::register_messages(&mut contract);
    howfar_tap::register_messages(&mut contract);
    contract.add_event::<Info>();
    println!("{:#}", contract.schema());
    ExitCode::SUCCESS
}

/// Write the library of `preload/listen.rs` to stdout.
fn write_preload() -> ExitCode {
    const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/listen.so"));
    ExitCode::from(u8::from(std::io::stdout().write_all(LIBRARY).is_err()))
}
