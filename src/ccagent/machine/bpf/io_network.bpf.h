/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* Programs at sockets of TCP and UDP. */
#ifndef IO_NETWORK_BPF_H
#define IO_NETWORK_BPF_H

#include "io_tables.bpf.h"

/* Network: payload, by the task that calls. */

static __noinline struct job_traffic *create_traffic(__u32 job)
{
	struct job_traffic empty = {};

	empty.since = bpf_ktime_get_boot_ns();
	bpf_map_update_elem(&network, &job, &empty, BPF_NOEXIST);
	return bpf_map_lookup_elem(&network, &job);
}

static __always_inline struct traffic *traffic_of(__u32 kind)
{
	__u32 job = job_of_task();
	struct job_traffic *traffic = bpf_map_lookup_elem(&network, &job);

	if (!traffic)
		traffic = create_traffic(job);
	return traffic ? &traffic->kinds[kind & (KINDS - 1)] : &lost_traffic;
}

/*
 * A socket of the kernel's own: NFS sends its requests in the name of the task that waits for them, and
 * their bytes are counted as those of files.
 */
static __always_inline int is_of_kernel(struct sock *sk)
{
	return BPF_CORE_READ_BITFIELD(sk, sk_kern_sock);
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
	if (result <= 0 || is_of_kernel(sk))
		return 0;
	return count_sent(kind_of(TCP, sk), result);
}

/* sendfile() to a socket, up to 6.4. */
SEC("fexit/tcp_sendpage")
int COUNTING(on_tcp_sendpage, struct sock *sk, void *page, int offset, __u64 size, int flags,
	     int result)
{
	if (result <= 0 || is_of_kernel(sk))
		return 0;
	return count_sent(kind_of(TCP, sk), result);
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
	if (flags & MSG_PEEK || (int)result <= 0 || is_of_kernel(sk))
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
	if (result <= 0 || sk->__sk_common.skc_family != AF_INET || is_of_kernel(sk))
		return 0;
	return count_sent(UDP | (is_loopback_message(sk, message) ? LOOPBACK : 0), result);
}

SEC("fexit/udpv6_sendmsg")
int COUNTING(on_udpv6_send, struct sock *sk, struct msghdr *message, __u64 size, int result)
{
	if (result <= 0 || is_of_kernel(sk))
		return 0;
	return count_sent(UDP | (is_loopback_message(sk, message) ? LOOPBACK : 0), result);
}

/* The length is negative for what is only peeked at. */
SEC("fentry/skb_consume_udp")
int COUNTING(on_udp_receive, struct sock *sk, struct sk_buff *packet, int length)
{
	if (length <= 0 || is_of_kernel(sk))
		return 0;
	return count_received(UDP | (packet->skb_iif == LOOPBACK_INDEX ? LOOPBACK : 0), length);
}

#endif
