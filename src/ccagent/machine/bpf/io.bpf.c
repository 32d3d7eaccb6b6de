/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What jobs read and write, by file system, and send and receive, for whoever reads the files that
 * the iterators below are pinned as. io_records.py describes them.
 *
 * Each program counts at one function of the kernel. The loader leaves out those whose function this
 * kernel does not have, or has with another number of arguments.
 *
 * An entry stays as long as its job has a control group, and for KEPT after that; then it goes when
 * somebody has read it. When the map is full, new entries are summed up in `lost`.
 */
#include "io.bpf.h"

#define LAYOUT 1

#ifndef KEPT
#define KEPT (600 * SECOND)
#endif
#define STALE_AT_MOST 1024 /* a reading; a power of 2 */

/* File systems of a job that are told apart: users can mount any number of them. */
#ifndef DEVICES_OF_A_JOB
#define DEVICES_OF_A_JOB 64
#endif
#define OTHER_DEVICES 0xffffffff
#define CPUS_AT_MOST 4096

/* Set by the loader before the programs are verified. */
struct settings {
	__u64 features;
	__u32 cpus;
	__u32 has_time;
	__u32 level;
	__u32 levels;
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

struct network_key {
	__u32 job;
	__u32 kind;
};

#define TCP 1
#define UDP 2
#define LOOPBACK 0x100

struct traffic {
	__u64 since;
	__u64 sends;
	__u64 sent_bytes;
	__u64 receives;
	__u64 received_bytes;
};

struct network_record {
	struct network_key key;
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
	__uint(max_entries, 512);
	__type(key, struct network_key);
	__type(value, struct traffic);
} network SEC(".maps");

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
	__u32 job = job_of(set);

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

static __noinline struct counts *create_counts(struct key *key, __u64 magic)
{
	__u32 *number = bpf_map_lookup_elem(&devices, &key->job);
	__u32 one = 1;
	struct counts empty = {};
	struct counts *counts;

	if (!number) {
		bpf_map_update_elem(&devices, &key->job, &one, 0);
	} else if (*number < DEVICES_OF_A_JOB) {
		__sync_fetch_and_add(number, 1);
	} else {
		key->device = OTHER_DEVICES;
		magic = 0;
		counts = bpf_map_lookup_elem(&io, key);
		if (counts)
			return counts;
	}
	empty.since = bpf_ktime_get_boot_ns();
	empty.magic = magic;
	bpf_map_update_elem(&io, key, &empty, BPF_NOEXIST);
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

/* Network: payload, by the task that calls. */

static __noinline struct traffic *create_traffic(struct network_key *key)
{
	struct traffic empty = {};
	struct traffic *traffic;

	empty.since = bpf_ktime_get_boot_ns();
	bpf_map_update_elem(&network, key, &empty, BPF_NOEXIST);
	traffic = bpf_map_lookup_elem(&network, key);
	return traffic ? traffic : &lost_traffic;
}

static __always_inline struct traffic *traffic_of(__u32 kind)
{
	struct network_key key = { .kind = kind };
	struct traffic *traffic;

	key.job = job_of_task();
	traffic = bpf_map_lookup_elem(&network, &key);
	return traffic ? traffic : create_traffic(&key);
}

static __always_inline int count_sent(__u32 kind, long result)
{
	struct traffic *traffic = traffic_of(kind);

	add(traffic->sends, 1);
	add(traffic->sent_bytes, result);
	return 0;
}

static __always_inline int count_received(__u32 kind, long result)
{
	struct traffic *traffic = traffic_of(kind);

	add(traffic->receives, 1);
	add(traffic->received_bytes, result);
	return 0;
}

static __always_inline int is_local(__u32 address)
{
	return (address & 0xff) == 127;
}

static __always_inline int is_v6_local(const struct in6_addr *address)
{
	const __u32 *words = address->in6_u.u6_addr32;

	if (words[0] || words[1])
		return 0;
	if (words[2] == 0xffff0000) /* ::ffff:127.0.0.1 */
		return is_local(words[3]);
	return !words[2] && words[3] == 0x01000000;
}

/* A connected socket has a route, and what goes to an address of this node goes through `lo`. */
static __always_inline int is_loopback(struct sock *sk)
{
	struct dst_entry *route = sk->sk_dst_cache;

	if (route)
		return route->dev->flags & IFF_LOOPBACK;
	if (sk->__sk_common.skc_family == AF_INET6)
		return is_v6_local(&sk->__sk_common.skc_v6_daddr);
	return is_local(sk->__sk_common.skc_daddr);
}

#define kind_of(protocol, sk) (protocol | (is_loopback(sk) ? LOOPBACK : 0))

/* To an address that is given with the message there is no route to be seen: by the address. */
struct address {
	unsigned short family;
	unsigned short port;
	__u32 v4;
	struct in6_addr v6;
};

static __always_inline int is_loopback_message(struct sock *sk, struct msghdr *message)
{
	struct address address = {};
	void *name = message->msg_name;

	if (!name || message->msg_namelen < 16)
		return is_loopback(sk);
	bpf_probe_read_kernel(&address, message->msg_namelen < 24 ? 16 : sizeof(address), name);
	if (address.family == AF_INET6)
		return is_v6_local(&address.v6);
	return is_local(address.v4) || address.v4 == sk->__sk_common.skc_rcv_saddr;
}

SEC("fexit/tcp_sendmsg")
int COUNTING(on_tcp_send, struct sock *sk, struct msghdr *message, __u64 size, int result)
{
	return result > 0 ? count_sent(kind_of(TCP, sk), result) : 0;
}

/* sendfile() to a socket, up to 6.4. */
SEC("fexit/tcp_sendpage")
int COUNTING(on_tcp_sendpage, struct sock *sk, void *page, int offset, __u64 size, int flags,
	     int result)
{
	return result > 0 ? count_sent(kind_of(TCP, sk), result) : 0;
}

/*
 * The flags come fourth, but fifth before 5.19; the result after as many arguments as there are. Not
 * tcp_cleanup_rbuf(), which tells the bytes of a waiting reader again and again, and peeked ones.
 */
SEC("fexit/tcp_recvmsg")
int COUNTING(on_tcp_receive, struct sock *sk)
{
	__u64 flags = 0, result = 0;

	if (bpf_core_enum_value_exists(enum bpf_func_id___io, BPF_FUNC_get_func_ret)) {
		bpf_get_func_arg(ctx, bpf_get_func_arg_cnt(ctx) == 6 ? 4 : 3, &flags);
		bpf_get_func_ret(ctx, &result);
	} else {
		flags = ctx[4];
		result = ctx[6];
	}
	if (flags & MSG_PEEK || (int)result <= 0)
		return 0;
	return count_received(kind_of(TCP, sk), (int)result);
}

SEC("fexit/tcp_splice_read")
int COUNTING(on_tcp_splice, struct socket *socket, __s64 *position, void *pipe, __u64 size,
	     unsigned int flags, long result)
{
	return result > 0 ? count_received(kind_of(TCP, socket->sk), result) : 0;
}

/* udpv6_sendmsg() calls it for addresses of the fourth version, with a socket of the sixth. */
SEC("fexit/udp_sendmsg")
int COUNTING(on_udp_send, struct sock *sk, struct msghdr *message, __u64 size, int result)
{
	if (result <= 0 || sk->__sk_common.skc_family != AF_INET)
		return 0;
	return count_sent(UDP | (is_loopback_message(sk, message) ? LOOPBACK : 0), result);
}

SEC("fexit/udpv6_sendmsg")
int COUNTING(on_udpv6_send, struct sock *sk, struct msghdr *message, __u64 size, int result)
{
	if (result <= 0)
		return 0;
	return count_sent(UDP | (is_loopback_message(sk, message) ? LOOPBACK : 0), result);
}

/* The length is negative for what is only peeked at. */
SEC("fentry/skb_consume_udp")
int COUNTING(on_udp_receive, struct sock *sk, struct sk_buff *packet, int length)
{
	if (length <= 0)
		return 0;
	return count_received(UDP | (packet->skb_iif == LOOPBACK_INDEX ? LOOPBACK : 0), length);
}

/* A job has ended when its control group is removed, with controllers of version 1 the first. */
SEC("tp_btf/cgroup_rmdir")
int BPF_PROG(on_group_removal, struct cgroup *cgroup)
{
	__u64 now = bpf_ktime_get_boot_ns();
	__u32 job;

	if (cgroup->level != JOB_LEVEL)
		return 0;
	job = job_of_cgroup(cgroup);
	if (job)
		bpf_map_update_elem(&gone, &job, &now, 0);
	return 0;
}

/* Reading. An entry of a job that is gone is removed after a reading that began later. */
__u64 reading_at;
__u64 read_at;
struct key stale[STALE_AT_MOST];
__u32 stales;

__u64 network_reading_at;
__u64 network_read_at;
struct network_key network_stale[STALE_AT_MOST];
__u32 network_stales;

static __always_inline int is_stale(__u32 job, __u64 begun, __u64 before)
{
	__u64 *at = bpf_map_lookup_elem(&gone, &job);

	return job && at && *at + KEPT < begun && *at < before;
}

#define LOST 0xffffffff

#define sum_up(sums, value, type)                                              \
	for (__u32 cpu = 0; cpu < CPUS_AT_MOST; cpu++) {                       \
		const __u64 *part = (void *)(value) + cpu * sizeof(type);      \
		if (cpu >= settings.cpus)                                      \
			break;                                                 \
		_Pragma("unroll") for (__u32 at = 0; at < sizeof(type) / 8; at++) \
			((__u64 *)&(sums))[at] += part[at];                    \
	}

SEC("iter/bpf_map_elem")
int read_io(struct bpf_iter__bpf_map_elem *ctx)
{
	struct seq_file *seq = ctx->meta->seq;
	struct key *key = ctx->key;
	void *value = ctx->value;
	struct record record = {};

	if (is_first(ctx->meta, key)) {
		read_at = reading_at;
		reading_at = bpf_ktime_get_boot_ns();
		stales = 0;
		if (begin(seq, "ccioent\n", LAYOUT, sizeof(struct record), settings.features))
			return 0;
	}
	if (!key || !value) {
		record.key.job = LOST;
		record.counts = lost;
		bpf_seq_write(seq, &record, sizeof(record));
		begin(seq, "ccended\n", LAYOUT, 0, missed);
		for (__u32 at = 0; at < STALE_AT_MOST; at++) {
			if (at >= stales)
				break;
			bpf_map_delete_elem(&devices, &stale[at].job);
			bpf_map_delete_elem(&io, &stale[at]);
		}
		stales = 0;
		return 0;
	}
	record.key = *key;
	if (is_stale(record.key.job, reading_at, read_at)) {
		__u32 at = stales;

		if (at < STALE_AT_MOST) {
			stale[at & (STALE_AT_MOST - 1)] = record.key;
			stales = at + 1;
		}
	}
	sum_up(record.counts, value, struct counts);
	bpf_seq_write(seq, &record, sizeof(record));
	return 0;
}

SEC("iter/bpf_map_elem")
int read_network(struct bpf_iter__bpf_map_elem *ctx)
{
	struct seq_file *seq = ctx->meta->seq;
	struct network_key *key = ctx->key;
	void *value = ctx->value;
	struct network_record record = {};

	if (is_first(ctx->meta, key)) {
		network_read_at = network_reading_at;
		network_reading_at = bpf_ktime_get_boot_ns();
		network_stales = 0;
		if (begin(seq, "ccionet\n", LAYOUT, sizeof(struct network_record), settings.features))
			return 0;
	}
	if (!key || !value) {
		record.key.job = LOST;
		record.traffic = lost_traffic;
		bpf_seq_write(seq, &record, sizeof(record));
		begin(seq, "ccended\n", LAYOUT, 0, 0);
		for (__u32 at = 0; at < STALE_AT_MOST; at++) {
			if (at >= network_stales)
				break;
			bpf_map_delete_elem(&network, &network_stale[at]);
		}
		network_stales = 0;
		return 0;
	}
	record.key = *key;
	if (is_stale(record.key.job, network_reading_at, network_read_at)) {
		__u32 at = network_stales;

		if (at < STALE_AT_MOST) {
			network_stale[at & (STALE_AT_MOST - 1)] = record.key;
			network_stales = at + 1;
		}
	}
	sum_up(record.traffic, value, struct traffic);
	bpf_seq_write(seq, &record, sizeof(record));
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
