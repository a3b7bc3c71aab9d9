//! Black box tests of `howfar-engine load`.

mod agreement;
mod drivers;
mod failures;
mod fake;
mod malice;
mod mariadb;
mod outages;
mod peak;
mod process;
