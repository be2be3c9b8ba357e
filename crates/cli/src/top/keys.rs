//! The meaning of keys, the selection, and which processes are shown in which order: pure, so that
//! it can be tested without a terminal.

use std::cmp::Reverse;

use gpreempt_core::priority::Priority;
use gpreempt_wire::statistics::{Snapshot, TaskSnapshot};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::history::{TaskKey, key};

/// The command of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyCommand {
    /// Ends the program.
    Quit,
    /// Sets a priority.
    Set(TaskKey, Priority),
    /// Suspends a process.
    Suspend(TaskKey),
    /// Resumes a process.
    Resume(TaskKey),
    /// Moves the memory of a process to the host.
    Evict(TaskKey),
    /// Moves it back.
    Restore(TaskKey),
}

/// The order of the processes: the greatest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Order {
    #[default]
    Priority,
    Share,
    Waiting,
    Memory,
}

impl Order {
    const ALL: [(Self, &str); 4] = [
        (Self::Priority, "priority"),
        (Self::Share, "share"),
        (Self::Waiting, "waiting"),
        (Self::Memory, "memory"),
    ];

    fn sort(self, tasks: &mut [TaskSnapshot]) {
        tasks.sort_by_key(|task| (Reverse(task.priority), key(task)));
        match self {
            Self::Priority => {}
            Self::Share => tasks.sort_by(|one, other| {
                let share = |task: &TaskSnapshot| task.share.unwrap_or(-1.0);
                share(other).total_cmp(&share(one))
            }),
            Self::Waiting => tasks.sort_by_key(|task| Reverse(task.waiting_ms)),
            Self::Memory => tasks.sort_by_key(|task| Reverse(task.gpu_memory_kib)),
        }
    }
}

/// The selection, what is shown, the open question and the message at the bottom.
#[derive(Debug, Default)]
pub(super) struct Panel {
    order: Order,
    /// The number of the GPU whose processes are shown; none for all.
    gpu: Option<u32>,
    /// A part of the names or pids of the processes that are shown.
    filter: String,
    /// Whether keys change the filter.
    is_typing: bool,
    selected: Option<TaskKey>,
    /// The position of the selected process, for when it has ended.
    place: usize,
    /// The command of an open question: to suspend or to evict a process.
    question: Option<KeyCommand>,
    message: Option<String>,
    has_no_keys: bool,
}

impl Panel {
    /// For a picture without keys.
    pub(super) fn without_keys() -> Self {
        Self { has_no_keys: true, ..Self::default() }
    }

    pub(super) const fn selected(&self) -> Option<TaskKey> {
        self.selected
    }

    /// The processes that are shown, in their order.
    pub(super) fn view(&self, snapshot: &Snapshot) -> Vec<TaskSnapshot> {
        let is_on = |task: &TaskSnapshot, gpu: u32| {
            let uuid = snapshot.devices.iter().find(|device| device.id == gpu).map(|it| &it.uuid);
            task.queues.iter().any(|queue| queue.device == gpu)
                || uuid.is_some_and(|uuid| task.gpus.contains(uuid))
        };
        let filter = self.filter.to_lowercase();
        let is_shown = |task: &&TaskSnapshot| {
            self.gpu.is_none_or(|gpu| is_on(task, gpu))
                && (task.name.to_lowercase().contains(&filter)
                    || task.pid.to_string().contains(&filter))
        };
        let mut tasks: Vec<TaskSnapshot> =
            snapshot.tasks.iter().filter(is_shown).cloned().collect();
        self.order.sort(&mut tasks);
        tasks
    }

    /// What is not as at the start, for the title.
    pub(super) fn title(&self) -> String {
        let mut title = String::new();
        if self.order != Order::default() {
            let name = Order::ALL.into_iter().find(|(order, _)| *order == self.order);
            title.push_str(&format!("  by {}", name.map_or("", |(_, name)| name)));
        }
        if let Some(gpu) = self.gpu {
            title.push_str(&format!("  gpu {gpu}"));
        }
        if !self.filter.is_empty() {
            title.push_str(&format!("  filter {}", self.filter));
        }
        title
    }

    /// The position of the selected process in `tasks`.
    pub(super) fn index(&self, tasks: &[TaskSnapshot]) -> Option<usize> {
        tasks.iter().position(|task| Some(key(task)) == self.selected)
    }

