//! Connections of clients: a limited number, and none that stands idle without an end.

use axum::extract::ConnectInfo;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Number of connections at one time; further ones are closed at once.
const MAX_CONNECTIONS: usize = 1000;
/// Time within which a client sends the head of its next request.
const HEAD_TIME: Duration = Duration::from_secs(15);
/// Time after which a client that takes nothing, or is gone without a word, is closed (`TCP_USER_TIMEOUT`).
const STALLED_TIME_MS: u32 = 30_000;
/// Pause after an error of the system, such as too many open files.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Serves clients without end.
///
/// # Errors
/// The listener is gone.
pub async fn serve_clients(listener: TcpListener, routes: axum::Router) -> io::Result<()> {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let (stream, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("a client cannot be accepted: {error}");
                tokio::time::sleep(ERROR_PAUSE).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else { continue };
        // Neither can fail but on a connection that has ended.
        let _ = stream.set_nodelay(true);
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, STALLED_TIME_MS);
        let service = routes.clone().layer(axum::Extension(ConnectInfo(address)));
        tokio::spawn(async move {
            let service = TowerToHyperService::new(service);
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME);
            // A client that breaks off is no error of the service.
            let _ = builder.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
            drop(permit);
        });
    }
}
