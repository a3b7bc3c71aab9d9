//! pgbench's built-in scripts: the same statements in the same order, rows drawn uniformly.

use howfar_contract::jobs::{Distribution, Pgbench, SqlProtocol, Workload};

use super::{Group, Program, Source, StatementKind, Step, Table};
use crate::distribution::IdSampler;

/// Rows per unit of scale.
pub(crate) const ACCOUNTS: u64 = 100_000;
pub(crate) const TELLERS: u64 = 10;

/// Values that a transaction draws once and reuses: indices into the connection's memory.
const AID: usize = 0;
const BID: usize = 1;
const TID: usize = 2;
const DELTA: usize = 3;
/// Deltas are drawn from -5000 to 5000.
const DELTA_COUNT: u64 = 10_001;
const DELTA_OFFSET: u64 = 5_001_u64.wrapping_neg();

pub(super) fn build_program(workload: &Workload, load: &Pgbench) -> Program {
    let mut script = Script {
        scale: u64::from(load.scale),
        kinds: Vec::new(),
        groups: Vec::new(),
        drawn: [false; 4],
        keeps_values: !matches!(workload, Workload::SelectOnly(_)),
    };
    match workload {
        Workload::SelectOnly(_) => script.add_select(),
        Workload::SimpleUpdate(_) => script.add_update(false),
        _ => script.add_update(true),
    }
    let mut program = Program::from_parts(script.kinds, vec![(1, script.groups)], 1);
    program.kept_values = script.drawn.len();
    program
}

struct Script {
    scale: u64,
    kinds: Vec<StatementKind>,
    groups: Vec<Group>,
    drawn: [bool; 4],
    /// Whether some values are reused, so that drawn values must be kept.
    keeps_values: bool,
}

impl Script {
    fn add_select(&mut self) {
        self.add_step(
            "select_account",
            "SELECT abalance FROM pgbench_accounts WHERE aid = ?",
            &[AID],
        );
    }

    /// Add the updating script, with tellers and branches or without.
    fn add_update(&mut self, with_branches: bool) {
        self.add_step("begin", "BEGIN", &[]);
        self.add_step(
            "update_account",
            "UPDATE pgbench_accounts SET abalance = abalance + ? WHERE aid = ?",
            &[DELTA, AID],
        );
        self.add_select();
        if with_branches {
            self.add_step(
                "update_teller",
                "UPDATE pgbench_tellers SET tbalance = tbalance + ? WHERE tid = ?",
                &[DELTA, TID],
            );
            self.add_step(
                "update_branch",
                "UPDATE pgbench_branches SET bbalance = bbalance + ? WHERE bid = ?",
                &[DELTA, BID],
            );
        }
        self.add_step(
            "insert_history",
            "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (?, ?, ?, ?, CURRENT_TIMESTAMP)",
            &[TID, BID, AID, DELTA],
        );
        self.add_step("end", "END", &[]);
    }

    fn add_step(&mut self, name: &str, sql: &str, values: &[usize]) {
        let sources = values.iter().map(|&index| self.source_for(index)).collect();
        self.kinds
            .push(StatementKind::new(name, sql, 0, SqlProtocol::Postgresql));
        self.groups.push(Group {
            table: Table::None,
            repeat: 1,
            steps: vec![Step {
                kind: self.kinds.len() - 1,
                think_ns: 0,
                sources,
            }],
        });
    }

    /// The source of a value: drawn at its first use, recalled after that.
    fn source_for(&mut self, index: usize) -> Source {
        if std::mem::replace(&mut self.drawn[index], true) {
            return Source::Recall(index);
        }
        let (count, offset) = match index {
            AID => (ACCOUNTS * self.scale, 0),
            BID => (self.scale, 0),
            TID => (TELLERS * self.scale, 0),
            _ => (DELTA_COUNT, DELTA_OFFSET),
        };
        let number = Source::Number {
            ids: IdSampler::new(&Distribution::uniform(), count),
            offset,
        };
        if !self.keeps_values {
            return number;
        }
        Source::Keep {
            index,
            source: Box::new(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list_statements(
        kind: fn(Pgbench) -> Workload,
        number: u64,
    ) -> Vec<(String, u32, Vec<String>)> {
        let workload = kind(Pgbench {
            scale: 3,
            ..Pgbench::default()
        });
        let program = Program::new(&workload, 1, 7).expect("the workload is valid");
        program.list_statements(0, number)
    }

    #[test]
    fn a_transaction_reuses_its_values_and_they_are_in_range() {
        for number in 0..2000 {
            let statements = list_statements(Workload::TpcbLike, number);
            let names: Vec<&str> = statements.iter().map(|(name, ..)| name.as_str()).collect();
            assert_eq!(
                names,
                [
                    "begin",
                    "update_account",
                    "select_account",
                    "update_teller",
                    "update_branch",
                    "insert_history",
                    "end"
                ]
            );
            let values = |index: usize| &statements[index].2;
            let [delta, aid] = &values(1)[..] else {
                panic!("the statement has two values")
            };
            let (tid, bid) = (&values(3)[1], &values(4)[1]);
            assert_eq!(values(2), std::slice::from_ref(aid));
            assert_eq!((&values(3)[0], &values(4)[0]), (delta, delta));
            assert_eq!(
                values(5)[..],
                [tid.clone(), bid.clone(), aid.clone(), delta.clone()]
            );
            let number = |text: &String| text.parse::<i64>().expect("the value is a number");
            assert!((-5000..=5000).contains(&number(delta)));
            assert!((1..=300_000).contains(&number(aid)));
            assert!((1..=30).contains(&number(tid)) && (1..=3).contains(&number(bid)));
        }
    }

    #[test]
    fn the_smaller_scripts_are_parts_of_the_full_one() {
        assert_eq!(list_statements(Workload::SelectOnly, 0).len(), 1);
        let names: Vec<String> = list_statements(Workload::SimpleUpdate, 0)
            .into_iter()
            .map(|(name, ..)| name)
            .collect();
        assert_eq!(
            names,
            [
                "begin",
                "update_account",
                "select_account",
                "insert_history",
                "end"
            ]
        );
    }
}
