/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What ended processes have used, summed up by job, user and command, for whoever reads the file
 * that the iterator below is pinned as. process_records.py describes it.
 *
 * A reader that comes again gets what has changed since it began to read before, and a second more:
 * most entries don't, and there may be many. Those that have not changed for long are taken away, since
 * each costs every reading.
 *
 * A process counts when the kernel frees its task: only then has the scheduler measured all of it.
 * Its process group is gone by then, so its key is remembered at the exit. Some tasks are freed
 * without a run of the program here: the next exit of a task at the same address tells, and what was
 * remembered counts then.
 */
#include "kernel.bpf.h"
#include "job.bpf.h"

#define LAYOUT 3
#define BPF_NOEXIST 1
#define SECOND 1000000000ULL

/*
 * An entry that was not added to for so long is taken away; for three intervals of the slowest reader
 * if that is longer. Intervals of up to ten minutes count. The tests shorten it.
 */
#ifndef STALE_AFTER
#define STALE_AFTER (150 * SECOND)
#endif
#define INTERVALS_KEPT 3
#define LONGEST_INTERVAL (600 * SECOND)
#define STALE_AT_MOST 2048 /* a reading; a power of 2 */

/*
 * Outside of jobs a process that used less than this has its process group in the key only if the
 * group's leader was there at the last reading. Shells make a group for each command.
 */
#define SHORT (SECOND / 10)

/*
 * Of a job the number tells all: its steps share an entry, and their cgroups are soon gone. Before the
 * number of a job is known, `cgroup` is the job's. is_slurms_own: slurmstepd and its placeholder in the
 * step extern, in a job, but no work of its user.
 */
struct key {
	__u64 cgroup;
	__u64 cpuacct;
	__u32 job;
	__u32 pgid;
	__u32 euid;
	__u32 is_slurms_own;
	char comm[16];
};

/* Counters that only grow, as long as the entry lives: `since` tells another one. */
struct sums {
	__u64 processes;
	__u64 runtime;
	__u64 rchar;
	__u64 wchar;
	__u64 read_bytes;
	__u64 write_bytes;
	__u64 cancelled_write_bytes;
	__u64 max_pages;
	__u64 since;
	__u64 last;
};

struct record {
	struct key key;
	struct sums sums;
};

/* A process between exit and release: its key, and the CPU time it had used by then. */
struct left {
	struct key key;
	__u64 runtime;
};

/* Both forget what was used least recently: nobody else could. The loader may enlarge `ended`. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct key);
	__type(value, struct sums);
} ended SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct left);
} leaving SEC(".maps");

/*
 * A reading: when its reader started, which tells another one with the same pid; what was before
 * `since` need not be told; how many processes had ended when it began.
 */
struct reading {
	__u64 reader;
	__u64 session;
	__u64 since;
	__u64 begun;
	__u64 processes;
};

/* The last one of each process that reads. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct reading);
} readings SEC(".maps");

/* Entries that are to be taken away when the reading ends: not while it goes over them. */
struct key stale[STALE_AT_MOST];
__u32 stales;

/* Of all keys; here `since` counts the entries made and `last` those that could not be. */
struct sums total;

/* Processes whose release was not seen. */
__u64 unseen;

/* When somebody began to read last, and the longest time between two readings of a reader. */
__u64 read_at;
__u64 interval;
__u64 interval_at;

/* The sums of a key, made if there are none. */
static __always_inline struct sums *sums_of(struct key *key)
{
	struct sums *sums = bpf_map_lookup_elem(&ended, key);
	struct sums empty = {};

	if (sums)
		return sums;
	empty.since = empty.last = bpf_ktime_get_boot_ns();
	if (!bpf_map_update_elem(&ended, key, &empty, BPF_NOEXIST))
		__sync_fetch_and_add(&total.since, 1);
	sums = bpf_map_lookup_elem(&ended, key);
	if (!sums)
		__sync_fetch_and_add(&total.last, 1);
	return sums;
}

static __always_inline void add_time(struct sums *sums, __u64 runtime)
{
	__sync_fetch_and_add(&sums->processes, 1);
	__sync_fetch_and_add(&sums->runtime, runtime);
}

