//! Every way in which a load job can go wrong ends in a `failed` event with its code, never in a panic.

use std::io::{Read, Write};
use std::thread;

use serde_json::json;

use crate::drivers::drivers;
use crate::fake::{Fake, Reply, packet, refusal};
use crate::process::{engine_on, failure, job, success};

fn fails_with(job: &serde_json::Value, code: &str, fragment: &str) {
    let failed = failure(job);
    assert_eq!(failed["code"], code, "{failed}");
    assert!(
        failed["message"]
            .as_str()
            .is_some_and(|message| message.contains(fragment)),
        "{failed}"
    );
    assert!(
        failed["advice"]
            .as_str()
            .is_some_and(|advice| !advice.is_empty()),
        "{failed}"
    );
}

#[test]
fn bad_jobs_are_told() {
    for input in [
        "",
        "\n",
        "nonsense\n",
        "{\"job\":\"link\",\"version\":1}\n",
        "{\"job\":\"load\",\"version\":99}\n",
    ] {
        let (code, events) = engine_on(input);
        assert_eq!(
            (code, &events[0]["code"]),
            (Some(1), &serde_json::json!("bad_job")),
            "{input:?}"
        );
    }
    let mut unknown = job("/nowhere");
    unknown["sead"] = 1.into();
    fails_with(&unknown, "bad_job", "unknown field");
    let mut none = job("/nowhere");
    none["connections"] = 0.into();
    fails_with(&none, "bad_job", "connections");
    fails_with(&job(&"x".repeat(200)), "bad_job", "107 bytes");
    let mut name = job("");
    name["target"] = serde_json::json!({"kind": "tcp", "host": "localhost", "port": 1});
    fails_with(&name, "bad_job", "numeric");
}

#[test]
fn nobody_listens() {
    fails_with(&job("/nowhere/s"), "connect", "/nowhere/s");
    let mut refused = job("");
    refused["target"] = serde_json::json!({"kind": "tcp", "host": "127.0.0.1", "port": 1});
    fails_with(&refused, "connect", "127.0.0.1:1");
}

#[test]
fn a_server_that_never_greets() {
    let fake = Fake::listening("mute", std::mem::forget);
    let mut job = job(&fake.path);
    job["connect_timeout_ns"] = 200_000_000.into();
    fails_with(&job, "connect", "its greeting");
}

#[test]
fn not_a_database_server() {
    let fake = Fake::listening("http", |mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        std::mem::forget(stream);
    });
    fails_with(&job(&fake.path), "other_protocol", "HTTP");
}

#[test]
fn logins_are_refused_for_different_reasons() {
    for (code, text, fail_code) in [
        (1045, "Access denied", "auth"),
        (1040, "Too many connections", "server_error"),
        (1130, "Host is not allowed to connect", "server_error"),
        (1049, "Unknown database", "server_error"),
    ] {
        let fake = Fake::with_login(&format!("refuses-{code}"), refusal(code, text), |_| {
            Reply::Ok
        });
        fails_with(&job(&fake.path), fail_code, text);
    }
    let switch = packet(2, b"\xfeauth_gssapi_client\0abc\0");
    let fake = Fake::with_login("plugin", switch, |_| Reply::Ok);
    fails_with(&job(&fake.path), "auth", "auth_gssapi_client");
}

#[test]
fn errors_that_sysbench_retries_are_counted() {
    let fake = Fake::new("deadlock", |query| {
        if query % 50 == 7 {
            Reply::Error(1213, "Deadlock")
        } else {
            Reply::Ok
        }
    });
    let events = success(&job(&fake.path));
    let finished = events.last().expect("events");
    let retried = finished["errors"]["1213"]
        .as_u64()
        .expect("counted by code");
    let transactions = finished["transactions"].as_u64().expect("a number");
    assert!(retried > 0 && transactions > 0, "{finished}");
    // Queries of failed attempts also count: more than 16 a transaction.
    assert!(
        finished["queries"].as_u64().expect("a number") > 16 * transactions,
        "{finished}"
    );
    let names: Vec<&str> = events
        .iter()
        .filter_map(|event| event["event"].as_str())
        .collect();
    assert_eq!(
        names,
        ["ready", "measuring", "interval", "interval", "finished"]
    );
    let receipt = &events[0]["receipt"];
    assert_eq!(receipt["peer_pid"], std::process::id());
    assert_eq!(receipt["address_family"], "unix");
    assert_eq!(receipt["peer_address"], fake.path.as_str());
    assert_eq!(receipt["tls_cipher"], serde_json::Value::Null);
    // BEGIN could not be prepared here: six of seven kinds were, on each of three connections.
    assert_eq!(events[0]["prepared_statements"], 18);
}

#[test]
fn other_errors_end_the_job() {
    let fake = Fake::new("syntax", |query| {
        if query == 40 {
            Reply::Error(1064, "You have an error")
        } else {
            Reply::Ok
        }
    });
    fails_with(&job(&fake.path), "server_error", "1064");
}

#[test]
fn the_server_goes_away_or_falls_silent_or_mad() {
    for (connections, driver) in drivers().into_iter().flat_map(|one| [(1, one), (3, one)]) {
        let with = |fake: &Fake| {
            let mut job = job(&fake.path);
            job["connections"] = connections.into();
            job["driver"] = driver.into();
            job
        };
        let fake = Fake::new(
            "gone",
            |query| if query == 40 { Reply::Close } else { Reply::Ok },
        );
        fails_with(&with(&fake), "server_gone", "closed the connection");
        let fake = Fake::new("silent", |query| {
            if query == 40 {
                Reply::Silence
            } else {
                Reply::Ok
            }
        });
        let mut silent = with(&fake);
        silent["stall_timeout_ns"] = 50_000_000.into();
        fails_with(&silent, "stalled", "waited more than");
        let fake = Fake::new("mad", |query| {
            if query == 40 {
                Reply::Bytes(b"\x05\0\0\x09hello")
            } else {
                Reply::Ok
            }
        });
        fails_with(&with(&fake), "protocol", "number 9");
    }
}

/// As twemproxy, which forwards commands on keys and closes a connection that sends any other.
#[test]
fn a_proxy_that_does_not_pass_on_questions_leaves_the_server_unknown() {
    let proxy = Fake::listening("proxy", |mut stream| {
        thread::spawn(move || {
            let mut request = [0; 512];
            while let Ok(count) = stream.read(&mut request) {
                let is_get = request[..count].starts_with(b"*2\r\n$3\r\nGET");
                if !is_get || stream.write_all(b"$-1\r\n").is_err() {
                    return;
                }
            }
        });
    });
    let mut load = job(&proxy.path);
    for account in ["user", "password", "database"] {
        load[account] = "".into();
    }
    load["workload"] = json!({"kind": "key_value", "protocol": "resp2", "get": 1, "set": 0});
    let events = success(&load);
    let receipt = &events[0]["receipt"];
    assert_eq!(receipt["server_version"], "unknown", "{receipt}");
    assert!(receipt["server_connection_id"].is_null(), "{receipt}");
    let finished = events.last().expect("the end");
    assert_eq!(finished["errors"], json!({}), "{finished}");
    assert!(finished["transactions"].as_u64() > Some(0), "{finished}");
}
