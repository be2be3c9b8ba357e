//! Programs: instructions and the LDS they need, assembled from text.
//!
//! Two passes: the first finds instructions, labels and directives, so that the second knows every
//! label when it reads the instructions.

use std::fmt;

use super::instruction::Instruction;
use super::parse::{Labels, instruction, number, quoted};
use super::{INSTRUCTIONS_MAX, LDS_BYTES_MAX};

/// A kernel's code: instructions and the LDS they need.
///
/// # Invariants
/// At least one instruction and at most [`INSTRUCTIONS_MAX`]; at most [`LDS_BYTES_MAX`] of LDS. The
/// only constructor is [`Program::assemble`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    name: String,
    lds_bytes: u32,
    instructions: Vec<Instruction>,
}

impl Program {
    /// The caller has checked the invariants.
    pub(super) fn new(name: &str, lds_bytes: u32, instructions: Vec<Instruction>) -> Self {
        Self { name: name.to_owned(), lds_bytes, instructions }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// LDS of one work-group, initially zero.
    pub fn lds_bytes(&self) -> usize {
        usize::try_from(self.lds_bytes).expect("at most 64 KiB")
    }

    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    pub fn instruction(&self, pc: u32) -> Option<Instruction> {
        let index = usize::try_from(pc).ok()?;
        self.instructions.get(index).copied()
    }
}

impl fmt::Display for Program {
    /// The program as text that assembles to the same program.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lds_bytes > 0 {
            writeln!(f, ".lds {}", self.lds_bytes)?;
        }
        for instruction in &self.instructions {
            writeln!(f, "    {instruction}")?;
        }
        Ok(())
    }
}

/// Why a text is not a program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct AssembleError {
    /// Counted from 1.
    pub line: usize,
    pub message: String,
}

impl Program {
    /// Translates assembly text; [`isa`](crate::isa) describes the language.
    ///
    /// # Errors
    /// The first invalid line.
    pub fn assemble(name: &str, text: &str) -> Result<Self, AssembleError> {
        let outline = Outline::read(text)?;
        let mut instructions = Vec::with_capacity(outline.instructions.len());
        for (line, text) in outline.instructions {
            let decoded = instruction(text, &outline.labels);
            instructions.push(decoded.map_err(|message| AssembleError { line, message })?);
        }
        Ok(Self::new(name, outline.lds_bytes.unwrap_or(0), instructions))
    }
}

/// The result of the first pass.
#[derive(Debug, Default)]
struct Outline<'a> {
    /// Line numbers and texts.
    instructions: Vec<(usize, &'a str)>,
    labels: Labels<'a>,
    lds_bytes: Option<u32>,
}

impl<'a> Outline<'a> {
    fn read(text: &'a str) -> Result<Self, AssembleError> {
        let mut outline = Self::default();
        let mut line = 1;
        for (index, text) in text.lines().enumerate() {
            line = index + 1;
            outline.read_line(line, text).map_err(|message| AssembleError { line, message })?;
        }
        if outline.instructions.is_empty() {
            let message = "the program has no instructions; write at least `end`".to_owned();
            return Err(AssembleError { line, message });
        }
        outline.labels.instructions = outline.instructions.len();
        Ok(outline)
    }

    fn read_line(&mut self, line: usize, text: &'a str) -> Result<(), String> {
        let code = text.split([';', '#']).next().unwrap_or("");
        let mut rest = code.trim();
        // Nothing but labels contains a colon.
        while let Some((label, after)) = rest.split_once(':') {
            self.add_label(label.trim())?;
            rest = after.trim();
        }
        if rest.is_empty() {
            return Ok(());
        }
        if rest.starts_with('.') {
            return self.read_directive(rest);
        }
        if self.instructions.len() == INSTRUCTIONS_MAX {
            return Err(format!(
                "a program has at most {INSTRUCTIONS_MAX} instructions; use loops"
            ));
        }
        self.instructions.push((line, rest));
        Ok(())
    }

    fn add_label(&mut self, label: &'a str) -> Result<(), String> {
        let mut characters = label.chars();
        let begins =
            characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_');
        if !begins || !characters.all(|next| next.is_ascii_alphanumeric() || next == '_') {
            return Err(format!(
                "{} is not a label; use letters, digits and `_`, and begin with a letter",
                quoted(label)
            ));
        }
        let here = u32::try_from(self.instructions.len()).expect("at most 4096 instructions");
        match self.labels.places.insert(label, here) {
            None => Ok(()),
            Some(_) => Err(format!("label {} is there twice; rename one of them", quoted(label))),
        }
    }

    fn read_directive(&mut self, text: &str) -> Result<(), String> {
        let bytes = match text.split_once(char::is_whitespace) {
            Some((".lds", bytes)) => bytes.trim(),
            Some(_) | None => {
                return Err(format!(
                    "{} is not a directive; the only one is `.lds BYTES`",
                    quoted(text)
                ));
            }
        };
        let bytes = number(bytes).filter(|bytes| *bytes <= LDS_BYTES_MAX);
        let Some(bytes) = bytes else {
            return Err(format!(
                "`.lds` needs a number of bytes up to {LDS_BYTES_MAX}, the size of the LDS"
            ));
        };
        match self.lds_bytes.replace(bytes) {
            None => Ok(()),
            Some(_) => Err("`.lds` is there twice; keep one".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> (usize, String) {
        let error = Program::assemble("test", text).unwrap_err();
        (error.line, error.message)
    }

    #[test]
    fn labels_lead_forwards_and_backwards() {
        let text = "
            .lds 0x40       # sixteen words
            start:          ; nothing but a label
                branch_eq s0, 3, done
            back: also: mov s0, 3
                jump start
            done: end";
        let program = Program::assemble("test", text).unwrap();
        assert_eq!(program.lds_bytes(), 64);
        assert_eq!(
            program.to_string(),
            ".lds 64\n    branch_eq s0, 3, @3\n    mov s0, 3\n    jump @0\n    end\n"
        );
        assert_eq!(Program::assemble("test", &program.to_string()), Ok(program));
    }

    #[test]
    fn mistakes_are_reported_with_their_line() {
        for (text, line, part) in [
            ("", 1, "no instructions"),
            ("; nothing\n\n.lds 4", 3, "no instructions"),
            ("end\na b: end", 2, "`a b` is not a label"),
            ("a: end\na: end", 2, "label `a` is there twice"),
            ("end\n.data 4", 2, "`.data 4` is not a directive"),
            (".lds 65537\nend", 1, "up to 65536"),
            (".lds 4\n.lds 4\nend", 2, "twice"),
            ("end\n  jump nowhere ; far away", 2, "`nowhere`"),
            ("jump @2\nend\nend\njump @5", 4, "`@5`"),
        ] {
            let (found, message) = error(text);
            assert_eq!(found, line, "{text}: {message}");
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn programs_have_a_longest_size() {
        let longest = "end\n".repeat(INSTRUCTIONS_MAX);
        assert!(Program::assemble("test", &longest).is_ok());
        let longer = longest + "end";
        let (line, message) = error(&longer);
        assert_eq!(line, INSTRUCTIONS_MAX + 1);
        assert!(message.contains("at most 4096"), "{message}");
    }
}
