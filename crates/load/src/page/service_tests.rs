//! Tests of a service's connection against a store in another thread, which answers as the test defines.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;

use howfar_contract::FailCode;
use howfar_contract::jobs::{KeyValue, Workload};

use super::*;

/// Longer than a thread has to wait on a busy machine.
const PATIENCE_NS: u64 = 20_000_000_000;

/// A service whose server runs `serve` on its only connection; the client's time limit is `stall_ns`.
fn endpoint(
    name: &str,
    stall_ns: u64,
    serve: impl FnOnce(UnixStream) + Send + 'static,
) -> (ServiceEndpoint, PathBuf) {
    let path = std::env::temp_dir().join(format!("howfar-line-{}-{name}", std::process::id()));
    let listener = UnixListener::bind(&path).expect("a new path");
    thread::spawn(move || {
        let (stream, _) = listener.accept().expect("somebody connects");
        serve(stream);
    });
    let keys: KeyValue = serde_json::from_str(r#"{"protocol":"resp2"}"#).expect("well formed");
    let program = Program::new(&Workload::KeyValue(keys), 1, 1).expect("a valid workload");
    let text = format!(
        r#"{{"target":{{"kind":"unix","path":"{}"}}}}"#,
        path.display()
    );
    let service: Service = serde_json::from_str(&text).expect("well formed");
    let endpoint = ServiceEndpoint::new("redis", &service, program, (PATIENCE_NS, stall_ns));
    (endpoint.expect("a valid address"), path)
}

/// Request one key; returns hits and bytes received, or the failure.
fn ask_service(
    name: &str,
    stall_ns: u64,
    serve: impl FnOnce(UnixStream) + Send + 'static,
) -> Result<(u32, u64), Failed> {
    let (endpoint, path) = endpoint(name, stall_ns, serve);
    let mut connection = endpoint.open().expect("it listens");
    std::fs::remove_file(path).expect("it was made");
    let mut buffers = Buffers::new();
    let commands = endpoint.program.commands().expect("keys");
    let mut draws = crate::draws::Draws::new(1, 0, 0);
    commands.write_read(
        1,
        &mut draws,
        &mut buffers.packet,
        connection.replies.commands().expect("a store"),
    );
    let (_, received_bytes) =
        connection.run_request(&endpoint, &mut buffers, (3, "command.get"))?;
    let hits = connection.replies.counts().map_or(0, |counts| counts.hits);
    connection.close();
    Ok((hits, received_bytes))
}

fn read_request(stream: &mut UnixStream) -> usize {
    let mut request = [0; 512];
    stream.read(&mut request).expect("a request")
}

#[test]
fn an_answer_in_pieces_is_one_turn() {
    let answer = ask_service("pieces", PATIENCE_NS, |mut stream| {
        assert!(read_request(&mut stream) > 0);
        for byte in b"$3\r\nabc\r\n" {
            stream.write_all(std::slice::from_ref(byte)).expect("open");
        }
    });
    assert_eq!(answer, Ok((1, 9)));
}

#[test]
fn a_server_that_ends_or_says_nothing_is_told() {
    let gone = ask_service("gone", PATIENCE_NS, |mut stream| {
        read_request(&mut stream);
        stream.write_all(b"$3\r\na").expect("open");
    });
    let gone = gone.expect_err("half an answer");
    assert_eq!(gone.code, FailCode::ServerGone);
    assert!(
        gone.message.contains("during command.get"),
        "{}",
        gone.message
    );
    let (reported, ended) = std::sync::mpsc::channel::<()>();
    let silent = ask_service("silent", 100_000_000, move |mut stream| {
        read_request(&mut stream);
        // Wait until the other end has given up.
        let _ = ended.recv();
    });
    drop(reported);
    let silent = silent.expect_err("no answer");
    assert_eq!(silent.code, FailCode::Stalled);
    assert!(
        silent.message.contains("connection 3"),
        "{}",
        silent.message
    );
}

#[test]
fn an_answer_that_drips_for_ever_is_none() {
    let endless = ask_service("endless", 100_000_000, |mut stream| {
        read_request(&mut stream);
        let mut sent = stream.write_all(b"$1000000\r\n");
        // Send a byte now and then until the other end has given up.
        while sent.is_ok() {
            thread::sleep(Duration::from_millis(5));
            sent = stream.write_all(b"x");
        }
    });
    assert_eq!(endless.expect_err("no end").code, FailCode::Stalled);
}

#[test]
fn an_error_of_the_server_ends_the_job() {
    let refused = ask_service("refused", PATIENCE_NS, |mut stream| {
        read_request(&mut stream);
        stream.write_all(b"-LOADING still\r\n").expect("open");
    });
    let refused = refused.expect_err("an error");
    assert_eq!(refused.code, FailCode::ServerError);
    assert!(refused.message.contains("LOADING"), "{}", refused.message);
}
