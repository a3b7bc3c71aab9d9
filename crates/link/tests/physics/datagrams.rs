//! UDP in bursts that the sender's kernel keeps as super-packets, each datagram compared byte by byte on arrival. Only one burst is
//! in flight at a time, so that no socket buffer can be too small.
#![allow(unsafe_code)] // Socket options without a safe wrapper.

use std::io::Write;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::time::Duration;

/// Datagrams of a burst.
const BURST: u64 = 32;
const TIMEOUT: Duration = Duration::from_secs(20);

/// The datagram with this number: the number, then bytes derived from it.
fn make_datagram(number: u64, length: usize) -> Vec<u8> {
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.extend((8..length as u64).map(|index| (number.wrapping_mul(31) ^ index) as u8));
    bytes
}

/// Receive on the host's address and print the port; answer each burst with the number of datagrams so far. Runs until it is
/// killed.
pub(crate) fn receive(host: &str) -> ExitCode {
    let address: IpAddr = host.parse().expect("an address");
    let socket = UdpSocket::bind((address, 0)).expect("the address is ours");
    println!(
        "{}",
        socket.local_addr().expect("the socket is bound").port()
    );
    std::io::stdout().flush().expect("stdout is open");
    let (mut received, mut buffer) = (0_u64, vec![0; 65_536]);
    loop {
        let (length, sender) = socket.recv_from(&mut buffer).expect("a datagram");
        assert_eq!(
            buffer[..length],
            make_datagram(received, length),
            "datagram {received} of {length} bytes"
        );
        received += 1;
        if received % BURST == 0 {
            socket
                .send_to(&received.to_be_bytes(), sender)
                .expect("the answer is sent");
        }
    }
}

/// Send `bursts` bursts, alternately as one super-packet and as datagrams of all lengths. Succeeds if all of them arrived intact.
pub(crate) fn send(host: &str, port: &str, bursts: &str) -> ExitCode {
    let address: IpAddr = host.parse().expect("an address");
    let port: u16 = port.parse().expect("a port");
    let bursts: u64 = bursts.parse().expect("a number");
    let any = if address.is_ipv6() { "::" } else { "0.0.0.0" };
    let socket = UdpSocket::bind((any, 0)).expect("a socket");
    socket
        .connect((address, port))
        .expect("there is a route to the receiver");
    socket.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    for burst in 0..bursts {
        let numbers = burst * BURST..(burst + 1) * BURST;
        let length = 1_200 + burst as usize % 200;
        set_segment_length(&socket, if burst % 2 == 0 { length as i32 } else { 0 });
        if burst % 2 == 0 {
            let train: Vec<u8> = numbers
                .flat_map(|number| make_datagram(number, length))
                .collect();
            socket.send(&train).expect("a burst is sent");
        } else {
            for number in numbers {
                let length = 8 + (number.wrapping_mul(97) % 1_400) as usize;
                socket
                    .send(&make_datagram(number, length))
                    .expect("the datagram is sent");
            }
        }
        let mut answer = [0; 8];
        socket.recv(&mut answer).expect("the burst is answered");
        assert_eq!(u64::from_be_bytes(answer), (burst + 1) * BURST);
    }
    ExitCode::SUCCESS
}

/// Have the kernel cut each send into datagrams of this length, as late as possible; with 0 a send is one datagram.
fn set_segment_length(socket: &UdpSocket, length: i32) {
    set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, length).expect("the kernel cuts sends");
}

/// Check, where packet sockets are permitted, that they have the option with which frames carry a header of their own. Every kernel
/// has it, but a user-mode emulator refuses all options of packet sockets as unknown.
pub(crate) fn check_packet_sockets() -> Result<(), std::io::Error> {
    let packet = rustix::net::AddressFamily::PACKET;
    let Ok(socket) = rustix::net::socket(packet, rustix::net::SocketType::RAW, None) else {
        return Ok(());
    };
    match set_option(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1) {
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Err(error),
        _ => Ok(()),
    }
}

fn set_option(socket: &impl AsRawFd, level: i32, name: i32, value: i32) -> std::io::Result<()> {
    // SAFETY: the value is a local int whose length is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(&value).cast(),
            size_of::<i32>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}
