/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* What the programs of io.bpf.c need of the kernel beside kernel.bpf.h, and the job of a task, fast. */
#ifndef IO_BPF_H
#define IO_BPF_H

#include "kernel.bpf.h"
#include "job.bpf.h"

#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_PERCPU_HASH 5
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_MAP_TYPE_TASK_STORAGE 29
#define BPF_F_NO_PREALLOC 1
#define BPF_NOEXIST 1
#define BPF_LOCAL_STORAGE_GET_F_CREATE 1
#define SECOND 1000000000ULL

#define S_IFMT 0170000
#define S_IFDIR 0040000
#define S_IFREG 0100000
#define SB_KERNMOUNT (1 << 22)
#define VM_FAULT_MAJOR 4
#define MSG_PEEK 2
#define AF_INET 2
#define AF_INET6 10
#define IFF_LOOPBACK 8
#define LOOPBACK_INDEX 1 /* the device `lo` of every network namespace */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_map {
	__u32 max_entries;
};

struct super_block {
	__u32 s_dev;
	unsigned long s_flags;
	unsigned long s_magic;
};

struct inode {
	unsigned short i_mode;
	struct super_block *i_sb;
};

struct dentry {
	struct super_block *d_sb;
};

struct path {
	struct dentry *dentry;
};

struct file {
	struct inode *f_inode;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct task_struct___files {
	struct files_struct *files;
};

struct pt_regs___x86 {
	unsigned long di;
};

struct pt_regs___arm {
	__u64 regs[31];
};

struct vm_area_struct {
	struct file *vm_file;
};

struct vm_fault {
	struct vm_area_struct *vma;
};

struct kiocb {
	struct file *ki_filp;
};

struct io_cqe {
	__s32 res;
};

struct io_uring_task {
	struct task_struct *task;
};

/* `task` before 6.13. */
struct io_kiocb {
	struct file *file;
	struct io_cqe cqe;
	unsigned char opcode;
	struct io_uring_task *tctx;
	struct task_struct *task;
};

struct cgroup_subsys_state___numbered {
	__u64 serial_nr;
};

struct in6_addr {
	union {
		__u32 u6_addr32[4];
	} in6_u;
};

struct sock_common {
	__u32 skc_daddr;
	__u32 skc_rcv_saddr;
	unsigned short skc_family;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct net_device {
	unsigned int flags;
};

struct dst_entry {
	struct net_device *dev;
};

struct sock {
	struct sock_common __sk_common;
	struct dst_entry *sk_dst_cache;
	__u8 sk_kern_sock : 1;
};

struct socket {
	struct sock *sk;
};

struct msghdr {
	void *msg_name;
	int msg_namelen;
};

struct sk_buff {
	int skb_iif;
};

#pragma clang attribute pop

#define EBADF 9

enum bpf_func_id___io {
	BPF_FUNC_get_func_ret = 184,
};

/*
 * Jobs by control groups: a number that never comes again stands for each of a task's groups
 * (serial_nr of its state), and a mixture of these for all of them. Upper half of an entry: the
 * mixture, whose other bits are the entry's place; lower half: the job. An entry is written at once.
 */
#define CACHED 4096
#define PLACE_SHIFT 52
__u64 cached_jobs[CACHED];

#define numbered(css) ((struct cgroup_subsys_state___numbered *)(css))

#define mix_in(mixture, set, name)                                                        \
	({                                                                                \
		if (bpf_core_enum_value_exists(enum cgroup_subsys_id, name##_cgrp_id))    \
			mixture = (mixture + numbered((set)->subsys[bpf_core_enum_value(  \
					enum cgroup_subsys_id, name##_cgrp_id)])->serial_nr) * \
				  0x9e3779b97f4a7c15ULL;                                  \
	})

static __always_inline __u64 mixture_of(struct css_set *set)
{
	__u64 mixture = numbered(&set->dfl_cgrp->self)->serial_nr * 0x9e3779b97f4a7c15ULL;

	mix_in(mixture, set, cpuacct);
	mix_in(mixture, set, freezer);
	mix_in(mixture, set, memory);
	mix_in(mixture, set, cpuset);
	mix_in(mixture, set, devices);
	return mixture;
}

/* The same where the verifier does not know the pointers. */
#define mix_in_unknown(mixture, set, name)                                                       \
	({                                                                                       \
		struct cgroup_subsys_state___numbered *css = 0;                                  \
		__u64 number = 0;                                                                \
		if (bpf_core_enum_value_exists(enum cgroup_subsys_id, name##_cgrp_id)) {         \
			bpf_core_read(&css, sizeof(css),                                         \
				      &(set)->subsys[bpf_core_enum_value(enum cgroup_subsys_id,  \
									 name##_cgrp_id)]);      \
			bpf_core_read(&number, sizeof(number), &css->serial_nr);                 \
			mixture = (mixture + number) * 0x9e3779b97f4a7c15ULL;                    \
		}                                                                                \
	})

static __always_inline __u64 mixture_of_unknown(struct css_set *set)
{
	struct cgroup *top = 0;
	__u64 mixture = 0;

	bpf_core_read(&top, sizeof(top), &set->dfl_cgrp);
	bpf_core_read(&mixture, sizeof(mixture), &numbered(&top->self)->serial_nr);
	mixture *= 0x9e3779b97f4a7c15ULL;
	mix_in_unknown(mixture, set, cpuacct);
	mix_in_unknown(mixture, set, freezer);
	mix_in_unknown(mixture, set, memory);
	mix_in_unknown(mixture, set, cpuset);
	mix_in_unknown(mixture, set, devices);
	return mixture;
}

#endif
