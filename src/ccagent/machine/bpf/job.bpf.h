/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The Slurm job of a process, by the names of its control groups; ../../cgroup/jobs.py finds the
 * same in the file system:
 *
 *   v1  /slurm/uid_5002/job_13, slurm_NODE/... where one machine has several slurmd
 *   v2  /system.slice/slurmstepd.scope/job_13, NODE_slurmstepd.scope likewise
 *
 * Only there, counted from the root of the hierarchy: elsewhere users can make groups of their own.
 */
#ifndef JOB_BPF_H
#define JOB_BPF_H

#include "kernel.bpf.h"

#define JOB_LEVEL 3
#define LEVELS_AT_MOST 16
#define SCOPE "_slurmstepd.scope"

/* Compilers make calls of a function out of memcmp(), which there is none here. */
static __always_inline int differ(const char *text, const char *other, __u32 size)
{
	__u8 bits = 0;

#pragma unroll
	for (__u32 at = 0; at < size; at++)
		bits |= text[at] ^ other[at];
	return bits;
}

/* The number of a name like `job_13`: four letters, up to ten digits. -1 for other names. */
static __always_inline __s64 number_in(const struct cgroup *cgroup, const char *letters)
{
	char name[16] = {};
	__s64 number = 0;
	long size = bpf_probe_read_kernel_str(name, sizeof(name), cgroup->kn->name);

	/* The size has the final zero; a name of 15 letters may be longer. */
	if (size < 6 || size > 15 || differ(name, letters, 4))
		return -1;
#pragma unroll
	for (int at = 4; at < 14; at++) {
		__u32 digit = (__u8)name[at] - '0';

		if (!name[at])
			break;
		if (digit > 9)
			return -1;
		number = number * 10 + digit;
	}
	return number;
}

/* `slurm` or `slurm_NODE`. */
static __always_inline int is_slurm(const struct cgroup *cgroup)
{
	char name[8] = {};

	bpf_probe_read_kernel_str(name, sizeof(name), cgroup->kn->name);
	return !differ(name, "slurm", 6) ||
	       (!differ(name, "slurm_", 6) && name[6]);
}

/* `slurmstepd.scope` or `NODE_slurmstepd.scope`. */
static __always_inline int is_scope(const struct cgroup *cgroup)
{
	const char *name = cgroup->kn->name;
	char text[128];
	char end[sizeof(SCOPE)] = {};
	long length = bpf_probe_read_kernel_str(text, sizeof(text), name) - 1;

	if (length == sizeof(SCOPE) - 2)
		return !differ(text, &SCOPE[1], sizeof(SCOPE) - 2);
	if (length <= (long)sizeof(SCOPE) - 1)
		return 0;
	bpf_probe_read_kernel(end, sizeof(SCOPE) - 1, name + length - (sizeof(SCOPE) - 1));
	return !differ(end, SCOPE, sizeof(SCOPE) - 1);
}

static __always_inline int is_system_slice(const struct cgroup *cgroup)
{
	char name[16] = {};

	bpf_probe_read_kernel_str(name, sizeof(name), cgroup->kn->name);
	return !differ(name, "system.slice", sizeof("system.slice"));
}

static __noinline __u32 job_of_cgroup(struct cgroup *cgroup)
{
	struct cgroup *above, *top;
	__s64 job;

	for (int i = 0; i < LEVELS_AT_MOST; i++) {
		if (cgroup->level <= JOB_LEVEL)
			break;
		cgroup = cgroup->self.parent->cgroup;
	}
	if (cgroup->level != JOB_LEVEL)
		return 0;
	job = number_in(cgroup, "job_");
	if (job <= 0 || job > 0xffffffff)
		return 0;
	above = cgroup->self.parent->cgroup;
	top = above->self.parent->cgroup;
	if (number_in(above, "uid_") >= 0 ? is_slurm(top) : is_scope(above) && is_system_slice(top))
		return job;
	return 0;
}

#define job_by(set, name)                                             \
	({                                                            \
		struct cgroup *cgroup = controller_cgroup(set, name); \
		cgroup ? job_of_cgroup(cgroup) : 0;                   \
	})

/* The job's number, 0 for none. With controllers of version 1 any of them may tell it. */
static __always_inline __u32 job_of(struct css_set *set)
{
	__u32 job = job_by(set, cpuacct);

	if (!job)
		job = job_by(set, freezer);
	if (!job)
		job = job_by(set, memory);
	if (!job)
		job = job_by(set, cpuset);
	if (!job)
		job = job_by(set, devices);
	return job ? job : job_of_cgroup(set->dfl_cgrp);
}

#endif
