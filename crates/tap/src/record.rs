//! The recorder: copies of the traffic go into a bounded queue; another thread makes round trips of them and writes events.
//!
//! The recorder never makes the traffic wait. A full queue, or a reader of the events that has gone, ends only the recording.

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

use crate::address::peer;
use crate::jobs::{
    Phase, RecordEnded, Recorded, RecordedConnection, RecordedDigest, RecordedRoundTrip,
};
use crate::pass::Totals;
use crate::yielding::yield_to_all;

/// Maximum number of notes that may wait.
const MOST_NOTES: usize = 262_144;
/// Maximum bytes of notes that may wait.
const MOST_BYTES: u64 = 128 << 20;
/// Memory that a note takes besides the bytes that it holds.
const NOTE_BYTES: u64 = 256;
/// While notes keep coming, they wait until they are this many bytes: making events of them on a processor that has just served the
/// application would evict its data from the caches.
const DEFERRED_BYTES: u64 = MOST_BYTES / 8;
/// Longest time for which notes wait while more of them come.
const DEFERRED: Duration = Duration::from_secs(5);
/// With more bytes waiting, the writer no longer yields but runs like any other thread: no CPU is idle for long enough.
const BEHIND_BYTES: u64 = MOST_BYTES / 4;
/// Bytes kept of one run of bytes to the server.
const REQUEST_KEPT: usize = 1 << 20;
/// Bytes kept of one run of bytes to the client.
const ANSWER_KEPT: usize = 64 * 1024;
/// Beyond `REQUEST_KEPT`, bytes kept of the end of each piece: after a long value come the messages that execute it.
const END_KEPT: usize = 256;
const PIECE: usize = 64 * 1024;
/// The writer polls the queue at this interval, so that a note wakes no thread. Traffic that pauses for this long is at rest.
const REST: Duration = Duration::from_millis(100);
/// Maximum round trips in one event.
const MOST_AT_ONCE: usize = 512;
const MOST_DIGESTS: usize = 65_536;

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

/// How much was kept of a connection's current run of bytes in one direction; checksums of both directions.
#[derive(Debug)]
struct Turn {
    direction: Direction,
    kept: usize,
    sums: [Crc; 2],
}

/// The recorder's side in the traffic's thread.
#[derive(Debug)]
pub(crate) struct Recorder {
    queue: SyncSender<Note>,
    queued: Arc<AtomicU64>,
    copies: (OwnedFd, OwnedFd),
    buffer: Vec<u8>,
    turns: HashMap<u64, Turn>,
    sums: [u32; 2],
    stopped: Option<&'static str>,
}

