/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * One record for each process, whenever the file is read that this iterator is pinned as.
 *
 * The values are those of /proc/PID/stat, statm and io; process_records.py says which.
 */
#include "kernel.bpf.h"

#define LAYOUT 1
#define THREADS_AT_MOST 2048
#define CPUS_AT_MOST 32
#define BPF_MAP_TYPE_PERCPU_ARRAY 6

/* header.features */
#define HAS_IO 1
#define HAS_MEMORY 2
#define HAS_EXACT_MEMORY 4

/* record.flags */
#define KERNEL_THREAD 1
#define WORKER 2
#define WORKING 4
#define INEXACT 8

struct record {
	__u32 pid;
	__u32 ppid;
	__u32 pgid;
	__u32 sid;
	__u32 euid;
	__u32 ruid;
	__u32 suid;
	__u32 flags;
	__u32 num_threads;
	__u32 namespace;
	__u16 namespace_level;
	__u8 state;
	__u8 unused[5];
	__u64 start;
	__u64 runtime;
	__u64 utime;
	__u64 stime;
	__u64 told_utime;
	__u64 told_stime;
	__u64 cutime;
	__u64 cstime;
	__u64 anon_pages;
	__u64 data_pages;
	__u64 rchar;
	__u64 wchar;
	__u64 read_bytes;
	__u64 write_bytes;
	__u64 cancelled_write_bytes;
	__u64 cgroup;
	__u64 cpuacct;
	__u64 memory;
	__u64 pids;
	__u64 freezer;
	__u64 devices;
	char name[48];
	char work[32];
};

/* Where each CPU's copies lie; no CPUs: too many to sum up a counter for each process. */
__u64 offsets[CPUS_AT_MOST];
__u32 cpus;

/* To find that out: __per_cpu_offset is a symbol that not all kernels tell. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} copied SEC(".maps");

static __always_inline int has_io(void)
{
	return bpf_core_type_size(struct task_io_accounting) == sizeof(struct task_io_accounting);
}

static __always_inline int has_percpu_memory(void)
{
	return bpf_core_field_exists(((struct mm_struct *)0)->rss_stat[0].counters);
}

static __always_inline int has_plain_memory(void)
{
	return bpf_core_field_exists(((struct mm_struct___before *)0)->rss_stat.count);
}

static __always_inline int can_find_cpus(void)
{
	return bpf_core_enum_value_exists(enum bpf_func_id, BPF_FUNC_map_lookup_percpu_elem);
}

/* A pointer becomes a number for the verifier by being stored and read back. */
static __always_inline __u64 number_of(volatile __u64 *place, const void *pointer)
{
	*place = (__u64)pointer;
	return *place;
}

static __always_inline void find_cpus(void)
{
	__u64 array = number_of(&offsets[0], &copied);
	__u64 common = 0;
	__u32 first = 0;

	bpf_probe_read_kernel(&common, sizeof(common),
			      (void *)(array + bpf_core_field_offset(struct bpf_array, pptrs)));
	for (__u32 cpu = 0; cpu < CPUS_AT_MOST; cpu++) {
		void *copy = bpf_map_lookup_percpu_elem(&copied, &first, cpu);

		if (!copy) {
			cpus = cpu;
			return;
		}
		offsets[cpu] = number_of(&offsets[cpu], copy) - common;
	}
}

static __always_inline int start(struct seq_file *seq)
{
	__u64 features = 0;

	if (has_io())
		features |= HAS_IO;
	if (has_percpu_memory() || has_plain_memory())
		features |= HAS_MEMORY;
	if (has_percpu_memory() && can_find_cpus() && !cpus)
		find_cpus();
	if (has_plain_memory() || cpus)
		features |= HAS_EXACT_MEMORY;
	return begin(seq, "cctasks\n", LAYOUT, sizeof(struct record), features);
}

/* TASK_* of include/linux/sched.h, as task_index_to_char() there tells them. */
static __always_inline __u8 state_of(struct task_struct *task)
{
	struct task_struct___before *before = (void *)task;
	__u32 state = bpf_core_field_exists(before->state) ? before->state : task->__state;
	__u32 told = (state | task->exit_state) & 0x7f;

	if ((state & 0x402) == 0x402)
		return 'I';
	if (state & 0x9000) /* TASK_RTLOCK_WAIT, TASK_FROZEN */
		return 'D';
	if (told & 0x40)
		return 'P';
	if (told & 0x20)
		return 'Z';
	if (told & 0x10)
		return 'X';
	if (told & 0x08)
		return 't';
	if (told & 0x04)
		return 'T';
	if (told & 0x02)
		return 'D';
	return told & 0x01 ? 'S' : 'R';
}

