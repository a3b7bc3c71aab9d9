//! Signals that end a program, awaited by a thread so that the program can close its sessions first.
#![allow(unsafe_code)] // the calls take pointers; this file holds nothing else

use std::mem::zeroed;
use std::ptr::{null, null_mut};

/// The signals among SIGINT, SIGTERM and SIGHUP that are not ignored.
#[derive(Clone, Copy)]
pub(crate) struct EndingSignals(libc::sigset_t);

impl EndingSignals {
    /// Block the signals: from now on they end neither this thread nor those that it starts.
    pub(crate) fn block() -> Self {
        // SAFETY: set and action are plain values on this stack frame, for which all zeros are valid; a null pointer means "do not
        // change" or "do not return".
        unsafe {
            let mut set: libc::sigset_t = zeroed();
            libc::sigemptyset(&raw mut set);
            for number in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                let mut action: libc::sigaction = zeroed();
                libc::sigaction(number, null(), &raw mut action);
                if action.sa_sigaction != libc::SIG_IGN {
                    libc::sigaddset(&raw mut set, number);
                }
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, null_mut());
            Self(set)
        }
    }

    /// Wait until one of the signals arrives.
    pub(crate) fn wait(self) {
        let mut number = 0;
        // SAFETY: both live on this stack frame.
        unsafe {
            libc::sigwait(&raw const self.0, &raw mut number);
        }
    }
}
