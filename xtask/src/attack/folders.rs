//! The attack `folders`: a user prepares `/run/user/UID/gpreempt` for commands of root.
//!
//! The script runs with a `/run` of its own. It forges what gpreempt itself writes there, by the
//! real names: owner journals with a record of a process of root, the owner's file, FIFOs at each
//! of the names, and a socket at which an [`impostor`] listens. Root must neither wait, nor connect
//! to a socket of the user, nor believe a record, nor print what the user wrote, and no command of
//! root may fail or be refused because of the user.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use gpreempt_wire::reply::{Refusal, RefusalCode, Reply};
use gpreempt_wire::request::Request;
use gpreempt_wire::server::{Accepted, Connection, Limits, Listener};

use super::{ATTACKER_PROGRAM, Report, Target};

/// Every command of root in the script has a limit; this is for all of them.
const SCRIPT_MAX: Duration = Duration::from_secs(150);

pub(super) fn check() -> anyhow::Result<Report> {
    let target = Target::start("")?;
    let programs = target.stage.path("bin");
    fs::create_dir(&programs)?;
    for name in ["gpreempt", "gpreemptd", "gpreempt-emu", "gpreempt-keeper"] {
        fs::copy(target.stage.program(name)?, programs.join(name))?;
    }
    let mut command = Command::new("unshare");
    target.stage.clean(&mut command);
    command.args(["--mount", "sh", "-c", SCRIPT, "sh"]).arg(&programs);
    command.arg(target.stage.path(ATTACKER_PROGRAM)).arg(target.emulator.socket());
    command.env_remove("GPREEMPT_STATE").env_remove("GPREEMPT_SOCKET");
    let mut process = target.stage.start("forged folders", command)?;
    let ended = process.wait(SCRIPT_MAX)?;
    anyhow::ensure!(ended.status.success(), "{}", ended.err);
    let problems = ended.out.lines().map(str::to_owned).collect();
    Ok(Report { problems, readings: None })
}

