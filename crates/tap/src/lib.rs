//! The tap: a program between an application and its server that passes every byte on unchanged, counts round trips, and can add a
//! delay to each of them.
//!
//! `flow` is the pure part, one direction of a connection; `relay` moves the bytes in one thread; `address` opens sockets. The added
//! delay is that of a network path: half of it in each direction, and one round trip for a connect before the server hears of it. Not
//! here: how the tap gets into the application's path.

mod address;
mod flow;
mod jobs;
mod relay;

use std::io::BufRead;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use howfar_contract::{Contract, FailCode, Failed, emit, parse_job};
use rustix::event::{EventfdFlags, eventfd};

use jobs::{TapCounts, TapDelay, TapJob, TapReady};
use relay::Relay;

/// Add the messages of this crate.
pub fn describe(contract: &mut Contract) {
    contract.reads::<TapJob>();
    contract.reads::<TapDelay>();
    contract.writes::<TapReady>();
    contract.writes::<TapCounts>();
}

/// Read a tap job on stdin, pass connections on until stdin ends; each command on stdin is answered by the counts on stdout.
pub fn run() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => failed.report(),
    }
}

/// Lines of stdin, and the descriptor that wakes the relay for them.
#[derive(Debug)]
struct Commands {
    lines: Receiver<Option<String>>,
    wake: Arc<OwnedFd>,
}

fn serve() -> Result<(), Failed> {
    let commands =
        read_stdin().map_err(|error| internal(format!("setting up the tap: {error}")))?;
    let Ok(Some(text)) = commands.lines.recv() else {
        return Err(Failed::bad_job("stdin ended before a job came"));
    };
    let job: TapJob = parse_job("tap", &text)?;
    let (listener, opened) = address::listen(&job.listen)?;
    let mut relay = Relay::new(listener, job.server, Arc::clone(&commands.wake))
        .map_err(|error| internal(format!("setting up the tap: {error}")))?;
    tell(&TapReady {
        port: opened.port(),
    })?;
    let outcome = loop {
        if let Err(error) = relay.turn() {
            break Err(internal(format!("the tap: {error}")));
        }
        match obey(&commands, &mut relay) {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(failed) => break Err(failed),
        }
    };
    opened.clear();
    outcome
}

/// Do what stdin says by now; false when it has ended.
fn obey(commands: &Commands, relay: &mut Relay) -> Result<bool, Failed> {
    while let Ok(line) = commands.lines.try_recv() {
        let Some(line) = line else { return Ok(false) };
        let command = TapDelay::parse(&line)?;
        tell(&relay.set_delay(command.delay_ns))?;
    }
    Ok(true)
}

fn read_stdin() -> std::io::Result<Commands> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, lines) = channel();
    let theirs = Arc::clone(&wake);
    thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || forward_stdin(&sender, &theirs))?;
    Ok(Commands { lines, wake })
}

fn forward_stdin(sender: &Sender<Option<String>>, wake: &OwnedFd) {
    let lines = std::io::stdin().lock().lines().map_while(Result::ok);
    for line in lines.map(Some).chain([None]) {
        if sender.send(line).is_err() {
            return;
        }
        // A full counter wakes as well.
        let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
    }
}

fn tell<T: serde::Serialize>(event: &T) -> Result<(), Failed> {
    emit(event).map_err(|error| internal(format!("writing an event: {error}")))
}

/// Our own mistake, or the kernel's refusal of something that it never refuses.
fn internal(message: impl Into<String>) -> Failed {
    Failed::new(
        FailCode::Internal,
        message,
        "Please report this with the command you ran.",
    )
}
