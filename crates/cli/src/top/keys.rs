//! What keys mean: pure, so that it can be tested without a terminal.

use gpreempt_core::priority::Priority;
use gpreempt_wire::state::{Snapshot, TaskSnapshot};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::history::{TaskKey, key};

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// Go away.
    Quit,
    /// Another priority.
    Set(TaskKey, Priority),
    /// Off its devices for a while.
    Suspend(TaskKey),
    /// On again.
    Resume(TaskKey),
}

/// What somebody has selected, was asked and was told.
#[derive(Debug, Default)]
pub(super) struct Panel {
    selected: Option<TaskKey>,
    /// Where the selected one was, for when it is gone.
    place: usize,
    /// Whether to suspend it was asked and not answered.
    question: Option<TaskKey>,
    message: Option<String>,
    is_paper: bool,
}

impl Panel {
    /// For a picture without keys.
    pub(super) fn for_paper() -> Self {
        Self { is_paper: true, ..Self::default() }
    }

    /// What is selected.
    pub(super) const fn selected(&self) -> Option<TaskKey> {
        self.selected
    }

    /// Where the selected process is among `tasks`.
    pub(super) fn index(&self, tasks: &[TaskSnapshot]) -> Option<usize> {
        tasks.iter().position(|task| Some(key(task)) == self.selected)
    }

    /// Selects somebody else where the selected process is gone.
    pub(super) fn catch_up(&mut self, tasks: &[TaskSnapshot]) {
        match self.index(tasks) {
            Some(index) => self.place = index,
            None if self.is_paper => {}
            None => {
                self.question = None;
                self.select(tasks, self.place);
            }
        }
    }

    /// Says something at the bottom until the next key.
    pub(super) fn say(&mut self, message: String) {
        self.message = Some(message);
    }

    /// The line at the bottom.
    pub(super) fn bottom(&self, snapshot: &Snapshot) -> String {
        if self.is_paper {
            return String::new();
        }
        if let Some((pid, _)) = self.question {
            return format!("suspend {pid} for 10 s? It keeps its GPU memory. y/n");
        }
        let problem = snapshot.problems.last().cloned();
        let keys = || "up/down select  +/- priority  s suspend  r resume  q quit".to_owned();
        self.message.clone().or(problem).unwrap_or_else(keys)
    }

    /// What a key asks for, if anything.
    pub(super) fn press(&mut self, event: KeyEvent, tasks: &[TaskSnapshot]) -> Option<Wish> {
        if event.kind == KeyEventKind::Release {
            return None;
        }
        self.message = None;
        if event.modifiers.contains(KeyModifiers::CONTROL) {
            return (event.code == KeyCode::Char('c')).then_some(Wish::Quit);
        }
        if let Some(asked) = self.question.take() {
            let is_yes = matches!(event.code, KeyCode::Char('y' | 'Y'));
            return is_yes.then_some(Wish::Suspend(asked));
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
            Some(Wish::Set(key(task), Priority::new(level)?))
        };
        #[expect(clippy::wildcard_enum_match_arm, reason = "there are many keys")]
        match event.code {
            KeyCode::Char('q') | KeyCode::Esc => Some(Wish::Quit),
            KeyCode::Up | KeyCode::Char('k') => self.select(tasks, place.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(tasks, place + 1),
            KeyCode::Char('+' | '=') => change(true),
            KeyCode::Char('-') => change(false),
            KeyCode::Char('r') => task.map(|task| Wish::Resume(key(task))),
            KeyCode::Char('s') => {
                self.question = task.map(key);
                None
            }
            _ => None,
        }
    }

    fn select(&mut self, tasks: &[TaskSnapshot], place: usize) -> Option<Wish> {
        self.place = place.min(tasks.len().saturating_sub(1));
        self.selected = tasks.get(self.place).map(key);
        None
    }
}
