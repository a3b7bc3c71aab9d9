//! The link emulator: two packet interfaces joined with a rate, a delay and a queue in each direction.
//!
//! Packets pass through a network namespace in the middle of the laboratory, in which no network stack processes them. Start reading
//! at `shaper`, the part without I/O. `effects` holds the parts that it consists of; `packet` and `slicer` handle super-packets; `pump`
//! drives one direction; `port` and `sys` talk to the kernel. This crate does not create interfaces, namespaces or addresses.

use std::io::BufRead;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

mod arena;
mod clock;
mod effects;
mod event;
mod job;
mod link;
mod packet;
mod port;
pub mod probe;
mod pump;
mod shaper;
mod sleep;
mod slicer;
mod stats;
mod sys;

use clock::Scheduling;
use event::Event;
use howfar_contract::{Contract, Failed, report};
use job::{Command, LinkJob};
use link::Link;

/// Add the messages of the link and of the probes.
pub fn register_messages(contract: &mut Contract) {
    contract.add_input::<LinkJob>();
    contract.add_input::<Command>();
    contract.add_input::<probe::Job>();
    contract.add_event::<Event>();
}

/// An event that the main thread waits for.
#[derive(Debug)]
enum MainEvent {
    Line(String),
    /// Stdin was closed.
    StdinEnded,
    /// A direction ended without being stopped.
    DirectionFailed(Failed),
}

/// Read a link job from stdin, join the interfaces until stdin ends, and write events to stdout.
pub fn run() -> ExitCode {
    let (sender, events) = channel();
    read_stdin(sender.clone());
    report(serve(&events, sender))
}

fn read_stdin(sender: Sender<MainEvent>) {
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if sender.send(MainEvent::Line(line)).is_err() {
                return;
            }
        }
        let _ = sender.send(MainEvent::StdinEnded);
    });
}

fn serve(events: &Receiver<MainEvent>, sender: Sender<MainEvent>) -> Result<(), Failed> {
    let Ok(MainEvent::Line(text)) = events.recv() else {
        return Err(Failed::bad_job("stdin was closed before a job arrived"));
    };
    let job = LinkJob::parse(&text).map_err(Failed::bad_job)?;
    let mut link = Link::start(&job, sender)?;
    Event::LinkReady {
        realtime: link.scheduling() == Scheduling::Realtime,
        short_slice: link.scheduling() == Scheduling::ShortSlice,
        offload: true,
    }
    .emit();
    let outcome = run_commands(&mut link, events);
    link.stop();
    outcome
}

fn run_commands(link: &mut Link, events: &Receiver<MainEvent>) -> Result<(), Failed> {
    loop {
        match events.recv() {
            Ok(MainEvent::Line(text)) if text.trim().is_empty() => {}
            Ok(MainEvent::Line(text)) => match Command::parse(&text).map_err(Failed::bad_job)? {
                Command::Set {
                    to_server,
                    to_client,
                } => link.set(&to_server, &to_client),
                Command::Stats { reset } => {
                    let (to_server, to_client) = link.stats(reset)?;
                    Event::LinkStats {
                        to_server: Box::new(to_server),
                        to_client: Box::new(to_client),
                    }
                    .emit();
                }
            },
            Ok(MainEvent::DirectionFailed(failure)) => return Err(failure),
            Ok(MainEvent::StdinEnded) | Err(_) => return Ok(()),
        }
    }
}
