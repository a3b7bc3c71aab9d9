//! Tests of invalid pages and their failures.

use howfar_contract::FailCode::{self, Protocol, ServerError, ServerGone};

use crate::page::fastcgi::tests::{
    END, SECRET, STDERR, STDOUT, VALID_PAGE, record, reply, request_failure,
};

/// Check that an application that answers with `bytes` makes the job fail with `code` and a text that holds `fragments`.
#[track_caller]
fn assert_fails(bytes: Vec<u8>, code: FailCode, fragments: &[&str]) {
    let failed = request_failure(bytes);
    assert_eq!(failed.code, code, "{failed:?}");
    for fragment in fragments {
        assert!(failed.message.contains(fragment), "{fragment}: {failed:?}");
    }
    assert!(!failed.advice.is_empty());
    assert!(!format!("{failed:?}").contains(SECRET), "{failed:?}");
}

fn end(application: u8, protocol: u8) -> Vec<u8> {
    record(END, &[0, 0, 0, application, protocol, 0, 0, 0])
}

#[test]
fn an_invalid_page_is_quoted_in_short() {
    let broken = reply(b"Status: 500 Internal Server Error\r\n\r\nno\ndatabase");
    assert_fails(broken, ServerError, &["status 500", "`no database`"]);
    let missing = [
        record(STDERR, b"Primary script unknown"),
        reply(b"Status: 404 Not Found\r\n\r\nFile not found.\n"),
    ];
    let fragments = ["status 404", "`Primary script unknown`"];
    assert_fails(missing.concat(), ServerError, &fragments);
    let complaint = [record(STDERR, b"PHP Warning: oh"), reply(VALID_PAGE)];
    let fragments = ["complained", "`PHP Warning: oh`"];
    assert_fails(complaint.concat(), ServerError, &fragments);
    let broken_end = reply(b"\r\n<p>page done\n<b>Fatal error</b>");
    let fragments = ["does not end as it should", "Fatal error"];
    assert_fails(broken_end, ServerError, &fragments);
    assert_fails(reply(b"\r\n"), ServerError, &["of 0 bytes"]);
    let long = "x".repeat(3000);
    let endless = reply(format!("Status: 503\r\n\r\n{long}").as_bytes());
    let short = format!("`{}`", &long[..200]);
    assert_fails(endless, ServerError, &["status 503", &short]);
}

#[test]
fn an_end_may_be_a_refusal() {
    assert_fails(end(0, 1), ServerError, &["one at a time"]);
    assert_fails(end(0, 2), ServerError, &["overloaded"]);
    assert_fails(end(0, 3), ServerError, &["no responder"]);
    assert_fails(end(0, 0), ServerError, &["within its headers"]);
    let crashed = [record(STDOUT, VALID_PAGE), end(255, 0)].concat();
    assert_fails(crashed, ServerError, &["exit code 255"]);
}

#[test]
fn a_connection_may_end_too_early() {
    let half = record(STDOUT, b"\r\nhalf a");
    assert_fails(half, ServerGone, &["before its page ended", "`half a`"]);
    assert_fails(Vec::new(), ServerGone, &["before its page ended"]);
}

#[test]
fn bytes_outside_the_protocol_are_a_protocol_error() {
    let http = b"HTTP/1.1 400 Bad Request\r\n".to_vec();
    assert_fails(http, Protocol, &["not FastCGI"]);
    let bad_report = reply(b"X-Howfar-Page: cpu_ns=-1\r\n\r\n<p>page done\n");
    assert_fails(bad_report, Protocol, &["X-Howfar-Page"]);
}
