//! Tables whose rows become blocks on a small screen.

use super::plot::COLOURS;
use super::{Escaped, number};
use crate::results::Estimate;

#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    text: String,
    /// A confidence interval or a second value, in small letters.
    interval: Option<String>,
    /// A warning below the value.
    mark: Option<&'static str>,
    is_wrong: bool,
}

impl Cell {
    pub(super) fn of(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// A value that must not occur.
    pub(super) fn wrong(text: impl Into<String>) -> Self {
        Self { is_wrong: true, ..Self::of(text) }
    }

    pub(super) fn with(self, more: impl Into<String>) -> Self {
        Self { interval: Some(more.into()), ..self }
    }

    pub(super) fn marked(self, mark: Option<&'static str>) -> Self {
        Self { mark, ..self }
    }

    /// A median and its interval, written by `show`.
    pub(super) fn estimate(estimate: Option<&Estimate>, show: impl Fn(f64) -> String) -> Self {
        let Some(estimate) = estimate else { return Self::of(number::NOTHING) };
        let (low, high) = (show(estimate.low), show(estimate.high));
        // One value has no interval, and an interval without width adds nothing.
        let interval = (estimate.count > 1 && low != high).then(|| range(&low, &high));
        Self { text: show(estimate.median), interval, ..Self::default() }
    }

    fn html(&self, label: &str) -> String {
        let class = if self.is_wrong { " class=\"wrong\"" } else { "" };
        let more = self.interval.iter().map(String::as_str).chain(self.mark);
        let more = more.map(|text| format!("<span class=\"interval\">{}</span>", Escaped(text)));
        let more = more.collect::<String>();
        format!(
            "<td role=\"cell\" data-label=\"{}\"{class}>{}{more}</td>\n",
            Escaped(label),
            Escaped(&self.text)
        )
    }
}

/// `low – high`, with the unit once if both have the same.
fn range(low: &str, high: &str) -> String {
    let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).len();
    let (digits, unit) = low.split_at(number(low));
    let same = unit == &high[number(high)..];
    format!("{}\u{a0}– {high}", if same { digits } else { low })
}

#[derive(Clone, Debug)]
pub(super) struct Row<'a> {
    pub(super) name: &'a str,
    /// The meaning of the name, in small letters.
    pub(super) about: &'a str,
    /// The index of its mode, which decides its colour.
    pub(super) place: Option<usize>,
    /// The cells, or the reason for having none.
    pub(super) cells: Result<Vec<Cell>, Cell>,
}

pub(super) fn table(first: &str, columns: &[String], rows: &[Row<'_>]) -> String {
    let head =
        |name: &str| format!("<th scope=\"col\" role=\"columnheader\">{}</th>\n", Escaped(name));
    let heads = columns.iter().map(|name| head(name)).collect::<String>();
    let rows = rows.iter().map(|row| row.html(columns)).collect::<String>();
    format!(
        "<div class=\"scroll\">\n<table class=\"summary\" role=\"table\">\n\
         <thead role=\"rowgroup\">\n<tr role=\"row\">\n{}{heads}</tr>\n</thead>\n\
         <tbody role=\"rowgroup\">\n{rows}</tbody>\n</table>\n</div>\n",
        head(first)
    )
}

impl<'a> Row<'a> {
    pub(super) fn of(name: &'a str, cells: impl Iterator<Item = Cell>) -> Self {
        Self { name, about: "", place: None, cells: Ok(cells.collect()) }
    }

    fn html(&self, columns: &[String]) -> String {
        let dot = self.place.map_or_else(String::new, |place| {
            format!("<span class=\"dot c{}\"></span>", place % COLOURS)
        });
        let cells = match &self.cells {
            Ok(cells) => columns.iter().zip(cells).map(|(name, cell)| cell.html(name)).collect(),
            Err(reason) => {
                let class = if reason.is_wrong { "reason wrong" } else { "reason" };
                format!(
                    "<td role=\"cell\" colspan=\"{}\" class=\"{class}\">{}</td>\n",
                    columns.len().max(1),
                    Escaped(&reason.text)
                )
            }
        };
        let about = match self.about {
            "" => String::new(),
            about => format!("<span class=\"about\">{}</span>", Escaped(about)),
        };
        format!(
            "<tr role=\"row\">\n<th scope=\"row\" role=\"rowheader\">{dot}{}{about}</th>\n\
             {cells}</tr>\n",
            Escaped(self.name)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_contain_their_unit_once() {
        for (low, high, text) in [
            ("1.94\u{a0}ms", "1.95\u{a0}ms", "1.94\u{a0}– 1.95\u{a0}ms"),
            ("980\u{a0}µs", "1.95\u{a0}ms", "980\u{a0}µs\u{a0}– 1.95\u{a0}ms"),
            ("1.05×", "1.12×", "1.05\u{a0}– 1.12×"),
            ("96.2%", "97.0%", "96.2\u{a0}– 97.0%"),
            ("–", "7", "–\u{a0}– 7"),
        ] {
            assert_eq!(range(low, high), text);
        }
    }
}
