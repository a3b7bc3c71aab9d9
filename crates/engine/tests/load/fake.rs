//! A server that implements enough of the MySQL protocol to misbehave during a load.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// The server's reaction to a query.
pub(crate) enum Reply {
    Ok,
    Error(u16, &'static str),
    Bytes(&'static [u8]),
    Silence,
    Close,
    /// An OK after this time.
    DelayedOk(Duration),
    /// An OK, and after this time the end of the connection.
    OkThenClose(Duration),
}

const OK: &[u8] = b"\0\0\0\x02\0\0\0";

/// Number of fake servers so far.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// The reaction to the n-th query of a connection.
type Behaviour = dyn Fn(usize) -> Reply + Send + Sync;

/// A fake server; its directory is removed when it is dropped.
pub(crate) struct FakeServer {
    directory: PathBuf,
    pub(crate) path: String,
}

impl FakeServer {
    /// A server that accepts every login, and answers the n-th query of a connection with `reply(n)`.
    pub(crate) fn new(name: &str, reply: impl Fn(usize) -> Reply + Send + Sync + 'static) -> Self {
        Self::with_login(name, packet(2, b"\0\0\0\x02\0\0\0"), reply)
    }

    /// A server that answers every login with these bytes, and queries as in [`FakeServer::new`].
    pub(crate) fn with_login(
        name: &str,
        login: Vec<u8>,
        reply: impl Fn(usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let reply: Arc<Behaviour> = Arc::new(reply);
        Self::listening(name, move |stream| {
            let (login, reply) = (login.clone(), Arc::clone(&reply));
            thread::spawn(move || serve(stream, &login, &*reply));
        })
    }

    /// A server that calls `accept` with each connection.
    pub(crate) fn listening(name: &str, accept: impl Fn(UnixStream) + Send + 'static) -> Self {
        // Tests run in parallel and some have the same name.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("howfar-{name}-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("the directory can be created");
        let path = directory.join("s");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).expect("the path is free");
        thread::spawn(move || listener.incoming().flatten().for_each(accept));
        Self {
            path: path.display().to_string(),
            directory,
        }
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

pub(crate) fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_le_bytes();
    [&[length[0], length[1], length[2], sequence], payload].concat()
}

pub(crate) fn error(sequence: u8, code: u16, text: &str) -> Vec<u8> {
    let mut payload = vec![0xFF];
    payload.extend_from_slice(&code.to_le_bytes());
    payload.extend_from_slice(b"#HY000");
    payload.extend_from_slice(text.as_bytes());
    packet(sequence, &payload)
}

pub(crate) fn login_error(code: u16, text: &str) -> Vec<u8> {
    error(2, code, text)
}

pub(crate) fn greeting() -> Vec<u8> {
    let mut payload = b"\x0a8.0.0-fake\0\x05\0\0\0FeL.>-g?\0".to_vec();
    payload.extend_from_slice(
        b"\xff\xf7\x08\x02\0\xff\x81\x15\0\0\0\0\0\0\0\0\0\0Ct?yfs02J^zj\0mysql_native_password\0",
    );
    packet(0, &payload)
}

/// An empty result of two columns: the session status of a server without TLS and compression.
pub(crate) fn empty_status() -> Vec<u8> {
    let definition = b"\x03def\0\0\0\x01a\0\x0c\x2d\0\0\x01\0\0\xfd\0\0\0\0\0";
    let end = b"\xfe\0\0\x02\0";
    [
        packet(1, b"\x02"),
        packet(2, definition),
        packet(3, definition),
        packet(4, end),
        packet(5, end),
    ]
    .concat()
}

pub(crate) fn read_packet(stream: &mut (impl Read + ?Sized)) -> Option<Vec<u8>> {
    let mut header = [0; 4];
    stream.read_exact(&mut header).ok()?;
    let mut payload = vec![0; u32::from_le_bytes([header[0], header[1], header[2], 0]) as usize];
    stream.read_exact(&mut payload).ok()?;
    Some(payload)
}

fn serve(mut stream: UnixStream, login: &[u8], reply: &Behaviour) -> Option<()> {
    stream.write_all(&greeting()).ok()?;
    read_packet(&mut stream)?;
    stream.write_all(login).ok()?;
    let mut queries = 0;
    loop {
        let command = read_packet(&mut stream)?;
        let answer = match *command.first()? {
            0x16 if command.starts_with(b"\x16BEGIN") => {
                error(1, 1295, "not in the prepared statement protocol")
            }
            0x16 => packet(1, b"\0\x01\0\0\0\0\0\0\0\0\0\0"),
            0x03 if command.starts_with(b"\x03SHOW") => empty_status(),
            0x03 | 0x17 => {
                queries += 1;
                match reply(queries) {
                    Reply::Ok => packet(1, OK),
                    Reply::Error(code, text) => error(1, code, text),
                    Reply::Bytes(bytes) => bytes.to_vec(),
                    Reply::Silence => continue,
                    Reply::Close => return None,
                    Reply::DelayedOk(time) => {
                        thread::sleep(time);
                        packet(1, OK)
                    }
                    Reply::OkThenClose(time) => {
                        stream.write_all(&packet(1, OK)).ok()?;
                        thread::sleep(time);
                        return None;
                    }
                }
            }
            _ => return None,
        };
        stream.write_all(&answer).ok()?;
    }
}
