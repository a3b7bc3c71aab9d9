//! Both directions of a link, each a thread, and how the main thread talks to them.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::News;
use crate::clock::{self, Scheduling};
use crate::event::{Code, DirectionStats, Failure};
use crate::job::{Direction, LinkJob, PortKind, Realtime};
use crate::port::{Packet, Port, Tun};
use crate::pump::{Order, Pump};

/// A direction that does not answer within this time hangs.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Way {
    orders: Sender<Order>,
    wake: Arc<OwnedFd>,
    thread: JoinHandle<()>,
    scheduling: Scheduling,
}

#[derive(Debug)]
pub(crate) struct Link {
    to_server: Way,
    to_client: Way,
}

impl Link {
    /// Open both interfaces and let packets pass. A direction that breaks later says so through `news`.
    pub(crate) fn start(job: &LinkJob, news: Sender<News>) -> Result<Self, Failure> {
        match job.port {
            PortKind::Packet => Self::join::<Packet>(job, news),
            PortKind::Tun => Self::join::<Tun>(job, news),
        }
    }

    fn join<P: Port>(job: &LinkJob, news: Sender<News>) -> Result<Self, Failure> {
        let (client, server) = (&job.client_interface, &job.server_interface);
        // Both ends first: nothing passes before both ways are there.
        let (from_client, into_client) = P::open(client)?;
        let (from_server, into_server) = P::open(server)?;
        let names = |from: &String, to: &String| (from.clone(), to.clone());
        Ok(Self {
            to_server: Way::start::<P>(
                names(client, server),
                (from_client, into_server),
                &job.to_server,
                job.realtime,
                news.clone(),
            )?,
            to_client: Way::start::<P>(
                names(server, client),
                (from_server, into_client),
                &job.to_client,
                job.realtime,
                news,
            )?,
        })
    }

    /// That of both directions; where they differ, the normal one.
    pub(crate) fn scheduling(&self) -> Scheduling {
        if self.to_server.scheduling == self.to_client.scheduling {
            self.to_server.scheduling
        } else {
            Scheduling::Normal
        }
    }

    pub(crate) fn set(&self, to_server: &Direction, to_client: &Direction) {
        self.to_server.order(Order::Set(to_server.clone()));
        self.to_client.order(Order::Set(to_client.clone()));
    }

    pub(crate) fn stats(&self, reset: bool) -> Result<(DirectionStats, DirectionStats), Failure> {
        Ok((self.to_server.stats(reset)?, self.to_client.stats(reset)?))
    }

    /// End both directions and wait for them.
    pub(crate) fn stop(self) {
        for way in [self.to_server, self.to_client] {
            way.order(Order::Stop);
            // A thread that panicked has already said why on stderr.
            let _ = way.thread.join();
        }
    }
}

impl Way {
    fn start<P: Port>(
        names: (String, String),
        ports: (P::Receiver, P::Transmitter),
        direction: &Direction,
        realtime: Realtime,
        news: Sender<News>,
    ) -> Result<Self, Failure> {
        let internal = |error: &dyn std::fmt::Display| {
            Failure::new(
                Code::Internal,
                format!("cannot start a direction of the link: {error}"),
                "Please report this.",
            )
        };
        let wake = Arc::new(
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|error| internal(&error))?,
        );
        let (orders, inbox) = channel();
        let (class, classes) = channel();
        let (direction, ear) = (direction.clone(), Arc::clone(&wake));
        let thread = thread::Builder::new()
            .name(format!("{}-{}", names.0, names.1))
            .spawn(move || {
                // The main thread waits for the class; if it has gone there is nobody to tell.
                let _ = class.send(clock::wake_on_time(realtime));
                if let Err(failure) = Pump::<P>::new(names, ports, &direction, inbox, ear).run() {
                    let _ = news.send(News::Broken(failure));
                }
            })
            .map_err(|error| internal(&error))?;
        let scheduling = classes
            .recv_timeout(PATIENCE)
            .map_err(|error| internal(&error))?;
        Ok(Self {
            orders,
            wake,
            thread,
            scheduling,
        })
    }

    /// Orders to a direction that has ended are lost; it has said so itself.
    fn order(&self, order: Order) {
        if self.orders.send(order).is_ok() {
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    fn stats(&self, reset: bool) -> Result<DirectionStats, Failure> {
        let (answer, answers) = channel();
        self.order(Order::Stats { reset, answer });
        answers.recv_timeout(PATIENCE).map_err(|error| {
            Failure::new(
                Code::Internal,
                format!("a direction of the link does not answer: {error}"),
                "The machine may be overloaded; try again, and report this if it stays.",
            )
        })
    }
}
