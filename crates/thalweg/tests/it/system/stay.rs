//! Nodes that stay: one run after another, as they are told.

use crate::common::{Link, Node, PLAN, Plan, System, await_events, check_books, check_intact, follow_until};
use serde_json::Value;
use thalweg_store::RunState;

fn system(link: Link) -> (System, Node, Vec<Node>) {
    let system = System::new(&Plan { link, source: "rate = 500.0", run: "timeout = \"20s\"", ..PLAN });
    let builder = system.staying("builder0");
    let sources = (0..3).map(|number| system.staying(&format!("source{number}"))).collect();
    (system, builder, sources)
}

fn state(builder: &mut Node, wanted: &str) {
    let wanted = format!("\"state\":\"{wanted}\"");
    builder.wait_next(&wanted, |line| line.contains(&wanted).then_some(()));
}

fn report(builder: &mut Node) -> Value {
    builder.wait_next("a report", |line| {
        serde_json::from_str(line).ok().filter(|value: &Value| value.get("ledger").is_some())
    })
}

#[test]
fn one_run_follows_another_without_a_new_process() {
    for link in [Link::Tcp, Link::Shm] {
        let (system, mut builder, sources) = system(link);
        for run in 1..=3 {
            state(&mut builder, "armed");
            builder.tell("start");
            state(&mut builder, "running");
            builder.tell("pause");
            state(&mut builder, "paused");
            builder.tell("resume");
            state(&mut builder, "running");
            builder.tell("stop");
            let report = report(&mut builder);
            assert_eq!((&report["run"], &report["state"]), (&run.into(), &"COMPLETE".into()), "{report:#}");
            check_books(&report);
        }
        // There is nothing to stop, and nothing to pause: both are said, and change nothing.
        state(&mut builder, "armed");
        builder.tell("pause");
        builder.wait_for("cannot pause: the run is armed");
        builder.tell("dance");
        builder.wait_for("unknown command 'dance'");
        builder.tell("status");
        let status = builder.wait_next("a snapshot", |line| {
            serde_json::from_str(line).ok().filter(|value: &Value| value.get("sources").is_some())
        });
        assert_eq!(status["state"], "armed");
        assert_eq!(status["sources"].as_array().unwrap().len(), 3);
        builder.tell("quit");
        builder.finish().succeeded();
        for source in sources {
            source.interrupt();
            source.finish().succeeded();
        }
        for run in ["run-000001", "run-000002", "run-000003"] {
            let directory = system.path("runs").join(run);
            assert_eq!(thalweg_store::Run::open(&directory).unwrap().run_info().state, RunState::Complete);
            check_intact(&directory);
        }
    }
}

#[test]
fn a_run_that_is_aborted_is_closed_as_far_as_it_is_and_the_next_one_is_whole() {
    let (system, mut builder, sources) = system(Link::Tcp);
    state(&mut builder, "armed");
    builder.tell("start");
    state(&mut builder, "running");
    builder.tell("abort");
    let aborted = report(&mut builder);
    assert_eq!(aborted["state"], "INCOMPLETE", "{aborted:#}");
    assert_eq!(aborted["events"]["incomplete"], 0, "{aborted:#}");
    state(&mut builder, "armed");
    builder.tell("start");
    state(&mut builder, "running");
    // An interrupt ends the run, and the node with it.
    builder.interrupt();
    let whole = report(&mut builder);
    assert_eq!((&whole["run"], &whole["state"]), (&2.into(), &"COMPLETE".into()), "{whole:#}");
    builder.finish().succeeded();
    for source in sources {
        source.interrupt();
        source.finish().succeeded();
    }
    check_intact(&system.path("runs").join("run-000001"));
    check_intact(&system.path("runs").join("run-000002"));
}

#[test]
fn the_next_run_begins_where_the_one_before_ends_and_steps_mark_places_in_it() {
    let (system, mut builder, sources) = system(Link::Tcp);
    state(&mut builder, "armed");
    builder.tell("next");
    builder.wait_for("cannot begin the next run: the run is armed");
    builder.tell("start");
    state(&mut builder, "running");
    await_events(&system.path("runs/run-000001"), 20);
    builder.tell("step x = 1.5");
    let said = builder.wait_for("step 'x = 1.5'");
    let step = said.split_whitespace().find_map(|word| word.strip_prefix("event=")?.parse().ok());
    let step: u64 = step.unwrap_or_else(|| panic!("{said}"));
    // Sources that have not come to it could begin the next run with it.
    follow_until(&system.path("runs/run-000001"), |_, event| event.id.0 == step);
    builder.tell("next");
    let first = report(&mut builder);
    assert_eq!((&first["run"], &first["state"]), (&1.into(), &"COMPLETE".into()), "{first:#}");
    check_books(&first);
    await_events(&system.path("runs/run-000002"), 20);
    builder.tell("stop");
    let second = report(&mut builder);
    assert_eq!((&second["run"], &second["state"]), (&2.into(), &"COMPLETE".into()), "{second:#}");
    check_books(&second);
    builder.tell("quit");
    builder.finish().succeeded();
    for source in sources {
        source.interrupt();
        source.finish().succeeded();
    }
    let runs = [1, 2].map(|run| {
        let directory = system.path(&format!("runs/run-00000{run}"));
        check_intact(&directory);
        thalweg_store::Run::open(&directory).unwrap()
    });
    let ids: Vec<Vec<u64>> = runs.iter().map(|run| run.event_ids().map(|(id, _)| id.0).collect()).collect();
    assert!(ids.concat().iter().copied().eq(0..ids.concat().len() as u64), "no event is lost between them, or twice");
    let [before, after] = runs.each_ref().map(|run| run.run_info());
    assert_eq!(before.steps.len(), 1);
    let step = &before.steps[0];
    assert!(step.label == "x = 1.5" && ids[0].contains(&step.event) && step.event >= 20, "{step:?}");
    let times = [before.times, after.times];
    assert!(times.iter().all(|times| times.asked < times.first_event && times.first_event <= times.last_event));
    assert!(times.iter().all(|times| times.stop_asked.is_some() && times.last_event <= times.on_disk));
    assert_eq!(before.times.stop_asked, after.times.asked, "one command ends a run and asks for another");
}

