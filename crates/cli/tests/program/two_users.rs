//! Private sessions of an ordinary user beside root: root's daemon gets the GPUs, and root undoes
//! what a killed session left, with that user's rights.

use std::process::Command;

use gpreempt_stage::Stage;

/// Runs with a `/run` of its own: an emulated GPU and a load of user 4242. `$1` is the folder of
/// the programs, `$2` a folder for output.
const SETUP: &str = r#"
set -eu
bin=$1 out=$2
mount -t tmpfs tmpfs /run
mkdir -p /run/user/4242
chown 4242:4242 /run/user/4242
chmod 700 /run/user/4242
emulator=/run/user/4242/emu
# For the background: the program takes the place of the subshell, so that $! is its pid.
as_user() {
    exec setpriv --reuid 4242 --regid 4242 --clear-groups \
        env HOME=/ XDG_RUNTIME_DIR=/run/user/4242 GPREEMPT_EMULATED=$emulator "$@"
}
wait_for() {
    for _ in $(seq 600); do if "$@" 2>/dev/null; then return 0; fi; sleep 0.1; done
    echo "not within 60 s: $*" >&2
    return 1
}
started=
trap 'kill $started 2>/dev/null || true' EXIT
as_user "$bin/gpreempt-emu" --socket $emulator --model mi300x --compute-units 1 >"$out/emu" 2>&1 &
started="$started $!"
wait_for test -S $emulator
as_user "$bin/gpreempt-load" be --socket $emulator --kernel-us 4000 --seconds 120 --json \
    >"$out/load" 2>&1 &
load=$!
started="$started $load"
wait_for grep -q ready "$out/load"
"#;

const DAEMON_STARTS: &str = r#"
as_user "$bin/gpreempt" attach $load -p 2 --json >"$out/attach" 2>"$out/attach.err" &
attach=$!
started="$started $attach"
wait_for grep -q '"attached"' "$out/attach"

"$bin/gpreemptd" --no-nvidia --no-amd --emulated $emulator >/dev/null 2>"$out/daemon" &
daemon=$!
started="$started $daemon"
code=0
wait $attach || code=$?
test $code -eq 1
grep -q "gpreemptd (pid $daemon) was started and controls the GPUs now" "$out/attach.err"
wait_for grep -q "ready at" "$out/daemon"
wait_for test -z "$(ls -d /run/user/4242/gpreempt/session-* 2>/dev/null)"

# The user's commands go through the daemon from now on.
wait_for sh -c "setpriv --reuid 4242 --regid 4242 --clear-groups '$bin/gpreempt' set $load -p 1"
"$bin/gpreempt" ps >"$out/ps"
grep -q "priority 1 (asked for by uid 4242)" "$out/ps"
# Arguments are for the owner and for root.
grep -q -e --kernel-us "$out/ps" && exit 1
"$bin/gpreempt" ps --arguments | grep -q -e "--kernel-us 4000"
as_other() { setpriv --reuid "$1" --regid "$1" --clear-groups "$bin/gpreempt" ps --arguments; }
as_other 4242 | grep -q -e "--kernel-us 4000"
as_other 4243 >"$out/other"
grep -q gpreempt-load "$out/other"
grep -q -e --kernel-us "$out/other" && exit 1
kill $daemon
wait $daemon
"#;

/// A second session of the user is refused beside that of root.
const ROOT_ATTACHES: &str = r#"
as_user "$bin/gpreempt" attach $load -p 2 --json >"$out/attach" 2>"$out/attach.err" &
attach=$!
started="$started $attach"
wait_for grep -q '"attached"' "$out/attach"
GPREEMPT_EMULATED=$emulator "$bin/gpreempt" attach $load -p 3 --json >"$out/root" 2>&1 &
root=$!
started="$started $root"
wait_for grep -q '"attached"' "$out/root"
code=0
wait $attach || code=$?
test $code -eq 1
grep -q "gpreempt attach (pid $root) was started and controls the GPUs now" "$out/attach.err"
code=0
(as_user "$bin/gpreempt" attach $load -p 2 >"$out/attach" 2>"$out/attach.err") || code=$?
test $code -eq 2
grep -q "gpreempt attach (pid $root) controls the GPUs" "$out/attach.err"
kill $root
wait $root
"#;

/// The folder of the user's journal is a FIFO, so the undo with that user's rights fails.
const UNDO_FAILS: &str = r#"
(as_user mkfifo /run/user/4242/gpreempt)
"$bin/gpreempt" resume --all --json >"$out/root" 2>"$out/root.err"
grep -q '"resumed": \[\]' "$out/root"
grep -q '^{"warning":"user 4242: ' "$out/root.err"
# A process of that user was named, so what could not be undone is an error.
code=0
"$bin/gpreempt" resume $load >"$out/root" 2>&1 || code=$?
test $code -eq 1
"#;

/// Session and keeper are killed together, so that the load stays stopped.
const SESSION_DIES: &str = r#"
as_user "$bin/gpreempt" suspend $load >"$out/suspend" 2>&1 &
suspend=$!
started="$started $suspend"
session=/run/user/4242/gpreempt/session-$suspend-0
wait_for grep -q suspended "$out/suspend"
# Stopped first: it would start another keeper as soon as the first one is gone.
kill -STOP $suspend
kill -9 $(cut -d' ' -f1 $session-*/lock) $suspend
wait_for sh -c "! kill -0 $suspend"
test -n "$(ls $session-*/$load-*.json)"

