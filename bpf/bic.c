// SPDX-License-Identifier: GPL-2.0-only
/*
 * BIC TCP: after a loss the window is searched for between what was lost at and what was not, by halves, and beyond it
 * in growing steps.
 *
 *    Lisong Xu, Khaled Harfoush and Injong Rhee, "Binary Increase Congestion Control (BIC) for Fast Long-Distance
 *    Networks", INFOCOM 2004.
 *
 * Follows net/ipv4/tcp_bic.c of Linux 6.1 (Stephen Hemminger, GPL-2.0-only) step by step, with its default parameters.
 */
#include "cc.h"

#define BIC_B 4 /* the search goes to (max + min) / B */
#define BIC_MAX_INCREMENT 16
#define BIC_LOW_WINDOW 14 /* below it, like Reno */
#define BIC_BETA 819 /* of 1024 */
#define BIC_SMOOTH_PART 20 /* round trips from Wmax - B to Wmax */
#define BIC_ACK_RATIO_SHIFT 4

struct bic {
	u32 cnt; /* one packet more after so many acknowledged */
	u32 last_max_cwnd;
	u32 last_cwnd;
	u32 last_time;
	u32 delayed_ack; /* packets per acknowledgement, << 4 */
};
CC_PRIVATE(struct bic);

static inline void bic_reset(struct bic *ca)
{
	ca->cnt = 0;
	ca->last_max_cwnd = 0;
	ca->last_cwnd = 0;
	ca->last_time = 0;
	ca->delayed_ack = 2 << BIC_ACK_RATIO_SHIFT;
}

CC_OP void CC(bic_init, struct sock *sk)
{
	bic_reset(cc_ca(sk));
}

static inline u32 bic_count(const struct bic *ca, u32 cwnd)
{
	u32 last_max = ca->last_max_cwnd, cnt;

	if (cwnd < last_max) {
		u32 distance = (last_max - cwnd) / BIC_B;

		if (distance > BIC_MAX_INCREMENT) /* linear */
			cnt = cwnd / BIC_MAX_INCREMENT;
		else if (distance <= 1) /* near the end of the search */
			cnt = cwnd * BIC_SMOOTH_PART / BIC_B;
		else
			cnt = cwnd / distance;
	} else if (cwnd < last_max + BIC_B) {
		cnt = cwnd * BIC_SMOOTH_PART / BIC_B;
	} else if (cwnd < last_max + BIC_MAX_INCREMENT * (BIC_B - 1)) {
		cnt = cwnd * (BIC_B - 1) / (cwnd - last_max);
	} else {
		cnt = cwnd / BIC_MAX_INCREMENT;
	}

	/* Nothing was lost yet: at least 5 % a round trip. */
	if (last_max == 0)
		cnt = cc_min(cnt, 20);
	cnt = (cnt << BIC_ACK_RATIO_SHIFT) / ca->delayed_ack;
	return cc_max(cnt, 1);
}

static inline void bic_update(struct bic *ca, u32 cwnd)
{
	u32 now = tcp_jiffies32;

	if (ca->last_cwnd == cwnd && (s32)(now - ca->last_time) <= (s32)(CC_HZ / 32))
		return;
	ca->last_cwnd = cwnd;
	ca->last_time = now;
	ca->cnt = cwnd <= BIC_LOW_WINDOW ? cwnd : bic_count(ca, cwnd);
}

CC_OP void CC(bic_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct bic *ca = cc_ca(sk);

	if (!cc_limited(tp))
		return;
	if (cc_in_slow_start(tp)) {
		acked = cc_slow_start(tp, acked);
		if (!acked)
			return;
	}
	bic_update(ca, tp->snd_cwnd);
	cc_cong_avoid_ai(tp, ca->cnt, acked);
}

CC_OP u32 CC(bic_ssthresh, struct sock *sk)
{
	u32 cwnd = tcp_sk(sk)->snd_cwnd;
	struct bic *ca = cc_ca(sk);

	/* Lost below the last maximum: others want a share, so aim lower ("fast convergence"). */
	if (cwnd < ca->last_max_cwnd)
		ca->last_max_cwnd = cwnd * (1024 + BIC_BETA) / (2 * 1024);
	else
		ca->last_max_cwnd = cwnd;

	return cc_max(cwnd <= BIC_LOW_WINDOW ? cwnd >> 1 : cwnd * BIC_BETA / 1024, 2);
}

CC_OP void CC(bic_set_state, struct sock *sk, u8 new_state)
{
	if (new_state == TCP_CA_Loss)
		bic_reset(cc_ca(sk));
}

/* The ratio of packets to acknowledgements: 15/16 of the old, 1/16 of the new. */
CC_OP void CC(bic_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct bic *ca = cc_ca(sk);

	if (cc_ca_state(sk) == TCP_CA_Open)
		ca->delayed_ack += sample->pkts_acked - (ca->delayed_ack >> BIC_ACK_RATIO_SHIFT);
}

CC_OP u32 CC(bic_undo_cwnd, struct sock *sk)
{
	return cc_reno_undo_cwnd(tcp_sk(sk));
}

CC_OPS(bic) = {
	.init = CC_FN(bic_init),
	.ssthresh = CC_FN(bic_ssthresh),
	.cong_avoid = CC_FN(bic_cong_avoid),
	.set_state = CC_FN(bic_set_state),
	.pkts_acked = CC_FN(bic_pkts_acked),
	.undo_cwnd = CC_FN(bic_undo_cwnd),
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "bic",
};
CC_REGISTER(bic);
