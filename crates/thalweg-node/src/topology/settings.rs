//! Values of a topology that are given beside its file: `--set run.duration=5s`.

use super::{Topology, TopologyError};
use std::path::Path;
use toml::{Table, Value};

/// Value for one key of a topology, with the words by which it was given.
#[derive(Debug, Clone, PartialEq)]
pub struct Setting {
    /// Words of the command line, for error messages: `--set run.duration=5s`.
    given_as: String,
    /// Names of the tables that lead to the key, and the key itself.
    path: Vec<String>,
    value: Value,
}

impl Setting {
    /// Parses `KEY=VALUE`. The key is written as in TOML, with dots between tables: `run.duration`,
    /// `source.adc-0.rate`. The value is one of TOML; anything else is text.
    ///
    /// # Errors
    /// There is no `=`, or the key is none of TOML.
    pub fn parse_assignment(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, such as run.duration=10s")?;
        let value = value.trim();
        let path = parse_key(key.trim())
            .ok_or_else(|| format!("'{key}' is no key: write it as in TOML, such as run.duration or source.0.rate"))?;
        Ok(Self {
            given_as: format!("--set {text}"),
            path,
            value: parse_value(value).unwrap_or_else(|| Value::String(value.to_owned())),
        })
    }

    /// Creates the setting of a key of `[run]`, given by an option of its own.
    pub fn from_run_option(given_as: String, key: &str, value: impl Into<Value>) -> Self {
        Self { given_as, path: vec!["run".into(), key.into()], value: value.into() }
    }

    /// Returns the words of the command line that gave it, such as `--set run.duration=5s`.
    pub fn option_text(&self) -> &str {
        &self.given_as
    }

    /// Returns whether it is the comment of the run or one of its metadata, which only the record of the run keeps.
    pub fn is_kept_with_run(&self) -> bool {
        matches!(&self.path[..], [table, key, ..] if table == "run" && (key == "comment" || key == "metadata"))
    }

    /// Sets the value in a topology's table.
    fn apply(&self, topology: &mut Table) -> Result<(), String> {
        let Some((key, tables)) = self.path.split_last() else { return Ok(()) };
        let mut at = topology;
        let mut rest = tables.iter();
        while let Some(name) = rest.next() {
            at = match at.entry(name.clone()).or_insert_with(|| Value::Table(Table::new())) {
                Value::Table(table) => table,
                Value::Array(array) => {
                    let element = rest.next().unwrap_or(key);
                    find_table(name, array, element)?
                }
                _ => return Err(format!("`{name}` has a value, and no keys of its own")),
            };
        }
        if at.get(key).is_some_and(|old| old.is_array() && !self.value.is_array()) && tables.is_empty() {
            return Err(format!("there are several tables [[{key}]]: write {key}.NAME.KEY=VALUE"));
        }
        at.insert(key.clone(), self.value.clone());
        Ok(())
    }
}

/// Returns the table of an array that has this name or, without such a name, this place, counted from 0.
fn find_table<'a>(array_name: &str, array: &'a mut [Value], element: &str) -> Result<&'a mut Table, String> {
    let named = array.iter().position(|value| value.get("name").and_then(Value::as_str) == Some(element));
    let place = named.or_else(|| element.parse().ok().filter(|at| *at < array.len()));
    let names: Vec<&str> = array.iter().filter_map(|value| value.get("name")?.as_str()).take(MAX_NAMES).collect();
    let names = names.join(", ");
    let last = array.len().saturating_sub(1);
    match place.and_then(|place| array.get_mut(place)) {
        Some(Value::Table(table)) => Ok(table),
        Some(_) => Err(format!("`{array_name}` is a list of values: set it as a whole")),
        None => Err(format!("there is no {array_name} '{element}': name one of {names}, or its place, 0 to {last}")),
    }
}

/// Parses a key of TOML, with dots between its names.
fn parse_key(key: &str) -> Option<Vec<String>> {
    let mut table = format!("{key} = 0").parse::<Table>().ok()?;
    let mut path = Vec::new();
    loop {
        let (name, value) = std::mem::take(&mut table).into_iter().next()?;
        path.push(name);
        match value {
            Value::Table(inner) => table = inner,
            _ => return Some(path),
        }
    }
}

/// Parses a value of TOML; `None` if the text is none.
fn parse_value(value: &str) -> Option<Value> {
    let mut table = format!("value = {value}\n").parse::<Table>().ok().filter(|table| table.len() == 1)?;
    table.remove("value")
}

