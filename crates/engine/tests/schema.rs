//! Checks that the stored schema of the contract is the one that these sources generate.

use std::fs;
use std::process::Command;

#[test]
fn the_schema_is_current() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../schema/contract.json");
    let stored_schema = fs::read_to_string(file).expect("the schema is stored");
    let output = Command::new(env!("CARGO_BIN_EXE_howfar-engine"))
        .arg("schema")
        .output()
        .expect("the engine starts");
    assert!(
        stored_schema.as_bytes() == output.stdout,
        "run: howfar-engine schema > schema/contract.json; python -m howfar.contract.generate"
    );
}
