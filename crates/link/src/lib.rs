//! The link emulator: two packet interfaces joined with a rate, a delay and a queue in each direction.
//!
//! Packets pass through the middle of the laboratory, where no network stack touches them. `shaper` is the pure part: start reading
//! there. `effects` holds the parts it is made of; `packet` and `slicer` handle super-packets; `pump` drives one direction; `port`
//! and `sys` talk to the kernel. This crate does not create interfaces, namespaces or addresses.

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
pub fn describe(contract: &mut Contract) {
    contract.reads::<LinkJob>();
    contract.reads::<Command>();
    contract.reads::<probe::Job>();
    contract.writes::<Event>();
}

/// An event that the main thread waits for.
#[derive(Debug)]
enum News {
    Line(String),
    /// Stdin ended.
    End,
    /// A direction ended without being stopped.
    Broken(Failed),
}

/// Read a link job on stdin, join the interfaces until stdin ends, write events on stdout.
pub fn run() -> ExitCode {
    let (sender, news) = channel();
    read_stdin(sender.clone());
    report(serve(&news, sender))
}

fn read_stdin(sender: Sender<News>) {
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if sender.send(News::Line(line)).is_err() {
                return;
            }
        }
        let _ = sender.send(News::End);
    });
}

fn serve(news: &Receiver<News>, sender: Sender<News>) -> Result<(), Failed> {
    let Ok(News::Line(text)) = news.recv() else {
        return Err(Failed::bad_job("stdin ended before the job came"));
    };
    let job = LinkJob::parse(&text).map_err(Failed::bad_job)?;
    let mut link = Link::start(&job, sender)?;
    Event::LinkReady {
        realtime: link.scheduling() == Scheduling::Realtime,
        short_slice: link.scheduling() == Scheduling::ShortSlice,
        offload: true,
    }
    .emit();
    let outcome = obey(&mut link, news);
    link.stop();
    outcome
}

fn obey(link: &mut Link, news: &Receiver<News>) -> Result<(), Failed> {
    loop {
        match news.recv() {
            Ok(News::Line(text)) if text.trim().is_empty() => {}
            Ok(News::Line(text)) => match Command::parse(&text).map_err(Failed::bad_job)? {
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
            Ok(News::Broken(failure)) => return Err(failure),
            Ok(News::End) | Err(_) => return Ok(()),
        }
    }
}
