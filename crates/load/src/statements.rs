//! One connection's state of its statements: prepared or sent as text.

use crate::workload::Program;

/// One statement of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// Sent as text each time: prepared statements are off, or the server cannot prepare this one.
    Text,
    /// `used`: the server knows the parameters' types.
    Prepared { id: u32, used: bool },
}

/// All statements of one connection, indexed by [`DueStatement::slot`](crate::workload::DueStatement::slot).
#[derive(Debug, Default)]
pub(crate) struct Statements {
    slots: Vec<Slot>,
    /// Column types by slot; empty unless rows are decoded.
    types: Vec<Vec<u8>>,
}

impl Statements {
    pub(crate) fn new(program: &Program) -> Self {
        let count = if program.is_prepared() {
            program.slot_count()
        } else {
            0
        };
        Self {
            slots: vec![Slot::Text; count],
            types: Vec::new(),
        }
    }

    pub(crate) fn set(&mut self, index: usize, slot: Slot) {
        self.slots[index] = slot;
    }

    pub(crate) fn add_type(&mut self, index: usize, column_type: u8) {
        if self.types.is_empty() {
            self.types = vec![Vec::new(); self.slots.len()];
        }
        self.types[index].push(column_type);
    }

    /// Number of statements that the server has prepared for this connection.
    pub(crate) fn prepared_count(&self) -> u32 {
        self.slots
            .iter()
            .filter(|slot| matches!(slot, Slot::Prepared { .. }))
            .count() as u32
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Slot> {
        self.slots.get_mut(index)
    }

    #[inline]
    pub(crate) fn types(&self, index: usize) -> &[u8] {
        self.types.get(index).map_or(&[], Vec::as_slice)
    }
}