impl Recorder {
    /// Start a recorder with a thread that writes events on stdout.
    pub(crate) fn start(page_by: Vec<String>) -> std::io::Result<Self> {
        let (queue, notes) = sync_channel(MOST_NOTES);
        let queued = Arc::new(AtomicU64::new(0));
        let theirs = Arc::clone(&queued);
        thread::Builder::new()
            .name("writer".to_owned())
            .spawn(move || {
                // Traffic comes first. If the kernel refuses, only timing suffers.
                let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 10);
                yield_to_all(true);
                Writer::new(theirs, page_by).run(&notes);
            })?;
        Ok(Self {
            queue,
            queued,
            copies: pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?,
            buffer: vec![0; PIECE],
            turns: HashMap::new(),
            sums: [0; 2],
            stopped: None,
        })
    }

    pub(crate) fn opened(&mut self, id: u64, at_ns: u64, client: &OwnedFd) {
        let (pid, uid) = peer(client).unzip();
        let turn = Turn {
            direction: Direction::ToServer,
            kept: 0,
            sums: [Crc::new(), Crc::new()],
        };
        self.turns.insert(id, turn);
        self.note(Note::Opened {
            id,
            at_ns,
            pid,
            uid,
        });
    }

    /// Record a copy of the `count` bytes that wait in `pipe`.
    pub(crate) fn passes(
        &mut self,
        id: u64,
        direction: Direction,
        at_ns: u64,
        pipe: &OwnedFd,
        count: usize,
    ) {
        if self.stopped.is_some() {
            return;
        }
        let copied = tee(pipe, &self.copies.1, count, SpliceFlags::NONBLOCK);
        let read = rustix::io::read(&self.copies.0, &mut self.buffer[..]);
        if !matches!((copied, read), (Ok(copied), Ok(read)) if copied == count && read == count) {
            self.stopped = Some("the kernel made no copy of what passed");
            return;
        }
        let Some(turn) = self.turns.get_mut(&id) else {
            return;
        };
        if turn.direction != direction {
            turn.direction = direction;
            turn.kept = 0;
        }
        let (most, end, sum) = match direction {
            Direction::ToServer => (REQUEST_KEPT, END_KEPT, 0),
            Direction::ToClient => (ANSWER_KEPT, 0, 1),
        };
        let bytes = &self.buffer[..count];
        turn.sums[sum].update(bytes);
        let kept = count.min(most - turn.kept);
        turn.kept += kept;
        let end: Box<[u8]> = bytes[kept.max(count.saturating_sub(end))..].into();
        let bytes: Box<[u8]> = bytes[..kept].into();
        let skipped = count - kept - end.len();
        for (bytes, skipped) in [(bytes, skipped), (end, 0)] {
            if bytes.len() + skipped > 0 {
                self.note(Note::Bytes {
                    id,
                    direction,
                    at_ns,
                    bytes,
                    skipped,
                });
            }
        }
    }

    pub(crate) fn closed(&mut self, id: u64, at_ns: u64) {
        if let Some(turn) = self.turns.remove(&id) {
            self.add_sums(&turn);
            self.note(Note::Closed { id, at_ns });
        }
    }

    fn add_sums(&mut self, turn: &Turn) {
        for (sum, of_turn) in self.sums.iter_mut().zip(&turn.sums) {
            *sum ^= of_turn.sum();
        }
    }

    fn note(&mut self, note: Note) {
        if self.stopped.is_some() {
            return;
        }
        if self.queued.fetch_add(note.size(), Relaxed) > MOST_BYTES {
            self.stopped =
                Some("the recorder fell behind: bytes came faster than they could be read");
            return;
        }
        match self.queue.try_send(note) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                self.stopped = Some(
                    "the recorder fell behind: round trips came faster than they could be written",
                );
            }
            Err(TrySendError::Disconnected(_)) => {
                self.stopped = Some("nobody takes the recording any more");
            }
        }
    }

    /// Write what is left, then the last event. False if the queue is full now: call again.
    pub(crate) fn finish(&mut self, totals: &Totals, open: usize, is_kept: bool) -> bool {
        let turns: Vec<u64> = self.turns.keys().copied().collect();
        for id in turns {
            if let Some(turn) = self.turns.remove(&id) {
                self.add_sums(&turn);
            }
        }
        let ended = RecordEnded {
            commands: BTreeMap::new(),
            unknown: BTreeMap::new(),
            taken_to_server: totals.taken_to_server,
            taken_to_client: totals.taken_to_client,
            passed_to_server: totals.passed_to_server,
            passed_to_client: totals.passed_to_client,
            crc32_to_server: self.sums[0],
            crc32_to_client: self.sums[1],
            open: open as u64,
            refused: totals.refused,
            refusal: totals.refusal.clone(),
            server_pid: totals.server_pid,
            stopped: self.stopped.map(str::to_owned),
            survives_kill: is_kept,
        };
        !matches!(
            self.queue.try_send(Note::Finish(Box::new(ended))),
            Err(TrySendError::Full(_))
        )
    }
}

#[derive(Debug)]
struct Known {
    conversation: Conversation,
    opened_ns: u64,
    pid: Option<i32>,
    uid: Option<u32>,
}

/// The writer's side: turns notes, or captured packets, into events.
#[derive(Debug)]
pub(crate) struct Writer {
    page_by: Arc<[String]>,
    queued: Arc<AtomicU64>,
    salt: Salt,
    known: HashMap<u64, Known>,
    digests: HashMap<(&'static str, String), u64>,
    next_round_trip: u64,
    event: Recorded,
    commands: BTreeMap<&'static str, u64>,
    unknown: BTreeMap<&'static str, u64>,
}

impl Writer {
    pub(crate) fn new(queued: Arc<AtomicU64>, page_by: Vec<String>) -> Self {
        Self {
            page_by: page_by.into(),
            queued,
            salt: Salt::default(),
            known: HashMap::new(),
            digests: HashMap::new(),
            next_round_trip: 1,
            event: Recorded::default(),
            commands: BTreeMap::new(),
            unknown: BTreeMap::new(),
        }
    }

    /// Process notes until the last one, or until the reader of the events has gone.
    fn run(mut self, notes: &Receiver<Note>) {
        let mut yields = true; // as its thread was started
        let (mut before, mut written) = (0, Instant::now());
        loop {
            let queued = self.queued.load(Relaxed);
            let rests = queued == before;
            if rests || queued > DEFERRED_BYTES || written.elapsed() > DEFERRED {
                match self.write_queued(notes, &mut yields) {
                    Ok(true) => {}
                    Ok(false) | Err(_) => return,
                }
                written = Instant::now();
            }
            before = self.queued.load(Relaxed);
            thread::sleep(REST);
        }
    }

    /// Process all notes that wait; false after the last note.
    fn write_queued(&mut self, notes: &Receiver<Note>, yields: &mut bool) -> std::io::Result<bool> {
        loop {
            if *yields && self.queued.load(Relaxed) > BEHIND_BYTES {
                *yields = false;
                yield_to_all(false);
            }
            match notes.try_recv() {
                Ok(Note::Finish(ended)) => {
                    self.finish(*ended);
                    return Ok(false);
                }
                Ok(note) => self.take(note)?,
                Err(TryRecvError::Empty) => {
                    self.write()?;
                    return Ok(true);
                }
                Err(TryRecvError::Disconnected) => return Ok(false),
            }
        }
    }

