//! The recorder: it puts copies of the traffic into a bounded queue; another thread makes round trips of them and writes events.
//!
//! The recorder never makes the traffic wait. If the queue is full or the reader of the events has gone, only the recording ends.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use flate2::Crc;
use howfar_contract::emit;
use howfar_record::{Conversation, Direction, RoundTrip, Salt};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, tee};

use crate::address::peer_credentials;
use crate::jobs::{
    Phase, RecordEnded, Recorded, RecordedConnection, RecordedDigest, RecordedRoundTrip,
};
use crate::yielding::set_yielding;

/// Maximum number of notes that may wait.
const MAX_NOTES: usize = 262_144;
/// Maximum bytes of notes that may wait.
const MAX_QUEUED_BYTES: u64 = 128 << 20;
/// Memory of a note without its bytes.
const NOTE_BYTES: u64 = 256;
/// While notes keep coming, they wait until they have this many bytes: processing them on a CPU that has just served the application
/// would evict its data from the caches.
const DEFERRAL_BYTES: u64 = MAX_QUEUED_BYTES / 8;
/// Longest time for which notes wait while more of them come.
const MAX_DEFERRAL: Duration = Duration::from_secs(5);
/// With more bytes waiting, the writer no longer yields but runs like any other thread: no CPU is idle for long enough.
const CATCH_UP_BYTES: u64 = MAX_QUEUED_BYTES / 4;
/// Bytes kept of one run of bytes to the server.
const MAX_REQUEST_KEPT: usize = 1 << 20;
/// Bytes kept of one run of bytes to the client.
const MAX_ANSWER_KEPT: usize = 64 * 1024;
/// Beyond `MAX_REQUEST_KEPT`, bytes kept of the end of each piece: after a long value come the messages that execute it.
const MAX_TAIL_KEPT: usize = 256;
const MAX_PIECE_BYTES: usize = 64 * 1024;
/// The writer polls the queue at this interval, so that a note wakes no thread. Traffic that pauses for this long is idle.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum round trips in one event.
const MAX_ROUND_TRIPS_PER_EVENT: usize = 512;
const MAX_DIGESTS: usize = 65_536;

type Counts = BTreeMap<&'static str, u64>;

/// A message from the traffic's thread to the writer.
#[derive(Debug)]
enum Note {
    Opened {
        id: u64,
        at_ns: u64,
        pid: Option<i32>,
        uid: Option<u32>,
    },
    Bytes {
        id: u64,
        direction: Direction,
        at_ns: u64,
        bytes: Box<[u8]>,
        skipped: usize,
    },
    Closed {
        id: u64,
        at_ns: u64,
    },
    Finish(Box<RecordEnded>),
}

impl Note {
    fn size(&self) -> u64 {
        match self {
            Self::Bytes { bytes, .. } => NOTE_BYTES + bytes.len() as u64,
            Self::Opened { .. } | Self::Closed { .. } | Self::Finish(_) => NOTE_BYTES,
        }
    }
}

/// How many bytes were kept of a connection's current run in one direction, and the checksums of both directions.
#[derive(Debug)]
struct ByteRun {
    direction: Direction,
    kept: usize,
    checksums: [Crc; 2],
}

/// The part of the recorder that runs in the traffic's thread.
#[derive(Debug)]
pub(crate) struct Recorder {
    queue: SyncSender<Note>,
    queued_bytes: Arc<AtomicU64>,
    copy_pipe: (OwnedFd, OwnedFd),
    buffer: Vec<u8>,
    runs: HashMap<u64, ByteRun>,
    checksums: [u32; 2],
    stop_reason: Option<&'static str>,
}

