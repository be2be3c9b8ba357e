use super::Folder;

#[test]
fn every_command_has_a_page() {
    let folder = Folder::new("man");
    folder.stdout(&["man", "."]);
    let expected = ["gpreempt-compare.1", "gpreempt-demo.1", "gpreempt-man.1", "gpreempt-sim.1"];
    let names = folder.names();
    assert_eq!(names[..4], expected);
    assert_eq!(names[4], "gpreempt.1");
    let page = std::fs::read_to_string(folder.0.join("gpreempt-sim.1")).unwrap();
    assert!(page.contains(".SH SYNOPSIS") && page.contains("gpreempt sim"), "{page}");
}
