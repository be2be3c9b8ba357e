#!/bin/bash
# The service as systemd runs it, with two loads on an emulated GPU.
#
# Runs in a machine of its own (see `cargo xtask systemd`) in which the Debian package is installed:
# it starts and kills what it likes and ends by turning the machine off. What it says goes to the
# second serial line; the last line is `exit 0` if every check held.
exec >/dev/ttyS1 2>&1

failed=0

check() {
    local what=$1
    shift
    if "$@" >/dev/null; then
        echo "pass  $what"
    else
        echo "FAIL  $what"
        failed=1
    fi
}

state() {
    systemctl show --property="$1" --value gpreemptd
}

# Waits until a command succeeds; the machine is slow and its host may be busy.
soon() {
    local i
    for ((i = 0; i < 300; i++)); do
        "$@" >/dev/null 2>&1 && return 0
        sleep 0.2
    done
    return 1
}

is_active() {
    [[ $(state ActiveState) == active ]]
}

is_another() {
    is_active && [[ $(state MainPID) != "$1" && $(state MainPID) != 0 ]]
}

logged() {
    journalctl --unit=gpreemptd --no-pager --output=cat | grep -F -- "$1"
}

listed() {
    gpreempt ps | grep -E -- "$1"
}

# How many kernels the best-effort load has done so far.
done_by_be() {
    journalctl --unit=be --no-pager --output=cat | grep -o '"total":[0-9]*' | tail -1 | cut -d: -f2
}

gets_on() {
    (($(done_by_be) > $1))
}

pgrep_keeper() { grep -lsx gpreempt-keeper /proc/[0-9]*/comm; }

socket=/run/emulated-gpu
mkdir -p /etc/systemd/system/gpreemptd.service.d
cat >/etc/systemd/system/gpreemptd.service.d/emulated.conf <<CONF
[Service]
ExecStart=
ExecStart=/usr/bin/gpreemptd --config /etc/gpreempt/config.toml --emulated $socket
CONF
systemctl daemon-reload
systemd-run --quiet --unit=emulator gpreempt-emu --socket "$socket" --machine cwsr --compute-units 1
soon test -S "$socket"
# Loads of other users connect to it.
chmod 666 "$socket"

check "the unit has no mistakes" systemd-analyze verify --man=no gpreemptd.service
# A folder of a user, as a login makes one.
mkdir -p /run/user/61001
touch /run/user/61001/file
# 0 is no exposure, 100 is a service without any restriction.
check "it is exposed less than the limit" \
    systemd-analyze security --no-pager --threshold=35 gpreemptd.service
check "it starts and says that it is ready" systemctl start gpreemptd
check "it is active" is_active
check "systemd shows what it schedules" grep -q emulated <<<"$(state StatusText)"

# CAP_DAC_READ_SEARCH is bit 2, CAP_SYS_PTRACE bit 19; AMD adds CAP_CHECKPOINT_RESTORE, bit 40.
capabilities() { sed -n 's/^CapEff:\t//p' "/proc/$1/status"; }
keeper() { pgrep_keeper | head -1 | cut -d/ -f3; }
check "the daemon has three capabilities" \
    test "$(capabilities "$(state MainPID)")" = 0000010000080004
check "and the keeper the same" test "$(capabilities "$(keeper)")" = 0000010000080004
sees_no_folder() {
    local seen
    seen=$(nsenter --mount --target "$(state MainPID)" ls -A /run/user) && [[ -z $seen ]]
}
check "the daemon cannot see the folders of users" sees_no_folder
check "and system calls are filtered" grep -q 'Seccomp:.2' "/proc/$(state MainPID)/status"

# As an ordinary user: the daemon reads its environment and its descriptors.
systemd-run --quiet --unit=be -E GPREEMPT_PRIORITY=2 --uid=nobody --gid=nogroup \
    gpreempt-load be --socket "$socket" --seconds 600 --kernel-us 20000 --groups 1 --json
systemd-run --quiet --unit=lc -E GPREEMPT_PRIORITY=12 \
    gpreempt-load lc --socket "$socket" --seconds 600 --every-us 200000 --kernels 2 \
    --groups 1 --json
check "it finds a process and its priority" soon listed 'gpreempt-load +.*\b12\b'
check "and the one of another user" soon listed 'gpreempt-load +[0-9]+ +nobody +[0-9]+ +2\b'
preempted() { gpreempt ps --json | grep -E '"preempts": ?[1-9]'; }
check "the one is preempted for the other" soon preempted

first=$(state MainPID)
check "it reads its configuration again" systemctl reload gpreemptd
check "and says so" soon logged "configuration reloaded"
cp /etc/gpreempt/config.toml /tmp/config.toml
echo 'interval_ms = "soon"' >>/etc/gpreempt/config.toml
systemctl reload gpreemptd
check "it keeps the old one if the new one has a mistake" \
    soon logged "configuration not reloaded, the old one is used"
cp /tmp/config.toml /etc/gpreempt/config.toml
check "it is the same process" test "$(state MainPID)" = "$first"

kill -KILL "$first"
check "killed: there is another one" soon is_another "$first"
check "and it schedules the same processes" soon listed 'gpreempt-load +.*\b12\b'
check "and the load runs" soon gets_on "$(done_by_be)"

second=$(state MainPID)
kill -STOP "$second"
check "it hangs: the watchdog ends it and there is another one" soon is_another "$second"
check "and the load runs then" soon gets_on "$(done_by_be)"

# Another version over the one that controls processes, and back again.
for package in /older.deb /gpreempt.deb; do
    replaced=$(state MainPID)
    check "$package is installed while both run" dpkg --install "$package"
    check "the daemon is that of the package" soon is_another "$replaced"
    check "it schedules the same process" soon listed 'gpreempt-load +.*\b12\b'
    check "and the load runs" soon gets_on "$(done_by_be)"
done

check "it stops" systemctl stop gpreemptd
no_session() { ! ls /run/gpreempt/session-* && ! pgrep_keeper; }
check "nothing of it is left, and no keeper" soon no_session
check "and the load runs afterwards" soon gets_on "$(done_by_be)"

echo 'interval_ms = "soon"' >>/etc/gpreempt/config.toml
systemctl start gpreemptd
has_failed() { [[ $(state ActiveState) == failed ]]; }
check "a wrong configuration is not tried for ever" soon has_failed
cp /tmp/config.toml /etc/gpreempt/config.toml

systemctl kill --signal=TERM be lc
exact() { journalctl --unit="$1" --no-pager --output=cat | grep -E '"exactness":.*"pass"'; }
ended() { journalctl --unit="$1" --no-pager --output=cat | grep -F '"final"'; }
check "the best-effort load ends" soon ended be
check "and nothing was lost or done twice" exact be
systemctl start gpreemptd
check "the package can be removed while it runs" dpkg --remove gpreempt
check "and the service is gone with it" test "$(state ActiveState)" != active

if ((failed)); then
    journalctl --unit=gpreemptd --no-pager
    journalctl --unit=be --no-pager | tail -3
fi
echo "exit $failed"
systemctl poweroff --force --force
