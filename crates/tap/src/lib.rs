//! The tap: a program between an application and its server that passes every byte on unchanged, counts round trips, and can add a
//! delay to each of them.
//!
//! `proxy` is the tap: it serves connections, and a mover decides how bytes get from one side to the other. `delay` holds them in
//! memory until they are due. `splice` has the kernel move them at once and gives a copy to `record`, which makes round trips of it; if
//! the tap is killed, the second process of `takeover` runs the same proxy. How a tap gets into the application's path is not part of
//! this crate.

mod address;
mod application;
mod delay;
mod end;
mod flow;
mod jobs;
mod keeper;
mod packets;
mod proxy;
mod record;
mod splice;
mod takeover;
mod yielding;

use std::io::{self, BufRead};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use howfar_contract::{Contract, Failed, emit_or_fail, internal, parse_job, report};
use rustix::event::{EventfdFlags, eventfd};
use serde::de::DeserializeOwned;

use application::{Application, raise_descriptor_limit};
use delay::Delay;
use jobs::{
    PacketsEnded, PacketsJob, RecordCommand, RecordEnded, RecordJob, Recorded, TapCounts, TapDelay,
    TapJob, TapReady, parse_command,
};
use keeper::Keeper;
use proxy::Proxy;
use record::Recorder;
use splice::Splice;

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

/// Lines of stdin, and the descriptor that wakes the proxy for them.
#[derive(Debug)]
struct Commands {
    lines: Receiver<Option<String>>,
    wake: Arc<OwnedFd>,
}

/// Start to read stdin; returns its commands, and the job in its first line.
fn read_job<J: DeserializeOwned>(kind: &str) -> Result<(Commands, J), Failed> {
    let commands = read_stdin().map_err(|error| setup_error(&error))?;
    let Ok(Some(text)) = commands.lines.recv() else {
        return Err(Failed::bad_job("stdin was closed before a job arrived"));
    };
    let job = parse_job(kind, &text)?;
    Ok((commands, job))
}

fn setup_error(error: &io::Error) -> Failed {
    internal(format!("setting up the tap: {error}"))
}

fn run_error(error: &io::Error) -> Failed {
    internal(format!("the tap: {error}"))
}

fn serve() -> Result<(), Failed> {
    let (commands, job) = read_job::<TapJob>("tap")?;
    let (listener, port) = address::listen(&job.listen)?;
    let wake = Arc::clone(&commands.wake);
    let mut proxy = Proxy::new(Delay::new(), listener, job.server, wake)
        .map_err(|error| setup_error(&error))?;
    let outcome = emit_or_fail(&TapReady { port })
        .and_then(|()| delay_until_stdin_ends(&commands, &mut proxy));
    address::remove_socket_file(&job.listen);
    outcome
}

/// Pass on until stdin ends.
fn delay_until_stdin_ends(commands: &Commands, proxy: &mut Proxy<Delay>) -> Result<(), Failed> {
    loop {
        proxy
            .process_events(None)
            .map_err(|error| run_error(&error))?;
        while let Ok(line) = commands.lines.try_recv() {
            let Some(line) = line else { return Ok(()) };
            let command = TapDelay::parse(&line)?;
            emit_or_fail(&proxy.set_delay(command.delay_ns))?;
        }
    }
}

fn serve_recorded() -> Result<(), Failed> {
    raise_descriptor_limit();
    let (commands, job) = read_job::<RecordJob>("record")?;
    let (listener, port) = address::listen(&job.listen)?;
    let keeper = Keeper::start(&job, &listener).map_err(|error| setup_error(&error))?;
    let wake = Arc::clone(&commands.wake);
    let mut proxy = Proxy::new(Splice::default(), listener, job.server, wake)
        .map_err(|error| setup_error(&error))?;
    proxy.mover.keeper = Some(keeper);
    proxy.mover.recorder = Some(Recorder::start(job.page_by).map_err(|error| setup_error(&error))?);
    let outcome = emit_or_fail(&TapReady { port }).and_then(|()| {
        let application = record_until_stdin_ends(&commands, &mut proxy)?;
        proxy.mover.recorder = None;
        proxy
            .serve_application(&application)
            .map_err(|error| run_error(&error))
    });
    address::remove_socket_file(&job.listen);
    if let Some(keeper) = proxy.mover.keeper.take() {
        keeper.dismiss();
    }
    outcome
}

/// Pass on and record until stdin ends; returns the application to serve from then on.
fn record_until_stdin_ends(
    commands: &Commands,
    proxy: &mut Proxy<Splice>,
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
                    if let Some(keeper) = &mut proxy.mover.keeper {
                        keeper.send_application(&application);
                    }
                }
                RecordCommand::RecordFinish {} => is_finishing = true,
            }
        }
        proxy
            .process_events(is_finishing.then_some(FINISH_RETRY_NS))
            .map_err(|error| run_error(&error))?;
        if is_finishing {
            is_finishing = !proxy.finish_recording();
        }
    }
}

fn read_stdin() -> io::Result<Commands> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, lines) = channel();
    let wake_writer = Arc::clone(&wake);
    thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || forward_stdin(&sender, &wake_writer))?;
    Ok(Commands { lines, wake })
}

fn forward_stdin(sender: &Sender<Option<String>>, wake: &OwnedFd) {
    let lines = io::stdin().lock().lines().map_while(Result::ok);
    for line in lines.map(Some).chain([None]) {
        if sender.send(line).is_err() {
            return;
        }
        // This fails only if the counter is full, which wakes the proxy as well.
        let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
    }
}
