//! A shift: runs are taken, judged, and go wrong.

use crate::{Experiment, kill};
use serde_json::{Value, json};
use thalweg_control::access::Role;
use thalweg_control::records::RunRecord;
use thalweg_control::state::{CommandName, ExperimentState};
use thalweg_control::status::TroubleLevel;
use thalweg_testing::wait::wait_for;

#[test]
fn a_shift_takes_two_runs_and_leaves_a_record_of_all_that_was_asked() {
    let experiment = Experiment::start(&["adc-0", "adc-1"]);
    assert_eq!(experiment.status().state, ExperimentState::Idle);
    experiment.arm();
    experiment.command(&["start", "--kind", "test", "--note", "beam 2"]);
    let status = experiment.wait_for("events", |status| status.totals.events > 20);
    assert_eq!(status.run.as_ref().map(|run| (run.number, run.kind.as_str())), Some((1, "test")));
    let buckets = |status: &thalweg_control::status::Status| {
        let ledger = &status.ledger;
        (ledger.accepted, ledger.built + ledger.on_the_way)
    };
    assert_eq!(buckets(&status).0, buckets(&status).1, "each fragment is in one bucket: {:?}", status.ledger);

    experiment.command(&["pause"]);
    experiment.wait_for_state(ExperimentState::Paused);
    // Four ways to ask, and one reason.
    let shown = experiment.status().commands[&CommandName::Start].reason.clone();
    assert_eq!(shown, "cannot start: the experiment is paused: a run is under way: stop it first");
    let asked = experiment.ctl(&["start"]);
    assert_eq!(
        (asked.status.code(), String::from_utf8(asked.stderr).unwrap()),
        (Some(1), format!("thalweg: {shown}\n"))
    );
    let refused = experiment.client(Role::Operate).post::<Value>("/api/v1/commands/start", &json!({})).unwrap_err();
    assert_eq!(refused.to_string(), shown);

    experiment.command(&["resume"]);
    experiment.command(&["stop"]);
    experiment.wait_for_state(ExperimentState::Armed);
    experiment.command(&["start"]);
    experiment.wait_for("events", |status| status.totals.events > 0);
    experiment.command(&["stop"]);
    experiment.wait_for_state(ExperimentState::Armed);
    experiment.command(&["note", "1", "the beam was lost at the end"]);
    experiment.command(&["flag", "1", "bad", "--why", "no beam"]);

    let list: Value = experiment.client(Role::Watch).get("/api/v1/runs").unwrap();
    let runs: Vec<RunRecord> = serde_json::from_value(list["runs"].clone()).unwrap();
    assert_eq!(runs.iter().map(|run| run.number).collect::<Vec<_>>(), [2, 1]);
    let first = &runs[1];
    assert_eq!((first.reasons.as_slice(), first.notes[0].text.as_str()), (&[][..], "the beam was lost at the end"));
    let times = [first.asked_at, first.began_at, first.stop_asked_at, first.ended_at].map(Option::unwrap);
    assert!(times.is_sorted(), "{times:?}");
    let info = experiment.run_info(1);
    assert_eq!((&info["state"], &info["comment"]), (&json!("COMPLETE"), &json!("beam 2")));
    assert_eq!(info["events"]["built"], first.events);

    let audit = std::fs::read_to_string(experiment.folder.path().join("runs/.control/audit.jsonl")).unwrap();
    let entries: Vec<Value> = audit.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let refused = entries.iter().find(|entry| entry["refusal"] != "").unwrap();
    assert_eq!((&refused["request"], &refused["refusal"]), (&json!("POST /api/v1/commands/start"), &json!(shown)));
    assert!(entries.iter().any(|entry| entry["arguments"]["note"] == "beam 2" && entry["by"] == "configure"));
}

