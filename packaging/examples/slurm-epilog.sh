#!/bin/sh
# EpilogSlurmctld of slurm.conf: stores the summary of an ended job in its AdminComment, for
# reportseff, jobstats and job_defense_shield.
#
#   EpilogSlurmctld=/etc/slurm/ccagent-epilog.sh
# It runs as SlurmUser. This user needs the right to change jobs in slurmdbd (sacctmgr:
# AdminLevel=Operator), and read permission for the token of the metric store. It never replaces a
# comment of another program.
set -u

# URL of the metric store, and its token file; empty: as in /etc/ccagent-views.toml.
store=${CCAGENT_STORE:-}
token=${CCAGENT_TOKEN_FILE:-}
# Seconds until the last samples and the job's end have reached the store.
delay=${CCAGENT_EPILOG_DELAY:-180}

job=${SLURM_JOB_ID:-}
case $job in
'' | *[!0-9]*) exit 0 ;;
esac
# One task of an array has the array's job id. Add the task id to select only this task.
place=$job
if [ "${SLURM_ARRAY_JOB_ID:-}" = "$job" ]; then
    place=${job}_${SLURM_ARRAY_TASK_ID:-}
fi

keep() {
    sleep "$delay"
    summary=$(ccagent job "$job" --js1 ${store:+--store "$store"} ${token:+--token-file "$token"})
    status=$?
    # 3: a job without data. It also has a summary.
    if [ "$status" != 0 ] && [ "$status" != 3 ]; then
        return
    fi
    case $summary in
    JS1:Short | JS1:None | JS1:H4s*) ;;
    *) return ;;
    esac
    # Without an answer the comment is unknown, and is not replaced.
    known=$(sacct --allocations --noheader --parsable2 --jobs="$place" --format=AdminComment) || return
    case $known in
    '' | JS1:Short | JS1:None | JS1:H4s*) ;;
    *) return ;;
    esac
    sacctmgr --immediate --quiet update job where jobid="$place" set AdminComment="$summary"
}

# Slurm waits for the end of an epilog: run the rest in the background.
keep </dev/null >/dev/null 2>&1 &
