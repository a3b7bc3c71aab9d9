//! The log of acknowledged keys: the key that each transaction wrote, when it was sent, and its outcome.
//!
//! The file has a header, records of equal size and a closing record with their number, all little-endian. The reader is
//! `python/howfar/engine/acknowledged.py`. Each worker buffers records and appends them in large blocks, so the records of one
//! connection are in order. The log survives a crash of the server, not one of this process: then the closing record is missing, and
//! readers see that the log is incomplete.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use howfar_contract::events::AcknowledgementLog;
use howfar_contract::{FailCode, Failed};
use howfar_wire::ErrorCode;

use crate::clock::{now_ns, unix_ns};

const MAGIC: [u8; 8] = *b"howfarAK";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
const RECORD_BYTES: usize = 32;
/// Maximum bytes that a worker buffers: 2048 records.
const BUFFER_BYTES: usize = 2048 * RECORD_BYTES;

/// The outcome of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyOutcome {
    /// The last statement of its transaction succeeded.
    Acknowledged,
    /// The server answered a statement with this error; the log has 0 for errors without a number.
    Refused(ErrorCode),
    /// No answer came before the connection or the job ended.
    Unknown,
    /// Another connection found the key in its table (a `watch` job).
    Seen,
}

impl KeyOutcome {
    fn code(self) -> u8 {
        match self {
            Self::Acknowledged => 1,
            Self::Refused(_) => 2,
            Self::Unknown => 3,
            Self::Seen => 4,
        }
    }
}

/// The outcome byte of the closing record.
const CLOSING_RECORD: u8 = 255;

/// Number of records by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OutcomeCounts {
    acknowledged: u64,
    refused: u64,
    unknown: u64,
    seen: u64,
}

impl OutcomeCounts {
    pub(crate) fn add(&mut self, other: &Self) {
        self.acknowledged += other.acknowledged;
        self.refused += other.refused;
        self.unknown += other.unknown;
        self.seen += other.seen;
    }
}

/// The file, shared by all workers.
#[derive(Debug)]
pub(crate) struct LogFile {
    path: String,
    file: Mutex<File>,
    /// Time zero of the log: the start of the load.
    origin_ns: u64,
}

impl LogFile {
    /// Check, before the job begins, that no file would be overwritten.
    pub(crate) fn check_is_new(path: &str) -> Result<(), Failed> {
        if Path::new(path).symlink_metadata().is_ok() {
            return Err(Failed::new(
                FailCode::BadJob,
                format!("the log of acknowledged keys {path} exists already"),
                "Name a new file, or move the old one away.",
            ));
        }
        Ok(())
    }

    /// Create the file and write its header. The load begins at `origin_ns`.
    pub(crate) fn create(path: &str, connections: u32, origin_ns: u64) -> Result<Self, Failed> {
        let opened = OpenOptions::new().append(true).create_new(true).open(path);
        let file = opened.map_err(|error| {
            Failed::new(
                FailCode::BadJob,
                format!("making the log of acknowledged keys {path}: {error}"),
                "Name a new file in a directory that may be written to.",
            )
        })?;
        let log = Self {
            path: path.to_owned(),
            file: Mutex::new(file),
            origin_ns,
        };
        let origin_unix_ns = unix_ns() + origin_ns.saturating_sub(now_ns());
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend_from_slice(&MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&(RECORD_BYTES as u32).to_le_bytes());
        header.extend_from_slice(&origin_ns.to_le_bytes());
        header.extend_from_slice(&origin_unix_ns.to_le_bytes());
        header.extend_from_slice(&connections.to_le_bytes());
        header.resize(HEADER_BYTES, 0);
        log.append(&header)?;
        Ok(log)
    }

