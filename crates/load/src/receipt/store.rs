//! Facts that a key-value store reports on the first connection.

use std::os::fd::OwnedFd;

use howfar_contract::jobs::Protocol;
use howfar_contract::{FailCode, Failed};
use howfar_wire::keyvalue::ErrorReply;
use howfar_wire::redis::{Decoder, Value, request};

use super::ReceiptContext;
use crate::channel::Channel;
use crate::exchange::Exchange;
use crate::failure;

/// Maximum memory for a reply: INFO's server section has a few hundred bytes.
const MAX_INFO_BYTES: usize = 1 << 16;
/// Maximum length of the answer to `version` and `mn`.
const MAX_VERSION_REPLY_BYTES: usize = 512;
/// The version of a server that does not report it, or that cannot be queried.
pub(super) const UNKNOWN: &str = "unknown";

/// Query a store for its version, and for its id of this connection if it has one.
pub(super) fn query_store(
    context: ReceiptContext<'_>,
    socket: &OwnedFd,
    channel: &mut Channel,
    protocol: Protocol,
) -> Result<(String, Option<u32>), Failed> {
    let exchange = Exchange {
        target: context.parameters.target,
        socket,
        channel,
        idle_timeout_ns: context.limit_ns,
        total_timeout_ns: context.limit_ns,
    };
    match protocol {
        Protocol::Resp2 | Protocol::Resp3 => query_redis(exchange, protocol),
        Protocol::MemcachedText => query_memcached(exchange, protocol, "version\r\n", 1),
        // Also send `mn`, which ends a group of meta commands: a server without them answers with an error.
        Protocol::MemcachedMeta => query_memcached(exchange, protocol, "version\r\nmn\r\n", 2),
    }
}

fn query_redis(
    mut exchange: Exchange<'_>,
    protocol: Protocol,
) -> Result<(String, Option<u32>), Failed> {
    let mut commands = Vec::new();
    request::command(&mut commands, &[b"INFO", b"server"]);
    request::command(&mut commands, &[b"CLIENT", b"ID"]);
    let target = exchange.target;
    let (mut decoder, mut replies) = (Decoder::new(MAX_INFO_BYTES), Vec::new());
    exchange.request(&commands, "INFO and CLIENT ID", |mut input| {
        while !input.is_empty() {
            let value = decoder
                .next(&mut input)
                .map_err(|error| failure::malformed_key_value(target, Some(protocol), &error))?;
            replies.extend(value.filter(|value| !matches!(value, Value::Push(_))));
        }
        Ok(replies.len() >= 2)
    })?;
    let [info, id, ..] = replies.as_slice() else {
        return Ok((UNKNOWN.to_owned(), None));
    };
    if let Value::Error(line) = info {
        let error_reply = ErrorReply::from_line(line);
        if error_reply.word.name() == "NOAUTH" {
            return Err(failure::command_failed(target, "INFO", &error_reply));
        }
    }
    let id = match id {
        Value::Integer(id) => u32::try_from(*id).ok(),
        _ => None,
    };
    let info = info.text().map(String::from_utf8_lossy);
    let version = info.and_then(|info| parse_version(&info));
    Ok((version.unwrap_or_else(|| UNKNOWN.to_owned()), id))
}

/// The version in INFO's lines. Valkey reports the version of Redis that it is compatible with, and its own.
fn parse_version(info: &str) -> Option<String> {
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
    field("valkey_version:")
        .map(|version| format!("Valkey {}", version.trim_end()))
        .or_else(|| field("redis_version:").map(|version| format!("Redis {}", version.trim_end())))
}

fn query_memcached(
    mut exchange: Exchange<'_>,
    protocol: Protocol,
    command: &str,
    line_count: usize,
) -> Result<(String, Option<u32>), Failed> {
    let mut received = Vec::new();
    exchange.request(command.as_bytes(), "version", |input| {
        let capacity = MAX_VERSION_REPLY_BYTES.saturating_sub(received.len());
        received.extend_from_slice(&input[..input.len().min(capacity)]);
        let complete_lines = received.split(|&byte| byte == b'\n').count() - 1;
        Ok(complete_lines >= line_count || received.len() == MAX_VERSION_REPLY_BYTES)
    })?;
    let text = String::from_utf8_lossy(&received);
    let mut reply_lines = text.split("\r\n");
    let version = reply_lines
        .next()
        .and_then(|line| line.strip_prefix("VERSION "));
    match (version, line_count == 1 || reply_lines.next() == Some("MN")) {
        (Some(version), true) => Ok((format!("Memcached {version}"), None)),
        _ => Err(Failed::new(
            FailCode::Protocol,
            format!(
                "{} gave an answer to `{}` that no {} server gives",
                failure::target_name(exchange.target),
                command.trim_end().replace("\r\n", " "),
                protocol.name()
            ),
            "Check that this is the address of a Memcached server, and whether it expects TLS; meta commands need Memcached 1.6 or later.",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_version;

    #[test]
    fn the_version_names_the_server() {
        let redis = "# Server\r\nredis_version:7.0.15\r\nredis_git_sha1:0\r\n";
        assert_eq!(parse_version(redis).as_deref(), Some("Redis 7.0.15"));
        let valkey = "# Server\r\nredis_version:7.2.4\r\nvalkey_version:8.0.1\r\n";
        assert_eq!(parse_version(valkey).as_deref(), Some("Valkey 8.0.1"));
        assert_eq!(parse_version("# Server\r\n"), None);
    }
}
