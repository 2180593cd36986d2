// SPDX-License-Identifier: GPL-2.0-only
/*
 * TCP Vegas: the window grows and shrinks by one packet a round trip so that between two and four packets wait in
 * queues, as the round-trip times tell.
 *
 *    Lawrence S. Brakmo and Larry L. Peterson, "TCP Vegas: End to End Congestion Avoidance on a Global Internet", IEEE
 *    Journal on Selected Areas in Communications 13(8):1465-1480, October 1995.
 *
 * Follows net/ipv4/tcp_vegas.c of Linux 6.1 (Stephen Hemminger, GPL-2.0-only) step by step. What the paper does
 * otherwise: the window grows every round trip in slow start, not every other; the rate is that of the acknowledgements
 * (their smallest round trip of the last window), not of the sending.
 */
#include "cc.h"

/* Packets in queues: fewer than VEGAS_ALPHA, grow; more than VEGAS_BETA, shrink; more than VEGAS_GAMMA, leave slow start. */
#define VEGAS_ALPHA 2
#define VEGAS_BETA 4
#define VEGAS_GAMMA 1
#define VEGAS_NO_RTT 0x7fffffff

struct vegas {
	u32 beg_snd_nxt; /* the round trip ends when this is acknowledged */
	u32 min_rtt; /* us, of this round trip, plus one: never zero */
	u32 base_rtt; /* us, of all, plus one */
	u16 samples; /* in min_rtt */
	u8 doing_now;
};
CC_PRIVATE(struct vegas);

static inline void vegas_enable(const struct tcp_sock *tp, struct vegas *vegas)
{
	vegas->doing_now = 1;
	vegas->beg_snd_nxt = tp->snd_nxt;
	vegas->samples = 0;
	vegas->min_rtt = VEGAS_NO_RTT;
}

CC_OP void CC(vegas_init, struct sock *sk)
{
	struct vegas *vegas = cc_ca(sk);

	vegas->base_rtt = VEGAS_NO_RTT;
	vegas_enable(tcp_sk(sk), vegas);
}

CC_OP void CC(vegas_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct vegas *vegas = cc_ca(sk);
	u32 rtt;

	if (sample->rtt_us < 0)
		return;
	rtt = sample->rtt_us + 1;
	vegas->base_rtt = cc_min(vegas->base_rtt, rtt);
	vegas->min_rtt = cc_min(vegas->min_rtt, rtt);
	vegas->samples++;
}

CC_OP void CC(vegas_set_state, struct sock *sk, u8 new_state)
{
	struct vegas *vegas = cc_ca(sk);

	if (new_state == TCP_CA_Open)
		vegas_enable(tcp_sk(sk), vegas);
	else
		vegas->doing_now = 0;
}

/* After an idle time the round trips known are stale. */
CC_OP void CC(vegas_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	struct vegas *vegas = cc_ca(sk);

	if (event == CA_EVENT_CWND_RESTART || event == CA_EVENT_TX_START) {
		vegas->base_rtt = VEGAS_NO_RTT;
		vegas_enable(tcp_sk(sk), vegas);
	}
}

/* Once a round trip, with at least three samples: one of them was not of a delayed acknowledgement. */
static inline void vegas_adjust(struct sock *sk, u32 acked)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct vegas *vegas = cc_ca(sk);
	u32 rtt = vegas->min_rtt, cwnd = tp->snd_cwnd, state = cc_ca_state(sk);
	u32 target = cc_div64((u64)cwnd * vegas->base_rtt, rtt);
	u32 diff = cwnd * (rtt - vegas->base_rtt) / vegas->base_rtt;

	if (cc_in_slow_start(tp)) {
		if (diff > VEGAS_GAMMA) {
			/* Too fast: take the rate that arrived. Plus one for what the division cut off. */
			tp->snd_cwnd = cc_min(cwnd, target + 1);
			tp->snd_ssthresh = cc_min(tp->snd_ssthresh, tp->snd_cwnd);
		} else {
			cc_slow_start(tp, acked);
		}
	} else if (diff > VEGAS_BETA) {
		tp->snd_cwnd = cwnd - 1;
		tp->snd_ssthresh = cc_min(tp->snd_ssthresh, tp->snd_cwnd);
	} else if (diff < VEGAS_ALPHA) {
		tp->snd_cwnd = cwnd + 1;
	}

	tp->snd_cwnd = tp->snd_cwnd < 2 ? 2 : cc_min(tp->snd_cwnd, tp->snd_cwnd_clamp);
	/* The kernel's tcp_current_ssthresh(). */
	if (state != TCP_CA_CWR && state != TCP_CA_Recovery)
		tp->snd_ssthresh = cc_max(tp->snd_ssthresh, (tp->snd_cwnd >> 1) + (tp->snd_cwnd >> 2));
}

CC_OP void CC(vegas_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct vegas *vegas = cc_ca(sk);

	if (!vegas->doing_now) {
		cc_reno_cong_avoid(tp, acked);
	} else if (after(ack, vegas->beg_snd_nxt)) {
		vegas->beg_snd_nxt = tp->snd_nxt;
		if (vegas->samples <= 2)
			cc_reno_cong_avoid(tp, acked);
		else
			vegas_adjust(sk, acked);
		vegas->samples = 0;
		vegas->min_rtt = VEGAS_NO_RTT;
	} else if (cc_in_slow_start(tp)) {
		cc_slow_start(tp, acked);
	}
}

CC_OP u32 CC(vegas_ssthresh, struct sock *sk)
{
	return cc_reno_ssthresh(tcp_sk(sk));
}

CC_OP u32 CC(vegas_undo_cwnd, struct sock *sk)
{
	return cc_reno_undo_cwnd(tcp_sk(sk));
}

CC_OPS(vegas) = {
	.init = CC_FN(vegas_init),
	.ssthresh = CC_FN(vegas_ssthresh),
	.cong_avoid = CC_FN(vegas_cong_avoid),
	.set_state = CC_FN(vegas_set_state),
	.cwnd_event = CC_FN(vegas_cwnd_event),
	.pkts_acked = CC_FN(vegas_pkts_acked),
	.undo_cwnd = CC_FN(vegas_undo_cwnd),
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "vegas",
};
CC_REGISTER(vegas);
