//! Cells of tables that turn into blocks on a small screen.

use super::html::Escaped;
use super::legend::CURVES;
use super::number;
use crate::results::Estimate;

/// What a cell says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    text: String,
    /// Between what it may lie, or something more about it.
    interval: Option<String>,
    /// A word of warning.
    mark: Option<&'static str>,
    is_wrong: bool,
}

impl Cell {
    /// A cell that says this.
    pub(crate) fn of(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// One that says what must not be.
    pub(crate) fn wrong(text: impl Into<String>) -> Self {
        Self { is_wrong: true, ..Self::of(text) }
    }

    /// The same with something more in small letters.
    pub(crate) fn with(self, more: impl Into<String>) -> Self {
        Self { interval: Some(more.into()), ..self }
    }

    /// The same with a word of warning below it, if it needs one.
    pub(crate) fn marked(self, mark: Option<&'static str>) -> Self {
        Self { mark, ..self }
    }

    /// A median and its interval, written by `show`.
    pub(crate) fn estimate(estimate: Option<&Estimate>, show: impl Fn(f64) -> String) -> Self {
        let Some(estimate) = estimate else { return Self::of(number::NOTHING) };
        let (low, high) = (show(estimate.low), show(estimate.high));
        // One value has no interval, and one without width says nothing new.
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

/// From one to the other, with the unit once if it is the same.
fn range(low: &str, high: &str) -> String {
    let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).len();
    let (digits, unit) = low.split_at(number(low));
    let same = unit == &high[number(high)..];
    format!("{}\u{a0}– {high}", if same { digits } else { low })
}

/// A row: its name, the place of its mode if it has one, and its cells or one reason for none.
#[derive(Clone, Debug)]
pub(crate) struct Row<'a> {
    /// What stands first.
    pub(crate) name: &'a str,
    /// What the name means, in small letters.
    pub(crate) about: &'a str,
    /// The place of its mode among all, which is its colour.
    pub(crate) place: Option<usize>,
    /// Its cells, or why there are none.
    pub(crate) cells: Result<Vec<Cell>, Cell>,
}

/// A table with a name for each column.
pub(crate) fn table(first: &str, columns: &[String], rows: &[Row<'_>]) -> String {
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

impl Row<'_> {
    fn html(&self, columns: &[String]) -> String {
        let dot = self.place.map_or_else(String::new, |place| {
            format!("<span class=\"dot c{}\"></span>", place % CURVES)
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
    fn ranges_say_their_unit_once() {
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
