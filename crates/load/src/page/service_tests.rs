//! Tests of a service's connection against a store in another thread, which answers as the test defines.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;

use howfar_contract::FailCode;
use howfar_contract::jobs::{KeyValue, Workload};

use super::*;
use crate::random_stream::RandomStream;

/// Longer than any wait of a thread, even on a busy machine.
const TIMEOUT_NS: u64 = 20_000_000_000;

/// A service whose server runs `serve` on its only connection; the client's time limit is `stall_ns`.
fn endpoint(
    name: &str,
    stall_ns: u64,
    serve: impl FnOnce(UnixStream) + Send + 'static,
) -> (ServiceEndpoint, PathBuf) {
    let path = std::env::temp_dir().join(format!("howfar-service-{}-{name}", std::process::id()));
    let listener = UnixListener::bind(&path).expect("the path is new");
    thread::spawn(move || {
        let (stream, _) = listener.accept().expect("the client connects");
        serve(stream);
    });
    let keys: KeyValue = serde_json::from_str(r#"{"protocol":"resp2"}"#).expect("valid JSON");
    let program = Program::new(&Workload::KeyValue(keys), 1, 1).expect("the workload is valid");
    let text = format!(
        r#"{{"target":{{"kind":"unix","path":"{}"}},"user":"","database":""}}"#,
        path.display()
    );
    let service: Service = serde_json::from_str(&text).expect("valid JSON");
    let endpoint = ServiceEndpoint::new("redis", &service, program, (TIMEOUT_NS, stall_ns));
    (endpoint.expect("the address is valid"), path)
}

/// Request one key; returns hits and bytes received, or the failure.
fn request_key(
    name: &str,
    stall_ns: u64,
    serve: impl FnOnce(UnixStream) + Send + 'static,
) -> Result<(u32, u64), Failed> {
    let (endpoint, path) = endpoint(name, stall_ns, serve);
    let mut connection = endpoint.open().expect("the server listens");
    std::fs::remove_file(path).expect("the socket exists");
    let mut buffers = Buffers::new();
    let commands = endpoint.program.commands().expect("commands on keys");
    let mut random = RandomStream::new(1, 0, 0);
    commands.write_read(
        1,
        &mut random,
        &mut buffers.packet,
        connection.replies.commands().expect("commands on keys"),
    );
    let (_, received_bytes) =
        connection.run_request(&endpoint, &mut buffers, (3, "command.get"))?;
    let hits = connection.replies.counts().map_or(0, |counts| counts.hits);
    connection.close();
    Ok((hits, received_bytes))
}

fn read_request(stream: &mut UnixStream) -> usize {
    let mut request = [0; 512];
    stream.read(&mut request).expect("the request can be read")
}

#[test]
fn an_answer_in_pieces_is_one_round_trip() {
    let answer = request_key("pieces", TIMEOUT_NS, |mut stream| {
        assert!(read_request(&mut stream) > 0);
        for byte in b"$3\r\nabc\r\n" {
            stream
                .write_all(std::slice::from_ref(byte))
                .expect("it is sent");
        }
    });
    assert_eq!(answer, Ok((1, 9)));
}

#[test]
fn a_closed_and_a_silent_connection_are_failures() {
    let closed = request_key("closed", TIMEOUT_NS, |mut stream| {
        read_request(&mut stream);
        stream.write_all(b"$3\r\na").expect("it is sent");
    });
    let closed = closed.expect_err("the answer is incomplete");
    assert_eq!(closed.code, FailCode::ServerGone);
    assert!(
        closed.message.contains("during command.get"),
        "{}",
        closed.message
    );
    let (end_sender, end_receiver) = std::sync::mpsc::channel::<()>();
    let silent = request_key("silent", 100_000_000, move |mut stream| {
        read_request(&mut stream);
        // Wait until the client has given up.
        let _ = end_receiver.recv();
    });
    drop(end_sender);
    let silent = silent.expect_err("no answer comes");
    assert_eq!(silent.code, FailCode::Stalled);
    assert!(
        silent.message.contains("connection 3"),
        "{}",
        silent.message
    );
}

#[test]
fn an_endless_answer_times_out() {
    let endless = request_key("endless", 100_000_000, |mut stream| {
        read_request(&mut stream);
        let mut sent = stream.write_all(b"$1000000\r\n");
        // Send a byte now and then until the client has given up.
        while sent.is_ok() {
            thread::sleep(Duration::from_millis(5));
            sent = stream.write_all(b"x");
        }
    });
    assert_eq!(endless.expect_err("a timeout").code, FailCode::Stalled);
}

#[test]
fn an_error_of_the_server_ends_the_job() {
    let refused = request_key("refused", TIMEOUT_NS, |mut stream| {
        read_request(&mut stream);
        stream.write_all(b"-LOADING still\r\n").expect("it is sent");
    });
    let refused = refused.expect_err("the server answers an error");
    assert_eq!(refused.code, FailCode::ServerError);
    assert!(refused.message.contains("LOADING"), "{}", refused.message);
}