    /// Selects another process if the selected one has ended.
    pub(super) fn update(&mut self, tasks: &[TaskSnapshot]) {
        match self.index(tasks) {
            Some(index) => self.place = index,
            None if self.has_no_keys => {}
            None => {
                self.question = None;
                self.select(tasks, self.place);
            }
        }
    }

    /// Shows a message at the bottom until the next key.
    pub(super) fn show(&mut self, message: String) {
        self.message = Some(message);
    }

    /// The line at the bottom.
    pub(super) fn bottom(&self, snapshot: &Snapshot) -> String {
        if self.has_no_keys {
            return String::new();
        }
        match self.question {
            Some(KeyCommand::Suspend((pid, _))) => {
                return format!("suspend {pid} for 10 s? It keeps its GPU memory. y/n");
            }
            Some(KeyCommand::Evict((pid, _))) => {
                return format!("evict {pid}? It does no GPU work until b moves it back. y/n");
            }
            Some(_) | None => {}
        }
        if self.is_typing {
            return format!("filter: {}_  (Enter keeps it, Esc removes it)", self.filter);
        }
        let problem = snapshot.problems.last().cloned();
        let keys = || {
            "+/- prio  s suspend  r resume  e evict  b back  o order  g gpu  / filter  q quit"
                .to_owned()
        };
        self.message.clone().or(problem).unwrap_or_else(keys)
    }

    /// The command of a key, if it has one.
    pub(super) fn press(&mut self, event: KeyEvent, snapshot: &Snapshot) -> Option<KeyCommand> {
        if event.kind == KeyEventKind::Release {
            return None;
        }
        self.message = None;
        if event.modifiers.contains(KeyModifiers::CONTROL) {
            return (event.code == KeyCode::Char('c')).then_some(KeyCommand::Quit);
        }
        if let Some(asked) = self.question.take() {
            let is_yes = matches!(event.code, KeyCode::Char('y' | 'Y'));
            return is_yes.then_some(asked);
        }
        if self.is_typing {
            self.change_filter(event.code);
            return None;
        }
        let tasks = &self.view(snapshot);
        let place = self.index(tasks).unwrap_or(0);
        let task = tasks.get(place).filter(|task| Some(key(task)) == self.selected);
        let change = |up: bool| {
            let task = task?;
            let level = match (task.priority, up) {
                (None, _) => Priority::DEFAULT.level(),
                (Some(level), true) => level.saturating_add(1),
                (Some(level), false) => level.checked_sub(1)?,
            };
            Some(KeyCommand::Set(key(task), Priority::new(level)?))
        };
        #[expect(clippy::wildcard_enum_match_arm, reason = "there are many keys")]
        match event.code {
            KeyCode::Char('q') | KeyCode::Esc => Some(KeyCommand::Quit),
            KeyCode::Up | KeyCode::Char('k') => self.select(tasks, place.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(tasks, place + 1),
            KeyCode::Char('+' | '=') => change(true),
            KeyCode::Char('-') => change(false),
            KeyCode::Char('o') => {
                let next = Order::ALL.iter().skip_while(|(order, _)| *order != self.order).nth(1);
                self.order = next.map(|(order, _)| *order).unwrap_or_default();
                None
            }
            KeyCode::Char('g') => {
                let later = |id: &u32| self.gpu.is_none_or(|gpu| *id > gpu);
                self.gpu = snapshot.devices.iter().map(|device| device.id).filter(later).min();
                None
            }
            KeyCode::Char('/') => {
                self.is_typing = true;
                None
            }
            KeyCode::Char('r') => task.map(|task| KeyCommand::Resume(key(task))),
            KeyCode::Char('b') => task.map(|task| KeyCommand::Restore(key(task))),
            KeyCode::Char('s') => {
                self.question = task.map(|task| KeyCommand::Suspend(key(task)));
                None
            }
            KeyCode::Char('e') => {
                self.question = task.map(|task| KeyCommand::Evict(key(task)));
                None
            }
            _ => None,
        }
    }

    fn change_filter(&mut self, code: KeyCode) {
        #[expect(clippy::wildcard_enum_match_arm, reason = "there are many keys")]
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(char) => self.filter.push(char),
            _ => {}
        }
    }

    fn select(&mut self, tasks: &[TaskSnapshot], place: usize) -> Option<KeyCommand> {
        self.place = place.min(tasks.len().saturating_sub(1));
        self.selected = tasks.get(self.place).map(key);
        None
    }
}
