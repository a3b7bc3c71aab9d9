//! A library for `LD_PRELOAD`: a socket that would listen on all addresses is bound to the IPv4 address in `$HOWFAR_LISTEN` alone.
//!
//! Ray's programs listen either on loopback or on all addresses, and have no option for anything else. Our own processes run without
//! this library, so that it is in no measured path. It needs nothing but the C library of the program it is loaded into.
#![no_std]
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_long, c_void};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
/// Offsets of the address in a `sockaddr_in` and a `sockaddr_in6`.
const AT: usize = 4;
const AT6: usize = 8;
const LONGEST: usize = 28;
#[cfg(target_arch = "x86_64")]
const SYS_BIND: c_long = 49;
/// In the system call table that newer architectures share.
#[cfg(not(target_arch = "x86_64"))]
const SYS_BIND: c_long = 200;

unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
    fn inet_pton(family: c_int, text: *const c_char, to: *mut c_void) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
    fn abort() -> !;
}

/// The address to listen on, if there is one.
fn wanted() -> Option<[u8; 4]> {
    let mut found = [0; 4];
    // SAFETY: both names are C strings, and four bytes are what an IPv4 address takes.
    unsafe {
        let text = getenv(c"HOWFAR_LISTEN".as_ptr());
        let read =
            !text.is_null() && inet_pton(AF_INET.into(), text, found.as_mut_ptr().cast()) == 1;
        read.then_some(found)
    }
}

/// Puts our address in place of "any"; an IPv6 socket takes it as ::ffff:a.b.c.d.
fn narrow(address: &mut [u8]) {
    let Some(ours) = wanted() else { return };
    match u16::from_ne_bytes([address[0], address[1]]) {
        AF_INET if address.len() >= AT + 4 && address[AT..AT + 4] == [0; 4] => {
            address[AT..AT + 4].copy_from_slice(&ours);
        }
        AF_INET6 if address.len() >= AT6 + 16 && address[AT6..AT6 + 16] == [0; 16] => {
            address[AT6 + 10..AT6 + 12].fill(0xff);
            address[AT6 + 12..AT6 + 16].copy_from_slice(&ours);
        }
        _ => {}
    }
}

/// Replaces the C library's `bind`.
///
/// # Safety
/// As for the C library's: `address` points to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(socket: c_int, address: *const u8, length: u32) -> c_int {
    let size = length as usize;
    let mut copy = [0; LONGEST];
    let mut given = address;
    if !address.is_null() && (2..=LONGEST).contains(&size) {
        // SAFETY: the caller's promise; the copy is as long.
        unsafe { core::ptr::copy_nonoverlapping(address, copy.as_mut_ptr(), size) };
        narrow(&mut copy[..size]);
        given = copy.as_ptr();
    }
    // SAFETY: the system call checks its arguments itself, and sets errno as the C library's does.
    unsafe { syscall(SYS_BIND, c_long::from(socket), given, c_long::from(length)) as c_int }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: it takes nothing and does not return.
    unsafe { abort() }
}
