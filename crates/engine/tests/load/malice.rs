//! Tests with malicious servers, of attacks that only MySQL's protocol allows; `hostile` has those that all protocols share. The engine
//! ends within its limits, reports the reason, and needs little memory.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use howfar_wire::mysql::compress::{Algorithm, Codec};
use serde_json::{Value, json};

use crate::drivers::make_ring_job;
use crate::fake::{FakeServer, empty_status, error, greeting, packet, read_packet};
use crate::peak::bounded_failure;
use crate::process::job;

/// A job of two connections that its short limits end: its window, and the window's first interval, are longer than any test.
pub(crate) fn impatient_job(path: &str) -> Value {
    let mut job = job(path);
    job["connections"] = 2.into();
    job["connect_timeout_ns"] = 300_000_000.into();
    job["stall_timeout_ns"] = 300_000_000.into();
    job["measure_ns"] = 600_000_000_000_u64.into();
    job["interval_ns"] = 60_000_000_000_u64.into();
    job
}

/// The job with short limits only if they are expected to end it with one of these codes; the other limits are not reached even on a
/// busy machine.
pub(crate) fn with_needed_limits(job: &Value, codes: &[&str]) -> Value {
    const LONG_TIMEOUT_NS: u64 = 20_000_000_000;
    let mut job = job.clone();
    for (code, limit) in [
        ("connect", "connect_timeout_ns"),
        ("stalled", "stall_timeout_ns"),
    ] {
        if !codes.contains(&code) {
            job[limit] = LONG_TIMEOUT_NS.into();
        }
    }
    job
}

/// A server that calls `attack` with each connection, and then closes it.
pub(crate) fn rogue_server(
    name: &str,
    attack: impl Fn(&mut UnixStream) -> io::Result<()> + Send + Sync + Clone + 'static,
) -> FakeServer {
    FakeServer::listening(name, move |mut stream| {
        let attack = attack.clone();
        // Errors are ignored, since the engine is expected to close the connection.
        thread::spawn(move || drop(attack(&mut stream)));
    })
}

/// Check that the job fails with one of these codes, this text in its message, and advice; returns its `failed` event.
#[track_caller]
pub(crate) fn check_failure(name: &str, job: &Value, codes: &[&str], fragment: &str) -> Value {
    let failed = bounded_failure(name, &with_needed_limits(job, codes));
    let actual = failed["code"].as_str().expect("the code is a text");
    assert!(codes.contains(&actual), "{name}: {failed}");
    let message = failed["message"].as_str().expect("the message is a text");
    assert!(message.contains(fragment), "{name}: {failed}");
    assert!(
        !failed["advice"]
            .as_str()
            .expect("the advice is a text")
            .is_empty()
    );
    failed
}

/// As [`check_failure`], for a server that calls `attack` with each connection.
#[track_caller]
fn check_rogue(
    name: &str,
    code: &str,
    fragment: &str,
    attack: impl Fn(&mut UnixStream) -> io::Result<()> + Send + Sync + Clone + 'static,
) {
    let fake = rogue_server(name, attack);
    check_failure(name, &impatient_job(&fake.path), &[code], fragment);
}

/// As [`check_rogue`], for an attack under load.
#[track_caller]
fn check_rogue_under_load(
    name: &str,
    code: &str,
    fragment: &str,
    attack: impl Fn(&mut UnixStream) -> io::Result<()> + Send + Sync + Clone + 'static,
) {
    let fake = rogue_server(name, attack);
    check_failure_under_each_driver(name, &impatient_job(&fake.path), &[code], fragment);
}

/// As [`check_failure`], with two connections under epoll and with eight over a ring.
#[track_caller]
fn check_failure_under_each_driver(name: &str, job: &Value, codes: &[&str], fragment: &str) {
    check_failure(name, job, codes, fragment);
    if let Some(job) = make_ring_job(job) {
        check_failure(&format!("{name}-ring"), &job, codes, fragment);
    }
}