static __always_inline void add(struct sums *sums, struct signal_struct *signal, __u64 runtime)
{
	add_time(sums, runtime);
	if (bpf_core_type_size(struct task_io_accounting) == sizeof(struct task_io_accounting)) {
		__sync_fetch_and_add(&sums->rchar, signal->ioac.rchar);
		__sync_fetch_and_add(&sums->wchar, signal->ioac.wchar);
		__sync_fetch_and_add(&sums->read_bytes, signal->ioac.read_bytes);
		__sync_fetch_and_add(&sums->write_bytes, signal->ioac.write_bytes);
		__sync_fetch_and_add(&sums->cancelled_write_bytes,
				     signal->ioac.cancelled_write_bytes);
	}
	if (signal->maxrss > sums->max_pages)
		sums->max_pages = signal->maxrss;
}

static __always_inline void find_key(struct key *key, struct task_struct *task)
{
	struct job job = {};

	key->euid = task->real_cred->euid.val;
	__builtin_memcpy(key->comm, task->comm, sizeof(key->comm));
	read_job(task->cgroups, &job);
	if (job.group && !key->euid &&
	    (is_step_daemon(task) || (job.step == EXTERN && is_called(task, "sleep", sizeof("sleep")) &&
				      is_step_daemon(task->real_parent)))) {
		key->is_slurms_own = 1;
		return;
	}
	key->job = job.number;
	if (!key->job) {
		key->cgroup = job.group ? job.group : unified_cgroup(task->cgroups);
		key->cpuacct = controller_cgroup_id(task->cgroups, cpuacct);
	}
}

/* Whether the leader of a process group is there and was at the last reading. */
static __always_inline int was_read(struct pid *group)
{
	unsigned long first = 0;
	__u64 start = 0;

	bpf_core_read(&first, sizeof(first),
		      &group->tasks[bpf_core_enum_value(enum pid_type, PIDTYPE_TGID)].first);
	if (!first)
		return 0;
	first -= bpf_core_field_offset(struct task_struct, pid_links) +
		 bpf_core_enum_value(enum pid_type, PIDTYPE_TGID) *
			 bpf_core_type_size(struct hlist_node);
	bpf_core_read(&start, sizeof(start), &((struct task_struct *)first)->start_boottime);
	return start < read_at;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	__u64 address = (__u64)task;
	struct left left = {};
	struct left *before;
	struct pid *group;
	struct sums *sums;

	if (task->pid != task->tgid || task->flags & PF_KTHREAD)
		return 0;
	before = bpf_map_lookup_elem(&leaving, &address);
	if (before) {
		left = *before;
		__sync_fetch_and_add(&unseen, 1);
		add_time(&total, left.runtime);
		sums = sums_of(&left.key);
		if (sums) {
			add_time(sums, left.runtime);
			sums->last = bpf_ktime_get_boot_ns();
		}
		__builtin_memset(&left, 0, sizeof(left));
	}
	find_key(&left.key, task);
	left.runtime = task->signal->sum_sched_runtime + task->se.sum_exec_runtime;
	if (!left.key.job) {
		group = task->signal->pids[bpf_core_enum_value(enum pid_type, PIDTYPE_PGID)];
		if (left.runtime >= SHORT || was_read(group))
			left.key.pgid = group->numbers[0].nr;
	}
	bpf_map_update_elem(&leaving, &address, &left, 0);
	return 0;
}

SEC("tp_btf/sched_process_free")
int BPF_PROG(on_free, struct task_struct *task)
{
	struct key key = {};
	__u64 address = (__u64)task;
	struct signal_struct *signal;
	struct sums *sums;
	struct left *left;
	__u64 runtime;

	if (task->flags & PF_KTHREAD)
		return 0;
	if (task->pid != task->tgid) {
		/* It may have led a process in which another thread executed a program. */
		bpf_map_delete_elem(&leaving, &address);
		return 0;
	}
	signal = task->signal;
	/* The last thing a lone task did may be missing in the sum that was made at its release. */
	runtime = signal->sum_sched_runtime;
	if (runtime < task->se.sum_exec_runtime)
		runtime = task->se.sum_exec_runtime;
	add(&total, signal, runtime);

	left = bpf_map_lookup_elem(&leaving, &address);
	if (left) {
		key = left->key;
		bpf_map_delete_elem(&leaving, &address);
	} else {
		find_key(&key, task);
	}
	sums = sums_of(&key);
	if (!sums)
		return 0;
	add(sums, signal, runtime);
	sums->last = bpf_ktime_get_boot_ns();
	return 0;
}

