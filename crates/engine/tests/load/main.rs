//! Black box tests of `howfar-engine load`, and of `howfar-engine page` where it visits an application.

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
