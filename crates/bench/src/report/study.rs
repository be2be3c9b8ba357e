//! A page of tables and time lines.

use super::grid::{Cell, Row, table};
use super::html::Escaped;
use super::model::{Study, Table};
use super::{page, table as tables, timeline};

/// The page, complete.
pub(crate) fn render(study: &Study) -> String {
    let shown = study.tables.iter().map(section).collect::<String>();
    let lines = timeline::section(&study.modes, &study.window);
    let origin = tables::environment(&study.environment, &study.command, "");
    page::document(&study.title, &study.verdict, &[shown, lines, origin].concat())
}

fn section(shown: &Table) -> String {
    let Table { title, note, heads, rows } = shown;
    let (first, columns) =
        heads.split_first().map_or(("", &heads[..]), |(first, rest)| (first.as_str(), rest));
    let rows = rows.iter().filter_map(|row| {
        let (name, cells) = row.split_first()?;
        let cells = cells.iter().map(|cell| Cell::of(cell.as_str())).collect();
        Some(Row { name, about: "", place: None, cells: Ok(cells) })
    });
    format!(
        "<section>\n<h2>{}</h2>\n<p class=\"note\">{}</p>\n{}</section>\n",
        Escaped(title),
        Escaped(note),
        table(first, columns, &rows.collect::<Vec<_>>())
    )
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::super::well_formed::{check_classes, check_well_formed};
    use super::*;

    #[test]
    fn names_stay_text_and_the_page_is_whole() {
        let evil = "<script>&\"";
        let report = sample::report();
        let study = Study {
            title: evil.to_owned(),
            verdict: evil.to_owned(),
            command: evil.to_owned(),
            environment: vec![(evil.to_owned(), evil.to_owned())],
            modes: report.modes,
            window: report.window,
            tables: vec![Table {
                title: evil.to_owned(),
                note: evil.to_owned(),
                heads: vec![evil.to_owned(), "b".to_owned()],
                rows: vec![vec![evil.to_owned(), "7.5".to_owned()], Vec::new()],
            }],
        };
        let page = render(&study);
        check_well_formed(&page);
        check_classes(&page);
        assert!(!page.contains("<script") && page.contains(">7.5<"));
        assert_eq!(page.matches("role=\"img\"").count(), study.modes.len());
    }
}
