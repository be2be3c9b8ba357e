//! The meaning of keys, and the selection: pure, so that it can be tested without a terminal.

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
}

/// The selection, the open question and the message at the bottom.
#[derive(Debug, Default)]
pub(super) struct Panel {
    selected: Option<TaskKey>,
    /// The position of the selected process, for when it has ended.
    place: usize,
    /// The process of an open question whether to suspend it.
    question: Option<TaskKey>,
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
        if let Some((pid, _)) = self.question {
            return format!("suspend {pid} for 10 s? It keeps its GPU memory. y/n");
        }
        let problem = snapshot.problems.last().cloned();
        let keys = || "up/down select  +/- priority  s suspend  r resume  q quit".to_owned();
        self.message.clone().or(problem).unwrap_or_else(keys)
    }

    /// The command of a key, if it has one.
    pub(super) fn press(&mut self, event: KeyEvent, tasks: &[TaskSnapshot]) -> Option<KeyCommand> {
        if event.kind == KeyEventKind::Release {
            return None;
        }
        self.message = None;
        if event.modifiers.contains(KeyModifiers::CONTROL) {
            return (event.code == KeyCode::Char('c')).then_some(KeyCommand::Quit);
        }
        if let Some(asked) = self.question.take() {
            let is_yes = matches!(event.code, KeyCode::Char('y' | 'Y'));
            return is_yes.then_some(KeyCommand::Suspend(asked));
        }
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
            KeyCode::Char('r') => task.map(|task| KeyCommand::Resume(key(task))),
            KeyCode::Char('s') => {
                self.question = task.map(key);
                None
            }
            _ => None,
        }
    }

    fn select(&mut self, tasks: &[TaskSnapshot], place: usize) -> Option<KeyCommand> {
        self.place = place.min(tasks.len().saturating_sub(1));
        self.selected = tasks.get(self.place).map(key);
        None
    }
}
