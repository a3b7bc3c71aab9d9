//! One direction of a connection, in which bytes wait until they are due. It does no I/O; the caller passes the time.

use std::collections::VecDeque;

/// Maximum bytes of a direction that may wait; while there are more, the tap does not read from the sender.
pub(crate) const MAX_WAITING_BYTES: usize = 4 << 20;

#[derive(Debug)]
struct Chunk {
    read_ns: u64,
    due_ns: u64,
    /// Whether the bytes are the first after the other side has sent.
    begins_run: bool,
    bytes: Vec<u8>,
    written: usize,
}

/// Counts of a direction since they were last taken.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PassedCounts {
    pub(crate) bytes: u64,
    /// Runs of bytes without interruption by the other direction.
    pub(crate) runs: u64,
    /// Total time for which the first bytes of these runs were held.
    pub(crate) held_ns: u64,
}

impl PassedCounts {
    pub(crate) fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.runs += other.runs;
        self.held_ns += other.held_ns;
    }
}

/// The bytes that wait, in order: none overtakes another, even if the delay becomes shorter.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    waiting: VecDeque<Chunk>,
    waiting_bytes: usize,
    last_due_ns: u64,
    /// When the end of the sender's stream is due, if it has ended; `u64::MAX` once the receiver's side is shut.
    end_due_ns: Option<u64>,
    /// The receiver has gone before the sender ended.
    is_abandoned: bool,
}

impl Flow {
    /// Add bytes that were read at `now_ns` and are due `delay_ns` later.
    pub(crate) fn push(&mut self, bytes: &[u8], now_ns: u64, delay_ns: u64, begins_run: bool) {
        if self.is_abandoned {
            return;
        }
        self.last_due_ns = self.last_due_ns.max(now_ns + delay_ns);
        self.waiting_bytes += bytes.len();
        self.waiting.push_back(Chunk {
            read_ns: now_ns,
            due_ns: self.last_due_ns,
            begins_run,
            bytes: bytes.to_vec(),
            written: 0,
        });
    }

    /// Record that the sender ended at `now_ns`.
    pub(crate) fn record_end(&mut self, now_ns: u64, delay_ns: u64) {
        self.last_due_ns = self.last_due_ns.max(now_ns + delay_ns);
        self.end_due_ns.get_or_insert(self.last_due_ns);
        self.is_abandoned = false;
    }

    pub(crate) fn has_room(&self) -> bool {
        self.is_abandoned || (self.waiting_bytes < MAX_WAITING_BYTES && self.end_due_ns.is_none())
    }

