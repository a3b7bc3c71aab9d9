//! The commands of a job in order, until it is over: at the end of stdin, or when a terminating signal arrives.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use howfar_contract::jobs::PingCommand;
use howfar_contract::{Failed, internal, read_command};

use crate::job_over::JobOver;
use crate::signals::EndingSignals;

type CommandResult = Result<Option<PingCommand>, Failed>;

pub(super) struct Commands {
    read: Receiver<CommandResult>,
    pub(super) job_over: JobOver,
}

impl Commands {
    /// Start the threads that read stdin and wait for signals.
    pub(super) fn begin() -> Result<Self, Failed> {
        let (sender, read) = channel();
        let job_over = JobOver::default();
        let signals = EndingSignals::block();
        let (ended, interrupted) = (job_over.clone(), job_over.clone());
        let signal_sender = sender.clone();
        spawn("stdin", move || forward(&sender, &ended))?;
        spawn("signals", move || {
            signals.wait();
            interrupted.set();
            let _ = signal_sender.send(Ok(None));
        })?;
        Ok(Self { read, job_over })
    }

    /// The next command; `None` if the job is over.
    pub(super) fn next(&self) -> CommandResult {
        let read = self.read.recv().unwrap_or(Ok(None));
        if self.job_over.is_set() {
            Ok(None)
        } else {
            read
        }
    }
}

/// Forward the commands of stdin to `sender`.
fn forward(sender: &Sender<CommandResult>, job_over: &JobOver) {
    loop {
        let read = read_command("what to do next");
        let continues = matches!(read, Ok(Some(_)));
        if matches!(read, Ok(None)) {
            job_over.set();
        }
        if sender.send(read).is_err() || !continues {
            return;
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Failed> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(work);
    started
        .map(drop)
        .map_err(|error| internal(format!("starting a thread: {error}")))
}
