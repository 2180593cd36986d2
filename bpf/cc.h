/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a congestion control needs of the kernel. Each control is one C file that includes this one and compiles three
 * ways:
 *
 *   BPF          (clang -target bpf)  struct_ops programs for a running kernel; the structures below name only the
 *                                     fields used, and where they are is found when the program is loaded (CO-RE)
 *   user space   (any C compiler)     for the check against the kernel's own modules, see replay.c
 *   the kernel   (__KERNEL__)         an ordinary built-in congestion control
 *
 * What the kernel does in functions (tcp_slow_start and others, net/ipv4/tcp_cong.c, include/net/tcp.h of Linux 6.1) is
 * written out here, so that all three run the same arithmetic. BPF may write no field of the socket but snd_cwnd,
 * snd_cwnd_cnt, snd_ssthresh and the control's private 104 bytes: the controls keep to that.
 */
#ifndef THALWEG_CC_H
#define THALWEG_CC_H

#if defined(__KERNEL__)

#include <linux/module.h>
#include <linux/version.h>
#include <net/tcp.h>

#define CC_OP static
#define CC(name, ...) name(__VA_ARGS__)
#define CC_FN(name) name
#define CC_OPS(control) static struct tcp_congestion_ops control##_ops __read_mostly
#define CC_REGISTER(control)                                                                                           \
	static int __init control##_register(void)                                                                     \
	{                                                                                                              \
		return tcp_register_congestion_control(&control##_ops);                                                \
	}                                                                                                              \
	module_init(control##_register);                                                                               \
	MODULE_LICENSE("GPL")
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
#define CC_CONG_CONTROL(name) static void name(struct sock *sk, u32 ack, int flag, const struct rate_sample *rs)
#else
#define CC_CONG_CONTROL(name) static void name(struct sock *sk, const struct rate_sample *rs)
#endif
#define CC_HZ HZ
#define cc_div64(a, b) div_u64(a, b)
#define cc_ca(sk) inet_csk_ca(sk)
#define cc_ca_state(sk) inet_csk(sk)->icsk_ca_state
#define cc_is_cwnd_limited(tp) (tp)->is_cwnd_limited

#else /* BPF and user space */

typedef unsigned char u8, __u8;
typedef unsigned short u16, __u16, __be16;
typedef unsigned int u32, __u32, __be32, __wsum;
typedef unsigned long long u64, __u64;
typedef signed char __s8;
typedef short __s16;
typedef int s32, __s32;
typedef long long s64, __s64;

#define TCP_CONG_NON_RESTRICTED 1
#define TCP_INFINITE_SSTHRESH 0x7fffffff

enum { TCP_CA_Open, TCP_CA_Disorder, TCP_CA_CWR, TCP_CA_Recovery, TCP_CA_Loss };

enum tcp_ca_event { CA_EVENT_TX_START, CA_EVENT_CWND_RESTART, CA_EVENT_COMPLETE_CWR, CA_EVENT_LOSS };

#define CA_ACK_SLOWPATH 1

#ifdef __bpf__
#define CC_CORE __attribute__((preserve_access_index))
#else
#define CC_CORE
#endif

struct sock;

struct ack_sample {
	u32 pkts_acked;
	s32 rtt_us;
	u32 in_flight;
} CC_CORE;

struct tcp_options_received {
	u32 rcv_tsval;
	u32 rcv_tsecr;
} CC_CORE;

struct inet_connection_sock {
	u8 icsk_ca_state : 5;
	u64 icsk_ca_priv[13];
} CC_CORE;

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u32 snd_cwnd;
	u32 snd_cwnd_cnt;
	u32 snd_ssthresh;
	u32 snd_cwnd_clamp;
	u32 prior_cwnd;
	u32 packets_out;
	u32 max_packets_out;
	u32 delivered;
	u32 srtt_us;
	u32 mss_cache;
	u32 snd_una;
	u32 snd_nxt;
	u32 write_seq;
	u64 tcp_mstamp;
	u8 is_cwnd_limited : 1;
	struct tcp_options_received rx_opt;
} CC_CORE;

/* The members are found by name: their order is our own. */
struct tcp_congestion_ops {
	void (*init)(struct sock *sk);
	u32 (*ssthresh)(struct sock *sk);
	void (*cong_avoid)(struct sock *sk, u32 ack, u32 acked);
	void (*set_state)(struct sock *sk, u8 new_state);
	void (*cwnd_event)(struct sock *sk, enum tcp_ca_event event);
	void (*in_ack_event)(struct sock *sk, u32 flags);
	void (*pkts_acked)(struct sock *sk, const struct ack_sample *sample);
	u32 (*min_tso_segs)(struct sock *sk);
	void (*cong_control)(struct sock *sk);
	u32 (*undo_cwnd)(struct sock *sk);
	u32 flags;
	char name[16];
};

static inline struct tcp_sock *tcp_sk(const struct sock *sk)
{
	return (struct tcp_sock *)sk;
}

static inline int after(u32 a, u32 b)
{
	return (s32)(b - a) < 0;
}

static inline int between(u32 seq, u32 low, u32 high)
{
	return high - low >= seq - low;
}

#define cc_ca(sk) ((void *)tcp_sk(sk)->inet_conn.icsk_ca_priv)

#ifdef __bpf__

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#define CC_OP SEC("struct_ops")
#define CC BPF_PROG
/* What follows the socket differs between kernels: nobody looks. */
#define CC_CONG_CONTROL(name) CC_OP void CC(name, struct sock *sk)
#define CC_FN(name) ((void *)name)
/* The map's name, by which `thalweg cc` knows its own: at most 15 characters. */
#define CC_OPS(control) SEC(".struct_ops") struct tcp_congestion_ops tw_##control
#define CC_REGISTER(control) char cc_license[] SEC("license") = "GPL"

/* Ticks a second of the running kernel: set by the loader. */
const volatile u32 cc_hz SEC(".rodata.cc") = 1000;

#define tcp_jiffies32 ((u32)bpf_jiffies64())
#define cc_ca_state(sk) BPF_CORE_READ_BITFIELD(&tcp_sk(sk)->inet_conn, icsk_ca_state)
#define cc_is_cwnd_limited(tp) BPF_CORE_READ_BITFIELD(tp, is_cwnd_limited)

#else

#define CC_OP static
#define CC(name, ...) name(__VA_ARGS__)
#define CC_CONG_CONTROL(name) static void name(struct sock *sk)
#define CC_FN(name) name
#define CC_OPS(control) static const struct tcp_congestion_ops control##_ops
#define CC_REGISTER(control) _Static_assert(1, "")

/* Set from the tape before each call. */
static u32 cc_hz, tcp_jiffies32;

#define cc_ca_state(sk) tcp_sk(sk)->inet_conn.icsk_ca_state
#define cc_is_cwnd_limited(tp) (tp)->is_cwnd_limited

#endif /* __bpf__ */

#define CC_HZ cc_hz
#define cc_div64(a, b) ((a) / (b))

#endif /* __KERNEL__ */

#define CC_PRIVATE(type) _Static_assert(sizeof(type) <= 104, "larger than the socket's private area")

static inline u32 cc_min(u32 a, u32 b)
{
	return a < b ? a : b;
}

static inline u32 cc_max(u32 a, u32 b)
{
	return a > b ? a : b;
}

/* Ticks, rounded up. */
static inline u32 cc_usecs_to_jiffies(u32 us)
{
	u64 ticks = (u64)us * CC_HZ + 999999;

	return cc_div64(ticks, 1000000);
}

static inline int cc_in_slow_start(const struct tcp_sock *tp)
{
	return tp->snd_cwnd < tp->snd_ssthresh;
}

/* Whether the window, and not the program, holds the sender back. */
static inline int cc_limited(const struct tcp_sock *tp)
{
	return cc_is_cwnd_limited(tp) || (cc_in_slow_start(tp) && tp->snd_cwnd < 2 * tp->max_packets_out);
}

/* Grows the window by what was acknowledged, up to ssthresh. Returns what is left over. */
static inline u32 cc_slow_start(struct tcp_sock *tp, u32 acked)
{
	u32 cwnd = cc_min(tp->snd_cwnd + acked, tp->snd_ssthresh);

	acked -= cwnd - tp->snd_cwnd;
	tp->snd_cwnd = cc_min(cwnd, tp->snd_cwnd_clamp);
	return acked;
}

/* Grows the window by one for every w packets acknowledged. */
static inline void cc_cong_avoid_ai(struct tcp_sock *tp, u32 w, u32 acked)
{
	u32 cwnd = tp->snd_cwnd, count = tp->snd_cwnd_cnt;

	/* Credits gathered at a higher w are applied gently. */
	if (count >= w) {
		count = 0;
		cwnd++;
	}
	count += acked;
	if (count >= w) {
		u32 delta = count / w;

		count -= delta * w;
		cwnd += delta;
	}
	tp->snd_cwnd_cnt = count;
	tp->snd_cwnd = cc_min(cwnd, tp->snd_cwnd_clamp);
}

static inline void cc_reno_cong_avoid(struct tcp_sock *tp, u32 acked)
{
	if (!cc_limited(tp))
		return;
	if (cc_in_slow_start(tp)) {
		acked = cc_slow_start(tp, acked);
		if (!acked)
			return;
	}
	cc_cong_avoid_ai(tp, tp->snd_cwnd, acked);
}

static inline u32 cc_reno_ssthresh(const struct tcp_sock *tp)
{
	return cc_max(tp->snd_cwnd >> 1, 2);
}

static inline u32 cc_reno_undo_cwnd(const struct tcp_sock *tp)
{
	return cc_max(tp->snd_cwnd, tp->prior_cwnd);
}

#endif /* THALWEG_CC_H */
