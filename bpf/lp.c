// SPDX-License-Identifier: GPL-2.0-only
/*
 * TCP-LP, low priority: takes what others leave. It yields when one-way delays, from TCP's time stamps, say that queues
 * begin to form.
 *
 *    Aleksandar Kuzmanovic and Edward W. Knightly, "TCP-LP: Low-Priority Service via End-Point Congestion Control",
 *    IEEE/ACM Transactions on Networking 14(4), August 2006.
 *
 * Follows net/ipv4/tcp_lp.c of Linux 6.1 (Wong Hoi Sing, Hung Hing Lun, GPL-2.0-only) step by step, its unsigned
 * arithmetic included. Needs time stamps (net.ipv4.tcp_timestamps=1) in milliseconds, which they are unless a route asks
 * for microseconds (Linux 6.7).
 */
#include "cc.h"

#define LP_HZ 1000 /* of time stamps, and the resolution of a one-way delay */

#define LP_VALID_RHZ (1 << 0) /* remote_hz */
#define LP_VALID_OWD (1 << 1) /* a one-way delay */
#define LP_WITHIN_THR (1 << 3) /* the delay is small */
#define LP_WITHIN_INF (1 << 4) /* just after yielding */

struct lp {
	u32 flag;
	u32 sowd; /* smoothed one-way delay, << 3 */
	u32 owd_min;
	u32 owd_max;
	u32 owd_max_rsv; /* the largest, kept back one turn */
	u32 remote_hz; /* of the peer's time stamps */
	u32 remote_ref_time;
	u32 local_ref_time;
	u32 last_drop; /* the window was cut */
	u32 inference; /* ms after a cut in which a second one means "leave" */
};
CC_PRIVATE(struct lp);

CC_OP void CC(lp_init, struct sock *sk)
{
	struct lp *lp = cc_ca(sk);

	*lp = (struct lp){ .owd_min = 0xffffffff };
}

CC_OP void CC(lp_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	const struct lp *lp = cc_ca(sk);

	if (!(lp->flag & LP_WITHIN_INF))
		cc_reno_cong_avoid(tcp_sk(sk), acked);
}

static inline u32 lp_remote_hz(const struct tcp_sock *tp, struct lp *lp)
{
	u32 remote = tp->rx_opt.rcv_tsval, local = tp->rx_opt.rcv_tsecr;
	s64 hz = lp->remote_hz << 6;

	if (lp->remote_ref_time && lp->local_ref_time && remote != lp->remote_ref_time && local != lp->local_ref_time) {
		s64 sample = LP_HZ * (remote - lp->remote_ref_time) / (local - lp->local_ref_time);

		/* 63/64 of the old, 1/64 of the new. */
		hz = hz > 0 ? hz + sample - (hz >> 6) : sample << 6;
	}
	if (hz >> 6 > 0)
		lp->flag |= LP_VALID_RHZ;
	else
		lp->flag &= ~LP_VALID_RHZ;
	lp->remote_ref_time = remote;
	lp->local_ref_time = local;
	return hz >> 6;
}

/* Relative: the clocks' difference is in it. */
static inline u32 lp_one_way_delay(const struct tcp_sock *tp, struct lp *lp)
{
	u32 owd = 0;

	lp->remote_hz = lp_remote_hz(tp, lp);
	if (lp->flag & LP_VALID_RHZ)
		owd = tp->rx_opt.rcv_tsval * (LP_HZ / lp->remote_hz) - tp->rx_opt.rcv_tsecr;
	if (owd > 0)
		lp->flag |= LP_VALID_OWD;
	else
		lp->flag &= ~LP_VALID_OWD;
	return owd;
}

static inline void lp_sample(const struct tcp_sock *tp, struct lp *lp)
{
	u32 owd = lp_one_way_delay(tp, lp);

	if (!(lp->flag & LP_VALID_RHZ) || !(lp->flag & LP_VALID_OWD))
		return;

	lp->owd_min = cc_min(lp->owd_min, owd);
	if (owd > lp->owd_max) {
		if (owd > lp->owd_max_rsv) {
			lp->owd_max = lp->owd_max_rsv == 0 ? owd : lp->owd_max_rsv;
			lp->owd_max_rsv = owd;
		} else {
			lp->owd_max = owd;
		}
	}
	/* 7/8 of the old, 1/8 of the new. */
	lp->sowd = lp->sowd != 0 ? lp->sowd + owd - (lp->sowd >> 3) : owd << 3;
}

CC_OP void CC(lp_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct lp *lp = cc_ca(sk);
	u32 now = cc_div64(tp->tcp_mstamp, 1000000 / LP_HZ), delta;

	if (sample->rtt_us > 0)
		lp_sample(tp, lp);

	delta = now - tp->rx_opt.rcv_tsecr;
	if ((s32)delta > 0)
		lp->inference = 3 * delta;
	if (lp->last_drop && now - lp->last_drop < lp->inference)
		lp->flag |= LP_WITHIN_INF;
	else
		lp->flag &= ~LP_WITHIN_INF;

	if (lp->sowd >> 3 < lp->owd_min + 15 * (lp->owd_max - lp->owd_min) / 100) {
		lp->flag |= LP_WITHIN_THR;
		return;
	}
	lp->flag &= ~LP_WITHIN_THR;

	/* Queues form: look anew from here, and yield. */
	lp->owd_min = lp->sowd >> 3;
	lp->owd_max = lp->sowd >> 2;
	lp->owd_max_rsv = lp->sowd >> 2;
	tp->snd_cwnd = lp->flag & LP_WITHIN_INF ? 1 : cc_max(tp->snd_cwnd >> 1, 1);
	lp->last_drop = now;
}

CC_OP u32 CC(lp_ssthresh, struct sock *sk)
{
	return cc_reno_ssthresh(tcp_sk(sk));
}

CC_OP u32 CC(lp_undo_cwnd, struct sock *sk)
{
	return cc_reno_undo_cwnd(tcp_sk(sk));
}

CC_OPS(lp) = {
	.init = CC_FN(lp_init),
	.ssthresh = CC_FN(lp_ssthresh),
	.cong_avoid = CC_FN(lp_cong_avoid),
	.pkts_acked = CC_FN(lp_pkts_acked),
	.undo_cwnd = CC_FN(lp_undo_cwnd),
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "lp",
};
CC_REGISTER(lp);
