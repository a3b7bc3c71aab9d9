//! The bounds that a message's schema states, checked on its values: each is written once, beside its field.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::Value;

/// The first field of `message` that is out of its bounds, and what they are.
pub(crate) fn broken<T: JsonSchema + Serialize>(message: &T) -> Option<String> {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let schema = generator.into_root_schema_for::<T>().to_value();
    let value = serde_json::to_value(message).ok()?;
    let root = Root(&schema);
    root.broken(&schema, &value, "the job")
}

struct Root<'a>(&'a Value);

impl Root<'_> {
    fn broken(&self, schema: &Value, value: &Value, name: &str) -> Option<String> {
        let referred = schema["$ref"].as_str().and_then(|reference| {
            let referred = self.0.pointer(reference.strip_prefix('#')?)?;
            self.broken(referred, value, name)
        });
        referred
            .or_else(|| out_of_range(schema, value, name))
            .or_else(|| self.broken_choice(schema, value, name))
            .or_else(|| self.broken_part(schema, value, name))
    }

    /// What is wrong where none of the shapes that the value can have holds.
    fn broken_choice(&self, schema: &Value, value: &Value, name: &str) -> Option<String> {
        let choices = schema["oneOf"].as_array().or(schema["anyOf"].as_array())?;
        let mut first = None;
        for choice in choices.iter().filter(|choice| self.fits(choice, value)) {
            let broken = self.broken(choice, value, name)?;
            first.get_or_insert(broken);
        }
        first
    }

    fn broken_part(&self, schema: &Value, value: &Value, name: &str) -> Option<String> {
        let mut items = value.as_array().into_iter().flatten();
        let mut fields = value.as_object().into_iter().flatten();
        let item = schema.get("items");
        items
            .find_map(|part| self.broken(item?, part, name))
            .or_else(|| {
                fields.find_map(|(name, part)| {
                    self.broken(schema["properties"].get(name)?, part, name)
                })
            })
    }

    /// The value is of the type of `schema`, and has its constants.
    fn fits(&self, schema: &Value, value: &Value) -> bool {
        if let Some(reference) = schema["$ref"].as_str() {
            let referred = reference
                .strip_prefix('#')
                .and_then(|at| self.0.pointer(at));
            if referred.is_some_and(|referred| !self.fits(referred, value)) {
                return false;
            }
        }
        let of_type = match schema["type"].as_str() {
            Some("null") => value.is_null(),
            Some("object") => value.is_object(),
            Some("array") => value.is_array(),
            Some("string") => value.is_string(),
            Some("integer" | "number") => value.is_number(),
            Some("boolean") => value.is_boolean(),
            _ => !value.is_null(),
        };
        let constants = schema["properties"].as_object().into_iter().flatten();
        of_type
            && constants
                .filter_map(|(name, field)| Some((name, field.get("const")?)))
                .all(|(name, constant)| value.get(name) == Some(constant))
    }
}

fn out_of_range(schema: &Value, value: &Value, name: &str) -> Option<String> {
    let (size, [low, high], of) = match value {
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
    let holds = (low.is_null() || !less(&size, low))
        && (high.is_null() || !less(high, &size))
        && (above.is_null() || less(above, &size))
        && (below.is_null() || less(&size, below));
    let bound = |bound: &Value, what: &str| (!bound.is_null()).then(|| format!("{what} {bound}"));
    let bounds = [
        bound(low, "at least"),
        bound(above, "above"),
        bound(high, "at most"),
        bound(below, "below"),
    ];
    let bounds: Vec<String> = bounds.into_iter().flatten().collect();
    (!holds).then(|| format!("{of}{name} is {size} and must be {}", bounds.join(" and ")))
}

/// Integers of 64 bits are more than a float holds exactly.
fn less(one: &Value, other: &Value) -> bool {
    match (one.as_u64(), other.as_u64()) {
        (Some(one), Some(other)) => one < other,
        _ => one.as_f64() < other.as_f64(),
    }
}
