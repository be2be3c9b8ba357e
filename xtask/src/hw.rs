//! Hardware tests: builds what they need and runs them where there is a GPU.

use std::path::Path;

use crate::args::Syntax;
use crate::process::{build_release, repository_root, run_to_success};

pub(crate) fn main(arguments: &[String]) -> anyhow::Result<bool> {
    Syntax { switches: &[], options: &[], positionals: &[] }.parse(arguments)?;
    let cli = build_release(&["--package", "gpreempt-cli", "--bin", "gpreempt"])?;
    build_release(&["--package", "gpreempt-bench", "--bin", "gpreempt-load"])?;
    let folder = cli.parent().unwrap_or_else(|| Path::new("."));
    if !Path::new("/dev/nvidiactl").exists() {
        println!("SKIPPED: no NVIDIA driver here. Take hw/hardware_test.py and the binaries in");
        println!("{} to a machine with a GPU and Python 3, and run", folder.display());
        println!("    python3 hardware_test.py --bin FOLDER --out hardware.json --commit COMMIT");
        return Ok(true);
    }
    let script = repository_root().join("hw/hardware_test.py");
    let mut command = std::process::Command::new("python3");
    command.arg(script).arg("--bin").arg(folder);
    run_to_success(&mut command)?;
    Ok(true)
}
