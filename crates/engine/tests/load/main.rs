//! Black box tests of `howfar-engine load`, and of `howfar-engine page` with a FastCGI application.

mod agreement;
mod drivers;
mod failures;
mod fake;
mod hostile;
mod malice;
mod mariadb;
mod outages;
mod peak;
mod postgres;
mod process;
mod rogue_postgres;
mod visitor;
