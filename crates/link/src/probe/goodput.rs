//! Measures goodput: the payload bytes per second that arrive on one TCP connection.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use super::handshake::{FIGURES_LEN, Figures, Handshake, Mode};
use super::window::{self, Window};
use super::{echo, tcp};
use crate::clock::now;
use crate::event::Event;
use howfar_contract::Failed;

/// Maximum wait for the far end's figures after the window; without them, the retransmits are unknown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// Make one transfer: warm-up, then the measured window.
pub(super) fn measure(peer: SocketAddr, handshake: Handshake) -> Result<Event, Failed> {
    let mut stream = tcp::connect(peer, tcp::DEFAULT_TIMEOUT)?;
    let run = |stream: &mut TcpStream| -> io::Result<Event> {
        stream.write_all(&handshake.encode())?;
        let (window, sender) = match handshake.mode {
            Mode::Source => receive(stream, handshake)?,
            Mode::Sink | Mode::PingPong => send(stream, handshake)?,
        };
        let retransmits = sender.as_ref().map(|sender| sender.retransmits);
        // If the far end did not report in time, use this end's figures: both hosts have the same settings.
        let sender = sender.map_or_else(|| Figures::from_sender(stream), Ok)?;
        Ok(Event::Goodput {
            bytes: window.bytes,
            elapsed_ns: window.elapsed_ns,
            bits_per_second: window.bytes as f64 * 8e9 / window.elapsed_ns.max(1) as f64,
            retransmits,
            congestion_control: sender.congestion_control(),
            mss: sender.mss as u32,
        })
    };
    run(&mut stream).map_err(|error| tcp::connection_error(peer, "transfer bytes with", &error))
}

/// Measure a transfer that the far end sends and this end counts.
fn receive(stream: &mut TcpStream, handshake: Handshake) -> io::Result<(Window, Option<Figures>)> {
    let window = window::receive(stream, handshake.warmup_ns, handshake.measure_ns)?;
    stream.shutdown(Shutdown::Write)?;
    Ok((window, read_last_figures(stream)))
}

/// Read to the end of the stream and decode its last bytes; None if it does not end in time.
fn read_last_figures(stream: &mut TcpStream) -> Option<Figures> {
    let begin = now();
    let mut buffer = vec![0_u8; 1 << 18];
    let mut kept = 0;
    loop {
        let remaining = DRAIN_TIMEOUT
            .checked_sub(Duration::from_nanos(now() - begin))
            .filter(|remaining| !remaining.is_zero())?;
        stream.set_read_timeout(Some(remaining)).ok()?;
        let read = stream.read(&mut buffer[kept..]).ok()?;
        let filled = kept + read;
        if read == 0 {
            return buffer[..filled]
                .last_chunk::<FIGURES_LEN>()
                .map(|bytes| Figures::decode(*bytes));
        }
        kept = filled.min(FIGURES_LEN);
        buffer.copy_within(filled - kept..filled, 0);
    }
}

/// Send until the far end has counted enough and sends its figures.
fn send(stream: &mut TcpStream, handshake: Handshake) -> io::Result<(Window, Option<Figures>)> {
    let timeout = Duration::from_nanos(handshake.warmup_ns.saturating_add(handshake.measure_ns))
        .saturating_add(tcp::DEFAULT_TIMEOUT);
    echo::send_until_stopped(stream, timeout)?;
    stream.set_nonblocking(false)?;
    let mut bytes = [0; FIGURES_LEN];
    stream.read_exact(&mut bytes)?;
    let figures = Figures::decode(bytes);
    let window = Window {
        bytes: figures.bytes,
        elapsed_ns: figures.elapsed_ns,
    };
    Ok((window, Some(Figures::from_sender(stream)?)))
}
