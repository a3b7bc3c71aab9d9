//! Whether the application that connects here still runs: it has a mount namespace of its own.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::end::now_ns;
use crate::pass::Passer;

/// How often an orphan looks.
const LOOK_NS: u64 = 500_000_000;

/// The application, by its mount namespace; by default one of which nothing is known.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Application {
    namespace: Option<u64>,
}

impl Application {
    pub(crate) const fn of(namespace: u64) -> Self {
        Self {
            namespace: Some(namespace),
        }
    }

    /// Pass connections on until none is open and no process of the application is left.
    pub(crate) fn serve(&self, passer: &mut Passer) -> io::Result<()> {
        let mut look_ns = now_ns();
        loop {
            passer.turn(Some(LOOK_NS))?;
            if passer.open() == 0 && now_ns() >= look_ns {
                if !self.runs() {
                    return Ok(());
                }
                look_ns = now_ns() + LOOK_NS;
            }
        }
    }

    fn runs(&self) -> bool {
        let Some(namespace) = self.namespace else {
            return false;
        };
        let Ok(processes) = fs::read_dir("/proc") else {
            return false;
        };
        processes.flatten().any(|process| {
            process.file_name().as_encoded_bytes()[0].is_ascii_digit()
                && fs::metadata(process.path().join("ns/mnt"))
                    .is_ok_and(|found| found.ino() == namespace)
        })
    }
}

/// As many descriptors as this process may have.
pub(crate) fn raise_limits() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
}