/* mm->rss_stat may change meanwhile; if it goes away the caller notices. */
static __always_inline __u64 anon_pages(struct mm_struct *mm)
{
	__s64 pages = 0;

	if (has_percpu_memory()) {
		struct percpu_counter *counter = &mm->rss_stat[MM_ANONPAGES];

		pages = counter->count;
		unsigned long counters = (unsigned long)counter->counters;
		__u32 number = cpus;

		for (__u32 cpu = 0; cpu < CPUS_AT_MOST; cpu++) {
			__s32 part;

			if (cpu >= number)
				break;
			bpf_probe_read_kernel(&part, sizeof(part),
					      (void *)(counters + offsets[cpu]));
			pages += part;
		}
	} else if (has_plain_memory()) {
		struct mm_struct___before *before = (void *)mm;

		/* The verifier follows no array of a typedef. */
		bpf_core_read(&pages, sizeof(pages), &before->rss_stat.count[MM_ANONPAGES].counter);
	}
	return pages > 0 ? pages : 0;
}

static __always_inline void read_memory(struct record *record, struct task_struct *task)
{
	struct mm_struct *mm = task->mm;

	if (!mm || record->flags & KERNEL_THREAD)
		return;
	record->anon_pages = anon_pages(mm);
	record->data_pages = mm->data_vm + mm->stack_vm;
	/* Whoever has ended or executed another program meanwhile had its memory taken away. */
	if (task->mm != mm) {
		record->anon_pages = 0;
		record->data_pages = 0;
		record->flags |= INEXACT;
	}
}

static __always_inline void read_ended_threads(struct record *record, struct signal_struct *signal)
{
	record->runtime = signal->sum_sched_runtime;
	record->utime = signal->utime;
	record->stime = signal->stime;
	if (has_io()) {
		record->rchar = signal->ioac.rchar;
		record->wchar = signal->ioac.wchar;
		record->read_bytes = signal->ioac.read_bytes;
		record->write_bytes = signal->ioac.write_bytes;
		record->cancelled_write_bytes = signal->ioac.cancelled_write_bytes;
	}
}

static __always_inline void add_leader(struct record *record, struct task_struct *task)
{
	record->runtime += task->se.sum_exec_runtime;
	record->utime += task->utime;
	record->stime += task->stime;
	if (has_io()) {
		record->rchar += task->ioac.rchar;
		record->wchar += task->ioac.wchar;
		record->read_bytes += task->ioac.read_bytes;
		record->write_bytes += task->ioac.write_bytes;
		record->cancelled_write_bytes += task->ioac.cancelled_write_bytes;
	}
}

/*
 * Another thread: what the list leads to is no pointer that the verifier knows, and a check of each
 * reading would be a jump too many for it. What can't be read is zero.
 */
static __always_inline void add_thread(struct record *record, struct task_struct *task)
{
	struct task_io_accounting io;
	__u64 time;

	bpf_core_read(&time, sizeof(time), &task->se.sum_exec_runtime);
	record->runtime += time;
	bpf_core_read(&time, sizeof(time), &task->utime);
	record->utime += time;
	bpf_core_read(&time, sizeof(time), &task->stime);
	record->stime += time;
	if (has_io()) {
		bpf_core_read(&io, sizeof(io), &task->ioac);
		record->rchar += io.rchar;
		record->wchar += io.wchar;
		record->read_bytes += io.read_bytes;
		record->write_bytes += io.write_bytes;
		record->cancelled_write_bytes += io.cancelled_write_bytes;
	}
}

/* The number that a writer of signal->stats_lock changes: it stands first in all versions. */
static __always_inline __u32 stats_sequence(struct signal_struct *signal)
{
	__u32 sequence = 1;

	bpf_core_read(&sequence, sizeof(sequence), &signal->stats_lock);
	return sequence;
}

static __always_inline void read_threads(struct record *record, struct task_struct *leader,
					 struct signal_struct *signal)
{
	__u32 before = stats_sequence(signal);
	unsigned long end = (unsigned long)__builtin_preserve_access_index(&signal->thread_head);
	unsigned long distance = bpf_core_field_offset(struct task_struct, thread_node);
	unsigned long node = 0;

	read_ended_threads(record, signal);
	bpf_probe_read_kernel(&node, sizeof(node), (void *)end);
	for (int i = 0; i < THREADS_AT_MOST; i++) {
		if (node == end)
			break;
		add_thread(record, (struct task_struct *)(node - distance));
		bpf_probe_read_kernel(&node, sizeof(node), (void *)node);
	}
	if (node != end || before & 1 || before != stats_sequence(signal))
		record->flags |= INEXACT;
}

