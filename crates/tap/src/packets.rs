//! Records from captured packets instead of through a tap, which adds nothing to the application's path.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Error, Read};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use flate2::bufread::MultiGzDecoder;
use howfar_contract::{FailCode, Failed, emit, emit_or_fail, read_job};
use howfar_record::{Capture, Event, Packet, Segments};

use crate::jobs::{PacketsEnded, PacketsJob, TapReady};
use crate::record::Writer;

/// Interval at which events are written while packets come.
const WRITE_INTERVAL: Duration = Duration::from_millis(200);

const BUFFER_BYTES: usize = 1 << 18;
/// Compression formats that cannot be read, by their first bytes.
const UNSUPPORTED_FORMATS: [(&[u8], &str); 5] = [
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ", "xz"),
    (b"BZh", "bzip2"),
    (b"\x04\x22\x4d\x18", "lz4"),
    (b"PK\x03\x04", "zip"),
];

/// Read a job on stdin and record its packets up to the end of the file.
pub(crate) fn run() -> Result<(), Failed> {
    let job: PacketsJob = read_job("packets")?;
    let address = job.address.as_deref().map(str::parse::<IpAddr>).transpose();
    let address =
        address.map_err(|_| Failed::bad_job("the server's address is not numeric".to_owned()))?;
    emit_or_fail(&TapReady { port: None })?;
    let read_error = |error: Error| {
        Failed::new(
            FailCode::Connect,
            format!("{} cannot be read as captured packets: {error}", job.path),
            "Give it a file that tcpdump or Wireshark wrote.",
        )
    };
    let mut capture = open_file(&job.path)
        .and_then(Capture::open)
        .map_err(read_error)?;
    let mut segments = Segments::new(job.port, address);
    let mut writer = Writer::new(Arc::new(AtomicU64::new(0)), Vec::new());
    let mut last_write = Instant::now();
    while let Some(packet) = capture.next_packet().map_err(read_error)? {
        let at_ns = packet.at_ns.saturating_sub(job.epoch_ns);
        if !record_packet(&mut segments, &mut writer, &Packet { at_ns, ..packet }) {
            return Ok(());
        }
        if last_write.elapsed() > WRITE_INTERVAL {
            last_write = Instant::now();
            if writer.write().is_err() {
                return Ok(());
            }
        }
    }
    let (commands, unknown) = writer.close_all();
    let unknown = unknown_by_reason(unknown, &segments, capture.is_cut());
    if segments.copied > 0 {
        let copies = "copies with translated addresses".into();
        segments.skipped.insert(copies, segments.copied);
    }
    let ended = PacketsEnded {
        commands,
        unknown,
        packets: segments.packets,
        repeated_syns: segments.repeated_syns,
        repeated_syns_ns: segments.repeated_syns_ns,
        skipped: segments
            .skipped
            .into_iter()
            .map(|(reason, count)| (reason.into_owned(), count))
            .collect(),
        missing: segments.missing,
    };
    // This fails only if the reader has gone.
    let _ = writer.write().and_then(|()| emit(&ended));
    Ok(())
}

/// Counts of what the recording does not know, by reason.
fn unknown_by_reason(
    unknown: BTreeMap<&'static str, u64>,
    segments: &Segments,
    is_cut: bool,
) -> BTreeMap<String, u64> {
    let unknown = unknown
        .into_iter()
        .map(|(reason, count)| (reason.to_owned(), count));
    let skipped = segments.not_understood();
    let skipped = skipped.map(|(reason, count)| (format!("packets that are {reason}"), count));
    let packet_counts = [
        (
            "how the file goes on: it ends inside a packet",
            u64::from(is_cut),
        ),
        (
            "when an answer ended whose last bytes were not captured: it took at least as long as shown",
            segments.unknown_ends,
        ),
        (
            "the order of packets: some have an earlier time than the one before (reordercap sorts a file)",
            segments.disordered,
        ),
    ];
    let packet_counts = packet_counts
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(reason, count)| (reason.to_owned(), count));
    unknown.chain(skipped).chain(packet_counts).collect()
}

/// Open a file, which may be compressed with gzip. The decompressed file is never in memory as a whole.
fn open_file(path: &str) -> io::Result<Box<dyn Read>> {
    let mut file = BufReader::with_capacity(BUFFER_BYTES, File::open(path)?);
    let first_bytes = file.fill_buf()?;
    if let Some((_, name)) = UNSUPPORTED_FORMATS
        .iter()
        .find(|(magic, _)| first_bytes.starts_with(magic))
    {
        let reason =
            format!("it is compressed with {name}; decompress it first, only gzip is read");
        return Err(Error::other(reason));
    }
    Ok(if first_bytes.starts_with(&[0x1F, 0x8B]) {
        let plain = MultiGzDecoder::new(file);
        Box::new(BufReader::with_capacity(BUFFER_BYTES, plain))
    } else {
        Box::new(file)
    })
}

/// Record a packet; false if the reader of the events has gone.
fn record_packet(segments: &mut Segments, writer: &mut Writer, packet: &Packet) -> bool {
    let mut events = Vec::new();
    segments.feed(packet, &mut events);
    for event in events {
        match event {
            Event::Opened { id, at_ns, is_new } => {
                writer.handle_opened(id, at_ns, None, None, is_new);
            }
            Event::Closed { id, at_ns } => writer.handle_closed(id, Some(at_ns)),
            Event::Bytes {
                id,
                direction,
                at_ns,
                bytes,
                skipped,
            } => {
                if writer
                    .handle_bytes(id, direction, at_ns, &bytes, skipped)
                    .is_err()
                {
                    return false;
                }
            }
        }
    }
    true
}
