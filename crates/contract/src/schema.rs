//! The contract as a JSON Schema: the one description of every message, from which the Python types are generated.
//!
//! `howfar-engine schema` prints it. Each message and each part of one is a definition under its name; a message says what it is in
//! the constant field `job`, `command` or `event`.

use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use crate::{PROTOCOL_VERSION, events, jobs};

/// The fields that give the kind of a message.
const TAGS: [&str; 3] = ["job", "command", "event"];

/// Collects the messages of every crate.
#[derive(Debug)]
pub struct Contract {
    read: SchemaGenerator,
    written: SchemaGenerator,
}

impl Default for Contract {
    /// The messages of this crate.
    fn default() -> Self {
        let settings = SchemaSettings::draft2020_12();
        let mut contract = Self {
            read: settings.clone().for_deserialize().into_generator(),
            written: settings.for_serialize().into_generator(),
        };
        contract.reads::<jobs::LoadJob>();
        contract.reads::<jobs::TablesJob>();
        contract.reads::<jobs::WatchJob>();
        contract.reads::<jobs::RepeatJob>();
        contract.reads::<jobs::DigestsJob>();
        contract.reads::<jobs::PageJob>();
        contract.reads::<jobs::UsageJob>();
        contract.reads::<jobs::Begin>();
        contract.reads::<jobs::PingJob>();
        contract.reads::<jobs::PingCommand>();
        contract.writes::<events::Ready>();
        contract.writes::<events::Measuring>();
        contract.writes::<events::Interval>();
        contract.writes::<events::Begun>();
        contract.writes::<events::Used>();
        contract.writes::<events::AcknowledgementLog>();
        contract.writes::<events::Finished>();
        contract.writes::<events::Failed>();
        contract.writes::<events::Watching>();
        contract.writes::<events::Watched>();
        contract.writes::<events::TablesProgress>();
        contract.writes::<events::TablesDone>();
        contract.writes::<events::Repeated>();
        contract.writes::<events::Digests>();
        contract.writes::<events::Opened>();
        contract.writes::<events::NotOpened>();
        contract.writes::<events::Asked>();
        contract.writes::<events::Fetched>();
        contract
    }
}

impl Contract {
    /// Add a job or a command.
    pub fn reads<T: JsonSchema>(&mut self) {
        self.read.subschema_for::<T>();
    }

    /// Add an event.
    pub fn writes<T: JsonSchema>(&mut self) {
        self.written.subschema_for::<T>();
    }

    /// The schema of all messages together.
    pub fn schema(mut self) -> Value {
        let mut definitions = self.read.take_definitions(true);
        definitions.extend(self.written.take_definitions(true));
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

/// Rename the definitions of events from the value of their field `event` to their title.
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
    let referring: Map<String, Value> = serde_json::from_str(&text).expect("as it was written");
    let named = referring.into_iter().map(|(name, mut definition)| {
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
    named.collect()
}

/// Give each variant of the tagged enum `name` a definition, and make the enum a choice of references. An enum of whole messages is
/// dropped: each of them stands for itself.
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
        let parts = variant.as_object_mut().expect("a schema of an object");
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

/// Add the tag of one more variant to the definition of a struct that several variants share.
fn merge_tag(fields: &mut Value, more: &Value) {
    for (name, more) in more.as_object().expect("fields") {
        let Some(constant) = more.get("const") else {
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