static __always_inline void read_name(struct record *record, struct task_struct *task, __u32 flags)
{
	struct kthread *kthread = 0;
	struct worker *worker = 0;
	char *name = 0;
	void *pool = 0;

	__builtin_memcpy(record->name, task->comm, sizeof(task->comm));
	if (!(flags & PF_KTHREAD))
		return;
	/* 5.17 moved it and gave it the name that comm is too short for. */
	if (bpf_core_field_exists(task->worker_private))
		kthread = task->worker_private;
	else
		kthread = (void *)task->set_child_tid;
	if (!kthread)
		return;
	if (bpf_core_field_exists(kthread->full_name)) {
		bpf_core_read(&name, sizeof(name), &kthread->full_name);
		if (name)
			bpf_probe_read_kernel_str(record->name, sizeof(record->name), name);
	}
	if (!(flags & PF_WQ_WORKER))
		return;
	record->flags |= WORKER;
	bpf_core_read(&worker, sizeof(worker), &kthread->data);
	if (!worker)
		return;
	bpf_core_read(&pool, sizeof(pool), &worker->pool);
	if (!pool)
		return;
	bpf_core_read_str(record->work, sizeof(record->work), &worker->desc);
	bpf_core_read(&pool, sizeof(pool), &worker->current_work);
	if (pool)
		record->flags |= WORKING;
}

static __always_inline void read_namespace(struct record *record, struct task_struct *task)
{
	struct pid *pid = task->thread_pid;
	struct pid_namespace *namespace = 0;
	struct upid *last;

	record->namespace_level = pid->level;
	if (!record->namespace_level)
		return;
	last = (void *)((unsigned long)__builtin_preserve_access_index(&pid->numbers) +
			record->namespace_level * bpf_core_type_size(struct upid));
	bpf_core_read(&namespace, sizeof(namespace), &last->ns);
	if (namespace)
		bpf_core_read(&record->namespace, sizeof(record->namespace), &namespace->ns.inum);
}

static __always_inline void read_cgroups(struct record *record, struct task_struct *task)
{
	struct css_set *set = task->cgroups;

	record->cgroup = unified_cgroup(set);
	record->cpuacct = controller_cgroup_id(set, cpuacct);
	record->memory = controller_cgroup_id(set, memory);
	record->pids = controller_cgroup_id(set, pids);
	record->freezer = controller_cgroup_id(set, freezer);
	record->devices = controller_cgroup_id(set, devices);
}

static __always_inline void read_identity(struct record *record, struct task_struct *task,
					  struct signal_struct *signal)
{
	struct task_struct___before *before = (void *)task;
	const struct cred *cred = task->real_cred;
	struct pid *group = signal->pids[bpf_core_enum_value(enum pid_type, PIDTYPE_PGID)];
	struct pid *session = signal->pids[bpf_core_enum_value(enum pid_type, PIDTYPE_SID)];

	record->pid = task->tgid;
	record->ppid = task->real_parent->tgid;
	record->pgid = group->numbers[0].nr;
	record->sid = session->numbers[0].nr;
	record->euid = cred->euid.val;
	record->ruid = cred->uid.val;
	record->suid = cred->suid.val;
	record->state = state_of(task);
	record->start = bpf_core_field_exists(task->start_boottime) ? task->start_boottime :
								      before->real_start_time;
}

SEC("iter/task")
int tasks(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct seq_file *seq = ctx->meta->seq;
	struct record record = {};
	struct signal_struct *signal;
	__u32 flags;

	if (is_first(ctx->meta, task) && start(seq))
		return 0;
	if (!task) {
		/* An end that says: nothing is missing. */
		begin(seq, "ccended\n", LAYOUT, 0, 0);
		return 0;
	}
	if (task->pid != task->tgid)
		return 0;
	signal = task->signal;
	flags = task->flags;
	if (flags & PF_KTHREAD)
		record.flags = KERNEL_THREAD;
	record.num_threads = signal->nr_threads;
	read_identity(&record, task, signal);
	if (record.num_threads <= 1) {
		read_ended_threads(&record, signal);
		add_leader(&record, task);
	} else {
		read_threads(&record, task, signal);
	}
	record.cutime = signal->cutime;
	record.cstime = signal->cstime;
	if (bpf_core_field_exists(signal->prev_cputime)) {
		record.told_utime = signal->prev_cputime.utime;
		record.told_stime = signal->prev_cputime.stime;
	}
	read_memory(&record, task);
	read_cgroups(&record, task);
	read_namespace(&record, task);
	read_name(&record, task, flags);
	bpf_seq_write(seq, &record, sizeof(record));
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