    fn append(&self, bytes: &[u8]) -> Result<(), Failed> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(bytes).map_err(|error| {
            Failed::new(
                FailCode::Interface,
                format!(
                    "writing the log of acknowledged keys {}: {error}",
                    self.path
                ),
                "Give the log a file system with room: 32 bytes a transaction.",
            )
        })
    }

    /// Write the closing record, after all workers have ended their parts. `counts`: the sum of their records.
    pub(crate) fn close(&self, counts: &OutcomeCounts) -> Result<AcknowledgementLog, Failed> {
        let records = counts.acknowledged + counts.refused + counts.unknown + counts.seen;
        // The closing record has counts in the fields of the key and of the times.
        let times = (counts.acknowledged, counts.refused);
        let mut bytes = Vec::with_capacity(RECORD_BYTES);
        put_record(
            &mut bytes,
            records as i64,
            times,
            u32::MAX,
            0,
            CLOSING_RECORD,
        );
        self.append(&bytes)?;
        Ok(AcknowledgementLog {
            path: self.path.clone(),
            records,
            acknowledged: counts.acknowledged,
            refused: counts.refused,
            unknown: counts.unknown,
        })
    }
}

fn put_record(
    out: &mut Vec<u8>,
    key: i64,
    (sent_ns, ended_ns): (u64, u64),
    connection: u32,
    error: u16,
    outcome: u8,
) {
    out.extend_from_slice(&key.to_le_bytes());
    out.extend_from_slice(&sent_ns.to_le_bytes());
    out.extend_from_slice(&ended_ns.to_le_bytes());
    out.extend_from_slice(&connection.to_le_bytes());
    out.extend_from_slice(&error.to_le_bytes());
    out.extend_from_slice(&[outcome, 0]);
}

/// One worker's part of the log.
#[derive(Debug)]
pub(crate) struct Log<'a> {
    file: &'a LogFile,
    buffer: Vec<u8>,
    counts: OutcomeCounts,
}

impl<'a> Log<'a> {
    pub(crate) fn new(file: &'a LogFile) -> Self {
        Self {
            file,
            buffer: Vec::with_capacity(BUFFER_BYTES),
            counts: OutcomeCounts::default(),
        }
    }

    /// Write a record: `key` was sent at `sent_ns`, and its outcome was known at `now`.
    #[inline]
    pub(crate) fn write(
        &mut self,
        key: i64,
        connection: u64,
        sent_ns: u64,
        now: u64,
        outcome: KeyOutcome,
    ) -> Result<(), Failed> {
        if self.buffer.len() == BUFFER_BYTES {
            self.flush()?;
        }
        let (count, error) = match outcome {
            KeyOutcome::Acknowledged => (&mut self.counts.acknowledged, 0),
            KeyOutcome::Refused(code) => (&mut self.counts.refused, code.number().unwrap_or(0)),
            KeyOutcome::Unknown => (&mut self.counts.unknown, 0),
            KeyOutcome::Seen => (&mut self.counts.seen, 0),
        };
        *count += 1;
        let since = |time: u64| time.saturating_sub(self.file.origin_ns);
        let times = (since(sent_ns), since(now));
        let connection = connection as u32;
        put_record(
            &mut self.buffer,
            key,
            times,
            connection,
            error,
            outcome.code(),
        );
        Ok(())
    }

    /// Append the buffered records.
    pub(crate) fn flush(&mut self) -> Result<(), Failed> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let written = self.file.append(&self.buffer);
        // Clear the buffer even if the write failed: part of it may be in the file, and records after a partial one could not be
        // read.
        self.buffer.clear();
        written
    }

    /// Append the remaining records and return the counts.
    pub(crate) fn end(mut self) -> Result<OutcomeCounts, Failed> {
        self.flush()?;
        Ok(self.counts)
    }
}

