//! Which workloads give each transaction its own key, chosen by the client, so that its row can be found again.

use super::{Custom, Values, Workload};

impl Workload {
    /// Whether each transaction draws at most one number that no other transaction of the job draws, and at least one does.
    pub fn is_keyed(&self) -> bool {
        match self {
            Self::Custom(custom) => custom.is_keyed(),
            Self::OltpInsert(load) => !load.auto_inc,
            _ => false,
        }
    }
}

impl Custom {
    /// One parameter of one statement is a sequence, and no transaction runs that statement twice.
    fn is_keyed(&self) -> bool {
        let is_sequence = |values: &&Values| matches!(values, Values::Sequence { .. });
        let mut drawing = self.statements.iter().flat_map(|statement| {
            let sequences = statement.parameters.iter().filter(is_sequence);
            sequences.map(|_| statement.name.as_str())
        });
        let (Some(name), None) = (drawing.next(), drawing.next()) else {
            return false;
        };
        let keys = self.transactions.iter().map(|transaction| {
            let steps = transaction.steps.iter();
            let drawing = steps.filter(|step| step.statement == name);
            drawing.map(|step| u64::from(step.repeat)).sum::<u64>()
        });
        keys.clone().all(|count| count <= 1) && keys.sum::<u64>() > 0
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
    fn one_sequence_drawn_at_most_once_is_a_key() {
        let (sequence, text) = (r#"{"kind":"sequence"}"#, r#"{"kind":"text","length":8}"#);
        let (a, b) = (r#"{"statement":"a"}"#, r#"{"statement":"b"}"#);
        assert!(keyed(&format!("{sequence},{text}"), a));
        assert!(keyed(sequence, &format!("{b},{a},{b}")));
        assert!(!keyed(text, a), "no key");
        assert!(!keyed(&format!("{sequence},{sequence}"), a), "two keys");
        assert!(!keyed(sequence, &format!("{a},{a}")), "two rows");
        assert!(
            !keyed(sequence, r#"{"statement":"a","repeat":2}"#),
            "two rows"
        );
        assert!(!keyed(sequence, b), "never drawn");
        let insert = |auto_inc: bool| {
            let text = format!(r#"{{"kind":"oltp_insert","auto_inc":{auto_inc}}}"#);
            serde_json::from_str::<Workload>(&text)
                .expect("the JSON is valid")
                .is_keyed()
        };
        assert!(
            insert(false) && !insert(true),
            "whose ids the client chooses"
        );
    }
}
