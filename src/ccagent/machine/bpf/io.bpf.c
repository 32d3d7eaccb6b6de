/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What jobs read and write, by file system, and send and receive, for whoever reads the files that
 * the iterators below are pinned as. io_records.py describes them.
 *
 * Each program counts at one function of the kernel. The loader leaves out those whose function this
 * kernel does not have, or has with another number of arguments.
 *
 * An entry stays as long as its job has a control group, and for KEPT after that; then it goes when
 * somebody has read it. Of a map that is more than half full it goes as soon as somebody has read it.
 * The fuller `io` is, the fewer file systems of a job have entries of their own; in `network` a job has
 * one entry. When a map is full, new entries are summed up in `lost`.
 */
#include "io_tables.bpf.h"
#include "io_calls.bpf.h"
#include "io_async.bpf.h"
#include "io_copies.bpf.h"
#include "io_network.bpf.h"

/* A job has ended when its control group is removed, with controllers of version 1 the first. */
SEC("tp_btf/cgroup_rmdir")
int BPF_PROG(on_group_removal, struct cgroup *cgroup)
{
	__u64 now = bpf_ktime_get_boot_ns();
	struct job job = {};

	job_of_cgroup(cgroup, &job);
	if (job.number && job.group == cgroup->kn->id)
		bpf_map_update_elem(&gone, &job.number, &now, 0);
	return 0;
}

/* Reading. An entry of a job that is gone is removed after a reading that began later. */
__u64 reading_at;
__u64 read_at;
struct key stale[STALE_AT_MOST];
__u32 stales;
__u32 records;
__u32 is_crowded;

__u64 network_reading_at;
__u64 network_read_at;
__u32 network_stale[STALE_AT_MOST];
__u32 network_stales;
__u32 network_records;
__u32 is_network_crowded;

static __always_inline int is_stale(__u32 job, __u64 begun, __u64 before, __u32 crowded)
{
	__u64 *at = bpf_map_lookup_elem(&gone, &job);

	return job && at && *at < before && (crowded || *at + KEPT < begun);
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
		records = 0;
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
			if (!bpf_map_delete_elem(&io, &stale[at]))
				add(used, -1);
		}
		stales = 0;
		is_crowded = records > ctx->map->max_entries / 2;
		return 0;
	}
	record.key = *key;
	records++;
	if (is_stale(record.key.job, reading_at, read_at, is_crowded)) {
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

static __always_inline void write_traffic(struct seq_file *seq, __u32 job,
					  const struct job_traffic *sums)
{
	struct network_record record = { .job = job, .since = sums->since };

#pragma unroll
	for (__u32 kind = 0; kind < KINDS; kind++) {
		record.kind = (kind & UDP ? UDP_RECORD : TCP_RECORD) |
			      (kind & LOOPBACK ? LOOPBACK_RECORD : 0);
		record.traffic = sums->kinds[kind];
		if (record.traffic.sends || record.traffic.receives)
			bpf_seq_write(seq, &record, sizeof(record));
	}
}

SEC("iter/bpf_map_elem")
int read_network(struct bpf_iter__bpf_map_elem *ctx)
{
	struct seq_file *seq = ctx->meta->seq;
	__u32 *key = ctx->key;
	void *value = ctx->value;
	struct job_traffic sums = {};
	__u32 job;

	if (is_first(ctx->meta, key)) {
		network_read_at = network_reading_at;
		network_reading_at = bpf_ktime_get_boot_ns();
		network_stales = 0;
		network_records = 0;
		if (begin(seq, "ccionet\n", LAYOUT, sizeof(struct network_record), settings.features))
			return 0;
	}
	if (!key || !value) {
		struct network_record record = { .job = LOST, .traffic = lost_traffic };

		bpf_seq_write(seq, &record, sizeof(record));
		begin(seq, "ccended\n", LAYOUT, 0, 0);
		for (__u32 at = 0; at < STALE_AT_MOST; at++) {
			if (at >= network_stales)
				break;
			bpf_map_delete_elem(&network, &network_stale[at]);
		}
		network_stales = 0;
		is_network_crowded = network_records > ctx->map->max_entries / 2;
		return 0;
	}
	job = *key;
	network_records++;
	if (is_stale(job, network_reading_at, network_read_at, is_network_crowded)) {
		__u32 at = network_stales;

		if (at < STALE_AT_MOST) {
			network_stale[at & (STALE_AT_MOST - 1)] = job;
			network_stales = at + 1;
		}
	}
	sum_up(sums, value, struct job_traffic);
	write_traffic(seq, job, &sums);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
