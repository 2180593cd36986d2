//! The screen, drawn into a buffer: what an operator reads.

use super::*;
use crate::alarms::AlarmView;
use crate::processes::ProcessAction;
use crate::state::{CommandName, ExperimentState};
use crate::status::*;
use crate::top::screen::{Effect, Notice};
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};
use std::collections::BTreeMap;
use thalweg_node::service::Severity;

/// 2026-11-29 17:03:22 UTC.
const NOW: f64 = 1_795_971_802.0;

fn draw(screen: &Screen, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let look = Look { is_coloured: true };
    terminal.draw(|frame| draw_screen(screen, look, NOW, frame.area(), frame.buffer_mut())).unwrap();
    terminal.backend().buffer().clone()
}

/// Returns the rows of a buffer as text.
fn rows(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width);
    let cells: Vec<&str> = buffer.content.iter().map(|cell| cell.symbol()).collect();
    cells.chunks(width).map(|row| row.concat().trim_end().to_owned()).collect()
}

fn text(screen: &Screen, width: u16, height: u16) -> String {
    rows(&draw(screen, width, height)).join("\n")
}

/// Returns the row that begins with this word, after its mark.
fn row(text: &str, word: &str) -> String {
    let found = text.lines().find(|line| line.trim_start_matches([' ', '!', 'X', '>', '-']).starts_with(word));
    found.unwrap_or_else(|| panic!("no row of {word}:\n{text}")).to_owned()
}

fn healthy_source(name: &str) -> SourceView {
    SourceView {
        name: name.into(),
        id: "1.0".into(),
        host: "daq-0".into(),
        address: Some("10.0.0.7:4242".into()),
        link: "tcp".into(),
        is_linked: true,
        is_node_connected: true,
        bytes_per_second: 819_200.0,
        events_per_second: 200.0,
        backlog: 3,
        dead_percent: Some(0.2),
        ledger: LedgerView { accepted: 2_000, built: 1_997, on_the_way: 3, ..LedgerView::default() },
        ..SourceView::default()
    }
}

fn process_of(node: &str, legal: &[ProcessAction]) -> ProcessView {
    let actions = ProcessAction::ALL.into_iter().map(|action| {
        let legal = legal.contains(&action);
        let reason = if legal { String::new() } else { format!("node '{node}' cannot {action}") };
        (action, Legality { legal, reason })
    });
    ProcessView {
        node: node.into(),
        kind: "source".into(),
        host: "daq-0".into(),
        pid: Some(4242),
        state: "up".into(),
        since_at: NOW - 600.0,
        manager: "child".into(),
        last_line: "connected".into(),
        actions: actions.collect(),
    }
}

/// A run of three sources.
fn status() -> Status {
    let legal = [CommandName::Stop, CommandName::Pause, CommandName::Abort, CommandName::Next, CommandName::Step];
    let commands = CommandName::ALL.into_iter().map(|command| {
        let reason = command.check_legal(ExperimentState::Running).err().unwrap_or_default();
        assert_eq!(legal.contains(&command), reason.is_empty());
        (command, Legality { legal: reason.is_empty(), reason })
    });
    Status {
        experiment: "shift".into(),
        state: ExperimentState::Running,
        sentence: "run 1 is under way".into(),
        run: Some(RunView {
            number: 1,
            kind: "physics".into(),
            note: "first beam".into(),
            asked_at: Some(NOW - 193.0),
            began_at: Some(NOW - 192.0),
            seconds: 192.0,
        }),
        commands: commands.collect(),
        totals: Totals {
            events: 1_997,
            bytes: 24_539_136,
            fragments: 5_991,
            events_per_second: 200.0,
            bytes_per_second: 2_457_600.0,
            ..Totals::default()
        },
        ledger: LedgerView { accepted: 6_000, built: 5_991, on_the_way: 9, ..LedgerView::default() },
        sources: ["adc-0", "adc-1", "adc-2"].map(healthy_source).to_vec(),
        builders: vec![BuilderView {
            name: "builder".into(),
            host: "daq-0".into(),
            is_node_connected: true,
            state: ExperimentState::Running,
            events: 1_997,
            bytes_per_second: 2_457_600.0,
            disk: DiskView { free_bytes: Some(1 << 40), seconds_left: Some(11_520.0) },
            ..BuilderView::default()
        }],
        messages: vec![MessageView {
            id: 1,
            at: NOW - 192.0,
            severity: Severity::Info,
            node: None,
            run: Some(1),
            text: "running: run 1 is under way".into(),
        }],
        processes: vec![process_of("builder", &[ProcessAction::Stop]), process_of("adc-0", &ProcessAction::ALL)],
        ..Status::default()
    }
}