#[test]
fn a_command_is_legal_in_the_first_status_that_has_its_state() {
    use ExperimentState::{Paused, Running};
    let experiment = Experiment::start(&["adc-0"]);
    experiment.arm();
    let mut statuses = experiment.client(Role::Watch).follow_status().unwrap();
    let client = experiment.client(Role::Operate);
    let pauses = [("pause", Paused, CommandName::Resume), ("resume", Running, CommandName::Pause)].repeat(10);
    for (command, state, next) in [&[("start", Running, CommandName::Pause)], pauses.as_slice()].concat() {
        let path = format!("/api/v1/commands/{command}");
        std::thread::scope(|scope| {
            scope.spawn(|| client.post::<Value>(&path, &json!({})).unwrap());
            let mut status = statuses.next_status().unwrap();
            while status.state != state {
                status = statuses.next_status().unwrap();
            }
            assert_eq!(status.commands[&next].reason, "", "{state}");
        });
    }
}

#[test]
fn a_source_is_left_out_by_name_until_the_experiment_is_configured_anew() {
    let mut experiment = Experiment::start(&["adc-0", "adc-1"]);
    experiment.arm();
    let unknown = experiment.ctl(&["configure", "--without", "adc-7"]);
    let reason = "thalweg: cannot configure: the topology has no source 'adc-7' that could be left out\n";
    assert_eq!(String::from_utf8(unknown.stderr).unwrap(), reason);
    let adc_1 = experiment.pid("adc-1");
    experiment.command(&["configure", "--without", "adc-1"]);
    // Its node is gone, and a service that begins anew knows that it is not needed.
    kill(adc_1);
    experiment.replace_service();
    experiment.wait_for("the builder", |status| status.state == ExperimentState::Configured);
    experiment.command(&["arm"]);
    experiment.command(&["start"]);
    experiment.wait_for("events", |status| status.totals.events > 0 && status.left_out == ["adc-1"]);
    experiment.command(&["stop"]);
    let status = experiment.wait_for_state(ExperimentState::Armed);
    let record = status.last_run.unwrap();
    assert_eq!((record.left_out.as_slice(), record.incomplete), (&["adc-1".to_owned()][..], 0));
    assert_eq!(experiment.run_info(1)["metadata"]["left_out"], json!(["adc-1"]));
    experiment.command(&["configure"]);
    assert_eq!(experiment.status().sources.len(), 2, "the node was started again");
}

#[test]
fn a_source_that_dies_is_named_everywhere_and_comes_back_for_the_next_run() {
    let mut experiment = Experiment::start_with(&["adc-0", "adc-1"], "", "5s");
    experiment.arm();
    experiment.command(&["start"]);
    experiment.wait_for("events", |status| status.totals.events > 20);
    kill(experiment.pid("adc-1"));
    let status = experiment.wait_for("an incomplete event", |status| !status.incomplete_events.is_empty());
    assert!(status.incomplete_events.iter().all(|event| event.missing[0].source == "adc-1"), "{status:#?}");
    let broken = &status.sources[1];
    assert_eq!((broken.severity, status.sources[0].severity), (TroubleLevel::Major, TroubleLevel::Ok));
    assert!(!broken.trouble.is_empty());
    let missing = &status.incomplete_events[0].missing[0];
    assert!(!missing.host.is_empty() && missing.address.is_some(), "where it was is known: {missing:?}");
    let alarm = "process-missing:adc-1";
    experiment.wait_for("an alarm", |status| status.alarms.iter().any(|a| a.id == alarm && a.is_active));
    experiment.command(&["acknowledge", alarm, "--why", "the crate is off"]);
    experiment.wait_for("its acknowledgement", |status| status.silenced_alarms == 1);
    // Another service, to which no node is connected yet, has no other opinion.
    experiment.replace_service();
    let status = experiment.wait_for_state(ExperimentState::Running);
    let missing = status.alarms.iter().filter(|alarm| alarm.id.starts_with("process-missing"));
    let missing: Vec<_> = missing.map(|alarm| (alarm.id.as_str(), alarm.is_active, alarm.is_acknowledged)).collect();
    assert_eq!(missing, [(alarm, true, true)]);

    experiment.command(&["stop"]);
    let status = experiment.wait_for_state(ExperimentState::Error);
    assert!(status.reasons.iter().any(|reason| reason.contains("node adc-1 is not connected")), "{:?}", status.reasons);
    let status = experiment.wait_for("the record", |status| status.last_run.is_some());
    assert_eq!(serde_json::to_value(status.last_run.unwrap().state).unwrap(), "incomplete");
    assert!(status.totals.events > 20, "the counts of the last run stay: {:?}", status.totals);
    experiment.arm();
    experiment.command(&["start"]);
    experiment.wait_for("events", |status| status.totals.events > 0 && status.sources[1].bytes > 0);
    experiment.command(&["stop"]);
    experiment.wait_for_state(ExperimentState::Armed);
    assert_eq!(experiment.run_info(2)["state"], "COMPLETE");
}

