//! What must be so about a page, whatever it shows.

use serde_json::Value;

use super::browser::Window;

/// What is wrong with how a page looks in a window; nothing if all is well.
pub(super) fn problems(look: &Value, window: Window) -> Vec<String> {
    let mut problems = Vec::new();
    let mut demand = |is_so: bool, what: String| {
        if !is_so {
            problems.push(what);
        }
    };
    let number = |name: &str| look[name].as_u64().unwrap_or(0);
    let width = u64::from(window.width);
    demand(!look["title"].as_str().unwrap_or("").is_empty(), "it has no title".to_owned());
    demand(number("sections") >= 1, "it has no sections".to_owned());
    demand(number("height") > 500, format!("it is {} pixels high", number("height")));
    demand(
        (1..=width).contains(&number("width")),
        format!("it is {} pixels wide and must be scrolled sideways", number("width")),
    );
    demand(number("pictures") >= 1, "it has no pictures".to_owned());
    demand(number("empty") == 0, format!("{} pictures are empty", number("empty")));
    for (what, reason) in [("small", "too small to read"), ("outside", "outside of the window")] {
        let texts = look[what].as_array().map(Vec::as_slice).unwrap_or_default();
        let shown = texts.iter().take(3).map(Value::to_string).collect::<Vec<_>>().join(", ");
        demand(texts.is_empty(), format!("{} texts are {reason}: {shown}", texts.len()));
    }
    let light = |name: &str| look[name].as_str().and_then(luminance);
    match (light("ground"), light("ink")) {
        (Some(ground), Some(ink)) => {
            demand((ground < 0.5) == window.is_dark, "it has the wrong theme".to_owned());
            let contrast = (ground.max(ink) + 0.05) / (ground.min(ink) + 0.05);
            demand(contrast >= 7.0, format!("the contrast is {contrast:.1}, less than 7"));
        }
        _ => demand(false, format!("colours are {} and {}", look["ground"], look["ink"])),
    }
    problems
}

/// How light a colour is, from 0 to 1, as the web's rules for contrast count.
fn luminance(colour: &str) -> Option<f64> {
    let inside = colour.strip_prefix("rgb(")?.strip_suffix(')')?;
    let parts = inside.split(',').map(|part| part.trim().parse::<f64>());
    let parts = parts.collect::<Result<Vec<_>, _>>().ok()?;
    let linear = |part: f64| {
        let share = part / 255.0;
        if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
    };
    match parts[..] {
        [red, green, blue] => {
            Some(0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const PHONE: Window = Window { width: 360, is_dark: false };

    fn good() -> Value {
        json!({
            "title": "t", "sections": 3, "width": 360, "height": 2_000, "pictures": 2, "empty": 0,
            "small": [], "outside": [],
            "ground": "rgb(252, 251, 248)", "ink": "rgb(28, 30, 33)",
        })
    }

    #[test]
    fn a_good_page_has_no_problems() {
        assert_eq!(problems(&good(), PHONE), Vec::<String>::new());
    }

    #[test]
    fn everything_that_can_be_wrong_is_noticed() {
        for (name, value, complaint) in [
            ("title", json!(""), "no title"),
            ("sections", json!(0), "no sections"),
            ("width", json!(382), "382 pixels wide"),
            ("height", json!(40), "40 pixels high"),
            ("pictures", json!(0), "no pictures"),
            ("empty", json!(2), "2 pictures are empty"),
            ("small", json!(["tiny"]), "1 texts are too small to read: \"tiny\""),
            ("outside", json!(["far"]), "outside of the window"),
            ("ground", json!("rgb(21, 23, 27)"), "wrong theme"),
            ("ink", json!("rgb(160, 165, 174)"), "the contrast is 2."),
            ("ink", json!("currentcolor"), "colours are"),
        ] {
            let mut look = good();
            look[name] = value;
            let found = problems(&look, PHONE);
            assert!(found.iter().any(|problem| problem.contains(complaint)), "{name}: {found:?}");
        }
    }

    #[test]
    fn the_dark_theme_is_told_from_the_light_one() {
        let dark = Window { is_dark: true, ..PHONE };
        assert_eq!(problems(&good(), dark), ["it has the wrong theme"]);
    }
}
