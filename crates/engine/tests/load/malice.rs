//! Malicious servers: attacks that only MySQL's protocol allows; those that all protocols share are in `hostile`. The engine ends
//! within its limits, reports what was wrong, and needs little memory.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use howfar_wire::mysql::compress::{Algorithm, Codec};
use serde_json::{Value, json};

use crate::drivers::over_a_ring;
use crate::fake::{Fake, error, greeting, no_status, packet, read_packet};
use crate::peak::bounded_failure;
use crate::process::job;

/// A job of two connections with short limits, which end it: its window, and the window's first interval, are longer than any test.
pub(crate) fn hurried(path: &str) -> Value {
    let mut job = job(path);
    job["connections"] = 2.into();
    job["connect_timeout_ns"] = 300_000_000.into();
    job["stall_timeout_ns"] = 300_000_000.into();
    job["measure_ns"] = 600_000_000_000_u64.into();
    job["interval_ns"] = 60_000_000_000_u64.into();
    job
}

/// The job with short limits only where they are to end it with one of these codes: the others are not reached, however busy the
/// machine is.
pub(crate) fn limited(job: &Value, codes: &[&str]) -> Value {
    const PATIENT_NS: u64 = 20_000_000_000;
    let mut job = job.clone();
    for (code, limit) in [
        ("connect", "connect_timeout_ns"),
        ("stalled", "stall_timeout_ns"),
    ] {
        if !codes.contains(&code) {
            job[limit] = PATIENT_NS.into();
        }
    }
    job
}

/// A server that runs `harm` on each connection, and then closes it.
pub(crate) fn harmful(
    name: &str,
    harm: impl Fn(&mut UnixStream) -> io::Result<()> + Send + Sync + Clone + 'static,
) -> Fake {
    Fake::listening(name, move |mut stream| {
        let harm = harm.clone();
        // Errors are ignored: the engine is expected to close the connection.
        thread::spawn(move || drop(harm(&mut stream)));
    })
}

#[track_caller]
pub(crate) fn ends(name: &str, job: &Value, codes: &[&str], fragment: &str) -> Value {
    let failed = bounded_failure(name, &limited(job, codes));
    let actual = failed["code"].as_str().expect("a code");
    assert!(codes.contains(&actual), "{name}: {failed}");
    let message = failed["message"].as_str().expect("a text");
    assert!(message.contains(fragment), "{name}: {failed}");
    assert!(!failed["advice"].as_str().expect("a text").is_empty());
    failed
}

/// As [`ends`], for a server that runs `harm` on each connection.
#[track_caller]
fn harm_ends(
    name: &str,
    code: &str,
    fragment: &str,
    harm: impl Fn(&mut UnixStream) -> io::Result<()> + Send + Sync + Clone + 'static,
) {
    let fake = harmful(name, harm);
    ends(name, &hurried(&fake.path), &[code], fragment);
}

/// As [`harm_ends`], for harm that is done under load.
#[track_caller]
fn harm_under_load_ends(
    name: &str,
    code: &str,
    fragment: &str,
    harm: impl Fn(&mut UnixStream) -> io::Result<()> + Send + Sync + Clone + 'static,
) {
    let fake = harmful(name, harm);
    ends_under_each(name, &hurried(&fake.path), &[code], fragment);
}

/// As [`ends`], with two connections under epoll and with eight over a ring.
#[track_caller]
fn ends_under_each(name: &str, job: &Value, codes: &[&str], fragment: &str) {
    ends(name, job, codes, fragment);
    if let Some(job) = over_a_ring(job) {
        ends(&format!("{name}-ring"), &job, codes, fragment);
    }
}

