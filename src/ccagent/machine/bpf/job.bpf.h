/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The Slurm job of a process, by the names of its control groups; ../cgroup/jobs.py describes them and
 * finds the same in the file system. Only root makes groups there: elsewhere users can make their own.
 *
 * A group that is named by a SLUID has no number. The title of the slurmstepd in it has, which is read
 * when slurmstepd starts a task or a thread: before any process of the job runs.
 */
#ifndef JOB_BPF_H
#define JOB_BPF_H

#include "kernel.bpf.h"

#define BPF_MAP_TYPE_LRU_HASH 9
#define LEVELS_AT_MOST 20
#define LONGEST_NAME 128
#define SCOPE_NAME "_slurmstepd.scope"
#define TITLE "slurmstepd: ["

/* Kinds of names, in the upper byte of what `read_name` returns; a number may be in the others. */
#define OTHER_NAME 0
#define JOB_NAME 1
#define SLUID_NAME 2
#define USER_NAME 3
#define SLURM_NAME 4
#define SCOPE 5
#define SLICE 6
#define EXTERN 7
#define KIND_SHIFT 56

/* number: 0 for none, or not known yet. group: id of the job's group, 0 for none. */
struct job {
	__u32 number;
	__u32 step; /* kind of the name of the group below */
	__u64 group;
};

/* Numbers of jobs by the ids of groups that are named by a SLUID. The kernel uses no id again. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, __u64);
	__type(value, __u32);
} numbers SEC(".maps");

/* Compilers make calls of a function out of memcmp(), which there is none here. */
static __always_inline int differ(const char *text, const char *other, __u32 size)
{
	__u8 bits = 0;

#pragma unroll
	for (__u32 at = 0; at < size; at++)
		bits |= text[at] ^ other[at];
	return bits;
}

/* The number that begins there, up to ten digits, and `end` behind it. 0 for others. */
static __always_inline __u64 number_at(const char *text, char end)
{
	__u64 number = 0;

#pragma unroll
	for (int at = 0; at < 11; at++) {
		__u32 digit = (__u8)text[at] - '0';

		if (at && text[at] == end)
			return number > 0xffffffff ? 0 : number;
		if (digit > 9)
			return 0;
		number = number * 10 + digit;
	}
	return 0;
}

/* Letters of Crockford's base 32: no I, L, O, U. */
static __always_inline int is_sluid(const char *name)
{
	if (name[0] != 's' || name[14])
		return 0;
#pragma unroll
	for (int at = 1; at < 14; at++) {
		__u32 letter = (__u8)name[at] - '0';

		if (letter > 'Z' - '0' || !(0x7df6dfe03ffULL >> letter & 1))
			return 0;
	}
	return 1;
}

/* What a name says, by its address. Not static, so that the verifier looks at it only once. */
__noinline __u64 read_name(unsigned long address)
{
	char name[LONGEST_NAME] = {};
	char end[sizeof(SCOPE_NAME)] = {};
	long length = bpf_probe_read_kernel_str(name, sizeof(name), (void *)address) - 1;
	__u64 number;

	if (length < 5 || length > LONGEST_NAME - 2)
		return OTHER_NAME;
	if (!differ(name, "job_", 4)) {
		number = number_at(name + 4, 0);
		return number ? (__u64)JOB_NAME << KIND_SHIFT | number : OTHER_NAME;
	}
	if (!differ(name, "uid_", 4))
		return (__u64)USER_NAME << KIND_SHIFT;
	if (!differ(name, "slurm", 6) || (!differ(name, "slurm_", 6) && name[6]))
		return (__u64)SLURM_NAME << KIND_SHIFT;
	if (!differ(name, "step_extern", 12))
		return (__u64)EXTERN << KIND_SHIFT;
	if (!differ(name, "user.slice", 11))
		return OTHER_NAME;
	if (is_sluid(name))
		return (__u64)SLUID_NAME << KIND_SHIFT;
	if (!differ(name, &SCOPE_NAME[1], sizeof(SCOPE_NAME) - 1))
		return (__u64)SCOPE << KIND_SHIFT;
	if (length > (long)sizeof(SCOPE_NAME) - 1) {
		bpf_probe_read_kernel(end, sizeof(end) - 1,
				      (void *)(address + length - (sizeof(end) - 1)));
		if (!differ(end, SCOPE_NAME, sizeof(SCOPE_NAME)))
			return (__u64)SCOPE << KIND_SHIFT;
	}
	if (length > 6) {
		bpf_probe_read_kernel(end, 6, (void *)(address + length - 6));
		if (!differ(end, ".slice", 6))
			return (__u64)SLICE << KIND_SHIFT;
	}
	return OTHER_NAME;
}

