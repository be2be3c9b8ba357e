use super::Stage;

#[test]
fn every_command_has_a_page() {
    let folder = Stage::new("man").unwrap();
    folder.stdout(&["man", "."]);
    let names = folder.names().unwrap();
    for name in [
        "",
        "-attach",
        "-compare",
        "-demo",
        "-doctor",
        "-ps",
        "-sim",
        "-run",
        "-suspend",
        "-top",
        "-trace",
        "-bench",
        "-bench-list",
        "-bench-report",
        "-bench-compare",
        "-bench-predict",
    ] {
        let page = format!("gpreempt{name}.1");
        assert!(names.contains(&page), "{page} in {names:?}");
    }
    let page = std::fs::read_to_string(folder.path("gpreempt-sim.1")).unwrap();
    assert!(page.contains(".SH SYNOPSIS") && page.contains("gpreempt sim"), "{page}");
}
