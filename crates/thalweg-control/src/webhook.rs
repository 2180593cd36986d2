//! Posts of notices by HTTP: JSON to a webhook or a log book, or the form of an ELOG.

use crate::delivery::Outcome;
use crate::notices::{Notice, NoticeEvent, read_secret};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use ureq::http::{HeaderName, HeaderValue, Response, Uri};
use ureq::tls::{RootCerts, TlsConfig, TlsProvider};

/// Time until an attempt to post is given up.
const POST_TIME: Duration = Duration::from_secs(5);
/// Longest reason of a server that a message shows, in bytes.
const MAX_REASON_BYTES: usize = 300;
/// Placeholder of the secret.
const TOKEN: &str = "{token}";

/// Table `[control.webhook]` or `[control.logbook]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PostConfig {
    /// Address: `http://…` or `https://…`.
    pub url: String,
    /// Events that are posted; all that the table is for if they are left out.
    pub events: Option<Vec<NoticeEvent>>,
    /// Headers of the request. `{token}` stands for the secret.
    pub headers: BTreeMap<String, String>,
    /// File of the secret.
    pub token_file: Option<PathBuf>,
    /// Template of the body; everything about the notice if it is left out.
    pub body: Option<Map<String, Value>>,
    /// Format of the body.
    pub format: PostFormat,
}

/// Format of a post's body.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PostFormat {
    /// A JSON object.
    #[default]
    Json,
    /// The form of an ELOG (`multipart/form-data`, RFC 7578), which answers with a redirect to the new entry.
    Elog,
}

/// Reads a table of a post, or its address alone.
pub(crate) fn url_or_table<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PostConfig>, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::String(url) if url.is_empty() => Ok(None),
        Value::String(url) => Ok(Some(PostConfig { url, ..PostConfig::default() })),
        table => serde_json::from_value(table).map(Some).map_err(serde::de::Error::custom),
    }
}

/// Address to which notices are posted.
#[derive(Debug, Clone, PartialEq)]
pub struct PostDestination {
    /// Events that are posted.
    pub(crate) events: Vec<NoticeEvent>,
    url: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Option<Map<String, Value>>,
    format: PostFormat,
}

impl PostDestination {
    /// Reads the secret of a table, and checks the rest of it. `events` are posted if the table names none.
    ///
    /// # Errors
    /// Something is not right; the sentence says what.
    pub fn from_config(config: &PostConfig, events: &[NoticeEvent]) -> Result<Self, String> {
        let address = config.url.parse::<Uri>().map_err(|error| format!("url {}: {error}", config.url))?;
        if !matches!(address.scheme_str(), Some("http" | "https")) || address.host().is_none_or(str::is_empty) {
            return Err(format!("url '{}': write http://HOST/… or https://HOST/…", config.url));
        }
        let token = config.token_file.as_deref().map(read_secret).transpose()?;
        let mut headers = Vec::new();
        for (name, value) in &config.headers {
            let header = name.parse::<HeaderName>().map_err(|error| format!("headers: {name}: {error}"))?;
            let value = HeaderValue::from_str(&insert_token(value, token.as_deref())?);
            let mut value = value.map_err(|error| format!("headers: {name}: {error}"))?;
            // It is not shown, not even for debugging.
            value.set_sensitive(true);
            headers.push((header, value));
        }
        let body = config.body.clone().map(Value::Object).map(|mut body| {
            check_template(&body, &example_content())?;
            map_texts(&mut body, &|text| insert_token(text, token.as_deref()).map(Value::String))?;
            Ok::<_, String>(body)
        });
        let body = match body.transpose()? {
            Some(Value::Object(body)) => Some(body),
            _ if config.format == PostFormat::Elog => return Err("format = \"elog\" needs a body: its fields".into()),
            _ => None,
        };
        let events = config.events.clone().unwrap_or_else(|| events.to_vec());
        Ok(Self { events, url: config.url.clone(), headers, body, format: config.format })
    }

