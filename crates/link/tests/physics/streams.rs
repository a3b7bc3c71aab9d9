//! Checks of the packets that arrive: TCP and UDP over IPv4 and IPv6 are intact, and checksums are wrong only if that was
//! requested.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::drive::{self, direction_parameters, usual};
use crate::rig::{Host, Rig, SERVER, SERVER6};

/// A program on a host that prints one line when it is ready; killed when this is dropped.
struct Helper(Child, BufReader<std::process::ChildStdout>);

impl Helper {
    fn start(host: &Host, arguments: &[&str]) -> (Self, String) {
        let mut child = own_on(host, arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        out.read_line(&mut line).expect("it says that it is ready");
        (Self(child, out), line.trim().to_owned())
    }

    /// Close its stdin; returns its output. The program must succeed.
    fn end(mut self) -> String {
        drop(self.0.stdin.take());
        let mut output = String::new();
        self.1.read_to_string(&mut output).expect("it writes");
        assert!(self.0.wait().expect("it ends").success(), "{output}");
        output
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn own_on(host: &Host, arguments: &[&str]) -> Command {
    let own = std::env::current_exe().expect("own path");
    let mut command = host.command(own.to_str().expect("a path in UTF-8"));
    command.args(arguments);
    command
}

/// A counter of the host's `/proc/net/snmp`, by protocol and name.
fn counter(host: &Host, protocol: &str, name: &str) -> u64 {
    let output = host.command("cat").arg("/proc/net/snmp").output();
    let table = String::from_utf8(output.expect("cat starts").stdout).expect("text");
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|row| row[0] == protocol)
        .collect();
    let column = rows[0].iter().position(|word| *word == name);
    rows[1][column.expect("the kernel counts it")]
        .parse()
        .expect("a number")
}

/// Number of wrong checksums that the hosts have seen, including UDP over IPv6.
fn wrong_checksums(rig: &Rig) -> u64 {
    [&rig.client, &rig.server]
        .iter()
        .map(|host| {
            let output = host.command("cat").arg("/proc/net/snmp6").output();
            let table = String::from_utf8(output.expect("cat starts").stdout).expect("text");
            let six: u64 = table
                .lines()
                .filter_map(|line| line.strip_prefix("Udp6InCsumErrors"))
                .map(|number| number.trim().parse::<u64>().expect("a number"))
                .sum();
            six + counter(host, "Tcp:", "InCsumErrors") + counter(host, "Udp:", "InCsumErrors")
        })
        .sum()
}

fn mirror(rig: &Rig, host: &str, port: u64, length: u64) {
    let status = own_on(
        &rig.client,
        &["mirror", host, &port.to_string(), &length.to_string()],
    )
    .status();
    assert!(status.expect("the mirror starts").success(), "over {host}");
}

/// Super-packets pass uncut, cut in pieces, and cut into single segments.
pub(crate) fn checksums(rig: &Rig) {
    let before = wrong_checksums(rig);
    for both in [
        usual(0, 0),
        usual(1_000_000_000, 200_000),
        direction_parameters(60_000_000, 200_000, 1 << 28),
    ] {
        let mut link = drive::link(&both, &both);
        let ears = [&rig.client, &rig.server].map(|host| Helper::start(host, &["capture"]).0);
        for host in [SERVER, SERVER6] {
            let (_echo, port) = drive::echo_at(&rig.server, host);
            mirror(rig, host, port, 2_000_000);
            let (_receiver, port) = Helper::start(&rig.server, &["receive-datagrams", host]);
            let sent = own_on(&rig.client, &["send-datagrams", host, &port, "40"]).status();
            assert!(
                sent.expect("it starts").success(),
                "UDP over {host}, {both}"
            );
        }
        for ear in ears {
            let output = ear.end();
            let counts: Vec<u64> = output
                .split_whitespace()
                .map(|word| word.parse().expect("a count"))
                .collect();
            assert!(
                counts.iter().all(|count| *count > 50),
                "{output} with {both}"
            );
        }
        assert_eq!(drive::unmodelled(&drive::stats(&mut link)), 0);
    }
    assert_eq!(wrong_checksums(rig), before);
}

/// The receiving kernel detects flipped bits, and TCP retransmits the data. With a flipped bit in TCP's header length, a segment
/// may be refused before its checksum is verified.
pub(crate) fn corruption(rig: &Rig) {
    let (_echo, port) = drive::echo(&rig.server);
    let mut worse = usual(200_000_000, 1_000_000);
    worse["corrupt"] = json!(0.01);
    worse["seed"] = json!(7);
    let mut link = drive::link(&worse, &usual(200_000_000, 1_000_000));
    let before = counter(&rig.server, "Tcp:", "InCsumErrors");
    mirror(rig, SERVER, port, 6_000_000);
    let wrong_checksums = counter(&rig.server, "Tcp:", "InCsumErrors") - before;
    let stats = drive::stats(&mut link);
    let done = stats["to_server"]["corrupted"].as_u64().expect("a count");
    assert!(done > 10, "{stats}");
    assert!(
        wrong_checksums <= done && wrong_checksums * 10 >= done * 8,
        "{wrong_checksums} seen of {done}"
    );
    assert_eq!(drive::unmodelled(&stats), 0, "{stats}");
}
