//! Socket options that the safe wrappers lack or expose only in part.
#![allow(unsafe_code)] // getsockopt takes a pointer; this file holds nothing else

use std::os::fd::{AsFd, AsRawFd};

/// `TCP_MAXSEG`: payload bytes of a full segment; `None` if the socket has no such limit.
pub(crate) fn max_segment(socket: impl AsFd) -> Option<u32> {
    let (value, _): (libc::c_int, _) = get_option(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG, 0)?;
    (value > 0).then_some(value as u32)
}

/// `SO_PEERCRED`: the process at the other end of a Unix socket when it listened; `None` if that process is in another PID namespace
/// and so has no number here.
pub(crate) fn peer_pid(socket: impl AsFd) -> Option<u32> {
    let zeros: [libc::c_int; 3] = [0; 3];
    let (peer, _) = get_option(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, zeros)?;
    u32::try_from(peer[0]).ok().filter(|pid| *pid > 0)
}

/// Read an option whose value is one or more integers into `value`; also returns the number of bytes that the kernel filled. `None`
/// if the socket does not have the option.
pub(crate) fn get_option<T>(
    socket: impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    mut value: T,
) -> Option<(T, usize)> {
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the descriptor is borrowed for the call, and value and length live on this stack frame with the sizes given; each
    // caller's value is made of integers, for which any bytes are a value (`ucred` is three of them).
    let answer = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    (answer == 0).then_some((value, length as usize))
}
