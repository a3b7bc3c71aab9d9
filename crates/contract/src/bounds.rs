//! Checks of a message against the bounds in its JSON schema. Each bound is therefore written only once, at its field.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::Value;

/// Describe the first field of `message` whose value is out of bounds.
pub(crate) fn find_violation<T: JsonSchema + Serialize>(message: &T) -> Option<String> {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let schema = generator.into_root_schema_for::<T>().to_value();
    let value = serde_json::to_value(message).ok()?;
    let root = Root(&schema);
    root.find_violation(&schema, &value, "the job")
}

struct Root<'a>(&'a Value);

impl Root<'_> {
    fn find_violation(&self, schema: &Value, value: &Value, name: &str) -> Option<String> {
        let referred = schema["$ref"].as_str().and_then(|reference| {
            let referred = self.0.pointer(reference.strip_prefix('#')?)?;
            self.find_violation(referred, value, name)
        });
        referred
            .or_else(|| find_range_violation(schema, value, name))
            .or_else(|| self.find_choice_violation(schema, value, name))
            .or_else(|| self.find_part_violation(schema, value, name))
    }

    /// Describe the violation if the value satisfies none of the alternatives that match its type.
    fn find_choice_violation(&self, schema: &Value, value: &Value, name: &str) -> Option<String> {
        let choices = schema["oneOf"].as_array().or(schema["anyOf"].as_array())?;
        let mut first = None;
        for choice in choices.iter().filter(|choice| self.fits(choice, value)) {
            let violation = self.find_violation(choice, value, name)?;
            first.get_or_insert(violation);
        }
        first
    }

    fn find_part_violation(&self, schema: &Value, value: &Value, name: &str) -> Option<String> {
        let mut items = value.as_array().into_iter().flatten();
        let mut fields = value.as_object().into_iter().flatten();
        let item = schema.get("items");
        items
            .find_map(|part| self.find_violation(item?, part, name))
            .or_else(|| {
                fields.find_map(|(name, part)| {
                    self.find_violation(schema["properties"].get(name)?, part, name)
                })
            })
    }

    /// Whether the value has the type that `schema` requires, and the constants in it.
    fn fits(&self, schema: &Value, value: &Value) -> bool {
        if let Some(reference) = schema["$ref"].as_str() {
            let referred = reference
                .strip_prefix('#')
                .and_then(|at| self.0.pointer(at));
            if referred.is_some_and(|referred| !self.fits(referred, value)) {
                return false;
            }
        }
        let has_type = match schema["type"].as_str() {
            Some("null") => value.is_null(),
            Some("object") => value.is_object(),
            Some("array") => value.is_array(),
            Some("string") => value.is_string(),
            Some("integer" | "number") => value.is_number(),
            Some("boolean") => value.is_boolean(),
            _ => !value.is_null(),
        };
        let constants = schema["properties"].as_object().into_iter().flatten();
        has_type
            && constants
                .filter_map(|(name, field)| Some((name, field.get("const")?)))
                .all(|(name, constant)| value.get(name) == Some(constant))
    }
}

fn find_range_violation(schema: &Value, value: &Value, name: &str) -> Option<String> {
    let (size, [low, high], size_noun) = match value {
        Value::Number(_) => (value.clone(), ["minimum", "maximum"], ""),
        Value::String(text) => (
            text.chars().count().into(),
            ["minLength", "maxLength"],
            "the length of ",
        ),
        Value::Array(items) => (
            items.len().into(),
            ["minItems", "maxItems"],
            "the number of ",
        ),
        _ => return None,
    };
    let (above, below) = (&schema["exclusiveMinimum"], &schema["exclusiveMaximum"]);
    let (low, high) = (&schema[low], &schema[high]);
    let is_within = (low.is_null() || !is_less(&size, low))
        && (high.is_null() || !is_less(high, &size))
        && (above.is_null() || is_less(above, &size))
        && (below.is_null() || is_less(&size, below));
    let describe =
        |bound: &Value, relation: &str| (!bound.is_null()).then(|| format!("{relation} {bound}"));
    let bounds = [
        describe(low, "at least"),
        describe(above, "above"),
        describe(high, "at most"),
        describe(below, "below"),
    ];
    let bounds: Vec<String> = bounds.into_iter().flatten().collect();
    (!is_within).then(|| {
        format!(
            "{size_noun}{name} is {size} and must be {}",
            bounds.join(" and ")
        )
    })
}

/// Compare two numbers. Integers are compared as integers, because a float cannot represent all 64-bit integers.
fn is_less(left: &Value, right: &Value) -> bool {
    match (left.as_u64(), right.as_u64()) {
        (Some(left), Some(right)) => left < right,
        _ => left.as_f64() < right.as_f64(),
    }
}
