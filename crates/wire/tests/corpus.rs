//! Replays the stored inputs of the fuzzers, with the fuzzers' checks.

use std::path::Path;

#[path = "../../../fuzz/src/wire.rs"]
#[allow(unreachable_pub)] // the fuzzers call it from outside
mod checks;

#[path = "../../../fuzz/src/keyvalue.rs"]
#[allow(unreachable_pub)] // the fuzzers call it from outside
mod keyvalue;

#[path = "../../../fuzz/src/postgres.rs"]
#[allow(unreachable_pub)] // the fuzzers call it from outside
mod postgres;

#[path = "../../../fuzz/src/fastcgi.rs"]
#[allow(unreachable_pub)] // the fuzzers call it from outside
mod fastcgi;

fn replay(target: &str, check: fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let entries = std::fs::read_dir(corpus.join(target)).expect("the corpus exists");
    let mut count = 0;
    for entry in entries {
        check(
            &std::fs::read(entry.expect("the entry is readable").path())
                .expect("the file is readable"),
        );
        count += 1;
    }
    assert!(count > 0, "the corpus has inputs");
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