impl Recorder {
    /// Start a recorder with a thread that writes events on stdout.
    pub(crate) fn start(page_by: Vec<String>) -> std::io::Result<Self> {
        let (queue, notes) = sync_channel(MAX_NOTES);
        let queued_bytes = Arc::new(AtomicU64::new(0));
        let writer_queued_bytes = Arc::clone(&queued_bytes);
        thread::Builder::new()
            .name("writer".to_owned())
            .spawn(move || {
                // The traffic has priority over the recording. If the kernel refuses this priority, only timing suffers.
                let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 10);
                set_yielding(true);
                Writer::new(writer_queued_bytes, page_by).run(&notes);
            })?;
        Ok(Self {
            queue,
            queued_bytes,
            copy_pipe: pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?,
            buffer: vec![0; MAX_PIECE_BYTES],
            runs: HashMap::new(),
            checksums: [0; 2],
            stop_reason: None,
        })
    }

    pub(crate) fn record_opened(&mut self, id: u64, at_ns: u64, client: &OwnedFd) {
        let (pid, uid) = peer_credentials(client).unzip();
        let run = ByteRun {
            direction: Direction::ToServer,
            kept: 0,
            checksums: [Crc::new(), Crc::new()],
        };
        self.runs.insert(id, run);
        self.enqueue(Note::Opened {
            id,
            at_ns,
            pid,
            uid,
        });
    }

    /// Record a copy of the `count` bytes that wait in `pipe`.
    pub(crate) fn record_bytes(
        &mut self,
        id: u64,
        direction: Direction,
        at_ns: u64,
        pipe: &OwnedFd,
        count: usize,
    ) {
        if self.stop_reason.is_some() {
            return;
        }
        let copied = tee(pipe, &self.copy_pipe.1, count, SpliceFlags::NONBLOCK);
        let read = rustix::io::read(&self.copy_pipe.0, &mut self.buffer[..]);
        if !matches!((copied, read), (Ok(copied), Ok(read)) if copied == count && read == count) {
            self.stop_reason = Some("the kernel made no copy of what passed");
            return;
        }
        let Some(run) = self.runs.get_mut(&id) else {
            return;
        };
        if run.direction != direction {
            run.direction = direction;
            run.kept = 0;
        }
        let (max_kept, max_tail, checksum_index) = match direction {
            Direction::ToServer => (MAX_REQUEST_KEPT, MAX_TAIL_KEPT, 0),
            Direction::ToClient => (MAX_ANSWER_KEPT, 0, 1),
        };
        let bytes = &self.buffer[..count];
        run.checksums[checksum_index].update(bytes);
        let kept = count.min(max_kept - run.kept);
        run.kept += kept;
        let tail: Box<[u8]> = bytes[kept.max(count.saturating_sub(max_tail))..].into();
        let bytes: Box<[u8]> = bytes[..kept].into();
        let skipped = count - kept - tail.len();
        for (bytes, skipped) in [(bytes, skipped), (tail, 0)] {
            if bytes.len() + skipped > 0 {
                self.enqueue(Note::Bytes {
                    id,
                    direction,
                    at_ns,
                    bytes,
                    skipped,
                });
            }
        }
    }

    pub(crate) fn record_closed(&mut self, id: u64, at_ns: u64) {
        if let Some(run) = self.runs.remove(&id) {
            self.add_checksums(&run);
            self.enqueue(Note::Closed { id, at_ns });
        }
    }

    fn add_checksums(&mut self, run: &ByteRun) {
        for (total, checksum) in self.checksums.iter_mut().zip(&run.checksums) {
            *total ^= checksum.sum();
        }
    }

    fn enqueue(&mut self, note: Note) {
        if self.stop_reason.is_some() {
            return;
        }
        if self.queued_bytes.fetch_add(note.size(), Relaxed) > MAX_QUEUED_BYTES {
            self.stop_reason =
                Some("the recorder fell behind: bytes came faster than they could be read");
            return;
        }
        match self.queue.try_send(note) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                self.stop_reason = Some(
                    "the recorder fell behind: round trips came faster than they could be written",
                );
            }
            Err(TrySendError::Disconnected(_)) => {
                self.stop_reason = Some("nobody takes the recording any more");
            }
        }
    }

    /// Tell the writer to write the queued notes and then the last event, completed from `ended`. False if the queue is full: call again.
    pub(crate) fn finish(&mut self, ended: &RecordEnded) -> bool {
        for run in std::mem::take(&mut self.runs).values() {
            self.add_checksums(run);
        }
        let ended = RecordEnded {
            crc32_to_server: self.checksums[0],
            crc32_to_client: self.checksums[1],
            stopped: self.stop_reason.map(str::to_owned),
            ..ended.clone()
        };
        !matches!(
            self.queue.try_send(Note::Finish(Box::new(ended))),
            Err(TrySendError::Full(_))
        )
    }
}

