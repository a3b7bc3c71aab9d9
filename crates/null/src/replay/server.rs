//! The server: a thread for each connection answers every request that comes.

use std::io::{self, Read};
use std::thread;
use std::time::Duration;

use howfar_contract::jobs::{Listen, Target};
use howfar_contract::{Failed, internal, tell};
use rustix::io::Errno;
use rustix::net::{self, SocketFlags};

use super::jobs::AnswerJob;
use super::speech::{Come, Speech, reply_of};
use super::stream::{Duplex, Plain, ServerSide, socket};
use super::{BUFFER, Queued, now_ns, wait_until};
use crate::address;
use crate::jobs::NullReady;

/// Maximum open connections; further ones are closed.
const MOST_CONNECTIONS: usize = 4096;
/// Maximum bytes of a request or an answer, as in the contract.
const LONGEST: usize = 1 << 30;
static OPEN: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

/// Serve until stdin ends.
pub(crate) fn serve(job: &AnswerJob) -> Result<(), Failed> {
    job.check()?;
    let (tls, speech) = (
        job.tls.as_ref().map(ServerSide::new).transpose()?,
        job.speech,
    );
    let is_tcp = matches!(job.listen, Listen::Tcp { .. });
    let target = Target::from(job.listen.clone());
    let (listener, port) = address::listen(&target)?;
    rustix::io::ioctl_fionbio(&listener, false)
        .map_err(|error| internal(format!("setting up the listener: {error}")))?;
    thread::Builder::new()
        .name("accept".to_owned())
        .spawn(move || {
            loop {
                match net::accept_with(&listener, SocketFlags::CLOEXEC) {
                    Ok(descriptor) => admit(socket(descriptor, is_tcp), tls.clone(), speech),
                    Err(Errno::INTR | Errno::CONNABORTED) => {}
                    // Out of descriptors: connections that end will free some.
                    Err(_) => thread::sleep(Duration::from_millis(10)),
                }
            }
        })
        .map_err(|error| internal(format!("starting a thread: {error}")))?;
    tell(&NullReady { port })?;
    // Input is ignored; the end of stdin ends the server and its threads.
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    address::forget(&target);
    Ok(())
}

/// Serve a connection in a new thread. A client that is refused sees its connection closed.
fn admit(plain: Box<dyn Plain>, tls: Option<ServerSide>, speech: Speech) {
    use std::sync::atomic::Ordering::Relaxed;
    if OPEN.load(Relaxed) >= MOST_CONNECTIONS {
        return;
    }
    OPEN.fetch_add(1, Relaxed);
    let work = move || {
        // A connection ends because the client closes it, the socket fails, or the client violates the protocol. None of this is
        // reported.
        let _ = match &tls {
            None => answer(Box::new(plain), speech),
            Some(tls) => tls.begin(plain).and_then(|stream| answer(stream, speech)),
        };
        OPEN.fetch_sub(1, Relaxed);
    };
    if thread::Builder::new()
        .name("answers".to_owned())
        .spawn(work)
        .is_err()
    {
        OPEN.fetch_sub(1, Relaxed);
    }
}

fn answer(mut stream: Box<dyn Duplex>, speech: Speech) -> io::Result<()> {
    let mut input = vec![0; BUFFER];
    let mut output = Vec::new();
    let mut queued = Queued::new();
    let (mut had, mut is_known) = (0, false);
    loop {
        let (length, wish) = match speech.come(&input[..had], &mut is_known)? {
            Come::Part => {
                had += some(&mut stream, &mut input[had..])?;
                continue;
            }
            Come::Aside { length, answer } => {
                stream.write_all(&answer)?;
                stream.flush()?;
                input.copy_within(length..had, 0);
                had -= length;
                continue;
            }
            Come::Wish { length, wish } => (length, wish),
        };
        let [_, _, _, _, time @ ..] = wish;
        if length > LONGEST || length < wish.len() || reply_of(&wish) > LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if length <= had {
            input.copy_within(length..had, 0);
            had -= length;
        } else {
            while had < length {
                let room = BUFFER.min(length - had);
                had += some(&mut stream, &mut input[..room])?;
            }
            had = 0;
        }
        let due = now_ns().saturating_add(u64::from_be_bytes(time));
        // Both happen within the service time, which hides their cost.
        let at = speech.answer(&mut output, &wish);
        let waited = if time == [0; 8] { 0 } else { queued.since() };
        let late = waited + (wait_until(due) - due);
        speech.put_late(&mut output[at..], late);
        stream.write_all(&output)?;
        stream.flush()?;
    }
}

/// Read at least one byte; the end of the stream is an error.
fn some(stream: &mut Box<dyn Duplex>, room: &mut [u8]) -> io::Result<usize> {
    match stream.read(room)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => Ok(count),
    }
}
