//! A capture on a host that verifies every checksum in software: the arithmetic is this file's own and shares nothing with the
//! link's. For a packet that never sees a wire, a kernel leaves the checksum to be completed later, with the pseudo-header sum in
//! its place; then that sum must be right.

use std::io::Write;
use std::num::NonZeroU32;
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, Protocol, SocketType, socket};

const ETH_P_ALL: u16 = 3;

/// Verify every packet until stdin ends, then print how many TCP and UDP packets were seen. A wrong packet is printed and means
/// failure.
pub(crate) fn run() -> ExitCode {
    let protocol = NonZeroU32::new(u32::from(ETH_P_ALL.to_be())).expect("the protocol is not zero");
    // Without a link-layer header, whatever the interface.
    let capture = socket(
        AddressFamily::PACKET,
        SocketType::DGRAM,
        Some(Protocol::from_raw(protocol)),
    )
    .expect("a packet socket can be opened");
    println!("ready");
    std::io::stdout().flush().expect("stdout is open");
    let stdin = std::io::stdin();
    let (mut counts, mut buffer) = ([0_u64; 2], vec![0; 70_000]);
    loop {
        let mut fds = [
            PollFd::new(&capture, PollFlags::IN),
            PollFd::new(&stdin, PollFlags::IN),
        ];
        poll(&mut fds, None).expect("poll succeeds");
        if !fds[0].revents().is_empty() {
            let length = rustix::io::read(&capture, &mut buffer).expect("a packet is waiting");
            match verify(&buffer[..length]) {
                Ok(Some(kind)) => counts[kind] += 1,
                Ok(None) => {}
                Err(error) => {
                    println!("{error}: {:02x?}", &buffer[..length.min(120)]);
                    return ExitCode::FAILURE;
                }
            }
        } else if !fds[1].revents().is_empty() {
            println!("{} {}", counts[0], counts[1]);
            return ExitCode::SUCCESS;
        }
    }
}

/// Verify a packet; returns 0 for TCP, 1 for UDP, None for others.
fn verify(packet: &[u8]) -> Result<Option<usize>, String> {
    let (header, addresses, protocol, length) = match packet.first().map(|byte| byte >> 4) {
        Some(4) => {
            let header = usize::from(packet[0] & 15) * 4;
            if sum(&packet[..header]) != 0xffff {
                return Err("the checksum of IPv4's header is wrong".to_owned());
            }
            let total = usize::from(u16::from_be_bytes([packet[2], packet[3]]));
            (header, &packet[12..20], packet[9], total)
        }
        Some(6) => {
            let total = 40 + usize::from(u16::from_be_bytes([packet[4], packet[5]]));
            (40, &packet[8..40], packet[6], total)
        }
        _ => return Ok(None),
    };
    let (kind, field) = match protocol {
        6 => (0, 16),
        17 => (1, 6),
        _ => return Ok(None),
    };
    if packet.len() != length {
        return Err(format!(
            "IP says {length} bytes, there are {}",
            packet.len()
        ));
    }
    let body = &packet[header..];
    let mut pseudo = addresses.to_vec();
    pseudo.extend((body.len() as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, protocol]);
    let is_incomplete = u16::from_be_bytes([body[field], body[field + 1]]) == sum(&pseudo);
    pseudo.extend(body);
    if is_incomplete || sum(&pseudo) == 0xffff {
        Ok(Some(kind))
    } else {
        Err("the checksum is neither correct nor incomplete".to_owned())
    }
}

/// The sum of the Internet checksum, not complemented.
fn sum(bytes: &[u8]) -> u16 {
    let mut sum: u64 = bytes
        .chunks(2)
        .map(|pair| (u64::from(pair[0]) << 8) | pair.get(1).map_or(0, |low| u64::from(*low)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
