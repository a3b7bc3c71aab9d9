//! Replays the inputs that the fuzzers found worth keeping, with the fuzzers' own checks.

use std::path::Path;

#[path = "../../../fuzz/src/wire.rs"]
#[allow(unreachable_pub)] // what the fuzzers call from outside
mod checks;

#[path = "../../../fuzz/src/keyvalue.rs"]
#[allow(unreachable_pub)] // what the fuzzers call from outside
mod keyvalue;

#[path = "../../../fuzz/src/postgres.rs"]
#[allow(unreachable_pub)] // what the fuzzers call from outside
mod postgres;

#[path = "../../../fuzz/src/fastcgi.rs"]
#[allow(unreachable_pub)] // what the fuzzers call from outside
mod fastcgi;

fn replay(target: &str, check: fn(&[u8])) {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let entries = std::fs::read_dir(place.join(target)).expect("the corpus");
    let mut count = 0;
    for entry in entries {
        check(&std::fs::read(entry.expect("an entry").path()).expect("a file"));
        count += 1;
    }
    assert!(count > 0, "an empty corpus tests nothing");
}

#[test]
fn answers() {
    replay("answer", checks::answer);
}

#[test]
fn packets() {
    replay("packets", checks::packets);
}

#[test]
fn logins() {
    replay("login", checks::login);
}

#[test]
fn compressed_frames() {
    replay("frames", checks::frames);
}

#[test]
fn answers_of_postgresql() {
    replay("postgres", postgres::postgres);
}

#[test]
fn replies_of_redis() {
    replay("redis", keyvalue::redis);
}

#[test]
fn replies_of_memcached() {
    replay("memcached", keyvalue::memcached);
}

#[test]
fn replies_of_fastcgi() {
    replay("fastcgi", fastcgi::fastcgi);
}
