//! The JSON schema of all messages, from which the Python types are generated.
//!
//! `howfar-engine schema` prints it. Each message, and each type that a message contains, is a definition under its own name. The
//! constant field `job`, `command` or `event` identifies a message.

use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use crate::{PROTOCOL_VERSION, events, jobs};

/// Fields that identify the kind of a message.
const TAGS: [&str; 3] = ["job", "command", "event"];

/// Collects the schemas of the messages of all crates.
#[derive(Debug)]
pub struct Contract {
    inputs: SchemaGenerator,
    events: SchemaGenerator,
}

impl Default for Contract {
    /// Create a collection that contains the messages of this crate.
    fn default() -> Self {
        let settings = SchemaSettings::draft2020_12();
        let mut contract = Self {
            inputs: settings.clone().for_deserialize().into_generator(),
            events: settings.for_serialize().into_generator(),
        };
        contract.add_input::<jobs::ServerLogin>();
        contract.add_input::<jobs::LoadJob>();
        contract.add_input::<jobs::TablesJob>();
        contract.add_input::<jobs::WatchJob>();
        contract.add_input::<jobs::RepeatJob>();
        contract.add_input::<jobs::DigestsJob>();
        contract.add_input::<jobs::PageJob>();
        contract.add_input::<jobs::UsageJob>();
        contract.add_input::<jobs::Begin>();
        contract.add_input::<jobs::PingJob>();
        contract.add_input::<jobs::PingCommand>();
        contract.add_event::<events::Ready>();
        contract.add_event::<events::Measuring>();
        contract.add_event::<events::Interval>();
        contract.add_event::<events::Begun>();
        contract.add_event::<events::Used>();
        contract.add_event::<events::AcknowledgementLog>();
        contract.add_event::<events::Finished>();
        contract.add_event::<events::Failed>();
        contract.add_event::<events::Watching>();
        contract.add_event::<events::Watched>();
        contract.add_event::<events::TablesProgress>();
        contract.add_event::<events::TablesDone>();
        contract.add_event::<events::Repeated>();
        contract.add_event::<events::Digests>();
        contract.add_event::<events::Opened>();
        contract.add_event::<events::NotOpened>();
        contract.add_event::<events::Asked>();
        contract.add_event::<events::Fetched>();
        contract
    }
}

impl Contract {
    /// Add the schema of a job or a command.
    pub fn add_input<T: JsonSchema>(&mut self) {
        self.inputs.subschema_for::<T>();
    }

    /// Add the schema of an event.
    pub fn add_event<T: JsonSchema>(&mut self) {
        self.events.subschema_for::<T>();
    }

    /// Return one schema with all collected messages.
    pub fn schema(mut self) -> Value {
        let mut definitions = self.inputs.take_definitions(true);
        definitions.extend(self.events.take_definitions(true));
        let names: Vec<String> = definitions.keys().cloned().collect();
        for name in names {
            flatten_enum(&name, &mut definitions);
        }
        definitions = rename_by_title(&definitions);
        for definition in definitions.values_mut() {
            if definition.get("properties").is_some() {
                definition["additionalProperties"] = false.into();
            }
        }
        definitions.sort_keys();
        json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "howfar: messages between Python and the engine",
            "version": PROTOCOL_VERSION,
            "longest_ns": crate::LONGEST_NS,
            "$defs": definitions,
        })
    }
}

/// Rename each event's definition from the value of its field `event` to its title.
fn rename_by_title(definitions: &Map<String, Value>) -> Map<String, Value> {
    let mut text = Value::from(definitions.clone()).to_string();
    for (name, definition) in definitions {
        if let Some(title) = definition["title"].as_str() {
            text = text.replace(
                &format!("\"#/$defs/{name}\""),
                &format!("\"#/$defs/{title}\""),
            );
        }
    }
    let renamed: Map<String, Value> = serde_json::from_str(&text).expect("the text is JSON");
    let titled = renamed.into_iter().map(|(name, mut definition)| {
        let title = definition
            .as_object_mut()
            .and_then(|definition| definition.remove("title"));
        let Some(Value::String(title)) = title else {
            return (name, definition);
        };
        let mut fields = Map::from_iter([("event".to_owned(), json!({"const": name}))]);
        let mut required = vec![json!("event")];
        if let Some(Value::Object(own)) = definition.get("properties") {
            fields.extend(own.clone());
        }
        if let Some(Value::Array(own)) = definition.get("required") {
            required.extend(own.iter().cloned());
        }
        definition["properties"] = fields.into();
        definition["required"] = required.into();
        (title, definition)
    });
    titled.collect()
}

/// Give each variant of the tagged enum `name` its own definition, and make the enum a choice of references to them. An enum whose
/// variants are all messages is removed, because nothing refers to it.
fn flatten_enum(name: &str, definitions: &mut Map<String, Value>) {
    let Some(variants) = definitions[name]["oneOf"].as_array().cloned() else {
        return;
    };
    if variants
        .iter()
        .any(|variant| variant["properties"].is_null())
    {
        return;
    }
    let mut titles: Vec<String> = Vec::new();
    for mut variant in variants {
        let parts = variant.as_object_mut().expect("a variant is an object");
        let Some(Value::String(title)) = parts.remove("title") else {
            panic!("a variant of {name} has no title");
        };
        if titles.contains(&title) {
            merge_tag(
                &mut definitions[&title]["properties"],
                &variant["properties"],
            );
        } else {
            definitions.insert(title.clone(), variant);
            titles.push(title);
        }
    }
    let is_message = |title: &String| {
        TAGS.iter()
            .any(|tag| !definitions[title]["properties"][tag].is_null())
    };
    if titles.iter().all(is_message) {
        definitions.remove(name);
    } else {
        let choices = titles
            .iter()
            .map(|title| json!({"$ref": format!("#/$defs/{title}")}));
        definitions[name]["oneOf"] = choices.collect();
    }
}

/// Add another variant's tag to the definition of a struct that several variants share.
fn merge_tag(fields: &mut Value, variant_fields: &Value) {
    let variant_fields = variant_fields.as_object();
    for (name, field) in variant_fields.expect("the fields are an object") {
        let Some(constant) = field.get("const") else {
            continue;
        };
        let field = &mut fields[name];
        let mut names = match field["enum"].as_array() {
            Some(names) => names.clone(),
            None => vec![field["const"].clone()],
        };
        names.push(constant.clone());
        *field = json!({"type": "string", "enum": names});
    }
}
