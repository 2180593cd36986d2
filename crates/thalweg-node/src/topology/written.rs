//! Parsing of values that are often written incorrectly, with error texts that give the correct form.

use super::EventRate;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::marker::PhantomData;
use thalweg_link::Address;

/// Reads tables of one name, of which there may be several: `[[source]]`.
pub(super) fn tables<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    from.deserialize_seq(Several(
        "a table in double brackets, [[builder]] or [[source]]: there may be several",
        PhantomData,
    ))
}

/// Reads addresses to listen on, of which there may be several.
pub(super) fn addresses<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Address>, D::Error> {
    from.deserialize_seq(Several("a list, such as listen = [\"tcp:127.0.0.1:7400\"]", PhantomData))
}

/// Visitor for a sequence, with the text that is shown when there is something else.
struct Several<T>(&'static str, PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Several<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut given: A) -> Result<Vec<T>, A::Error> {
        let mut all = Vec::new();
        while let Some(one) = given.next_element()? {
            all.push(one);
        }
        Ok(all)
    }
}

/// Reads a source's id, which looks like a number but is not: `1.10` is different from `1.1`.
pub(super) fn id<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    from.deserialize_string(Text("an id in quotation marks: \"subsystem.element\", such as \"1.0\""))
}

/// Visitor for a string in quotation marks, with the text that is shown when there is something else.
pub(super) struct Text(pub(super) &'static str);

impl Visitor<'_> for Text {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

/// Visitor for a number of events per second, without the unit.
pub(super) struct Rate;

impl Visitor<'_> for Rate {
    type Value = EventRate;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of events per second, without quotation marks and unit: rate = 100.0")
    }

    fn visit_f64<E: Error>(self, hertz: f64) -> Result<EventRate, E> {
        hertz.try_into().map_err(E::custom)
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate is no more precise than that")]
    fn visit_u64<E: Error>(self, hertz: u64) -> Result<EventRate, E> {
        self.visit_f64(hertz as f64)
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate is no more precise than that")]
    fn visit_i64<E: Error>(self, hertz: i64) -> Result<EventRate, E> {
        self.visit_f64(hertz as f64)
    }
}