    /// Posts a notice.
    pub fn deliver_notice(&self, notice: &Notice) -> Outcome {
        let (kind, body) = match (self.format, self.fill_body(&notice.content)) {
            (PostFormat::Json, body) => ("application/json".to_owned(), body.to_string().into_bytes()),
            (PostFormat::Elog, body) => match form_body(&body) {
                Ok(form) => form,
                Err(problem) => return Outcome::Failed(problem),
            },
        };
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .root_certs(RootCerts::PlatformVerifier)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(POST_TIME))
            .http_status_as_error(false)
            // A redirected post would become a request that posts nothing (RFC 9110, sections 15.4.3 and 15.4.4).
            .max_redirects(0)
            .max_redirects_will_error(false)
            .tls_config(tls);
        let agent: ureq::Agent = config.build().into();
        let mut request = agent.post(&self.url).header("content-type", kind);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        match request.send(&body) {
            Err(error) => Outcome::Failed(format!("{}: {error}", self.url)),
            Ok(mut answer) => self.judge_answer(&mut answer),
        }
    }

    /// Returns the body for a notice, before it is put into its format.
    fn fill_body(&self, content: &Value) -> Value {
        let Some(body) = &self.body else { return content.clone() };
        let mut body = Value::Object(body.clone());
        // A template that was checked has nothing to refuse.
        let _ = map_texts(&mut body, &|text| Ok(fill_text(text, content)));
        body
    }

    fn judge_answer(&self, answer: &mut Response<ureq::Body>) -> Outcome {
        let status = answer.status();
        let location = answer.headers().get("location").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let location = thalweg_text::replace_controls(location).into_owned();
        if self.format == PostFormat::Elog {
            // An ELOG that refuses an entry shows its form again, or a page with the reason.
            return match (status.as_u16(), location.contains("fail")) {
                (302 | 303, false) => Outcome::Delivered,
                (302 | 303, true) => Outcome::Refused(format!("{}: wrong name or password", self.url)),
                (500.., _) => Outcome::Failed(format!("{} answers {status}", self.url)),
                _ => Outcome::Refused(format!(
                    "{} answers {status} in place of a redirect to the new entry: a field of the log book is missing or \
                     wrong, or its name and password",
                    self.url
                )),
            };
        }
        let text = answer.body_mut().with_config().limit(1 << 16).read_to_string().unwrap_or_default();
        let mut reason = thalweg_text::replace_controls(text.trim()).into_owned();
        thalweg_node::service::cut_text(&mut reason, MAX_REASON_BYTES);
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        match status.as_u16() {
            200..300 => Outcome::Delivered,
            300..400 => Outcome::Refused(format!("{} answers {status}: set url to {location}", self.url)),
            // RFC 9110, sections 15.5.9 and 15.6; RFC 6585, section 4; RFC 8470, section 5.2.
            408 | 425 | 429 | 500.. => Outcome::Failed(format!("{} answers {status}{reason}", self.url)),
            _ => Outcome::Refused(format!("{} answers {status}{reason}", self.url)),
        }
    }
}

/// Returns a text with the secret in the place of its placeholder.
fn insert_token(text: &str, token: Option<&str>) -> Result<String, String> {
    match token {
        Some(token) => Ok(text.replace(TOKEN, token)),
        None if text.contains(TOKEN) => Err(format!("'{text}' has a {TOKEN}: name its file with token_file")),
        None => Ok(text.to_owned()),
    }
}

/// Returns a content that has all fields that a notice can have.
fn example_content() -> Value {
    let alarm = Notice::of_alarm("", 0.0, &crate::alarms::AlarmView::default());
    let mut content = Notice::of_run("", 0.0, NoticeEvent::Start, &crate::records::RunRecord::default()).content;
    content["alarm"] = alarm.content["alarm"].clone();
    content
}

/// Replaces each text of a template.
fn map_texts(value: &mut Value, replace: &impl Fn(&str) -> Result<Value, String>) -> Result<(), String> {
    match value {
        Value::String(text) => *value = replace(text)?,
        Value::Array(values) => values.iter_mut().try_for_each(|value| map_texts(value, replace))?,
        Value::Object(values) => values.values_mut().try_for_each(|value| map_texts(value, replace))?,
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
    Ok(())
}

/// Piece of a text with placeholders.
#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a str),
    /// Field of a notice, by its path.
    Field(&'a str),
}

/// Returns the pieces of a text. What is in braces is a field, if it looks like one: lower-case words and dots.
fn split_text(mut text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut from = 0;
    while let Some(begin) = text[from..].find('{').map(|place| from + place) {
        let end = text[begin + 1..].find(|c: char| !c.is_ascii_lowercase() && c != '_' && c != '.');
        let end = end.map_or(text.len(), |length| begin + 1 + length);
        if text[end..].starts_with('}') && end > begin + 1 {
            pieces.push(Piece::Text(&text[..begin]));
            pieces.push(Piece::Field(&text[begin + 1..end]));
            (text, from) = (&text[end + 1..], 0);
        } else {
            from = begin + 1;
        }
    }
    pieces.push(Piece::Text(text));
    pieces.retain(|piece| *piece != Piece::Text(""));
    pieces
}

fn find_field<'a>(content: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(content, |value, key| value.get(key))
}

