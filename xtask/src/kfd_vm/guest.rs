//! A virtual machine: its initramfs (`cpio`, "newc"), its first process and qemu.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

use super::kernel_package::Unpacked;
use crate::process::wait_for;

/// How long a machine may run. It takes half a minute on an idle host.
pub(crate) const PATIENCE: Duration = Duration::from_secs(400);
/// Lines of the console in an error message.
const TAIL_LINES: usize = 40;

/// The timer test fails on a busy host; address randomisation is pointless here; a panic ends the
/// machine.
const KERNEL_LINE: &str = "console=ttyS0 panic=-1 loglevel=4 no_timer_check nokaslr";

#[derive(Clone, Copy, Debug)]
pub(crate) struct Guest<'a> {
    pub(crate) unpacked: &'a Unpacked,
    /// The script of the first process after the modules are loaded. What it writes to `/dev/ttyS1`
    /// is the result; the last line must begin with `exit `.
    pub(crate) script: &'a str,
    /// Programs and their names in `/bin`.
    pub(crate) programs: &'a [(&'a str, &'a Path)],
    pub(crate) folder: &'a Path,
    pub(crate) patience: Duration,
}

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

const END: &str = "/bin/busybox dmesg\n/bin/busybox poweroff -f\n";

impl Guest<'_> {
    /// Starts the machine, waits for its end and returns the output of the second serial port.
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

/// Starts a kernel with an initramfs, waits for its end and returns the output of the second serial
/// port. The console's log stays in `folder`.
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
    // Hardware virtualisation depends on the host, and emulation is fast enough.
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-m", "1024", "-smp", "2"]);
    command.args(["-nodefaults", "-display", "none", "-no-reboot"]);
    command.args(["-serial", &wire(console), "-serial", &wire(results)]);
    command.arg("-kernel").arg(image).arg("-initrd").arg(files);
    command.args(["-append", KERNEL_LINE]);
    command.stdin(Stdio::null()).spawn().context("cannot run qemu-system-x86_64")
}

/// Waits for the end of qemu, and kills it after the time limit.
fn wait(machine: &mut Child, patience: Duration) -> anyhow::Result<()> {
    match wait_for(machine, patience)? {
        Some(status) if status.success() => Ok(()),
        Some(status) => bail!("qemu ended with {status}"),
        None => {
            machine.kill()?;
            machine.wait()?;
            bail!("the machine did not end within {} s", patience.as_secs())
        }
    }
}

fn tail_of(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// An archive under construction.
#[derive(Debug, Default)]
pub(super) struct Cpio {
    bytes: Vec<u8>,
    count: u32,
}

/// File modes.
const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

impl Cpio {
    pub(super) fn folder(&mut self, name: &str) {
        self.entry(name, FOLDER, &[]);
    }

    pub(super) fn program(&mut self, name: &str, contents: &[u8]) {
        self.entry(name, PROGRAM, contents);
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.count += 1;
        let size = contents.len();
        let (inode, name_size) = (self.count, name.len() + 1);
        // Owner, group, links, time, devices and checksum do not matter.
        let header = format!(
            "070701{inode:08x}{mode:08x}{:08x}{:08x}{:08x}{:08x}{size:08x}{:08x}{:08x}{:08x}{:08x}\
             {name_size:08x}{:08x}{name}\0",
            0, 0, 1, 0, 0, 0, 0, 0, 0
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_end() {
        let text: String = (0..100).map(|number| format!("{number}\n")).collect();
        assert!(tail_of(&text).starts_with("60\n") && tail_of(&text).ends_with("99"));
        assert_eq!(tail_of(""), "");
    }

    #[test]
    fn an_archive_has_headers_of_110_bytes_and_is_padded() {
        let mut cpio = Cpio::default();
        cpio.folder("bin");
        cpio.program("bin/x", b"12345");
        let bytes = cpio.finish();
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(&bytes[..6], b"070701");
        assert_eq!(&bytes[110..114], b"bin\0");
        // The second header follows at the next multiple of four: 110 + 4, padded.
        assert_eq!(&bytes[116..122], b"070701");
        assert_eq!(&bytes[116 + 54..116 + 62], b"00000005");
        assert!(bytes.windows(10).any(|window| window == b"TRAILER!!!"));
    }
}
