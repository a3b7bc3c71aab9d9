//! The rows of sysbench's tables, in multi-row INSERTs. Pure: a row depends only on (seed, table, row), so the same seed gives the
//! same tables with any number of connections.

use std::io::Write;

use crate::digits;
use crate::distribution::IdSampler;
use crate::random_stream::RandomStream;

/// Bytes that sysbench collects before it sends an INSERT.
pub(super) const BULK_BYTES: usize = 512 * 1024;
/// Maximum bytes of a row: a comma, brackets, quotes and separators, two integers of at most 20 digits, and the two strings.
const MAX_ROW_BYTES: usize = 1 + 2 + 4 + 6 + 2 * 20 + digits::C_LENGTH + digits::PAD_LENGTH;
/// Separates the random numbers of rows from those of transactions with the same seed.
const RANDOM_STREAM: u64 = 0x7461_626C_6573;

/// One table's rows still to be sent.
#[derive(Debug)]
pub(super) struct Rows<'a> {
    seed: u64,
    table: u32,
    size: u64,
    sent: u64,
    auto_inc: bool,
    ids: &'a IdSampler,
}

impl<'a> Rows<'a> {
    /// All rows of `table`. `ids`: distribution of column k. Without `auto_inc` the rows include their ids.
    pub(super) fn new(
        seed: u64,
        table: u32,
        size: u64,
        auto_inc: bool,
        ids: &'a IdSampler,
    ) -> Self {
        Self {
            seed,
            table,
            size,
            sent: 0,
            auto_inc,
            ids,
        }
    }

    /// Append one INSERT of at most `limit` bytes with as many rows as fit; returns their number, 0 if none are left.
    pub(super) fn insert(&mut self, limit: usize, out: &mut Vec<u8>) -> u64 {
        if self.sent == self.size {
            return 0;
        }
        let start = out.len();
        let columns = if self.auto_inc {
            "(k, c, pad)"
        } else {
            "(id, k, c, pad)"
        };
        write!(out, "INSERT INTO sbtest{}{columns} VALUES", self.table)
            .expect("a write to memory succeeds");
        let before = self.sent;
        loop {
            self.sent += 1;
            self.write_row(self.sent, out);
            // At least one row: if the server's limit is below that, the server reports it.
            if self.sent == self.size || out.len() - start + MAX_ROW_BYTES > limit {
                return self.sent - before;
            }
            out.push(b',');
        }
    }

    fn write_row(&self, row: u64, out: &mut Vec<u8>) {
        let mut random = RandomStream::new(self.seed ^ RANDOM_STREAM, u64::from(self.table), row);
        let k = self.ids.draw(&mut random);
        out.push(b'(');
        if !self.auto_inc {
            write!(out, "{row}, ").expect("a write to memory succeeds");
        }
        write!(out, "{k}, '").expect("a write to memory succeeds");
        digits::write_c(&mut random, out);
        out.extend_from_slice(b"', '");
        digits::write_pad(&mut random, out);
        out.extend_from_slice(b"')");
    }
}

#[cfg(test)]
mod tests {
    use howfar_contract::jobs::Distribution;

    use super::*;

    fn inserts(size: u64, auto_inc: bool, limit: usize) -> Vec<String> {
        let ids = IdSampler::new(&Distribution::uniform(), size.max(1));
        let mut rows = Rows::new(7, 3, size, auto_inc, &ids);
        let mut inserts = Vec::new();
        let mut out = Vec::new();
        let mut total = 0;
        loop {
            out.clear();
            match rows.insert(limit, &mut out) {
                0 => break,
                count => total += count,
            }
            inserts.push(String::from_utf8(out.clone()).expect("ASCII"));
        }
        assert_eq!(total, size);
        inserts
    }

    /// Split all INSERTs, which begin with `prefix`, into their rows.
    fn split_rows(inserts: &[String], prefix: &str) -> Vec<String> {
        inserts
            .iter()
            .flat_map(|insert| {
                let tail = insert
                    .strip_prefix(prefix)
                    .expect("an INSERT has the prefix");
                let inner = tail
                    .strip_prefix('(')
                    .and_then(|tail| tail.strip_suffix(')'));
                inner
                    .expect("rows are in brackets")
                    .split("),(")
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    const PREFIX: &str = "INSERT INTO sbtest3(k, c, pad) VALUES";

    #[test]
    fn a_row_has_sysbenchs_format() {
        let rows_of_table = split_rows(&inserts(2, true, BULK_BYTES), PREFIX);
        assert_eq!(rows_of_table.len(), 2);
        let fields: Vec<&str> = rows_of_table[0].split(", ").collect();
        assert!((1..=2).contains(&fields[0].parse::<u64>().expect("k is a number")));
        assert_eq!((fields[1].len(), fields[2].len()), (119 + 2, 59 + 2));
        let explicit = inserts(2, false, BULK_BYTES);
        let numbered = split_rows(&explicit, "INSERT INTO sbtest3(id, k, c, pad) VALUES");
        assert_eq!(numbered[1], format!("2, {}", rows_of_table[1]));
    }

    #[test]
    fn the_size_of_inserts_changes_no_row() {
        let expected = split_rows(&inserts(1000, true, BULK_BYTES), PREFIX);
        assert_eq!(expected.len(), 1000);
        for limit in [1, 1024, 5000, 100_000] {
            let cut = inserts(1000, true, limit);
            assert!(limit < 1024 || cut.iter().all(|insert| insert.len() <= limit));
            assert_eq!(split_rows(&cut, PREFIX), expected);
        }
    }

    #[test]
    fn inserts_are_nearly_as_long_as_allowed() {
        let batches = inserts(10_000, true, BULK_BYTES);
        assert!(
            batches[..batches.len() - 1]
                .iter()
                .all(|insert| insert.len() > BULK_BYTES - MAX_ROW_BYTES)
        );
        assert!(inserts(0, true, BULK_BYTES).is_empty());
    }
}