pub(crate) fn expect_packet(stream: &mut (impl Read + ?Sized)) -> io::Result<Vec<u8>> {
    read_packet(stream).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

const OK: &[u8] = b"\0\0\0\x02\0\0\0";

/// Send the greeting, and OK in answer to the login.
fn let_in(stream: &mut UnixStream) -> io::Result<()> {
    stream.write_all(&greeting())?;
    expect_packet(stream)?;
    stream.write_all(&packet(2, OK))
}

/// Serve all that comes before the load.
fn queried(stream: &mut UnixStream) -> io::Result<()> {
    stream.write_all(&greeting())?;
    until_queried(stream, 2)
}

/// Serve from the login, which is answered with a packet of this number, to the first query, which is read but not answered.
pub(crate) fn until_queried(
    stream: &mut (impl Read + Write + ?Sized),
    number: u8,
) -> io::Result<()> {
    expect_packet(stream)?;
    stream.write_all(&packet(number, OK))?;
    loop {
        let command = expect_packet(stream)?;
        match command.first() {
            Some(0x16) => stream.write_all(&packet(1, b"\0\x01\0\0\0\0\0\0\0\0\0\0"))?,
            Some(0x03) if command.starts_with(b"\x03SHOW") => stream.write_all(&no_status())?,
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
    flood_of(stream, &round)
}

/// Send these bytes endlessly.
pub(crate) fn flood_of(stream: &mut (impl Write + ?Sized), bytes: &[u8]) -> io::Result<()> {
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
pub(crate) fn head_of_result() -> Vec<u8> {
    [packet(1, b"\x01"), packet(2, DEFINITION), packet(3, END)].concat()
}

#[test]
fn greetings_that_do_not_end_well() {
    harm_ends("huge-greeting", "protocol", "accepted here", |stream| {
        stream.write_all(b"\xff\xff\xff\0")?;
        flood(stream, 0, &[0x0a; 1000])
    });
    harm_ends("dripping-greeting", "connect", "its greeting", |stream| {
        stream.write_all(b"\xff\xff\x0f\0")?;
        drip(stream, b"\x0a")
    });
    harm_ends("misnumbered-login", "protocol", "number 7", |stream| {
        stream.write_all(&greeting())?;
        expect_packet(stream)?;
        stream.write_all(&packet(7, OK))?;
        expect_packet(stream).map(drop)
    });
    harm_ends("dripping-login", "connect", "the login", |stream| {
        stream.write_all(&greeting())?;
        expect_packet(stream)?;
        stream.write_all(b"\xff\xff\x0f\x02")?;
        drip(stream, b"\0")
    });
}

/// The connection is closed after each byte, in turn, of the greeting and of the OK.
#[test]
fn a_handshake_cut_anywhere() {
    for cut in 0..=greeting().len() {
        let fake = harmful(&format!("cut-{cut}"), move |stream| {
            stream.write_all(&greeting()[..cut])?;
            stream.shutdown(std::net::Shutdown::Write)?;
            expect_packet(stream).map(drop)
        });
        ends(
            "a cut greeting",
            &hurried(&fake.path),
            &["server_gone"],
            "closed",
        );
    }
    for cut in 0..packet(2, OK).len() {
        let fake = harmful(&format!("cut-ok-{cut}"), move |stream| {
            stream.write_all(&greeting())?;
            expect_packet(stream)?;
            stream.write_all(&packet(2, OK)[..cut])
        });
        ends("a cut OK", &hurried(&fake.path), &["server_gone"], "closed");
    }
}

#[test]
fn logins_without_an_end() {
    harm_ends("switches", "protocol", "without an end", |stream| {
        stream.write_all(&greeting())?;
        for number in 1.. {
            expect_packet(stream)?;
            let switch = b"\xfemysql_native_password\x0001234567890123456789\0";
            stream.write_all(&packet(number * 2, switch))?;
        }
        Ok(())
    });
    harm_ends("more-data", "protocol", "without an end", |stream| {
        stream.write_all(&greeting())?;
        expect_packet(stream)?;
        let switch = b"\xfecaching_sha2_password\x0001234567890123456789\0";
        stream.write_all(&packet(2, switch))?;
        expect_packet(stream)?;
        flood(stream, 4, b"\x01\x03")
    });
    harm_ends("huge-login-error", "protocol", "accepted here", |stream| {
        stream.write_all(&greeting())?;
        expect_packet(stream)?;
        stream.write_all(&error(2, 1045, &"\x01".repeat((1 << 24) - 20)))
    });
}

#[test]
fn what_comes_before_the_load_without_an_end() {
    harm_ends("statuses", "protocol", "more rows than", |stream| {
        let_in(stream)?;
        while !expect_packet(stream)?.starts_with(b"\x03SHOW") {
            stream.write_all(&packet(1, b"\0\x01\0\0\0\0\0\0\0\0\0\0"))?;
        }
        stream.write_all(&head_of_result())?;
        flood(stream, 4, b"\x01a")
    });
    harm_ends("slow-status", "connect", "SHOW SESSION STATUS", |stream| {
        let_in(stream)?;
        while !expect_packet(stream)?.starts_with(b"\x03SHOW") {
            stream.write_all(&packet(1, b"\0\x01\0\0\0\0\0\0\0\0\0\0"))?;
        }
        stream.write_all(b"\xff\xff\x0f\x01")?;
        drip(stream, b"\x01")
    });
    harm_ends("prepares", "connect", "prepare the statements", |stream| {
        let_in(stream)?;
        expect_packet(stream)?;
        stream.write_all(&packet(1, b"\0\x01\0\0\0\xff\xff\xff\xff\0\0\0"))?;
        flood(stream, 2, &vec![0; 50_000])
    });
}

#[test]
fn results_without_an_end() {
    // Decoding finds that a row of zeros is longer than its column.
    for (work, or) in [
        ("skip", "stalled"),
        ("touch", "stalled"),
        ("decode", "protocol"),
    ] {
        for length in [0, 2, 60_000] {
            let name = format!("rows-{work}-{length}");
            let row = vec![0; length];
            let fake = harmful(&name, move |stream| {
                queried(stream)?;
                stream.write_all(&head_of_result())?;
                flood(stream, 4, &row)
            });
            let mut job = hurried(&fake.path);
            job["client_work"] = work.into();
            ends_under_each(&name, &job, &["stalled", or], "");
        }
    }
}

#[test]
fn answers_that_lie_about_themselves() {
    harm_under_load_ends(
        "definitions",
        "protocol",
        "not the one announced",
        |stream| {
            queried(stream)?;
            stream.write_all(&packet(1, b"\x02"))?;
            flood(stream, 2, DEFINITION)
        },
    );
    harm_under_load_ends("results", "stalled", "waited more than", |stream| {
        queried(stream)?;
        flood(stream, 1, b"\0\0\0\x0a\0\0\0")
    });
    harm_under_load_ends("a-huge-error", "protocol", "accepted here", |stream| {
        queried(stream)?;
        stream.write_all(&error(1, 1064, &"\x01".repeat((1 << 24) - 20)))
    });
    harm_under_load_ends("a-long-error", "server_error", "1064", |stream| {
        queried(stream)?;
        stream.write_all(&error(1, 1064, &"\x01".repeat(1 << 19)))
    });
    harm_under_load_ends("a-huge-ok", "protocol", "accepted here", |stream| {
        queried(stream)?;
        stream.write_all(&packet(1, &vec![0; (1 << 24) - 2]))
    });
}

/// Read and skip the next command's frame.
fn heard_framed(stream: &mut UnixStream) -> io::Result<()> {
    // Three bytes of length, one of sequence number, three of the length before compression.
    let mut head = [0; 7];
    stream.read_exact(&mut head)?;
    let mut framed = vec![0; u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize];
    stream.read_exact(&mut framed)
}

#[test]
fn compressed_frames_that_lie_or_swell() {
    let mut codec = Codec::new(Algorithm::Zlib { level: 6 }).expect("a codec");
    let mut lie = Vec::new();
    codec.frame(1, &packet(1, &[b'a'; 500]), &mut lie);
    lie[4..7].copy_from_slice(&[0xff; 3]);
    // Frames of 16 MiB of zero rows in about 64 KiB each, one for each sequence number.
    let row = packet(0, &[0; 4092]);
    let mut head = Vec::new();
    codec.frame(1, &head_of_result(), &mut head);
    let mut swelling = Vec::new();
    codec.frame(0, &row.repeat(4095), &mut swelling);
    let rounds: Vec<u8> = (0..=255_u8)
        .flat_map(|number| {
            swelling[3] = number.wrapping_add(2);
            swelling.clone()
        })
        .collect();
    let (lie, swell) = (lie.leak(), [head, rounds].concat().leak());
    for (name, sent, code, fragment) in [
        ("a-lie", &*lie, "protocol", "compressed frame"),
        ("a-bomb", &*swell, "stalled", "waited more than"),
    ] {
        let fake = harmful(name, move |stream| {
            let mut codec = Codec::new(Algorithm::Zlib { level: 6 })?;
            let_in(stream)?;
            // The status of the session is requested, then the first statement comes.
            heard_framed(stream)?;
            let mut answer = Vec::new();
            codec.frame(1, &no_status(), &mut answer);
            stream.write_all(&answer)?;
            heard_framed(stream)?;
            stream.write_all(sent)?;
            heard_framed(stream)
        });
        let mut job = hurried(&fake.path);
        job["session"] = json!({"compression": {"algorithm": "zlib"}});
        job["client_work"] = "skip".into();
        job["workload"] = json!({"kind": "oltp_read_only", "db_ps_mode": "disable"});
        ends_under_each(name, &job, &[code], fragment);
    }
}
