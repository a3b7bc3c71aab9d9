//! Detection of workloads that give each transaction its own key, chosen by the client, so that its row can be found later.

use super::{Custom, Values, Workload};

impl Workload {
    /// Whether each transaction uses at most one key, no two transactions share a key, and at least one transaction uses a key.
    pub fn is_keyed(&self) -> bool {
        match self {
            Self::Custom(custom) => custom.is_keyed(),
            Self::OltpInsert(load) => !load.auto_inc,
            _ => false,
        }
    }
}

impl Custom {
    /// Whether exactly one parameter is a sequence, and its statement runs at most once per transaction and in at least one
    /// transaction.
    fn is_keyed(&self) -> bool {
        let is_sequence = |values: &&Values| matches!(values, Values::Sequence { .. });
        let mut sequence_statements = self.statements.iter().flat_map(|statement| {
            let sequences = statement.parameters.iter().filter(is_sequence);
            sequences.map(|_| statement.name.as_str())
        });
        let (Some(name), None) = (sequence_statements.next(), sequence_statements.next()) else {
            return false;
        };
        let keys_per_transaction = self.transactions.iter().map(|transaction| {
            let steps = transaction.steps.iter();
            let sequence_steps = steps.filter(|step| step.statement == name);
            sequence_steps
                .map(|step| u64::from(step.repeat))
                .sum::<u64>()
        });
        keys_per_transaction.clone().all(|count| count <= 1)
            && keys_per_transaction.sum::<u64>() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyed(parameters: &str, steps: &str) -> bool {
        let workload: Workload = serde_json::from_str(&format!(
            r#"{{"kind":"custom","statements":[{{"name":"a","sql":"x","parameters":[{parameters}]}},{{"name":"b","sql":"y"}}],
                "transactions":[{{"name":"t","steps":[{steps}]}},{{"name":"u","steps":[{{"statement":"b"}}]}}]}}"#
        ))
        .expect("the JSON is valid");
        workload.is_keyed()
    }

    #[test]
    fn one_sequence_used_at_most_once_is_a_key() {
        let (sequence, text) = (r#"{"kind":"sequence"}"#, r#"{"kind":"text","length":8}"#);
        let (a, b) = (r#"{"statement":"a"}"#, r#"{"statement":"b"}"#);
        assert!(keyed(&format!("{sequence},{text}"), a));
        assert!(keyed(sequence, &format!("{b},{a},{b}")));
        assert!(!keyed(text, a), "the workload has no key");
        assert!(
            !keyed(&format!("{sequence},{sequence}"), a),
            "a transaction has two keys"
        );
        assert!(
            !keyed(sequence, &format!("{a},{a}")),
            "a transaction inserts two rows"
        );
        assert!(
            !keyed(sequence, r#"{"statement":"a","repeat":2}"#),
            "a transaction inserts two rows"
        );
        assert!(!keyed(sequence, b), "no transaction uses the sequence");
        let insert = |auto_inc: bool| {
            let text = format!(r#"{{"kind":"oltp_insert","auto_inc":{auto_inc}}}"#);
            serde_json::from_str::<Workload>(&text)
                .expect("the JSON is valid")
                .is_keyed()
        };
        assert!(
            insert(false) && !insert(true),
            "an insert is keyed only if the client chooses the ids"
        );
    }
}
