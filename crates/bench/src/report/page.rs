//! What surrounds everything that a page shows.

use super::html::Escaped;

/// Colours, sizes and the two themes.
const STYLE: &str = include_str!("style.css");

/// A whole document.
pub(crate) fn document(title: &str, verdict: &str, body: &str) -> String {
    let (title, verdict) = (Escaped(title), Escaped(verdict));
    // The policy makes the browser itself refuse scripts and anything from elsewhere; the empty
    // icon keeps it from asking a server for one.
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src &#39;none&#39;; \
         style-src &#39;unsafe-inline&#39;; img-src data:\"/>\n\
         <link rel=\"icon\" href=\"data:,\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <header>\n<h1>{title}</h1>\n<p class=\"verdict\">{verdict}</p>\n</header>\n\
         {body}</main>\n</body>\n</html>\n"
    )
}
