//! The pipe of one direction of a connection, through which the kernel moves bytes from one socket to the other.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{self, Shutdown};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};

use crate::end::SocketEnd;

/// Default capacity of a pipe; splicing more at once gains nothing.
const PIPE_BYTES: usize = 64 * 1024;

/// The pipe of one direction, and the state of its stream.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) read: OwnedFd,
    pub(crate) write: OwnedFd,
    pub(crate) held_bytes: usize,
    /// The sender has ended its stream.
    pub(crate) sender_ended: bool,
    /// The receiver's side has been shut.
    pub(crate) receiver_shut: bool,
    /// The receiver has gone before the sender ended.
    pub(crate) receiver_gone: bool,
}

impl Pipe {
    pub(crate) fn new() -> rustix::io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self::with_bytes(read, write, 0))
    }

    /// Wrap a pipe into which another process may have written.
    pub(crate) fn adopt([read, write]: [OwnedFd; 2]) -> rustix::io::Result<Self> {
        let held_bytes = rustix::io::ioctl_fionread(&read)? as usize;
        Ok(Self::with_bytes(read, write, held_bytes))
    }

    const fn with_bytes(read: OwnedFd, write: OwnedFd, held_bytes: usize) -> Self {
        Self {
            read,
            write,
            held_bytes,
            sender_ended: false,
            receiver_shut: false,
            receiver_gone: false,
        }
    }
}

/// Move bytes from the sender into the pipe if it is empty, otherwise from the pipe to the receiver, and the end of the stream after
/// them. Returns how many bytes went into and out of the pipe. Bytes stay in the pipe until the next call, so that they can be recorded
/// first.
pub(crate) fn move_bytes(
    pipe: &mut Pipe,
    sender: &mut SocketEnd,
    receiver: &mut SocketEnd,
) -> Result<(usize, usize), Errno> {
    if pipe.receiver_gone && sender.readable {
        discard(pipe, sender)?;
    }
    if pipe.held_bytes == 0 && !pipe.sender_ended && sender.readable {
        match splice(
            &sender.socket,
            None,
            &pipe.write,
            None,
            PIPE_BYTES,
            SpliceFlags::NONBLOCK,
        ) {
            Ok(0) => pipe.sender_ended = true,
            Ok(count) => {
                pipe.held_bytes = count;
                return Ok((count, 0));
            }
            Err(Errno::AGAIN) => sender.readable = false,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    let mut passed = 0;
    if pipe.held_bytes > 0 && receiver.writable {
        match splice(
            &pipe.read,
            None,
            &receiver.socket,
            None,
            pipe.held_bytes,
            SpliceFlags::NONBLOCK,
        ) {
            Ok(count) => {
                passed = count;
                pipe.held_bytes -= count;
            }
            Err(Errno::AGAIN) => receiver.writable = false,
            Err(Errno::INTR) => {}
            // Bytes that the receiver sent before it closed must still be passed on.
            Err(Errno::PIPE | Errno::CONNRESET) => {
                pipe.receiver_gone = !pipe.sender_ended;
                pipe.sender_ended = true;
                pipe.held_bytes = 0;
            }
            Err(error) => return Err(error),
        }
    }
    if pipe.sender_ended && pipe.held_bytes == 0 && !pipe.receiver_shut {
        pipe.receiver_shut = true;
        // The shutdown fails only if the receiver has gone.
        let _ = net::shutdown(&receiver.socket, Shutdown::Write);
    }
    Ok((0, passed))
}

/// Read and drop bytes for a receiver that has gone: a server that cannot write does not read the rest of its requests either.
fn discard(pipe: &mut Pipe, sender: &mut SocketEnd) -> Result<(), Errno> {
    match sender.read(&mut [0; 16 << 10]) {
        Ok(Some(0)) | Err(Errno::CONNRESET) => pipe.receiver_gone = false,
        Ok(_) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}