/// Keeps the records written before a panic; the log then has no closing record.
impl Drop for Log<'_> {
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_path(name: &str) -> String {
        let file = format!("howfar-keys-{}-{name}", std::process::id());
        std::env::temp_dir().join(file).display().to_string()
    }

    #[test]
    fn a_log_has_a_header_its_records_and_their_number() {
        let path = log_path("complete");
        let file = LogFile::create(&path, 3, 1000).expect("the file is new");
        let (mut first_log, mut second_log) = (Log::new(&file), Log::new(&file));
        first_log
            .write(-5, 0, 1001, 1007, KeyOutcome::Acknowledged)
            .expect("the log can be written");
        second_log
            .write(6, 1, 900, 1008, KeyOutcome::Refused(1062.into()))
            .expect("the log can be written");
        first_log
            .write(7, 2, 1003, 1009, KeyOutcome::Unknown)
            .expect("the log can be written");
        let mut counts = first_log.end().expect("the log can be written");
        counts.add(&second_log.end().expect("the log can be written"));
        let event = file.close(&counts).expect("the log can be written");
        assert_eq!((event.records, event.acknowledged), (3, 1));
        assert_eq!((counts.refused, event.unknown), (1, 1));
        let bytes = std::fs::read(&path).expect("the log exists");
        std::fs::remove_file(&path).expect("the test made the file");
        assert_eq!(bytes.len(), HEADER_BYTES + 4 * RECORD_BYTES);
        assert_eq!(bytes[..8], MAGIC);
        let first = &bytes[HEADER_BYTES..HEADER_BYTES + RECORD_BYTES];
        assert_eq!(first[..8], (-5_i64).to_le_bytes());
        assert_eq!((first[8], first[16], first[30]), (1, 7, 1));
        // The record of the second log was sent before the origin.
        let third = &bytes[HEADER_BYTES + 2 * RECORD_BYTES..HEADER_BYTES + 3 * RECORD_BYTES];
        assert_eq!((third[0], third[8], third[30]), (6, 0, 2));
        assert_eq!(third[28..30], 1062_u16.to_le_bytes());
        let last = &bytes[HEADER_BYTES + 3 * RECORD_BYTES..];
        assert_eq!((last[0], last[30]), (3, CLOSING_RECORD));
    }

    #[test]
    fn a_buffer_is_bounded_and_written_when_dropped() {
        let path = log_path("dropped");
        let file = LogFile::create(&path, 1, 0).expect("the file is new");
        let mut log = Log::new(&file);
        let max_records = (BUFFER_BYTES / RECORD_BYTES) as i64;
        for key in 0..=max_records {
            log.write(key, 0, 1, 2, KeyOutcome::Acknowledged)
                .expect("the log can be written");
        }
        let written = || std::fs::metadata(&path).expect("the log exists").len() as usize;
        assert_eq!(written(), HEADER_BYTES + BUFFER_BYTES);
        assert_eq!(log.buffer.len(), RECORD_BYTES);
        drop(log);
        assert_eq!(written(), HEADER_BYTES + BUFFER_BYTES + RECORD_BYTES);
        std::fs::remove_file(&path).expect("the test made the file");
    }

    #[test]
    fn an_existing_file_is_not_overwritten() {
        let path = log_path("old");
        std::fs::write(&path, "old").expect("the file can be used");
        let checked = LogFile::check_is_new(&path).expect_err("the file exists");
        assert!(checked.message.contains("exists"), "{checked:?}");
        let created = LogFile::create(&path, 1, 0).expect_err("the file exists");
        assert_eq!(created.code, FailCode::BadJob);
        assert_eq!(std::fs::read(&path).expect("the file can be used"), b"old");
        std::fs::remove_file(&path).expect("the test made the file");
        LogFile::check_is_new(&path).expect("the file is removed");
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let full = File::options()
            .append(true)
            .open("/dev/full")
            .expect("/dev/full exists");
        let file = LogFile {
            path: "the-path".to_owned(),
            file: Mutex::new(full),
            origin_ns: 0,
        };
        let mut log = Log::new(&file);
        log.write(1, 0, 1, 2, KeyOutcome::Acknowledged)
            .expect("the record is only buffered");
        let failed = log.end().expect_err("the device is full");
        assert!(failed.message.contains("the-path"), "{failed:?}");
        assert!(failed.message.contains("space"), "{failed:?}");
    }
}
