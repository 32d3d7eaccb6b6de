/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Programs at read and write calls, and at metadata operations. */
#ifndef IO_CALLS_BPF_H
#define IO_CALLS_BPF_H

#include "io_tables.bpf.h"

/* Read and write: the result. */

static __always_inline __u64 time_spent(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 *since, now = bpf_ktime_get_ns();
	__u64 spent = 0;

	since = bpf_task_storage_get(&entered, task, 0, 0);
	if (since && *since) {
		spent = now - *since;
		*since = 0;
	}
	return spent;
}

static __always_inline int count_read(struct file *file, long result)
{
	struct counts *counts;

	if (!is_regular(file))
		return 0;
	counts = counts_of(file->f_inode->i_sb);
	if (!counts)
		return 0;
	add(counts->reads, 1);
	if (result < 0)
		add(counts->read_errors, 1);
	else
		add(counts->read_bytes, result);
	if (settings.has_time)
		add(counts->read_ns, time_spent());
	return 0;
}

static __always_inline int count_write(struct file *file, long result)
{
	struct counts *counts;

	if (!is_regular(file))
		return 0;
	counts = counts_of(file->f_inode->i_sb);
	if (!counts)
		return 0;
	add(counts->writes, 1);
	if (result < 0)
		add(counts->write_errors, 1);
	else
		add(counts->write_bytes, result);
	if (settings.has_time)
		add(counts->write_ns, time_spent());
	return 0;
}

SEC("fexit/vfs_read")
int COUNTING(on_vfs_read, struct file *file, char *buffer, __u64 size, __s64 *position, long result)
{
	return count_read(file, result);
}

SEC("fexit/vfs_write")
int COUNTING(on_vfs_write, struct file *file, char *buffer, __u64 size, __s64 *position,
	     long result)
{
	return count_write(file, result);
}

SEC("fexit/vfs_readv")
int COUNTING(on_vfs_readv, struct file *file, void *vector, __u64 length, __s64 *position,
	     int flags, long result)
{
	return count_read(file, result);
}

SEC("fexit/vfs_writev")
int COUNTING(on_vfs_writev, struct file *file, void *vector, __u64 length, __s64 *position,
	     int flags, long result)
{
	return count_write(file, result);
}

/* When they began, where that is wanted. */

static __always_inline int enter(struct file *file)
{
	struct task_struct *task;
	__u64 *since;

	if (!is_regular(file))
		return 0;
	task = bpf_get_current_task_btf();
	since = bpf_task_storage_get(&entered, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (since)
		*since = bpf_ktime_get_ns();
	return 0;
}

SEC("fentry/vfs_read")
int BPF_PROG(enter_vfs_read, struct file *file)
{
	return enter(file);
}

SEC("fentry/vfs_write")
int BPF_PROG(enter_vfs_write, struct file *file)
{
	return enter(file);
}

SEC("fentry/vfs_readv")
int BPF_PROG(enter_vfs_readv, struct file *file)
{
	return enter(file);
}

SEC("fentry/vfs_writev")
int BPF_PROG(enter_vfs_writev, struct file *file)
{
	return enter(file);
}

/* Metadata: attempts. */

#define count_operation(sb, field)                     \
	({                                             \
		struct counts *counts = counts_of(sb); \
		if (counts)                            \
			add(counts->field, 1);         \
		0;                                     \
	})

SEC("fentry/security_file_open")
int COUNTING(on_open, struct file *file)
{
	unsigned short type = file->f_inode->i_mode & S_IFMT;

	if (type != S_IFREG && type != S_IFDIR)
		return 0;
	return count_operation(file->f_inode->i_sb, opens);
}

SEC("fentry/security_inode_create")
int COUNTING(on_create, struct inode *directory)
{
	return count_operation(directory->i_sb, creates);
}

SEC("fentry/security_inode_link")
int COUNTING(on_link, struct dentry *old, struct inode *directory)
{
	return count_operation(directory->i_sb, links);
}

SEC("fentry/security_inode_symlink")
int COUNTING(on_symlink, struct inode *directory)
{
	return count_operation(directory->i_sb, links);
}

SEC("fentry/security_inode_unlink")
int COUNTING(on_unlink, struct inode *directory)
{
	return count_operation(directory->i_sb, unlinks);
}

SEC("fentry/security_inode_mkdir")
int COUNTING(on_mkdir, struct inode *directory)
{
	return count_operation(directory->i_sb, mkdirs);
}

SEC("fentry/security_inode_rmdir")
int COUNTING(on_rmdir, struct inode *directory)
{
	return count_operation(directory->i_sb, rmdirs);
}

SEC("fentry/security_inode_rename")
int COUNTING(on_rename, struct inode *directory)
{
	return count_operation(directory->i_sb, renames);
}

SEC("fentry/security_inode_getattr")
int COUNTING(on_stat, struct path *path)
{
	return count_operation(path->dentry->d_sb, stats);
}

SEC("fentry/security_sb_statfs")
int COUNTING(on_statfs, struct dentry *dentry)
{
	return count_operation(dentry->d_sb, statfs);
}

SEC("fentry/iterate_dir")
int COUNTING(on_readdir, struct file *file)
{
	return count_operation(file->f_inode->i_sb, readdirs);
}

#endif
