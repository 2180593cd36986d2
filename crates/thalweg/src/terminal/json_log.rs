//! Log as JSON, one object on a line: `time`, `level`, `message`, the fields of the line, and the `node` and the `run` of
//! the thread that wrote it.

use crate::terminal::outlet;
use serde_json::{Map, Value};
use std::fmt;
use std::io::Write;
use std::time::SystemTime;
use thalweg_node::log_context::{LogContext, current_context};
use thalweg_node::service::cut_text;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, Layer};

/// Number of fields of a line, without those that each line has.
const MAX_FIELDS: usize = 32;
/// Fields that are kept where a line would be too long.
const ESSENTIAL_FIELDS: [&str; 5] = ["message", "node", "run", "source", "event"];

/// Layer of the log that writes it as JSON.
#[derive(Debug)]
pub(super) struct JsonLog;

impl<S: Subscriber> Layer<S> for JsonLog {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let time = humantime::format_rfc3339_micros(SystemTime::now());
        let head = format!("{{\"time\":\"{time}\",\"level\":\"{}\",", event.metadata().level());
        let mut fields = Fields(Map::new());
        event.record(&mut fields);
        let line = line_text(&head, fields.0, current_context());
        // A log that cannot be written cannot say so.
        let _ = outlet::Log.make_writer_for(event.metadata()).write_all(&line);
    }
}

/// Returns the line that begins with `head` and has these fields. One that is too long is made shorter, and stays JSON.
fn line_text(head: &str, mut fields: Map<String, Value>, context: LogContext) -> Vec<u8> {
    fields.entry("message").or_insert_with(|| "".into());
    if let Some(node) = context.node {
        fields.entry("node").or_insert_with(|| node.as_ref().into());
    }
    if let Some(run) = context.run {
        fields.entry("run").or_insert_with(|| run.into());
    }
    let mut limit = outlet::LONGEST_LINE;
    loop {
        let body = Value::Object(fields.clone()).to_string();
        let line = format!("{head}{}\n", body.trim_start_matches('{')).into_bytes();
        if line.len() + outlet::REPEATED_BYTES <= outlet::LONGEST_LINE || limit < 16 {
            return line;
        }
        limit /= 2;
        fields.retain(|name, _| ESSENTIAL_FIELDS.contains(&name.as_str()));
        for value in fields.values_mut() {
            if let Value::String(text) = value {
                cut_text(text, limit);
            }
        }
    }
}

/// Fields of a line.
struct Fields(Map<String, Value>);

impl Fields {
    fn add_field(&mut self, field: &Field, value: impl Into<Value>) {
        if self.0.len() < MAX_FIELDS {
            self.0.insert(field.name().to_owned(), value.into());
        }
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add_field(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add_field(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add_field(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add_field(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add_field(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add_field(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_has_the_node_and_the_run_of_its_thread_unless_it_names_others() {
        let context = LogContext { node: Some("builder".into()), run: Some(7) };
        let fields = json!({ "message": "lost", "event": 12, "node": "adc-0" });
        let line = line_text("{\"level\":\"WARN\",", fields.as_object().unwrap().clone(), context);
        let line: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(line, json!({ "level": "WARN", "message": "lost", "event": 12, "node": "adc-0", "run": 7 }));
    }

    #[test]
    fn any_line_is_one_json_object_of_bounded_length() {
        for text in ["x", "\u{1}", "\"\\\n", "é\u{1f600}"] {
            for times in [1, 100, 4000, 100_000] {
                let text = text.repeat(times);
                let fields = json!({ "message": text, "event": 12, "path": text });
                let fields = fields.as_object().unwrap().clone();
                let line = line_text("{\"level\":\"WARN\",", fields, LogContext::default());
                assert!(line.len() <= outlet::LONGEST_LINE);
                assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
                let line: Value = serde_json::from_slice(&line).unwrap();
                assert_eq!((&line["event"], &line["level"]), (&json!(12), &json!("WARN")));
            }
        }
    }
}
