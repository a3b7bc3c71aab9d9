//! Three network namespaces, owned by this process: client host, middle, server host. The middle is a new namespace in which this
//! process itself runs. The namespaces have no names and end with this process.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) const SERVER: &str = "10.77.0.2";
pub(crate) const SERVER6: &str = "fd77::2";
const CLIENT: &str = "10.77.0.1";
const CLIENT6: &str = "fd77::1";

/// A command in a new network namespace.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    if !is_root() {
        // A user namespace gives privileges over the network namespaces created in it.
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--net", "--"]);
    command
}

/// Start this program again in a new namespace, with the environment variable `marker`. Returns only on failure, with the reason.
pub(crate) fn enter_namespace(marker: &str) -> io::Error {
    match std::env::current_exe() {
        Ok(program) => unshare()
            .arg(program)
            .args(std::env::args().skip(1))
            .env(marker, "1")
            .exec(),
        Err(error) => error,
    }
}

/// Check whether this process can create namespaces and packet interfaces. The error gives the reason why not.
pub(crate) fn check_permitted() -> Result<(), String> {
    let output = unshare()
        .args("ip link add dev v0 type veth peer name v1".split(' '))
        .output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("unshare or ip cannot be started: {error}")),
    }
}

/// Run the same checks as user nobody in a user namespace, with only what the kernel allows any user. Returns whether they passed;
/// if they cannot be run, a message is printed and the result is true.
pub(crate) fn run_unprivileged(arguments: &[String]) -> bool {
    println!("as user 65534, without root");
    // The program's directory may not be readable by that user.
    let copy = std::env::temp_dir().join(format!("howfar-physics-{}", std::process::id()));
    let program = std::env::current_exe().expect("the program knows its path");
    fs::copy(program, &copy).expect("the program can be copied");
    let run = |arguments: &[String]| {
        Command::new("setpriv")
            .args([
                "--reuid",
                "65534",
                "--regid",
                "65534",
                "--clear-groups",
                "--",
            ])
            .arg(&copy)
            .args(arguments)
            .current_dir("/")
            .status()
    };
    let result = match run(&["start".to_owned()]) {
        Ok(status) if status.success() => run(arguments).is_ok_and(|status| status.success()),
        // An emulator may have the program's libraries in a directory that this user cannot enter.
        started => {
            println!("SKIPPED physics without root: the program cannot be started so: {started:?}");
            true
        }
    };
    let _ = fs::remove_file(&copy);
    result
}

pub(crate) fn is_root() -> bool {
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
    addresses: [&'static str; 2],
}

impl Host {
    fn new(cpu: &'static str, addresses: [&'static str; 2]) -> Self {
        let holder = Command::new("unshare")
            .args(["--net", "--", "cat"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("unshare starts");
        let own_namespace = fs::read_link("/proc/self/ns/net").expect("own namespace");
        let begin = Instant::now();
        while fs::read_link(format!("/proc/{}/ns/net", holder.id()))
            .is_ok_and(|namespace| namespace == own_namespace)
        {
            assert!(
                begin.elapsed() < Duration::from_secs(10),
                "the namespace of a host was not made"
            );
            std::thread::yield_now();
        }
        let host = Self {
            holder,
            cpu,
            addresses,
        };
        for (key, value) in [
            // Keep the kernel from sending IPv6 packets on its own.
            ("ipv6/conf/default/addr_gen_mode", "1"),
            ("ipv6/conf/default/accept_dad", "0"),
            ("ipv6/conf/default/router_solicitations", "0"),
            ("ipv4/tcp_rmem", "4096 131072 268435456"),
            ("ipv4/tcp_wmem", "4096 131072 268435456"),
            // Keep connections from starting with metrics of earlier connections to the same peer.
            ("ipv4/tcp_no_metrics_save", "1"),
        ] {
            run(host
                .command("sh")
                .args(["-c", &format!("echo {value} > /proc/sys/net/{key}")]));
        }
        // Addresses are on the loopback, so that they exist before and after any link.
        host.ip("link set dev lo up");
        host.ip(&format!("address add {}/32 dev lo", addresses[0]));
        host.ip(&format!("address add {}/128 dev lo nodad", addresses[1]));
        host
    }

    /// Set the routes to the other host and its Ethernet address.
    fn set_routes(&self, device: &str, peers: [&str; 2], mac: &str) {
        for (peer, own) in peers.into_iter().zip(self.addresses) {
            self.ip(&format!(
                "neighbour add {peer} lladdr {mac} dev {device} nud permanent"
            ));
            let route = format!("route add {peer} dev {device} src {own}");
            // Choosing the congestion control may be refused without root; then the machine's default applies.
            let mut command = self.command("ip");
            command.args(format!("{route} congctl cubic").split_whitespace());
            if !command.output().is_ok_and(|output| output.status.success()) {
                self.ip(&route);
            }
        }
    }

    fn ip(&self, arguments: &str) {
        run(self.command("ip").args(arguments.split_whitespace()));
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

/// The namespaces, joined by virtual cables: c0 - lc, ls - s0.
pub(crate) struct Rig {
    pub(crate) client: Host,
    pub(crate) server: Host,
}

impl Rig {
    pub(crate) fn new() -> Self {
        for key in ["all", "default"] {
            let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{key}/disable_ipv6"), "1");
        }
        let last_cpu = if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1) {
            "1"
        } else {
            "0"
        };
        let rig = Self {
            client: Host::new("0", [CLIENT, CLIENT6]),
            server: Host::new(last_cpu, [SERVER, SERVER6]),
        };
        add_cable("lc", &rig.client, ("c0", "02:00:00:00:00:01"));
        add_cable("ls", &rig.server, ("s0", "02:00:00:00:00:02"));
        rig.client
            .set_routes("c0", [SERVER, SERVER6], "02:00:00:00:00:02");
        rig.server
            .set_routes("s0", [CLIENT, CLIENT6], "02:00:00:00:00:01");
        rig
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // The kernel removes the hosts' namespaces later, but the next rig needs the names of these interfaces at once.
        ip("link delete dev lc");
        ip("link delete dev ls");
    }
}

/// Add a virtual cable from the interface `middle` to a new interface of the host.
fn add_cable(middle: &str, host: &Host, (name, mac): (&str, &str)) {
    ip(&format!(
        "link add dev {middle} mtu 1500 type veth peer name {name} netns {}",
        host.id()
    ));
    ip(&format!("link set dev {middle} arp off up"));
    host.ip(&format!(
        "link set dev {name} address {mac} mtu 1500 gso_max_size 65536"
    ));
    host.ip(&format!("link set dev {name} up"));
}

/// Run `ip` in the middle namespace.
pub(crate) fn ip(arguments: &str) {
    run(Command::new("ip").args(arguments.split_whitespace()));
}

/// Run a command, which must succeed.
fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
