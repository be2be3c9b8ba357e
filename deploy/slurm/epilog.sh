#!/bin/sh
# After a Slurm job: nothing of it stays preempted or suspended. In slurm.conf:
#
#   Epilog=/usr/share/gpreempt/slurm/epilog.sh
#
# Slurm ends what a job started, and gpreemptd forgets what has ended. What got away from both (a
# program that left its session, where Slurm does not use control groups) must at least not be
# held any longer on account of a job that is over.
set -u

# The number becomes part of a path and of a pattern.
case ${SLURM_JOB_ID:-} in
'' | *[!0-9]*) exit 0 ;;
esac

notes=${GPREEMPT_SLURM_NOTES:-/run/gpreempt-slurm}
rm -f "$notes/$SLURM_JOB_ID"

command -v gpreempt >/dev/null 2>&1 || exit 0
for environment in /proc/[0-9]*/environ; do
    folder=${environment%/environ}
    # Only the job's own user: every user can set the variable.
    [ "$(stat -c %u "$folder" 2>/dev/null)" = "${SLURM_JOB_UID:-}" ] || continue
    # The memory of a process can be a file that its file system never delivers.
    timeout 5 cat "$environment" 2>/dev/null | tr '\0' '\n' |
        grep -qx "SLURM_JOB_ID=$SLURM_JOB_ID" || continue
    pid=${folder#/proc/}
    # A script of Slurm's, such as this one, has the variable too, and no GPU.
    [ "$pid" = $$ ] && continue
    timeout 5 gpreempt resume "$pid" >/dev/null 2>&1
    timeout 5 gpreempt detach "$pid" >/dev/null 2>&1
done
exit 0