/// The same run after adc-1 has died.
fn broken_status() -> Status {
    let mut status = status();
    let broken = &mut status.sources[1];
    (broken.severity, broken.trouble) = (TroubleLevel::Major, "its node is not connected to this service".into());
    (broken.bytes_per_second, broken.events_per_second) = (0.0, 0.0);
    (broken.silent_since_at, broken.ledger.lost) = (Some(NOW - 12.0), 3);
    status.totals.incomplete = 2_411;
    status.ledger.accepted += 3;
    status.ledger.lost = 3;
    status.incomplete_events = vec![IncompleteView {
        event: 12_345,
        event_text: "12345".into(),
        builder: "builder".into(),
        missing: vec![MissingView {
            source: "adc-1".into(),
            host: "daq-0".into(),
            address: Some("10.0.0.7:4242".into()),
        }],
    }];
    status.alarms = vec![AlarmView {
        id: "process-missing:adc-1".into(),
        severity: TroubleLevel::Major,
        text: "node adc-1 is not connected".into(),
        since_at: NOW - 11.0,
        is_active: true,
        ..AlarmView::default()
    }];
    status
}

fn screen_of(status: Status) -> Screen {
    let mut screen = Screen::new("http://127.0.0.1:8400");
    screen.take_status(Box::new(status));
    screen
}

fn press_keys(screen: &mut Screen, keys: &str) -> Option<Effect> {
    let event = |code| Event::Key(KeyEvent::new(code, KeyModifiers::NONE));
    let mut last = None;
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\t' => KeyCode::Tab,
            '\u{1b}' => KeyCode::Esc,
            char => KeyCode::Char(char),
        };
        last = screen.handle_event(&event(code));
    }
    last
}

#[test]
fn a_run_is_seen_at_a_glance_at_80_by_24() {
    let text = text(&screen_of(status()), 80, 24);
    println!("{text}");
    assert_eq!(row(&text, "shift"), " shift  running  run 1 is under way                                 17:03:22 UTC");
    assert_eq!(row(&text, "run 1"), " run 1 (physics), 0:03:12 since 17:00:10: first beam");
    assert_eq!(row(&text, "1,997"), " 1,997 events, 200 events/s, 2.46 MB/s, none incomplete");
    assert_eq!(row(&text, "What"), " What is wrong: nothing");
    assert_eq!(row(&text, "Source"), "  Source             Rate Events/s Backlog  Dead    Lost Silent since Host");
    assert_eq!(row(&text, "adc-1"), "  adc-1          819 kB/s      200       3 < 1 %       0 -            daq-0");
    assert_eq!(row(&text, "Builder"), "  Builder            Rate      Events Incomplete Back-pressure Disk lasts Host");
    assert_eq!(
        row(&text, "builder"),
        "  builder       2.46 MB/s       1,997          0           0 % 3 h 12 min daq-0"
    );
    assert_eq!(row(&text, "Ledger"), " Ledger: 6,000 fragments accepted, each in one of these buckets");
    assert_eq!(row(&text, "built"), "  built 5,991  on the way 9  rejected 0  beyond the end 0  dropped 0");
    assert!(text.contains("\n 17:00:10   running: run 1 is under way\n"), "{text}");
    let keys = " (c)onfigure (a)rm (s)tart [p]ause (r)esume [n]ext st[e]p st[o]p a[b]ort";
    assert!(text.contains(keys), "{text}");
    assert_eq!(text.lines().count(), 24);
}

