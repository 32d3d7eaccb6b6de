/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Programs at requests of libaio and io_uring. */
#ifndef IO_ASYNC_BPF_H
#define IO_ASYNC_BPF_H

#include "io_tables.bpf.h"

/* libaio: whose request it is when it begins, its result when it ends. */

static __always_inline int begin_request(struct kiocb *kiocb, __u32 is_write)
{
	struct file *file = kiocb->ki_filp;
	struct request request = { .is_write = is_write };
	struct super_block *sb;
	__u64 address = (__u64)kiocb;

	if (!is_regular(file))
		return 0;
	sb = file->f_inode->i_sb;
	if (is_pseudo(sb))
		return 0;
	request.key.device = sb->s_dev;
	request.key.job = job_of_task();
	request.magic = sb->s_magic;
	bpf_map_update_elem(&requests, &address, &request, 0);
	return 0;
}

static __always_inline void count_async(struct counts *counts, __u32 is_write, long result)
{
	if (is_write) {
		add(counts->async_writes, 1);
		if (result < 0)
			add(counts->write_errors, 1);
		else
			add(counts->async_write_bytes, result);
	} else {
		add(counts->async_reads, 1);
		if (result < 0)
			add(counts->read_errors, 1);
		else
			add(counts->async_read_bytes, result);
	}
}

SEC("fentry/aio_read")
int COUNTING(on_aio_read, struct kiocb *kiocb)
{
	return begin_request(kiocb, 0);
}

SEC("fentry/aio_write")
int COUNTING(on_aio_write, struct kiocb *kiocb)
{
	return begin_request(kiocb, 1);
}

SEC("fentry/aio_complete_rw")
int COUNTING(on_aio_complete, struct kiocb *kiocb, long result)
{
	__u64 address = (__u64)kiocb;
	struct request *request = bpf_map_lookup_elem(&requests, &address);
	struct key key;

	if (!request)
		return 0;
	key = request->key;
	count_async(counts_of_key(&key, request->magic), request->is_write, result);
	bpf_map_delete_elem(&requests, &address);
	return 0;
}

/*
 * io_uring: a request that is done when the function returns has its result. One that ends later
 * comes through io_complete_rw; one that is tried again comes here again.
 */
#define AGAIN (-11)
#define QUEUED (-529)
#define REQUEUE (-3072)

static __always_inline int count_uring(struct io_kiocb *request, __u32 is_write, int result)
{
	struct file *file = request->file;
	struct counts *counts;

	if (result == AGAIN || result == QUEUED || result == REQUEUE || !is_regular(file))
		return 0;
	counts = counts_of(file->f_inode->i_sb);
	if (counts)
		count_async(counts, is_write, result < 0 ? result : request->cqe.res);
	return 0;
}

SEC("fexit/io_read")
int COUNTING(on_io_read, struct io_kiocb *request, unsigned int flags, int result)
{
	return count_uring(request, 0, result);
}

SEC("fexit/io_write")
int COUNTING(on_io_write, struct io_kiocb *request, unsigned int flags, int result)
{
	return count_uring(request, 1, result);
}

#define IS_WRITE(opcode) (opcode == 2 || opcode == 5 || opcode == 23 || opcode == 61)

/*
 * In whatever context: the job is that of the request's task, which was remembered when the task began
 * it. Nothing here is known to the verifier. A request begins with its kiocb.
 */
static __always_inline int complete_uring(struct kiocb *kiocb, long result)
{
	struct io_kiocb *request = (void *)kiocb;
	struct io_uring_task *context = 0;
	struct task_struct *task = 0;
	struct file *file = kiocb->ki_filp;
	struct css_set *set = 0;
	struct super_block *sb;
	struct key key = {};
	__u64 mixture, cached;
	struct counts *counts;
	unsigned char opcode = 0;

	if (!is_regular(file))
		return 0;
	sb = file->f_inode->i_sb;
	if (is_pseudo(sb))
		return 0;
	if (bpf_core_field_exists(request->tctx)) {
		bpf_core_read(&context, sizeof(context), &request->tctx);
		if (bpf_core_field_exists(context->task))
			bpf_core_read(&task, sizeof(task), &context->task);
	}
	if (!task && bpf_core_field_exists(request->task))
		bpf_core_read(&task, sizeof(task), &request->task);
	bpf_core_read(&opcode, sizeof(opcode), &request->opcode);
	bpf_core_read(&set, sizeof(set), &task->cgroups);
	mixture = mixture_of_unknown(set);
	cached = cached_jobs[mixture >> PLACE_SHIFT];
	counts = &lost;
	if (cached >> 32 == (__u32)(mixture | 1)) {
		key.device = sb->s_dev;
		key.job = cached;
		counts = counts_of_key(&key, sb->s_magic);
	}
	count_async(counts, IS_WRITE(opcode), result);
	return 0;
}

SEC("fentry/io_complete_rw")
int COUNTING(on_io_complete, struct kiocb *kiocb, long result)
{
	return complete_uring(kiocb, result);
}

SEC("fentry/io_complete_rw_iopoll")
int COUNTING(on_io_complete_polled, struct kiocb *kiocb, long result)
{
	return complete_uring(kiocb, result);
}

#endif
