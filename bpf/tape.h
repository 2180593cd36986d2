/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The tape: every call the kernel makes of a congestion control, with what the control could see of the socket before
 * it, and the window after it. Written by kernel/modules/tcp_tape.c of the laboratory, read by replay.c. Text, one line
 * a call:
 *
 *   control socket call argument argument TAPE_FIELDS... > snd_cwnd snd_cwnd_cnt snd_ssthresh answer
 *
 * after one line "tape 1 hz HZ lost LINES".
 */
#ifndef THALWEG_TAPE_H
#define THALWEG_TAPE_H

/* What is seen of the socket, all read as u32. */
#define TAPE_FIELDS(F)                                                                                                 \
	F(jiffies) F(mstamp_low) F(mstamp_high) F(ca_state) F(is_cwnd_limited) F(snd_cwnd) F(snd_cwnd_cnt)             \
	F(snd_ssthresh) F(snd_cwnd_clamp) F(prior_cwnd) F(packets_out) F(max_packets_out) F(delivered) F(srtt_us)      \
	F(mss_cache) F(snd_una) F(snd_nxt) F(write_seq) F(rcv_tsval) F(rcv_tsecr)

/* The calls. Arguments: pkts_acked has packets and rtt_us, cong_avoid ack and acked, the others what they are given. */
#define TAPE_CALLS(C)                                                                                                  \
	C(init) C(ssthresh) C(cong_avoid) C(set_state) C(cwnd_event) C(in_ack_event) C(pkts_acked) C(min_tso_segs)     \
	C(cong_control) C(undo_cwnd)

#define TAPE_FIELD(name) unsigned int name;
#define TAPE_CALL(name) TAPE_##name,

struct tape_before {
	TAPE_FIELDS(TAPE_FIELD)
};

struct tape_after {
	unsigned int snd_cwnd, snd_cwnd_cnt, snd_ssthresh, answer;
};

enum tape_call { TAPE_CALLS(TAPE_CALL) TAPE_END };

#endif
