//! Finds whether the application that connects here still runs, by its own mount namespace.

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::process::{Resource, getrlimit, setrlimit};

/// The application, identified by its mount namespace; unknown by default. The namespace stays open, because otherwise its number
/// could be reused after its end.
#[derive(Debug, Default)]
pub(crate) struct Application {
    namespace: Option<File>,
}

impl Application {
    /// The application whose namespace has this number; one of its processes must be running.
    pub(crate) fn open(number: u64) -> Self {
        let mut files = namespaces().filter_map(|path| File::open(path).ok());
        Self {
            namespace: files.find(|file| file.metadata().is_ok_and(|data| data.ino() == number)),
        }
    }

    /// The application whose namespace another process has opened.
    pub(crate) fn from_descriptor(namespace: Option<OwnedFd>) -> Self {
        Self {
            namespace: namespace.map(File::from),
        }
    }

    pub(crate) fn namespace(&self) -> Option<BorrowedFd<'_>> {
        self.namespace.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn is_running(&self) -> bool {
        let metadata = |file: &File| file.metadata().ok();
        let Some(own) = self.namespace.as_ref().and_then(metadata) else {
            return false;
        };
        namespaces().any(|path| fs::metadata(path).is_ok_and(|other| other.ino() == own.ino()))
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

/// Raise the limit on open descriptors to the maximum for this process.
pub(crate) fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
