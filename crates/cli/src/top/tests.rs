//! Pictures of every size, and keys.

use expect_test::expect;
use gpreempt_core::priority::Priority;
use gpreempt_wire::statistics::{
    DaemonSnapshot, DeviceSnapshot, QueueSnapshot, Snapshot, TaskSnapshot, TaskState,
};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::history::History;
use super::keys::{KeyCommand, Panel};
use super::{frame, plain, text};

fn task(pid: u32, name: &str, priority: u8, share: f64) -> TaskSnapshot {
    TaskSnapshot {
        pid,
        start_ticks: 9,
        name: name.to_owned(),
        priority: Some(priority),
        state: TaskState::Running,
        share: Some(share),
        queues: vec![QueueSnapshot::default()],
        ..TaskSnapshot::default()
    }
}

/// Two processes that take turns, and one that is suspended.
fn snapshot(turn: u64) -> Snapshot {
    let serve = TaskSnapshot { share_minute: Some(0.25), ..task(4100, "serve", 12, 0.125) };
    let train = TaskSnapshot {
        state: TaskState::Preempted,
        pending: Some(37),
        estimated: true,
        gpu_memory_kib: Some(2_048),
        preempts_per_s: 2.5,
        waiting_ms: Some(4),
        ..task(4242, "train-a-very-long-name.py", 2, 0.875)
    };
    let idle = TaskSnapshot { state: TaskState::Suspended, ..task(77, "batch", 0, 0.0) };
    Snapshot {
        now_ns: 1_000_000_000 + turn * 200_000_000,
        daemon: DaemonSnapshot { uptime_ms: 90_000, ..DaemonSnapshot::default() },
        policy: "strict".to_owned(),
        interval_us: 5_000,
        devices: vec![DeviceSnapshot {
            id: 0,
            uuid: "GPU-0123456789abcdef".to_owned(),
            kind: "nvidia".to_owned(),
            busy_share: Some(0.98),
            power_mw: Some(312_500),
            preempts: turn,
            preempt_us_p50: 812,
            preempt_us_p99: 1_930,
            ..DeviceSnapshot::default()
        }],
        tasks: vec![idle, train, serve],
        ..Snapshot::default()
    }
}

fn history() -> History {
    let mut history = History::default();
    for turn in 0..20 {
        history.push(snapshot(turn));
    }
    history
}

fn selected(history: &History) -> Panel {
    let mut panel = Panel::default();
    panel.update(&panel.view(history.latest()));
    panel
}

fn picture(width: u16, height: u16) -> String {
    picture_of(&history(), width, height)
}

fn picture_of(history: &History, width: u16, height: u16) -> String {
    let panel = selected(history);
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|picture| {
            let area = picture.area();
            frame::draw(history, &panel, area, picture.buffer_mut());
        })
        .unwrap();
    text(terminal.backend().buffer())
}

#[test]
fn that_the_kernel_schedules_is_not_cut_off_at_80_columns() {
    let mut snapshot = snapshot(1);
    let device = &mut snapshot.devices[0];
    (device.kind, device.way) = ("amd".to_owned(), Some("kernel-scheduler".to_owned()));
    let mut history = History::default();
    history.push(snapshot);
    let picture = picture_of(&history, 80, 24);
    assert!(picture.contains("0 amd, scheduled by the kernel "), "{picture}");
}

