//! A recording from packets instead of from a tap: nothing is added to the application's path.

use std::fs::File;
use std::io::{BufReader, Error};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use howfar_contract::{FailCode, Failed, emit, read_job, tell};
use howfar_record::{Capture, Event, Packet, Segments};

use crate::jobs::{PacketsEnded, PacketsJob, TapReady};
use crate::record::Writer;

/// Events are written at least this often.
const REST: Duration = Duration::from_millis(200);

/// Up to the file's end.
pub(crate) fn run() -> Result<(), Failed> {
    let job: PacketsJob = read_job("packets")?;
    let address = job.address.as_deref().map(str::parse::<IpAddr>).transpose();
    let address =
        address.map_err(|_| Failed::bad_job("the server's address is not numeric".to_owned()))?;
    tell(&TapReady { port: None })?;
    let refused = |error: Error| {
        Failed::new(
            FailCode::Connect,
            format!("{} cannot be read as captured packets: {error}", job.path),
            "Give it a file that tcpdump or Wireshark wrote.",
        )
    };
    let mut capture = File::open(&job.path)
        .and_then(|file| Capture::open(BufReader::with_capacity(1 << 18, file)))
        .map_err(refused)?;
    let mut segments = Segments::new(job.port, address);
    let mut writer = Writer::new(Arc::new(AtomicU64::new(0)));
    let mut written = Instant::now();
    while let Some(packet) = capture.packet().map_err(refused)? {
        let at_ns = packet.at_ns.saturating_sub(job.epoch_ns);
        if !record(&mut segments, &mut writer, &Packet { at_ns, ..packet }) {
            return Ok(());
        }
        if written.elapsed() > REST {
            written = Instant::now();
            if writer.write().is_err() {
                return Ok(());
            }
        }
    }
    let (commands, unknown) = writer.close_all();
    let ended = PacketsEnded {
        commands,
        unknown,
        packets: segments.packets,
        missing: segments.missing,
    };
    // A reader that has gone hears nothing.
    let _ = writer.write().and_then(|()| emit(&ended));
    Ok(())
}

/// False when nobody reads the events any more.
fn record(segments: &mut Segments, writer: &mut Writer, packet: &Packet) -> bool {
    let mut events = Vec::new();
    segments.take(packet, &mut events);
    for event in events {
        match event {
            Event::Opened { id, at_ns, is_new } => writer.opened(id, at_ns, None, None, is_new),
            Event::Closed { id, at_ns } => writer.closed(id, Some(at_ns)),
            Event::Bytes {
                id,
                direction,
                at_ns,
                bytes,
                skipped,
            } => {
                if writer.bytes(id, direction, at_ns, &bytes, skipped).is_err() {
                    return false;
                }
            }
        }
    }
    true
}
