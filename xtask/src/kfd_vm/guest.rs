//! What runs inside of a virtual machine: a file system in memory, and a machine around it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::cpio::Cpio;
use super::kernel::Kernel;
use super::unpack::Unpacked;

/// How long a machine may run. It takes half a minute where nothing else runs.
const PATIENCE: Duration = Duration::from_secs(400);
/// How often to look.
const LOOK: Duration = Duration::from_millis(100);
/// How much of the console is shown when something went wrong.
const TAIL_LINES: usize = 40;

/// What the kernel is told. The timer is not tested, because a busy host fails that test;
/// addresses are not random, because nobody attacks it; a panic ends the machine.
const KERNEL_LINE: &str = "console=ttyS0 panic=-1 loglevel=4 no_timer_check nokaslr";

/// What it is started with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Programs<'a> {
    /// busybox, for everything that a script needs.
    pub(super) busybox: &'a Path,
    /// The one that checks.
    pub(super) check: &'a Path,
}

/// The first process: loads the modules, checks, and says how that went on the second wire.
fn first_process(kernel: &Kernel) -> String {
    let expected = kernel.kind.name();
    format!(
        "#!/bin/busybox sh\n\
         for folder in proc sys dev; do /bin/busybox mkdir -p /$folder; done\n\
         /bin/busybox mount -t proc proc /proc\n\
         /bin/busybox mount -t sysfs sysfs /sys\n\
         /bin/busybox mount -t devtmpfs devtmpfs /dev\n\
         for module in /modules/*; do /bin/busybox insmod $module; done\n\
         # As udev does it for those who may use GPUs.\n\
         /bin/busybox chmod 666 /dev/kfd\n\
         /bin/gpreempt-kfd-check --may-change --expect {expected} >/dev/ttyS1 2>&1\n\
         echo \"exit $?\" >/dev/ttyS1\n\
         /bin/busybox dmesg\n\
         /bin/busybox poweroff -f\n"
    )
}

/// Starts a kernel, lets it check, and returns what it wrote on the second wire.
pub(super) fn run(
    kernel: &Kernel,
    unpacked: &Unpacked,
    programs: Programs<'_>,
    root: &Path,
) -> anyhow::Result<String> {
    let folder = kernel.folder(root);
    let files = folder.join("initramfs.cpio");
    fs::write(&files, file_system(kernel, unpacked, programs)?)?;
    let (console, results) = (folder.join("console.log"), folder.join("results.log"));
    let mut machine = start(&unpacked.image, &files, &console, &results)?;
    let ended = wait(&mut machine);
    fs::remove_file(files)?;
    let said = fs::read_to_string(&results).unwrap_or_default().replace('\r', "");
    let tail = || tail_of(&String::from_utf8_lossy(&fs::read(&console).unwrap_or_default()));
    if let Err(error) = ended {
        bail!("{error:#}; it said:\n{said}\nits console:\n{}", tail());
    }
    if !said.lines().any(|line| line.starts_with("exit ")) {
        bail!("the machine ended before the checks did; it said:\n{said}\n{}", tail());
    }
    Ok(said)
}

fn file_system(
    kernel: &Kernel,
    unpacked: &Unpacked,
    programs: Programs<'_>,
) -> anyhow::Result<Vec<u8>> {
    let read = |path: &Path| fs::read(path).with_context(|| path.display().to_string());
    let mut files = Cpio::default();
    for folder in ["bin", "modules", "proc", "sys", "dev"] {
        files.folder(folder);
    }
    files.program("init", first_process(kernel).as_bytes());
    files.program("bin/busybox", &read(programs.busybox)?);
    // By this name it is told from other debuggers.
    files.program("bin/gpreempt-kfd-check", &read(programs.check)?);
    for module in &unpacked.modules {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        files.program(&format!("modules/{name}"), &read(module)?);
    }
    Ok(files.finish())
}

fn start(image: &Path, files: &PathBuf, console: &Path, results: &Path) -> anyhow::Result<Child> {
    let wire = |file: &Path| format!("file:{}", file.display());
    let mut command = Command::new("qemu-system-x86_64");
    // Emulated: whether the processor helps depends on the host, and it is fast enough.
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-m", "1024", "-smp", "2"]);
    command.args(["-nodefaults", "-display", "none", "-no-reboot"]);
    command.args(["-serial", &wire(console), "-serial", &wire(results)]);
    command.arg("-kernel").arg(image).arg("-initrd").arg(files);
    command.args(["-append", KERNEL_LINE]);
    command.stdin(Stdio::null()).spawn().context("cannot run qemu-system-x86_64")
}

/// Waits for its end, and ends it when that takes too long.
fn wait(machine: &mut Child) -> anyhow::Result<()> {
    let since = Instant::now();
    loop {
        if let Some(status) = machine.try_wait()? {
            if status.success() {
                return Ok(());
            }
            bail!("qemu ended with {status}");
        }
        if since.elapsed() > PATIENCE {
            machine.kill()?;
            machine.wait()?;
            bail!("the machine did not end within {} s", PATIENCE.as_secs());
        }
        thread::sleep(LOOK);
    }
}

fn tail_of(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kfd_vm::kernel::Kind;

    #[test]
    fn the_script_expects_what_the_kernel_is_for() {
        let kernel = Kernel { release: "6.12.1".to_owned(), kind: Kind::Tracer };
        let script = first_process(&kernel);
        assert!(script.starts_with("#!/bin/busybox sh\n"), "{script}");
        assert!(script.contains("--expect tracer >/dev/ttyS1"), "{script}");
    }

    #[test]
    fn the_tail_is_the_end() {
        let text: String = (0..100).map(|number| format!("{number}\n")).collect();
        assert!(tail_of(&text).starts_with("60\n") && tail_of(&text).ends_with("99"));
        assert_eq!(tail_of(""), "");
    }
}
