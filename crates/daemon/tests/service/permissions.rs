//! Every cell of the table of permissions, with real users that send each request to a daemon of
//! root.
//!
//! The unit tests of the table say what it permits; these that every request asks it. The group
//! `gpreempt` is one of the tests: the daemon has a `/etc/group` of its own.

use std::num::NonZeroU32;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpreempt_core::priority::Priority;
use gpreempt_stage::{Daemon, Emulator, LIMIT, Process, Stage, until};
use gpreempt_wire::client::{Client, ClientOptions};
use gpreempt_wire::policy::PolicySettings;
use gpreempt_wire::queue::{QueueIds, QueueStop, StopDepth};
use gpreempt_wire::reply::RefusalCode;
use gpreempt_wire::request::{Request, Role};

use super::contention::{code, priority, process, start_gpu, suspend};

/// The users of the test, and the number of the group `gpreempt`. No account needs to exist.
const OWNER: u32 = 61_001;
const OTHER: u32 = 61_002;
const GROUP: u32 = 61_900;

/// Set in the process of a user that asks: the pid, the queue, and the socket.
const ASK: &str = "GPREEMPT_TEST_ASK";

/// The columns of the table: user and group of the process that asks.
const ACTORS: [(&str, u32, u32); 4] = [
    ("administrator", 0, 0),
    ("member", OWNER, GROUP),
    ("owner", OWNER, OWNER),
    ("other", OTHER, GROUP),
];

/// What of it [`ACTORS`] may do, where nothing was decided and where an administrator set priority
/// 1 and suspended the process: `y` or `n` for each of them.
const CELLS: [(&str, &str, &str); 20] = [
    ("snapshot", "yyyy", "yyyy"),
    ("list queues", "yyyy", "yyyy"),
    ("read queue", "yyyy", "yyyy"),
    ("read policy", "yyyy", "yyyy"),
    ("follow", "yyyy", "yyyy"),
    ("trace", "yyyy", "yyyy"),
    ("open page", "yyyy", "yyyy"),
    ("set 1", "yyyn", "yyyn"),
    ("set 5", "yyyn", "ynnn"),
    ("set 9", "yynn", "ynnn"),
    ("register 1", "yyyn", "yyyn"),
    ("register 5", "yyyn", "ynnn"),
    ("set queue 1", "yyyn", "yyyn"),
    ("set queue 5", "yyyn", "ynnn"),
    ("suspend queues", "yyyn", "yyyn"),
    ("suspend", "yyyn", "yyyn"),
    ("resume", "yyyn", "ynnn"),
    // It resumes what the user may resume, and is never refused.
    ("resume all", "yyyy", "yyyy"),
    ("detach", "yyyn", "ynnn"),
    ("set policy", "ynnn", "ynnn"),
];

/// A request that only asks about itself is answered by another user's process as by the owner's.
fn ask(client: &mut Client, options: &ClientOptions, what: &str, pid: u32, queue: u64) -> bool {
    let connect = || Client::connect(options).unwrap();
    let lease_ms = NonZeroU32::new(60_000).unwrap();
    let (named, level) = (process(pid), |level| priority(level));
    let set_queue = |level| Request::SetQueue { queue, priority: Priority::new(level) };
    let request = match what {
        "snapshot" => return client.snapshot().is_ok(),
        "list queues" => return client.queues().unwrap().iter().any(|known| known.id == queue),
        "read queue" => return client.queue(queue).is_ok(),
        "read policy" => return client.policy(None).is_ok(),
        "follow" => return connect().follow(&Request::Follow).is_ok(),
        "trace" => {
            let seconds = 1.try_into().unwrap();
            return connect().follow(&Request::Trace { seconds }).is_ok();
        }
        "open page" => return connect().open_page().is_ok(),
        "set 1" => Request::Set { process: named, change: level(1) },
        "set 5" => Request::Set { process: named, change: level(5) },
        "set 9" => Request::Set { process: named, change: level(9) },
        "register 1" => Request::Register { process: named, change: level(1) },
        "register 5" => Request::Register { process: named, change: level(5) },
        "set queue 1" => set_queue(1),
        "set queue 5" => set_queue(5),
        "suspend queues" => {
            let queues = QueueIds::new(&[queue]).unwrap();
            let depth = StopDepth::Any;
            Request::SuspendQueues(QueueStop { queues, grace_us: 0, lease_ms, depth })
        }
        "suspend" => suspend(pid, 60_000),
        "resume" => Request::Resume { process: named },
        "resume all" => Request::ResumeAll,
        "detach" => Request::Detach { process: named },
        "set policy" => Request::PolicySet(PolicySettings::new("strict")),
        other => panic!("{other}"),
    };
    let answer = match &request {
        Request::PolicySet(settings) => client.policy(Some(settings.clone())).map(drop),
        other => client.expect_ok(other),
    };
    match code(answer) {
        None => true,
        Some(RefusalCode::NotPermitted) => false,
        Some(other) => panic!("{what}: {other:?}"),
    }
}

