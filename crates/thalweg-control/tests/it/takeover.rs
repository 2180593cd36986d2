//! The service dies, and another one takes over what goes on.

use crate::Experiment;
use thalweg_control::state::ExperimentState;
use thalweg_testing::wait::wait_until;

#[test]
fn a_run_goes_on_without_the_service_and_the_next_one_takes_it_over() {
    let mut experiment = Experiment::start(&["adc-0"]);
    experiment.arm();
    experiment.replace_service();
    experiment.wait_for_state(ExperimentState::Armed);
    experiment.command(&["start", "--note", "kept"]);
    let before = experiment.wait_for("events", |status| status.totals.events > 0).totals.events;
    experiment.replace_service();
    let status = experiment
        .wait_for("the run", |status| status.state == ExperimentState::Running && status.totals.events > before);
    let run = status.run.unwrap();
    assert_eq!((run.number, run.note.as_str()), (1, "kept"));
    experiment.command(&["pause"]);
    experiment.replace_service();
    experiment.wait_for_state(ExperimentState::Paused);
    experiment.command(&["stop"]);
    experiment.wait_for_state(ExperimentState::Armed);
    let record = experiment.status().last_run.unwrap();
    assert_eq!((record.number, serde_json::to_value(record.state).unwrap()), (1, "complete".into()));
    assert_eq!(experiment.run_info(1)["state"], "COMPLETE");
}

#[test]
fn a_run_that_ends_while_there_is_no_service_is_in_its_records() {
    let mut experiment = Experiment::start(&["adc-0"]);
    let path = experiment.folder.path().join("lab.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("directory", "events = 100\ndirectory", 1)).unwrap();
    experiment.arm();
    experiment.command(&["start"]);
    experiment.kill_service();
    let info = experiment.folder.path().join("runs/run-000001/run.json");
    wait_until("the end of the run", || std::fs::read_to_string(&info).is_ok_and(|text| text.contains("\"COMPLETE\"")));
    let address = experiment.url.trim_start_matches("http://").to_owned();
    experiment.start_service(&address);
    let status = experiment.wait_for_state(ExperimentState::Armed);
    let record = status.last_run.unwrap();
    assert_eq!((record.number, record.events), (1, 100));
    assert_eq!(serde_json::to_value(record.state).unwrap(), "complete");
    experiment.command(&["start"]);
    assert!(
        experiment
            .wait_for("a report", |status| status.last_run.as_ref().is_some_and(|run| run.number == 2))
            .next_number
            == Some(3)
    );
}
