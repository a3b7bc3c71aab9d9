//! Socket options that the safe wrappers do not know.
#![allow(unsafe_code)] // getsockopt takes a pointer; this file holds nothing else

use std::os::fd::{AsFd, AsRawFd};

/// `TCP_MAXSEG`: payload bytes of a full segment; `None` when the socket has none.
pub(crate) fn max_segment(socket: impl AsFd) -> Option<u32> {
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the descriptor is borrowed for the call, and value and length live on this stack frame with the sizes given.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_MAXSEG,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    (answer == 0 && value > 0).then_some(value as u32)
}
