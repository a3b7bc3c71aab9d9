#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| howfar_fuzz::recorded::conversation(data));
