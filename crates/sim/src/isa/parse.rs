//! One line of assembly into one instruction.

use std::collections::BTreeMap;

use super::instruction::{
    Access, Condition, Instruction, Operator, ScalarOperand, ScalarRegister, Space, VectorOperand,
    VectorRegister,
};

#[derive(Debug, Default)]
pub(super) struct Labels<'a> {
    /// The instruction after each label.
    pub(super) places: BTreeMap<&'a str, u32>,
    /// The number of instructions.
    pub(super) instructions: usize,
}

impl Labels<'_> {
    /// The instruction that `text` names: a label, or `@` and its number. The number after the last
    /// instruction is valid too; a wave that gets there faults.
    fn target(&self, text: &str) -> Result<u32, String> {
        let place = match text.strip_prefix('@') {
            Some(index) => number(index)
                .filter(|index| usize::try_from(*index).is_ok_and(|i| i <= self.instructions)),
            None => self.places.get(text).copied(),
        };
        place.ok_or_else(|| {
            format!(
                "there is no place {} to go to; write `name:` before an instruction",
                quoted(text)
            )
        })
    }
}

/// Reads one instruction. `text` has no comment and is not empty.
pub(super) fn instruction(text: &str, labels: &Labels<'_>) -> Result<Instruction, String> {
    let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let operands = Operands::split(name, rest);
    if let Some(operator) = Operator::ALL.into_iter().find(|it| it.name() == name) {
        return compute(operator, &operands);
    }
    if let Some(condition) = Condition::ALL.into_iter().find(|it| it.name() == name) {
        let [left, right, target] = operands.exactly("S, S|N, LABEL")?;
        return Ok(Instruction::Branch {
            condition,
            left: scalar_register(left)?,
            right: scalar_operand(right)?,
            target: labels.target(target)?,
        });
    }
    if let Some((space, access, _)) = Access::ALL.into_iter().find(|(.., it)| *it == name) {
        return memory_access(space, access, &operands);
    }
    match name {
        "mov" => movement(&operands),
        "lane" => {
            let [to] = operands.exactly("V")?;
            Ok(Instruction::Lane { to: vector_register(to)? })
        }
        "first" => {
            let [to, from] = operands.exactly("S, V")?;
            Ok(Instruction::First { to: scalar_register(to)?, from: vector_register(from)? })
        }
        "jump" => {
            let [target] = operands.exactly("LABEL")?;
            labels.target(target).map(|target| Instruction::Jump { target })
        }
        "work" => {
            let [ns] = operands.exactly("S|N")?;
            scalar_operand(ns).map(|ns| Instruction::Work { ns })
        }
        "barrier" => operands.exactly("").map(|[]| Instruction::Barrier),
        "end" => operands.exactly("").map(|[]| Instruction::End),
        _ => Err(format!(
            "{} is not an instruction; there are mov, add, sub, mul, and, or, xor, shl, shr, min, \
             max, lane, first, global_load, global_store, global_add, lds_load, lds_store, \
             lds_add, branch_eq, branch_ne, branch_lt, branch_le, branch_gt, branch_ge, jump, \
             work, barrier and end",
            quoted(name)
        )),
    }
}

/// `mov S, S|N` and `mov V, V|S|N`.
fn movement(operands: &Operands<'_>) -> Result<Instruction, String> {
    let [to, from] = operands.exactly("S, S|N` or `mov V, V|S|N")?;
    if let Some(to) = try_vector(to) {
        let from = vector_operand(from)?;
        return Ok(Instruction::VectorMove { to, from });
    }
    Ok(Instruction::ScalarMove { to: scalar_register(to)?, from: scalar_operand(from)? })
}

/// `add S, S, S|N` and `add V, V, V|S|N`.
fn compute(operator: Operator, operands: &Operands<'_>) -> Result<Instruction, String> {
    let [to, left, right] = operands.exactly("TO, LEFT, RIGHT")?;
    if let Some(to) = try_vector(to) {
        return Ok(Instruction::VectorCompute {
            operator,
            to,
            left: vector_register(left)?,
            right: vector_operand(right)?,
        });
    }
    Ok(Instruction::ScalarCompute {
        operator,
        to: scalar_register(to)?,
        left: scalar_register(left)?,
        right: scalar_operand(right)?,
    })
}

/// `global_load S, [S + N]` and its relatives.
fn memory_access(
    space: Space,
    access: Access,
    operands: &Operands<'_>,
) -> Result<Instruction, String> {
    let (data, place) = match access {
        Access::Load => {
            let [data, place] = operands.exactly("TO, [ADDRESS + N]")?;
            (data, place)
        }
        Access::Store | Access::Add => {
            let [place, data] = operands.exactly("[ADDRESS + N], FROM")?;
            (data, place)
        }
    };
    let (address, offset) = place_parts(place)?;
    if let Some(data) = try_vector(data) {
        return Ok(Instruction::VectorAccess {
            space,
            access,
            data,
            address: vector_register(address)?,
            offset,
        });
    }
    Ok(Instruction::ScalarAccess {
        space,
        access,
        data: scalar_register(data)?,
        address: scalar_register(address)?,
        offset,
    })
}

/// The register's text and the offset of `[REGISTER]` or `[REGISTER + N]`.
fn place_parts(text: &str) -> Result<(&str, u32), String> {
    let inside = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let parts = inside.and_then(|inside| match inside.split_once('+') {
        Some((address, offset)) => Some((address.trim(), number(offset.trim())?)),
        None => Some((inside.trim(), 0)),
    });
    parts.ok_or_else(|| {
        format!("{} is not a place in memory; write `[REGISTER]` or `[REGISTER + N]`", quoted(text))
    })
}

