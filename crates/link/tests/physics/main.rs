//! The link's physics, measured with real packets in separate namespaces.
//!
//! `cargo test -p howfar-link --test physics` runs the checks; with `-- table` it prints how the link behaves at many settings
//! instead, which needs a quiet machine and a release build; `-- table packet goodput 10000 1000` prints a part of it.
#![allow(clippy::print_stdout)] // A program that prints its results.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

mod capture;
mod checks;
mod datagrams;
mod drive;
mod faults;
mod mirror;
mod rig;
mod streams;
mod table;

use rig::Rig;

const INSIDE_MARKER: &str = "HOWFAR_PHYSICS_INSIDE";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let first = arguments.first().map(String::as_str);
    match first {
        Some("link") => return howfar_link::run(),
        // Whether this user can start the program, and start it again in a namespace.
        Some("start") => {
            let can_reach = std::env::current_exe().is_ok_and(|program| program.exists());
            return if can_reach {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            };
        }
        Some("echo" | "rtt" | "goodput") => return howfar_link::probe::run(),
        Some("mirror") => return mirror::run(&arguments[1], &arguments[2], &arguments[3]),
        Some("capture") => return capture::run(),
        Some("receive-datagrams") => return datagrams::receive(&arguments[1]),
        Some("send-datagrams") => {
            return datagrams::send(&arguments[1], &arguments[2], &arguments[3]);
        }
        _ => {}
    }
    if std::env::var_os(INSIDE_MARKER).is_none() {
        if let Err(reason) = rig::check_permitted() {
            println!(
                "SKIPPED physics of the link: network namespaces or virtual cables are not permitted here: {reason}"
            );
            return ExitCode::SUCCESS;
        }
        if first != Some("table") && rig::is_root() && !rig::run_unprivileged(&arguments) {
            println!("FAILED as an unprivileged user");
            return ExitCode::FAILURE;
        }
        println!(
            "cannot enter namespaces: {}",
            rig::enter_namespace(INSIDE_MARKER)
        );
        return ExitCode::FAILURE;
    }
    if let Err(reason) = datagrams::check_packet_sockets() {
        println!(
            "SKIPPED physics of the link: an emulator has no options of packet sockets: {reason}"
        );
        return ExitCode::SUCCESS;
    }
    let rig = Rig::new();
    if first == Some("table") {
        table::print(&rig, &arguments[1..]);
        return ExitCode::SUCCESS;
    }
    let failed = run_checks(&rig, first.unwrap_or_default());
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        println!("{failed} checks of the link's physics failed");
        ExitCode::FAILURE
    }
}

/// Run the checks whose name contains `filter`; returns how many failed.
fn run_checks(rig: &Rig, filter: &str) -> usize {
    let mut failed = 0;
    for (name, run) in checks::ALL.iter().filter(|(name, _)| name.contains(filter)) {
        let outcome = catch_unwind(AssertUnwindSafe(|| run(rig)));
        println!(
            "{} {name}",
            if outcome.is_ok() { "ok    " } else { "FAILED" }
        );
        failed += usize::from(outcome.is_err());
    }
    failed
}
