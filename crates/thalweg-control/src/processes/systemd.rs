//! Nodes as units of systemd, by `systemctl` and `journalctl`, on this host or by ssh on another one.

use super::Observation;
use super::command::{quote_word, run_command, shell_command};

/// Properties of a unit that are read: see systemctl(1), `show`, and org.freedesktop.systemd1(5).
const PROPERTIES: &str = "LoadState,ActiveState,SubState,Result,ExecMainStatus,StatusText";

/// Unit of systemd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Name of the host, as ssh knows it; `None` for that of the service.
    pub host: Option<String>,
    /// Name of the unit.
    pub name: String,
}

impl Unit {
    /// Starts it, also if it was started too often before.
    ///
    /// # Errors
    /// systemd refuses that, or the host does not answer.
    pub async fn start_unit(&self) -> Result<(), String> {
        // Whether it has failed before is of no interest to `start`.
        let name = quote_word(&self.name);
        self.run_script(&format!("systemctl reset-failed -- {name} 2>/dev/null; systemctl start --no-block -- {name}"))
            .await
            .map(drop)
    }

    /// Ends it: a run that it takes part in is ended first.
    ///
    /// # Errors
    /// systemd refuses that, or the host does not answer.
    pub async fn stop_unit(&self) -> Result<(), String> {
        self.run_script(&format!("systemctl stop --no-block -- {}", quote_word(&self.name))).await.map(drop)
    }

    /// Returns its state.
    ///
    /// # Errors
    /// The host does not answer.
    pub async fn observe_unit(&self) -> Result<Observation, String> {
        let text =
            self.run_script(&format!("systemctl show --property={PROPERTIES} -- {}", quote_word(&self.name))).await?;
        let place = self.host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
        Ok(read_properties(&text, &format!("unit {}{place}", self.name)))
    }

    /// Returns the last lines of its log.
    ///
    /// # Errors
    /// The host does not answer, or its user may not read the journal.
    pub async fn read_journal(&self, lines: usize) -> Result<String, String> {
        let name = quote_word(&self.name);
        let script = format!("journalctl --quiet --no-pager --output=short-iso --lines={lines} --unit={name}");
        self.run_script(&script).await
    }

    async fn run_script(&self, script: &str) -> Result<String, String> {
        let result = run_command(shell_command(self.host.as_deref(), script), "").await;
        result.map_err(|problem| match &self.host {
            Some(host) => format!("{} on {host}: {problem}", self.name),
            None => format!("{}: {problem}", self.name),
        })
    }
}

/// Returns the state of a unit whose node is not connected, from what `systemctl show` prints: lines `NAME=VALUE`.
/// `unit` is how to name it.
fn read_properties(text: &str, unit: &str) -> Observation {
    let [load, active, result] = ["LoadState", "ActiveState", "Result"].map(|name| property_of(text, name));
    let detail = match property_of(text, "StatusText") {
        "" => String::new(),
        status => format!(": {status}"),
    };
    let (state, sentence) = match (load, active) {
        ("not-found", _) => ("failed", "is not installed".to_owned()),
        ("bad-setting" | "error" | "masked", _) => ("failed", format!("cannot be loaded ({load})")),
        (_, "active" | "activating" | "reloading") => ("starting", format!("is {active}{detail}")),
        (_, "failed") => {
            ("failed", format!("has failed ({result}, exit status {}){detail}", property_of(text, "ExecMainStatus")))
        }
        (_, "inactive" | "deactivating") => ("down", format!("is {active}")),
        _ => ("failed", "has no state that is known".to_owned()),
    };
    let text = format!("{unit} {sentence}");
    Observation { state, text: thalweg_text::replace_controls(&text).into_owned() }
}

/// Returns the value of a property; empty if there is none of that name.
fn property_of<'a>(text: &'a str, name: &str) -> &'a str {
    let mut properties = text.lines().filter_map(|line| line.split_once('='));
    properties.find(|(other, _)| *other == name).map_or("", |(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_state_of_a_unit_is_what_systemctl_shows() {
        let shown = |text: &str| {
            let Observation { state, text } = read_properties(text, "unit x");
            (state, text)
        };
        assert_eq!(
            shown("LoadState=loaded\nActiveState=activating\nSubState=start\nStatusText=no connection = none\n"),
            ("starting", "unit x is activating: no connection = none".into())
        );
        assert_eq!(
            shown("Result=exit-code\nExecMainStatus=2\nStatusText=\nLoadState=loaded\nActiveState=failed\n"),
            ("failed", "unit x has failed (exit-code, exit status 2)".into())
        );
        assert_eq!(shown("LoadState=not-found\nActiveState=inactive"), ("failed", "unit x is not installed".into()));
        assert_eq!(shown("LoadState=loaded\nActiveState=inactive"), ("down", "unit x is inactive".into()));
    }

    proptest! {
        #[test]
        fn whatever_is_shown_has_a_state(values in prop::collection::vec("failed|active|(?s).*", 6), text in "(?s).*") {
            let named: Vec<_> = PROPERTIES.split(',').zip(values).map(|(name, value)| format!("{name}={value}")).collect();
            let observation = read_properties(&format!("{}\n{text}", named.join("\n")), "unit x");
            prop_assert!(["starting", "failed", "down"].contains(&observation.state));
            prop_assert!(!observation.text.contains(char::is_control));
        }
    }
}
