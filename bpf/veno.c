// SPDX-License-Identifier: GPL-2.0-only
/*
 * TCP Veno: Reno that looks, as Vegas does, whether packets wait in queues. Few waiting: a loss is the link's fault, the
 * window falls by a fifth only. Many: it falls by half, and grew at half the pace.
 *
 *    Cheng Peng Fu and Soung C. Liew, "TCP Veno: TCP Enhancement for Transmission over Wireless Access Networks", IEEE
 *    Journal on Selected Areas in Communications 21(2), February 2003.
 *
 * Follows net/ipv4/tcp_veno.c of Linux 6.1 (Bin Zhou, Cheng Peng Fu, GPL-2.0-only) step by step.
 */
#include "cc.h"

#define VENO_SHIFT 1 /* packets in queues are counted in halves */
#define VENO_BETA (3 << VENO_SHIFT)
#define VENO_NO_RTT 0x7fffffff

struct veno {
	u32 min_rtt; /* us, since the last acknowledgement that counted, plus one */
	u32 base_rtt; /* us, of all, plus one */
	u32 diff; /* packets in queues */
	u16 samples;
	u8 doing_now;
	u8 inc; /* grow this time: every other in the congestive state */
};
CC_PRIVATE(struct veno);

static inline void veno_start(struct veno *veno)
{
	veno->base_rtt = VENO_NO_RTT;
	veno->inc = 1;
	veno->doing_now = 1;
	veno->min_rtt = VENO_NO_RTT;
}

CC_OP void CC(veno_init, struct sock *sk)
{
	veno_start(cc_ca(sk));
}

CC_OP void CC(veno_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct veno *veno = cc_ca(sk);
	u32 rtt;

	if (sample->rtt_us < 0)
		return;
	rtt = sample->rtt_us + 1;
	veno->base_rtt = cc_min(veno->base_rtt, rtt);
	veno->min_rtt = cc_min(veno->min_rtt, rtt);
	veno->samples++;
}

CC_OP void CC(veno_set_state, struct sock *sk, u8 new_state)
{
	struct veno *veno = cc_ca(sk);

	if (new_state == TCP_CA_Open) {
		veno->doing_now = 1;
		veno->min_rtt = VENO_NO_RTT;
	} else {
		veno->doing_now = 0;
	}
}

/* After an idle time the round trips known are stale. */
CC_OP void CC(veno_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	if (event == CA_EVENT_CWND_RESTART || event == CA_EVENT_TX_START)
		veno_start(cc_ca(sk));
}

static inline void veno_adjust(struct tcp_sock *tp, struct veno *veno, u32 acked)
{
	u32 cwnd = tp->snd_cwnd;

	veno->diff = (cwnd << VENO_SHIFT) - (u32)cc_div64((u64)cwnd * veno->base_rtt << VENO_SHIFT, veno->min_rtt);

	if (cc_in_slow_start(tp)) {
		acked = cc_slow_start(tp, acked);
		if (!acked)
			return;
	}
	if (veno->diff < VENO_BETA) {
		cc_cong_avoid_ai(tp, tp->snd_cwnd, acked);
	} else if (tp->snd_cwnd_cnt >= tp->snd_cwnd) {
		if (veno->inc && tp->snd_cwnd < tp->snd_cwnd_clamp) {
			tp->snd_cwnd = tp->snd_cwnd + 1;
			veno->inc = 0;
		} else {
			veno->inc = 1;
		}
		tp->snd_cwnd_cnt = 0;
	} else {
		tp->snd_cwnd_cnt = tp->snd_cwnd_cnt + acked;
	}
}

CC_OP void CC(veno_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct veno *veno = cc_ca(sk);

	if (!veno->doing_now) {
		cc_reno_cong_avoid(tp, acked);
		return;
	}
	if (!cc_limited(tp))
		return;
	if (veno->samples <= 2) {
		cc_reno_cong_avoid(tp, acked);
	} else {
		veno_adjust(tp, veno, acked);
		tp->snd_cwnd = tp->snd_cwnd < 2 ? 2 : cc_min(tp->snd_cwnd, tp->snd_cwnd_clamp);
	}
	veno->min_rtt = VENO_NO_RTT;
}

CC_OP u32 CC(veno_ssthresh, struct sock *sk)
{
	const struct veno *veno = cc_ca(sk);
	u32 cwnd = tcp_sk(sk)->snd_cwnd;

	return cc_max(veno->diff < VENO_BETA ? cwnd * 4 / 5 : cwnd >> 1, 2);
}

CC_OP u32 CC(veno_undo_cwnd, struct sock *sk)
{
	return cc_reno_undo_cwnd(tcp_sk(sk));
}

CC_OPS(veno) = {
	.init = CC_FN(veno_init),
	.ssthresh = CC_FN(veno_ssthresh),
	.cong_avoid = CC_FN(veno_cong_avoid),
	.set_state = CC_FN(veno_set_state),
	.cwnd_event = CC_FN(veno_cwnd_event),
	.pkts_acked = CC_FN(veno_pkts_acked),
	.undo_cwnd = CC_FN(veno_undo_cwnd),
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "veno",
};
CC_REGISTER(veno);
