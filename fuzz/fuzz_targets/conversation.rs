#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| howfar_load::fuzzing::conversation(data));
