// SPDX-License-Identifier: GPL-2.0-only
/*
 * HighSpeed TCP: the larger the window, the more it grows a round trip and the less it falls after a loss.
 *
 *    Sally Floyd, RFC 3649, "HighSpeed TCP for Large Congestion Windows", December 2003.
 *
 * Follows net/ipv4/tcp_highspeed.c of Linux 6.1 (John Heffner, GPL-2.0-only) step by step. The module lowers the
 * socket's snd_cwnd_clamp, which BPF may not write, to 2^32 / 128: here the window is kept below it instead.
 */
#include "cc.h"

/* RFC 3649, appendix B: up to window w the window grows by the row's number a round trip and falls by md / 256. */
static const struct {
	u32 w, md;
} highspeed_table[] = {
	{ 38, 128 }, { 118, 112 }, { 221, 104 }, { 347, 98 }, { 495, 93 }, { 663, 89 }, { 851, 86 }, { 1058, 83 },
	{ 1284, 81 }, { 1529, 78 }, { 1793, 76 }, { 2076, 74 }, { 2378, 72 }, { 2699, 71 }, { 3039, 69 },
	{ 3399, 68 }, { 3778, 66 }, { 4177, 65 }, { 4596, 64 }, { 5036, 62 }, { 5497, 61 }, { 5979, 60 },
	{ 6483, 59 }, { 7009, 58 }, { 7558, 57 }, { 8130, 56 }, { 8726, 55 }, { 9346, 54 }, { 9991, 53 },
	{ 10661, 52 }, { 11358, 52 }, { 12082, 51 }, { 12834, 50 }, { 13614, 49 }, { 14424, 48 }, { 15265, 48 },
	{ 16137, 47 }, { 17042, 46 }, { 17981, 45 }, { 18955, 45 }, { 19965, 44 }, { 21013, 43 }, { 22101, 43 },
	{ 23230, 42 }, { 24402, 41 }, { 25618, 41 }, { 26881, 40 }, { 28193, 39 }, { 29557, 39 }, { 30975, 38 },
	{ 32450, 38 }, { 33986, 37 }, { 35586, 36 }, { 37253, 36 }, { 38992, 35 }, { 40808, 35 }, { 42707, 34 },
	{ 44694, 33 }, { 46776, 33 }, { 48961, 32 }, { 51258, 32 }, { 53677, 31 }, { 56230, 30 }, { 58932, 30 },
	{ 61799, 29 }, { 64851, 28 }, { 68113, 28 }, { 71617, 27 }, { 75401, 26 }, { 79517, 26 }, { 84035, 25 },
	{ 89053, 24 },
};

#define HIGHSPEED_ROWS (sizeof(highspeed_table) / sizeof(highspeed_table[0]))
#define HIGHSPEED_CLAMP (0xffffffffU / 128)

struct highspeed {
	u32 row; /* the kernel module walks there from the row before: the same row */
};
CC_PRIVATE(struct highspeed);

CC_OP void CC(highspeed_init, struct sock *sk)
{
	struct highspeed *ca = cc_ca(sk);

	ca->row = 0;
}

/* The first row whose window is not smaller than `cwnd`, or the last. */
static inline u32 highspeed_row(u32 cwnd)
{
	u32 row = 0;

	for (u32 step = 64; step > 0; step /= 2)
		if (row + step < HIGHSPEED_ROWS && highspeed_table[row + step - 1].w < cwnd)
			row += step;
	return row;
}

CC_OP void CC(highspeed_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct highspeed *ca = cc_ca(sk);
	u32 clamp = cc_min(tp->snd_cwnd_clamp, HIGHSPEED_CLAMP);

	if (!cc_limited(tp))
		return;
	if (cc_in_slow_start(tp)) {
		cc_slow_start(tp, acked);
		tp->snd_cwnd = cc_min(tp->snd_cwnd, clamp);
		return;
	}

	ca->row = highspeed_row(tp->snd_cwnd);
	if (tp->snd_cwnd < clamp) {
		u32 count = tp->snd_cwnd_cnt + ca->row + 1;

		if (count >= tp->snd_cwnd) {
			count -= tp->snd_cwnd;
			tp->snd_cwnd = tp->snd_cwnd + 1;
		}
		tp->snd_cwnd_cnt = count;
	}
}

CC_OP u32 CC(highspeed_ssthresh, struct sock *sk)
{
	const struct highspeed *ca = cc_ca(sk);
	u32 cwnd = tcp_sk(sk)->snd_cwnd, row = ca->row;

	if (row >= HIGHSPEED_ROWS)
		row = HIGHSPEED_ROWS - 1;
	return cc_max(cwnd - (cwnd * highspeed_table[row].md >> 8), 2);
}

CC_OP u32 CC(highspeed_undo_cwnd, struct sock *sk)
{
	return cc_reno_undo_cwnd(tcp_sk(sk));
}

CC_OPS(highspeed) = {
	.init = CC_FN(highspeed_init),
	.ssthresh = CC_FN(highspeed_ssthresh),
	.cong_avoid = CC_FN(highspeed_cong_avoid),
	.undo_cwnd = CC_FN(highspeed_undo_cwnd),
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "highspeed",
};
CC_REGISTER(highspeed);
