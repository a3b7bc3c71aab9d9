//! System calls without a safe wrapper in our libraries: packet sockets, scheduling classes and TCP statistics.
#![allow(unsafe_code)] // Raw libc calls; every pointer given to the kernel is to a local that outlives the call.

use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{addr_of, addr_of_mut, from_mut, from_ref};

use libc::{c_int, c_uint, c_void};

/// Metadata of one received packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received {
    pub(crate) length: usize,
    /// Real-time clock in nanoseconds, taken by the kernel when the sender handed the packet over.
    pub(crate) stamp: Option<i128>,
    /// The packet was longer than the buffer.
    pub(crate) truncated: bool,
}

fn check_result(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// The index of an interface in the current network namespace.
pub(crate) fn interface_index(name: &str) -> io::Result<c_int> {
    let name = CString::new(name).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: the name ends with a zero byte.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(index as c_int)
    }
}

/// A packet socket that receives and sends nothing until it is bound.
pub(crate) fn packet_socket() -> io::Result<OwnedFd> {
    // SAFETY: plain system call; a new descriptor has no other owner.
    unsafe {
        let fd = check_result(libc::socket(
            libc::AF_PACKET,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
            0,
        ))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Set an option whose value is a C int.
pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: c_int,
) -> io::Result<()> {
    // SAFETY: the value is a local int and its length is given.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            from_ref(&value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    check_result(result).map(drop)
}

/// Attach a packet socket to an interface; with `protocol` 0 it receives nothing.
pub(crate) fn bind_packet(fd: BorrowedFd<'_>, interface: c_int, protocol: u16) -> io::Result<()> {
    // SAFETY: sockaddr_ll is plain data, and its length is given.
    let result = unsafe {
        let mut address: libc::sockaddr_ll = zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol.to_be();
        address.sll_ifindex = interface;
        libc::bind(
            fd.as_raw_fd(),
            from_ref(&address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    check_result(result).map(drop)
}

/// Get an option.
///
/// # Safety
/// Any bytes must be a valid `T`. The kernel writes at most its size; what it does not write is zero.
unsafe fn get_option<T>(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<T> {
    // SAFETY: the value is a local whose length is given.
    unsafe {
        let mut value: T = zeroed();
        let mut length = size_of::<T>() as libc::socklen_t;
        check_result(libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            from_mut(&mut value).cast(),
            &raw mut length,
        ))?;
        Ok(value)
    }
}

/// Packets that the socket had no room for since the last call.
pub(crate) fn packet_drops(fd: BorrowedFd<'_>) -> io::Result<u64> {
    // SAFETY: tpacket_stats is plain data.
    let stats: libc::tpacket_stats =
        unsafe { get_option(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS) }?;
    Ok(u64::from(stats.tp_drops))
}

/// Receive one packet without waiting.
pub(crate) fn receive(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    // u64 elements, for the alignment of the control messages.
    let mut control = [0_u64; 16];
    // SAFETY: both buffers are valid for their lengths during the call; the control messages are walked with libc's macros, within
    // the length that the kernel wrote.
    unsafe {
        let mut part = libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = addr_of_mut!(part);
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast::<c_void>();
        message.msg_controllen = size_of::<[u64; 16]>() as _;
        let length = libc::recvmsg(fd.as_raw_fd(), addr_of_mut!(message), libc::MSG_DONTWAIT);
        if length < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut stamp = None;
        let mut header = libc::CMSG_FIRSTHDR(addr_of!(message));
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET
                && (*header).cmsg_type == libc::SCM_TIMESTAMPNS
            {
                let time: libc::timespec = libc::CMSG_DATA(header)
                    .cast::<libc::timespec>()
                    .read_unaligned();
                stamp = Some(i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec));
            }
            header = libc::CMSG_NXTHDR(addr_of!(message), header);
        }
        let truncated = message.msg_flags & libc::MSG_TRUNC != 0;
        Ok(Received {
            length: length as usize,
            stamp,
            truncated,
        })
    }
}

/// Send `headers` and `payload` as one packet without waiting.
pub(crate) fn send(fd: BorrowedFd<'_>, headers: &[u8], payload: &[u8]) -> io::Result<()> {
    // SAFETY: both slices are valid for reading during the call, which does not write to them.
    let sent = unsafe {
        if payload.is_empty() {
            libc::send(
                fd.as_raw_fd(),
                headers.as_ptr().cast(),
                headers.len(),
                libc::MSG_DONTWAIT,
            )
        } else {
            let mut parts = [
                libc::iovec {
                    iov_base: headers.as_ptr().cast_mut().cast(),
                    iov_len: headers.len(),
                },
                libc::iovec {
                    iov_base: payload.as_ptr().cast_mut().cast(),
                    iov_len: payload.len(),
                },
            ];
            let mut message: libc::msghdr = zeroed();
            message.msg_iov = parts.as_mut_ptr();
            message.msg_iovlen = 2;
            libc::sendmsg(fd.as_raw_fd(), addr_of!(message), libc::MSG_DONTWAIT)
        }
    };
    if sent < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Put the calling thread into the real-time class `SCHED_FIFO`.
pub(crate) fn set_realtime(priority: c_int) -> io::Result<()> {
    // SAFETY: sched_param is plain data; 0 is the calling thread.
    let result = unsafe {
        let mut parameters: libc::sched_param = zeroed();
        parameters.sched_priority = priority;
        libc::sched_setscheduler(0, libc::SCHED_FIFO, addr_of!(parameters))
    };
    check_result(result).map(drop)
}

/// Request a time slice of `nanoseconds` for the calling thread in the normal class: a thread with a shorter slice is scheduled
/// sooner.
pub(crate) fn set_short_slice(nanoseconds: u64) -> io::Result<()> {
    // SAFETY: sched_attr is plain data whose size field is correct; 0 is the calling thread, then no flags.
    let result = unsafe {
        let mut attributes: libc::sched_attr = zeroed();
        attributes.size = size_of::<libc::sched_attr>() as u32;
        attributes.sched_policy = libc::SCHED_OTHER as u32;
        attributes.sched_runtime = nanoseconds;
        libc::syscall(
            libc::SYS_sched_setattr,
            0,
            addr_of!(attributes),
            0 as c_uint,
        )
    };
    check_result(result as c_int).map(drop)
}

/// The kernel's statistics of a TCP connection.
pub(crate) fn tcp_info(fd: BorrowedFd<'_>) -> io::Result<libc::tcp_info> {
    // SAFETY: tcp_info is plain data.
    unsafe { get_option(fd, libc::IPPROTO_TCP, libc::TCP_INFO) }
}

/// The name of a connection's congestion control, padded with zeros.
pub(crate) fn congestion_control(fd: BorrowedFd<'_>) -> io::Result<[u8; 16]> {
    // SAFETY: any bytes are an array of bytes.
    unsafe { get_option(fd, libc::IPPROTO_TCP, libc::TCP_CONGESTION) }
}
