//! A position in a transaction.

use super::{Memory, Program, Step, Table, Value};
use crate::random_stream::RandomStream;

/// The next statement of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueStatement {
    /// Index into [`Program::kinds`].
    pub kind: usize,
    /// Number of its table, from 1; 1 if it has none.
    pub table: u32,
    /// Index of the statement's state in a connection's `Statements`.
    pub slot: usize,
    /// Pause before the statement.
    pub think_ns: u64,
    group: u32,
    step: u32,
}

/// A position in a transaction, with the state of its random numbers.
#[derive(Debug, Clone)]
pub struct Cursor {
    pub(super) random: RandomStream,
    /// The row id that was drawn last.
    pub(super) last_id: u64,
    connection: u32,
    transaction_kind: u32,
    /// Position of the next statement.
    group: u32,
    step: u32,
    /// Repetitions of the group that have begun.
    round: u32,
    table: u32,
}

impl Cursor {
    pub(super) fn new(random: RandomStream, connection: u64, transaction_kind: usize) -> Self {
        Self {
            random,
            last_id: 0,
            connection: connection as u32,
            transaction_kind: transaction_kind as u32,
            group: 0,
            step: 0,
            round: 0,
            table: 1,
        }
    }

    /// The next statement; `None` after the last.
    #[inline]
    pub fn next(&mut self, program: &Program) -> Option<DueStatement> {
        let groups = &program.transactions[self.transaction_kind as usize].1;
        loop {
            let group = groups.get(self.group as usize)?;
            if self.step == 0 {
                if self.round == 0 && group.repeat > 0 {
                    match group.table {
                        Table::Drawn => {
                            self.table = self.random.up_to(u64::from(program.tables)) as u32;
                        }
                        Table::PerConnection => self.table = self.connection + 1,
                        Table::None => {}
                    }
                }
                self.round += 1;
            }
            if self.round > group.repeat {
                self.group += 1;
                self.round = 0;
                continue;
            }
            let index = self.step;
            let step = &group.steps[index as usize];
            let kind = &program.kinds[step.kind];
            let table = if kind.tables > 1 { self.table } else { 1 };
            self.step += 1;
            let due = DueStatement {
                kind: step.kind,
                table,
                slot: kind.first_slot + table as usize - 1,
                think_ns: step.think_ns,
                group: self.group,
                step: index,
            };
            if self.step as usize == group.steps.len() {
                self.step = 0;
            }
            return Some(due);
        }
    }

    fn step<'a>(&self, program: &'a Program, due: DueStatement) -> &'a Step {
        let groups = &program.transactions[self.transaction_kind as usize].1;
        &groups[due.group as usize].steps[due.step as usize]
    }

    /// Draw the values that `due` binds, in order. Each call draws new values, so it is called once per statement.
    #[inline]
    pub fn values(
        &mut self,
        program: &Program,
        due: DueStatement,
        memory: &mut Memory,
        mut put: impl FnMut(Value<'_>),
    ) {
        for source in &self.step(program, due).sources {
            source.draw(program, self, memory, &mut put);
        }
    }

    /// Number of values that `due` binds.
    pub fn value_count(&self, program: &Program, due: DueStatement) -> usize {
        self.step(program, due).sources.len()
    }
}
