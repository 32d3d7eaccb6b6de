/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* The tables of io.bpf.c, which entry of them a call belongs to, and whether it is to be counted. */
#ifndef IO_TABLES_BPF_H
#define IO_TABLES_BPF_H

#include "io.bpf.h"

#define LAYOUT 1

#ifndef KEPT
#define KEPT (600 * SECOND)
#endif
#define STALE_AT_MOST 1024 /* a reading; a power of 2 */

/*
 * File systems of a job that are told apart: users can mount any number of them. The fuller the table,
 * the fewer, so that a user of many jobs leaves room for others: the last quarter has an entry for each
 * job that has none.
 */
#ifndef DEVICES_OF_A_JOB
#define DEVICES_OF_A_JOB 64
#endif
#define DEVICES_WHEN_FULLER 16 /* a quarter of the table is used */
#define OTHER_DEVICES 0xffffffff
#define CPUS_AT_MOST 4096

/* Set by the loader before the programs are verified. */
struct settings {
	__u64 features;
	__u32 cpus;
	__u32 has_time;
	__u32 level;
	__u32 levels;
	__u32 entries; /* of the table `io` */
};

const volatile struct settings settings = {};

struct key {
	__u32 job;
	__u32 device;
};

/* Only 64-bit numbers, which the reading sums up over CPUs; since and magic are set on one. */
struct counts {
	__u64 since;
	__u64 magic;
	__u64 reads;
	__u64 read_bytes;
	__u64 read_errors;
	__u64 writes;
	__u64 write_bytes;
	__u64 write_errors;
	__u64 opens;
	__u64 creates;
	__u64 links;
	__u64 unlinks;
	__u64 mkdirs;
	__u64 rmdirs;
	__u64 renames;
	__u64 stats;
	__u64 readdirs;
	__u64 fsyncs;
	__u64 statfs;
	__u64 async_reads;
	__u64 async_read_bytes;
	__u64 async_writes;
	__u64 async_write_bytes;
	__u64 splice_reads;
	__u64 splice_read_bytes;
	__u64 splice_writes;
	__u64 splice_write_bytes;
	__u64 major_faults;
	__u64 read_ns;
	__u64 write_ns;
};

struct record {
	struct key key;
	struct counts counts;
};

/* Kinds of traffic: a protocol, with loopback or without. */
#define TCP 0
#define UDP 1
#define LOOPBACK 2
#define KINDS 4

struct traffic {
	__u64 sends;
	__u64 sent_bytes;
	__u64 receives;
	__u64 received_bytes;
};

/* A job has one entry for all kinds: no job takes more room than others. As `counts`, 64-bit numbers. */
struct job_traffic {
	__u64 since;
	struct traffic kinds[KINDS];
};

#define TCP_RECORD 1
#define UDP_RECORD 2
#define LOOPBACK_RECORD 0x100

struct network_record {
	__u32 job;
	__u32 kind;
	__u64 since;
	struct traffic traffic;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct key);
	__type(value, struct counts);
} io SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct job_traffic);
} network SEC(".maps");

/* Entries of `io` that are used. */
__u32 used;

/* An entry that fits no more: its counts, by all CPUs. */
struct counts lost;
struct traffic lost_traffic;

/* Requests of libaio: their results come in whatever context. */
struct request {
	struct key key;
	__u32 magic;
	__u32 is_write;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct request);
} requests SEC(".maps");

/* Entries of a job. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__type(value, __u32);
} devices SEC(".maps");

/* When the control group of a job was removed, ns since boot. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__type(value, __u64);
} gone SEC(".maps");

/* When a task entered the function that it is timed in. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u64);
} entered SEC(".maps");

/*
 * The kernel skips a program on a CPU where a task was preempted in the middle of it. Where kernel code
 * is preempted, all programs are loaded several times, and run one after the other: each level notes the
 * task that it works for, and works only if those before it have not worked for this task last. If the
 * first one is skipped, its note is that of the preempted task. The last level only counts what none
 * has seen.
 */
#define PROGRAM_LEVELS 4
#define HOOKS_AT_MOST 64

struct seen {
	__u64 task[PROGRAM_LEVELS][HOOKS_AT_MOST];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct seen);
} seen SEC(".maps");

/* Whether this level has to work at a hook. */
static __always_inline int begin_work(__u32 hook)
{
	__u32 first = 0;
	struct seen *here = bpf_map_lookup_elem(&seen, &first);
	__u64 task = bpf_get_current_task();

	if (!here)
		return 0;
#pragma unroll
	for (__u32 level = 0; level < PROGRAM_LEVELS; level++) {
		if (level == settings.level) {
			here->task[level][hook] = task;
			return 1;
		}
		if (here->task[level][hook] == task)
			return 0;
	}
	return 0;
}

