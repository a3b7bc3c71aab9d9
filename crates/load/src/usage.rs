//! Measures CPU time and context switches of processes and all their descendants, from /proc.
//!
//! A thread that is not under load reads them at both ends of the measured window. The time of a thread that ends inside the window is
//! lost, but servers keep a connection's thread until the connection ends, which is after the window. The time of a process that
//! ends is added to its parent when it is waited for, in clock ticks: this counts servers and forwarders that fork for each
//! connection.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

use howfar_contract::events::CpuUse;
use howfar_contract::jobs::Observed;
use howfar_contract::{FailCode, Failed};

/// Role of the engine itself.
const ENGINE_ROLE: &str = "client";

#[derive(Debug, Clone, Copy, Default)]
struct Thread {
    /// The process that the thread belongs to.
    pid: u32,
    cpu_ns: u64,
    wait_ns: u64,
    voluntary: u64,
    involuntary: u64,
}

/// All threads of a role at one moment, by their ids.
#[derive(Debug, Default)]
struct Threads {
    alive: BTreeMap<u32, Thread>,
    /// CPU time of each process's children that have ended.
    ended_ns: BTreeMap<u32, u64>,
}

impl Threads {
    /// CPU time of children that ended between `earlier` and `self`, except the time that `earlier` counted while they ran.
    fn ended_since(&self, earlier: &Self) -> u64 {
        let total_ns = |threads: &Self| threads.ended_ns.values().sum::<u64>();
        let ended_threads = earlier.alive.values();
        let ended_threads = ended_threads.filter(|thread| !self.ended_ns.contains_key(&thread.pid));
        let counted_ns: u64 = ended_threads.map(|thread| thread.cpu_ns).sum();
        total_ns(self).saturating_sub(total_ns(earlier) + counted_ns)
    }
}

/// The threads of all roles at one moment, in the order of the report.
#[derive(Debug)]
pub(crate) struct Usage {
    roles: Vec<(String, Threads)>,
}

impl Usage {
    /// Read at the start of the window: the engine's own threads last, so that the cost of reading a server with many threads is
    /// not counted.
    pub(crate) fn at_start(observe: &[Observed]) -> Result<Self, Failed> {
        let mut roles = read_observed_roles(observe)?;
        roles.insert(0, read_own_threads()?);
        Ok(Self { roles })
    }

    /// Read at the end of the window: the engine's own threads first, for the same reason.
    pub(crate) fn at_end(observe: &[Observed]) -> Result<Self, Failed> {
        let mut roles = vec![read_own_threads()?];
        roles.extend(read_observed_roles(observe)?);
        Ok(Self { roles })
    }

    /// The usage since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Vec<CpuUse> {
        let no_threads = Threads::default();
        self.roles
            .iter()
            .map(|(role, threads)| {
                let before = earlier
                    .roles
                    .iter()
                    .find(|(name, _)| name == role)
                    .map_or(&no_threads, |(_, threads)| threads);
                difference(role, before, threads)
            })
            .collect()
    }
}

fn read_own_threads() -> Result<(String, Threads), Failed> {
    let observed = Observed {
        role: ENGINE_ROLE.to_owned(),
        pid: std::process::id(),
    };
    let threads =
        read_process_tree(observed.pid).map_err(|error| unreadable_failure(&observed, &error))?;
    Ok((observed.role, threads))
}

fn read_observed_roles(observe: &[Observed]) -> Result<Vec<(String, Threads)>, Failed> {
    let mut roles: Vec<(String, Threads)> = Vec::new();
    for observed in observe {
        let threads = read_process_tree(observed.pid)
            .map_err(|error| unreadable_failure(observed, &error))?;
        match roles.iter_mut().find(|(role, _)| *role == observed.role) {
            Some((_, known_threads)) => {
                known_threads.alive.extend(threads.alive);
                known_threads.ended_ns.extend(threads.ended_ns);
            }
            None => roles.push((observed.role.clone(), threads)),
        }
    }
    Ok(roles)
}

fn difference(role: &str, before: &Threads, after: &Threads) -> CpuUse {
    let mut usage = CpuUse {
        role: role.to_owned(),
        threads: after.alive.len() as u32,
        cpu_ns: after.ended_since(before),
        ..CpuUse::default()
    };
    for (id, current) in &after.alive {
        // A thread that is not in `before` began inside the window.
        let earlier = before.alive.get(id).copied().unwrap_or_default();
        let cpu_ns = current.cpu_ns.saturating_sub(earlier.cpu_ns);
        usage.cpu_ns += cpu_ns;
        usage.busiest_thread_ns = usage.busiest_thread_ns.max(cpu_ns);
        usage.runnable_wait_ns += current.wait_ns.saturating_sub(earlier.wait_ns);
        usage.voluntary_switches += current.voluntary.saturating_sub(earlier.voluntary);
        usage.involuntary_switches += current.involuntary.saturating_sub(earlier.involuntary);
    }
    usage
}

