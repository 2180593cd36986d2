//! etcd as the place of an experiment's numbers, records and services, where several services share them.
//!
//! Keys begin with the prefix of the experiment: `number` is the last number that was given out, `reserved/N` the request
//! that has reserved number N, `runs/N` the record of run N, and `services/ID` a service that is up, under a lease. The HTTP gateway of etcd (`/v3`) is used, by which all
//! of it is open to `curl` and to a proxy, too.

use crate::numbers::NumberError;
use crate::records::{MAX_RUNS, RunRecord};
use crate::status::ServiceView;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::{Value, json};
use std::time::Duration;
use thiserror::Error;

/// Time until a request to one endpoint is given up.
const REQUEST_TIME: Duration = Duration::from_millis(1500);
/// Time for which the key of a service outlives it, in seconds.
const LEASE_TIME_SECONDS: u32 = 5;
/// Longest answer, in bytes: the records of [`MAX_RUNS`] runs.
const MAX_ANSWER_BYTES: u64 = 64 << 20;
/// Number of services that are shown.
const MAX_SERVICES: usize = 100;
/// Number of services that can take a number before this one in one attempt.
const MAX_CONFLICTS: usize = 100;

/// Table `[control.etcd]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdConfig {
    /// Addresses of the members of etcd: `http://HOST:2379`. The first that answers is used.
    pub endpoints: Vec<String>,
    /// Beginning of the keys; `thalweg/` and the name of the experiment if it is empty.
    #[serde(default)]
    pub prefix: String,
}

/// Reason why etcd did not do something.
#[derive(Debug, Clone, Error)]
pub enum EtcdError {
    /// Endpoints of which none answers; what was asked for may have been done.
    #[error("etcd does not answer: {0}")]
    NoAnswer(String),
    /// Request that etcd refused.
    #[error("etcd refuses: {0}")]
    Refused(String),
    /// Value that another program has written.
    #[error("etcd: the key {key} holds '{value}': {expected}")]
    Value {
        /// The key.
        key: String,
        /// Beginning of the value.
        value: String,
        /// Expected value, in a sentence.
        expected: &'static str,
    },
}

/// Numbers, records and services of an experiment in etcd.
#[derive(Debug)]
pub struct EtcdStore {
    agent: ureq::Agent,
    /// Endpoints, the one that answered last first.
    endpoints: Vec<String>,
    prefix: String,
    /// Lease of this service's key; `None` before the first, and after it has run out.
    lease: Option<String>,
    /// This service, as its key has it.
    shown: Option<ServiceView>,
    /// Reservation that etcd did not answer.
    doubt: Option<Doubt>,
    /// Revision of etcd up to which changes of records were returned.
    seen_revision: u64,
}

/// Reservation of which it is not known whether it was carried out.
#[derive(Debug, Clone)]
struct Doubt {
    record: RunRecord,
    /// Name of the request.
    request: String,
    /// Revision of the last number, before the reservation.
    revision: u64,
    /// The last number, before the reservation.
    last: Option<u32>,
}

/// Value of a key.
#[derive(Debug, Clone, Default)]
struct Entry {
    value: String,
    revision: u64,
}

impl EtcdStore {
    /// Creates the store of an experiment.
    pub fn new(config: &EtcdConfig, experiment: &str) -> Self {
        let agent = ureq::Agent::config_builder().timeout_global(Some(REQUEST_TIME)).http_status_as_error(false);
        // A connection that the other end has closed meanwhile would lose the next request, which may not be sent twice.
        let agent = agent.max_idle_connections(0);
        let prefix = match config.prefix.trim_end_matches('/') {
            "" => format!("thalweg/{experiment}"),
            prefix => prefix.to_owned(),
        };
        let endpoints = config.endpoints.iter().map(|endpoint| endpoint.trim_end_matches('/').to_owned()).collect();
        Self { agent: agent.build().into(), endpoints, prefix, lease: None, shown: None, doubt: None, seen_revision: 0 }
    }

    /// Returns the last number that was given out; `None` if there was none.
    ///
    /// # Errors
    /// etcd does not answer, or holds something else.
    pub fn last_number(&mut self) -> Result<Option<u32>, EtcdError> {
        Ok(self.read_number()?.0)
    }