#[test]
#[ignore = "a process of the test below"]
fn asks_everything() {
    let Ok(told) = std::env::var(ASK) else { return };
    let mut words = told.splitn(3, ' ');
    let mut word = || words.next().unwrap();
    let (pid, queue, socket) = (word().parse().unwrap(), word().parse().unwrap(), word());
    let options = ClientOptions {
        paths: vec![socket.into()],
        timeout: LIMIT,
        ..ClientOptions::new(Role::Command, "asker")
    };
    let mut client = Client::connect(&options).unwrap();
    let may = |(what, ..): (&str, &str, &str)| {
        if ask(&mut client, &options, what, pid, queue) { 'y' } else { 'n' }
    };
    println!("answers: {}", CELLS.map(may).iter().collect::<String>());
}

fn open_to_all(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A daemon of root on an emulated GPU, and programs that other users can execute.
struct Machine {
    daemon: Daemon,
    emulator: Emulator,
    asker: PathBuf,
    load: PathBuf,
    stage: Stage,
}

impl Machine {
    fn start() -> Self {
        let stage = Stage::new("permissions").unwrap();
        open_to_all(stage.root(), 0o755);
        let emulator = start_gpu(&stage, "cwsr");
        open_to_all(&emulator.socket(), 0o666);
        let (asker, load) = (stage.path("asker"), stage.path("load"));
        std::fs::copy(std::env::current_exe().unwrap(), &asker).unwrap();
        std::fs::copy(stage.program("gpreempt-load").unwrap(), &load).unwrap();
        let group = stage.write("group", format!("gpreempt:x:{GROUP}:\n")).unwrap();
        let script = format!("mount --bind {} /etc/group; exec \"$0\" \"$@\"", group.display());
        let daemon = stage.daemon().emulator(emulator.spec());
        let daemon = daemon.prefix(&["unshare", "--mount", "sh", "-c", &script]).start().unwrap();
        Self { daemon, emulator, asker, load, stage }
    }

    /// A process of the owner, which is scheduled because its environment asks for it.
    fn victim(&self) -> Process {
        let mut command = Command::new(&self.load);
        self.stage.clean(&mut command);
        self.emulator.spec().add_load(&mut command, "be --kernel-us 4000 --seconds 3600");
        command.uid(OWNER).gid(OWNER).env("GPREEMPT_PRIORITY", "3");
        let process = self.stage.start("a load of the owner", command).unwrap();
        until("its queue is scheduled", || {
            self.daemon.queues(process.pid()).is_ok_and(|queues| queues.len() == 1)
        });
        process
    }

    /// What a user may do with a process: `y` or `n` for each of [`CELLS`].
    fn answers(&self, (name, uid, gid): (&str, u32, u32), pid: u32) -> String {
        let queue = self.daemon.queues(pid).unwrap()[0].id;
        let mut command = Command::new(&self.asker);
        self.stage.clean(&mut command);
        command.args(["--exact", "permissions::asks_everything", "--ignored", "--nocapture"]);
        command.env(ASK, format!("{pid} {queue} {}", self.daemon.socket().display()));
        command.uid(uid).gid(gid);
        let ended = self.stage.start(name, command).unwrap().wait(LIMIT).unwrap();
        let answers = ended.out.lines().find_map(|line| line.split_once("answers: "));
        answers.unwrap_or_else(|| panic!("{name}: {} {}", ended.out, ended.err)).1.to_owned()
    }
}

#[test]
fn every_request_of_every_user_is_answered_as_the_table_says() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can be several users");
        return;
    }
    let machine = Machine::start();
    for is_decided in [false, true] {
        for (column, actor) in ACTORS.into_iter().enumerate() {
            let victim = machine.victim();
            if is_decided {
                let mut root = machine.daemon.connect();
                let lowered = Request::Set { process: process(victim.pid()), change: priority(1) };
                root.expect_ok(&lowered).unwrap();
                root.expect_ok(&suspend(victim.pid(), 3_600_000)).unwrap();
            }
            let expected = CELLS.map(|(_, open, decided)| {
                let row = if is_decided { decided } else { open };
                row.chars().nth(column).unwrap()
            });
            let answers = machine.answers(actor, victim.pid());
            let differ = CELLS.iter().zip(answers.chars().zip(expected));
            let wrong: Vec<_> =
                differ.filter(|(_, (answer, expected))| answer != expected).collect();
            assert!(wrong.is_empty(), "{} decided: {is_decided}: {wrong:?}", actor.0);
            let is_stopped = machine.emulator.is_stopped(victim.pid());
            // An administrator has resumed it, and other users must not have.
            assert_eq!(is_stopped, is_decided && column > 0, "{} {is_decided}", actor.0);
        }
    }
}
