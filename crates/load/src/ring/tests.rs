//! How many buffers a ring has for replies.

use std::io::Write;
use std::os::unix::net::UnixStream;

use super::*;

/// More replies at once than there are buffers to begin with.
const MANY: usize = 400;

/// Each peer says a byte before anybody looks: how often there was no buffer for one, until all have come.
fn round(ring: &mut Ring, pairs: &mut [(OwnedFd, UnixStream)]) -> u64 {
    let (before, mut buffer, mut came) = (ring.starved(), [0; 64], 0);
    for (_, peer) in &mut *pairs {
        peer.write_all(b"x").expect("room for a byte");
    }
    while came < pairs.len() {
        ring.wait(None).expect("a ring");
        while let Some(event) = ring.next(&mut buffer) {
            match event {
                Event::Received {
                    token,
                    count,
                    armed,
                } => {
                    came += count;
                    if !armed {
                        ring.arm(&pairs[token.index()].0, token)
                            .expect("an open socket");
                    }
                }
                Event::Starved { token } => ring
                    .arm(&pairs[token.index()].0, token)
                    .expect("an open socket"),
                other => panic!("{other:?}"),
            }
        }
    }
    ring.starved() - before
}

#[test]
fn buffers_become_as_many_as_replies_that_come_at_once() {
    crate::socket::allow_descriptors(2 * MANY as u64).expect("descriptors");
    let mut ring = match Ring::new(MANY, 1024) {
        Ok(ring) => ring,
        Err(error) => {
            eprintln!("SKIPPED: io_uring cannot be had: {error}");
            return;
        }
    };
    ring.start().expect("a ring of this thread");
    let mut pairs: Vec<(OwnedFd, UnixStream)> = (0..MANY)
        .map(|_| UnixStream::pair().expect("two ends"))
        .map(|(ours, peer)| (ours.into(), peer))
        .collect();
    for (index, (ours, _)) in pairs.iter().enumerate() {
        ring.admit(ours, index).expect("an open socket");
    }
    if round(&mut ring, &mut pairs) == 0 {
        eprintln!("SKIPPED: this kernel waits for buffers by itself");
        return;
    }
    assert_eq!(round(&mut ring, &mut pairs), 0, "there are enough now");
}
