// SPDX-License-Identifier: GPL-2.0-only
/*
 * H-TCP: the window grows the faster the longer nothing was lost, and after a loss falls to what empties the queue.
 *
 *    Douglas Leith and Robert Shorten, "H-TCP: TCP for High-Speed and Long-Distance Networks", PFLDnet 2004.
 *
 * Follows net/ipv4/tcp_htcp.c of Linux 6.1 (Baruch Even, GPL-2.0-only) step by step, with round-trip scaling and the
 * bandwidth switch on, as by default. Times are in ticks, as there.
 */
#include "cc.h"

#define HTCP_ALPHA_BASE (1 << 7) /* 1.0, << 7 */
#define HTCP_BETA_MIN (1 << 6) /* 0.5 */
#define HTCP_BETA_MAX 102 /* 0.8 */

struct htcp {
	u32 alpha; /* << 7 */
	u8 beta; /* << 7 */
	u8 modeswitch; /* something was lost once */
	u16 pkts_acked;
	u32 packetcount;
	u32 min_rtt;
	u32 max_rtt;
	u32 last_cong; /* the last congestion ended */
	u32 undo_last_cong;
	u32 undo_max_rtt;
	u32 undo_old_max_b;
	/* packets a second */
	u32 min_b;
	u32 max_b;
	u32 old_max_b;
	u32 b;
	u32 lasttime;
};
CC_PRIVATE(struct htcp);

CC_OP void CC(htcp_init, struct sock *sk)
{
	struct htcp *ca = cc_ca(sk);

	*ca = (struct htcp){
		.alpha = HTCP_ALPHA_BASE,
		.beta = HTCP_BETA_MIN,
		.pkts_acked = 1,
		.last_cong = tcp_jiffies32,
	};
}

static inline u32 htcp_cong_time(const struct htcp *ca)
{
	return tcp_jiffies32 - ca->last_cong;
}

static inline void htcp_measure_rtt(struct htcp *ca, u32 rtt, u32 state)
{
	if (ca->min_rtt > rtt || !ca->min_rtt)
		ca->min_rtt = rtt;
	if (state == TCP_CA_Open) {
		if (ca->max_rtt < ca->min_rtt)
			ca->max_rtt = ca->min_rtt;
		/* No more than 20 ms at once. */
		if (ca->max_rtt < rtt && rtt <= ca->max_rtt + cc_usecs_to_jiffies(20000))
			ca->max_rtt = rtt;
	}
}

CC_OP void CC(htcp_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	u32 now = tcp_jiffies32, state = cc_ca_state(sk), slow, current;
	struct htcp *ca = cc_ca(sk);

	if (state == TCP_CA_Open)
		ca->pkts_acked = sample->pkts_acked;
	if (sample->rtt_us > 0)
		htcp_measure_rtt(ca, cc_usecs_to_jiffies(sample->rtt_us), state);

	if (state != TCP_CA_Open && state != TCP_CA_Disorder) {
		ca->packetcount = 0;
		ca->lasttime = now;
		return;
	}
	ca->packetcount += sample->pkts_acked;

	slow = ca->alpha >> 7 ? ca->alpha >> 7 : 1;
	if (ca->packetcount < tcp_sk(sk)->snd_cwnd - slow || now - ca->lasttime < ca->min_rtt || ca->min_rtt == 0)
		return;

	current = ca->packetcount * CC_HZ / (now - ca->lasttime);
	if (htcp_cong_time(ca) / ca->min_rtt <= 3) { /* just after a loss */
		ca->min_b = ca->max_b = ca->b = current;
	} else {
		ca->b = (3 * ca->b + current) / 4;
		if (ca->b > ca->max_b)
			ca->max_b = ca->b;
		if (ca->min_b > ca->max_b)
			ca->min_b = ca->max_b;
	}
	ca->packetcount = 0;
	ca->lasttime = now;
}