/// Listens where a private session of the user would. Prints which users connect, claims to have
/// done what it is asked, and answers other requests with a text that turns a terminal's line
/// around.
pub(super) fn impostor(path: &str, end: Instant) -> anyhow::Result<()> {
    let mut listener = Listener::bind(Path::new(path))?;
    let now = gpreempt_core::time::Instant::ZERO;
    let mut connections: Vec<Connection> = Vec::new();
    println!("ready");
    while Instant::now() < end {
        if let Accepted::Client(connection) = listener.accept(Limits::default(), now)? {
            println!("connected by uid {}", connection.peer().uid);
            connections.push(connection);
        }
        connections.retain_mut(|connection| answer(connection).is_some());
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// None if the client is gone.
fn answer(connection: &mut Connection) -> Option<()> {
    while let Some(message) = connection.recv(gpreempt_core::time::Instant::ZERO).ok()? {
        let is_believed = matches!(message.body, Request::Hello { .. } | Request::Detach { .. });
        let reply = match is_believed {
            true => Reply::Ok,
            false => Reply::Refused(Refusal::new(RefusalCode::Failed, "\u{202e}forged\u{9b}2J")),
        };
        connection.send(message.request, reply).ok()?;
    }
    connection.flush().ok()
}

/// Prints a line for each problem. `$1` has the programs, `$2` is the attacker's program, `$3` the
/// socket of an emulated GPU.
const SCRIPT: &str = r#"
set -u
bin=$1 attacker=$2 emulator=$3
mount -t tmpfs tmpfs /run
mkdir -p /run/user/61001 /run/out
chown 61001:61001 /run/user/61001
chmod 700 /run/user/61001
folder=/run/user/61001/gpreempt
user="setpriv --reuid 61001 --regid 61001 --clear-groups"
as_user() { $user "$@"; }
# A process of root, which no record of a user may concern.
sleep 600 &
victim=$!
ticks=$(cut -d' ' -f22 /proc/$victim/stat)
init_ticks=$(cut -d' ' -f22 /proc/1/stat)
started=$victim
trap 'kill $started 2>/dev/null' EXIT

# Runs a command of root with a limit above its own ones, and looks at what it printed.
root() {
    what=$1
    shift
    timeout 20 "$@" >/run/out/root 2>&1 </dev/null
    code=$?
    [ $code -ne 124 ] || echo "root's \`$what\` hangs ($case)"
    if [ "$what" = "gpreempt resume --all" ] && [ $code -ne 0 ]; then
        echo "root's \`$what\` fails because of a user ($case)"
    fi
    if grep -q "controls the GPUs; end it first" /run/out/root; then
        echo "root's \`$what\` is refused because of a session of a user ($case)"
    fi
    if grep -q "$victim was resumed" /run/out/root; then
        echo "root's \`$what\` reports what a user forged ($case)"
    fi
    if grep -q "pid 1) controls the GPUs" /run/out/root; then
        echo "root's \`$what\` is refused because of a forged owner ($case)"
    fi
    # Escape, C1 controls and marks that turn the text around.
    if LC_ALL=C grep -q "$(printf '\033\\|\302\233\\|\342\200\256')" /run/out/root; then
        echo "root's \`$what\` prints control characters of a user ($case)"
    fi
}

commands() {
    root "gpreempt resume --all" "$bin/gpreempt" resume --all
    root "gpreempt resume PID" "$bin/gpreempt" resume $victim
    root "gpreempt ps" "$bin/gpreempt" ps
    root "gpreempt attach" "$bin/gpreempt" attach $victim -p 3 --emulated $emulator
    "$bin/gpreemptd" --no-nvidia --no-amd --emulated $emulator >/run/out/daemon 2>&1 &
    daemon=$!
    started="$started $daemon"
    for _ in $(seq 200); do
        grep -q "ready at" /run/out/daemon && break
        sleep 0.1
    done
    grep -q "ready at" /run/out/daemon || echo "root's gpreemptd does not start ($case)"
    kill $daemon
    wait $daemon 2>/dev/null
}

# A record as gpreempt writes it, in an owner journal with the name of one.
forge() {
    session=$folder/session-$victim-0-$ticks
    as_user mkdir -p $session
    change="{\"kind\":\"emulated_stop\",\"socket\":\"$folder/emu\",\"instance\":1,\"queue\":1}"
    process="{\"pid\":$victim,\"start_ticks\":$ticks}"
    as_user sh -c "cat >$session/$victim-$ticks.json" <<RECORD
{"process":$process,"acts":[$change],"until_ns":null}
RECORD
    echo "1 $init_ticks gpreempt attach" >/run/out/owner
    for name in gpreemptd.lock gpreemptd.owner; do
        as_user sh -c "cat >$folder/$name" </run/out/owner
    done
}

case="FIFOs"
as_user sh -c "
    mkdir -p $folder/session-$victim-0-$ticks $folder/session-999999-5
    cd $folder
    mkfifo lock gpreemptd.lock gpreemptd.owner gpreemptd.sock orders.json
    for session in session-*; do
        mkfifo \$session/lock \$session/$victim-$ticks.json \$session/1-1.undone
    done
" || exit 1
commands

case="a FIFO instead of the folder"
rm -r $folder
as_user mkfifo $folder
commands

case="forged records"
rm $folder
as_user mkdir $folder
forge
commands

case="an impostor"
rm -r $folder
as_user mkdir $folder
forge
# By its file, it is a session of gpreempt.
cp "$attacker" /run/out/gpreempt
# Not in a subshell, which would be ended in place of the program.
$user /run/out/gpreempt attacker impostor $folder/gpreemptd.sock >/run/out/impostor &
started="$started $!"
$user "$attacker" attacker impostor $folder/emu >/run/out/emu &
started="$started $!"
for name in impostor emu; do
    for _ in $(seq 100); do grep -q ready /run/out/$name && break; sleep 0.1; done
done
commands
for name in impostor emu; do
    if grep -q "connected by uid 0" /run/out/$name; then
        echo "root connects to a socket of a user ($name)"
    fi
done
exit 0
"#;
