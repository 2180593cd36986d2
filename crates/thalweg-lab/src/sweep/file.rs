//! The file of a sweep. Each error has a line: values from a list keep their place in the file.

use super::check::{Check, FIGURES};
use super::{Axis, Cell, Sweep, is_same_value};
use crate::scenario::{InvalidLine, InvalidValue, Scenario};
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

/// Largest number of cells: more than a month of work.
const MOST_CELLS: usize = 20_000;

type Value<'i> = Spanned<DeValue<'i>>;
/// Range of bytes and description of a problem.
type Error = (Range<usize>, String);

pub(super) fn parse_sweep(name: &str, text: &str, quick: bool) -> Result<Sweep, InvalidLine> {
    read_sweep(name, text, quick).map_err(|(span, problem)| {
        let line = text.get(..span.start).unwrap_or(text).matches('\n').count();
        let text = text.lines().nth(line).unwrap_or_default().trim().to_owned();
        InvalidLine { line: line + 1, text, problem }
    })
}

fn read_sweep(name: &str, text: &str, quick: bool) -> Result<Sweep, Error> {
    let file = DeTable::parse(text).map_err(|error| (error.span().unwrap_or_default(), error.message().to_owned()))?;
    let mut base = file.into_inner();
    let title = match base.remove("title").map(|title| (title.span(), title.into_inner())) {
        None => name.to_owned(),
        Some((_, DeValue::String(title))) => title.into_owned(),
        Some((span, _)) => return Err((span, "title: a text".into())),
    };
    let (mut axes, rounds) = match base.remove("sweep") {
        Some(sweep) => read_axes(&sweep)?,
        None => return Err((0..0, "there is no [sweep]: a scenario is run by `thalweg lab run`".into())),
    };
    let checks = base.remove("check").map_or(Ok(Vec::new()), |table| read_checks(&table))?;
    match base.remove("quick") {
        Some(table) if quick => reduce_to_sample(&table, &mut axes, &mut base)?,
        None if quick => return Err((0..0, "there is no [quick], which says what the sample is".into())),
        _ => {}
    }
    let count = axes.iter().try_fold(1_usize, |all, axis| all.checked_mul(axis.steps.len()));
    if count.is_none_or(|count| count > MOST_CELLS) {
        return Err((axes[0].span.clone(), format!("these are more than {MOST_CELLS} combinations")));
    }

    let mut at = vec![0; axes.len()];
    let mut cells = Vec::new();
    loop {
        let mut table = base.clone();
        for (axis, at) in axes.iter().zip(&at) {
            for (key, value) in &axis.steps[*at].settings {
                set_dotted_key(&mut table, key, value)?;
            }
        }
        cells.push(Cell { scenario: read_scenario(table, rounds)?, at: at.clone() });
        // The last axis changes fastest, as the last digit of a number does.
        let Some(next) = (0..axes.len()).rev().find(|axis| at[*axis] + 1 < axes[*axis].steps.len()) else { break };
        at[next] += 1;
        at[next + 1..].fill(0);
    }
    let axes = axes.into_iter().map(|axis| Axis {
        key: axis.steps[0].settings[0].0.clone(),
        values: axis.steps.into_iter().map(|step| step.label).collect(),
    });
    Ok(Sweep { name: name.to_owned(), title, axes: axes.collect(), checks, cells, quick })
}

/// One axis, with its place in the file.
struct Steps<'i> {
    span: Range<usize>,
    steps: Vec<Step<'i>>,
}

/// One value of an axis: the keys that are set, and the first of their values as text.
struct Step<'i> {
    label: String,
    settings: Vec<(String, Value<'i>)>,
}

impl Step<'_> {
    /// True if the key of index `setting` has this value here.
    fn has_value(&self, setting: usize, value: &Value<'_>) -> bool {
        is_same_value(&value_label(&self.settings[setting].1), &value_label(value))
    }
}