struct Operands<'a> {
    name: &'a str,
    texts: Vec<&'a str>,
}

impl<'a> Operands<'a> {
    fn split(name: &'a str, text: &'a str) -> Self {
        let texts = match text.trim() {
            "" => Vec::new(),
            text => text.split(',').map(str::trim).collect(),
        };
        Self { name, texts }
    }

    /// The operands if there are as many as the instruction takes.
    fn exactly<const N: usize>(&self, form: &str) -> Result<[&'a str; N], String> {
        <[&str; N]>::try_from(self.texts.as_slice()).map_err(|_| {
            let name = self.name;
            let found = self.texts.len();
            let form = format!("{name} {form}");
            format!("`{name}` takes {N} operands, not {found}; write `{}`", form.trim())
        })
    }
}

/// A decimal or hexadecimal number that fits into a register.
pub(super) fn number(text: &str) -> Option<u32> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // The standard parser would take a sign.
    if !digits.chars().all(|digit| digit.is_digit(radix)) {
        return None;
    }
    u32::from_str_radix(digits, radix).ok()
}

fn register_index(text: &str, prefix: char) -> Option<u8> {
    let digits = text.strip_prefix(prefix)?;
    if !digits.chars().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

fn try_scalar(text: &str) -> Option<ScalarRegister> {
    register_index(text, 's').and_then(ScalarRegister::new)
}

fn try_vector(text: &str) -> Option<VectorRegister> {
    register_index(text, 'v').and_then(VectorRegister::new)
}

fn try_operand(text: &str) -> Option<ScalarOperand> {
    try_scalar(text)
        .map(ScalarOperand::Register)
        .or_else(|| number(text).map(ScalarOperand::Immediate))
}

fn scalar_register(text: &str) -> Result<ScalarRegister, String> {
    try_scalar(text)
        .ok_or_else(|| format!("{} is not a scalar register; use `s0` to `s15`", quoted(text)))
}

fn vector_register(text: &str) -> Result<VectorRegister, String> {
    try_vector(text)
        .ok_or_else(|| format!("{} is not a vector register; use `v0` to `v7`", quoted(text)))
}

fn scalar_operand(text: &str) -> Result<ScalarOperand, String> {
    try_operand(text).ok_or_else(|| {
        format!(
            "{} is not a scalar value; use `s0` to `s15` or a number up to {}",
            quoted(text),
            u32::MAX
        )
    })
}

fn vector_operand(text: &str) -> Result<VectorOperand, String> {
    try_vector(text)
        .map(VectorOperand::Vector)
        .or_else(|| try_operand(text).map(VectorOperand::Scalar))
        .ok_or_else(|| {
            format!(
                "{} is not a vector value; use `v0` to `v7`, `s0` to `s15` or a number up to {}",
                quoted(text),
                u32::MAX
            )
        })
}

/// A text in backquotes, shortened and escaped for a message.
pub(super) fn quoted(text: &str) -> String {
    const CHARACTERS_MAX: usize = 40;
    let shown: String = text.chars().take(CHARACTERS_MAX).collect();
    let more = if shown.len() < text.len() { "..." } else { "" };
    format!("`{}{more}`", shown.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Instruction, String> {
        instruction(text, &Labels::default())
    }

    #[test]
    fn every_form_prints_as_it_is_written() {
        for text in [
            "mov s15, 4294967295",
            "mov s1, s2",
            "mov v7, v0",
            "mov v1, s2",
            "mov v1, 7",
            "lane v3",
            "first s3, v4",
            "global_load s1, [s2]",
            "global_load v1, [v2 + 16]",
            "global_store [v2], v1",
            "global_add [s2 + 4], s1",
            "lds_load v1, [v2]",
            "lds_store [s2], s1",
            "lds_add [v2 + 4], v1",
            "jump @0",
            "work 100",
            "work s6",
            "barrier",
            "end",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        for operator in Operator::ALL {
            for operands in ["s1, s2, s3", "s1, s2, 3", "v1, v2, v3", "v1, v2, s3", "v1, v2, 3"] {
                let text = format!("{} {operands}", operator.name());
                assert_eq!(parse(&text).unwrap().to_string(), text);
            }
        }
        for condition in Condition::ALL {
            let text = format!("{} s1, s2, @0", condition.name());
            assert_eq!(parse(&text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn names_of_accesses_agree() {
        for (space, access, name) in Access::ALL {
            assert_eq!(access.name(space), name);
        }
    }

    #[test]
    fn mistakes_say_what_to_write() {
        for (text, part) in [
            ("fly s1", "`fly` is not an instruction"),
            ("end s1", "`end` takes 0 operands, not 1; write `end`"),
            ("add s1, s2", "`add` takes 3 operands, not 2"),
            ("add s1, s2, s16", "`s16` is not a scalar value"),
            ("add s1, v2, s3", "`v2` is not a scalar register"),
            ("add v1, v2, v8", "`v8` is not a vector value"),
            ("add v1, s2, 3", "`s2` is not a vector register"),
            ("mov s1, 4294967296", "a number up to 4294967295"),
            ("mov s1, -1", "`-1`"),
            ("mov s1, +1", "`+1`"),
            ("mov s+1, 1", "`s+1`"),
            ("mov s1, 0x", "`0x`"),
            ("global_load s1, s2", "`s2` is not a place"),
            ("global_load v1, [s2]", "`s2` is not a vector register"),
            ("global_store [s1 + s2], s3", "is not a place"),
            ("mov s1, \u{7}", "`\\u{7}`"),
        ] {
            let message = parse(text).unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
        }
        let long = parse(&"x".repeat(1000)).unwrap_err();
        assert!(long.len() < 400, "{long}");
    }
}
