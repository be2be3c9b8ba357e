#!/bin/sh
# Gives a Slurm job its GPU priority. In slurm.conf, both as:
#
#   Prolog=/usr/share/gpreempt/slurm/prolog.sh
#   TaskProlog=/usr/share/gpreempt/slurm/prolog.sh
#
# The first that says something counts:
#   1. sbatch --export=ALL,GPREEMPT_PRIORITY=9
#   2. sbatch --comment=gpreempt=9      (or among other words: "nightly gpreempt=9")
#   3. a line "PARTITION PRIORITY" in /etc/gpreempt/slurm-partitions
# For a job without a setting gpreemptd's rules and its default apply.
#
# As Prolog (root, before the job) it finds out 2 and 3, which only the controller knows, and notes
# the answer. As TaskProlog (the user, in each task before the program) it gives the task the
# variable that gpreemptd reads. A priority above 7 counts for root and members of the group
# gpreempt only, wherever it came from; see docs/reference/configuration.md.
#
# Nothing here can make a job fail: without gpreemptd it just has one more variable.
#
# -f: the comment is split into words, which must not be expanded as patterns. A user wrote it, root
# reads it, and /*/*/*/*/*/* is the list of all files.
set -uf

notes=${GPREEMPT_SLURM_NOTES:-/run/gpreempt-slurm}
partitions=${GPREEMPT_SLURM_PARTITIONS:-/etc/gpreempt/slurm-partitions}

# More of a comment is not read.
comment_max=4096

# The number becomes part of a path.
case ${SLURM_JOB_ID:-} in
'' | *[!0-9]*) exit 0 ;;
esac

is_priority() {
    case $1 in
    [0-9] | 1[0-5]) return 0 ;;
    *) return 1 ;;
    esac
}

# What the comment of the job says.
from_comment() {
    comment=${SLURM_JOB_COMMENT:-}
    # Before Slurm 23.02 a prolog is not told.
    [ -n "$comment" ] ||
        comment=$(timeout 10 squeue --noheader --jobs="$SLURM_JOB_ID" --format=%k 2>/dev/null |
            head -c $((comment_max + 1)))
    [ ${#comment} -le $comment_max ] || return 0
    for word in $comment; do
        case $word in
        gpreempt=*)
            printf '%s\n' "${word#gpreempt=}"
            return
            ;;
        esac
    done
}

# What the partition says.
from_partition() {
    [ -r "$partitions" ] || return 0
    while read -r name value _; do
        if [ "$name" = "${SLURM_JOB_PARTITION:-}" ]; then
            printf '%s\n' "$value"
            return
        fi
    done <"$partitions"
}

case ${SLURM_SCRIPT_CONTEXT:-} in
prolog_task)
    # Whatever this prints as "export NAME=VALUE" becomes the task's environment.
    if [ -z "${GPREEMPT_PRIORITY:-}" ] && [ -r "$notes/$SLURM_JOB_ID" ]; then
        read -r priority <"$notes/$SLURM_JOB_ID"
        if is_priority "$priority"; then
            echo "export GPREEMPT_PRIORITY=$priority"
        fi
    fi
    ;;
*)
    priority=$(from_comment)
    is_priority "$priority" || priority=$(from_partition)
    if is_priority "$priority" && mkdir -p "$notes"; then
        # The tasks' users read them.
        chmod 755 "$notes"
        echo "$priority" >"$notes/$SLURM_JOB_ID" && chmod 644 "$notes/$SLURM_JOB_ID"
    fi
    ;;
esac
exit 0