/// Returns the axes in the order of the file, and `rounds`.
fn read_axes<'i>(sweep: &Value<'i>) -> Result<(Vec<Steps<'i>>, u32), Error> {
    let table = expect_table("sweep", sweep)?;
    let mut rounds = 0;
    let mut axes = Vec::new();
    for (key, value) in flatten_table(table) {
        match key.as_str() {
            "rounds" => {
                let number = value.get_ref().as_integer().and_then(|number| number.as_str().parse().ok());
                rounds = number.filter(|rounds| *rounds <= 100_000).ok_or_else(|| {
                    (value.span(), "rounds: how many round trips a measurement takes at least, up to 100000".to_owned())
                })?;
            }
            "together" => {
                let array = value.get_ref().as_array().ok_or_else(|| {
                    (value.span(), "together: write [[sweep.together]] above keys that change together".to_owned())
                })?;
                for one in array {
                    axes.push(read_axis_steps(one.span(), &flatten_table(self::expect_table("together", one)?))?);
                }
            }
            _ => axes.push(read_axis_steps(value.span(), &[(key, value)])?),
        }
    }
    if axes.is_empty() {
        return Err((sweep.span(), "sweep: at least one key and a list of its values".into()));
    }
    axes.sort_by_key(|axis| axis.span.start);
    Ok((axes, rounds))
}

/// Returns the axis of keys that change together: lists of the same length.
fn read_axis_steps<'i>(span: Range<usize>, keys: &[(String, &Value<'i>)]) -> Result<Steps<'i>, Error> {
    let mut axis = Steps { span, steps: Vec::new() };
    for (key, values) in keys {
        let list = values.get_ref().as_array().filter(|list| !list.is_empty()).ok_or_else(|| {
            let problem = format!(
                "{key}: a list of values, such as [\"1ms\", \"10ms\"]; what does not change stands above [sweep]"
            );
            (values.span(), problem)
        })?;
        if axis.steps.is_empty() {
            axis.steps = list.iter().map(|value| Step { label: value_label(value), settings: Vec::new() }).collect();
            let mut labels = BTreeSet::new();
            if let Some(twice) = list.iter().find(|value| !labels.insert(value_label(value))) {
                return Err((twice.span(), format!("{key}: {} is there twice", value_label(twice))));
            }
        }
        if list.len() != axis.steps.len() {
            let problem =
                format!("{key}: {} values beside {}; what changes together has as many", list.len(), axis.steps.len());
            return Err((values.span(), problem));
        }
        for (step, value) in axis.steps.iter_mut().zip(list.iter()) {
            step.settings.push((key.clone(), value.clone()));
        }
    }
    match axis.steps.is_empty() {
        true => Err((axis.span, "together: keys and lists of their values".into())),
        false => Ok(axis),
    }
}

/// Reduces the axes to the sample, and sets the other keys of `[quick]`.
fn reduce_to_sample<'i>(quick: &Value<'i>, axes: &mut [Steps<'i>], base: &mut DeTable<'i>) -> Result<(), Error> {
    for (key, value) in flatten_table(expect_table("quick", quick)?) {
        let swept = axes.iter_mut().find(|axis| axis.steps[0].settings.iter().any(|(own, _)| *own == key));
        let Some(axis) = swept else {
            set_dotted_key(base, &key, value)?;
            continue;
        };
        let list = value.get_ref().as_array().filter(|list| !list.is_empty());
        let list = list.ok_or_else(|| (value.span(), format!("{key}: a list of some of the values in [sweep]")))?;
        let at = axis.steps[0].settings.iter().position(|(own, _)| *own == key).unwrap_or(0);
        if let Some(other) = list.iter().find(|value| !axis.steps.iter().any(|step| step.has_value(at, value))) {
            return Err((other.span(), format!("{key}: {} is not in [sweep]", value_label(other))));
        }
        axis.steps.retain(|step| list.iter().any(|value| step.has_value(at, value)));
    }
    Ok(())
}

fn read_checks(table: &Value<'_>) -> Result<Vec<Check>, Error> {
    let mut all = Vec::new();
    for (key, value) in flatten_table(self::expect_table("check", table)?) {
        let check = value.get_ref().as_str().ok_or_else(|| format!("{key}: a text, such as \">= 0.98\""));
        let check = check.and_then(|text| {
            Check::parse(&key, text).ok_or_else(|| {
                let names: Vec<&str> = FIGURES.iter().map(|figure| figure.name).collect();
                format!("{key} = \"{text}\": write >=, <= or == and a number; the key is one of {}", names.join(", "))
            })
        });
        all.push(check.map_err(|problem| (value.span(), problem))?);
    }
    Ok(all)
}

