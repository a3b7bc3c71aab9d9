//! One direction of a connection, in which bytes wait until they are due. It does no I/O; the caller passes the time.

use std::collections::VecDeque;

use crate::proxy::Store;

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

/// The bytes that wait, in order: none overtakes another, even if the delay becomes shorter. The end of the stream waits with them.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    waiting: VecDeque<Chunk>,
    waiting_bytes: usize,
    last_due_ns: u64,
}

impl Flow {
    /// Add bytes that were read at `now_ns` and are due `delay_ns` later; no bytes are the end of the stream.
    pub(crate) fn push(&mut self, bytes: &[u8], now_ns: u64, delay_ns: u64, begins_run: bool) {
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

    /// Pass the bytes that are due to `write`, which returns how many it took, until it takes no more. Returns the counts of passed bytes.
    pub(crate) fn drain<E>(
        &mut self,
        now_ns: u64,
        mut write: impl FnMut(&[u8]) -> Result<usize, E>,
    ) -> Result<PassedCounts, E> {
        let mut passed = PassedCounts::default();
        while let Some(chunk) = self.waiting.front_mut() {
            if chunk.due_ns > now_ns {
                break;
            }
            if !chunk.bytes.is_empty() {
                let taken = write(&chunk.bytes[chunk.written..])?;
                if chunk.written == 0 && taken > 0 && chunk.begins_run {
                    passed.runs += 1;
                    passed.held_ns += now_ns.saturating_sub(chunk.read_ns);
                }
                passed.bytes += taken as u64;
                self.waiting_bytes -= taken;
                chunk.written += taken;
                if chunk.written < chunk.bytes.len() {
                    break;
                }
            }
            self.waiting.pop_front();
        }
        Ok(passed)
    }
}

impl Store for Flow {
    fn has_room(&self) -> bool {
        self.waiting_bytes < MAX_WAITING_BYTES
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn next_due_ns(&self) -> Option<u64> {
        self.waiting.front().map(|chunk| chunk.due_ns)
    }

    fn clear(&mut self) {
        self.waiting.clear();
        self.waiting_bytes = 0;
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
        let passed = flow
            .drain(1_499, append_to(&mut out))
            .expect("writing to memory succeeds");
        assert_eq!(
            (passed, flow.next_due_ns()),
            (PassedCounts::default(), Some(1_500))
        );
        let passed = flow
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
    fn the_end_of_the_stream_waits_behind_the_bytes() {
        let (mut flow, mut out) = (Flow::default(), Vec::new());
        flow.push(b"a", 0, 100, true);
        flow.push(b"", 10, 100, false);
        let mut drain_until = |now| {
            flow.drain(now, append_to(&mut out))
                .expect("writing to memory succeeds");
            flow.is_empty()
        };
        assert!(!drain_until(100), "the end is due later");
        assert!(drain_until(110));
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