/// Threads of a process and of all its descendants.
fn read_process_tree(root: u32) -> io::Result<Threads> {
    let mut threads = Threads::default();
    let mut known_pids = BTreeSet::from([root]);
    let mut unread_pids = vec![root];
    while let Some(pid) = unread_pids.pop() {
        let entries = match fs::read_dir(format!("/proc/{pid}/task")) {
            Ok(entries) => entries,
            // A descendant may end during the reading; the process that the job names may not.
            Err(_) if pid != root => continue,
            Err(error) => return Err(error),
        };
        threads.ended_ns.insert(pid, ended_children_ns(pid));
        for entry in entries {
            let Some(id) = entry?
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<u32>().ok())
            else {
                continue;
            };
            let task = format!("/proc/{pid}/task/{id}");
            match read_thread(pid, &task) {
                Ok(thread) => drop(threads.alive.insert(id, thread)),
                Err(error) if is_gone(&error) => continue,
                Err(error) => return Err(error),
            }
            let children = fs::read_to_string(format!("{task}/children")).unwrap_or_default();
            unread_pids.extend(
                children
                    .split_whitespace()
                    .filter_map(|child| child.parse().ok())
                    .filter(|&child| known_pids.insert(child)),
            );
        }
    }
    Ok(threads)
}

/// Whether a thread ended after it was listed: its files are gone, or were open already and fail to be read.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// CPU time of the children of `pid` that have ended and were waited for, and of their children; 0 if `pid` itself has ended.
fn ended_children_ns(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before the last parenthesis may hold any characters. After it, cutime and cstime are the fields 14 and 15.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = fields
        .split_whitespace()
        .skip(13)
        .take(2)
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum();
    ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second()
}

fn read_thread(pid: u32, task: &str) -> io::Result<Thread> {
    let schedstat = fs::read_to_string(format!("{task}/schedstat"))?;
    let mut numbers = schedstat
        .split_whitespace()
        .map(|number| number.parse::<u64>().unwrap_or(0));
    let status = fs::read_to_string(format!("{task}/status"))?;
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .and_then(|rest| rest.trim().parse().ok())
            .unwrap_or(0)
    };
    Ok(Thread {
        pid,
        cpu_ns: numbers.next().unwrap_or(0),
        wait_ns: numbers.next().unwrap_or(0),
        voluntary: field("voluntary_ctxt_switches:"),
        involuntary: field("nonvoluntary_ctxt_switches:"),
    })
}

fn unreadable_failure(observed: &Observed, error: &io::Error) -> Failed {
    let Observed { role, pid } = observed;
    if error.kind() == io::ErrorKind::PermissionDenied {
        return Failed::new(
            FailCode::NotPermitted,
            format!("CPU time of {role} (process {pid}) may not be read: {error}"),
            "Run as the user of that process or as root, with a /proc that shows it.",
        );
    }
    Failed::new(
        FailCode::ServerGone,
        format!("CPU time of {role} (process {pid}) could not be read: {error}"),
        "The process ended, or /proc does not show it: look into its log.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that work between two readings is counted, but not how much time it took.
    #[test]
    fn own_time_and_a_childs_time_are_counted() {
        let mut child = std::process::Command::new("sleep")
            .arg("5")
            .spawn()
            .expect("sleep exists everywhere");
        let observe = [Observed {
            role: "forwarder".to_owned(),
            pid: child.id(),
        }];
        let before = Usage::at_start(&observe).expect("/proc is readable");
        let mut value = 1_u64;
        while Usage::at_end(&[])
            .expect("/proc is readable")
            .since(&before)[0]
            .cpu_ns
            < 2_000_000
        {
            value = std::hint::black_box(value.wrapping_mul(3));
        }
        let used = Usage::at_end(&observe)
            .expect("/proc is readable")
            .since(&before);
        child.kill().expect("the child runs");
        child.wait().expect("the child can be waited for");
        assert_eq!(
            used.iter()
                .map(|usage| usage.role.as_str())
                .collect::<Vec<_>>(),
            ["client", "forwarder"]
        );
        assert!(used[0].busiest_thread_ns <= used[0].cpu_ns);
        assert!(used[0].threads >= 1 && used[1].threads == 1);
    }

    /// As with a server that forks for each connection, no child is left at the second reading.
    #[test]
    fn time_of_ended_children_is_counted_once() {
        let burn = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        let mut parent = std::process::Command::new("sh")
            .args([
                "-c",
                &format!("read go; sh -c '{burn}'; sh -c '{burn}'; echo done; read end"),
            ])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("a shell exists everywhere");
        let observe = [Observed {
            role: "server".to_owned(),
            pid: parent.id(),
        }];
        let before = Usage::at_start(&observe).expect("/proc is readable");
        let mut stdin = parent.stdin.take().expect("the stream is piped");
        std::io::Write::write_all(&mut stdin, b"go\n").expect("the shell reads");
        let mut line = String::new();
        let stdout = parent.stdout.take().expect("the stream is piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line)
            .expect("the shell writes");
        let after = Usage::at_end(&observe).expect("/proc is readable");
        drop(stdin);
        parent.wait().expect("the child can be waited for");
        let used = after.since(&before)[1].clone();
        assert!(used.cpu_ns >= 20_000_000, "{used:?}");
        assert_eq!(
            after.since(&after)[1].cpu_ns,
            0,
            "children that ended before the reading do not count"
        );
    }

    #[test]
    fn a_missing_process_is_named() {
        let observe = [Observed {
            role: "server".to_owned(),
            pid: 0x7FFF_FFFE,
        }];
        let failed = Usage::at_end(&observe).expect_err("the process does not exist");
        assert!(failed.message.contains("server"), "{}", failed.message);
    }
}