# For one process, root asks its user; for another one, it has nothing to ask.
code=0
"$bin/gpreempt" resume $$ >"$out/root" 2>&1 || code=$?
test $code -eq 2
test -n "$(ls $session-*/$load-*.json)"
"$bin/gpreempt" resume --all --json >"$out/root" 2>&1
tr -d ' \n' <"$out/root" | grep -q "\"resumed\":\[$load\]"
wait_for test -z "$(ls -d $session-* 2>/dev/null)"
# Nothing is created for a user that never used gpreempt, and nothing of root's is left.
mkdir /run/user/4243
chown 4243:4243 /run/user/4243
"$bin/gpreempt" resume --all >"$out/root" 2>&1
grep -q "Nothing was resumed" "$out/root"
test -z "$(ls -A /run/user/4243)"
"#;

/// A load of a user that nothing names is preempted for root's service, and its owner cannot
/// leave that.
const ROOT_PROTECTS: &str = r#"
"$bin/gpreemptd" --no-nvidia --no-amd --emulated $emulator >/dev/null 2>"$out/daemon" &
daemon=$!
started="$started $daemon"
wait_for grep -q "ready at" "$out/daemon"
state() { "$bin/gpreempt" ps --json | tr -d ' \n' | grep -q "\"normal\":\"$1\""; }
wait_for state untouched
"$bin/gpreempt" run -p 12 "$bin/gpreempt-load" be --socket $emulator --kernel-us 4000 \
    --seconds 3600 >"$out/root" 2>"$out/root.err" &
online=$!
started="$started $online"
wait_for state yields
grep -q "will be preempted for it, now 1 other process on GPU 0" "$out/root.err"
code=0
(as_user "$bin/gpreempt" detach $load) >"$out/suspend" 2>&1 || code=$?
test $code -eq 2
grep -q "is normal" "$out/suspend"
# The user may name the process, but not at a priority that keeps root's service off the GPU.
code=0
(as_user "$bin/gpreempt" set $load -p 12) >"$out/suspend" 2>&1 || code=$?
test $code -eq 2
state yields
kill $online
wait $online || true
wait_for state untouched
kill $daemon
wait $daemon
"#;

#[test]
fn a_load_of_a_user_that_nothing_names_is_preempted_for_roots_service() {
    if !is_possible() {
        println!("SKIPPED: {NEEDED}");
        return;
    }
    run(ROOT_PROTECTS);
}

#[test]
fn a_users_session_ends_when_roots_daemon_starts() {
    if !is_possible() {
        println!("SKIPPED: {NEEDED}");
        return;
    }
    run(DAEMON_STARTS);
}

#[test]
fn a_users_session_ends_when_roots_session_starts() {
    if !is_possible() {
        println!("SKIPPED: {NEEDED}");
        return;
    }
    run(ROOT_ATTACHES);
}

#[test]
fn a_user_cannot_make_roots_undo_of_all_sessions_fail() {
    if !is_possible() {
        println!("SKIPPED: {NEEDED}");
        return;
    }
    run(UNDO_FAILS);
}

#[test]
fn root_undoes_what_a_killed_session_of_a_user_left() {
    if !is_possible() {
        println!("SKIPPED: {NEEDED}");
        return;
    }
    run(SESSION_DIES);
}

const NEEDED: &str = "this needs root, unshare(1) and setpriv(1)";

fn is_possible() -> bool {
    let tools = Command::new("unshare").args(["--mount", "setpriv", "--version"]).output();
    tools.is_ok_and(|output| output.status.success())
}

fn run(script: &str) {
    let stage = Stage::new("two-users").unwrap();
    // Programs in folders that an ordinary user cannot read are of no use here.
    let bin = stage.path("bin");
    std::fs::create_dir(&bin).unwrap();
    for name in ["gpreempt", "gpreemptd", "gpreempt-emu", "gpreempt-load", "gpreempt-keeper"] {
        std::fs::copy(stage.program(name).unwrap(), bin.join(name)).unwrap();
    }
    let out = stage.path("out");
    std::fs::create_dir(&out).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(stage.root(), open).unwrap();
    let mut command = Command::new("unshare");
    stage.clean(&mut command);
    command.env_remove("GPREEMPT_STATE").env_remove("GPREEMPT_SOCKET");
    let script = format!("{SETUP}{script}");
    command.args(["--mount", "sh", "-c", &script, "sh"]).args([&bin, &out]);
    let ran = command.output().unwrap();
    let said = |name: &str| std::fs::read_to_string(out.join(name)).unwrap_or_default();
    assert!(
        ran.status.success(),
        "{}\nattach: {}\nsuspend: {}\nroot: {}{}\ndaemon: {}\nps: {}",
        String::from_utf8_lossy(&ran.stderr),
        said("attach.err"),
        said("suspend"),
        said("root"),
        said("root.err"),
        said("daemon"),
        said("ps"),
    );
}