/// Reads a topology from a table with settings applied. `path`: its file.
///
/// # Errors
/// The result is no topology. The first setting that makes it so is named; without one, the file.
pub(super) fn read_with_settings(
    path: &Path,
    text: &str,
    settings: &[Setting],
    read: impl Fn(Table) -> Result<Topology, TopologyError>,
) -> Result<Topology, TopologyError> {
    let file: Table = text.parse().map_err(|error| TopologyError::parse_error(path, text, error))?;
    apply_settings(&file, settings).and_then(&read).map_err(|whole| {
        if matches!(whole, TopologyError::Setting { .. }) {
            return whole;
        }
        // The first setting with which a topology that could be read cannot be read any more.
        let blamed = (0..settings.len()).find_map(|count| {
            let before = apply_settings(&file, &settings[..count]).and_then(&read);
            let with_it = apply_settings(&file, &settings[..=count]).and_then(&read);
            before.ok().zip(with_it.err()).map(|(_, error)| (&settings[count], error))
        });
        match blamed {
            Some((setting, error)) => {
                TopologyError::Setting { given_as: setting.given_as.clone(), problem: error.problem_text() }
            }
            // What is wrong with the file is reported with its line.
            None => match toml::from_str::<Topology>(text) {
                Err(error) => TopologyError::parse_error(path, text, error),
                Ok(_) => whole,
            },
        }
    })
}

/// Returns a topology's table with settings applied.
fn apply_settings(file: &Table, settings: &[Setting]) -> Result<Table, TopologyError> {
    let mut table = file.clone();
    for setting in settings {
        let applied = setting.apply(&mut table);
        applied.map_err(|problem| TopologyError::Setting { given_as: setting.given_as.clone(), problem })?;
    }
    Ok(table)
}

/// Maximum number of names in an error message.
const MAX_NAMES: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> Table {
        "[run]\nduration = \"1s\"\n[[source]]\nname = \"adc-0\"\nrate = 1\n[[source]]\nname = \"1\"\n".parse().unwrap()
    }

    fn set(assignment: &str) -> Result<String, String> {
        let mut table = file();
        Setting::parse_assignment(assignment)?.apply(&mut table)?;
        Ok(table.to_string())
    }

    #[test]
    fn a_value_is_one_of_toml_or_text() {
        for (given, value) in [
            ("run.x=5", "5"),
            ("run.x = 5s", "\"5s\""),
            ("run.x=true", "true"),
            ("run.x=\"5\"", "\"5\""),
            ("run.x=[1, 2]", "[1, 2]"),
            ("run.x=a=b", "\"a=b\""),
            ("run.x=5\ny = 6", "\"\"\"\n5\ny = 6\"\"\""),
            ("run.x=", "\"\""),
            ("run.x=9223372036854775807", "9223372036854775807"),
            ("run.x=2026-11-29", "2026-11-29"),
        ] {
            let setting = Setting::parse_assignment(given).unwrap();
            assert_eq!(setting.path, ["run", "x"], "{given}");
            let shown = setting.value.to_string();
            assert!(shown == value || setting.value.as_str() == Some("5\ny = 6"), "{given}: {shown}");
        }
    }

    #[test]
    fn a_table_of_several_is_found_by_its_name_and_then_by_its_place() {
        assert!(set("source.adc-0.rate=7").unwrap().contains("rate = 7"));
        assert!(set("source.0.rate=7").unwrap().contains("rate = 7"));
        // The second one is named 1, and is at place 1, too.
        assert!(set("source.1.rate=7").unwrap().contains("rate = 1"));
        assert_eq!(
            set("source.adc-7.rate=7").unwrap_err(),
            "there is no source 'adc-7': name one of adc-0, 1, or its place, 0 to 1"
        );
        assert!(set("source=7").unwrap_err().contains("write source.NAME.KEY=VALUE"));
        assert!(set("run.duration.x=7").unwrap_err().contains("`duration` has a value"));
        assert!(set("run.metadata.\"beam line\".\"x.y\"=7").unwrap().contains("[run.metadata.\"beam line\"]"));
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for given in ["run.duration", "=5", "run..x=5", "a b=5", "run.\"x=5"] {
            assert!(Setting::parse_assignment(given).is_err(), "{given}");
        }
    }
}
