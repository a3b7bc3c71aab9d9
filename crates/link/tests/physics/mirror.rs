//! A stream of bytes over the link and back again, compared byte by byte.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::process::ExitCode;
use std::time::Duration;

/// Byte `index` of the stream, which has no period that could hide a lost or doubled segment.
fn byte(index: u64) -> u8 {
    (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Send `length` bytes to the echo on `port` of `host` and read them back. Run on the client host; it succeeds if all are right.
pub(crate) fn run(host: &str, port: &str, length: &str) -> ExitCode {
    let host: IpAddr = host.parse().expect("an address");
    let (port, length): (u16, u64) = (
        port.parse().expect("a port"),
        length.parse().expect("a length"),
    );
    let mut stream = TcpStream::connect((host, port)).expect("the echo listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a timeout");
    stream
        .set_write_timeout(Some(Duration::from_secs(20)))
        .expect("a timeout");
    let mut handshake = [0; 17];
    handshake[0] = b'P';
    stream.write_all(&handshake).expect("the echo reads");
    let mut writer = stream.try_clone().expect("a second handle");
    let sender = std::thread::spawn(move || {
        let mut sent = 0;
        while sent < length {
            let end = (sent + 100_000).min(length);
            let block: Vec<u8> = (sent..end).map(byte).collect();
            writer.write_all(&block).expect("the echo reads");
            sent = end;
        }
    });
    let (mut received, mut buffer) = (0, vec![0; 100_000]);
    while received < length {
        let read = stream.read(&mut buffer).expect("the echo answers");
        assert!(
            read > 0,
            "the stream ended after {received} of {length} bytes"
        );
        for (offset, received_byte) in buffer[..read].iter().enumerate() {
            assert_eq!(
                *received_byte,
                byte(received + offset as u64),
                "byte {} of the stream",
                received + offset as u64
            );
        }
        received += read as u64;
    }
    sender.join().expect("the sender ends");
    ExitCode::SUCCESS
}
