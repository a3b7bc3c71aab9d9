//! The far end of the probes: a listener that serves each connection in a separate thread, until stdin ends.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::handshake::{Figures, HANDSHAKE_LEN, Handshake, Mode};
use super::{tcp, window};
use crate::clock::{now, timespec};
use crate::event::Event;
use crate::sys;
use howfar_contract::{FailCode, Failed};

/// Maximum connections served at once; further ones are closed.
const MAX_CONNECTIONS: usize = 64;
/// A ping-pong connection that receives nothing for this time is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// A transfer ends after this time, whatever the other end does.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(600);
/// Bytes that may wait unsent in the sender's socket: enough to keep the link busy, few enough to drain quickly at the end.
const MAX_UNSENT_BYTES: i32 = 512 << 10;

static OPEN_CONNECTIONS: AtomicUsize = AtomicUsize::new(0);

/// Listen on `host` and serve until stdin ends.
pub(super) fn serve(host: &str) -> Result<(), Failed> {
    let address = tcp::parse_address(host, 0)?;
    let listen_error = |error: io::Error| {
        Failed::new(
            FailCode::Connect,
            format!("cannot listen on {host}: {error}"),
            "The address must belong to an interface of this host that is up.",
        )
    };
    let listener = TcpListener::bind(address).map_err(listen_error)?;
    let port = listener.local_addr().map_err(listen_error)?.port();
    thread::spawn(move || accept(&listener));
    Event::Listening { port }.emit();
    // Input is ignored; the end of stdin ends the echo and its threads.
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    Ok(())
}

fn accept(listener: &TcpListener) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // For example, out of descriptors: connections that end will free them.
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        if OPEN_CONNECTIONS.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
            OPEN_CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        thread::spawn(move || {
            // The other end, which requested the connection, reports if it breaks.
            let _ = serve_connection(stream);
            OPEN_CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

fn serve_connection(mut stream: TcpStream) -> io::Result<()> {
    tcp::prepare(&stream, tcp::DEFAULT_TIMEOUT)?;
    let mut bytes = [0; HANDSHAKE_LEN];
    stream.read_exact(&mut bytes)?;
    let Some(handshake) = Handshake::decode(bytes) else {
        return Ok(());
    };
    match handshake.mode {
        Mode::PingPong => echo_bytes(&mut stream),
        Mode::Sink => {
            let window = window::receive(&stream, handshake.warmup_ns, handshake.measure_ns)?;
            let figures = Figures {
                bytes: window.bytes,
                elapsed_ns: window.elapsed_ns,
                ..Figures::default()
            };
            stream.write_all(&figures.encode())?;
            // Read what is still in flight, so that closing does not reset the connection before the figures arrive.
            drain(&mut stream)
        }
        Mode::Source => {
            send_until_stopped(&stream, TRANSFER_TIMEOUT)?;
            let figures = Figures::from_sender(&stream)?;
            stream.set_nonblocking(false)?;
            stream.write_all(&figures.encode())
        }
    }
}

fn echo_bytes(stream: &mut TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE_TIMEOUT))?;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..read])?;
    }
}

fn drain(stream: &mut TcpStream) -> io::Result<()> {
    let begin = now();
    let mut buffer = vec![0; 1 << 18];
    while Duration::from_nanos(now() - begin) < tcp::DEFAULT_TIMEOUT {
        if stream.read(&mut buffer)? == 0 {
            break;
        }
    }
    Ok(())
}

/// Send until the other end sends data or closes; after `timeout` without that, the error is `TimedOut`. Leaves the stream
/// non-blocking.
pub(super) fn send_until_stopped(stream: &TcpStream, timeout: Duration) -> io::Result<()> {
    sys::set_option(
        stream.as_fd(),
        libc::IPPROTO_TCP,
        libc::TCP_NOTSENT_LOWAT,
        MAX_UNSENT_BYTES,
    )?;
    // Nagle's algorithm sends only full segments, so that the rate depends on the link and not on the size of the writes.
    stream.set_nodelay(false)?;
    stream.set_nonblocking(true)?;
    let begin = now();
    let payload = vec![0x5a_u8; 1 << 18];
    let mut writer = stream;
    while Duration::from_nanos(now() - begin) < timeout {
        let mut fds = [PollFd::new(stream, PollFlags::IN | PollFlags::OUT)];
        let one_second = timespec(1_000_000_000);
        poll(&mut fds, Some(&one_second))?;
        let events = fds[0].revents();
        if events.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            return Ok(());
        }
        if events.contains(PollFlags::OUT) {
            match writer.write(&payload) {
                Ok(_) => {}
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}