    fn take(&mut self, note: Note) -> std::io::Result<()> {
        self.queued.fetch_sub(note.size(), Relaxed);
        match note {
            Note::Opened {
                id,
                at_ns,
                pid,
                uid,
            } => self.opened(id, at_ns, pid, uid, true),
            Note::Bytes {
                id,
                direction,
                at_ns,
                bytes,
                skipped,
            } => {
                return self.bytes(id, direction, at_ns, &bytes, skipped);
            }
            Note::Closed { id, at_ns } => self.closed(id, Some(at_ns)),
            Note::Finish(_) => {}
        }
        Ok(())
    }

    pub(crate) fn opened(
        &mut self,
        id: u64,
        at_ns: u64,
        pid: Option<i32>,
        uid: Option<u32>,
        is_new: bool,
    ) {
        let mut conversation = Conversation::new(at_ns, is_new);
        conversation.name_pages_by(&self.page_by);
        let known = Known {
            conversation,
            opened_ns: at_ns,
            pid,
            uid,
        };
        self.known.insert(id, known);
    }

    pub(crate) fn bytes(
        &mut self,
        id: u64,
        direction: Direction,
        at_ns: u64,
        bytes: &[u8],
        skipped: usize,
    ) -> std::io::Result<()> {
        let Some(known) = self.known.get_mut(&id) else {
            return Ok(());
        };
        let ended = known
            .conversation
            .feed(direction, at_ns, bytes, skipped, &self.salt);
        let protocol = known.conversation.summary().protocol;
        if let Some(ended) = ended {
            self.add(id, protocol, ended);
        }
        if self.event.round_trips.len() >= MOST_AT_ONCE {
            return self.write();
        }
        Ok(())
    }

    pub(crate) fn closed(&mut self, id: u64, closed_ns: Option<u64>) {
        let Some(mut known) = self.known.remove(&id) else {
            return;
        };
        let last = known.conversation.close();
        let summary = known.conversation.summary();
        if let Some(last) = last {
            self.add(id, summary.protocol, last);
        }
        let summary = known.conversation.summary();
        let (commands, unknown) = known.conversation.take_counts();
        for (into, from) in [(&mut self.commands, commands), (&mut self.unknown, unknown)] {
            for (name, count) in from {
                *into.entry(name).or_default() += count;
            }
        }
        self.event.connections.push(RecordedConnection {
            id,
            protocol: summary.protocol,
            opened_ns: known.opened_ns,
            closed_ns,
            pid: known.pid,
            uid: known.uid,
            tls: summary.tls,
            login_round_trips: summary.login_round_trips,
            login_ns: summary.login_ns,
        });
    }

    fn add(&mut self, connection_id: u64, protocol: &'static str, one: RoundTrip) {
        let id = self.next_round_trip;
        self.next_round_trip += 1;
        let digest_id = one.digest.and_then(|text| self.digest(protocol, text));
        self.event.round_trips.push(RecordedRoundTrip {
            id,
            connection_id,
            begun_ns: one.begun_ns,
            sent_ns: one.sent_ns,
            answered_ns: one.answered_ns,
            ended_ns: one.ended_ns,
            bytes_to_server: one.bytes_to_server,
            bytes_to_client: one.bytes_to_client,
            requests: one.requests,
            command: one.command,
            digest_id,
            keys: one.keys.map(|keys| keys as i64),
            phase: Phase::from(one.phase),
            rows: one.rows,
            failed: one.failed,
        });
    }

    fn digest(&mut self, protocol: &'static str, text: String) -> Option<u64> {
        let next = self.digests.len() as u64 + 1;
        if let Some(&id) = self.digests.get(&(protocol, text.clone())) {
            return Some(id);
        }
        if self.digests.len() >= MOST_DIGESTS {
            *self
                .unknown
                .entry("more different statements than are kept")
                .or_default() += 1;
            return None;
        }
        self.event.digests.push(RecordedDigest {
            id: next,
            protocol,
            text: text.clone(),
        });
        self.digests.insert((protocol, text), next);
        Some(next)
    }

    pub(crate) fn write(&mut self) -> std::io::Result<()> {
        if self.event.is_empty() {
            return Ok(());
        }
        emit(&std::mem::take(&mut self.event))
    }

    /// Close all connections and write the last event.
    fn finish(&mut self, mut ended: RecordEnded) {
        (ended.commands, ended.unknown) = self.close_all();
        // This fails if the reader has gone, and then does not matter.
        let _ = self.write().and_then(|()| emit(&ended));
    }

    /// Close all connections. Returns requests by command, and what is not known by reason.
    pub(crate) fn close_all(&mut self) -> (Counts, Counts) {
        let mut open: Vec<u64> = self.known.keys().copied().collect();
        open.sort_unstable();
        for id in open {
            self.closed(id, None);
        }
        (self.commands.clone(), self.unknown.clone())
    }
}
