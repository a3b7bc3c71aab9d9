//! Both directions of a link, each a thread, and how the main thread talks to them.

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::MainEvent;
use crate::clock::{self, Scheduling};
use crate::event::DirectionStats;
use crate::job::{Direction, LinkJob, Realtime};
use crate::port::{self, DropCounter, Receiver, Transmitter};
use crate::pump::{Order, Pump};
use howfar_contract::{FailCode, Failed};

/// A direction that does not answer within this time counts as hung.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct DirectionThread {
    orders: Sender<Order>,
    wake: Arc<OwnedFd>,
    thread: JoinHandle<()>,
    scheduling: Scheduling,
    /// Counts drops on the interface that this direction receives from. The main thread reads it, so that the direction loses no
    /// time.
    drop_counter: DropCounter,
}

#[derive(Debug)]
pub(crate) struct Link {
    to_server: DirectionThread,
    to_client: DirectionThread,
}

impl Link {
    /// Open both interfaces and start forwarding packets. A direction that fails later reports it through `events`.
    pub(crate) fn start(job: &LinkJob, events: Sender<MainEvent>) -> Result<Self, Failed> {
        let (client, server) = (&job.client_interface, &job.server_interface);
        // Open both ports first: no packet passes before both directions exist.
        let (client_port, server_port) = (port::open(client)?, port::open(server)?);
        Ok(Self {
            to_server: DirectionThread::start(
                (client.clone(), server.clone()),
                (client_port.receiver, server_port.transmitter),
                client_port.drop_counter,
                &job.to_server,
                job.realtime,
                events.clone(),
            )?,
            to_client: DirectionThread::start(
                (server.clone(), client.clone()),
                (server_port.receiver, client_port.transmitter),
                server_port.drop_counter,
                &job.to_client,
                job.realtime,
                events,
            )?,
        })
    }

    /// The scheduling of the threads of both directions; `Normal` if they differ.
    pub(crate) fn scheduling(&self) -> Scheduling {
        if self.to_server.scheduling == self.to_client.scheduling {
            self.to_server.scheduling
        } else {
            Scheduling::Normal
        }
    }

    pub(crate) fn set(&self, to_server: &Direction, to_client: &Direction) {
        self.to_server.send_order(Order::Set(to_server.clone()));
        self.to_client.send_order(Order::Set(to_client.clone()));
    }

    pub(crate) fn stats(
        &mut self,
        reset: bool,
    ) -> Result<(DirectionStats, DirectionStats), Failed> {
        Ok((self.to_server.stats(reset)?, self.to_client.stats(reset)?))
    }

    /// End both directions and wait for them.
    pub(crate) fn stop(self) {
        for direction in [self.to_server, self.to_client] {
            direction.send_order(Order::Stop);
            // A direction that failed has reported that before.
            let _ = direction.thread.join();
        }
    }
}

impl DirectionThread {
    /// Start the thread. `interfaces`: the names of those that packets come from and go to.
    fn start(
        interfaces: (String, String),
        ports: (Receiver, Transmitter),
        drop_counter: DropCounter,
        direction: &Direction,
        realtime: Realtime,
        events: Sender<MainEvent>,
    ) -> Result<Self, Failed> {
        let start_error = |error: &dyn std::fmt::Display| {
            Failed::new(
                FailCode::Internal,
                format!("cannot start a direction of the link: {error}"),
                "Please report this.",
            )
        };
        let wake = Arc::new(
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|error| start_error(&error))?,
        );
        let (orders, order_receiver) = channel();
        let (scheduling_sender, scheduling_receiver) = channel();
        let (direction, wake_reader) = (direction.clone(), Arc::clone(&wake));
        let thread = thread::Builder::new()
            .name(format!("{}-{}", interfaces.0, interfaces.1))
            .spawn(move || {
                // If the main thread has ended, nothing needs the scheduling.
                let _ = scheduling_sender.send(clock::wake_on_time(realtime));
                report_failure(&events, || {
                    Pump::new(interfaces, ports, &direction, order_receiver, wake_reader).run()
                });
            })
            .map_err(|error| start_error(&error))?;
        let scheduling = scheduling_receiver
            .recv_timeout(ANSWER_TIMEOUT)
            .map_err(|error| start_error(&error))?;
        Ok(Self {
            orders,
            wake,
            thread,
            scheduling,
            drop_counter,
        })
    }

    /// Send an order. An order to a direction that has ended is lost; the direction has reported its end.
    fn send_order(&self, order: Order) {
        if self.orders.send(order).is_ok() {
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    fn stats(&mut self, reset: bool) -> Result<DirectionStats, Failed> {
        let (answer, replies) = channel();
        let dropped = self.drop_counter.read_total();
        self.send_order(Order::Stats {
            reset,
            dropped,
            answer,
        });
        replies.recv_timeout(ANSWER_TIMEOUT).map_err(|error| {
            Failed::new(
                FailCode::Internal,
                format!("a direction of the link does not answer: {error}"),
                "The machine may be overloaded; try again, and report this if it stays.",
            )
        })
    }
}

/// Run a direction and report when it ends without being stopped: a link with one dead direction must not look like a slow link.
fn report_failure(events: &Sender<MainEvent>, run: impl FnOnce() -> Result<(), Failed>) {
    // Unwind safe: nothing that the closure holds is used after a panic.
    let failure = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => return,
        Ok(Err(failure)) => failure,
        Err(_) => Failed::new(
            FailCode::Internal,
            "a direction of the link panicked; stderr says where",
            "Please report this.",
        ),
    };
    // The main thread may have ended already.
    let _ = events.send(MainEvent::DirectionFailed(failure));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_or_panic_of_a_direction_is_reported() {
        let (sender, events) = channel();
        let reported_code = |run: fn() -> Result<(), Failed>| {
            report_failure(&sender, run);
            match events.try_recv() {
                Ok(MainEvent::DirectionFailed(failure)) => Some(failure.code),
                _ => None,
            }
        };
        let panicked = reported_code(|| panic!("expected by the test"));
        assert_eq!(panicked, Some(FailCode::Internal));
        let failed = reported_code(|| Err(Failed::bad_job("expected by the test")));
        assert_eq!(failed, Some(FailCode::BadJob));
        assert_eq!(reported_code(|| Ok(())), None);
    }
}
