/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What ended processes have used, summed up by job, user and command, for whoever reads the file
 * that the iterator below is pinned as. ended_records.py describes it.
 *
 * A reader that comes again gets what has changed since it began to read before, and a second more:
 * most entries don't, and there may be many. Those that have not changed for long are taken away, since
 * each costs every reading.
 *
 * A process counts when the kernel frees its task: only then has the scheduler measured all of it.
 * Its process group is gone by then, so it is remembered at the exit.
 */
#include "kernel.bpf.h"
#include "job.bpf.h"

#define LAYOUT 1
#define BPF_MAP_TYPE_LRU_HASH 9
#define BPF_NOEXIST 1
#define SECOND 1000000000ULL

/* Nobody is expected to read less often than this. The tests shorten it. */
#ifndef STALE_AFTER
#define STALE_AFTER (600 * SECOND)
#endif
#define STALE_AT_MOST 256 /* a reading; a power of 2 */

/* Of a job the number tells all: its steps share an entry, and their cgroups are soon gone. */
struct key {
	__u64 cgroup;
	__u64 cpuacct;
	__u32 job;
	__u32 pgid;
	__u32 euid;
	__u32 unused;
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
	__type(value, __u32);
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

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	__u64 key = (__u64)task;
	struct pid *group;
	__u32 pgid;

	if (task->pid != task->tgid || task->flags & PF_KTHREAD)
		return 0;
	group = task->signal->pids[bpf_core_enum_value(enum pid_type, PIDTYPE_PGID)];
	pgid = group->numbers[0].nr;
	bpf_map_update_elem(&leaving, &key, &pgid, 0);
	return 0;
}

static __always_inline void add(struct sums *sums, struct signal_struct *signal, __u64 runtime)
{
	__sync_fetch_and_add(&sums->processes, 1);
	__sync_fetch_and_add(&sums->runtime, runtime);
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

SEC("tp_btf/sched_process_free")
int BPF_PROG(on_free, struct task_struct *task)
{
	struct key key = {};
	__u64 task_key = (__u64)task;
	struct signal_struct *signal;
	struct sums *sums;
	__u64 runtime;
	__u32 *pgid;

	if (task->pid != task->tgid || task->flags & PF_KTHREAD)
		return 0;
	signal = task->signal;
	/* The last thing a lone task did may be missing in the sum that was made at its release. */
	runtime = signal->sum_sched_runtime;
	if (runtime < task->se.sum_exec_runtime)
		runtime = task->se.sum_exec_runtime;
	add(&total, signal, runtime);

	key.euid = task->real_cred->euid.val;
	__builtin_memcpy(key.comm, task->comm, sizeof(key.comm));
	pgid = bpf_map_lookup_elem(&leaving, &task_key);
	if (pgid) {
		key.pgid = *pgid;
		bpf_map_delete_elem(&leaving, &task_key);
	}
	key.job = job_of(task->cgroups);
	if (key.job) {
		key.pgid = 0;
	} else {
		key.cgroup = unified_cgroup(task->cgroups);
		key.cpuacct = controller_cgroup_id(task->cgroups, cpuacct);
	}

	sums = bpf_map_lookup_elem(&ended, &key);
	if (!sums) {
		__u64 now = bpf_ktime_get_boot_ns();
		struct sums empty = { .since = now, .last = now };

		if (!bpf_map_update_elem(&ended, &key, &empty, BPF_NOEXIST))
			__sync_fetch_and_add(&total.since, 1);
		sums = bpf_map_lookup_elem(&ended, &key);
		if (!sums) {
			__sync_fetch_and_add(&total.last, 1);
			return 0;
		}
	}
	add(sums, signal, runtime);
	sums->last = bpf_ktime_get_boot_ns();
	return 0;
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
	if (before && before->begun > SECOND && before->reader == reading.reader)
		reading.since = before->begun - SECOND;
	bpf_map_update_elem(&readings, &reader, &reading, 0);
	stales = 0;
}

static __always_inline int is_stale(struct sums *sums, struct reading *reading)
{
	return sums->last + STALE_AFTER < reading->begun;
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
		if (begin(seq, "ccexits\n", LAYOUT, sizeof(struct record), 0))
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
		begin(seq, "ccended\n", LAYOUT, 0, 0);
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
