//! Embeds in the engine the commit (`$HOWFAR_COMMIT`, else git's commit of this tree, else `unknown`) and the library of
//! `preload/listen.rs`.
#![allow(clippy::print_stdout)]

use std::process::Command;

/// Run git; returns its output, or None if it fails or prints nothing.
fn run_git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

/// Compile the preloaded library. A wheel has one program, so the library is embedded in it.
fn compile_preload() {
    const SOURCE: &str = "preload/listen.rs";
    println!("cargo::rerun-if-changed={SOURCE}");
    let var = |name| std::env::var(name).unwrap_or_else(|_| panic!("Cargo sets {name}"));
    let mut rustc = Command::new(var("RUSTC"));
    rustc.args([
        "--crate-type=cdylib",
        "--edition=2024",
        "--target",
        &var("TARGET"),
    ]);
    rustc.args(["-Cpanic=abort", "-Copt-level=s", "-Cstrip=symbols"]);
    if let Ok(linker) = std::env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    let library = format!("{}/listen.so", var("OUT_DIR"));
    let status = rustc.args(["-o", &library, SOURCE]).status();
    assert!(
        status.is_ok_and(|code| code.success()),
        "{SOURCE} must compile"
    );
}

fn main() {
    compile_preload();
    println!("cargo::rerun-if-env-changed=HOWFAR_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    if let Some(log) = run_git(&[
        "rev-parse",
        "--path-format=absolute",
        "--git-path",
        "logs/HEAD",
    ]) {
        println!("cargo::rerun-if-changed={log}");
    }
    let commit = std::env::var("HOWFAR_COMMIT")
        .ok()
        .or_else(|| run_git(&["rev-parse", "--short=12", "HEAD"]))
        .unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=HOWFAR_COMMIT={commit}");
}