fn check_template(value: &Value, example: &Value) -> Result<(), String> {
    let mut template = value.clone();
    map_texts(&mut template, &|text| {
        let unknown = split_text(text).into_iter().find_map(|piece| match piece {
            Piece::Field("token") => None,
            Piece::Field(path) => find_field(example, path).is_none().then_some(path),
            Piece::Text(_) => None,
        });
        match unknown {
            Some(path) => Err(format!("body: '{text}': a notice has no field {{{path}}}")),
            None => Ok(Value::Null),
        }
    })
}

/// Returns a text of a template with the fields of a notice in it. A text that is one field alone becomes its value.
fn fill_text(text: &str, content: &Value) -> Value {
    let pieces = split_text(text);
    if let [Piece::Field(path)] = pieces.as_slice() {
        return find_field(content, path).cloned().unwrap_or_default();
    }
    let texts = pieces.into_iter().map(|piece| match piece {
        Piece::Text(text) => text.to_owned(),
        Piece::Field(path) => plain_text(find_field(content, path).unwrap_or(&Value::Null)),
    });
    Value::String(texts.collect())
}

fn plain_text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

/// Returns the content type and the body of a form (RFC 7578, section 4), with the fields of an object.
fn form_body(fields: &Value) -> Result<(String, Vec<u8>), String> {
    let mut random = [0; 16];
    // RFC 2046, section 5.1.1: the boundary is in no field. Of 128 bits that a sender of notes cannot know.
    getrandom::fill(&mut random).map_err(|error| error.to_string())?;
    let boundary: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut body = String::new();
    for (name, value) in fields.as_object().into_iter().flatten() {
        // As browsers escape names (HTML, section 4.10.21.8).
        let name = name.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A");
        let value = plain_text(value);
        body += &format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
    }
    body += &format!("--{boundary}--\r\n");
    Ok((format!("multipart/form-data; boundary={boundary}"), body.into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn config(table: &str) -> PostConfig {
        toml::from_str(table).unwrap()
    }

    fn open(table: &str) -> Result<PostDestination, String> {
        PostDestination::from_config(&config(table), &NoticeEvent::ALL)
    }

    #[test]
    fn a_template_has_the_fields_of_a_notice_with_their_types() {
        let post = open(
            r#"
            url = "https://ntfy.example/"
            [body]
            topic = "daq"
            priority = 4
            size = "{run.bytes}"
            message = "{experiment}: {text} {run.number}{alarm.text} {not a field} {"
            tags = ["{event}"]
            "#,
        )
        .unwrap();
        let record = crate::records::RunRecord { number: 7, bytes: 12, note: "a {text}".into(), ..Default::default() };
        let body = post.fill_body(&Notice::of_run("lab", 0.0, NoticeEvent::Start, &record).content);
        let message = "lab: run 7 (physics) has begun: a {text} 7 {not a field} {";
        let expected = json!({ "topic": "daq", "priority": 4, "size": 12, "message": message, "tags": ["start"] });
        assert_eq!(body, expected, "what a note says is no template");
    }

    #[test]
    fn what_is_wrong_is_found_before_anything_is_sent() {
        let wrong = |table: &str| open(table).unwrap_err();
        assert!(wrong("url = 'mattermost'").contains("https://HOST"));
        assert!(wrong("url = 'http://x'\nbody = { a = '{run.colour}' }").contains("no field {run.colour}"));
        assert!(wrong("url = 'http://x'\nheaders = { Authorization = 'Bearer {token}' }").contains("token_file"));
        assert!(wrong("url = 'http://x'\nheaders = { 'a b' = 'c' }").contains("a b"));
        assert!(wrong("url = 'http://x'\nformat = 'elog'").contains("its fields"));
        assert!(toml::from_str::<PostConfig>("url = 'http://x'\nevents = ['beam']").is_err());
    }

    #[test]
    fn a_form_has_one_part_for_each_field() {
        let (kind, body) = form_body(&json!({ "cmd": "Submit", "Run": 7, "a\"b": "x\r\n--y" })).unwrap();
        let boundary = kind.strip_prefix("multipart/form-data; boundary=").unwrap();
        let body = String::from_utf8(body).unwrap();
        assert_eq!(body.matches(boundary).count(), 4);
        assert!(body.contains("name=\"Run\"\r\n\r\n7\r\n--") && body.contains("name=\"a%22b\""), "{body}");
    }

    proptest! {
        #[test]
        fn any_text_is_a_template_and_keeps_what_is_no_field(text in "[{}a-c._ é]{0,40}") {
            let pieces = split_text(&text);
            let rebuilt: String = pieces
                .iter()
                .map(|piece| match piece {
                    Piece::Text(text) => (*text).to_owned(),
                    Piece::Field(path) => format!("{{{path}}}"),
                })
                .collect();
            prop_assert_eq!(&rebuilt, &text);
            let _ = fill_text(&text, &json!({ "a": { "b": [1] }, "c": null }));
        }
    }
}
