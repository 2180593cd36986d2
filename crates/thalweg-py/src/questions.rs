//! Events for which a builder requests a decision, for `thalweg.decide`.

use crate::array::Shape;
use crate::event::Event;
use crate::sources::{Known, Row, Sources};
use crate::to_run_error;
use pyo3::prelude::*;
use serde_json::Value;
use std::sync::Arc;
use thalweg_core::filter::{Question, Questions};
use thalweg_store::EventStatus;
use thalweg_wire::{EventId, FragmentHeader, SourceId, Status};

/// Iterator over the events that a builder sends to standard input for a decision.
#[pyclass]
pub(crate) struct _Questions {
    /// Questions from standard input; `None` if the builder had ended before a run began.
    questions: Option<Questions>,
    known: Vec<SourceId>,
    sources: Arc<Sources>,
}

#[pymethods]
impl _Questions {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let questions = py.detach(Questions::from_stdin).map_err(to_run_error)?;
        let described = questions.as_ref().and_then(|it| it.introduction()["sources"].as_array()).into_iter().flatten();
        let known: Vec<Known> = described.filter_map(parse_known_source).collect();
        let ids = known.iter().map(|source| source.id).collect();
        Ok(Self { questions, known: ids, sources: Arc::new(Sources::new(0, known)) })
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Event>> {
        let Some(questions) = &mut self.questions else { return Ok(None) };
        let question = py.detach(|| questions.next_question()).map_err(to_run_error)?;
        Ok(question.map(|question| self.build_event(question)))
    }

    /// Sends the decision on an event to the builder; None if there is no decision.
    fn answer(&mut self, event: u64, accept: Option<bool>) -> PyResult<()> {
        let Some(questions) = &mut self.questions else { return Ok(()) };
        questions.answer(EventId(event), accept).map_err(to_run_error)
    }
}

impl _Questions {
    fn build_event(&self, Question { event, records }: Question) -> Event {
        let mut fragments: Vec<_> = records.into_iter().filter_map(thalweg_store::Fragment::from_record).collect();
        let received = fragments.len();
        for source in self.known.iter().copied() {
            if fragments[..received].iter().all(|fragment| fragment.header.source != source) {
                let header = FragmentHeader { event, source, status: Status::MISSING, ..FragmentHeader::default() };
                fragments.extend(thalweg_store::Fragment::from_record(header.encode().to_vec()));
            }
        }
        let status = if fragments.len() == received { EventStatus::Complete } else { EventStatus::Incomplete };
        fragments.sort_by_key(|fragment| fragment.header.source);
        Event::new(thalweg_store::Event { id: event, status, fragments }, &self.sources)
    }
}

/// Parses a source of the introduction.
fn parse_known_source(source: &Value) -> Option<Known> {
    let description = &source["description"];
    Some(Known {
        id: source["id"].as_str()?.parse().ok()?,
        name: source["name"].as_str()?.to_owned(),
        shape: Shape::from_description(description),
        row: Row::from_description(description),
    })
}
