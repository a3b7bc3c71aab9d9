//! Calibration of the load engine: a server that does nothing but answer, and a client that does nothing but send requests.
//!
//! [`serve`] is the null server: it speaks the protocol of MySQL and MariaDB well enough for any client to log in, prepare, query
//! and execute, and answers with prepared bytes. [`ping_pong`] measures the minimum latency of any client: it repeats a blocking
//! send and receive of the same bytes on one connection. `statement` parses as much SQL as needed, `answers` holds the answers,
//! `session` is one client's conversation without I/O, `server` does the I/O. [`answer`] and [`replay`] are a server and a client
//! for the sizes and times of a recording. Not implemented: SQL, storage, passwords.

mod address;
mod answers;
mod clock;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod jobs;
mod pingpong;
mod replay;
mod server;
mod session;
mod statement;

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

use howfar_contract::{Contract, Failed, emit_or_fail, internal, read_job, report};
use rustix::process::{Resource, getrlimit, setrlimit};

use answers::AnswerBook;
use jobs::{NullJob, NullReady, PingPongJob};
use replay::jobs::{AnswerJob, ReplayJob, Replayed};
use server::Server;

/// Add the messages of this crate.
pub fn register_messages(contract: &mut Contract) {
    contract.add_input::<NullJob>();
    contract.add_input::<PingPongJob>();
    contract.add_event::<NullReady>();
    contract.add_event::<jobs::PingPong>();
    contract.add_input::<AnswerJob>();
    contract.add_input::<ReplayJob>();
    contract.add_event::<Replayed>();
}

/// Read a null job on stdin and serve until stdin ends.
pub fn serve() -> ExitCode {
    report(read_job("null").and_then(|job| serve_until_stdin_ends(&job)))
}

/// Read a ping-pong job on stdin, run it, write its result on stdout.
pub fn ping_pong() -> ExitCode {
    report(read_job("pingpong").and_then(|job: PingPongJob| {
        job.check()?;
        emit_or_fail(&pingpong::measure(&job)?)
    }))
}

/// Read an answer job on stdin and serve until stdin ends.
pub fn answer() -> ExitCode {
    report(read_job("answer").and_then(|job| replay::serve(&job)))
}

/// Read a replay job on stdin, run it, write an event for each page on stdout.
pub fn replay() -> ExitCode {
    report(read_job("replay").and_then(|job| replay::replay(&job)))
}

/// Check a job of this kind on stdin without running it. Returns `None` if this crate has no such kind.
pub fn check(kind: &str) -> Option<ExitCode> {
    let outcome = match kind {
        "null" => read_job(kind).and_then(|job: NullJob| job.check()),
        "pingpong" => read_job(kind).and_then(|job: PingPongJob| job.check()),
        "answer" => read_job(kind).and_then(|job: AnswerJob| job.check()),
        "replay" => read_job(kind).and_then(|job: ReplayJob| job.check()),
        _ => return None,
    };
    Some(report(outcome))
}

fn serve_until_stdin_ends(job: &NullJob) -> Result<(), Failed> {
    job.check()?;
    raise_descriptor_limit();
    let target = job.listen.clone().into();
    let (listener, port) = address::listen(&target)?;
    let listener = Arc::new(listener);
    let book = Arc::new(AnswerBook::new(job.flavour, job.reply_bytes as usize));
    for number in 0..job.threads {
        let mut server = Server::new(Arc::clone(&listener), Arc::clone(&book), job.delay_ns)
            .map_err(|error| internal(format!("setting up the null server: {error}")))?;
        thread::Builder::new()
            .name(format!("null-{number}"))
            .spawn(move || {
                // Only a failure of epoll itself ends the thread; clients then see that the server is gone.
                if let Err(error) = server.serve() {
                    eprintln!("the null server ended: {error}");
                    std::process::abort();
                }
            })
            .map_err(|error| internal(format!("starting a thread: {error}")))?;
    }
    emit_or_fail(&NullReady { port })?;
    // Input is ignored; the end of stdin ends the server and its threads.
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    address::remove_socket_file(&target);
    Ok(())
}

/// Raise the limit on open descriptors to the maximum for this user: each connection needs one. Connections beyond the limit wait
/// until others end.
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
