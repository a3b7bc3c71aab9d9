//! Checks of the packets that arrive: TCP and UDP over IPv4 and IPv6 are intact, and checksums are wrong only if that was
//! requested.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};

use serde_json::json;

use crate::drive::{self, direction_parameters, own_command_on, usual_direction};
use crate::rig::{Host, Rig, SERVER, SERVER6};

/// A program on a host that prints a line when it is ready; killed when this is dropped.
struct Helper {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Helper {
    /// Start a program; returns it and the line that it prints.
    fn start(host: &Host, arguments: &[&str]) -> (Self, String) {
        let mut child = own_command_on(host, arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the helper starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut line = String::new();
        stdout
            .read_line(&mut line)
            .expect("the helper prints that it is ready");
        (Self { child, stdout }, line.trim().to_owned())
    }

    /// Close its stdin; returns its output. The program must succeed.
    fn end(mut self) -> String {
        drop(self.child.stdin.take());
        let mut output = String::new();
        self.stdout
            .read_to_string(&mut output)
            .expect("the helper prints text");
        let status = self.child.wait().expect("the helper ends");
        assert!(status.success(), "{output}");
        output
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Read a counter of the host's `/proc/net/snmp`, by protocol and name.
fn read_counter(host: &Host, protocol: &str, name: &str) -> u64 {
    let output = host.command("cat").arg("/proc/net/snmp").output();
    let table = String::from_utf8(output.expect("cat starts").stdout).expect("the table is text");
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
fn count_wrong_checksums(rig: &Rig) -> u64 {
    [&rig.client, &rig.server]
        .iter()
        .map(|host| {
            let output = host.command("cat").arg("/proc/net/snmp6").output();
            let table =
                String::from_utf8(output.expect("cat starts").stdout).expect("the table is text");
            let udp6: u64 = table
                .lines()
                .filter_map(|line| line.strip_prefix("Udp6InCsumErrors"))
                .map(|number| number.trim().parse::<u64>().expect("a number"))
                .sum();
            udp6 + read_counter(host, "Tcp:", "InCsumErrors")
                + read_counter(host, "Udp:", "InCsumErrors")
        })
        .sum()
}

/// Run the mirror; it must succeed.
fn mirror(rig: &Rig, host: &str, port: u64, length: u64) {
    let status = drive::start_mirror(rig, host, port, length).wait();
    assert!(status.expect("the mirror ends").success(), "over {host}");
}

/// Super-packets pass uncut, cut in pieces, and cut into single segments.
pub(crate) fn checksums(rig: &Rig) {
    let wrong_before = count_wrong_checksums(rig);
    for direction in [
        usual_direction(0, 0),
        usual_direction(1_000_000_000, 200_000),
        direction_parameters(60_000_000, 200_000, 1 << 28),
    ] {
        let mut link = drive::start_link(&direction, &direction);
        let captures = [&rig.client, &rig.server].map(|host| Helper::start(host, &["capture"]).0);
        for host in [SERVER, SERVER6] {
            let (_echo, port) = drive::start_echo_at(&rig.server, host);
            mirror(rig, host, port, 2_000_000);
            let (_receiver, port) = Helper::start(&rig.server, &["receive-datagrams", host]);
            let arguments = ["send-datagrams", host, &port, "40"];
            let status = own_command_on(&rig.client, &arguments).status();
            assert!(
                status.expect("the sender starts").success(),
                "UDP over {host}, {direction}"
            );
        }
        for capture in captures {
            let output = capture.end();
            let counts: Vec<u64> = output
                .split_whitespace()
                .map(|word| word.parse().expect("a count"))
                .collect();
            assert!(
                counts.iter().all(|count| *count > 50),
                "{output} with {direction}"
            );
        }
        assert_eq!(
            drive::count_unmodelled_drops(&drive::read_stats(&mut link)),
            0
        );
    }
    assert_eq!(count_wrong_checksums(rig), wrong_before);
}

/// The receiving kernel detects flipped bits, and TCP retransmits the data. With a flipped bit in TCP's header length, a segment
/// may be refused before its checksum is verified.
pub(crate) fn corruption(rig: &Rig) {
    let (_echo, port) = drive::start_echo(&rig.server);
    let mut corrupting = usual_direction(200_000_000, 1_000_000);
    corrupting["corrupt"] = json!(0.01);
    corrupting["seed"] = json!(7);
    let mut link = drive::start_link(&corrupting, &usual_direction(200_000_000, 1_000_000));
    let wrong_before = read_counter(&rig.server, "Tcp:", "InCsumErrors");
    mirror(rig, SERVER, port, 6_000_000);
    let wrong = read_counter(&rig.server, "Tcp:", "InCsumErrors") - wrong_before;
    let stats = drive::read_stats(&mut link);
    let corrupted = stats["to_server"]["corrupted"].as_u64().expect("a count");
    assert!(corrupted > 10, "{stats}");
    assert!(
        wrong <= corrupted && wrong * 10 >= corrupted * 8,
        "{wrong} wrong checksums for {corrupted} corrupted segments"
    );
    assert_eq!(drive::count_unmodelled_drops(&stats), 0, "{stats}");
}
