//! Whether the application that connects here still runs: it has a mount namespace of its own.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::end::now_ns;
use crate::pass::Passer;

/// How often an orphan looks.
const LOOK_NS: u64 = 500_000_000;

/// The application, by its mount namespace; by default one of which nothing is known. The namespace is held open: its number would
/// be given to another one as soon as it is gone.
#[derive(Debug, Default)]
pub(crate) struct Application {
    namespace: Option<File>,
}

impl Application {
    /// The one whose namespace has this number; a process of it runs.
    pub(crate) fn of(number: u64) -> Self {
        let is_it = |file: &File| file.metadata().is_ok_and(|found| found.ino() == number);
        let mut found = namespaces().filter_map(|path| File::open(path).ok());
        Self {
            namespace: found.find(is_it),
        }
    }

    /// The one whose namespace another process has opened.
    pub(crate) fn held(namespace: Option<OwnedFd>) -> Self {
        Self {
            namespace: namespace.map(File::from),
        }
    }

    pub(crate) fn namespace(&self) -> Option<BorrowedFd<'_>> {
        self.namespace.as_ref().map(AsFd::as_fd)
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
        let held = self
            .namespace
            .as_ref()
            .and_then(|file| file.metadata().ok());
        held.is_some_and(|ours| {
            namespaces().any(|path| fs::metadata(path).is_ok_and(|one| one.ino() == ours.ino()))
        })
    }
}

/// The mount namespaces of all processes.
fn namespaces() -> impl Iterator<Item = PathBuf> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter(|process| process.file_name().as_encoded_bytes()[0].is_ascii_digit())
        .map(|process| process.path().join("ns/mnt"))
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
