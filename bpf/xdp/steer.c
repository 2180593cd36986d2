/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hands the datagrams for one port to the sockets of a program (AF_XDP), and everything else to the kernel as if
 * nothing had been here: ARP, ICMP, TCP, other ports, fragments, IPv6.
 *
 * It looks at fixed places: Ethernet without tags, IPv4 without options. What has them goes to the kernel. See
 * Documentation/networking/af_xdp.rst; the sockets check what they get themselves
 * (crates/thalweg-frames/src/ethernet.rs).
 */
typedef unsigned char __u8;
typedef unsigned short __u16, __be16;
typedef unsigned int __u32, __be32, __wsum;
typedef unsigned long long __u64;
typedef int __s32;
typedef long long __s64;

/* From linux/bpf.h, of which nothing else is needed. */
enum { BPF_MAP_TYPE_XSKMAP = 17 };
enum { XDP_DROP = 1, XDP_PASS = 2 };
struct xdp_md {
	__u32 data;
	__u32 data_end;
	__u32 data_meta;
	__u32 ingress_ifindex;
	__u32 rx_queue_index;
	__u32 egress_ifindex;
};

#include <bpf/bpf_helpers.h>

/* Ethernet, IPv4 (RFC 791) and UDP (RFC 768), as they lie one behind the other. */
struct headers {
	__u8 to[6], from[6];
	__be16 ethertype;
	__u8 version_and_length, service;
	__be16 length, id, fragment;
	__u8 hops, protocol;
	__be16 checksum;
	__u8 source[4], destination[4];
	__be16 source_port, destination_port;
} __attribute__((packed));

/* Which datagrams, in the network's order: set before the program is loaded. */
struct wanted {
	__u8 address[4];
	__be16 port;
	__be16 unused;
};
const volatile struct wanted wanted SEC(".rodata.steer") = {};

/* The sockets, by queue. As many as there are queues: set before the program is loaded. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* "frags": frames may be longer than a page (Linux 5.18). */
SEC("xdp.frags")
int steer(struct xdp_md *frame)
{
	const struct headers *head = (void *)(long)frame->data;
	const struct headers *behind = head + 1;

	if ((void *)behind > (void *)(long)frame->data_end)
		return XDP_PASS;
	if (head->ethertype != __builtin_bswap16(0x0800) || head->version_and_length != 0x45 || head->protocol != 17)
		return XDP_PASS;
	/* All bits but "don't fragment". */
	if (head->fragment & __builtin_bswap16(0xbfff))
		return XDP_PASS;
	if (head->destination_port != wanted.port)
		return XDP_PASS;
	for (int i = 0; i < 4; i++)
		if (head->destination[i] != wanted.address[i])
			return XDP_PASS;
	/* A queue without a socket: the kernel knows what to do. */
	return bpf_redirect_map(&sockets, frame->rx_queue_index, XDP_PASS);
}

char LICENSE[] SEC("license") = "GPL";