    /// When the next bytes, or the end of the stream, are due.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        match self.waiting.front() {
            Some(chunk) => Some(chunk.due_ns),
            None => self.end_due_ns,
        }
    }

    /// Pass the bytes that are due to `write`, which returns how many it took, until it takes no more. Returns the counts of passed bytes,
    /// and whether all due bytes were passed.
    pub(crate) fn drain<E>(
        &mut self,
        now_ns: u64,
        mut write: impl FnMut(&[u8]) -> Result<usize, E>,
    ) -> Result<(PassedCounts, bool), E> {
        let mut passed = PassedCounts::default();
        while let Some(chunk) = self.waiting.front_mut() {
            if chunk.due_ns > now_ns {
                break;
            }
            let taken = write(&chunk.bytes[chunk.written..])?;
            if chunk.written == 0 && taken > 0 && chunk.begins_run {
                passed.runs += 1;
                passed.held_ns += now_ns.saturating_sub(chunk.read_ns);
            }
            passed.bytes += taken as u64;
            self.waiting_bytes -= taken;
            chunk.written += taken;
            if chunk.written < chunk.bytes.len() {
                return Ok((passed, false));
            }
            self.waiting.pop_front();
        }
        Ok((passed, true))
    }

    /// Whether the receiver's side must be shut now, because all bytes have been passed on and the end is due. True only once.
    pub(crate) fn must_shut_now(&mut self, now_ns: u64) -> bool {
        let must_shut = self.waiting.is_empty() && self.end_due_ns.is_some_and(|due| due <= now_ns);
        if must_shut {
            self.end_due_ns = Some(u64::MAX);
        }
        must_shut
    }

    /// Drop the bytes that wait and those that still come, because the receiver has gone. The tap still reads from the sender, because
    /// a server that cannot write does not read the rest of its requests either.
    pub(crate) fn abandon(&mut self) {
        self.waiting.clear();
        self.waiting_bytes = 0;
        self.is_abandoned = self.end_due_ns.is_none();
        self.end_due_ns = Some(u64::MAX);
    }

    /// Whether the receiver's side has been shut.
    pub(crate) fn is_over(&self) -> bool {
        self.end_due_ns == Some(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    fn append_to(out: &mut Vec<u8>) -> impl FnMut(&[u8]) -> Result<usize, Infallible> {
        |bytes| {
            out.extend_from_slice(bytes);
            Ok(bytes.len())
        }
    }

    #[test]
    fn bytes_wait_exactly_for_the_delay() {
        let (mut flow, mut out) = (Flow::default(), Vec::new());
        flow.push(b"select", 1_000, 500, true);
        let (passed, _) = flow
            .drain(1_499, append_to(&mut out))
            .expect("writing to memory succeeds");
        assert_eq!(
            (passed, flow.next_due_ns()),
            (PassedCounts::default(), Some(1_500))
        );
        let (passed, _) = flow
            .drain(1_520, append_to(&mut out))
            .expect("writing to memory succeeds");
        assert_eq!((passed.bytes, passed.runs, passed.held_ns), (6, 1, 520));
        assert_eq!(out, b"select");
    }

    #[test]
    fn bytes_do_not_overtake_when_the_delay_gets_shorter() {
        let (mut flow, mut out) = (Flow::default(), Vec::new());
        flow.push(b"a", 0, 1_000, true);
        flow.push(b"b", 10, 0, false);
        flow.drain(999, append_to(&mut out))
            .expect("writing to memory succeeds");
        assert!(out.is_empty());
        flow.drain(1_000, append_to(&mut out))
            .expect("writing to memory succeeds");
        assert_eq!(out, b"ab");
    }

    #[test]
    fn the_end_of_the_stream_comes_after_the_bytes_and_once() {
        let (mut flow, mut out) = (Flow::default(), Vec::new());
        flow.push(b"a", 0, 100, true);
        flow.record_end(10, 100);
        assert!(!flow.must_shut_now(200), "bytes wait");
        flow.drain(200, append_to(&mut out))
            .expect("writing to memory succeeds");
        assert!(flow.must_shut_now(200));
        assert!(!flow.must_shut_now(300) && flow.is_over());
    }

    proptest! {
        #[test]
        fn bytes_come_out_as_they_went_in(
            pieces in prop::collection::vec((prop::collection::vec(any::<u8>(), 1..50), 0u64..1_000, 0u64..1_000), 0..20),
            room in 1usize..40,
        ) {
            let (mut flow, mut out, mut now, mut sent) = (Flow::default(), Vec::new(), 0, Vec::new());
            for (bytes, step, delay) in &pieces {
                now += step;
                flow.push(bytes, now, *delay, false);
                sent.extend_from_slice(bytes);
                flow.drain::<Infallible>(now, |bytes| {
                    let taken = room.min(bytes.len());
                    out.extend_from_slice(&bytes[..taken]);
                    Ok(taken)
                }).expect("writing to memory succeeds");
            }
            while let Some(due) = flow.next_due_ns() {
                let before = out.len();
                flow.drain(due, append_to(&mut out)).expect("writing to memory succeeds");
                prop_assert!(out.len() > before);
            }
            prop_assert_eq!(out, sent);
        }
    }
}