#[test]
fn arming_is_refused_with_the_reason_of_the_host() {
    let experiment = Experiment::start(&["adc-0"]);
    experiment.command(&["configure"]);
    // More memory than any host has, in a topology that is right.
    let path = experiment.folder.path().join("lab.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replacen("rate = 200\n", "rate = 200\ncpu = 4000\n", 1)).unwrap();
    let refused = experiment.ctl(&["configure"]);
    let reason = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{reason}");
    assert!(reason.contains("cannot configure: adc-0 on ") && reason.contains("4000"), "{reason}");
    assert_eq!(experiment.status().state, ExperimentState::Error);
    std::fs::write(&path, text).unwrap();
    experiment.arm();
}

#[test]
fn the_latest_fragment_of_a_source_is_shown_while_a_run_is_taken() {
    let experiment = Experiment::start(&["adc-0"]);
    experiment.arm();
    experiment.command(&["start"]);
    experiment.wait_for("events", |status| status.totals.events > 0);
    let client = experiment.client(Role::Watch);
    let latest = wait_for("a fragment", || {
        let latest: Value = client.get("/api/v1/latest/adc-0?width=16").unwrap();
        latest.is_object().then_some(latest)
    });
    assert_eq!((&latest["kind"], &latest["is_simulated"]), (&json!("waveform"), &json!(true)));
    assert_eq!(latest["waveforms"][0]["min"].as_array().unwrap().len(), 16);
    experiment.command(&["stop"]);
}

#[test]
fn runs_follow_one_another_without_a_gap_and_steps_are_marked() {
    let experiment = Experiment::start(&["adc-0", "adc-1"]);
    experiment.arm();
    experiment.command(&["start"]);
    for run in 2..6 {
        experiment.wait_for("events", |status| status.totals.events > 5);
        experiment.command(&["step", "theta = 3", "--data", "{\"theta\": 3}"]);
        experiment.command(&["next", "--note", "goes on"]);
        // One run at a time is written down behind the run that goes on.
        experiment.wait_for("the record", |status| {
            let is_recorded = status.last_run.as_ref().is_some_and(|last| last.number == run - 1);
            is_recorded && status.run.as_ref().is_some_and(|now| now.number == run)
        });
    }
    experiment.wait_for("events", |status| status.totals.events > 5);
    experiment.command(&["stop"]);
    experiment.wait_for_state(ExperimentState::Armed);
    let list: Value = experiment.client(Role::Watch).get("/api/v1/runs").unwrap();
    let runs: Vec<RunRecord> = serde_json::from_value(list["runs"].clone()).unwrap();
    assert_eq!(runs.len(), 5);
    let mut events = 0;
    for run in runs.iter().rev() {
        assert_eq!(serde_json::to_value(run.state).unwrap(), "complete", "{run:?}");
        let info = experiment.run_info(run.number);
        assert_eq!((&info["state"], &info["events"]["incomplete"]), (&json!("COMPLETE"), &json!(0)));
        if run.number < 5 {
            assert_eq!(
                (&info["steps"][0]["label"], &info["steps"][0]["data"]["theta"]),
                (&json!("theta = 3"), &json!(3))
            );
        }
        events += info["events"]["built"].as_u64().unwrap();
    }
    assert!(events > 25, "{events}");
    let refused = experiment.ctl(&["next"]);
    let reason = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(reason, "thalweg: cannot next: the experiment is armed: no run is under way\n");
}
