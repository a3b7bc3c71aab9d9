//! The tap: a program between an application and its server that passes every byte on unchanged, counts round trips, and can add a
//! delay to each of them.
//!
//! There are two taps; `connections` is what they share. In the one that delays, `flow` is the pure part, one direction of a
//! connection, and `relay` moves the bytes. The added delay is that of a network path: half of it in each direction, and one more
//! round trip for a connect before data can follow. In the one that records, `pass` moves the bytes, `record` makes round trips of a
//! copy, and `takeover` is a second process that takes over if the tap is killed. How a tap gets into the application's path is not
//! part of this crate.

mod address;
mod application;
mod connections;
mod end;
mod flow;
mod jobs;
mod keeper;
mod packets;
mod pass;
mod pipe;
mod record;
mod relay;
mod takeover;
mod yielding;

use std::io::BufRead;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use howfar_contract::{Contract, Failed, emit_or_fail, internal, parse_job, report};
use rustix::event::{EventfdFlags, eventfd};

use application::{Application, raise_descriptor_limit};
use jobs::{
    PacketsEnded, PacketsJob, RecordCommand, RecordEnded, RecordJob, Recorded, TapCounts, TapDelay,
    TapJob, TapReady, parse_command,
};
use keeper::Keeper;
use pass::Passer;
use record::Recorder;
use relay::Relay;

/// Pause before the recording's end is queued again if the recorder's queue was full.
const FINISH_RETRY_NS: u64 = 5_000_000;

/// Add the messages of this crate.
pub fn register_messages(contract: &mut Contract) {
    contract.add_input::<TapJob>();
    contract.add_input::<TapDelay>();
    contract.add_event::<TapReady>();
    contract.add_event::<TapCounts>();
    contract.add_input::<RecordJob>();
    contract.add_input::<RecordCommand>();
    contract.add_event::<Recorded>();
    contract.add_event::<RecordEnded>();
    contract.add_input::<PacketsJob>();
    contract.add_event::<PacketsEnded>();
}

/// Read a tap job on stdin and pass connections on until stdin ends. Answer each command on stdin with the counts on stdout.
pub fn run() -> ExitCode {
    report(serve())
}

/// Read a record job on stdin, pass connections on and record them; after the end of stdin pass them on until the application has
/// ended.
pub fn record() -> ExitCode {
    report(serve_recorded())
}

/// Read a packets job on stdin and record the round trips in its packets.
pub fn packets() -> ExitCode {
    report(packets::run())
}

/// Run as the keeper of a recording tap; its descriptors arrive on stdin.
pub fn keep() -> ExitCode {
    takeover::run()
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
        return Err(Failed::bad_job("stdin was closed before a job arrived"));
    };
    let job: TapJob = parse_job("tap", &text)?;
    let (listener, port) = address::listen(&job.listen)?;
    let mut relay = Relay::new(listener, job.server, Arc::clone(&commands.wake))
        .map_err(|error| internal(format!("setting up the tap: {error}")))?;
    emit_or_fail(&TapReady { port })?;
    let outcome = loop {
        if let Err(error) = relay.process_events() {
            break Err(internal(format!("the tap: {error}")));
        }
        match run_commands(&commands, &mut relay) {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(failed) => break Err(failed),
        }
    };
    address::remove_socket_file(&job.listen);
    outcome
}

/// Execute the commands that stdin has delivered so far; false once it has ended.
fn run_commands(commands: &Commands, relay: &mut Relay) -> Result<bool, Failed> {
    while let Ok(line) = commands.lines.try_recv() {
        let Some(line) = line else { return Ok(false) };
        let command = TapDelay::parse(&line)?;
        emit_or_fail(&relay.set_delay(command.delay_ns))?;
    }
    Ok(true)
}

fn serve_recorded() -> Result<(), Failed> {
    raise_descriptor_limit();
    let setup_error = |error| internal(format!("setting up the recorder: {error}"));
    let commands = read_stdin().map_err(setup_error)?;
    let Ok(Some(text)) = commands.lines.recv() else {
        return Err(Failed::bad_job("stdin was closed before a job arrived"));
    };
    let job: RecordJob = parse_job("record", &text)?;
    let (listener, port) = address::listen(&job.listen)?;
    let keeper = Keeper::start(&job, &listener).map_err(setup_error)?;
    let mut passer =
        Passer::new(listener, job.server, Arc::clone(&commands.wake)).map_err(setup_error)?;
    passer.keeper = Some(keeper);
    passer.recorder = Some(Recorder::start(job.page_by).map_err(setup_error)?);
    let outcome = emit_or_fail(&TapReady { port }).and_then(|()| {
        let application = record_until_stdin_ends(&commands, &mut passer)?;
        passer.recorder = None;
        passer
            .serve_application(&application)
            .map_err(|error| internal(format!("the recorder: {error}")))
    });
    address::remove_socket_file(&job.listen);
    if let Some(keeper) = passer.keeper.take() {
        keeper.dismiss();
    }
    outcome
}

/// Pass on and record until stdin ends; returns the application to serve from then on.
fn record_until_stdin_ends(
    commands: &Commands,
    passer: &mut Passer,
) -> Result<Application, Failed> {
    let mut application = Application::default();
    let mut is_finishing = false;
    loop {
        // Read commands before `process_events`: bytes sent before the command to finish are then recorded before the last event.
        while let Ok(line) = commands.lines.try_recv() {
            let Some(line) = line else {
                return Ok(application);
            };
            match parse_command(&line)? {
                RecordCommand::RecordFor { namespace } => {
                    application = Application::open(namespace);
                    if let Some(keeper) = &mut passer.keeper {
                        keeper.send_application(&application);
                    }
                }
                RecordCommand::RecordFinish {} => is_finishing = true,
            }
        }
        passer
            .process_events(is_finishing.then_some(FINISH_RETRY_NS))
            .map_err(|error| internal(format!("the recorder: {error}")))?;
        if is_finishing {
            is_finishing = !passer.finish_recording();
        }
    }
}

fn read_stdin() -> std::io::Result<Commands> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, lines) = channel();
    let wake_writer = Arc::clone(&wake);
    thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || forward_stdin(&sender, &wake_writer))?;
    Ok(Commands { lines, wake })
}

fn forward_stdin(sender: &Sender<Option<String>>, wake: &OwnedFd) {
    let lines = std::io::stdin().lock().lines().map_while(Result::ok);
    for line in lines.map(Some).chain([None]) {
        if sender.send(line).is_err() {
            return;
        }
        // This fails only if the counter is full, which wakes the relay as well.
        let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
    }
}
