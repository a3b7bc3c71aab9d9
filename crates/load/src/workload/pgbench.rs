//! pgbench's built-in scripts: the same statements in the same order, rows drawn uniformly.

use howfar_contract::jobs::{Distribution, Pgbench, SqlProtocol, Workload};

use super::{Group, Kind, Program, Source, Step, Table};
use crate::distribution::Ids;

/// Rows per unit of scale.
pub(crate) const ACCOUNTS: u64 = 100_000;
pub(crate) const TELLERS: u64 = 10;

/// Values that a transaction draws once and reuses: indices into the connection's memory.
const AID: usize = 0;
const BID: usize = 1;
const TID: usize = 2;
const DELTA: usize = 3;
/// Deltas are drawn from -5000 to 5000.
const DELTAS: u64 = 10_001;
const BELOW_DELTAS: u64 = 5_001_u64.wrapping_neg();

pub(super) fn program(workload: &Workload, load: &Pgbench) -> Program {
    let mut script = Script {
        scale: u64::from(load.scale),
        kinds: Vec::new(),
        groups: Vec::new(),
        drawn: [false; 4],
        keeps: !matches!(workload, Workload::SelectOnly(_)),
    };
    match workload {
        Workload::SelectOnly(_) => script.select(),
        Workload::SimpleUpdate(_) => script.update(false),
        _ => script.update(true),
    }
    let mut program = Program::of(script.kinds, vec![(1, script.groups)], 1);
    program.memories = script.drawn.len();
    program
}

struct Script {
    scale: u64,
    kinds: Vec<Kind>,
    groups: Vec<Group>,
    drawn: [bool; 4],
    /// Whether some values are reused, so that drawn values must be kept.
    keeps: bool,
}

impl Script {
    fn select(&mut self) {
        self.step(
            "select_account",
            "SELECT abalance FROM pgbench_accounts WHERE aid = ?",
            &[AID],
        );
    }

    /// Add the updating script; `whole`: with tellers and branches.
    fn update(&mut self, whole: bool) {
        self.step("begin", "BEGIN", &[]);
        self.step(
            "update_account",
            "UPDATE pgbench_accounts SET abalance = abalance + ? WHERE aid = ?",
            &[DELTA, AID],
        );
        self.select();
        if whole {
            self.step(
                "update_teller",
                "UPDATE pgbench_tellers SET tbalance = tbalance + ? WHERE tid = ?",
                &[DELTA, TID],
            );
            self.step(
                "update_branch",
                "UPDATE pgbench_branches SET bbalance = bbalance + ? WHERE bid = ?",
                &[DELTA, BID],
            );
        }
        self.step(
            "insert_history",
            "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (?, ?, ?, ?, CURRENT_TIMESTAMP)",
            &[TID, BID, AID, DELTA],
        );
        self.step("end", "END", &[]);
    }

    fn step(&mut self, name: &str, sql: &str, values: &[usize]) {
        let sources = values.iter().map(|&which| self.value(which)).collect();
        self.kinds
            .push(Kind::new(name, sql, 0, SqlProtocol::Postgresql));
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
    fn value(&mut self, which: usize) -> Source {
        if std::mem::replace(&mut self.drawn[which], true) {
            return Source::Recalled(which);
        }
        let (count, below) = match which {
            AID => (ACCOUNTS * self.scale, 0),
            BID => (self.scale, 0),
            TID => (TELLERS * self.scale, 0),
            _ => (DELTAS, BELOW_DELTAS),
        };
        let number = Source::Number {
            ids: Ids::new(&Distribution::uniform(), count),
            below,
        };
        if !self.keeps {
            return number;
        }
        Source::Kept {
            index: which,
            source: Box::new(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(kind: fn(Pgbench) -> Workload, number: u64) -> Vec<(String, u32, Vec<String>)> {
        let workload = kind(Pgbench {
            scale: 3,
            ..Pgbench::default()
        });
        let program = Program::new(&workload, 1, 7).expect("a good workload");
        program.listed(0, number)
    }

    #[test]
    fn a_transaction_uses_its_values_again_and_they_are_in_range() {
        for number in 0..2000 {
            let made = listed(Workload::TpcbLike, number);
            let names: Vec<&str> = made.iter().map(|(name, ..)| name.as_str()).collect();
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
            let values = |at: usize| &made[at].2;
            let [delta, aid] = &values(1)[..] else {
                panic!("two values")
            };
            let (tid, bid) = (&values(3)[1], &values(4)[1]);
            assert_eq!(values(2), std::slice::from_ref(aid));
            assert_eq!((&values(3)[0], &values(4)[0]), (delta, delta));
            assert_eq!(
                values(5)[..],
                [tid.clone(), bid.clone(), aid.clone(), delta.clone()]
            );
            let number = |text: &String| text.parse::<i64>().expect("a number");
            assert!((-5000..=5000).contains(&number(delta)));
            assert!((1..=300_000).contains(&number(aid)));
            assert!((1..=30).contains(&number(tid)) && (1..=3).contains(&number(bid)));
        }
    }

    #[test]
    fn the_smaller_scripts_are_parts_of_it() {
        assert_eq!(listed(Workload::SelectOnly, 0).len(), 1);
        let names: Vec<String> = listed(Workload::SimpleUpdate, 0)
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
