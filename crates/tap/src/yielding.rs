//! Lets a thread run only on a CPU that is otherwise idle: the application or its server, once woken, gets the CPU at once.
#![allow(unsafe_code)] // One call of libc; the pointer given to the kernel is to a local that outlives the call.

/// Set whether the calling thread yields. If the kernel refuses, only timing suffers.
pub(crate) fn set_yielding(is_yielding: bool) {
    let policy = if is_yielding {
        libc::SCHED_IDLE
    } else {
        libc::SCHED_OTHER
    };
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: sched_param is plain data; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, policy, std::ptr::addr_of!(parameters)) };
}
