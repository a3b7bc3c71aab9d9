//! Tests that each failure of a load job ends in a `failed` event with its code, never in a panic.

use std::io::{Read, Write};
use std::thread;

use serde_json::json;

use crate::drivers::drivers;
use crate::fake::{FakeServer, Reply, login_error, packet};
use crate::process::{failure, job, run_load, success};

/// Check that the job fails with this code, this text in its message, and advice.
fn check_failure_of(job: &serde_json::Value, code: &str, fragment: &str) {
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
fn bad_jobs_are_refused() {
    for input in [
        "",
        "\n",
        "nonsense\n",
        "{\"job\":\"link\",\"version\":1}\n",
        "{\"job\":\"load\",\"version\":99}\n",
    ] {
        let (code, events) = run_load(input);
        assert_eq!(
            (code, &events[0]["code"]),
            (Some(1), &serde_json::json!("bad_job")),
            "{input:?}"
        );
    }
    let mut unknown = job("/nowhere");
    unknown["sead"] = 1.into();
    check_failure_of(&unknown, "bad_job", "unknown field");
    let mut unconnected = job("/nowhere");
    unconnected["connections"] = 0.into();
    check_failure_of(&unconnected, "bad_job", "connections");
    check_failure_of(&job(&"x".repeat(200)), "bad_job", "107 bytes");
    let mut by_name = job("");
    by_name["target"] = serde_json::json!({"kind": "tcp", "host": "localhost", "port": 1});
    check_failure_of(&by_name, "bad_job", "numeric");
}

#[test]
fn a_server_that_does_not_listen() {
    check_failure_of(&job("/nowhere/s"), "connect", "/nowhere/s");
    let mut refused = job("");
    refused["target"] = serde_json::json!({"kind": "tcp", "host": "127.0.0.1", "port": 1});
    check_failure_of(&refused, "connect", "127.0.0.1:1");
}

#[test]
fn a_server_that_never_greets() {
    let fake = FakeServer::listening("mute", std::mem::forget);
    let mut job = job(&fake.path);
    job["connect_timeout_ns"] = 200_000_000.into();
    check_failure_of(&job, "connect", "its greeting");
}

#[test]
fn a_server_that_is_not_a_database() {
    let fake = FakeServer::listening("http", |mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        std::mem::forget(stream);
    });
    check_failure_of(&job(&fake.path), "other_protocol", "HTTP");
}

#[test]
fn refused_logins_have_the_code_of_their_reason() {
    for (code, text, fail_code) in [
        (1045, "Access denied", "auth"),
        (1040, "Too many connections", "server_error"),
        (1130, "Host is not allowed to connect", "server_error"),
        (1049, "Unknown database", "server_error"),
    ] {
        let fake =
            FakeServer::with_login(&format!("refuses-{code}"), login_error(code, text), |_| {
                Reply::Ok
            });
        check_failure_of(&job(&fake.path), fail_code, text);
    }
    let switch = packet(2, b"\xfeauth_gssapi_client\0abc\0");
    let fake = FakeServer::with_login("plugin", switch, |_| Reply::Ok);
    check_failure_of(&job(&fake.path), "auth", "auth_gssapi_client");
}

#[test]
fn errors_that_sysbench_retries_are_counted() {
    let fake = FakeServer::new("deadlock", |query| {
        if query % 50 == 7 {
            Reply::Error(1213, "Deadlock")
        } else {
            Reply::Ok
        }
    });
    let events = success(&job(&fake.path));
    let finished = events.last().expect("the engine writes events");
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
    // The fake server cannot prepare BEGIN: six of seven kinds are prepared on each of three connections.
    assert_eq!(events[0]["prepared_statements"], 18);
}

#[test]
fn other_errors_end_the_job() {
    let fake = FakeServer::new("syntax", |query| {
        if query == 40 {
            Reply::Error(1064, "You have an error")
        } else {
            Reply::Ok
        }
    });
    check_failure_of(&job(&fake.path), "server_error", "1064");
}

#[test]
fn a_server_that_closes_or_stalls_or_breaks_the_protocol() {
    for (connections, driver) in drivers()
        .into_iter()
        .flat_map(|driver| [(1, driver), (3, driver)])
    {
        let make_job = |fake: &FakeServer| {
            let mut job = job(&fake.path);
            job["connections"] = connections.into();
            job["driver"] = driver.into();
            job
        };
        let fake = FakeServer::new(
            "gone",
            |query| if query == 40 { Reply::Close } else { Reply::Ok },
        );
        check_failure_of(&make_job(&fake), "server_gone", "closed the connection");
        let fake = FakeServer::new("silent", |query| {
            if query == 40 {
                Reply::Silence
            } else {
                Reply::Ok
            }
        });
        let mut silent = make_job(&fake);
        silent["stall_timeout_ns"] = 50_000_000.into();
        check_failure_of(&silent, "stalled", "waited more than");
        let fake = FakeServer::new("broken", |query| {
            if query == 40 {
                Reply::Bytes(b"\x05\0\0\x09hello")
            } else {
                Reply::Ok
            }
        });
        check_failure_of(&make_job(&fake), "protocol", "number 9");
    }
}

/// The proxy behaves like twemproxy, which forwards commands on keys and closes a connection that sends another command.
#[test]
fn the_server_behind_a_proxy_that_forwards_no_queries_is_unknown() {
    let proxy = FakeServer::listening("proxy", |mut stream| {
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
    let finished = events.last().expect("the engine writes events");
    assert_eq!(finished["errors"], json!({}), "{finished}");
    assert!(finished["transactions"].as_u64() > Some(0), "{finished}");
}
