//! Who may do what, and what a client may cost.

use crate::Experiment;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use thalweg_control::access::Role;
use thalweg_control::client::Client;
use thalweg_control::state::ExperimentState;

/// Sends a request as it stands, and returns the answer.
fn send(experiment: &Experiment, request: &str) -> String {
    let mut stream = TcpStream::connect(experiment.url.trim_start_matches("http://")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn post(experiment: &Experiment, token: &str, headers: &str, body: &str) -> String {
    let request = format!(
        "POST /api/v1/commands/stop HTTP/1.1\r\nHost: lab:1\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
         {headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    send(experiment, &request)
}

#[test]
fn what_has_no_right_to_it_is_refused_with_the_reason() {
    let experiment = Experiment::start(&["adc-0"]);
    let operate = experiment.secret(Role::Operate);
    let refused = |answer: &str, code: &str, reason: &str| {
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{answer}");
        assert!(answer.contains(reason), "{answer}");
    };
    refused(&post(&experiment, "guess", "", ""), "401", "this service wants a token");
    refused(&post(&experiment, &experiment.secret(Role::Watch), "", ""), "403", "this needs operate");
    refused(&post(&experiment, &experiment.secret(Role::Node), "", ""), "403", "this needs operate");
    refused(&post(&experiment, &operate, "Origin: http://evil.example\r\n", ""), "403", "evil.example");
    refused(&post(&experiment, &operate, "Origin: null\r\n", ""), "403", "no-access");
    refused(&post(&experiment, &operate, "", &"x".repeat(70_000)), "413", "too-large");
    refused(&post(&experiment, &operate, "", "{\"note\": 1}"), "400", "bad-request");
    // Of its own page, and right: it is the state that refuses.
    refused(&post(&experiment, &operate, "Origin: http://lab:1\r\n", "{}"), "409", "configure the experiment first");
    let operator = experiment.client(Role::Operate);
    let denied = operator.post::<Value>("/api/v1/commands/configure", &json!({})).unwrap_err().to_string();
    assert_eq!(denied, "the token of 'operate' has the role operate, and this needs configure");
    assert!(
        operator
            .post::<Value>("/api/v1/commands/explode", &json!({}))
            .unwrap_err()
            .to_string()
            .contains("there is no command 'explode'")
    );
    assert!(
        operator
            .post::<Value>("/api/v1/runs/7/note", &json!({ "text": "x" }))
            .unwrap_err()
            .to_string()
            .contains("no record of run 7")
    );
    assert!(Client::with_token(&experiment.url, "").get::<Value>("/metrics").is_err());
}

#[test]
fn a_command_whose_client_does_not_wait_is_in_the_audit_log() {
    let experiment = Experiment::start(&["adc-0"]);
    let configure = experiment.secret(Role::Configure);
    let mut stream = TcpStream::connect(experiment.url.trim_start_matches("http://")).unwrap();
    let request = format!(
        "POST /api/v1/commands/configure HTTP/1.1\r\nHost: lab\r\nAuthorization: Bearer {configure}\r\n\
         Content-Length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    experiment.wait_for("the command", |status| status.state != ExperimentState::Idle);
    drop(stream);
    experiment.wait_for_state(ExperimentState::Configured);
    let path = experiment.folder.path().join("runs/.control/audit.jsonl");
    experiment.wait_for("the entry", |_| std::fs::read_to_string(&path).unwrap().contains("commands/configure"));
}

#[test]
fn clients_that_stand_idle_or_read_nothing_keep_no_one_else_out() {
    let experiment = Experiment::start(&["adc-0"]);
    let address = experiment.url.trim_start_matches("http://").to_owned();
    let watch = experiment.secret(Role::Watch);
    // A page that reads nothing.
    let mut stalled = TcpStream::connect(&address).unwrap();
    let request = format!("GET /api/v1/events HTTP/1.1\r\nHost: lab\r\nAuthorization: Bearer {watch}\r\n\r\n");
    stalled.write_all(request.as_bytes()).unwrap();
    // More than there is room for: the oldest of them make room for an operator.
    let connections = std::env::var("THALWEG_IDLE_CONNECTIONS").map_or(1500, |count| count.parse().unwrap());
    let mut idle = Vec::new();
    for count in 1..=connections {
        idle.extend(TcpStream::connect(&address));
        if count % 500 == 0 {
            experiment.client(Role::Watch).get::<Value>("/api/v1/status").unwrap_or_else(|failure| panic!("{failure}"));
            idle.drain(..idle.len().saturating_sub(1000));
        }
    }
    experiment.command(&["configure"]);
}

#[test]
fn the_description_names_each_route_and_the_page_trusts_no_other_site() {
    let experiment = Experiment::start(&["adc-0"]);
    let document: Value = Client::with_token(&experiment.url, "").get("/openapi.json").unwrap();
    assert_eq!(document["openapi"].as_str().map(|version| &version[..3]), Some("3.1"));
    for path in ["/api/v1/status", "/api/v1/commands/{command}", "/api/v1/runs/{run}/flag", "/metrics"] {
        assert!(document["paths"][path].is_object(), "{path}: {document:#}");
    }
    let page = send(&experiment, "GET / HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("default-src 'self'"), "{page}");
}
