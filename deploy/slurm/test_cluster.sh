#!/usr/bin/env bash
# A real Slurm cluster of one node on loopback, with the emulated GPU and gpreemptd on it: two jobs
# with different GPREEMPT_PRIORITY want the GPU, and the less important one must be preempted.
#
#   deploy/slurm/test_cluster.sh BIN     BIN is the folder with the programs
#   deploy/slurm/test_cluster.sh         only Slurm: do jobs get what the scripts here give them?
#
# Everything lives in a folder of its own: keys, sockets, ports, state. Nothing of a Slurm that is
# installed here is touched, and whatever happens, everything that was started is ended.
# `cargo xtask slurm` builds the programs and runs this. Prints SKIPPED where it cannot run.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
bin=${1:-}
test_folder=""
metrics_port=""
stray=""
pids=()

say() { printf '%s\n' "$*"; }

fail() {
    say "FAILED: $*"
    tail -n 15 "$test_folder"/*.log "$test_folder"/*.out 2>/dev/null || true
    exit 1
}

# 77 is what test programs of old say when they did not run.
skip() {
    say "SKIPPED: $*"
    exit 77
}

# Waits until a command succeeds: seconds, what for, the command.
wait_until() {
    local seconds=$1 what=$2 end
    shift 2
    end=$((SECONDS + seconds))
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || fail "waited $seconds s for $what"
        sleep 0.1
    done
}

# Starts a program that lives as long as the test: name of its log, the command.
start() {
    local log=$test_folder/$1.log
    shift
    "$@" >>"$log" 2>&1 &
    pids+=("$!")
}

is_alive() { kill -0 "$1" 2>/dev/null; }

clean_up() {
    local status=$? pid
    trap - EXIT
    [[ -n $test_folder ]] || exit "$status"
    scancel --user=root >/dev/null 2>&1 || true
    for _ in {1..50}; do
        [[ -n $(squeue --noheader 2>/dev/null) ]] || break
        sleep 0.1
    done
    # What a job left behind on purpose.
    [[ -z $stray ]] || kill -KILL "$stray" 2>/dev/null || true
    # Last started, first ended: jobs before Slurm, gpreemptd before the emulator.
    for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
        pid=${pids[i]}
        kill "$pid" 2>/dev/null || true
        for _ in {1..50}; do
            is_alive "$pid" || break
            sleep 0.1
        done
        kill -KILL "$pid" 2>/dev/null || true
    done
    rm -rf "$test_folder"
    exit "$status"
}

require_packages() {
    local packages=() program
    for program in slurmctld slurmd munged:munge sbatch:slurm-client; do
        command -v "${program%:*}" >/dev/null || packages+=("${program#*:}")
    done
    ((${#packages[@]})) || return 0
    [[ $(id -u) == 0 ]] || skip "missing; to run this: apt-get install ${packages[*]}"
    command -v apt-get >/dev/null || skip "${packages[*]} missing and no apt-get here"
    # The packages bring services; in this runlevel they are not started.
    export RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive
    local install=(timeout 300 apt-get install --yes --no-install-recommends "${packages[@]}")
    "${install[@]}" >/dev/null 2>&1 ||
        { timeout 120 apt-get update >/dev/null 2>&1 && "${install[@]}" >/dev/null 2>&1; } ||
        skip "${packages[*]} missing and apt-get could not install them"
}

# Three free ports.
free_ports() {
    local port found=()
    for port in $(shuf -i 20000-32000 -n 50); do
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || found+=("$port")
        ((${#found[@]} == 3)) && break
    done
    echo "${found[*]}"
}

write_configuration() {
    local node controller_port node_port script
    node=$(hostname -s)
    read -r controller_port node_port metrics_port <<<"$(free_ports)"
    mkdir -p "$test_folder"/{state,spool,munge}
    cat >"$test_folder/slurm.conf" <<CONF
ClusterName=gpreempt-test
SlurmctldHost=$node(127.0.0.1)
SlurmctldPort=$controller_port
SlurmdPort=$node_port
AuthType=auth/munge
AuthInfo=socket=$test_folder/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$test_folder/state
SlurmdSpoolDir=$test_folder/spool
SlurmctldPidFile=$test_folder/slurmctld.pid
SlurmdPidFile=$test_folder/slurmd.pid
# Neither control groups nor accounting: this runs in containers too.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdParameters=config_overrides
Prolog=$test_folder/prolog
TaskProlog=$test_folder/prolog
Epilog=$test_folder/epilog
NodeName=$node NodeAddr=127.0.0.1 CPUs=4 RealMemory=100 State=UNKNOWN
PartitionName=batch Nodes=$node Default=YES MaxTime=10 State=UP
PartitionName=urgent Nodes=$node MaxTime=10 State=UP
CONF
    printf '# partition priority\nbatch 2\nurgent 11\n' >"$test_folder/partitions"
    # Slurm gives these scripts a fresh environment; on a real node the places are the usual ones.
    for script in prolog epilog; do
        cat >"$test_folder/$script" <<SCRIPT
#!/bin/sh
export GPREEMPT_SLURM_PARTITIONS=$test_folder/partitions GPREEMPT_SLURM_NOTES=$test_folder/notes
export GPREEMPT_SOCKET=$test_folder/gpreemptd.sock
export PATH=$bin:/usr/sbin:/usr/bin:/sbin:/bin
exec $here/$script.sh
SCRIPT
        chmod 755 "$test_folder/$script"
    done
    export SLURM_CONF=$test_folder/slurm.conf GPREEMPT_SOCKET=$test_folder/gpreemptd.sock
}

start_slurm() {
    dd if=/dev/urandom of="$test_folder/munge/key" bs=128 count=1 status=none
    chmod 600 "$test_folder/munge/key"
    start munged munged --foreground --key-file="$test_folder/munge/key" \
        --socket="$test_folder/munge/socket" --pid-file="$test_folder/munge/pid" \
        --seed-file="$test_folder/munge/seed" --log-file="$test_folder/munge/log"
    wait_until 10 "munged" test -S "$test_folder/munge/socket"
    start slurmctld slurmctld -D -c
    start slurmd slurmd -D
    wait_until 30 "the node" node_is_idle
    say "ok: a cluster of one node is up"
}

node_is_idle() { [[ $(sinfo --noheader --format=%T) == *idle* ]]; }

# Submits a job; prints its number. Options of sbatch, then `--`, then the command.
submit() {
    local options=()
    while [[ $1 != -- ]]; do
        options+=("$1")
        shift
    done
    shift
    printf '#!/bin/sh\n%s\necho status=$?\n' "$*" |
        sbatch --parsable --output="$test_folder/job-%j.out" --chdir="$test_folder" "${options[@]}"
}

job_is_over() { [[ -z $(squeue --noheader --jobs="$1" 2>/dev/null) ]]; }

# What a job gets: expected priority, options of sbatch.
expect_priority() {
    local expected=$1 job
    shift
    # shellcheck disable=SC2016 # The job expands it, not we.
    job=$(submit "$@" -- sh -c "'echo priority=\$GPREEMPT_PRIORITY'")
    wait_until 30 "job $job" job_is_over "$job"
    wait_until 5 "the output of job $job" grep -q priority= "$test_folder/job-$job.out"
    grep -qx "priority=$expected" "$test_folder/job-$job.out" ||
        fail "job $job ($*) should have priority $expected: $(cat "$test_folder/job-$job.out")"
    say "ok: priority $expected from: $*"
}

check_environment() {
    expect_priority 9 --export=ALL,GPREEMPT_PRIORITY=9 --comment=gpreempt=4 --partition=urgent
    expect_priority 4 --comment=gpreempt=4 --partition=urgent
    expect_priority 11 --partition=urgent
    expect_priority 2 --comment=nothing
    # Patterns: root must not expand them.
    expect_priority 2 --comment='/*/*/*/*/*/*/*'
    expect_priority 4 --comment='/*/*/*/*/*/*/* gpreempt=4'
}

# The emulated GPU, and gpreemptd that schedules it.
start_gpu() {
    start emu "$bin/gpreempt-emu" --socket "$test_folder/emu.sock" --compute-units 4 --machine cwsr
    wait_until 10 "the emulator" test -S "$test_folder/emu.sock"
    printf '[metrics]\nlisten = "127.0.0.1:%s"\n' "$metrics_port" >"$test_folder/config.toml"
    start gpreemptd "$bin/gpreemptd" --foreground --config "$test_folder/config.toml" \
        --socket "$GPREEMPT_SOCKET" --state "$test_folder/journal" \
        --emulated "$test_folder/emu.sock" --no-nvidia
    wait_until 10 "gpreemptd" metrics
    say "ok: gpreemptd runs"
}

# The snapshot of gpreemptd.
metrics() {
    local answer
    exec 3<>"/dev/tcp/127.0.0.1/$metrics_port" || return
    printf 'GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n' >&3
    answer=$(timeout 5 cat <&3)
    exec 3>&-
    [[ $answer == "HTTP/1.1 200 "* ]] && printf '%s\n' "$answer"
}

# The process with that priority, if there is one.
pid_of_priority() {
    metrics | sed -n "s/^gpreempt_process_priority{pid=\"\([0-9]*\)\".*} $1\$/\1/p"
}

# A number of a process: metric, pid.
number_of() { metrics | sed -n "s/^$1{pid=\"$2\".*} \([0-9]*\)\$/\1/p"; }

has_priority() { [[ -n $(pid_of_priority "$1") ]]; }
was_preempted() { (($(number_of gpreempt_process_preempts_total "$1") >= 10)); }

check_preemption() {
    local load="$bin/gpreempt-load" socket="--socket $test_folder/emu.sock" be lc be_pid lc_pid
    # Given in the environment by one and by its partition to the other.
    be=$(submit --export=ALL,GPREEMPT_PRIORITY=3 -- "$load" be "$socket" --seconds 20)
    wait_until 30 "the first job on the GPU" has_priority 3
    # Not in step with the daemon's readings, or all requests could fall between two of them.
    lc=$(submit --partition=urgent -- "$load" lc "$socket" --seconds 8 --every-us 17300)
    wait_until 30 "the second job on the GPU" has_priority 11
    be_pid=$(pid_of_priority 3)
    lc_pid=$(pid_of_priority 11)
    wait_until 20 "preempts of the less important job" was_preempted "$be_pid"
    [[ $(number_of gpreempt_process_preempts_total "$lc_pid") == 0 ]] ||
        fail "the important job was preempted"
    say "ok: job $be was preempted for job $lc, and not the other way round"
    wait_until 60 "both jobs" jobs_are_over "$be" "$lc"
    # A load fails unless each of its kernels ran exactly once.
    grep -qx status=0 "$test_folder/job-$be.out" || fail "job $be lost something"
    grep -qx status=0 "$test_folder/job-$lc.out" || fail "job $lc lost something"
    say "ok: neither lost anything"
}

# What leaves its job behind is left alone from then on.
check_epilog() {
    local job load="$bin/gpreempt-load be --socket $test_folder/emu.sock --seconds 60"
    job=$(submit --export=ALL,GPREEMPT_PRIORITY=5 -- "setsid --fork $load; sleep 3")
    wait_until 30 "a process that got away" has_priority 5
    stray=$(pid_of_priority 5)
    wait_until 30 "job $job" job_is_over "$job"
    is_alive "$stray" || fail "the process ended with its job, so there is nothing to see"
    wait_until 10 "the epilog" is_left_alone "$stray"
    say "ok: the epilog left what got away alone"
}

is_left_alone() { [[ -z $(number_of gpreempt_process_priority "$1") ]]; }
jobs_are_over() { job_is_over "$1" && job_is_over "$2"; }

main() {
    [[ -z $bin ]] || bin=$(cd "$bin" && pwd)
    require_packages
    test_folder=$(mktemp -d "${TMPDIR:-/tmp}/gpreempt-slurm.XXXXXX")
    chmod 755 "$test_folder"
    trap clean_up EXIT
    trap 'exit 130' INT TERM
    write_configuration
    start_slurm
    check_environment
    if [[ -z $bin ]]; then
        say "SKIPPED: the GPU: no folder with gpreemptd and gpreempt-emu was given"
        return
    fi
    start_gpu
    check_preemption
    check_epilog
}

main
