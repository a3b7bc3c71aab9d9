//! Measures the round trip time: one byte goes back and forth on one connection.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use super::handshake::{Handshake, Mode};
use super::tcp;
use crate::clock::now;
use crate::event::Event;
use howfar_contract::{FailCode, Failed};

/// Round trips before the measured ones, to warm up the caches.
const WARMUP_ROUNDS: u32 = 10;

/// Measure `count` round trips; all of them, including the connect, may take at most `timeout_ns`.
pub(super) fn measure(peer: SocketAddr, count: u32, timeout_ns: u64) -> Result<Event, Failed> {
    let begin = now();
    let timeout = Duration::from_nanos(timeout_ns.max(1_000_000));
    let mut stream = tcp::connect(peer, timeout)?;
    let bounce_error =
        |error: std::io::Error| tcp::connection_error(peer, "bounce a byte off", &error);
    let handshake = Handshake {
        mode: Mode::PingPong,
        warmup_ns: 0,
        measure_ns: 0,
    };
    stream
        .write_all(&handshake.encode())
        .map_err(bounce_error)?;
    let mut times = Vec::with_capacity(count as usize);
    for round in 0..WARMUP_ROUNDS + count {
        let sent = now();
        if sent - begin > timeout_ns {
            return Err(Failed::new(
                FailCode::Stalled,
                format!(
                    "only {round} of {count} round trips to {peer} ended within {timeout_ns} ns"
                ),
                "Ask for fewer round trips or for more time.",
            ));
        }
        let mut byte = [round as u8];
        stream.write_all(&byte).map_err(bounce_error)?;
        stream.read_exact(&mut byte).map_err(bounce_error)?;
        if byte[0] != round as u8 {
            return Err(Failed::new(
                FailCode::Protocol,
                format!("{peer} answered with another byte than was sent"),
                "Something else than howfar's echo listens there.",
            ));
        }
        if round >= WARMUP_ROUNDS {
            times.push(now() - sent);
        }
    }
    Ok(rtt_event(times))
}

fn rtt_event(mut times: Vec<u64>) -> Event {
    times.sort_unstable();
    let nearest_rank = |percent: usize| times[(times.len() * percent).div_ceil(100).max(1) - 1];
    Event::Rtt {
        count: times.len() as u64,
        min_ns: times[0],
        p50_ns: nearest_rank(50),
        p99_ns: nearest_rank(99),
        max_ns: times[times.len() - 1],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let event = rtt_event((1..=200).rev().collect());
        assert_eq!(
            event,
            Event::Rtt {
                count: 200,
                min_ns: 1,
                p50_ns: 100,
                p99_ns: 198,
                max_ns: 200
            }
        );
        let single = rtt_event(vec![7]);
        assert_eq!(
            single,
            Event::Rtt {
                count: 1,
                min_ns: 7,
                p50_ns: 7,
                p99_ns: 7,
                max_ns: 7
            }
        );
    }
}
