//! Pictures that keep their letters the same size on every screen.
//!
//! The outer picture has no view box: positions along it are percentages of whatever width there
//! is, heights are pixels. Only shapes without text sit in an inner picture that is stretched.

use super::html::Escaped;

/// A picture with everything a reader who cannot see it needs.
#[derive(Clone, Debug)]
pub(crate) struct Picture<'a> {
    /// Unique on the page.
    pub(crate) id: &'a str,
    /// What it is.
    pub(crate) title: &'a str,
    /// What is to be seen on it.
    pub(crate) description: &'a str,
    /// In pixels.
    pub(crate) height: u32,
}

impl Picture<'_> {
    /// The picture around its content.
    pub(crate) fn around(&self, content: &str) -> String {
        let Self { id, height, .. } = self;
        let title = Escaped(self.title);
        let description = Escaped(self.description);
        format!(
            "<svg class=\"picture\" role=\"img\" aria-labelledby=\"{id}-title {id}-desc\" \
             width=\"100%\" height=\"{height}\">\n\
             <title id=\"{id}-title\">{title}</title>\n\
             <desc id=\"{id}-desc\">{description}</desc>\n\
             {content}</svg>\n"
        )
    }
}

/// Shapes stretched to the whole width: `content` is drawn in units from 0 to `width` and from 0
/// to `depth`, which become 100 % and `height` pixels.
pub(crate) fn stretched(y: u32, height: u32, width: u64, depth: u32, content: &str) -> String {
    format!(
        "<svg y=\"{y}\" width=\"100%\" height=\"{height}\" viewBox=\"0 0 {width} {depth}\" \
         preserveAspectRatio=\"none\">{content}</svg>\n"
    )
}

/// A share of the width, 0 to 1, as an attribute's value.
pub(crate) fn across(share: f64) -> String {
    let digits = format!("{:.2}", share.clamp(0.0, 1.0) * 100.0);
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}%")
}

/// A vertical line.
pub(crate) fn upright(class: &str, x: &str, y1: u32, y2: u32) -> String {
    format!("<line class=\"{class}\" x1=\"{x}\" x2=\"{x}\" y1=\"{y1}\" y2=\"{y2}\"/>\n")
}

/// The label of a tick on a horizontal axis; at the ends of the axis it stays inside.
pub(crate) fn tick_label(share: f64, y: u32, major: bool, text: &str) -> String {
    let side = match share {
        ..0.02 => "start",
        0.95.. => "end",
        _ => "middle",
    };
    let class = if major { "tick" } else { "tick wide" };
    format!(
        "<text class=\"{class} {side}\" x=\"{}\" y=\"{y}\">{}</text>\n",
        across(share),
        Escaped(text)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_short_percentages_inside_the_picture() {
        assert_eq!(across(0.0), "0%");
        assert_eq!(across(0.123_456), "12.35%");
        assert_eq!(across(0.5), "50%");
        assert_eq!(across(1.7), "100%");
        assert_eq!(across(-0.1), "0%");
    }

    #[test]
    fn labels_at_the_ends_of_an_axis_stay_inside() {
        assert!(tick_label(0.0, 1, true, "0").contains("tick start"));
        assert!(tick_label(0.5, 1, true, "5 ms").contains("tick middle"));
        assert!(tick_label(1.0, 1, false, "10 ms").contains("tick wide end"));
    }
}