#[test]
fn what_is_wrong_comes_first_with_names_and_times() {
    let text = text(&screen_of(broken_status()), 80, 24);
    println!("{text}");
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| line.starts_with(" What is wrong")).unwrap();
    assert_eq!(lines[at + 1], " X 17:03:11 adc-1 on daq-0: its node is not connected to this service");
    assert_eq!(lines[at + 2], " !          event 12,345 is incomplete without adc-1 on daq-0 (10.0.0.7:4242)");
    // The one in trouble before the others.
    assert_eq!(lines[at + 4], "X adc-1             0 B/s        0       3 < 1 %       3 17:03:10     daq-0");
    assert!(text.contains("! lost 3") && text.contains(", ! 2,411 incomplete"), "{text}");
}

#[test]
fn a_wide_terminal_shows_more_of_each_source() {
    let text = text(&screen_of(broken_status()), 200, 60);
    println!("{text}");
    assert_eq!(text.lines().count(), 60);
    let row = row(&text, "adc-0");
    assert!(row.contains("10.0.0.7:4242") && row.contains("tcp") && row.ends_with("daq-0"), "{row}");
}

#[test]
fn a_fragment_that_is_in_no_bucket_is_a_trouble() {
    let mut status = status();
    status.ledger.accepted += 1;
    let text = text(&screen_of(status), 80, 24);
    assert_eq!(row(&text, "Ledger"), " Ledger: X 6,001 fragments accepted, 1 not accounted for");
}

#[test]
fn what_is_waited_for_and_what_is_left_out_is_named() {
    let status = Status { waits_for: vec!["adc-1".into()], left_out: vec!["adc-2".into()], ..status() };
    let shown = text(&screen_of(status), 120, 24);
    assert!(row(&shown, "shift").contains("run 1 is under way; waits for adc-1; left out: adc-2 "), "{shown}");
}

#[test]
fn of_many_sources_those_in_trouble_are_in_sight() {
    let mut status = status();
    status.sources = (0..300).map(|index| healthy_source(&format!("adc-{index:03}"))).collect();
    status.sources[250].severity = TroubleLevel::Minor;
    status.sources[250].trouble = "2 fragments came too late".into();
    let mut screen = screen_of(status);
    let text_before = text(&screen, 80, 24);
    println!("{text_before}");
    assert!(text_before.contains("\n! adc-250        819 kB/s "), "{text_before}");
    assert!(text_before.contains("  and 29"), "{text_before}");
    for _ in 0..300 {
        screen.handle_event(&Event::Key(KeyEvent::new(KeyCode::Down, KeyModifiers::NONE)));
    }
    assert!(text(&screen, 80, 24).contains("adc-299"));
}

#[test]
fn a_key_that_is_not_legal_says_why_and_abort_and_stop_ask_first() {
    let mut screen = screen_of(status());
    assert_eq!(press_keys(&mut screen, "s"), None);
    let reason = " ! cannot start: the experiment is running: a run is under way: stop it first";
    assert!(text(&screen, 80, 24).contains(reason));
    assert_eq!(press_keys(&mut screen, "o"), None);
    let shown = text(&screen, 80, 24);
    println!("{shown}");
    assert!(shown.contains("Stop run 1?") && shown.contains("y: yes  n: no"));
    assert_eq!(press_keys(&mut screen, "x\n"), None, "yes is a word of its own");
    assert_eq!((press_keys(&mut screen, "n"), screen.dialog.is_none()), (None, true));
    let Some(Effect::Send(order)) = press_keys(&mut screen, "by") else { panic!("{screen:?}") };
    assert_eq!(order.request.path, "/api/v1/commands/abort");
    assert!(text(&screen, 80, 24).contains(" abort is under way"));
    screen.take_answer("abort", Err("cannot abort: the builder is gone".into()));
    assert!(text(&screen, 80, 24).contains(" ! cannot abort: the builder is gone"));
}

