//! The link's physics, measured over real packets in namespaces of its own.
//!
//! `cargo test -p howfar-link --test physics` runs the checks; with `-- table` it prints what the link does at many settings
//! instead, which wants a quiet machine and a release build.
#![allow(clippy::print_stdout)] // A program that prints its results.

use std::process::ExitCode;

mod drive;
mod rig;
mod table;

const INSIDE: &str = "HOWFAR_PHYSICS_INSIDE";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let first = arguments.first().map(String::as_str);
    match first {
        Some("link") => return howfar_link::run(),
        Some("echo" | "rtt" | "goodput") => return howfar_link::probe::run(),
        _ => {}
    }
    if std::env::var_os(INSIDE).is_none() {
        if let Err(reason) = rig::permitted() {
            println!(
                "SKIPPED physics of the link: network namespaces or virtual cables are not permitted here: {reason}"
            );
            return ExitCode::SUCCESS;
        }
        println!("cannot enter namespaces: {}", rig::enter(INSIDE));
        return ExitCode::FAILURE;
    }
    let rig = rig::Rig::make();
    if first == Some("table") {
        table::print(&rig, &arguments[1..]);
        return ExitCode::SUCCESS;
    }
    ExitCode::SUCCESS
}
