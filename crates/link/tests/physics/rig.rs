//! Three network namespaces in a row, owned by this process: client host, middle, server host. The middle is the namespace
//! of this process itself, a new one. Nothing has a name outside, and all of it ends with this process.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const SERVER: &str = "10.77.0.2";

/// Enter new namespaces by starting this program again in them. Returns only on failure, with the reason.
pub(crate) fn enter(inside: &str) -> io::Error {
    let mut command = Command::new("unshare");
    // Without root a user namespace gives the rights over the network namespaces made in it.
    command.args(if is_root() {
        &["--net"][..]
    } else {
        &["--user", "--map-root-user", "--net"]
    });
    match std::env::current_exe() {
        Ok(own) => command
            .arg("--")
            .arg(own)
            .args(std::env::args().skip(1))
            .env(inside, "1")
            .exec(),
        Err(error) => error,
    }
}

/// Can namespaces and packet interfaces be had here? The error says why not.
pub(crate) fn permitted() -> Result<(), String> {
    let kind: &[&str] = if is_root() {
        &["--net"]
    } else {
        &["--user", "--map-root-user", "--net"]
    };
    let tried = Command::new("unshare")
        .args(kind)
        .args([
            "--", "ip", "link", "add", "dev", "v0", "type", "veth", "peer", "name", "v1",
        ])
        .output();
    match tried {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("unshare or ip cannot be started: {error}")),
    }
}

fn is_root() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        status
            .lines()
            .any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"))
    })
}

/// A network namespace held open by a child that waits for its stdin to end.
pub(crate) struct Host {
    holder: Child,
    pub(crate) cpu: &'static str,
}

impl Host {
    fn make(cpu: &'static str) -> Self {
        let holder = Command::new("unshare")
            .args(["--net", "--", "cat"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("unshare starts");
        let own = fs::read_link("/proc/self/ns/net").expect("own namespace");
        let begin = Instant::now();
        while fs::read_link(format!("/proc/{}/ns/net", holder.id())).is_ok_and(|other| other == own)
        {
            assert!(
                begin.elapsed() < Duration::from_secs(10),
                "the namespace of a host was not made"
            );
            std::thread::yield_now();
        }
        let host = Self { holder, cpu };
        for (key, value) in [
            ("ipv6/conf/all/disable_ipv6", "1"),
            ("ipv6/conf/default/disable_ipv6", "1"),
            ("ipv4/tcp_rmem", "4096 131072 268435456"),
            ("ipv4/tcp_wmem", "4096 131072 268435456"),
            // Every connection begins as if the host had never talked to that peer before.
            ("ipv4/tcp_no_metrics_save", "1"),
        ] {
            done(
                host.command("sh")
                    .args(["-c", &format!("echo {value} > /proc/sys/net/{key}")]),
            );
        }
        host
    }

    fn id(&self) -> String {
        self.holder.id().to_string()
    }

    /// A command that will run on this host.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("taskset");
        command.args([
            "-c",
            self.cpu,
            "nsenter",
            "--target",
            &self.id(),
            "--net",
            "--",
            program,
        ]);
        command
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// The row of namespaces, joined by virtual cables: c0 - lc, ls - s0.
pub(crate) struct Rig {
    pub(crate) client: Host,
    pub(crate) server: Host,
}

impl Rig {
    pub(crate) fn make() -> Self {
        for key in ["all", "default"] {
            let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{key}/disable_ipv6"), "1");
        }
        let last = if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1) {
            "1"
        } else {
            "0"
        };
        let rig = Self {
            client: Host::make("0"),
            server: Host::make(last),
        };
        Self::join(
            "lc",
            &rig.client,
            "c0",
            ("10.77.0.1", "02:00:00:00:00:01"),
            (SERVER, "02:00:00:00:00:02"),
        );
        Self::join(
            "ls",
            &rig.server,
            "s0",
            (SERVER, "02:00:00:00:00:02"),
            ("10.77.0.1", "02:00:00:00:00:01"),
        );
        rig
    }

    fn join(middle: &str, host: &Host, name: &str, own: (&str, &str), peer: (&str, &str)) {
        let ip = |args: &str| done(Command::new("ip").args(args.split_whitespace()));
        let inside = |args: String| done(host.command("ip").args(args.split_whitespace()));
        ip(&format!(
            "link add dev {middle} mtu 1500 type veth peer name {name} netns {}",
            host.id()
        ));
        ip(&format!("link set dev {middle} arp off up"));
        inside(format!(
            "link set dev {name} address {} mtu 1500 gso_max_size 65536",
            own.1
        ));
        inside(format!("link set dev {name} up"));
        inside(format!("address add {}/30 dev {name}", own.0));
        inside(format!(
            "neighbour add {} lladdr {} dev {name} nud permanent",
            peer.0, peer.1
        ));
        inside(format!(
            "route change 10.77.0.0/30 dev {name} src {} congctl cubic",
            own.0
        ));
    }
}

/// Run to the end; a failure is a fault of the rig.
fn done(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
