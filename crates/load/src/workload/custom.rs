//! A user-defined workload: named statements, values from generators, transactions with weights and pauses.

use howfar_contract::jobs::{Constant, Custom, CustomStatement, SqlProtocol, Values};

use super::{Group, Program, Source, StatementKind, Step, Table};
use crate::distribution::IdSampler;

pub(super) fn build_program(custom: &Custom, protocol: SqlProtocol) -> Result<Program, String> {
    let mut kept = KeptValues::default();
    for statement in &custom.statements {
        for values in &statement.parameters {
            if let Values::Same { statement, index } = values {
                kept.add(statement, *index);
            }
        }
    }
    let mut kinds = Vec::new();
    for statement in &custom.statements {
        let kind = StatementKind::new(
            &format!("statement.{}", statement.name),
            &statement.sql,
            0,
            protocol,
        );
        if kind.value_count() != statement.parameters.len() {
            return Err(format!(
                "statement `{}` has {} `?` and {} parameters",
                statement.name,
                kind.value_count(),
                statement.parameters.len()
            ));
        }
        kinds.push(kind);
    }
    let mut transactions = Vec::new();
    let mut shares = 0;
    for transaction in &custom.transactions {
        shares += u64::from(transaction.weight);
        let mut groups = Vec::new();
        for step in &transaction.steps {
            let kind = custom
                .statements
                .iter()
                .position(|statement| statement.name == step.statement);
            let kind = kind.ok_or_else(|| format!("there is no statement `{}`", step.statement))?;
            groups.push(Group {
                table: Table::None,
                repeat: step.repeat,
                steps: vec![Step {
                    kind,
                    think_ns: step.think_ns,
                    sources: make_sources(&custom.statements[kind], &kept),
                }],
            });
        }
        transactions.push((shares, groups));
    }
    let mut program = Program::from_parts(kinds, transactions, 1);
    program.kept_values = kept.0.len();
    Ok(program)
}

/// Parameters that others refer to, whose values must be kept.
#[derive(Debug, Default)]
struct KeptValues(Vec<(String, u32)>);

impl KeptValues {
    fn add(&mut self, statement: &str, index: u32) {
        if self.find(statement, index).is_none() {
            self.0.push((statement.to_owned(), index));
        }
    }

    fn find(&self, statement: &str, index: u32) -> Option<usize> {
        self.0
            .iter()
            .position(|(kept_name, kept_index)| kept_name == statement && *kept_index == index)
    }
}

fn make_sources(statement: &CustomStatement, kept: &KeptValues) -> Vec<Source> {
    let mut sources = Vec::new();
    for (index, values) in statement.parameters.iter().enumerate() {
        let source = match values {
            Values::Sequence { first, step } => Source::Sequence {
                first: *first,
                step: *step,
            },
            Values::Integer {
                low,
                high,
                distribution,
            } => Source::Number {
                ids: IdSampler::new(distribution, high - low + 1),
                offset: low.wrapping_sub(1),
            },
            Values::Text {
                length,
                alphabet,
                compressible,
            } => Source::Text {
                length: *length,
                alphabet: *alphabet,
                compressible: *compressible,
            },
            Values::Constant {
                value: Constant::Integer(integer),
            } => Source::Integer(*integer),
            Values::Constant {
                value: Constant::Text(text),
            } => Source::Constant(text.as_bytes().to_vec()),
            Values::Same { statement, index } => kept
                .find(statement, *index)
                .map_or(Source::Integer(0), Source::Recall),
        };
        sources.push(match kept.find(&statement.name, index as u32) {
            Some(index) => Source::Keep {
                index,
                source: Box::new(source),
            },
            None => source,
        });
    }
    sources
}
