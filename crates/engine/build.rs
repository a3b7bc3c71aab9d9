//! Bakes the commit into the engine: `$HOWFAR_COMMIT`, else what git says of this tree, else `unknown`.
#![allow(clippy::print_stdout)]

use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let done = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(done.stdout).ok()?;
    (done.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

fn main() {
    println!("cargo::rerun-if-env-changed=HOWFAR_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    if let Some(log) = git(&[
        "rev-parse",
        "--path-format=absolute",
        "--git-path",
        "logs/HEAD",
    ]) {
        println!("cargo::rerun-if-changed={log}");
    }
    let commit = std::env::var("HOWFAR_COMMIT")
        .ok()
        .or_else(|| git(&["rev-parse", "--short=12", "HEAD"]))
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=HOWFAR_COMMIT={commit}");
}