#[test]
fn at_80x24_everything_is_there() {
    expect![[r#"
        gpreempt top  3 processes  policy strict  every 5.00ms  up 90.0s
        gpu                                             busy preempt p50     p99   pre/s
        0 nvidia GPU-0123456789abcdef                    98%       812us  1.93ms     5.0
        process                  pid   gpu   prio     state pending share  pre/s waiting
        serve                   4100     0     12   running       -   12%    0.0       -
        train-a-very-long-na    4242     0      2 preempted      37  ~88%    2.5  4.00ms
        batch                     77     0      0 suspended       -    0%    0.0       -

        GPU time of each process in the last 3.80s
        serve                                                        ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁
        train-a-very-lon                                             ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇
        batch











        +/- prio  s suspend  r resume  e evict  b back  o order  g gpu  / filter  q quit
    "#]]
    .assert_eq(&picture(80, 24));
}

#[test]
fn at_40x10_the_important_things_are_there() {
    expect![[r#"
        gpreempt top  3 processes  policy strict
        gpu     busy preempt p50     p99   pre/s
        0 nvid   98%       812us  1.93ms     5.0
        process       pid   prio     state share
        serve        4100     12   running   12%
        train-a-v    4242      2 preempted  ~88%
        GPU time of each process in the last 3.8
        serve                ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁
        train-a-ve           ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇
        +/- prio  s suspend  r resume  e evict
    "#]]
    .assert_eq(&picture(40, 10));
}

#[test]
fn without_a_terminal_there_are_no_keys() {
    expect![[r#"
        gpreempt top  3 processes  policy strict  every 5.00ms  up 90.0s
        gpu                                             busy preempt p50     p99   pre/s
        0 nvidia GPU-0123456789abcdef                    98%       812us  1.93ms     5.0
        process                  pid   gpu   prio     state pending share  pre/s waiting
        serve                   4100     0     12   running       -   12%    0.0       -
        train-a-very-long-na    4242     0      2 preempted      37  ~88%    2.5  4.00ms
        batch                     77     0      0 suspended       -    0%    0.0       -
        GPU time of each process in the last 3.80s
        serve                                                        ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁
        train-a-very-lon                                             ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇
        batch
    "#]]
    .assert_eq(&plain(&history()));
}

#[test]
fn no_size_is_too_small() {
    assert_eq!(picture(1, 1), "g\n");
    for width in 0..90 {
        for height in 0..30 {
            let lines = picture(width, height);
            assert_eq!(lines.lines().count(), usize::from(height), "{width}x{height}");
        }
    }
}

#[test]
fn a_machine_without_anything_and_one_with_too_much() {
    let mut empty = History::default();
    assert!(plain(&empty).starts_with("gpreempt top  0 processes"));
    let mut alone = History::default();
    alone.push(Snapshot { now_ns: 1, tasks: vec![task(1, "one", 2, 0.0)], ..Snapshot::default() });
    assert!(plain(&alone).starts_with("gpreempt top  1 process  "));
    let device = |id| DeviceSnapshot { id, ..DeviceSnapshot::default() };
    empty.push(Snapshot {
        now_ns: 1,
        devices: (0..300).map(device).collect(),
        tasks: (0..300).map(|pid| task(pid, "evil\u{1b}[2J\n界", 7, f64::NAN)).collect(),
        ..Snapshot::default()
    });
    let panel = selected(&empty);
    for (width, height) in [(80, 24), (300, 100), (3, 2)] {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal
            .draw(|picture| {
                let area = picture.area();
                frame::draw(&empty, &panel, area, picture.buffer_mut());
            })
            .unwrap();
        assert!(!text(terminal.backend().buffer()).contains('\u{1b}'));
    }
    assert!(plain(&empty).lines().count() <= 500);
}

#[test]
fn keys_select_processes_and_give_commands() {
    let history = history();
    let mut panel = selected(&history);
    let mut press = |code| panel.press(KeyEvent::new(code, KeyModifiers::NONE), history.latest());
    let priority = |level| Priority::new(level).unwrap();
    // The most important one is first.
    assert_eq!(press(KeyCode::Char('+')), Some(KeyCommand::Set((4100, 9), priority(13))));
    assert_eq!(press(KeyCode::Up), None);
    assert_eq!(press(KeyCode::Char('r')), Some(KeyCommand::Resume((4100, 9))));
    assert_eq!(press(KeyCode::Down), None);
    assert_eq!(press(KeyCode::Char('-')), Some(KeyCommand::Set((4242, 9), priority(1))));
    for _ in 0..5 {
        assert_eq!(press(KeyCode::Down), None);
    }
    assert_eq!(press(KeyCode::Char('-')), None, "nothing is below the lowest");
    // To suspend is asked first.
    assert_eq!(press(KeyCode::Char('s')), None);
    assert_eq!(press(KeyCode::Char('q')), None, "any other key means no");
    assert_eq!(press(KeyCode::Char('s')), None);
    assert_eq!(press(KeyCode::Char('y')), Some(KeyCommand::Suspend((77, 9))));
    assert_eq!(press(KeyCode::Char('e')), None);
    assert_eq!(press(KeyCode::Char('y')), Some(KeyCommand::Evict((77, 9))));
    assert_eq!(press(KeyCode::Char('b')), Some(KeyCommand::Restore((77, 9))));
    assert_eq!(press(KeyCode::Char('q')), Some(KeyCommand::Quit));
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(panel.press(interrupt, history.latest()), Some(KeyCommand::Quit));
    assert_eq!(Panel::default().press(interrupt, &Snapshot::default()), Some(KeyCommand::Quit));
    let key = KeyEvent::new(KeyCode::Char('s'), KeyModifiers::NONE);
    assert_eq!(Panel::default().press(key, &Snapshot::default()), None);
}

#[test]
fn the_question_and_the_answer_are_at_the_bottom() {
    let history = history();
    let snapshot = history.latest();
    let mut panel = selected(&history);
    panel.press(KeyEvent::new(KeyCode::Char('s'), KeyModifiers::NONE), snapshot);
    assert!(panel.bottom(snapshot).starts_with("suspend 4100 for 10 s?"));
    // The process ends before the answer: no other process is suspended instead.
    let mut later = snapshot.clone();
    later.tasks.retain(|task| task.pid != 4100);
    panel.update(&panel.view(&later));
    assert_eq!(panel.selected(), Some((4242, 9)));
    let yes = KeyEvent::new(KeyCode::Char('y'), KeyModifiers::NONE);
    assert_eq!(panel.press(yes, &later), None);
    panel.show("not yours".to_owned());
    assert_eq!(panel.bottom(snapshot), "not yours");
    panel.press(KeyEvent::new(KeyCode::Down, KeyModifiers::NONE), snapshot);
    assert!(panel.bottom(snapshot).contains("q quit"));
}

#[test]
fn processes_can_be_ordered_filtered_and_shown_for_one_gpu() {
    let mut snapshot = snapshot(1);
    snapshot.tasks[0].share = None;
    snapshot.tasks[0].queues[0].device = 1;
    snapshot.tasks[1].share = Some(0.9);
    snapshot.tasks[2].gpu_memory_kib = Some(4_096);
    snapshot.devices.push(DeviceSnapshot { id: 1, ..DeviceSnapshot::default() });
    let mut panel = Panel::default();
    let mut after = |keys: &str| {
        for char in keys.chars() {
            let code = match char {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                '\x08' => KeyCode::Backspace,
                char => KeyCode::Char(char),
            };
            assert_eq!(panel.press(KeyEvent::new(code, KeyModifiers::NONE), &snapshot), None);
        }
        let pids: Vec<u32> = panel.view(&snapshot).iter().map(|task| task.pid).collect();
        (pids, panel.title(), panel.bottom(&snapshot))
    };
    assert_eq!(after("").0, [4100, 4242, 77], "by priority");
    let (pids, title, _) = after("o");
    assert_eq!((pids.as_slice(), title.as_str()), (&[4242, 4100, 77][..], "  by share"));
    assert_eq!(after("o").0, [4242, 4100, 77], "by waiting");
    assert_eq!(after("o").0, [4100, 4242, 77], "by memory");
    assert_eq!(after("og").0, [4100, 4242]);
    let (pids, title, _) = after("g");
    assert_eq!((pids.as_slice(), title.as_str()), (&[77][..], "  gpu 1"));
    // While a filter is typed, keys give no commands.
    let (pids, title, bottom) = after("g/Train-qs\x08\x08");
    assert_eq!((pids.as_slice(), title.as_str()), (&[4242][..], "  filter Train-"));
    assert!(bottom.starts_with("filter: Train-_"), "{bottom}");
    assert_eq!(after("\n").0, [4242]);
    assert_eq!(after("/\x1b/77\n").0, [77], "pids count too");
    assert_eq!(after("/\x1b").0, [4100, 4242, 77]);
}
