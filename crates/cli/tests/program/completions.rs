use std::process::Command;

use super::Stage;

#[test]
fn every_shell_is_told_every_command() {
    let folder = Stage::new("completions").unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = folder.stdout(&["completions", shell]);
        for word in ["attach", "events", "policy", "run", "top", "trace"] {
            assert!(script.contains(word), "{word} for {shell}");
        }
    }
    folder.file("complete.bash", folder.stdout(&["completions", "bash"]));
    let script = "source ./complete.bash && complete -p gpreempt";
    let output =
        Command::new("bash").args(["-c", script]).current_dir(folder.root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (code, _) = folder.failure(&["completions", "tcsh"]);
    assert_eq!(code, 2);
}
