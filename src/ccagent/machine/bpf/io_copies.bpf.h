/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Programs at what moves no bytes through the process: splice and its relatives, fsync, page faults. */
#ifndef IO_COPIES_BPF_H
#define IO_COPIES_BPF_H

#include "io_tables.bpf.h"

/* Bytes that the kernel moves between files, or a file and a pipe or socket. */

static __always_inline void count_splice(struct file *from, struct file *to, long result)
{
	struct counts *counts;

	if (from && is_regular(from)) {
		counts = counts_of(from->f_inode->i_sb);
		if (counts) {
			add(counts->splice_reads, 1);
			if (result > 0)
				add(counts->splice_read_bytes, result);
		}
	}
	if (to && is_regular(to)) {
		counts = counts_of(to->f_inode->i_sb);
		if (counts) {
			add(counts->splice_writes, 1);
			if (result > 0)
				add(counts->splice_write_bytes, result);
		}
	}
}

SEC("fexit/vfs_copy_file_range")
int COUNTING(on_copy_file_range, struct file *from, __s64 from_position, struct file *to,
	     __s64 to_position, __u64 size, unsigned int flags, long result)
{
	count_splice(from, to, result);
	return 0;
}

SEC("fexit/do_splice")
int COUNTING(on_splice, struct file *from, __s64 *from_position, struct file *to,
	     __s64 *to_position, __u64 size, unsigned int flags, long result)
{
	count_splice(from, to, result);
	return 0;
}

/* The counts of an open file of the task, 0 for files that are not counted. */
static __always_inline struct counts *counts_of_descriptor(int descriptor)
{
	struct task_struct___files *task = (void *)bpf_get_current_task_btf();
	struct fdtable *table = task->files->fdt;
	struct file **files, *file = 0;
	struct inode *inode = 0;
	struct super_block *sb = 0;
	struct key key = {};
	unsigned long magic = 0, flags = 0;
	unsigned short mode = 0;

	if (descriptor < 0 || (unsigned int)descriptor >= table->max_fds)
		return 0;
	files = table->fd;
	bpf_probe_read_kernel(&file, sizeof(file), &files[descriptor]);
	bpf_core_read(&inode, sizeof(inode), &file->f_inode);
	bpf_core_read(&mode, sizeof(mode), &inode->i_mode);
	if ((mode & S_IFMT) != S_IFREG)
		return 0;
	bpf_core_read(&sb, sizeof(sb), &inode->i_sb);
	bpf_core_read(&magic, sizeof(magic), &sb->s_magic);
	bpf_core_read(&flags, sizeof(flags), &sb->s_flags);
	if (is_pseudo_magic(magic) || flags & SB_KERNMOUNT)
		return 0;
	bpf_core_read(&key.device, sizeof(key.device), &sb->s_dev);
	key.job = job_of_task();
	return counts_of_key(&key, magic);
}

/*
 * fsync(2) and fdatasync(2) themselves: compilers build vfs_fsync_range() into its callers. The loader
 * sets the names of other architectures.
 */
static __always_inline int count_fsync(struct pt_regs *registers)
{
	struct pt_regs___x86 *x86 = (void *)registers;
	struct pt_regs___arm *arm = (void *)registers;
	struct counts *counts;
	unsigned long descriptor;

	if (bpf_core_field_exists(x86->di))
		descriptor = x86->di;
	else
		descriptor = arm->regs[0];
	counts = counts_of_descriptor(descriptor);
	if (counts)
		add(counts->fsyncs, 1);
	return 0;
}

SEC("fentry/__x64_sys_fsync")
int COUNTING(on_fsync, struct pt_regs *registers)
{
	return count_fsync(registers);
}

SEC("fentry/__x64_sys_fdatasync")
int COUNTING(on_fdatasync, struct pt_regs *registers)
{
	return count_fsync(registers);
}

/* Both ends of sendfile() are open yet, unless another thread closes them meanwhile. */
SEC("fexit/do_sendfile")
int COUNTING(on_sendfile, int to, int from, __s64 *position, __u64 size, __s64 most, long result)
{
	struct counts *counts;

	if (result == -EBADF)
		return 0;
	counts = counts_of_descriptor(from);
	if (counts) {
		add(counts->splice_reads, 1);
		if (result > 0)
			add(counts->splice_read_bytes, result);
	}
	counts = counts_of_descriptor(to);
	if (counts) {
		add(counts->splice_writes, 1);
		if (result > 0)
			add(counts->splice_write_bytes, result);
	}
	return 0;
}

/* mmap(): pages fetched from the file system. */
SEC("fexit/filemap_fault")
int COUNTING(on_fault, struct vm_fault *fault, unsigned int result)
{
	if (!(result & VM_FAULT_MAJOR))
		return 0;
	return count_operation(fault->vma->vm_file->f_inode->i_sb, major_faults);
}

#endif
