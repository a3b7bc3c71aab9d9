//! A library for `LD_PRELOAD`: a socket that would listen on all addresses is bound only to the IPv4 address in `$HOWFAR_LISTEN`.
//!
//! Ray's programs listen either on loopback or on all addresses, and have no option for another address. howfar's own processes run
//! without this library, so that it is in no measured path. It depends only on the C library of the program that loads it.
#![no_std]
#![allow(unsafe_code)]

use core::ffi::{c_char, c_int, c_long, c_void};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
/// Offsets of the address in a `sockaddr_in` and a `sockaddr_in6`.
const IPV4_OFFSET: usize = 4;
const IPV6_OFFSET: usize = 8;
const MAX_ADDRESS_BYTES: usize = 28;
#[cfg(target_arch = "x86_64")]
const SYS_BIND: c_long = 49;
/// From the system call table that newer architectures share.
#[cfg(not(target_arch = "x86_64"))]
const SYS_BIND: c_long = 200;

unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
    fn inet_pton(family: c_int, text: *const c_char, to: *mut c_void) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
    fn abort() -> !;
}

/// The address in `$HOWFAR_LISTEN`; None if there is no valid one.
fn listen_address() -> Option<[u8; 4]> {
    let mut address = [0; 4];
    // SAFETY: both names are C strings, and an IPv4 address has four bytes.
    unsafe {
        let text = getenv(c"HOWFAR_LISTEN".as_ptr());
        let is_valid =
            !text.is_null() && inet_pton(AF_INET.into(), text, address.as_mut_ptr().cast()) == 1;
        is_valid.then_some(address)
    }
}

/// Replace the "any" address by the one to listen on; on an IPv6 socket that is ::ffff:a.b.c.d.
fn replace_any_address(address: &mut [u8]) {
    let Some(listen_address) = listen_address() else {
        return;
    };
    match u16::from_ne_bytes([address[0], address[1]]) {
        AF_INET
            if address.len() >= IPV4_OFFSET + 4
                && address[IPV4_OFFSET..IPV4_OFFSET + 4] == [0; 4] =>
        {
            address[IPV4_OFFSET..IPV4_OFFSET + 4].copy_from_slice(&listen_address);
        }
        AF_INET6
            if address.len() >= IPV6_OFFSET + 16
                && address[IPV6_OFFSET..IPV6_OFFSET + 16] == [0; 16] =>
        {
            address[IPV6_OFFSET + 10..IPV6_OFFSET + 12].fill(0xff);
            address[IPV6_OFFSET + 12..IPV6_OFFSET + 16].copy_from_slice(&listen_address);
        }
        _ => {}
    }
}

/// Replaces the C library's `bind`.
///
/// # Safety
/// As for the C library's function: `address` points to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(socket: c_int, address: *const u8, length: u32) -> c_int {
    let size = length as usize;
    let mut copy = [0; MAX_ADDRESS_BYTES];
    let mut used_address = address;
    if !address.is_null() && (2..=MAX_ADDRESS_BYTES).contains(&size) {
        // SAFETY: `address` points to `size` bytes, and the copy is at least as long.
        unsafe { core::ptr::copy_nonoverlapping(address, copy.as_mut_ptr(), size) };
        replace_any_address(&mut copy[..size]);
        used_address = copy.as_ptr();
    }
    // SAFETY: the system call checks its arguments, and the C library's `syscall` sets errno.
    unsafe {
        syscall(
            SYS_BIND,
            c_long::from(socket),
            used_address,
            c_long::from(length),
        ) as c_int
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: `abort` has no preconditions.
    unsafe { abort() }
}
