//! Address of a server, and the account for logging in to it.

use std::fmt;
use std::ops::Deref;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, Serializer};

use super::Target;

/// Address of a server, and the account for logging in to it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct ServerLogin {
    pub target: Target,
    /// User name. Empty for Redis's default user and for Memcached, which also needs no password and no database.
    pub user: String,
    #[serde(default)]
    pub password: Password,
    /// Name of the database. For Redis, its number; empty means 0.
    pub database: String,
}

/// The password of a job. It is hidden in debug output, because jobs may be logged.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Password(String);

/// Serializes as an empty string. The engine only reads jobs; what it serializes is the default value in the schema.
impl Serialize for Password {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str("")
    }
}

impl JsonSchema for Password {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Password".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "writeOnly": true})
    }
}

impl Deref for Password {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("hidden")
    }
}
