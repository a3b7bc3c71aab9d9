//! From the first byte of a connection to its last prepared statement, without I/O: bytes in, bytes out.

use std::fmt;

use howfar_record::jobs::Target;
use howfar_record::{FailCode, Failed};
use howfar_wire::mysql::handshake::{Account, AuthSwitch, Greeting};
use howfar_wire::mysql::reply::{self, Prepared};
use howfar_wire::mysql::{Answer, Framer, Malformed, ServerError, auth, command, frame};

use crate::failure;
use crate::statements::{Slot, Statements};
use crate::workload::Program;

/// Packets of a login or a prepare are small.
const LONGEST_PACKET: usize = 1 << 20;
/// Prepares sent without waiting for answers: spares round trips, and both directions stay far below a socket's buffer.
const AHEAD: usize = 64;
/// "This command is not supported in the prepared statement protocol yet."
const CANNOT_PREPARE: u16 = 1295;

/// What all logins share.
pub(crate) struct Entry<'a> {
    pub(crate) target: &'a Target,
    pub(crate) account: Account<'a>,
    pub(crate) program: &'a Program,
    /// Column types are wanted, because rows will be decoded.
    pub(crate) decode: bool,
}

/// A session ready for queries.
pub(crate) struct Session {
    pub(crate) answer: Answer,
    pub(crate) statements: Statements,
    pub(crate) greeting: Greeting,
    /// The way of logging in that the server accepted.
    pub(crate) plugin: String,
}

enum Stage {
    Greeting,
    Proof,
    Prepare(Preparing),
}

/// Statements are prepared in order: `sent` are asked for, `done` are answered.
struct Preparing {
    wanted: Vec<usize>,
    sent: usize,
    done: usize,
    /// Packets of the present answer still to come, and how many of them belong to columns.
    packets: usize,
    column_packets: usize,
}

/// One connection on its way in.
pub(crate) struct Login {
    framer: Framer,
    stage: Stage,
    greeting: Option<Greeting>,
    plugin: String,
    scramble: Vec<u8>,
    statements: Statements,
}

impl fmt::Debug for Login {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Login")
            .field("plugin", &self.plugin)
            .finish_non_exhaustive()
    }
}

impl Login {
    pub(crate) fn new(program: &Program) -> Self {
        Self {
            framer: Framer::new(LONGEST_PACKET),
            stage: Stage::Greeting,
            greeting: None,
            plugin: String::new(),
            scramble: Vec::new(),
            statements: Statements::new(program),
        }
    }

