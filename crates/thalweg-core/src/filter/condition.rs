//! A condition on features: accepts the events for which it is true.

use crate::filter::{Decide, Fragment};
use cel::{Context, Program, Value};
use std::collections::HashMap;
use std::fmt;
use thalweg_wire::{EventId, SourceId};

/// Longest text of a condition, in bytes. Its parser recurses as deep as its brackets do.
const MAX_CONDITION_BYTES: usize = 2000;

/// A condition, in the Common Expression Language (<https://cel.dev>), such as `beam.x < 300.0 && beam.r2 > 0.9`.
///
/// `beam` is a source whose fragments are rows of numbers, `x` one of its features. If the condition cannot be
/// evaluated, since a source has no fragment for an event or a number is NaN, the event is counted as
/// [undecided](Decide::undecided_events), and accepted or not as configured for that case.
pub struct Condition {
    text: String,
    program: Program,
    bound: Vec<Bound>,
    otherwise: bool,
    undecided: u64,
}

/// A variable: its source, and the features in the source's rows.
#[derive(Debug)]
struct Bound {
    variable: String,
    source: SourceId,
    features: Vec<String>,
}

impl Condition {
    /// Parses a condition. `otherwise`: whether an event is accepted for which the condition cannot be evaluated.
    ///
    /// # Errors
    /// The reason why the text is invalid.
    pub fn parse(text: &str, otherwise: bool) -> Result<Self, String> {
        if text.len() > MAX_CONDITION_BYTES {
            return Err(format!(
                "a condition has at most {MAX_CONDITION_BYTES} characters; this one has {}",
                text.len()
            ));
        }
        let program = Program::compile(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        Ok(Self { text: text.to_owned(), program, bound: Vec::new(), otherwise, undecided: 0 })
    }

    /// Returns the name of a source in a condition: letters, digits and `_`, so `beam-0` becomes `beam_0`.
    pub fn variable_name(source: &str) -> String {
        let name = source.replace(|letter: char| !letter.is_ascii_alphanumeric(), "_");
        if name.starts_with(|first: char| first.is_ascii_digit()) { format!("_{name}") } else { name }
    }

    /// Returns the variables in the text, sorted.
    pub fn variable_names(&self) -> Vec<String> {
        let mut variables: Vec<String> =
            self.program.references().variables().into_iter().map(ToOwned::to_owned).collect();
        variables.sort_unstable();
        variables
    }

    /// Assigns a source to a variable, with the features in the source's rows.
    pub fn bind_source(&mut self, variable: String, source: SourceId, features: Vec<String>) {
        self.bound.push(Bound { variable, source, features });
    }

    /// Checks that all features in the text exist, and that the condition is true or false when all numbers are 1.
    ///
    /// # Errors
    /// The missing feature, or the other kind of result.
    pub fn check_features(&self) -> Result<(), String> {
        for Bound { variable, features, .. } in &self.bound {
            if let Some(unknown) = self.features_of(variable).find(|name| !features.iter().any(|known| known == name)) {
                return Err(format!("'{variable}' has no feature '{unknown}'; it has {}", features.join(", ")));
            }
        }
        let mut context = Context::default();
        for Bound { variable, features, .. } in &self.bound {
            let ones: HashMap<String, f64> = features.iter().map(|name| (name.clone(), 1.0)).collect();
            context.add_variable_from_value(variable.clone(), ones);
        }
        match self.program.execute(&context) {
            Ok(Value::Bool(_)) => Ok(()),
            Ok(Value::Float(number)) => {
                Err(format!("it evaluates to a number ({number} where all are 1) instead of true or false"))
            }
            Ok(_) => Err("it does not evaluate to true or false".into()),
            Err(error) => Err(format!("{error} (write numbers with a decimal point: 2.0)")),
        }
    }

    /// Returns the names that follow a variable and a point in the text.
    fn features_of<'a>(&'a self, variable: &'a str) -> impl Iterator<Item = &'a str> {
        self.text.match_indices(variable).filter_map(move |(at, _)| {
            let before = self.text[..at].chars().next_back();
            let after = self.text[at + variable.len()..].trim_start().strip_prefix('.')?.trim_start();
            let feature = &after[..after.find(|letter| !is_name_part(letter)).unwrap_or(after.len())];
            before.is_none_or(|before| !is_name_part(before) && before != '.').then_some(feature)
        })
    }

    fn evaluate_fragments(&self, fragments: &mut dyn Iterator<Item = Fragment<'_>>) -> Option<bool> {
        let mut context = Context::default();
        for fragment in fragments {
            let bound = self.bound.iter().find(|bound| bound.source == fragment.header.source);
            let Some(Bound { variable, features, .. }) = bound else { continue };
            if fragment.len() != 8 * features.len() {
                continue;
            }
            let mut bytes = vec![0; fragment.len()];
            fragment.copy_to(0, &mut bytes);
            let numbers = bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
            // A missing feature is an error only where it is evaluated; NaN would be unequal to all numbers (CEL's
            // `!=`).
            let row = features.iter().cloned().zip(numbers).filter(|(_, number)| !number.is_nan());
            let row: HashMap<String, f64> = row.collect();
            context.add_variable_from_value(variable.clone(), row);
        }
        match self.program.execute(&context) {
            Ok(Value::Bool(accept)) => Some(accept),
            _ => None,
        }
    }
}

/// Returns whether a letter can be a part of a name.
fn is_name_part(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_'
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Condition").field("text", &self.text).field("bound", &self.bound).finish_non_exhaustive()
    }
}

