// SPDX-License-Identifier: GPL-2.0-only
/*
 * TCP Hybla: a connection with a long round trip grows its window as one of 25 ms would.
 *
 *    Carlo Caini and Rosario Firrincieli, "TCP Hybla: a TCP Enhancement for Heterogeneous Networks", International
 *    Journal of Satellite Communications and Networking 22(5), September 2004.
 *
 * Follows net/ipv4/tcp_hybla.c of Linux 6.1 (Daniele Lacamera, GPL-2.0-only) step by step. The module lowers the
 * socket's snd_cwnd_clamp to 65535, which BPF may not write: here the window is kept below it instead.
 */
#include "cc.h"

#define HYBLA_RTT0 25000 /* us, the reference */
#define HYBLA_CLAMP 65535

struct hybla {
	u32 snd_cwnd_cents; /* growth of less than a packet, << 7 */
	u32 rho; /* round trip over the reference, at least 1 */
	u32 rho_3ls; /* rho << 3 */
	u32 rho2_7ls; /* rho * rho << 7 */
	u32 minrtt_us; /* smallest smoothed round trip, << 3 as in the socket */
	u8 enabled;
};
CC_PRIVATE(struct hybla);

static inline void hybla_recalc_param(const struct tcp_sock *tp, struct hybla *ca)
{
	u32 rho_3ls = cc_max(tp->srtt_us / HYBLA_RTT0, 8);

	ca->rho_3ls = rho_3ls;
	ca->rho = rho_3ls >> 3;
	ca->rho2_7ls = (rho_3ls * rho_3ls) << 1;
}

CC_OP void CC(hybla_init, struct sock *sk)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct hybla *ca = cc_ca(sk);

	ca->snd_cwnd_cents = 0;
	ca->enabled = 1;
	hybla_recalc_param(tp, ca);
	ca->minrtt_us = tp->srtt_us;
	tp->snd_cwnd = ca->rho;
}

CC_OP void CC(hybla_set_state, struct sock *sk, u8 new_state)
{
	struct hybla *ca = cc_ca(sk);

	ca->enabled = new_state == TCP_CA_Open;
}

/* 2^(eighths / 8) << 7. Not static: clang would put it where its BTF does not say it is. */
const u32 hybla_fractions[8] = { 128, 139, 152, 165, 181, 197, 215, 234 };

CC_OP void CC(hybla_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct hybla *ca = cc_ca(sk);
	u32 increment, cents, cwnd, slow_start, clamp = cc_min(tp->snd_cwnd_clamp, HYBLA_CLAMP);

	if (tp->srtt_us < ca->minrtt_us) {
		hybla_recalc_param(tp, ca);
		ca->minrtt_us = tp->srtt_us;
	}
	if (!cc_limited(tp))
		return;
	if (!ca->enabled) {
		cc_reno_cong_avoid(tp, acked);
		tp->snd_cwnd = cc_min(tp->snd_cwnd, clamp);
		return;
	}
	if (ca->rho == 0)
		hybla_recalc_param(tp, ca);

	slow_start = cc_in_slow_start(tp);
	if (slow_start) {
		/* 2^rho - 1, << 7: the whole part shifts, the eighths are looked up */
		increment = (1U << cc_min(ca->rho, 16)) * hybla_fractions[ca->rho_3ls & 7] - 128;
	} else {
		/* rho^2 / window, << 7 */
		increment = ca->rho2_7ls / tp->snd_cwnd;
		if (increment < 128)
			tp->snd_cwnd_cnt = tp->snd_cwnd_cnt + 1;
	}

	cents = ca->snd_cwnd_cents + increment % 128;
	cwnd = tp->snd_cwnd + (increment >> 7);
	if (cents >= 128) {
		cwnd += cents >> 7;
		cents &= 127;
		tp->snd_cwnd_cnt = 0;
	}
	ca->snd_cwnd_cents = cents;
	/* Nothing for a whole window: one packet. */
	if (increment == 0 && tp->snd_cwnd_cnt >= cwnd) {
		cwnd++;
		tp->snd_cwnd_cnt = 0;
	}
	if (slow_start)
		cwnd = cc_min(cwnd, tp->snd_ssthresh);
	tp->snd_cwnd = cc_min(cwnd, clamp);
}

CC_OP u32 CC(hybla_ssthresh, struct sock *sk)
{
	return cc_reno_ssthresh(tcp_sk(sk));
}

CC_OP u32 CC(hybla_undo_cwnd, struct sock *sk)
{
	return cc_reno_undo_cwnd(tcp_sk(sk));
}

CC_OPS(hybla) = {
	.init = CC_FN(hybla_init),
	.ssthresh = CC_FN(hybla_ssthresh),
	.cong_avoid = CC_FN(hybla_cong_avoid),
	.set_state = CC_FN(hybla_set_state),
	.undo_cwnd = CC_FN(hybla_undo_cwnd),
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "hybla",
};
CC_REGISTER(hybla);