/* Remember the slowest reader of late. */
static __always_inline void note_interval(__u64 passed, __u64 now)
{
	if (passed > LONGEST_INTERVAL)
		passed = LONGEST_INTERVAL;
	if (passed >= interval || interval_at + 2 * LONGEST_INTERVAL < now) {
		interval = passed;
		interval_at = now;
	}
}

static __always_inline __u64 stale_after(void)
{
	__u64 kept = INTERVALS_KEPT * interval;

	return kept > STALE_AFTER ? kept : STALE_AFTER;
}

static __always_inline void begin_reading(__u32 reader, __u64 session)
{
	struct reading *before = bpf_map_lookup_elem(&readings, &reader);
	struct task_struct *task = (void *)bpf_get_current_task();
	struct reading reading = {
		.session = session,
		.begun = bpf_ktime_get_boot_ns(),
		.processes = total.processes,
	};

	if (before && before->session == session)
		return; /* the beginning did not fit and is told again */
	if (bpf_core_field_exists(task->start_boottime))
		bpf_core_read(&reading.reader, sizeof(reading.reader), &task->start_boottime);
	if (before && before->begun > SECOND && before->reader == reading.reader) {
		reading.since = before->begun - SECOND;
		note_interval(reading.begun - before->begun, reading.begun);
	}
	bpf_map_update_elem(&readings, &reader, &reading, 0);
	read_at = reading.begun;
	stales = 0;
}

static __always_inline int is_stale(struct sums *sums, struct reading *reading)
{
	return sums->last + stale_after() < reading->begun;
}

static __always_inline void take_stale_away(struct reading *reading)
{
	for (__u32 at = 0; at < STALE_AT_MOST; at++) {
		struct sums *sums;

		if (at >= stales)
			break;
		sums = bpf_map_lookup_elem(&ended, &stale[at]);
		if (sums && is_stale(sums, reading))
			bpf_map_delete_elem(&ended, &stale[at]);
	}
}

SEC("iter/bpf_map_elem")
int read_ended(struct bpf_iter__bpf_map_elem *ctx)
{
	struct seq_file *seq = ctx->meta->seq;
	struct key *key = ctx->key;
	struct sums *sums = ctx->value;
	__u32 reader = bpf_get_current_pid_tgid() >> 32;
	struct record record = {};
	struct reading *reading;

	if (is_first(ctx->meta, key)) {
		begin_reading(reader, ctx->meta->session_id);
		if (begin(seq, "ccexits\n", LAYOUT, sizeof(struct record), stale_after()))
			return 0;
	}
	reading = bpf_map_lookup_elem(&readings, &reader);
	if (reading && reading->session != ctx->meta->session_id)
		reading = 0; /* another one of the same process */
	if (!key || !sums) {
		record.sums = total;
		/* What ended meanwhile may not be among the entries. */
		if (reading) {
			record.sums.processes = reading->processes;
			take_stale_away(reading);
		}
		bpf_seq_write(seq, &record, sizeof(record));
		begin(seq, "ccended\n", LAYOUT, 0, unseen);
		return 0;
	}
	if (reading && is_stale(sums, reading)) {
		__u32 at = stales;

		if (at < STALE_AT_MOST) {
			stale[at & (STALE_AT_MOST - 1)] = *key;
			stales = at + 1;
		}
		return 0;
	}
	if (reading && sums->last < reading->since)
		return 0;
	record.key = *key;
	record.sums = *sums;
	bpf_seq_write(seq, &record, sizeof(record));
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
