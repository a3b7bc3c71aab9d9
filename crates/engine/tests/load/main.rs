//! Black box tests of `howfar-engine load`.

mod agreement;
mod failures;
mod fake;
mod mariadb;
mod process;
