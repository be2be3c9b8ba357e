//! A terminal with a program in it that nobody looks at.

use std::fs::File;
use std::io::Read;
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// The program. It is killed with this.
#[derive(Debug)]
pub(super) struct Terminal {
    child: Child,
}

impl Terminal {
    /// Starts a program in a terminal of 80 columns and 24 lines.
    pub(super) fn open(mut command: Command) -> anyhow::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).context("there is no terminal")?;
        grantpt(&ours)?;
        unlockpt(&ours)?;
        let theirs = ioctl_tiocgptpeer(&ours, flags)?;
        tcsetwinsize(&ours, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 })?;
        command.env("TERM", "xterm").stdin(Stdio::from(theirs.try_clone()?));
        command.stdout(Stdio::from(theirs)).stderr(Stdio::inherit());
        let child = command.spawn().context("cannot start the program in a terminal")?;
        // Somebody has to read what it draws, or it would wait for that. It ends with the terminal.
        let mut ours = File::from(ours);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while ours.read(&mut bytes).is_ok_and(|length| length > 0) {}
        });
        Ok(Self { child })
    }

    /// The program's process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