#[test]
fn a_start_asks_for_a_note_and_a_kind() {
    let mut status = status();
    status.run = None;
    status.commands = BTreeMap::from([(CommandName::Start, Legality { legal: true, reason: String::new() })]);
    let mut screen = screen_of(status);
    assert_eq!(press_keys(&mut screen, "sbeam q\t"), None);
    let shown = text(&screen, 80, 24);
    println!("{shown}");
    assert!(shown.contains("kind: test") && shown.contains("note: beam q"), "keys are letters of the note");
    screen.handle_event(&Event::Paste(" 2\nyq".into()));
    let Some(Effect::Send(order)) = press_keys(&mut screen, "\n") else { panic!("{screen:?}") };
    assert_eq!(order.request.path, "/api/v1/commands/start");
    assert_eq!(order.request.body, serde_json::json!({ "kind": "test", "note": "beam q 2yq" }));
    assert_eq!(screen.handle_event(&Event::Paste("s\n".into())), None, "what is pasted gives no commands");
    assert!(screen.dialog.is_none());
}

#[test]
fn of_a_long_note_the_end_is_shown() {
    let mut screen = screen_of(status());
    press_keys(&mut screen, "n");
    screen.handle_event(&Event::Paste("x".repeat(5_000)));
    press_keys(&mut screen, "the end");
    let shown = text(&screen, 80, 24);
    assert!(shown.contains("note: xxxx") && !shown.contains("the end"), "no more than the service takes");
    for _ in 0..7 {
        screen.handle_event(&Event::Key(KeyEvent::new(KeyCode::Backspace, KeyModifiers::NONE)));
    }
    press_keys(&mut screen, "the end");
    assert!(text(&screen, 80, 24).contains("xxthe end"));
}

#[test]
fn an_alarm_is_acknowledged_with_a_reason() {
    let mut screen = screen_of(broken_status());
    assert_eq!(press_keys(&mut screen, "k\n"), None, "a reason is needed");
    assert!(text(&screen, 80, 24).contains("node adc-1 is not connected"));
    let Some(Effect::Send(order)) = press_keys(&mut screen, "crate is off\n") else { panic!("{screen:?}") };
    assert_eq!(order.request.path, "/api/v1/alarms/process%2Dmissing%3Aadc%2D1/acknowledge");
    let mut status = broken_status();
    (status.alarms[0].is_acknowledged, status.alarms[0].why) = (true, "crate is off".into());
    status.alarms[0].acknowledged_by = Some("anna".into());
    let shown = text(&screen_of(status), 120, 24);
    assert!(
        shown.contains(" What is wrong: 1 acknowledged") && shown.contains("acknowledged by anna: crate is off"),
        "{shown}"
    );
}

#[test]
fn processes_are_started_and_ended_in_their_table() {
    let mut screen = screen_of(status());
    assert_eq!(press_keys(&mut screen, "\tr"), None);
    let shown = text(&screen, 80, 24);
    println!("{shown}");
    assert_eq!(row(&shown, "builder"), "> builder        source  up       16:53:22     4242 child      daq-0");
    assert!(shown.contains(" ! node 'builder' cannot restart") && shown.contains("Last line of builder: connected"));
    assert!(shown.contains(" (s)tart st[o]p (r)estart [l]og"), "{shown}");
    screen.handle_event(&Event::Key(KeyEvent::new(KeyCode::Down, KeyModifiers::NONE)));
    assert_eq!(press_keys(&mut screen, "r"), None);
    assert!(text(&screen, 80, 24).contains("Restart the process of adc-0?"));
    let Some(Effect::Send(order)) = press_keys(&mut screen, "y") else { panic!("{screen:?}") };
    assert_eq!(
        (order.name.as_str(), order.request.path.as_str()),
        ("restart adc-0", "/api/v1/processes/adc%2D0/restart")
    );
    assert_eq!(press_keys(&mut screen, "l"), Some(Effect::ReadLog("adc-0".into())));
    screen.take_log("adc-0", Ok((0..500).map(|line| format!("line {line}")).collect()));
    assert!(text(&screen, 80, 24).contains("line 499"), "the end of the log");
}

