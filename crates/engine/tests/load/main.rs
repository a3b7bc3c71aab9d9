//! Black box tests of `howfar-engine load`.

mod agreement;
mod drivers;
mod failures;
mod fake;
mod mariadb;
mod process;
