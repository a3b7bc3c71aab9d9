//! A thread that runs only where a CPU has nothing else to do: a wake-up of the application or its server takes its CPU at once.
#![allow(unsafe_code)] // One call of libc; the pointer given to the kernel is to a local that outlives the call.

/// Whether the calling thread yields. A kernel that refuses changes nothing but the time.
pub(crate) fn yield_to_all(yields: bool) {
    let policy = if yields {
        libc::SCHED_IDLE
    } else {
        libc::SCHED_OTHER
    };
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: sched_param is plain data; 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, policy, std::ptr::addr_of!(parameters)) };
}
