/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* What the programs need of the kernel: few structures with few fields, found by CO-RE. */
#ifndef KERNEL_BPF_H
#define KERNEL_BPF_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#define PF_WQ_WORKER 0x00000020
#define PF_KTHREAD 0x00200000

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct list_head {
	struct list_head *next;
};

struct hlist_node {
	struct hlist_node *next;
	struct hlist_node **pprev;
};

struct hlist_head {
	struct hlist_node *first;
};

enum pid_type { PIDTYPE_TGID = 1, PIDTYPE_PGID = 2, PIDTYPE_SID = 3 };

#define MM_ANONPAGES 1 /* since 2.6.34 */

enum cgroup_subsys_id {
	cpuset_cgrp_id,
	cpuacct_cgrp_id,
	memory_cgrp_id,
	pids_cgrp_id,
	freezer_cgrp_id,
	devices_cgrp_id,
};

struct pid_namespace {
	struct {
		unsigned int inum;
	} ns;
};

struct upid {
	int nr;
	struct pid_namespace *ns;
};

struct pid {
	unsigned int level;
	struct hlist_head tasks[4];
	struct upid numbers[1];
};

struct kernfs_iattrs {
	struct {
		unsigned int val;
	} ia_uid;
};

struct kernfs_node {
	const char *name;
	__u64 id;
	struct kernfs_iattrs *iattr;
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

struct cgroup {
	struct cgroup_subsys_state self;
	int level;
	struct kernfs_node *kn;
};

struct css_set {
	struct cgroup_subsys_state *subsys[16];
	struct cgroup *dfl_cgrp;
};

struct prev_cputime {
	__u64 utime;
	__u64 stime;
};

struct task_io_accounting {
	__u64 rchar;
	__u64 wchar;
	__u64 syscr;
	__u64 syscw;
	__u64 read_bytes;
	__u64 write_bytes;
	__u64 cancelled_write_bytes;
};

struct signal_struct {
	int nr_threads;
	struct list_head thread_head;
	struct pid *pids[4];
	struct {
	} stats_lock;
	__u64 utime;
	__u64 stime;
	__u64 cutime;
	__u64 cstime;
	struct prev_cputime prev_cputime;
	unsigned long maxrss;
	struct task_io_accounting ioac;
	unsigned long long sum_sched_runtime;
};

struct cred {
	struct {
		unsigned int val;
	} uid, suid, euid;
};

struct percpu_counter {
	__s64 count;
	__s32 *counters;
};

struct mm_struct {
	unsigned long data_vm;
	unsigned long stack_vm;
	unsigned long arg_start;
	struct percpu_counter rss_stat[4];
};

/* Before 6.2. */
struct mm_rss_stat___before {
	struct {
		__s64 counter;
	} count[4];
};

struct mm_struct___before {
	struct mm_rss_stat___before rss_stat;
};

struct sched_entity {
	__u64 sum_exec_runtime;
};

struct task_struct {
	unsigned int __state;
	int exit_state;
	unsigned int flags;
	int pid;
	int tgid;
	struct mm_struct *mm;
	struct task_struct *real_parent;
	struct task_struct *group_leader;
	struct signal_struct *signal;
	struct css_set *cgroups;
	const struct cred *real_cred;
	struct pid *thread_pid;
	struct hlist_node pid_links[4];
	struct list_head thread_node;
	struct sched_entity se;
	__u64 utime;
	__u64 stime;
	__u64 start_boottime;
	struct task_io_accounting ioac;
	void *worker_private;
	int *set_child_tid;
	char comm[16];
};

/* Before 5.14, and before 5.5. */
struct task_struct___before {
	long state;
	__u64 real_start_time;
};

struct kthread {
	void *data;
	char *full_name;
};

struct worker {
	void *current_work;
	void *pool;
	char desc[32];
};

struct bpf_array {
	void *pptrs[1];
};

enum bpf_func_id { BPF_FUNC_map_lookup_percpu_elem = 195 };

struct seq_file {
	__s64 index;
};

struct bpf_iter_meta {
	struct seq_file *seq;
	__u64 session_id;
	__u64 seq_num;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct bpf_map;

struct bpf_iter__bpf_map_elem {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	void *key;
	void *value;
};

#pragma clang attribute pop

/* What a pinned file begins and ends with. */
struct header {
	char magic[8];
	__u32 layout;
	__u32 size;	/* of each record that follows */
	__u64 time;	/* ns since boot, suspension included */
	__u64 features; /* what the number means is the file's */
};

/*
 * Whether nothing was written yet: the number stays 0 also at the end after one element, and the
 * position stays 0 where there is none.
 */
static __always_inline int is_first(struct bpf_iter_meta *meta, void *element)
{
	return meta->seq_num == 0 && (element || meta->seq->index == 0);
}

static __always_inline int begin(struct seq_file *seq, const char *magic, __u32 layout, __u32 size,
				 __u64 features)
{
	struct header header = {
		.layout = layout,
		.size = size,
		.time = bpf_ktime_get_boot_ns(),
		.features = features,
	};

	__builtin_memcpy(header.magic, magic, 8);
	return bpf_seq_write(seq, &header, sizeof(header));
}

/* The id of a cgroup of the second version: the inode of its directory. */
static __always_inline __u64 unified_cgroup(struct css_set *set)
{
	return set->dfl_cgrp->kn->id;
}

/* The cgroup of one controller; null if the kernel was built without it. */
#define controller_cgroup(set, name)                                                       \
	(bpf_core_enum_value_exists(enum cgroup_subsys_id, name##_cgrp_id) ?               \
		 (set)->subsys[bpf_core_enum_value(enum cgroup_subsys_id, name##_cgrp_id)] \
			 ->cgroup :                                                        \
		 0)

/* Its id, 0 if there is none. */
#define controller_cgroup_id(set, name)                                \
	({                                                             \
		struct cgroup *cgroup = controller_cgroup(set, name);  \
		cgroup ? cgroup->kn->id : 0;                           \
	})

#endif
