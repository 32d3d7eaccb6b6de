#!/bin/sh
# EpilogSlurmctld of slurm.conf: keeps the summary of an ended job in its AdminComment, where
# reportseff, jobstats and job_defense_shield look for it.
#
#   EpilogSlurmctld=/etc/slurm/ccagent-epilog.sh
#
# It runs as SlurmUser, who needs the right to change jobs in slurmdbd (sacctmgr: AdminLevel=Operator)
# and may read the token of the metric store. The comment of somebody else is never replaced.
set -u

# Where the metric store is, and its token; empty: those of /etc/ccagent-views.toml.
store=${CCAGENT_STORE:-}
token=${CCAGENT_TOKEN_FILE:-}
# Seconds until the last samples and the job's end have reached the store.
delay=${CCAGENT_EPILOG_DELAY:-180}

job=${SLURM_JOB_ID:-}
case $job in
'' | *[!0-9]*) exit 0 ;;
esac
# One task of an array has the number of the array itself: only with its own it is alone.
place=$job
if [ "${SLURM_ARRAY_JOB_ID:-}" = "$job" ]; then
    place=${job}_${SLURM_ARRAY_TASK_ID:-}
fi

keep() {
    sleep "$delay"
    summary=$(ccagent job "$job" --js1 ${store:+--store "$store"} ${token:+--token-file "$token"})
    status=$?
    # 3: a job without data, which has a summary of its own.
    if [ "$status" != 0 ] && [ "$status" != 3 ]; then
        return
    fi
    case $summary in
    JS1:Short | JS1:None | JS1:H4s*) ;;
    *) return ;;
    esac
    # Without an answer nothing is known of the comment, and nothing is written.
    known=$(sacct --allocations --noheader --parsable2 --jobs="$place" --format=AdminComment) || return
    case $known in
    '' | JS1:Short | JS1:None | JS1:H4s*) ;;
    *) return ;;
    esac
    sacctmgr --immediate --quiet update job where jobid="$place" set AdminComment="$summary"
}

# Slurm waits for an epilog: the rest goes on without it.
keep </dev/null >/dev/null 2>&1 &