/*
 * Whether a group may be in a job, after the group at `level` above it: from `above`, the last kind of
 * name that counted, to SLURM_NAME if it is in one. JOB_NAME: this group may be a job's. owner: of the
 * group; an administrator may have given a slice to a user. Not static, as `read_name`.
 */
__noinline __u32 follow(__u32 above, __u32 kind, __u32 level, __u32 owner)
{
	if (above == JOB_NAME && kind == USER_NAME)
		return USER_NAME;
	if (above == JOB_NAME && kind == SCOPE && !owner)
		return SCOPE;
	if (above == USER_NAME && kind == SLURM_NAME && level == 1)
		return SLURM_NAME;
	if (above == SCOPE && kind == SLICE)
		return level == 1 ? SLURM_NAME : SCOPE;
	return kind == JOB_NAME || kind == SLUID_NAME ? JOB_NAME : OTHER_NAME;
}

/* Find the job of a group, from the group upwards. */
static __noinline int job_of_cgroup(struct cgroup *cgroup, struct job *job)
{
	__u32 above = OTHER_NAME;
	__u32 below = OTHER_NAME;
	__u32 *known;

	for (int i = 0; i < LEVELS_AT_MOST; i++) {
		struct kernfs_iattrs *attributes = 0;
		unsigned long address = 0;
		__u32 owner = 0;
		__u64 name;

		if (cgroup->level < 1)
			break;
		bpf_core_read(&address, sizeof(address), &cgroup->kn->name);
		name = read_name(address);
		if (bpf_core_field_exists(attributes->ia_uid.val)) {
			bpf_core_read(&attributes, sizeof(attributes), &cgroup->kn->iattr);
			bpf_core_read(&owner, sizeof(owner), &attributes->ia_uid.val);
		}
		above = follow(above, name >> KIND_SHIFT, cgroup->level, owner);
		if (above == SLURM_NAME) {
			known = job->number ? 0 : bpf_map_lookup_elem(&numbers, &job->group);
			if (known)
				job->number = *known;
			return 1;
		}
		if (above == JOB_NAME) {
			job->number = name;
			job->group = cgroup->kn->id;
			job->step = below;
		}
		below = name >> KIND_SHIFT;
		cgroup = cgroup->self.parent->cgroup;
	}
	job->number = 0;
	job->group = 0;
	return 0;
}

#define is_job_by(set, name, job)                                          \
	({                                                                 \
		struct cgroup *cgroup = controller_cgroup(set, name);      \
		cgroup ? job_of_cgroup(cgroup, job) : 0;                   \
	})

/* Find the job of a process. With controllers of version 1 any of them may tell it. */
static __always_inline void read_job(struct css_set *set, struct job *job)
{
	if (!is_job_by(set, cpuacct, job) && !is_job_by(set, freezer, job) &&
	    !is_job_by(set, memory, job) && !is_job_by(set, cpuset, job) &&
	    !is_job_by(set, devices, job))
		job_of_cgroup(set->dfl_cgrp, job);
}

static __always_inline int is_called(const struct task_struct *task, const char *name, __u32 size)
{
	char comm[16];

	__builtin_memcpy(comm, task->comm, sizeof(comm));
	return !differ(comm, name, size);
}

#define is_step_daemon(task) is_called(task, "slurmstepd", sizeof("slurmstepd"))

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	struct task_struct *leader = parent->group_leader;
	const struct cred *cred = leader->real_cred;
	char title[sizeof(TITLE) + 12] = {};
	struct job job = {};
	__u32 number;

	if (!is_step_daemon(leader) || cred->uid.val || cred->euid.val || cred->suid.val)
		return 0;
	job_of_cgroup(leader->cgroups->dfl_cgrp, &job);
	if (!job.group || job.number)
		return 0;
	bpf_probe_read_user_str(title, sizeof(title), (void *)leader->mm->arg_start);
	number = differ(title, TITLE, sizeof(TITLE) - 1) ?
			 0 : number_at(title + sizeof(TITLE) - 1, '.');
	if (number)
		bpf_map_update_elem(&numbers, &job.group, &number, 0);
	return 0;
}

#endif
