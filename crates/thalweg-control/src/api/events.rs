//! Changes as server-sent events: the newest status, and messages in order.

use super::guard::Watcher;
use super::header_text;
use super::refusals::Refusals;
use crate::service::Service;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio_stream::Stream;

/// Least time from one status to the next for one client; a change of the state is sent at once.
const CLIENT_INTERVAL: Duration = Duration::from_millis(200);

/// Changes: `status` events with the newest status, and `message` events. With `Last-Event-ID`, messages that were
/// missed come first. A client that reads slowly gets fewer statuses, never older ones.
#[utoipa::path(get, path = "/api/v1/events", responses(
    (status = 200, description = "Server-sent events, without end", body = String, content_type = "text/event-stream"),
    Refusals,
))]
pub(super) async fn stream_events(
    _: Watcher,
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let seen = header_text(&headers, "last-event-id").and_then(|id| id.parse().ok());
    let seen = seen.unwrap_or_else(|| service.last_message());
    Sse::new(changes(service, seen)).keep_alive(KeepAlive::default())
}

/// Returns the events after the message with this number. Each is made when the client takes it: nothing is queued.
fn changes(service: Arc<Service>, seen: u64) -> impl Stream<Item = Result<Event, Infallible>> {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        let mut statuses = service.watch_status();
        let mut seen = seen;
        let mut last_state = None;
        let mut last_sent = tokio::time::Instant::now() - CLIENT_INTERVAL;
        loop {
            for message in service.messages_after(seen) {
                seen = message.id;
                let event = Event::default().event("message").id(seen.to_string());
                let Ok(event) = event.json_data(&message) else { continue };
                if sender.send(Ok(event)).await.is_err() {
                    return;
                }
            }
            let status = service.latest_status();
            if last_state != Some(status.state) || last_sent.elapsed() >= CLIENT_INTERVAL {
                (last_state, last_sent) = (Some(status.state), tokio::time::Instant::now());
                // Statuses have the number of the last message: with it, no message is missed.
                let Ok(event) = Event::default().event("status").id(seen.to_string()).json_data(&*status) else {
                    return;
                };
                if sender.send(Ok(event)).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                () = sender.closed() => return,
                changed = statuses.changed() => if changed.is_err() { return },
            }
        }
    });
    tokio_stream::wrappers::ReceiverStream::new(receiver)
}
