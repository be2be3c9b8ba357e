//! What runs inside of a virtual machine: a file system in memory, and a machine around it.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::cpio::Cpio;
use super::kernel::Kernel;
use super::unpack::Unpacked;

/// How long a machine may run. It takes half a minute where nothing else runs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(400);
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

/// A virtual machine before it is started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guest<'a> {
    /// The kernel and its modules, each after those it needs.
    pub(crate) unpacked: &'a Unpacked,
    /// What the first process does once the modules are loaded. What it writes to `/dev/ttyS1` is
    /// the result; the last line has to begin with `exit `.
    pub(crate) script: &'a str,
    /// Programs and what they are called in `/bin`.
    pub(crate) programs: &'a [(&'a str, &'a Path)],
    /// Where its console is kept.
    pub(crate) folder: &'a Path,
    /// How long it may run.
    pub(crate) patience: Duration,
}

/// What every first process begins with.
const BEGIN: &str = "\
#!/bin/busybox sh
for folder in proc sys dev; do /bin/busybox mkdir -p /$folder; done
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sysfs /sys
/bin/busybox mount -t devtmpfs devtmpfs /dev
for module in /modules/*; do /bin/busybox insmod $module; done
# As udev does it for those who may use GPUs.
/bin/busybox chmod 666 /dev/kfd
";

/// What every first process ends with.
const END: &str = "/bin/busybox dmesg\n/bin/busybox poweroff -f\n";

/// Checks, and says how that went on the second wire.
fn script(kernel: &Kernel) -> String {
    let expected = kernel.kind.name();
    format!(
        "/bin/gpreempt-kfd-check --may-change --expect {expected} >/dev/ttyS1 2>&1\n\
         echo \"exit $?\" >/dev/ttyS1\n"
    )
}

/// Starts a kernel, lets it check, and returns what it wrote on the second wire.
pub(super) fn run(
    kernel: &Kernel,
    unpacked: &Unpacked,
    programs: Programs<'_>,
    root: &Path,
) -> anyhow::Result<String> {
    // By this name it is told from other debuggers.
    let programs = [("busybox", programs.busybox), ("gpreempt-kfd-check", programs.check)];
    let (script, folder) = (script(kernel), kernel.folder(root));
    let patience = PATIENCE;
    Guest { unpacked, script: &script, programs: &programs, folder: &folder, patience }.run()
}

impl Guest<'_> {
    /// Starts it, waits for its end, and returns what it wrote on the second wire.
    pub(crate) fn run(&self) -> anyhow::Result<String> {
        let files = self.folder.join("initramfs.cpio");
        fs::write(&files, self.file_system()?)?;
        let said = boot(&self.unpacked.image, &files, self.folder, self.patience);
        fs::remove_file(files)?;
        said
    }

    fn file_system(&self) -> anyhow::Result<Vec<u8>> {
        let read = |path: &Path| fs::read(path).with_context(|| path.display().to_string());
        let mut files = Cpio::default();
        for folder in ["bin", "modules", "proc", "sys", "dev"] {
            files.folder(folder);
        }
        files.program("init", format!("{BEGIN}{}{END}", self.script).as_bytes());
        for (name, path) in self.programs {
            files.program(&format!("bin/{name}"), &read(path)?);
        }
        for module in &self.unpacked.modules {
            let name = module.file_name().unwrap_or_default().to_string_lossy();
            files.program(&format!("modules/{name}"), &read(module)?);
        }
        Ok(files.finish())
    }
}

/// Starts a kernel with a file system in memory, waits for its end, and returns what it wrote on
/// the second wire. Its console is kept in a folder.
///
/// # Errors
/// If it does not end by itself, or before a line that begins with `exit `.
pub(crate) fn boot(
    image: &Path,
    files: &Path,
    folder: &Path,
    patience: Duration,
) -> anyhow::Result<String> {
    let (console, results) = (folder.join("console.log"), folder.join("results.log"));
    let mut machine = start(image, files, &console, &results)?;
    let ended = wait(&mut machine, patience);
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

fn start(image: &Path, files: &Path, console: &Path, results: &Path) -> anyhow::Result<Child> {
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
fn wait(machine: &mut Child, patience: Duration) -> anyhow::Result<()> {
    let since = Instant::now();
    loop {
        if let Some(status) = machine.try_wait()? {
            if status.success() {
                return Ok(());
            }
            bail!("qemu ended with {status}");
        }
        if since.elapsed() > patience {
            machine.kill()?;
            machine.wait()?;
            bail!("the machine did not end within {} s", patience.as_secs());
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
        let script = script(&kernel);
        assert!(script.contains("--expect tracer >/dev/ttyS1"), "{script}");
    }

    #[test]
    fn the_tail_is_the_end() {
        let text: String = (0..100).map(|number| format!("{number}\n")).collect();
        assert!(tail_of(&text).starts_with("60\n") && tail_of(&text).ends_with("99"));
        assert_eq!(tail_of(""), "");
    }
}
