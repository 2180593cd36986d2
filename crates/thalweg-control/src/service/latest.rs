//! Latest fragments of sources: fetched from the first builder once for all clients, in as many columns as the widest of
//! them shows, and made smaller here for the others.

mod form;

use super::Service;
use axum::body::Bytes;
pub(crate) use form::{LatestBytes, LatestForm, LatestView};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thalweg_node::service::ToNode;
use thalweg_node::service::latest::{LatestAnswer, LatestFragment};
use tokio::sync::oneshot;

/// Longest time until a node sends the latest fragment of a source: it sends long ones at intervals of a second.
const LATEST_TIME: Duration = Duration::from_secs(4);
/// Time for which a fragment is the latest one: clients that ask meanwhile get the same.
const FRESH_TIME: Duration = Duration::from_millis(80);
/// Time for which a fragment is kept that no client asks for, and the width of the widest client with it.
const KEEP_TIME: Duration = Duration::from_secs(1);
/// Widths are multiples of this, so that clients whose windows are about as wide look at the same.
const WIDTH_STEP: u32 = 64;

/// Fragments that were fetched, by source.
#[derive(Debug, Default)]
pub(super) struct LatestFragments(Mutex<BTreeMap<String, Shared>>);

/// Fragment, locked while it is fetched.
type Shared = Arc<tokio::sync::Mutex<Option<Fetched>>>;

#[derive(Debug)]
struct Fetched {
    fragment: Option<LatestFragment>,
    /// Number of columns with which it was fetched.
    width: u32,
    at: Instant,
    /// Bodies of answers, by width and form.
    bodies: BTreeMap<(u32, LatestForm), Bytes>,
}

impl Fetched {
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < FRESH_TIME
    }

    /// Returns whether a client that asked at a time can have this.
    fn can_serve(&self, width: u32, asked: Instant) -> bool {
        self.width >= width && (self.at >= asked || self.is_fresh())
    }

    /// Returns the number of columns that the widest client has asked for.
    fn widest_request(&self) -> u32 {
        self.bodies.keys().next_back().map_or(0, |(width, _)| *width)
    }

    fn body_in_form(&mut self, width: u32, form: LatestForm) -> Bytes {
        let body = self.bodies.entry((width, form));
        body.or_insert_with(|| form.body_of(self.fragment.as_ref().map(|latest| latest.in_columns(width)).as_ref()))
            .clone()
    }
}

impl LatestFragments {
    /// Returns the place of a source. Those that no client has asked for lately are forgotten.
    fn place_of(&self, source: &str) -> Shared {
        let mut places = self.0.lock();
        places.retain(|_, place| {
            let fetched = place.try_lock();
            let is_kept = |fetched: &Fetched| fetched.at.elapsed() < KEEP_TIME;
            Arc::strong_count(place) > 1 || fetched.is_ok_and(|fetched| fetched.as_ref().is_some_and(is_kept))
        });
        Arc::clone(places.entry(source.to_owned()).or_default())
    }
}

impl Service {
    /// Returns the latest fragment of a source in at most `width` columns.
    ///
    /// # Errors
    /// There is no such source, or no builder that is connected, or it does not answer.
    pub(crate) async fn latest_fragment(&self, source: &str, width: u32, form: LatestForm) -> Result<Bytes, String> {
        let width = if width < WIDTH_STEP { width } else { width - width % WIDTH_STEP };
        let (place, asked) = (self.latest.place_of(source), Instant::now());
        let mut fetched = place.lock().await;
        if let Some(fetched) = fetched.as_mut().filter(|fetched| fetched.can_serve(width, asked)) {
            return Ok(fetched.body_in_form(width, form));
        }
        // The widest of those that asked for the last one asks for this one, too.
        let widest = fetched.as_ref().map_or(0, Fetched::widest_request).max(width);
        let fragment = self.fetch_fragment(source, widest).await?;
        let bodies = BTreeMap::new();
        let fetched = fetched.insert(Fetched { fragment, width: widest, at: Instant::now(), bodies });
        Ok(fetched.body_in_form(width, form))
    }

    async fn fetch_fragment(&self, source: &str, width: u32) -> Result<Option<LatestFragment>, String> {
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

    /// Takes the answer of a node to a request for the latest fragment of a source.
    pub(crate) fn handle_latest_answer(&self, answer: LatestAnswer) {
        if let Some(waiting) = self.inner.lock().latest.remove(&answer.id) {
            // A client that is gone does not want it any more.
            let _ = waiting.send(answer.fragment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::tests::{hello, open_service};
    use std::net::SocketAddr;
    use thalweg_node::service::latest::{Content, FragmentHead};

    fn image(size: u32) -> LatestFragment {
        let pixels: Vec<u8> = (0..size).flat_map(|row| (0..size).map(move |column| (row + column) as u8)).collect();
        LatestFragment {
            head: FragmentHead {
                source: "adc".into(),
                run: 3,
                event: 1 << 60,
                bytes: pixels.len() as u64,
                payload_type: 2,
                is_simulated: true,
                content: Content::Image { width: size, height: size, full_width: size, full_height: size },
            },
            numbers: pixels.into(),
        }
    }

    #[tokio::test]
    async fn clients_that_look_at_the_same_source_cost_the_builder_one_answer_as_wide_as_the_widest() {
        let folder = tempfile::tempdir().unwrap();
        let service = open_service(folder.path());
        let (_, mut messages) = service.connect_node(hello(), SocketAddr::from(([127, 0, 0, 1], 1))).unwrap();
        let ask = |width: u32| {
            let service = Arc::clone(&service);
            tokio::spawn(async move { service.latest_fragment("adc", width, LatestForm::Json).await })
        };
        // Held, so that it is not forgotten however long the clients take.
        let place = service.latest.place_of("adc");
        let widest = ask(256);
        let clients: Vec<_> = (0..50).map(|client| ask(128 + client)).collect();
        let Some(ToNode::Latest { id, width, .. }) = messages.recv().await else { panic!("the builder is asked") };
        assert_eq!(width, 256);
        service.handle_latest_answer(LatestAnswer { id, fragment: Some(image(256)) });
        let view: serde_json::Value = serde_json::from_slice(&widest.await.unwrap().unwrap()).unwrap();
        assert_eq!((&view["image"]["width"], &view["event_text"]), (&256.into(), &"1152921504606846976".into()));
        for client in clients {
            let view: serde_json::Value = serde_json::from_slice(&client.await.unwrap().unwrap()).unwrap();
            assert_eq!((&view["image"]["width"], &view["image"]["full_width"]), (&128.into(), &256.into()));
        }
        assert!(messages.try_recv().is_err(), "it was asked once");
        place.lock().await.as_mut().unwrap().at = Instant::now() - FRESH_TIME;
        let _narrow = ask(128);
        let Some(ToNode::Latest { width, .. }) = messages.recv().await else { panic!("the builder is asked again") };
        assert_eq!(width, 256, "the widest client is expected to ask again");
    }
}
