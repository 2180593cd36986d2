//! Connections of clients: a limited number, and none that stands idle without an end.

use axum::extract::ConnectInfo;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

/// Number of connections at one time whose token was accepted; a further one is closed.
const MAX_CLIENTS: usize = 1000;
/// Number of other connections at one time: for a further one the oldest of them is closed.
const MAX_STRANGERS: usize = 500;
/// Time within which a client sends the head of its next request.
const HEAD_TIME: Duration = Duration::from_secs(15);
/// Time after which a client that takes nothing, or is gone without a word, is closed (`TCP_USER_TIMEOUT`).
const STALLED_TIME_MS: u32 = 30_000;
/// Pause after an error of the system, such as too many open files.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Standing of a connection, which is part of each of its requests.
#[derive(Debug, Clone)]
pub struct Standing(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    places: Arc<Semaphore>,
    /// Place among the clients, once a token of the connection was accepted.
    place: OnceLock<OwnedSemaphorePermit>,
}

impl Standing {
    fn new(places: &Arc<Semaphore>) -> Self {
        Self(Arc::new(Shared { places: Arc::clone(places), place: OnceLock::new() }))
    }

    /// Notes that a token of the connection was accepted: no stranger takes its place. Returns false if there is no place
    /// left.
    pub fn accept(&self) -> bool {
        if self.0.place.get().is_some() {
            return true;
        }
        let place = Arc::clone(&self.0.places).try_acquire_owned();
        // Another request of the connection may have been first.
        place.is_ok_and(|place| self.0.place.set(place).is_ok() || self.0.place.get().is_some())
    }

    fn is_accepted(&self) -> bool {
        self.0.place.get().is_some()
    }
}

/// Connections without an accepted token, the oldest first.
#[derive(Debug, Default)]
struct Strangers(VecDeque<(Standing, AbortHandle)>);

impl Strangers {
    /// Adds a connection. If there are too many, the oldest is closed.
    fn add(&mut self, standing: Standing, connection: AbortHandle) {
        self.0.push_back((standing, connection));
        if self.0.len() > MAX_STRANGERS {
            self.0.retain(|(standing, connection)| !standing.is_accepted() && !connection.is_finished());
        }
        if self.0.len() > MAX_STRANGERS
            && let Some((_, oldest)) = self.0.pop_front()
        {
            oldest.abort();
        }
    }
}

/// Serves clients without end.
///
/// # Errors
/// The listener is gone.
pub async fn serve_clients(listener: TcpListener, routes: axum::Router) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(MAX_CLIENTS));
    let mut strangers = Strangers::default();
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("a client cannot be accepted: {error}");
                tokio::time::sleep(ERROR_PAUSE).await;
                continue;
            }
        };
        // Neither can fail but on a connection that has ended.
        let _ = stream.set_nodelay(true);
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, STALLED_TIME_MS);
        let standing = Standing::new(&places);
        let service = routes.clone().layer(axum::Extension(ConnectInfo(address)));
        let service = TowerToHyperService::new(service.layer(axum::Extension(standing.clone())));
        let connection = tokio::spawn(async move {
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME);
            // A client that breaks off is no error of the service.
            let _ = builder.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
        });
        strangers.add(standing, connection.abort_handle());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_stranger_is_closed_for_a_new_one_and_no_client_is() {
        let places = Arc::new(Semaphore::new(2));
        let mut strangers = Strangers::default();
        let (mut connections, mut clients) = (Vec::new(), Vec::new());
        for _ in 0..=MAX_STRANGERS {
            let connection = tokio::spawn(std::future::pending::<()>());
            let standing = Standing::new(&places);
            if connections.len() < 2 {
                assert!(standing.accept() && standing.accept(), "twice is one place");
                clients.push(standing.clone());
            }
            strangers.add(standing, connection.abort_handle());
            connections.push(connection);
        }
        assert!(!Standing::new(&places).accept(), "there is no third place");
        for _ in 0..3 {
            strangers.add(Standing::new(&places), tokio::spawn(std::future::pending::<()>()).abort_handle());
        }
        tokio::task::yield_now().await;
        let closed: Vec<usize> = (0..connections.len()).filter(|at| connections[*at].is_finished()).collect();
        assert_eq!(closed, [2, 3]);
    }
}