    /// Reserves the next number, at least that of the record, which is kept under the number in the same transaction.
    /// Returns the record with its number.
    ///
    /// # Errors
    /// etcd does not answer, refuses, or holds something else.
    pub fn reserve_number(&mut self, draft: &RunRecord) -> Result<RunRecord, NumberError> {
        self.settle_doubt()?;
        let request = format!("{:016x}", getrandom::u64().map_err(|error| EtcdError::Refused(error.to_string()))?);
        for _ in 0..MAX_CONFLICTS {
            let (last, revision) = self.read_number()?;
            let next = last.map_or(Some(0), |last| last.checked_add(1)).ok_or(NumberError::Exhausted)?;
            let record = RunRecord { number: next.max(draft.number), ..draft.clone() };
            let changes = [
                (self.number_key(), record.number.to_string()),
                (self.request_key(record.number), request.clone()),
                (self.run_key(record.number), to_json(&record)),
            ];
            let reserved = self.put_if_unchanged(&self.number_key(), revision, &changes);
            // An endpoint that did not answer may have carried it out, before another one refused it.
            let reserved = match reserved {
                Ok(false) => self.has_reserved(record.number, &request),
                reserved => reserved,
            };
            match reserved {
                Ok(true) => return Ok(record),
                Ok(false) => {}
                Err(error) => {
                    self.doubt = Some(Doubt { record, request, revision, last });
                    return Err(error.into());
                }
            }
        }
        Err(EtcdError::Refused("other services took all numbers".into()).into())
    }

    /// Finds out what became of a reservation that was not answered. If the number was reserved, its record is closed as
    /// that of a run that failed.
    ///
    /// # Errors
    /// etcd does not answer.
    pub fn settle_doubt(&mut self) -> Result<(), EtcdError> {
        let Some(Doubt { record, request, revision, last }) = self.doubt.clone() else { return Ok(()) };
        // With the same number written anew, the reservation can no longer be carried out.
        let same = last.map(|last| last.to_string()).unwrap_or_default();
        let key = self.number_key();
        let is_fenced = self.put_if_unchanged(&key, revision, &[(key.clone(), same)])?;
        if !is_fenced && self.has_reserved(record.number, &request)? {
            self.merge_record(&record.failed("etcd did not answer whether its number was reserved"))?;
        }
        self.doubt = None;
        Ok(())
    }

    /// Merges a record into that which is kept of the run.
    ///
    /// # Errors
    /// etcd does not answer, or refuses.
    pub fn merge_record(&mut self, record: &RunRecord) -> Result<(), EtcdError> {
        let key = self.run_key(record.number);
        for _ in 0..MAX_CONFLICTS {
            let Entry { value, revision } = self.read_entry(&key)?;
            let merged = match serde_json::from_str::<RunRecord>(&value) {
                Ok(kept) => kept.merge(record),
                Err(_) => record.clone(),
            };
            let merged = to_json(&merged);
            if merged == value || self.put_if_unchanged(&key, revision, &[(key.clone(), merged)])? {
                return Ok(());
            }
        }
        Err(EtcdError::Refused("other services change the record all the time".into()))
    }

    /// Returns the records of the newest runs that were changed since the last call.
    ///
    /// # Errors
    /// etcd does not answer.
    pub fn changed_records(&mut self) -> Result<Vec<RunRecord>, EtcdError> {
        let prefix = format!("{}/runs/", self.prefix);
        let (entries, revision) = self.read_prefix(&prefix, MAX_RUNS, self.seen_revision + 1)?;
        self.seen_revision = revision;
        Ok(entries.iter().filter_map(|entry| serde_json::from_str(&entry.value).ok()).collect())
    }

    /// Keeps the key of this service, and returns the services that are up.
    ///
    /// # Errors
    /// etcd does not answer.
    pub fn keep_service(&mut self, id: &str, service: &ServiceView) -> Result<Vec<ServiceView>, EtcdError> {
        if let Some(lease) = &self.lease {
            let kept = self.post("lease/keepalive", &json!({ "ID": lease }))?;
            if kept["result"]["TTL"].as_str().is_none_or(|time| time == "0") {
                self.lease = None;
            }
        }
        if self.lease.is_none() || self.shown.as_ref() != Some(service) {
            let lease = match self.lease.take() {
                Some(lease) => lease,
                None => {
                    let granted = self.post("lease/grant", &json!({ "TTL": LEASE_TIME_SECONDS }))?;
                    granted["ID"].as_str().map(str::to_owned).ok_or_else(|| EtcdError::Refused(granted.to_string()))?
                }
            };
            let key = encode(&format!("{}/services/{id}", self.prefix));
            self.post("kv/put", &json!({ "key": key, "value": encode(&to_json(service)), "lease": lease }))?;
            (self.lease, self.shown) = (Some(lease), Some(service.clone()));
        }
        let (entries, _) = self.read_prefix(&format!("{}/services/", self.prefix), MAX_SERVICES, 0)?;
        Ok(entries.iter().filter_map(|entry| serde_json::from_str(&entry.value).ok()).collect())
    }

    fn number_key(&self) -> String {
        format!("{}/number", self.prefix)
    }

    fn run_key(&self, number: u32) -> String {
        format!("{}/runs/{number:010}", self.prefix)
    }

    fn request_key(&self, number: u32) -> String {
        format!("{}/reserved/{number:010}", self.prefix)
    }