impl Decide for Condition {
    fn accept_event(&mut self, _event: EventId, fragments: &mut dyn Iterator<Item = Fragment<'_>>) -> bool {
        self.evaluate_fragments(fragments).unwrap_or_else(|| {
            self.undecided += 1;
            self.otherwise
        })
    }

    fn undecided_events(&self) -> u64 {
        self.undecided
    }

    fn is_simulated(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_wire::{FragmentHeader, RecordBytes};

    const BEAM: SourceId = SourceId(7);

    fn condition(text: &str, otherwise: bool) -> Condition {
        let mut condition = Condition::parse(text, otherwise).unwrap();
        condition.bind_source("beam".into(), BEAM, ["x", "r2"].map(String::from).into());
        condition
    }

    struct Payload(Vec<u8>);

    impl RecordBytes for Payload {
        fn byte_count(&self) -> usize {
            self.0.len()
        }

        fn copy_bytes_to(&self, at: usize, out: &mut [u8]) {
            self.0[..].copy_bytes_to(at, out);
        }
    }

    fn accepts(condition: &mut Condition, source: SourceId, row: &[f64]) -> bool {
        let payload = Payload(row.iter().flat_map(|number| number.to_le_bytes()).collect());
        let header = FragmentHeader { source, piece_length: payload.byte_count() as u32, ..FragmentHeader::default() };
        condition.accept_event(EventId(0), &mut std::iter::once(Fragment::new(header, &payload, 0)))
    }

    #[test]
    fn events_are_accepted_for_which_it_is_true() {
        let mut condition = condition("beam.x < 20 && beam.r2 > 0.9 || beam.x * 2.0 > 100.0", false);
        for (row, accepted) in [([10.0, 0.95], true), ([10.0, 0.5], false), ([30.0, 0.95], false), ([60.0, 0.5], true)]
        {
            assert_eq!(accepts(&mut condition, BEAM, &row), accepted, "{row:?}");
        }
        assert_eq!(condition.undecided_events(), 0);
    }

    #[test]
    fn what_cannot_be_said_is_counted_and_is_as_was_said_before() {
        for otherwise in [true, false] {
            let mut unlike = condition("beam.x != 20.0", otherwise);
            assert_eq!(accepts(&mut unlike, BEAM, &[f64::NAN, 1.0]), otherwise);
            assert_eq!(unlike.undecided_events(), 1);
            let mut condition = condition("beam.x < 20.0", otherwise);
            let cases: [(SourceId, &[f64]); 4] =
                [(BEAM, &[f64::NAN, 1.0]), (BEAM, &[]), (BEAM, &[1.0, 2.0, 3.0]), (SourceId(8), &[1.0, 1.0])];
            for (source, row) in cases {
                assert_eq!(accepts(&mut condition, source, row), otherwise, "{row:?}");
            }
            assert_eq!(condition.undecided_events(), 4);
            assert!(accepts(&mut condition, BEAM, &[1.0, 1.0]));
            assert_eq!(condition.undecided_events(), 4);
        }
        // If the rest decides alone, the missing feature is not evaluated.
        assert!(!accepts(&mut condition("beam.r2 > 0.9 && beam.x < 20.0", true), BEAM, &[f64::NAN, 0.5]));
    }

    #[test]
    fn a_condition_that_is_none_is_refused() {
        for text in ["beam.x <", "((", "", "beam.x < 3.0)", &"!".repeat(5000)] {
            assert!(Condition::parse(text, true).is_err(), "{text:?}");
        }
        for (text, why) in [
            ("beam.x + 1.0", "true or false"),
            ("beam.x < 0.0 && beam . y < 1.0", "'beam' has no feature 'y'; it has x, r2"),
            ("beam.x * 2 > 1", "decimal point"),
        ] {
            let error = condition(text, true).check_features().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert_eq!(condition("beam.x < 1.0 && !(other.z > 2.0)", true).variable_names(), ["beam", "other"]);
        assert_eq!(["beam-0", "0.beam", "strahl µ"].map(Condition::variable_name), ["beam_0", "_0_beam", "strahl__"]);
    }
}
