// SPDX-License-Identifier: GPL-2.0-only
/*
 * Thalweg's own: the window follows the builder's credit.
 *
 * A source writes into its socket only what the builder has asked for, and the builder asks for no more at a time, of
 * all sources together, than its link and the switch port in front of it hold. So what is written and not yet
 * acknowledged is the credit, and a window that covers it never holds the sender back: the packets that are out, which
 * are not all full, and as many as what is not sent yet takes. The window does not fall after a
 * loss: the builder hears of losses and asks for less. It is not fair to other senders, and for a program that writes
 * as fast as its socket takes it, it is no congestion control at all: use it on a source's connection to its builder and
 * nowhere else.
 *
 * After a timeout, when nothing came back for a whole retransmission time, the path may really be gone: the window
 * starts again from what the kernel set (one packet) and grows by what is delivered, until it covers the credit again.
 */
#include "cc.h"

/* Ten (RFC 6928) beyond the credit. */
#define THALWEG_BEYOND 10

struct thalweg {
	u32 delivered; /* packets, when the window last grew after a timeout */
	u8 restarting; /* after a timeout, the window does not yet cover the credit */
};
CC_PRIVATE(struct thalweg);

static inline void thalweg_follow(struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct thalweg *ca = cc_ca(sk);
	u32 mss = cc_max(tp->mss_cache, 1), unsent = tp->write_seq - tp->snd_nxt;
	u32 cwnd = THALWEG_BEYOND + tp->packets_out + (unsent + mss - 1) / mss;

	if (ca->restarting) {
		u32 grown = tp->snd_cwnd + (tp->delivered - ca->delivered);

		ca->delivered = tp->delivered;
		ca->restarting = grown < cwnd;
		cwnd = cc_min(cwnd, grown);
	}
	tp->snd_cwnd = cc_min(cwnd, tp->snd_cwnd_clamp);
}

CC_OP void CC(thalweg_init, struct sock *sk)
{
	struct thalweg *ca = cc_ca(sk);

	ca->restarting = 0;
}

/*
 * After each acknowledgement. That there is a cong_control at all keeps the kernel from reducing the window itself: after
 * losses (PRR) and after idle times.
 */
CC_CONG_CONTROL(thalweg_cong_control)
{
	thalweg_follow(sk);
}

/* Asked whenever the kernel is about to send: also when the credit has grown and nothing has been acknowledged. */
CC_OP u32 CC(thalweg_min_tso_segs, struct sock *sk)
{
	thalweg_follow(sk);
	return 2; /* the kernel's own answer */
}

CC_OP void CC(thalweg_set_state, struct sock *sk, u8 new_state)
{
	struct thalweg *ca = cc_ca(sk);

	if (new_state == TCP_CA_Loss) {
		ca->restarting = 1;
		ca->delivered = tcp_sk(sk)->delivered;
	}
}

CC_OP u32 CC(thalweg_ssthresh, struct sock *sk)
{
	return TCP_INFINITE_SSTHRESH;
}

/* The timeout was a mistake: the window of before covers the credit of before. */
CC_OP u32 CC(thalweg_undo_cwnd, struct sock *sk)
{
	return cc_reno_undo_cwnd(tcp_sk(sk));
}

CC_OPS(thalweg) = {
	.init = CC_FN(thalweg_init),
	.ssthresh = CC_FN(thalweg_ssthresh),
	.set_state = CC_FN(thalweg_set_state),
	.min_tso_segs = CC_FN(thalweg_min_tso_segs),
	.cong_control = CC_FN(thalweg_cong_control),
	.undo_cwnd = CC_FN(thalweg_undo_cwnd),
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "thalweg",
};
CC_REGISTER(thalweg);
