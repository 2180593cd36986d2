//! Posts of alarms and runs to an address of the laboratory: a chat, a log book, a pager.

use serde_json::Value;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// Number of posts that wait while the address does not answer; further ones are left out, and that is logged.
const MAX_WAITING: usize = 100;
/// Time until a post is given up.
const POST_TIME: Duration = Duration::from_secs(5);

/// Poster with a thread of its own: the service does not wait for the address.
#[derive(Debug)]
pub struct Webhook(Option<SyncSender<String>>);

impl Webhook {
    /// Creates a poster to an address; none if that is empty.
    pub fn new(url: &str) -> Self {
        if url.is_empty() {
            return Self(None);
        }
        let (sender, posts) = sync_channel::<String>(MAX_WAITING);
        let url = url.to_owned();
        let started = thread::Builder::new().name("webhook".into()).spawn(move || {
            let agent: ureq::Agent = ureq::Agent::config_builder().timeout_global(Some(POST_TIME)).build().into();
            for body in posts {
                if let Err(error) = agent.post(&url).header("content-type", "application/json").send(body) {
                    tracing::warn!("{url}: {error}");
                }
            }
        });
        if let Err(error) = started {
            tracing::warn!("no thread for posts: {error}");
            return Self(None);
        }
        Self(Some(sender))
    }

    /// Posts a JSON object.
    pub fn post_json(&self, body: &Value) {
        if let Some(sender) = &self.0
            && sender.try_send(body.to_string()).is_err()
        {
            tracing::warn!("the webhook does not answer: a post is left out");
        }
    }
}