fn read_scenario(table: DeTable<'_>, rounds: u32) -> Result<Scenario, Error> {
    let mut scenario = Scenario::deserialize(Deserializer::from(Spanned::new(0..0, table.clone())))
        .map_err(|error| (error.span().unwrap_or_default(), error.message().to_owned()))?;
    scenario.check_values().map_err(|wrong| with_place(&table, &wrong))?;
    let period = scenario.burst_period().unwrap_or_default();
    let least = rounds * scenario.round_trip_time().max(period);
    let seconds = &mut scenario.measure.seconds;
    *seconds = seconds.max((least.as_secs_f64() * 1e3).ceil() / 1e3);
    if rounds > 0 && !period.is_zero() {
        // With a whole number of periods, the parts of the events at both ends that count and that do not are equal.
        *seconds = (*seconds / period.as_secs_f64() - 1e-6).ceil() * period.as_secs_f64();
    }
    scenario.check_values().map_err(|wrong| with_place(&table, &wrong))?;
    Ok(scenario)
}

fn with_place(table: &DeTable<'_>, wrong: &InvalidValue) -> Error {
    (span_of_key(table, &wrong.key), wrong.to_string())
}

fn expect_table<'a, 'i>(name: &str, value: &'a Value<'i>) -> Result<&'a DeTable<'i>, Error> {
    value.get_ref().as_table().ok_or_else(|| (value.span(), format!("{name}: a table")))
}

/// Returns every value in a table that is not a table, with its dotted key (`"network.senders"` and `network.senders`
/// are one), in the order of the file.
fn flatten_table<'a, 'i>(table: &'a DeTable<'i>) -> Vec<(String, &'a Value<'i>)> {
    let mut all = Vec::new();
    for (key, value) in table {
        match value.get_ref() {
            DeValue::Table(inner) => {
                all.extend(
                    flatten_table(inner).into_iter().map(|(rest, value)| (format!("{}.{rest}", key.get_ref()), value)),
                );
            }
            _ => all.push((key.get_ref().to_string(), value)),
        }
    }
    all.sort_by_key(|(_, value)| value.span().start);
    all
}

/// Sets the value of a dotted key.
fn set_dotted_key<'i>(table: &mut DeTable<'i>, key: &str, value: &Value<'i>) -> Result<(), Error> {
    let (front, last) = key.rsplit_once('.').unwrap_or(("", key));
    let mut inner = table;
    for part in front.split('.').filter(|part| !part.is_empty()) {
        let next = inner
            .entry(spanned_key(part, value))
            .or_insert_with(|| Spanned::new(value.span(), DeValue::Table(DeTable::new())));
        inner = match next.get_mut() {
            DeValue::Table(next) => next,
            _ => return Err((value.span(), format!("{key}: {part} is no table"))),
        };
    }
    // An old key would keep its own place.
    inner.remove(last);
    inner.insert(spanned_key(last, value), value.clone());
    Ok(())
}

/// Returns a key with the place of its value.
fn spanned_key<'i>(name: &str, value: &Value<'_>) -> Spanned<Cow<'i, str>> {
    Spanned::new(value.span(), name.to_owned().into())
}

/// Returns the place of a key's value, or else of the innermost of the tables around it.
fn span_of_key(table: &DeTable<'_>, key: &str) -> Range<usize> {
    let mut found = 0..0;
    let mut inside = Some(table);
    let mut list = None;
    for part in key.split('.') {
        let value = match (inside, list) {
            (Some(table), _) => table.get(part),
            (None, Some(list)) => part.parse().ok().and_then(|at: usize| <[Value<'_>]>::get(list, at)),
            (None, None) => None,
        };
        let Some(value) = value else { break };
        found = value.span();
        inside = value.get_ref().as_table();
        list = value.get_ref().as_array().map(|array| &array[..]);
    }
    found
}

/// Returns a value as text.
fn value_label(value: &Value<'_>) -> String {
    match value.get_ref() {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.as_str().to_owned(),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(is) => is.to_string(),
        DeValue::Array(list) => list.iter().map(value_label).collect::<Vec<_>>().join(" to "),
        DeValue::Datetime(_) | DeValue::Table(_) => "?".to_owned(),
    }
}