    fn has_reserved(&mut self, number: u32, request: &str) -> Result<bool, EtcdError> {
        Ok(self.read_entry(&self.request_key(number))?.value == request)
    }

    /// Returns the last number, and its revision: 0 if there is none.
    fn read_number(&mut self) -> Result<(Option<u32>, u64), EtcdError> {
        let key = self.number_key();
        let Entry { value, revision } = self.read_entry(&key)?;
        if value.is_empty() {
            return Ok((None, revision));
        }
        let expected = "write the number of the last run into it";
        let number = value.trim().parse();
        number.map(|number| (Some(number), revision)).map_err(|_| EtcdError::Value {
            key,
            value: value.chars().take(40).collect::<String>().escape_debug().to_string(),
            expected,
        })
    }

    fn read_entry(&mut self, key: &str) -> Result<Entry, EtcdError> {
        let answer = self.post("kv/range", &json!({ "key": encode(key) }))?;
        Ok(entries_of(&answer).into_iter().next().unwrap_or_default())
    }

    /// Returns the values of keys with this prefix that were changed at this revision or later, the last of them first,
    /// and the revision of etcd.
    fn read_prefix(&mut self, prefix: &str, limit: usize, since: u64) -> Result<(Vec<Entry>, u64), EtcdError> {
        let mut end = prefix.as_bytes().to_vec();
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        let answer = self.post(
            "kv/range",
            &json!({
                "key": encode(prefix), "range_end": BASE64.encode(end), "limit": limit.to_string(),
                "sort_order": "DESCEND", "sort_target": "KEY", "min_mod_revision": since.to_string(),
            }),
        )?;
        let revision = answer["header"]["revision"].as_str().and_then(|revision| revision.parse().ok());
        let revision = revision.ok_or_else(|| EtcdError::Refused("its answer has no revision".into()))?;
        Ok((entries_of(&answer), revision))
    }

    /// Writes values if a key has still this revision, which is 0 for one that was never written. Returns whether it has.
    fn put_if_unchanged(&mut self, key: &str, revision: u64, changes: &[(String, String)]) -> Result<bool, EtcdError> {
        let unchanged = json!({
            "key": encode(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string(),
        });
        let puts: Vec<Value> = changes
            .iter()
            .map(|(key, value)| json!({ "request_put": { "key": encode(key), "value": encode(value) } }))
            .collect();
        let answer = self.post("kv/txn", &json!({ "compare": [unchanged], "success": puts }))?;
        Ok(answer["succeeded"].as_bool().unwrap_or(false))
    }

    /// Posts a request to the first endpoint that answers.
    fn post(&mut self, path: &str, body: &Value) -> Result<Value, EtcdError> {
        let mut problems = Vec::new();
        for index in 0..self.endpoints.len() {
            let endpoint = &self.endpoints[index];
            match self.post_to(endpoint, path, body) {
                Ok((200, answer)) => {
                    self.endpoints.rotate_left(index);
                    return Ok(answer);
                }
                // Without a leader, another endpoint may have one.
                Ok((status, answer)) if status >= 500 => problems.push(format!("{endpoint}: {}", error_of(&answer))),
                Ok((_, answer)) => return Err(EtcdError::Refused(format!("{endpoint}: {}", error_of(&answer)))),
                Err(problem) => problems.push(format!("{endpoint}: {problem}")),
            }
        }
        Err(EtcdError::NoAnswer(problems.join("; ")))
    }

    fn post_to(&self, endpoint: &str, path: &str, body: &Value) -> Result<(u16, Value), String> {
        let request = self.agent.post(format!("{endpoint}/v3/{path}")).header("content-type", "application/json");
        let mut answer = request.send(body.to_string()).map_err(|error| error.to_string())?;
        let text = answer.body_mut().with_config().limit(MAX_ANSWER_BYTES).read_to_string();
        let text = text.map_err(|error| error.to_string())?;
        let value = serde_json::from_str(text.trim()).map_err(|_| "its answer is not that of etcd".to_owned())?;
        Ok((answer.status().as_u16(), value))
    }
}

fn encode(text: &str) -> String {
    BASE64.encode(text)
}

fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

fn error_of(answer: &Value) -> String {
    let error = answer["error"].as_str().or(answer["message"].as_str()).unwrap_or("no reason given");
    thalweg_text::replace_controls(error).into_owned()
}

/// Returns the values in the answer to a range request.
fn entries_of(answer: &Value) -> Vec<Entry> {
    answer["kvs"].as_array().into_iter().flatten().filter_map(decode_entry).collect()
}

fn decode_entry(entry: &Value) -> Option<Entry> {
    let value = BASE64.decode(entry["value"].as_str().unwrap_or_default()).ok()?;
    let revision = entry["mod_revision"].as_str()?.parse().ok()?;
    Some(Entry { value: String::from_utf8_lossy(&value).into_owned(), revision })
}
