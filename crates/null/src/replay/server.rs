//! The server: a thread for each connection answers every request that comes.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use howfar_contract::jobs::Target;
use howfar_contract::{Failed, emit_or_fail, internal};
use rustix::io::Errno;
use rustix::net::{self, SocketFlags};

use super::jobs::AnswerJob;
use super::speech::{Incoming, Speech, answer_bytes};
use super::stream::{Duplex, TlsAcceptor};
use super::{BUFFER_BYTES, CpuWait, now_ns, wait_until};
use crate::address;
use crate::jobs::NullReady;

/// Maximum open connections; further ones are closed.
const MAX_CONNECTIONS: usize = 4096;
/// Maximum bytes of a request or an answer, as in the contract.
const MAX_MESSAGE_BYTES: usize = 1 << 30;
static OPEN_CONNECTIONS: AtomicUsize = AtomicUsize::new(0);

/// Serve until stdin ends.
pub(crate) fn serve(job: &AnswerJob) -> Result<(), Failed> {
    job.check()?;
    let (tls, speech) = (
        job.tls.as_ref().map(TlsAcceptor::new).transpose()?,
        job.speech,
    );
    let target = Target::from(job.listen.clone());
    let (listener, port) = address::listen(&target)?;
    rustix::io::ioctl_fionbio(&listener, false)
        .map_err(|error| internal(format!("setting up the listener: {error}")))?;
    thread::Builder::new()
        .name("accept".to_owned())
        .spawn(move || {
            loop {
                match net::accept_with(&listener, SocketFlags::CLOEXEC) {
                    Ok(descriptor) => {
                        spawn_connection(descriptor.into(), tls.clone(), speech);
                    }
                    Err(Errno::INTR | Errno::CONNABORTED) => {}
                    // Out of descriptors: connections that end will free some.
                    Err(_) => thread::sleep(Duration::from_millis(10)),
                }
            }
        })
        .map_err(|error| internal(format!("starting a thread: {error}")))?;
    emit_or_fail(&NullReady { port })?;
    // Input is ignored; the end of stdin ends the server and its threads.
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    address::remove_socket_file(&target);
    Ok(())
}

/// Serve a connection in a new thread. A client that is refused sees its connection closed.
fn spawn_connection(plain: UnixStream, tls: Option<TlsAcceptor>, speech: Speech) {
    if OPEN_CONNECTIONS.load(Relaxed) >= MAX_CONNECTIONS {
        return;
    }
    OPEN_CONNECTIONS.fetch_add(1, Relaxed);
    let serve = move || {
        // The end of a connection is not reported: the client closed it, the socket failed, or the client violated the protocol.
        let _ = match &tls {
            None => serve_connection(Box::new(plain), speech),
            Some(tls) => tls
                .begin(plain)
                .and_then(|stream| serve_connection(stream, speech)),
        };
        OPEN_CONNECTIONS.fetch_sub(1, Relaxed);
    };
    if thread::Builder::new()
        .name("answers".to_owned())
        .spawn(serve)
        .is_err()
    {
        OPEN_CONNECTIONS.fetch_sub(1, Relaxed);
    }
}

fn serve_connection(mut stream: Box<dyn Duplex>, speech: Speech) -> io::Result<()> {
    let mut input = vec![0; BUFFER_BYTES];
    let mut output = Vec::new();
    let mut cpu_wait = CpuWait::new();
    let (mut buffered, mut is_logged_in) = (0, false);
    loop {
        let (length, answer_spec) = match speech.parse(&input[..buffered], &mut is_logged_in)? {
            Incoming::Incomplete => {
                buffered += read_some(&mut stream, &mut input[buffered..])?;
                continue;
            }
            Incoming::Other { length, answer } => {
                stream.write_all(&answer)?;
                stream.flush()?;
                input.copy_within(length..buffered, 0);
                buffered -= length;
                continue;
            }
            Incoming::Request {
                length,
                answer_spec,
            } => (length, answer_spec),
        };
        let [_, _, _, _, service_time @ ..] = answer_spec;
        if length > MAX_MESSAGE_BYTES
            || length < answer_spec.len()
            || answer_bytes(&answer_spec) > MAX_MESSAGE_BYTES
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if length <= buffered {
            input.copy_within(length..buffered, 0);
            buffered -= length;
        } else {
            while buffered < length {
                let max_count = BUFFER_BYTES.min(length - buffered);
                buffered += read_some(&mut stream, &mut input[..max_count])?;
            }
            buffered = 0;
        }
        let due = now_ns().saturating_add(u64::from_be_bytes(service_time));
        // Encoding and reading the wait happen within the service time, which hides their cost.
        let lateness_offset = speech.write_answer(&mut output, &answer_spec);
        let cpu_wait_ns = if service_time == [0; 8] {
            0
        } else {
            cpu_wait.since_last_call()
        };
        let late_ns = cpu_wait_ns + (wait_until(due) - due);
        speech.write_lateness(&mut output[lateness_offset..], late_ns);
        stream.write_all(&output)?;
        stream.flush()?;
    }
}

/// Read at least one byte; the end of the stream is an error.
fn read_some(stream: &mut Box<dyn Duplex>, buffer: &mut [u8]) -> io::Result<usize> {
    match stream.read(buffer)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => Ok(count),
    }
}
