//! The commands of a job in order, until it is over: at the end of stdin, or when a terminating signal arrives.

use std::sync::mpsc::{Receiver, Sender, channel};

use howfar_contract::jobs::PingCommand;
use howfar_contract::{Failed, read_command};

use crate::job_over::JobOver;
use crate::signals::EndingSignals;
use crate::spawn_thread;

/// A command; `None` if the job is over.
type CommandResult = Result<Option<PingCommand>, Failed>;

pub(super) struct Commands {
    commands: Receiver<CommandResult>,
    pub(super) job_over: JobOver,
}

impl Commands {
    /// Start the threads that read stdin and wait for signals.
    pub(super) fn begin() -> Result<Self, Failed> {
        let (sender, commands) = channel();
        let job_over = JobOver::default();
        let signals = EndingSignals::block();
        let (over_at_end, over_at_signal) = (job_over.clone(), job_over.clone());
        let signal_sender = sender.clone();
        spawn_thread("stdin", move || {
            forward_commands(&sender, &over_at_end);
        })?;
        spawn_thread("signals", move || {
            signals.wait();
            over_at_signal.set();
            let _ = signal_sender.send(Ok(None));
        })?;
        Ok(Self { commands, job_over })
    }

    /// The next command; `None` if the job is over.
    pub(super) fn next(&self) -> CommandResult {
        let command = self.commands.recv().unwrap_or(Ok(None));
        if self.job_over.is_set() {
            Ok(None)
        } else {
            command
        }
    }
}

/// Forward the commands of stdin to `sender`.
fn forward_commands(sender: &Sender<CommandResult>, job_over: &JobOver) {
    loop {
        let command = read_command("what to do next");
        let continues = matches!(command, Ok(Some(_)));
        if matches!(command, Ok(None)) {
            job_over.set();
        }
        if sender.send(command).is_err() || !continues {
            return;
        }
    }
}