pub(crate) fn expect_packet(stream: &mut (impl Read + ?Sized)) -> io::Result<Vec<u8>> {
    read_packet(stream).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

const OK: &[u8] = b"\0\0\0\x02\0\0\0";

/// Send the greeting, and answer the login with an OK.
fn accept_login(stream: &mut UnixStream) -> io::Result<()> {
    stream.write_all(&greeting())?;
    expect_packet(stream)?;
    stream.write_all(&packet(2, OK))
}

/// Serve a connection until its first query, which is read but not answered.
fn serve_until_query(stream: &mut UnixStream) -> io::Result<()> {
    stream.write_all(&greeting())?;
    serve_login_until_query(stream, 2)
}

/// Serve from the login, whose answer has this sequence number, to the first query, which is read but not answered.
pub(crate) fn serve_login_until_query(
    stream: &mut (impl Read + Write + ?Sized),
    number: u8,
) -> io::Result<()> {
    expect_packet(stream)?;
    stream.write_all(&packet(number, OK))?;
    loop {
        let command = expect_packet(stream)?;
        match command.first() {
            Some(0x16) => stream.write_all(&packet(1, b"\0\x01\0\0\0\0\0\0\0\0\0\0"))?,
            Some(0x03) if command.starts_with(b"\x03SHOW") => stream.write_all(&empty_status())?,
            // BEGIN and COMMIT: the harm is done where rows are expected.
            Some(0x03 | 0x17) => return Ok(()),
            _ => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Send one payload endlessly, with correct sequence numbers.
fn flood(stream: &mut UnixStream, first: u8, payload: &[u8]) -> io::Result<()> {
    let round: Vec<u8> = (0..=255_u8)
        .flat_map(|number| packet(first.wrapping_add(number), payload))
        .collect();
    send_forever(stream, &round)
}

/// Send these bytes endlessly.
pub(crate) fn send_forever(stream: &mut (impl Write + ?Sized), bytes: &[u8]) -> io::Result<()> {
    loop {
        stream.write_all(bytes)?;
    }
}

/// Send one byte every 10 ms, endlessly.
pub(crate) fn drip(stream: &mut (impl Write + ?Sized), bytes: &[u8]) -> io::Result<()> {
    for byte in bytes.iter().cycle() {
        stream.write_all(&[*byte])?;
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

const DEFINITION: &[u8] = b"\x03def\0\0\0\x01a\0\x0c\x2d\0\0\x01\0\0\xfd\0\0\0\0\0";
const END: &[u8] = b"\xfe\0\0\x02\0";

/// A result of one column, up to its first row, whose sequence number is 4.
pub(crate) fn result_header() -> Vec<u8> {
    [packet(1, b"\x01"), packet(2, DEFINITION), packet(3, END)].concat()
}

#[test]
fn malicious_greetings() {
    check_rogue("huge-greeting", "protocol", "accepted here", |stream| {
        stream.write_all(b"\xff\xff\xff\0")?;
        flood(stream, 0, &[0x0a; 1000])
    });
    check_rogue("dripping-greeting", "connect", "its greeting", |stream| {
        stream.write_all(b"\xff\xff\x0f\0")?;
        drip(stream, b"\x0a")
    });
    check_rogue("misnumbered-login", "protocol", "number 7", |stream| {
        stream.write_all(&greeting())?;
        expect_packet(stream)?;
        stream.write_all(&packet(7, OK))?;
        expect_packet(stream).map(drop)
    });
    check_rogue("dripping-login", "connect", "the login", |stream| {
        stream.write_all(&greeting())?;
        expect_packet(stream)?;
        stream.write_all(b"\xff\xff\x0f\x02")?;
        drip(stream, b"\0")
    });
}

/// The connection is closed after each number of bytes of the greeting, and of the OK.
#[test]
fn a_handshake_cut_anywhere() {
    for cut in 0..=greeting().len() {
        let fake = rogue_server(&format!("cut-{cut}"), move |stream| {
            stream.write_all(&greeting()[..cut])?;
            stream.shutdown(std::net::Shutdown::Write)?;
            expect_packet(stream).map(drop)
        });
        check_failure(
            "a cut greeting",
            &impatient_job(&fake.path),
            &["server_gone"],
            "closed",
        );
    }
    for cut in 0..packet(2, OK).len() {
        let fake = rogue_server(&format!("cut-ok-{cut}"), move |stream| {
            stream.write_all(&greeting())?;
            expect_packet(stream)?;
            stream.write_all(&packet(2, OK)[..cut])
        });
        check_failure(
            "a cut OK",
            &impatient_job(&fake.path),
            &["server_gone"],
            "closed",
        );
    }
}

#[test]
fn endless_logins() {
    check_rogue("switches", "protocol", "without an end", |stream| {
        stream.write_all(&greeting())?;
        for number in 1.. {
            expect_packet(stream)?;
            let switch = b"\xfemysql_native_password\x0001234567890123456789\0";
            stream.write_all(&packet(number * 2, switch))?;
        }
        Ok(())
    });
    check_rogue("more-data", "protocol", "without an end", |stream| {
        stream.write_all(&greeting())?;
        expect_packet(stream)?;
        let switch = b"\xfecaching_sha2_password\x0001234567890123456789\0";
        stream.write_all(&packet(2, switch))?;
        expect_packet(stream)?;
        flood(stream, 4, b"\x01\x03")
    });
    check_rogue("huge-login-error", "protocol", "accepted here", |stream| {
        stream.write_all(&greeting())?;
        expect_packet(stream)?;
        stream.write_all(&error(2, 1045, &"\x01".repeat((1 << 24) - 20)))
    });
}

#[test]
fn endless_answers_before_the_load() {
    check_rogue("statuses", "protocol", "more rows than", |stream| {
        accept_login(stream)?;
        while !expect_packet(stream)?.starts_with(b"\x03SHOW") {
            stream.write_all(&packet(1, b"\0\x01\0\0\0\0\0\0\0\0\0\0"))?;
        }
        stream.write_all(&result_header())?;
        flood(stream, 4, b"\x01a")
    });
    check_rogue("slow-status", "connect", "SHOW SESSION STATUS", |stream| {
        accept_login(stream)?;
        while !expect_packet(stream)?.starts_with(b"\x03SHOW") {
            stream.write_all(&packet(1, b"\0\x01\0\0\0\0\0\0\0\0\0\0"))?;
        }
        stream.write_all(b"\xff\xff\x0f\x01")?;
        drip(stream, b"\x01")
    });
    check_rogue("prepares", "connect", "prepare the statements", |stream| {
        accept_login(stream)?;
        expect_packet(stream)?;
        stream.write_all(&packet(1, b"\0\x01\0\0\0\xff\xff\xff\xff\0\0\0"))?;
        flood(stream, 2, &vec![0; 50_000])
    });
}

#[test]
fn endless_results() {
    // Decoding finds that a row of zeros is longer than its column.
    for (work, other_code) in [
        ("skip", "stalled"),
        ("touch", "stalled"),
        ("decode", "protocol"),
    ] {
        for length in [0, 2, 60_000] {
            let name = format!("rows-{work}-{length}");
            let row = vec![0; length];
            let fake = rogue_server(&name, move |stream| {
                serve_until_query(stream)?;
                stream.write_all(&result_header())?;
                flood(stream, 4, &row)
            });
            let mut job = impatient_job(&fake.path);
            job["client_work"] = work.into();
            check_failure_under_each_driver(&name, &job, &["stalled", other_code], "");
        }
    }
}

#[test]
fn inconsistent_answers() {
    check_rogue_under_load(
        "definitions",
        "protocol",
        "not the one announced",
        |stream| {
            serve_until_query(stream)?;
            stream.write_all(&packet(1, b"\x02"))?;
            flood(stream, 2, DEFINITION)
        },
    );
    check_rogue_under_load("results", "stalled", "waited more than", |stream| {
        serve_until_query(stream)?;
        flood(stream, 1, b"\0\0\0\x0a\0\0\0")
    });
    check_rogue_under_load("a-huge-error", "protocol", "accepted here", |stream| {
        serve_until_query(stream)?;
        stream.write_all(&error(1, 1064, &"\x01".repeat((1 << 24) - 20)))
    });
    check_rogue_under_load("a-long-error", "server_error", "1064", |stream| {
        serve_until_query(stream)?;
        stream.write_all(&error(1, 1064, &"\x01".repeat(1 << 19)))
    });
    check_rogue_under_load("a-huge-ok", "protocol", "accepted here", |stream| {
        serve_until_query(stream)?;
        stream.write_all(&packet(1, &vec![0; (1 << 24) - 2]))
    });
}

/// Skip the next command's frame.
fn read_frame(stream: &mut UnixStream) -> io::Result<()> {
    // Three bytes of length, one of sequence number, three of the length before compression.
    let mut header = [0; 7];
    stream.read_exact(&mut header)?;
    let mut body = vec![0; u32::from_le_bytes([header[0], header[1], header[2], 0]) as usize];
    stream.read_exact(&mut body)
}

#[test]
fn inconsistent_and_expanding_compressed_frames() {
    let mut codec = Codec::new(Algorithm::Zlib { level: 6 }).expect("the level is valid");
    let mut wrong_length = Vec::new();
    codec.write_frame(1, &packet(1, &[b'a'; 500]), &mut wrong_length);
    wrong_length[4..7].copy_from_slice(&[0xff; 3]);
    // Frames of about 64 KiB that hold 16 MiB of zero rows, one for each sequence number.
    let row = packet(0, &[0; 4092]);
    let mut header = Vec::new();
    codec.write_frame(1, &result_header(), &mut header);
    let mut rows = Vec::new();
    codec.write_frame(0, &row.repeat(4095), &mut rows);
    let all_rows: Vec<u8> = (0..=255_u8)
        .flat_map(|number| {
            rows[3] = number.wrapping_add(2);
            rows.clone()
        })
        .collect();
    let bomb = [header, all_rows].concat().leak();
    for (name, bytes, code, fragment) in [
        (
            "wrong-length",
            &*wrong_length.leak(),
            "protocol",
            "compressed frame",
        ),
        ("bomb", &*bomb, "stalled", "waited more than"),
    ] {
        let fake = rogue_server(name, move |stream| {
            let mut codec = Codec::new(Algorithm::Zlib { level: 6 })?;
            accept_login(stream)?;
            // The client requests the session status, and then sends the first statement.
            read_frame(stream)?;
            let mut answer = Vec::new();
            codec.write_frame(1, &empty_status(), &mut answer);
            stream.write_all(&answer)?;
            read_frame(stream)?;
            stream.write_all(bytes)?;
            read_frame(stream)
        });
        let mut job = impatient_job(&fake.path);
        job["session"] = json!({"compression": {"algorithm": "zlib"}});
        job["client_work"] = "skip".into();
        job["workload"] = json!({"kind": "oltp_read_only", "db_ps_mode": "disable"});
        check_failure_under_each_driver(name, &job, &[code], fragment);
    }
}
