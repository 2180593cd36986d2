// SPDX-License-Identifier: GPL-2.0-only
/*
 * TCP Westwood+: Reno, but after a loss the window is what the acknowledgements' rate and the smallest round trip say
 * the path holds, instead of half.
 *
 *    Saverio Mascolo, Claudio Casetti, Mario Gerla et al., "TCP Westwood: Bandwidth Estimation for Enhanced Transport
 *    over Wireless Links", MobiCom 2001.
 *    Luigi A. Grieco and Saverio Mascolo, "Performance Evaluation and Comparison of Westwood+, New Reno, and Vegas TCP
 *    Congestion Control", ACM Computer Communication Review 34(2), 2004.
 *
 * Follows net/ipv4/tcp_westwood.c of Linux 6.1 (Stephen Hemminger, Angelo Dell'Aera, GPL-2.0-only) step by step. Times
 * are in ticks, as there: a round trip shorter than a tick counts as one, so in a local network the estimate is of the
 * order of a tick's worth of data.
 */
#include "cc.h"

#define WESTWOOD_RTT_MIN (CC_HZ / 20) /* no shorter window for an estimate: 50 ms */
#define WESTWOOD_INIT_RTT (20 * CC_HZ)

struct westwood {
	u32 bw_ns_est; /* bytes a tick, smoothed once */
	u32 bw_est; /* smoothed twice */
	u32 rtt_win_sx; /* the window for an estimate began */
	u32 bk; /* bytes acknowledged in it */
	u32 snd_una;
	u32 accounted; /* bytes counted for duplicate acknowledgements already */
	u32 rtt;
	u32 rtt_min;
	u8 first_ack;
	u8 reset_rtt_min;
};
CC_PRIVATE(struct westwood);

CC_OP void CC(westwood_init, struct sock *sk)
{
	struct westwood *w = cc_ca(sk);

	w->bk = 0;
	w->bw_ns_est = 0;
	w->bw_est = 0;
	w->accounted = 0;
	w->reset_rtt_min = 1;
	w->rtt_min = w->rtt = WESTWOOD_INIT_RTT;
	w->rtt_win_sx = tcp_jiffies32;
	w->snd_una = tcp_sk(sk)->snd_una;
	w->first_ack = 1;
}

CC_OP void CC(westwood_pkts_acked, struct sock *sk, const struct ack_sample *sample)
{
	struct westwood *w = cc_ca(sk);

	if (sample->rtt_us > 0)
		w->rtt = cc_usecs_to_jiffies(sample->rtt_us);
}

static inline void westwood_filter(struct westwood *w, u32 delta)
{
	u32 rate = w->bk / delta;

	if (w->bw_ns_est == 0 && w->bw_est == 0) {
		w->bw_ns_est = rate;
		w->bw_est = rate;
	} else {
		w->bw_ns_est = (7 * w->bw_ns_est + rate) >> 3;
		w->bw_est = (7 * w->bw_est + w->bw_ns_est) >> 3;
	}
}

static inline void westwood_update_window(struct westwood *w, u32 snd_una)
{
	u32 now = tcp_jiffies32, delta = now - w->rtt_win_sx;

	if (w->first_ack) {
		w->snd_una = snd_una;
		w->first_ack = 0;
	}
	if (w->rtt && delta > cc_max(w->rtt, WESTWOOD_RTT_MIN)) {
		westwood_filter(w, delta);
		w->bk = 0;
		w->rtt_win_sx = now;
	}
}

/* Bytes this acknowledgement stands for, where some of them may be duplicates or cover what duplicates stood for. */
static inline u32 westwood_acked_count(const struct tcp_sock *tp, struct westwood *w)
{
	u32 mss = tp->mss_cache, count = tp->snd_una - w->snd_una;

	if (!count) {
		w->accounted += mss;
		count = mss;
	}
	if (count > mss) {
		if (w->accounted >= count) {
			w->accounted -= count;
			count = mss;
		} else {
			count -= w->accounted;
			w->accounted = 0;
		}
	}
	return count;
}

CC_OP void CC(westwood_in_ack_event, struct sock *sk, u32 flags)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	struct westwood *w = cc_ca(sk);

	westwood_update_window(w, tp->snd_una);
	w->bk += flags & CA_ACK_SLOWPATH ? westwood_acked_count(tp, w) : tp->snd_una - w->snd_una;
	w->snd_una = tp->snd_una;
	if (w->reset_rtt_min) {
		w->rtt_min = w->rtt;
		w->reset_rtt_min = 0;
	} else {
		w->rtt_min = cc_min(w->rtt, w->rtt_min);
	}
}

/* What the path holds, in packets: rate times smallest round trip. */
static inline u32 westwood_bw_rttmin(const struct tcp_sock *tp, const struct westwood *w)
{
	return cc_max(w->bw_est * w->rtt_min / cc_max(tp->mss_cache, 1), 2);
}

CC_OP void CC(westwood_cwnd_event, struct sock *sk, enum tcp_ca_event event)
{
	struct tcp_sock *tp = tcp_sk(sk);
	struct westwood *w = cc_ca(sk);

	if (event == CA_EVENT_COMPLETE_CWR) {
		tp->snd_ssthresh = westwood_bw_rttmin(tp, w);
		tp->snd_cwnd = tp->snd_ssthresh;
	} else if (event == CA_EVENT_LOSS) {
		tp->snd_ssthresh = westwood_bw_rttmin(tp, w);
		w->reset_rtt_min = 1;
	}
}

CC_OP u32 CC(westwood_ssthresh, struct sock *sk)
{
	return cc_reno_ssthresh(tcp_sk(sk));
}

CC_OP void CC(westwood_cong_avoid, struct sock *sk, u32 ack, u32 acked)
{
	cc_reno_cong_avoid(tcp_sk(sk), acked);
}

CC_OP u32 CC(westwood_undo_cwnd, struct sock *sk)
{
	return cc_reno_undo_cwnd(tcp_sk(sk));
}

CC_OPS(westwood) = {
	.init = CC_FN(westwood_init),
	.ssthresh = CC_FN(westwood_ssthresh),
	.cong_avoid = CC_FN(westwood_cong_avoid),
	.cwnd_event = CC_FN(westwood_cwnd_event),
	.in_ack_event = CC_FN(westwood_in_ack_event),
	.pkts_acked = CC_FN(westwood_pkts_acked),
	.undo_cwnd = CC_FN(westwood_undo_cwnd),
	.flags = TCP_CONG_NON_RESTRICTED,
	.name = "westwood",
};
CC_REGISTER(westwood);