#[test]
fn lost_contact_is_said_and_nothing_can_be_pressed() {
    let mut screen = screen_of(status());
    screen.lose_contact("connection refused".into(), NOW - 12.0);
    let shown = text(&screen, 80, 24);
    println!("{shown}");
    assert_eq!(
        row(&shown, "shift"),
        " shift  no contact  for 12 s: the values are old; connecting again  17:03:22 UTC"
    );
    assert_eq!(row(&shown, "What"), " What is wrong: not known without contact");
    assert!(shown.contains("\n connection refused\n") && shown.contains("st(o)p a(b)ort"), "{shown}");
    assert_eq!(press_keys(&mut screen, "b"), None);
    assert_eq!(screen.notice.as_ref().unwrap().text, "there is no contact with the service");
    screen.lose_contact("still".into(), NOW);
    assert!(matches!(screen.contact, Contact::Lost { since, .. } if since < NOW));
    screen.take_status(Box::new(status()));
    assert!(text(&screen, 80, 24).contains(" shift  running "));
}

#[test]
fn nothing_is_expressed_by_a_color_alone() {
    let screen = screen_of(broken_status());
    let mut plain = Buffer::empty(Rect::new(0, 0, 80, 24));
    draw_screen(&screen, Look { is_coloured: false }, NOW, plain.area, &mut plain);
    assert!(plain.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    let coloured = draw(&screen, 80, 24);
    assert!(coloured.content.iter().any(|cell| cell.fg == Color::Red));
    assert_eq!(rows(&plain), rows(&coloured));
}

#[test]
fn text_of_others_cannot_move_the_cursor() {
    let mut status = broken_status();
    let evil = "\u{1b}[2J\u{1b}[31mgone\u{7}\r\n";
    status.experiment = evil.into();
    status.sources[0].name = evil.into();
    status.sources[1].trouble = evil.into();
    status.messages[0].text = evil.into();
    status.processes[0].last_line = evil.into();
    let mut screen = screen_of(status);
    screen.notice = Some(Notice { is_refusal: true, text: evil.into() });
    for keys in ["", "\t", "l", "\u{1b}?"] {
        press_keys(&mut screen, keys);
        screen.take_log("builder", Ok(vec![evil.into()]));
        let buffer = draw(&screen, 80, 24);
        assert!(!buffer.content.iter().any(|cell| cell.symbol().contains(char::is_control)));
    }
}

/// A status as a service has sent it: run 1 of examples/shift.toml, 12 s after the end of adc-1.
const SHIFT: &str = include_str!("shift.json");

#[test]
fn the_document_shows_the_screen_as_it_is() {
    let status: Status = serde_json::from_str(SHIFT).unwrap();
    let began = status.run.as_ref().and_then(|run| run.began_at).unwrap();
    let seconds = status.run.as_ref().unwrap().seconds;
    let mut buffer = Buffer::empty(Rect::new(0, 0, 80, 24));
    draw_screen(&screen_of(status), Look::default(), began + seconds, buffer.area, &mut buffer);
    let drawn = rows(&buffer).join("\n");
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/control.md")).unwrap();
    assert!(page.contains(&format!("```text\n{drawn}\n```")), "docs/control.md does not have this:\n{drawn}");
}

proptest! {
    /// Any size, any figures, any keys: there is a picture, and no panic.
    #[test]
    fn any_state_has_a_picture_of_any_size(
        width in 0_u16..230,
        height in 0_u16..70,
        names in proptest::collection::vec(".{0,40}", 0..40),
        figure in any::<f64>(),
        count in any::<u64>(),
        keys in "[a-z?\t\n\u{1b}]{0,12}",
    ) {
        let mut status = broken_status();
        status.sources = names.iter().map(|name| SourceView {
            bytes_per_second: figure,
            dead_percent: Some(figure),
            owes_seconds: figure,
            silent_since_at: Some(figure),
            backlog: count,
            trouble: name.clone(),
            severity: if count.is_multiple_of(2) { TroubleLevel::Major } else { TroubleLevel::Ok },
            ..healthy_source(name)
        }).collect();
        status.ledger = LedgerView { accepted: count, built: count, lost: count, late: count, ..LedgerView::default() };
        status.totals = Totals { events: count, bytes_per_second: figure, events_per_second: figure, ..Totals::default() };
        status.builders[0].disk.seconds_left = Some(figure);
        status.processes = names.iter().map(|name| process_of(name, &ProcessAction::ALL)).collect();
        status.waits_for = names;
        let mut screen = screen_of(status);
        press_keys(&mut screen, &keys);
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
        draw_screen(&screen, Look::default(), figure, buffer.area, &mut buffer);
    }
}