    /// What it waits for, for messages.
    pub(crate) fn doing(&self) -> &'static str {
        match self.stage {
            Stage::Greeting => "its greeting",
            Stage::Proof => "the login",
            Stage::Prepare(_) => "preparing the statements",
        }
    }

    /// Take what came; append to `out` what must be sent. The session, once it is ready.
    pub(crate) fn feed(
        &mut self,
        mut input: &[u8],
        entry: &Entry<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Session>, Failed> {
        loop {
            // The framer's payload must not stay borrowed while the stage changes; these packets are few and small.
            let payload = match self.framer.next(&mut input) {
                Ok(Some(payload)) => payload.to_vec(),
                Ok(None) => return Ok(None),
                Err(error) => return Err(failure::malformed(entry.target, error)),
            };
            let ready = self
                .packet(&payload, entry, out)
                .map_err(|wrong| wrong.translate(entry))?;
            if ready {
                if !input.is_empty() {
                    return Err(failure::malformed(
                        entry.target,
                        Malformed::Unexpected("bytes follow a login"),
                    ));
                }
                return Ok(Some(self.session()));
            }
        }
    }

    fn session(&mut self) -> Session {
        let greeting = self
            .greeting
            .take()
            .expect("a login ends after its greeting");
        Session {
            answer: Answer::new(greeting.session().caches_metadata()),
            statements: std::mem::take(&mut self.statements),
            greeting,
            plugin: std::mem::take(&mut self.plugin),
        }
    }

    fn packet(
        &mut self,
        payload: &[u8],
        entry: &Entry<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Wrong> {
        let first = payload.first().copied().ok_or(Malformed::Short("packet"))?;
        match &self.stage {
            Stage::Greeting if first == reply::ERR => {
                Err(Wrong::Login(ServerError::parse(payload)?))
            }
            Stage::Greeting => self.greet(payload, entry, out).map(|()| false),
            Stage::Proof => self.proof(first, payload, entry, out),
            Stage::Prepare(_) => self.prepared(first, payload, entry, out),
        }
    }

    fn greet(&mut self, payload: &[u8], entry: &Entry<'_>, out: &mut Vec<u8>) -> Result<(), Wrong> {
        let greeting = Greeting::parse(payload)?;
        self.scramble = greeting.scramble.to_vec();
        // A plugin that we do not know is the server's default, not the account's: begin with the oldest, it will tell.
        let password = entry.account.password;
        let (plugin, proof) = match auth::proof(&greeting.plugin, password, &self.scramble) {
            Some(proof) => (greeting.plugin.clone(), proof),
            None => (
                auth::NATIVE.to_owned(),
                auth::proof(auth::NATIVE, password, &self.scramble).unwrap_or_default(),
            ),
        };
        let sequence = self.framer.sequence();
        let next = greeting
            .session()
            .login(out, sequence, &entry.account, &plugin, &proof);
        self.framer.expect(next);
        self.plugin = plugin;
        self.greeting = Some(greeting);
        self.stage = Stage::Proof;
        Ok(())
    }

    fn proof(
        &mut self,
        first: u8,
        payload: &[u8],
        entry: &Entry<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Wrong> {
        match first {
            reply::OK => Ok(self.start_preparing(entry, out)),
            reply::ERR => Err(Wrong::Login(ServerError::parse(payload)?)),
            reply::EOF => {
                let switch = AuthSwitch::parse(payload)?;
                let proof = auth::proof(&switch.plugin, entry.account.password, &switch.scramble)
                    .ok_or_else(|| Wrong::Plugin(switch.plugin.clone()))?;
                self.plugin = switch.plugin;
                self.scramble = switch.scramble;
                self.send(out, &proof);
                Ok(false)
            }
            auth::MORE_DATA if self.plugin == auth::CACHING_SHA2 => match payload.get(1) {
                Some(&auth::FAST_DONE) => Ok(false),
                Some(&auth::FULL_NEEDED) if matches!(entry.target, Target::Unix { .. }) => {
                    // Servers take a Unix socket for a safe channel: nobody else can listen.
                    self.send(out, &[entry.account.password.as_bytes(), &[0]].concat());
                    Ok(false)
                }
                Some(&auth::FULL_NEEDED) => Err(Wrong::FullLogin),
                _ => Err(Malformed::Unexpected("an unknown step of caching_sha2_password").into()),
            },
            _ => Err(Malformed::Unexpected("an unknown answer to a login").into()),
        }
    }

    fn send(&mut self, out: &mut Vec<u8>, payload: &[u8]) {
        let next = frame::write_packet(out, self.framer.sequence(), payload);
        self.framer.expect(next);
    }

    /// True when there is nothing to prepare.
    fn start_preparing(&mut self, entry: &Entry<'_>, out: &mut Vec<u8>) -> bool {
        let wanted: Vec<usize> = if entry.program.is_prepared() {
            (0..entry.program.slots().len())
                .filter(|&at| entry.program.uses(entry.program.slots()[at].0))
                .collect()
        } else {
            Vec::new()
        };
        let nothing = wanted.is_empty();
        self.stage = Stage::Prepare(Preparing {
            wanted,
            sent: 0,
            done: 0,
            packets: 0,
            column_packets: 0,
        });
        self.ask_ahead(entry, out);
        self.framer.expect(1);
        nothing
    }

    fn ask_ahead(&mut self, entry: &Entry<'_>, out: &mut Vec<u8>) {
        let Stage::Prepare(preparing) = &mut self.stage else {
            return;
        };
        if preparing.sent > preparing.done {
            return;
        }
        let upto = preparing.wanted.len().min(preparing.sent + AHEAD);
        let mut sql = Vec::new();
        for &slot in &preparing.wanted[preparing.sent..upto] {
            let (kind, table) = entry.program.slots()[slot];
            sql.clear();
            kind.write_sql(&mut sql, table, None);
            command::prepare(out, &sql);
        }
        preparing.sent = upto;
    }

    fn prepared(
        &mut self,
        first: u8,
        payload: &[u8],
        entry: &Entry<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Wrong> {
        let Stage::Prepare(preparing) = &mut self.stage else {
            return Ok(false);
        };
        let Some(&slot) = preparing.wanted.get(preparing.done) else {
            return Err(Malformed::Unexpected("bytes came although nothing was asked").into());
        };
        if preparing.packets > 0 {
            preparing.packets -= 1;
            // The last packet is the end of the list.
            if entry.decode && (1..preparing.column_packets).contains(&preparing.packets) {
                self.statements.add_type(slot, reply::column_type(payload)?);
            }
        } else if first == reply::ERR {
            let error = ServerError::parse(payload)?;
            if error.code != CANNOT_PREPARE {
                return Err(Wrong::Prepare(error));
            }
            self.statements.set(slot, Slot::Text);
        } else {
            let head = Prepared::parse(payload)?;
            let list = |count: u16| {
                if count == 0 {
                    0
                } else {
                    usize::from(count) + 1
                }
            };
            preparing.column_packets = list(head.columns);
            preparing.packets = list(head.parameters) + preparing.column_packets;
            self.statements.set(
                slot,
                Slot::Prepared {
                    id: head.statement,
                    used: false,
                },
            );
        }
        if preparing.packets > 0 {
            return Ok(false);
        }
        preparing.done += 1;
        self.framer.expect(1);
        let ready = preparing.done == preparing.wanted.len();
        self.ask_ahead(entry, out);
        Ok(ready)
    }
}

/// A login that failed, before it is told.
enum Wrong {
    Malformed(Malformed),
    Login(ServerError),
    Plugin(String),
    FullLogin,
    Prepare(ServerError),
}

impl From<Malformed> for Wrong {
    fn from(error: Malformed) -> Self {
        Self::Malformed(error)
    }
}

impl Wrong {
    fn translate(self, entry: &Entry<'_>) -> Failed {
        let (target, user) = (entry.target, entry.account.user);
        match self {
            Self::Malformed(error) => failure::malformed(target, error),
            Self::Login(error) => failure::login(target, user, &error),
            Self::Plugin(plugin) => failure::unknown_plugin(target, user, &plugin),
            Self::FullLogin => failure::full_login_needs_channel(target, user),
            Self::Prepare(error) => failure::server(target, "a prepare", &error),
        }
    }
}

/// The engine's own mistake, told as such.
pub(crate) fn internal(message: impl Into<String>) -> Failed {
    Failed::new(
        FailCode::Internal,
        message,
        "Please report this with the command you ran.",
    )
}