/// Its source prepares each run by opening its device. When that is away for a while, as a cable that is pulled out, the
/// node stays and takes part in the next run.
#[test]
fn a_device_that_is_away_between_two_runs_is_waited_for() {
    let system = System::new(&Plan { sources: 1, run: "timeout = \"20s\"", ..PLAN });
    let image = system.file("image.pgm", b"P5\n2 2\n255\nabcd");
    let path = system.path("topology.toml");
    let mut topology: toml::Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
    let source = topology["source"][0].as_table_mut().unwrap();
    let device =
        format!("device = {{ kind = \"pgm\", files = [{image:?}], loop = true }}\nrate = 500.0\nslots = 1\nslot = 128");
    // Its one slot, of one record, has the image after the first event, which is not read again.
    source.extend(device.parse::<toml::Table>().unwrap());
    std::fs::write(&path, topology.to_string()).unwrap();
    let (mut builder, mut source) = (system.staying("builder0"), system.staying("source0"));
    for run in 1..=2 {
        state(&mut builder, "armed");
        builder.tell("start");
        state(&mut builder, "running");
        await_events(&system.path(&format!("runs/run-00000{run}")), 1);
        let away = image.with_extension("away");
        std::fs::rename(&image, &away).unwrap();
        builder.tell("stop");
        let report = report(&mut builder);
        assert_eq!((&report["run"], &report["state"]), (&run.into(), &"COMPLETE".into()), "{report:#}");
        source.wait_for("retrying");
        std::fs::rename(&away, &image).unwrap();
    }
    state(&mut builder, "armed");
    builder.tell("quit");
    builder.finish().succeeded();
    source.interrupt();
    source.finish().succeeded();
}

/// Whatever is asked for before the run is open is done when it is.
#[test]
fn a_run_that_is_started_and_stopped_in_one_breath_is_a_run_of_few_events() {
    let (system, mut builder, sources) = system(Link::Tcp);
    for run in 1..=2 {
        state(&mut builder, "armed");
        builder.tell(if run == 1 { "start\nstop" } else { "start\npause\nstop" });
        let report = report(&mut builder);
        assert_eq!((&report["run"], &report["state"]), (&run.into(), &"COMPLETE".into()), "{report:#}");
        check_books(&report);
        check_intact(&system.path(&format!("runs/run-00000{run}")));
    }
    state(&mut builder, "armed");
    builder.tell("start\nabort");
    assert_eq!(report(&mut builder)["state"], "INCOMPLETE");
    assert_eq!(
        thalweg_store::Run::open(system.path("runs/run-000003")).unwrap().run_info().state,
        RunState::Incomplete
    );
    builder.tell("quit");
    builder.finish().succeeded();
    for source in sources {
        source.interrupt();
        source.finish().succeeded();
    }
}

#[test]
fn a_source_that_waits_for_its_builder_reports_that_once_and_leaves_on_request() {
    let system = System::new(&Plan { sources: 1, run: "timeout = \"1s\"", ..PLAN });
    let mut source = system.staying("source0");
    source.wait_for("trying again until it answers");
    source.tell("stop");
    source.wait_for("cannot stop: no run has begun");
    source.tell("quit");
    let ended = source.finish();
    ended.succeeded();
    assert!(!ended.stderr.contains("aborted") && !ended.stderr.contains("retrying"), "{ended:?}");
}

/// They offered what they held of the earlier run, which was refused as a breach of the protocol.
#[test]
fn sources_that_stay_take_part_in_the_run_of_a_builder_that_was_started_anew() {
    let system = System::new(&Plan { source: "rate = 500.0", run: "timeout = \"20s\"", ..PLAN });
    let mut builder = system.builder();
    let sources: Vec<Node> = (0..3).map(|number| system.staying(&format!("source{number}"))).collect();
    builder.wait_for("recording");
    await_events(&system.run_directory(), 20);
    builder.kill();
    let mut anew = system.node("builder0");
    anew.wait_for("recording");
    await_events(&system.path("runs/run-000002"), 20);
    anew.interrupt();
    let report = anew.finish().report(0);
    assert_eq!((&report["run"], &report["state"]), (&2.into(), &"COMPLETE".into()), "{report:#}");
    check_books(&report);
    for source in sources {
        source.interrupt();
        let ended = source.finish();
        ended.succeeded();
        assert!(ended.stderr.contains("was started anew"), "{ended:?}");
    }
}