__u64 missed;

/* As BPF_PROG(), for a program that counts. */
#define COUNTING(name, args...)                                                  \
	name(unsigned long long *ctx);                                           \
	static __always_inline int count_##name(unsigned long long *ctx, ##args); \
	int name(unsigned long long *ctx)                                        \
	{                                                                        \
		if (settings.levels && !begin_work(__COUNTER__))                 \
			return 0;                                                \
		_Pragma("GCC diagnostic push")                                   \
		_Pragma("GCC diagnostic ignored \"-Wint-conversion\"")           \
		if (settings.levels && settings.level == settings.levels)        \
			__sync_fetch_and_add(&missed, 1);                        \
		else                                                             \
			count_##name(___bpf_ctx_cast(args));                     \
		_Pragma("GCC diagnostic pop")                                    \
		return 0;                                                        \
	}                                                                        \
	static __always_inline int count_##name(unsigned long long *ctx, ##args)

#define add(place, number) __sync_fetch_and_add(&(place), number)

static __noinline __u32 find_job(struct css_set *set, __u64 mixture)
{
	struct job found = {};
	__u32 job;

	read_job(set, &found);
	job = found.number;
	if (job || !found.group)
		cached_jobs[mixture >> PLACE_SHIFT] = (mixture | 1) << 32 | job;
	/* Of a job that is requeued the number comes again. */
	if (job)
		bpf_map_delete_elem(&gone, &job);
	return job;
}

static __always_inline __u32 job_of_task(void)
{
	struct css_set *set = bpf_get_current_task_btf()->cgroups;
	__u64 mixture = mixture_of(set);
	__u64 cached = cached_jobs[mixture >> PLACE_SHIFT];

	if (cached >> 32 == (__u32)(mixture | 1))
		return cached;
	return find_job(set, mixture);
}

/* File systems of the kernel's own that nobody stores anything in. */
static __always_inline int is_pseudo_magic(unsigned long magic)
{
	switch (magic) {
	case 0x9fa0: /* proc */
	case 0x62656572: /* sysfs */
	case 0x27e0eb: /* cgroup */
	case 0x63677270: /* cgroup2 */
	case 0x1cd1: /* devpts */
	case 0xcafe4a11: /* bpf */
	case 0x74726163: /* tracefs */
	case 0x64626720: /* debugfs */
	case 0x73636673: /* securityfs */
	case 0xf97cff8c: /* selinuxfs */
	case 0x6e736673: /* nsfs */
	case 0x19800202: /* mqueue */
	case 0xde5e81e4: /* efivarfs */
	case 0x6165676c: /* pstore */
	case 0x62656570: /* configfs */
	case 0x42494e4d: /* binfmt_misc */
	case 0x0187: /* autofs */
		return 1;
	}
	return 0;
}

/* Or mounted nowhere: pipes, sockets, memfd_create(), SysV's shared memory. */
static __always_inline int is_pseudo(struct super_block *sb)
{
	return is_pseudo_magic(sb->s_magic) || sb->s_flags & SB_KERNMOUNT;
}

static __always_inline __u32 devices_allowed(void)
{
	if (used < settings.entries / 4)
		return DEVICES_OF_A_JOB;
	return used < settings.entries / 4 * 3 ? DEVICES_WHEN_FULLER : 0;
}

static __noinline struct counts *create_counts(struct key *key, __u64 magic)
{
	__u32 *number = bpf_map_lookup_elem(&devices, &key->job);
	__u32 one = 1;
	struct counts empty = {};
	struct counts *counts;

	if ((number ? *number : 0) >= devices_allowed()) {
		key->device = OTHER_DEVICES;
		magic = 0;
		counts = bpf_map_lookup_elem(&io, key);
		if (counts)
			return counts;
	}
	empty.since = bpf_ktime_get_boot_ns();
	empty.magic = magic;
	if (!bpf_map_update_elem(&io, key, &empty, BPF_NOEXIST)) {
		add(used, 1);
		if (number)
			add(*number, 1);
		else
			bpf_map_update_elem(&devices, &key->job, &one, 0);
	}
	counts = bpf_map_lookup_elem(&io, key);
	return counts ? counts : &lost;
}

static __always_inline struct counts *counts_of_key(struct key *key, __u64 magic)
{
	struct counts *counts = bpf_map_lookup_elem(&io, key);

	return counts ? counts : create_counts(key, magic);
}

static __always_inline struct counts *counts_of(struct super_block *sb)
{
	struct key key = { .device = sb->s_dev };

	if (is_pseudo(sb))
		return 0;
	key.job = job_of_task();
	return counts_of_key(&key, sb->s_magic);
}

static __always_inline int is_regular(struct file *file)
{
	return (file->f_inode->i_mode & S_IFMT) == S_IFREG;
}

#endif