#[derive(Debug)]
struct OpenConnection {
    conversation: Conversation,
    opened_ns: u64,
    pid: Option<i32>,
    uid: Option<u32>,
}

/// Turns notes, or captured packets, into events.
#[derive(Debug)]
pub(crate) struct Writer {
    page_by: Arc<[String]>,
    queued_bytes: Arc<AtomicU64>,
    salt: Salt,
    connections: HashMap<u64, OpenConnection>,
    digests: HashMap<(&'static str, String), u64>,
    next_round_trip_id: u64,
    event: Recorded,
    commands: Counts,
    unknown: Counts,
}

impl Writer {
    pub(crate) fn new(queued_bytes: Arc<AtomicU64>, page_by: Vec<String>) -> Self {
        Self {
            page_by: page_by.into(),
            queued_bytes,
            salt: Salt::default(),
            connections: HashMap::new(),
            digests: HashMap::new(),
            next_round_trip_id: 1,
            event: Recorded::default(),
            commands: Counts::new(),
            unknown: Counts::new(),
        }
    }

    /// Process notes until the last one, or until the reader of the events has gone.
    fn run(mut self, notes: &Receiver<Note>) {
        let mut is_yielding = true; // the thread was started like this
        let (mut queued_before, mut last_write) = (0, Instant::now());
        loop {
            let queued_bytes = self.queued_bytes.load(Relaxed);
            let is_idle = queued_bytes == queued_before;
            if is_idle || queued_bytes > DEFERRAL_BYTES || last_write.elapsed() > MAX_DEFERRAL {
                match self.write_queued(notes, &mut is_yielding) {
                    Ok(true) => {}
                    Ok(false) | Err(_) => return,
                }
                last_write = Instant::now();
            }
            queued_before = self.queued_bytes.load(Relaxed);
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Process all queued notes; false after the last note.
    fn write_queued(
        &mut self,
        notes: &Receiver<Note>,
        is_yielding: &mut bool,
    ) -> std::io::Result<bool> {
        loop {
            if *is_yielding && self.queued_bytes.load(Relaxed) > CATCH_UP_BYTES {
                *is_yielding = false;
                set_yielding(false);
            }
            match notes.try_recv() {
                Ok(Note::Finish(ended)) => {
                    self.finish(*ended);
                    return Ok(false);
                }
                Ok(note) => self.handle_note(note)?,
                Err(TryRecvError::Empty) => {
                    self.write()?;
                    return Ok(true);
                }
                Err(TryRecvError::Disconnected) => return Ok(false),
            }
        }
    }

    fn handle_note(&mut self, note: Note) -> std::io::Result<()> {
        self.queued_bytes.fetch_sub(note.size(), Relaxed);
        match note {
            Note::Opened {
                id,
                at_ns,
                pid,
                uid,
            } => self.handle_opened(id, at_ns, pid, uid, true),
            Note::Bytes {
                id,
                direction,
                at_ns,
                bytes,
                skipped,
            } => {
                return self.handle_bytes(id, direction, at_ns, &bytes, skipped);
            }
            Note::Closed { id, at_ns } => self.handle_closed(id, Some(at_ns)),
            Note::Finish(_) => {}
        }
        Ok(())
    }

    pub(crate) fn handle_opened(
        &mut self,
        id: u64,
        at_ns: u64,
        pid: Option<i32>,
        uid: Option<u32>,
        is_new: bool,
    ) {
        let mut conversation = Conversation::new(at_ns, is_new);
        conversation.set_page_keys(&self.page_by);
        let connection = OpenConnection {
            conversation,
            opened_ns: at_ns,
            pid,
            uid,
        };
        self.connections.insert(id, connection);
    }

    pub(crate) fn handle_bytes(
        &mut self,
        id: u64,
        direction: Direction,
        at_ns: u64,
        bytes: &[u8],
        skipped: usize,
    ) -> std::io::Result<()> {
        let Some(connection) = self.connections.get_mut(&id) else {
            return Ok(());
        };
        let round_trip = connection
            .conversation
            .feed(direction, at_ns, bytes, skipped, &self.salt);
        let protocol = connection.conversation.summary().protocol;
        if let Some(round_trip) = round_trip {
            self.add_round_trip(id, protocol, round_trip);
        }
        if self.event.round_trips.len() >= MAX_ROUND_TRIPS_PER_EVENT {
            return self.write();
        }
        Ok(())
    }

    pub(crate) fn handle_closed(&mut self, id: u64, closed_ns: Option<u64>) {
        let Some(mut connection) = self.connections.remove(&id) else {
            return;
        };
        let last_round_trip = connection.conversation.close();
        let summary = connection.conversation.summary();
        if let Some(round_trip) = last_round_trip {
            self.add_round_trip(id, summary.protocol, round_trip);
        }
        let (commands, unknown) = connection.conversation.take_counts();
        for (totals, counts) in [(&mut self.commands, commands), (&mut self.unknown, unknown)] {
            for (name, count) in counts {
                *totals.entry(name).or_default() += count;
            }
        }
        self.event.connections.push(RecordedConnection {
            id,
            protocol: summary.protocol,
            opened_ns: connection.opened_ns,
            closed_ns,
            pid: connection.pid,
            uid: connection.uid,
            tls: summary.tls,
            login_round_trips: summary.login_round_trips,
            login_ns: summary.login_ns,
        });
    }

    fn add_round_trip(
        &mut self,
        connection_id: u64,
        protocol: &'static str,
        round_trip: RoundTrip,
    ) {
        let id = self.next_round_trip_id;
        self.next_round_trip_id += 1;
        let digest_id = round_trip
            .digest
            .and_then(|text| self.assign_digest_id(protocol, text));
        self.event.round_trips.push(RecordedRoundTrip {
            id,
            connection_id,
            begun_ns: round_trip.begun_ns,
            sent_ns: round_trip.sent_ns,
            answered_ns: round_trip.answered_ns,
            ended_ns: round_trip.ended_ns,
            bytes_to_server: round_trip.bytes_to_server,
            bytes_to_client: round_trip.bytes_to_client,
            requests: round_trip.requests,
            command: round_trip.command,
            digest_id,
            keys: round_trip.keys.map(|keys| keys as i64),
            phase: Phase::from(round_trip.phase),
            rows: round_trip.rows,
            failed: round_trip.failed,
        });
    }

    /// The ID of a digest; a new digest gets a new ID. None if there are too many digests.
    fn assign_digest_id(&mut self, protocol: &'static str, text: String) -> Option<u64> {
        let digest = (protocol, text);
        if let Some(&id) = self.digests.get(&digest) {
            return Some(id);
        }
        if self.digests.len() >= MAX_DIGESTS {
            *self
                .unknown
                .entry("more different statements than are kept")
                .or_default() += 1;
            return None;
        }
        let id = self.digests.len() as u64 + 1;
        self.event.digests.push(RecordedDigest {
            id,
            protocol,
            text: digest.1.clone(),
        });
        self.digests.insert(digest, id);
        Some(id)
    }

    /// Write the event so far, unless it is empty.
    pub(crate) fn write(&mut self) -> std::io::Result<()> {
        if self.event.is_empty() {
            return Ok(());
        }
        emit(&std::mem::take(&mut self.event))
    }

    /// Close all connections and write the last event.
    fn finish(&mut self, mut ended: RecordEnded) {
        (ended.commands, ended.unknown) = self.close_all();
        // Writing fails only if the reader of the events has gone.
        let _ = self.write().and_then(|()| emit(&ended));
    }

    /// Close all connections. Returns the requests by command, and the unknown parts of the traffic by reason.
    pub(crate) fn close_all(&mut self) -> (Counts, Counts) {
        let mut open_ids: Vec<u64> = self.connections.keys().copied().collect();
        open_ids.sort_unstable();
        for id in open_ids {
            self.handle_closed(id, None);
        }
        (self.commands.clone(), self.unknown.clone())
    }
}
