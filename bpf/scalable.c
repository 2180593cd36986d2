// SPDX-License-Identifier: GPL-2.0-only
/*
 * Scalable TCP: one packet more for every hundred acknowledged, an eighth less after a loss, so that recovering takes
 * the same number of round trips at any window.
 *
 *    Tom Kelly, "Scalable TCP: Improving Performance in Highspeed Wide Area Networks", ACM Computer Communication Review
 *    33(2), April 2003.
 *
 * Follows net/ipv4/tcp_scalable.c of Linux 6.1 (John Heffner, GPL-2.0-only) step by step.
 */
#include "cc.h"

#define SCALABLE_AI_CNT 100 /* the paper's a = 0.01 */
#define SCALABLE_MD_SHIFT 3 /* the paper's b = 1/8 */

CC_OP void CC(scalable_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	struct tcp_sock *tp = tcp_sk(sk);

	if (!cc_limited(tp))
		return;
	if (cc_in_slow_start(tp)) {
		acked = cc_slow_start(tp, acked);
		if (!acked)
			return;
	}
	cc_cong_avoid_ai(tp, cc_min(tp->snd_cwnd, SCALABLE_AI_CNT), acked);
}

CC_OP u32 CC(scalable_ssthresh, struct sock *sk)
{
	u32 cwnd = tcp_sk(sk)->snd_cwnd;

	return cc_max(cwnd - (cwnd >> SCALABLE_MD_SHIFT), 2);
}

CC_OP u32 CC(scalable_undo_cwnd, struct sock *sk)
{
	return cc_reno_undo_cwnd(tcp_sk(sk));
}

CC_OPS(scalable) = {
	.ssthresh = CC_FN(scalable_ssthresh),
	.cong_avoid = CC_FN(scalable_cong_avoid),
	.undo_cwnd = CC_FN(scalable_undo_cwnd),
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "scalable",
};
CC_REGISTER(scalable);
