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
        peer.write_all(b"x").expect("the socket takes a byte");
    }
    while received < pairs.len() {
        ring.wait(None).expect("the ring works");
        while let Some(event) = ring.next(&mut buffer) {
            match event {
                Event::Received {
                    token,
                    count,
                    is_armed,
                } => {
                    received += count;
                    if !is_armed {
                        ring.arm_receive(&pairs[token.index()].0, token)
                            .expect("the socket is open");
                    }
                }
                Event::Starved { token } => ring
                    .arm_receive(&pairs[token.index()].0, token)
                    .expect("the socket is open"),
                other => panic!("{other:?}"),
            }
        }
    }
    ring.starved() - before
}

type Pairs = Vec<(OwnedFd, UnixStream)>;

/// A ring of this thread, and `count` sockets that it receives from, with their peers.
fn ring_with_sockets(count: usize) -> Option<(Ring, Pairs, Vec<Token>)> {
    crate::socket::allow_descriptors(2 * count as u64)
        .expect("the process may have enough descriptors");
    let mut ring = match Ring::new(count, 1024) {
        Ok(ring) => ring,
        Err(error) => {
            eprintln!("SKIPPED: io_uring cannot be had: {error}");
            return None;
        }
    };
    ring.start().expect("the ring belongs to this thread");
    let pairs: Pairs = (0..count)
        .map(|_| UnixStream::pair().expect("a pair can be made"))
        .map(|(ours, peer)| (ours.into(), peer))
        .collect();
    let register = |(index, (ours, _)): (usize, &(OwnedFd, UnixStream))| {
        ring.register(ours, index).expect("the socket is open")
    };
    let tokens = pairs.iter().enumerate().map(register).collect();
    Some((ring, pairs, tokens))
}

#[test]
fn the_number_of_buffers_grows_to_that_of_simultaneous_replies() {
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
        "all replies found a buffer"
    );
}

/// The test does not wait on the ring, so the only sends submitted are those that later sends have pushed out.
#[test]
fn the_number_of_queued_sends_is_bounded() {
    let Some((mut ring, mut pairs, tokens)) = ring_with_sockets(3 * MAX_QUEUED) else {
        return;
    };
    ring.wait(Some(0)).expect("the ring works");
    for ((ours, _), token) in pairs.iter().zip(tokens) {
        ring.send(ours, token, b"x").expect("the socket is open");
    }
    let is_sent = |(_, peer): &mut (OwnedFd, UnixStream)| {
        peer.set_nonblocking(true).expect("the socket is open");
        peer.read(&mut [0]).is_ok_and(|count| count == 1)
    };
    let sent: Vec<bool> = pairs.iter_mut().map(is_sent).collect();
    let sent_count = sent.iter().take_while(|sent| **sent).count();
    assert_eq!(sent_count, 2 * MAX_QUEUED, "{sent:?}");
    assert!(!sent[sent_count..].contains(&true), "{sent:?}");
}
