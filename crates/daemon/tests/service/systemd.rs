//! What systemd is told, and what it thinks of the unit.

use std::collections::VecDeque;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use gpreempt_stage::{LIMIT, Stage};
use rustix::process::Signal;

const UNIT: &str = include_str!("../../../../deploy/gpreemptd.service");

/// The end of systemd.
struct Manager {
    socket: UnixDatagram,
    /// What was said besides that it lives.
    heard: VecDeque<String>,
    signs_of_life: u32,
}

impl Manager {
    fn new(folder: &Stage) -> Self {
        let socket = UnixDatagram::bind(folder.path("notify")).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Self { socket, heard: VecDeque::new(), signs_of_life: 0 }
    }

    fn listen(&mut self) {
        let mut buffer = [0; 512];
        let count = self.socket.recv(&mut buffer).expect("systemd is told something");
        let said = String::from_utf8_lossy(&buffer[..count]).into_owned();
        if said == "WATCHDOG=1" {
            self.signs_of_life += 1;
        } else {
            self.heard.push_back(said);
        }
    }

    /// The next thing that is said besides that it lives.
    fn next(&mut self) -> String {
        while self.heard.is_empty() {
            self.listen();
        }
        self.heard.pop_front().unwrap()
    }
}

#[test]
fn systemd_hears_when_it_is_ready_lives_reads_again_and_ends() {
    let folder = Stage::new("daemon").unwrap();
    let mut systemd = Manager::new(&folder);
    // A watchdog that wants a message every 400 ms.
    let notified = folder.daemon().variable("NOTIFY_SOCKET", folder.path("notify"));
    let notified = notified.variable("WATCHDOG_USEC", "400000");
    let mut daemon = notified.start().unwrap();
    assert!(systemd.next().starts_with("READY=1\nSTATUS=schedules"));
    while systemd.signs_of_life < 3 {
        systemd.listen();
    }
    daemon.signal(Signal::HUP);
    assert!(systemd.next().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert!(systemd.next().starts_with("READY=1"));
    daemon.signal(Signal::TERM);
    assert_eq!(systemd.next(), "STOPPING=1");
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit() {
    let folder = Stage::new("daemon").unwrap();
    let verify = |text: &str| {
        std::fs::write(folder.path("gpreemptd.service"), text).unwrap();
        let mut command = Command::new("systemd-analyze");
        // The manual pages are in the package, not here.
        command.args(["verify", "--man=no"]).arg(folder.path("gpreemptd.service"));
        command.output()
    };
    // The program is where it was built, not where it is installed.
    let unit = UNIT.replace("/usr/bin/gpreemptd", env!("CARGO_BIN_EXE_gpreemptd"));
    assert_ne!(unit, UNIT);
    let output = match verify(&unit) {
        Ok(output) => output,
        Err(error) => {
            println!("SKIPPED: systemd-analyze cannot be run ({error}); install systemd");
            return;
        }
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("gpreemptd.service"), "{said}");
    // It would say so if there were something.
    let wrong = verify(&unit.replace("WatchdogSec=5", "WatchdogSec=soon")).unwrap();
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(said.contains("gpreemptd.service"), "{said}");
}
