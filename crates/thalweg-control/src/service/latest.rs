//! Latest fragments of sources: fetched from the first builder once for all clients that look at the same.

use super::Service;
use axum::body::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thalweg_node::service::ToNode;
use tokio::sync::oneshot;

/// Longest time until a node sends the latest fragment of a source.
const LATEST_TIME: Duration = Duration::from_secs(2);
/// Time for which a fragment is the latest one: clients that ask meanwhile get the same.
const FRESH_TIME: Duration = Duration::from_millis(80);
/// Widths are multiples of this, so that clients whose windows are about as wide look at the same.
const WIDTH_STEP: u32 = 64;

/// Fragments that were fetched, by source and width.
#[derive(Debug, Default)]
pub(super) struct LatestFragments(Mutex<BTreeMap<(String, u32), Shared>>);

/// Fragment, locked while it is fetched.
type Shared = Arc<tokio::sync::Mutex<Option<Fetched>>>;

#[derive(Debug)]
struct Fetched {
    json: Bytes,
    at: Instant,
}

impl Fetched {
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < FRESH_TIME
    }
}

impl LatestFragments {
    /// Returns the place of a fragment. Those that no client waits for are forgotten.
    fn place_of(&self, source: &str, width: u32) -> Shared {
        let mut places = self.0.lock();
        places.retain(|_, place| {
            let is_fresh = || place.try_lock().is_ok_and(|fetched| fetched.as_ref().is_some_and(Fetched::is_fresh));
            Arc::strong_count(place) > 1 || is_fresh()
        });
        Arc::clone(places.entry((source.to_owned(), width)).or_default())
    }
}

impl Service {
    /// Returns the latest fragment of a source as JSON, in at most `width` columns; `null` if there is none yet.
    ///
    /// # Errors
    /// There is no such source, or no builder that is connected, or it does not answer.
    pub async fn latest_fragment(&self, source: &str, width: u32) -> Result<Bytes, String> {
        let width = if width < WIDTH_STEP { width } else { width - width % WIDTH_STEP };
        let (place, asked) = (self.latest.place_of(source, width), Instant::now());
        let mut fetched = place.lock().await;
        if let Some(fetched) = fetched.as_ref().filter(|fetched| fetched.at >= asked || fetched.is_fresh()) {
            return Ok(fetched.json.clone());
        }
        let json = Bytes::from(self.fetch_fragment(source, width).await?.to_string());
        *fetched = Some(Fetched { json: json.clone(), at: Instant::now() });
        Ok(json)
    }

    async fn fetch_fragment(&self, source: &str, width: u32) -> Result<serde_json::Value, String> {
        let answered = {
            let mut inner = self.inner.lock();
            let topology = inner.experiment.topology();
            let index = topology.sources.iter().position(|other| other.name == source);
            let index = index.ok_or_else(|| format!("the topology has no source '{source}'"))?;
            let builder = topology.builders.first().map(|builder| builder.name.clone()).unwrap_or_default();
            if !inner.links.contains_key(&builder) {
                return Err(format!("builder '{builder}' is not connected to this service"));
            }
            inner.last_ticket += 1;
            let id = inner.last_ticket;
            let (answer, answered) = oneshot::channel();
            // Those whose clients are gone.
            inner.latest.retain(|_, waiting| !waiting.is_closed());
            inner.latest.insert(id, answer);
            inner.send_to_node(&builder, ToNode::Latest { id, source: index, width });
            answered
        };
        match tokio::time::timeout(LATEST_TIME, answered).await {
            Ok(Ok(latest)) => Ok(latest),
            _ => Err("the first builder does not answer".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::service::tests::{hello, open_service};
    use std::net::SocketAddr;
    use std::sync::Arc;
    use thalweg_node::service::{FromNode, ToNode};

    #[tokio::test]
    async fn clients_that_look_at_the_same_cost_the_builder_one_answer() {
        let folder = tempfile::tempdir().unwrap();
        let service = open_service(folder.path());
        let (_, mut messages) = service.connect_node(hello(), SocketAddr::from(([127, 0, 0, 1], 1))).unwrap();
        let clients: Vec<_> = (0..50)
            .map(|client| {
                let service = Arc::clone(&service);
                tokio::spawn(async move { service.latest_fragment("adc", 640 + client).await })
            })
            .collect();
        let Some(ToNode::Latest { id, width, .. }) = messages.recv().await else { panic!("the builder is asked") };
        assert_eq!(width, 640);
        service.handle_node_message("builder", FromNode::Latest { id, latest: serde_json::json!({ "event": 7 }) });
        for client in clients {
            assert_eq!(client.await.unwrap().unwrap(), "{\"event\":7}");
        }
        assert!(messages.try_recv().is_err(), "it was asked once");
    }
}
