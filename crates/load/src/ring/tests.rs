//! Tests of the number of a ring's receive buffers, and of when its sends are submitted.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use super::*;

/// Number of simultaneous replies: more than the initial number of buffers.
const REPLIES: usize = 400;

/// Receive a byte that each peer has sent before; returns how often a receive found no buffer until all had arrived.
fn receive_round(ring: &mut Ring, pairs: &mut [(OwnedFd, UnixStream)]) -> u64 {
    let (before, mut buffer, mut received) = (ring.starved(), [0; 64], 0);
    for (_, peer) in &mut *pairs {
        peer.write_all(b"x").expect("room for a byte");
    }
    while received < pairs.len() {
        ring.wait(None).expect("a ring");
        while let Some(event) = ring.next(&mut buffer) {
            match event {
                Event::Received {
                    token,
                    count,
                    armed,
                } => {
                    received += count;
                    if !armed {
                        ring.arm_receive(&pairs[token.index()].0, token)
                            .expect("an open socket");
                    }
                }
                Event::Starved { token } => ring
                    .arm_receive(&pairs[token.index()].0, token)
                    .expect("an open socket"),
                other => panic!("{other:?}"),
            }
        }
    }
    ring.starved() - before
}

type Pairs = Vec<(OwnedFd, UnixStream)>;

/// A ring of this thread, and `count` sockets that it receives from, with their peers.
fn ring_with_sockets(count: usize) -> Option<(Ring, Pairs, Vec<Token>)> {
    crate::socket::allow_descriptors(2 * count as u64).expect("descriptors");
    let mut ring = match Ring::new(count, 1024) {
        Ok(ring) => ring,
        Err(error) => {
            eprintln!("SKIPPED: io_uring cannot be had: {error}");
            return None;
        }
    };
    ring.start().expect("a ring of this thread");
    let pairs: Pairs = (0..count)
        .map(|_| UnixStream::pair().expect("two ends"))
        .map(|(ours, peer)| (ours.into(), peer))
        .collect();
    let admit = |(index, (ours, _)): (usize, &(OwnedFd, UnixStream))| {
        ring.register(ours, index).expect("an open socket")
    };
    let tokens = pairs.iter().enumerate().map(admit).collect();
    Some((ring, pairs, tokens))
}

#[test]
fn buffers_become_as_many_as_replies_that_come_at_once() {
    let Some((mut ring, mut pairs, _)) = ring_with_sockets(REPLIES) else {
        return;
    };
    if receive_round(&mut ring, &mut pairs) == 0 {
        eprintln!("SKIPPED: this kernel waits for buffers by itself");
        return;
    }
    assert_eq!(
        receive_round(&mut ring, &mut pairs),
        0,
        "there are enough now"
    );
}

/// The test does not wait on the ring, so the only sends submitted are those that later sends have pushed out.
#[test]
fn a_send_waits_for_a_bounded_number_of_others() {
    let Some((mut ring, mut pairs, tokens)) = ring_with_sockets(3 * MAX_QUEUED) else {
        return;
    };
    ring.wait(Some(0)).expect("a ring");
    for ((ours, _), token) in pairs.iter().zip(tokens) {
        ring.send(ours, token, b"x").expect("an open socket");
    }
    let sent = |(_, peer): &mut (OwnedFd, UnixStream)| {
        peer.set_nonblocking(true).expect("a socket");
        peer.read(&mut [0]).is_ok_and(|count| count == 1)
    };
    let sent: Vec<bool> = pairs.iter_mut().map(sent).collect();
    let first = sent.iter().take_while(|sent| **sent).count();
    assert_eq!(first, 2 * MAX_QUEUED, "{sent:?}");
    assert!(!sent[first..].contains(&true), "{sent:?}");
}
