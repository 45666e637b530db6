//! A network between the connector and the server that can be cut.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::Notify;

/// Forwards connections to a server.
pub struct Proxy {
    pub port: u16,
    state: Arc<State>,
}

struct State {
    target: SocketAddr,
    /// Once this many bytes came from the server, connections are cut, or held open without another byte.
    limit: AtomicU64,
    holds: AtomicBool,
    /// Whether the limit was reached.
    reached: AtomicBool,
    mended: Notify,
    /// Accept connections and say nothing: a network that went silent.
    silent: AtomicBool,
    delivered: AtomicU64,
    accepted: AtomicU64,
}

impl Proxy {
    pub fn start(runtime: &Runtime, target: u16) -> Self {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            target: ([127, 0, 0, 1], target).into(),
            limit: AtomicU64::new(u64::MAX),
            holds: AtomicBool::new(false),
            reached: AtomicBool::new(false),
            mended: Notify::new(),
            silent: AtomicBool::new(false),
            delivered: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
        });
        let shared = Arc::clone(&state);
        runtime.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                shared.accepted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(forward(client, Arc::clone(&shared)));
            }
        });
        Self { port, state }
    }

    /// Cuts connections after this many bytes more from the server.
    pub fn cut_after(&self, bytes: u64) {
        self.state.reached.store(false, Ordering::SeqCst);
        self.state.limit.store(self.delivered() + bytes, Ordering::SeqCst);
    }

    /// Lets this many bytes more through, then none; connections stay open until [`Self::mend`].
    pub fn hold_after(&self, bytes: u64) {
        self.state.holds.store(true, Ordering::SeqCst);
        self.cut_after(bytes);
    }

    /// Waits until connections are held, or `is_over`; whether they are held.
    pub fn wait_until_held(&self, mut is_over: impl FnMut() -> bool) -> bool {
        while !self.reached() && !is_over() {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.reached()
    }

    /// Whether the bytes were used up.
    pub fn reached(&self) -> bool {
        self.state.reached.load(Ordering::SeqCst)
    }

    /// Cuts what was held and forwards everything from now on.
    pub fn mend(&self) {
        self.state.limit.store(u64::MAX, Ordering::SeqCst);
        self.state.holds.store(false, Ordering::SeqCst);
        self.state.mended.notify_waiters();
    }

    /// The bytes that came from the server so far.
    pub fn delivered(&self) -> u64 {
        self.state.delivered.load(Ordering::SeqCst)
    }

    /// New connections get no answer.
    pub fn go_silent(&self) {
        self.state.silent.store(true, Ordering::SeqCst);
    }

    /// How many connections came.
    pub fn accepted(&self) -> u64 {
        self.state.accepted.load(Ordering::SeqCst)
    }
}

/// How long a connection that was cut stays half open, unless the client closes it.
const CLOSING: Duration = Duration::from_millis(500);

async fn forward(client: TcpStream, state: Arc<State>) {
    if state.silent.load(Ordering::SeqCst) {
        return std::future::pending().await; // holds the connection open
    }
    let Ok(server) = TcpStream::connect(state.target).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let upstream = async { drop(tokio::io::copy(&mut from_client, &mut to_server).await) };
    let downstream = async {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(count @ 1..) = from_server.read(&mut buffer).await {
            let total = state.delivered.fetch_add(count as u64, Ordering::SeqCst) + count as u64;
            let surplus = total.saturating_sub(state.limit.load(Ordering::SeqCst)).min(count as u64) as usize;
            let mended = state.mended.notified();
            if to_client.write_all(&buffer[..count - surplus]).await.is_err() {
                return;
            }
            if surplus > 0 {
                state.reached.store(true, Ordering::SeqCst);
                if state.holds.load(Ordering::SeqCst) {
                    mended.await;
                } else {
                    // What was let through arrives: closing with bytes of the client unread would reset the connection, and a reset
                    // may overtake them. The client's bytes are still taken meanwhile.
                    let _ = to_client.shutdown().await;
                    tokio::time::sleep(CLOSING).await;
                }
                return;
            }
        }
    };
    tokio::select! {
        () = upstream => {}
        () = downstream => {}
    }
}