static inline void htcp_beta_update(struct htcp *ca)
{
	u32 max_b = ca->max_b, old_max_b = ca->old_max_b, min_rtt = ca->min_rtt, max_rtt = ca->max_rtt;

	ca->old_max_b = max_b;
	/* The rate changed by more than a fifth: back to halves. */
	if (!between(5 * max_b, 4 * old_max_b, 6 * old_max_b)) {
		ca->beta = HTCP_BETA_MIN;
		ca->modeswitch = 0;
	} else if (ca->modeswitch && min_rtt > cc_usecs_to_jiffies(10000) && max_rtt) {
		u8 beta = (min_rtt << 7) / max_rtt; /* eight bits, as the module's field */

		ca->beta = cc_min(cc_max(beta, HTCP_BETA_MIN), HTCP_BETA_MAX);
	} else {
		ca->beta = HTCP_BETA_MIN;
		ca->modeswitch = 1;
	}
}

static inline void htcp_alpha_update(struct htcp *ca)
{
	u32 hz = CC_HZ, min_rtt = ca->min_rtt, factor = 1, diff = htcp_cong_time(ca), alpha;

	if (diff > hz) {
		diff -= hz;
		factor = 1 + (10 * diff + ((diff / 2) * (diff / 2) / hz)) / hz;
	}
	if (min_rtt) {
		/* Round trips against 100 ms, between 0.5 and 10, << 3. */
		u32 scale = cc_min(cc_max((hz << 3) / (10 * min_rtt), 1U << 2), 10U << 3);

		factor = (factor << 3) / scale;
		if (!factor)
			factor = 1;
	}
	alpha = 2 * factor * ((1 << 7) - ca->beta);
	ca->alpha = alpha ? alpha : HTCP_ALPHA_BASE;
}

CC_OP u32 CC(htcp_ssthresh, struct sock *sk)
{
	struct htcp *ca = cc_ca(sk);
	u32 min_rtt = ca->min_rtt, max_rtt = ca->max_rtt;

	htcp_beta_update(ca);
	htcp_alpha_update(ca);
	/* The longest round trip fades, so that a new route is noticed. */
	if (min_rtt > 0 && max_rtt > min_rtt)
		ca->max_rtt = min_rtt + (max_rtt - min_rtt) * 95 / 100;

	return cc_max(tcp_sk(sk)->snd_cwnd * ca->beta >> 7, 2);
}

CC_OP void CC(htcp_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct htcp *ca = cc_ca(sk);

	if (!cc_limited(tp))
		return;
	if (cc_in_slow_start(tp)) {
		cc_slow_start(tp, acked);
		return;
	}
	if (tp->snd_cwnd_cnt * ca->alpha >> 7 >= tp->snd_cwnd) {
		if (tp->snd_cwnd < tp->snd_cwnd_clamp)
			tp->snd_cwnd = tp->snd_cwnd + 1;
		tp->snd_cwnd_cnt = 0;
		htcp_alpha_update(ca);
	} else {
		tp->snd_cwnd_cnt = tp->snd_cwnd_cnt + ca->pkts_acked;
	}
	ca->pkts_acked = 1;
}

CC_OP void CC(htcp_set_state, struct sock *sk, u8 new_state)
{
	struct htcp *ca = cc_ca(sk);

	switch (new_state) {
	case TCP_CA_Open:
		if (ca->undo_last_cong) {
			ca->last_cong = tcp_jiffies32;
			ca->undo_last_cong = 0;
		}
		break;
	case TCP_CA_CWR:
	case TCP_CA_Recovery:
	case TCP_CA_Loss:
		ca->undo_last_cong = ca->last_cong;
		ca->undo_max_rtt = ca->max_rtt;
		ca->undo_old_max_b = ca->old_max_b;
		ca->last_cong = tcp_jiffies32;
		break;
	}
}

CC_OP u32 CC(htcp_undo_cwnd, struct sock *sk)
{
	struct htcp *ca = cc_ca(sk);

	if (ca->undo_last_cong) {
		ca->last_cong = ca->undo_last_cong;
		ca->max_rtt = ca->undo_max_rtt;
		ca->old_max_b = ca->undo_old_max_b;
		ca->undo_last_cong = 0;
	}
	return cc_reno_undo_cwnd(tcp_sk(sk));
}

CC_OPS(htcp) = {
	.init = CC_FN(htcp_init),
	.ssthresh = CC_FN(htcp_ssthresh),
	.cong_avoid = CC_FN(htcp_cong_avoid),
	.set_state = CC_FN(htcp_set_state),
	.pkts_acked = CC_FN(htcp_pkts_acked),
	.undo_cwnd = CC_FN(htcp_undo_cwnd),
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "htcp",
};
CC_REGISTER(htcp);
