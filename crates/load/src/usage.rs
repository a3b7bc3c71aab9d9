//! CPU time and context switches of processes and all their descendants, from /proc.
//!
//! Read at both ends of the measured window, by a thread that is not under load. A thread that ends inside the window takes
//! its time with it: servers keep a connection's thread until the connection ends, which is after the window.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

use howfar_contract::events::CpuUse;
use howfar_contract::jobs::Observed;
use howfar_contract::{FailCode, Failed};

/// Role of the engine itself.
const OURS: &str = "client";

#[derive(Debug, Clone, Copy, Default)]
struct Thread {
    cpu_ns: u64,
    wait_ns: u64,
    voluntary: u64,
    involuntary: u64,
}

/// All threads of a role at one moment.
type Threads = BTreeMap<u32, Thread>;

/// All roles at one moment, in the order in which they are told.
#[derive(Debug)]
pub(crate) struct Usage {
    roles: Vec<(String, Threads)>,
}

impl Usage {
    /// At the start of the window: the engine's own threads last, so that looking at a server of many threads is not counted.
    pub(crate) fn at_start(observe: &[Observed]) -> Result<Self, Failed> {
        let mut roles = observed(observe)?;
        roles.insert(0, own()?);
        Ok(Self { roles })
    }

    /// At its end: for the same reason the engine's own threads first.
    pub(crate) fn at_end(observe: &[Observed]) -> Result<Self, Failed> {
        let mut roles = vec![own()?];
        roles.extend(observed(observe)?);
        Ok(Self { roles })
    }

    /// What was used since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Vec<CpuUse> {
        let none = Threads::new();
        self.roles
            .iter()
            .map(|(role, threads)| {
                let before = earlier
                    .roles
                    .iter()
                    .find(|(name, _)| name == role)
                    .map_or(&none, |(_, threads)| threads);
                difference(role, before, threads)
            })
            .collect()
    }
}

fn own() -> Result<(String, Threads), Failed> {
    let one = Observed {
        role: OURS.to_owned(),
        pid: std::process::id(),
    };
    let threads = tree(one.pid).map_err(|error| unreadable(&one, &error))?;
    Ok((one.role, threads))
}

fn observed(observe: &[Observed]) -> Result<Vec<(String, Threads)>, Failed> {
    let mut roles: Vec<(String, Threads)> = Vec::new();
    for one in observe {
        let threads = tree(one.pid).map_err(|error| unreadable(one, &error))?;
        match roles.iter_mut().find(|(role, _)| *role == one.role) {
            Some((_, known)) => known.extend(threads),
            None => roles.push((one.role.clone(), threads)),
        }
    }
    Ok(roles)
}

fn difference(role: &str, before: &Threads, after: &Threads) -> CpuUse {
    let mut sum = CpuUse {
        role: role.to_owned(),
        threads: after.len() as u32,
        ..CpuUse::default()
    };
    for (id, now) in after {
        // A thread that is new began inside the window.
        let then = before.get(id).copied().unwrap_or_default();
        let cpu_ns = now.cpu_ns.saturating_sub(then.cpu_ns);
        sum.cpu_ns += cpu_ns;
        sum.busiest_thread_ns = sum.busiest_thread_ns.max(cpu_ns);
        sum.runnable_wait_ns += now.wait_ns.saturating_sub(then.wait_ns);
        sum.voluntary_switches += now.voluntary.saturating_sub(then.voluntary);
        sum.involuntary_switches += now.involuntary.saturating_sub(then.involuntary);
    }
    sum
}

/// Threads of a process and of all its descendants.
fn tree(root: u32) -> io::Result<Threads> {
    let mut threads = Threads::new();
    let mut seen = BTreeSet::from([root]);
    let mut left = vec![root];
    while let Some(pid) = left.pop() {
        let entries = match fs::read_dir(format!("/proc/{pid}/task")) {
            Ok(entries) => entries,
            // A descendant may end while we look; the process that was named may not.
            Err(_) if pid != root => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let Some(id) = entry?
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<u32>().ok())
            else {
                continue;
            };
            let task = format!("/proc/{pid}/task/{id}");
            match thread(&task) {
                Ok(thread) => drop(threads.insert(id, thread)),
                Err(error) if is_gone(&error) => continue,
                Err(error) => return Err(error),
            }
            let children = fs::read_to_string(format!("{task}/children")).unwrap_or_default();
            left.extend(
                children
                    .split_whitespace()
                    .filter_map(|child| child.parse().ok())
                    .filter(|&child| seen.insert(child)),
            );
        }
    }
    Ok(threads)
}

/// A thread that ended between the listing and the look: its files are gone, or were open already and answer no more.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

fn thread(task: &str) -> io::Result<Thread> {
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
        cpu_ns: numbers.next().unwrap_or(0),
        wait_ns: numbers.next().unwrap_or(0),
        voluntary: field("voluntary_ctxt_switches:"),
        involuntary: field("nonvoluntary_ctxt_switches:"),
    })
}

fn unreadable(one: &Observed, error: &io::Error) -> Failed {
    let role = &one.role;
    let pid = one.pid;
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

    /// Work between two readings shows up; nothing else of the clock is judged.
    #[test]
    fn own_time_and_a_childs_time_are_seen() {
        let mut child = std::process::Command::new("sleep")
            .arg("5")
            .spawn()
            .expect("sleep exists everywhere");
        let observe = [Observed {
            role: "forwarder".to_owned(),
            pid: child.id(),
        }];
        let before = Usage::at_start(&observe).expect("readable");
        let mut value = 1_u64;
        while Usage::at_end(&[]).expect("readable").since(&before)[0].cpu_ns < 2_000_000 {
            value = std::hint::black_box(value.wrapping_mul(3));
        }
        let used = Usage::at_end(&observe).expect("readable").since(&before);
        child.kill().expect("it runs");
        child.wait().expect("it was ours");
        assert_eq!(
            used.iter().map(|one| one.role.as_str()).collect::<Vec<_>>(),
            ["client", "forwarder"]
        );
        assert!(used[0].busiest_thread_ns <= used[0].cpu_ns);
        assert!(used[0].threads >= 1 && used[1].threads == 1);
    }

    #[test]
    fn a_process_that_is_not_there_is_told() {
        let observe = [Observed {
            role: "server".to_owned(),
            pid: 0x7FFF_FFFE,
        }];
        let failed = Usage::at_end(&observe).expect_err("no such process");
        assert!(failed.message.contains("server"), "{}", failed.message);
    }
}
