//! `include/gpreempt.h` is generated from the source by `cargo xtask header`.

use std::path::Path;

/// The sources of the header, in its order.
const FILES: [&str; 5] = ["c_api/types", "c_api", "c_api/memory", "c_api/queues", "c_api/submit"];

const FIRST_LINES: &str = "\
/* gpreempt: priorities for processes that share a GPU.
 *
 * Generated from the source by `cargo xtask header`: do not edit. See docs/reference/c-api.md.
 *
 * Functions that return int return GPREEMPT_OK or an error below zero; after an error nothing has
 * changed. gpreempt_strerror() and gpreempt_last_message() explain it. Every function is
 * thread-safe. The library prints nothing, never ends the program, and starts no thread.
 */";

fn generated() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut config = cbindgen::Config {
        language: cbindgen::Language::C,
        header: Some(FIRST_LINES.to_owned()),
        include_guard: Some("GPREEMPT_H".to_owned()),
        cpp_compat: true,
        no_includes: true,
        sys_includes: ["stddef.h", "stdint.h"].map(str::to_owned).to_vec(),
        style: cbindgen::Style::Both,
        usize_is_size_t: true,
        documentation_style: cbindgen::DocumentationStyle::C99,
        line_length: 100,
        ..cbindgen::Config::default()
    };
    config.function.args = cbindgen::Layout::Auto;
    config.sort_by = cbindgen::SortKey::None;
    let sources = FILES.map(|file| folder.join(format!("{file}.rs")));
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = sources.iter().fold(builder, |builder, source| builder.with_src(source));
    let bindings = builder.generate().expect("a header");
    let mut text = Vec::new();
    bindings.write(&mut text);
    String::from_utf8(text).expect("text")
}

#[test]
fn the_header_is_generated_from_the_source() {
    expect_test::expect_file!["../include/gpreempt.h"].assert_eq(&generated());
}
