// SPDX-License-Identifier: GPL-2.0-only
/*
 * Gives the controls of this directory, built for user space, the calls of a tape (tape.h) that the kernel's own
 * controls were given, and compares the window, its fraction, ssthresh and the answer after each. Nothing may differ.
 *
 *   cc -O2 -o replay bpf/replay.c && replay < NAME.tape
 *
 * Prints "NAME: N calls, M differ" for each control, and the first few that differ. Exit code 0: something was compared
 * and nothing differs; 1: something differs; 2: this is no tape.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cc.h"
#include "tape.h"

#include "bic.c"
#include "highspeed.c"
#include "htcp.c"
#include "hybla.c"
#include "lp.c"
#include "scalable.c"
#include "thalweg.c"
#include "vegas.c"
#include "veno.c"
#include "westwood.c"

static const struct tcp_congestion_ops *const controls[] = {
	&bic_ops, &highspeed_ops, &htcp_ops, &hybla_ops, &lp_ops, &scalable_ops, &thalweg_ops, &vegas_ops, &veno_ops, &westwood_ops,
};
#define CONTROLS (sizeof(controls) / sizeof(controls[0]))

#define CALL_NAME(name) #name,
static const char *const calls[] = { TAPE_CALLS(CALL_NAME) };

static unsigned long compared[CONTROLS], differing[CONTROLS];

struct line {
	char control[16], call[16];
	unsigned int socket, argument[2];
	struct tape_before before;
	struct tape_after after;
};

/* The controls' private state is kept from call to call; everything else of a socket is as the tape says. */
struct socket {
	unsigned int control, number;
	struct tcp_sock tp;
};
static struct socket *sockets;
static size_t socket_count;

static void stop(unsigned long number, const char *why)
{
	fprintf(stderr, "line %lu: %s\n", number, why);
	exit(2);
}

/* The next number of the line, or exit. */
static unsigned int next(char **text, unsigned long number)
{
	char *end;
	unsigned long value = strtoul(*text, &end, 10);

	if (end == *text || value > 0xffffffffUL)
		stop(number, "a number is missing");
	*text = end;
	return value;
}

static void word(char **text, char *to, size_t size, unsigned long number)
{
	char *start = *text + strspn(*text, " ");
	size_t length = strcspn(start, " \n");

	if (length == 0 || length >= size)
		stop(number, "a word is missing or too long");
	memcpy(to, start, length);
	to[length] = 0;
	*text = start + length;
}

#define READ_FIELD(name) line.before.name = next(&text, number);

static struct line parse(char *text, unsigned long number)
{
	struct line line;

	word(&text, line.control, sizeof(line.control), number);
	line.socket = next(&text, number);
	word(&text, line.call, sizeof(line.call), number);
	line.argument[0] = next(&text, number);
	line.argument[1] = next(&text, number);
	TAPE_FIELDS(READ_FIELD)
	text += strspn(text, " ");
	if (*text++ != '>')
		stop(number, "no '>' where it belongs");
	line.after.snd_cwnd = next(&text, number);
	line.after.snd_cwnd_cnt = next(&text, number);
	line.after.snd_ssthresh = next(&text, number);
	line.after.answer = next(&text, number);
	return line;
}

static struct tcp_sock *socket_of(unsigned int control, unsigned int number)
{
	for (size_t i = socket_count; i-- > 0;)
		if (sockets[i].control == control && sockets[i].number == number)
			return &sockets[i].tp;
	sockets = realloc(sockets, (socket_count + 1) * sizeof(*sockets));
	if (!sockets)
		stop(0, "out of memory");
	sockets[socket_count] = (struct socket){ .control = control, .number = number };
	return &sockets[socket_count++].tp;
}

static void see(struct tcp_sock *tp, const struct tape_before *before)
{
	tcp_jiffies32 = before->jiffies;
	tp->tcp_mstamp = (u64)before->mstamp_high << 32 | before->mstamp_low;
	tp->inet_conn.icsk_ca_state = before->ca_state;
	tp->is_cwnd_limited = before->is_cwnd_limited;
	tp->snd_cwnd = before->snd_cwnd;
	tp->snd_cwnd_cnt = before->snd_cwnd_cnt;
	tp->snd_ssthresh = before->snd_ssthresh;
	tp->snd_cwnd_clamp = before->snd_cwnd_clamp;
	tp->prior_cwnd = before->prior_cwnd;
	tp->packets_out = before->packets_out;
	tp->max_packets_out = before->max_packets_out;
	tp->delivered = before->delivered;
	tp->srtt_us = before->srtt_us;
	tp->mss_cache = before->mss_cache;
	tp->snd_una = before->snd_una;
	tp->snd_nxt = before->snd_nxt;
	tp->write_seq = before->write_seq;
	tp->rx_opt.rcv_tsval = before->rcv_tsval;
	tp->rx_opt.rcv_tsecr = before->rcv_tsecr;
}

/* Makes the call; returns its answer. A call the control does not want leaves everything as it is. */
static u32 make(const struct tcp_congestion_ops *ops, const char *call, const unsigned int *argument,
		struct tcp_sock *tp, unsigned long number)
{
	struct sock *sk = (struct sock *)tp;
	struct ack_sample sample = { .pkts_acked = argument[0], .rtt_us = argument[1] };
	unsigned int which = 0;

	while (which < TAPE_END && strcmp(call, calls[which]))
		which++;
	switch ((enum tape_call)which) {
	case TAPE_init:
		if (ops->init)
			ops->init(sk);
		return 0;
	case TAPE_ssthresh:
		return ops->ssthresh(sk);
	case TAPE_cong_avoid:
		if (ops->cong_avoid)
			ops->cong_avoid(sk, argument[0], argument[1]);
		return 0;
	case TAPE_set_state:
		if (ops->set_state)
			ops->set_state(sk, argument[0]);
		return 0;
	case TAPE_cwnd_event:
		if (ops->cwnd_event)
			ops->cwnd_event(sk, argument[0]);
		return 0;
	case TAPE_in_ack_event:
		if (ops->in_ack_event)
			ops->in_ack_event(sk, argument[0]);
		return 0;
	case TAPE_pkts_acked:
		if (ops->pkts_acked)
			ops->pkts_acked(sk, &sample);
		return 0;
	case TAPE_min_tso_segs:
		return ops->min_tso_segs ? ops->min_tso_segs(sk) : 0;
	case TAPE_cong_control:
		if (ops->cong_control)
			ops->cong_control(sk);
		return 0;
	case TAPE_undo_cwnd:
		return ops->undo_cwnd(sk);
	case TAPE_END:
		break;
	}
	stop(number, "no such call");
	return 0;
}

static void compare(const struct line *line, unsigned long number)
{
	const struct tape_after *theirs = &line->after;
	struct tape_after ours;
	struct tcp_sock *tp;
	unsigned int control = 0;

	while (control < CONTROLS && strcmp(line->control, controls[control]->name))
		control++;
	if (control == CONTROLS)
		stop(number, "no such control");

	tp = socket_of(control, line->socket);
	see(tp, &line->before);
	ours.answer = make(controls[control], line->call, line->argument, tp, number);
	ours.snd_cwnd = tp->snd_cwnd;
	ours.snd_cwnd_cnt = tp->snd_cwnd_cnt;
	ours.snd_ssthresh = tp->snd_ssthresh;
	compared[control]++;
	if (memcmp(&ours, theirs, sizeof(ours)) == 0)
		return;
	if (differing[control]++ < 5)
		printf("line %lu: %s %s: window %u, fraction %u, ssthresh %u, answer %u; the kernel's: %u, %u, %u, %u\n",
		       number, line->control, line->call, ours.snd_cwnd, ours.snd_cwnd_cnt, ours.snd_ssthresh, ours.answer,
		       theirs->snd_cwnd, theirs->snd_cwnd_cnt, theirs->snd_ssthresh, theirs->answer);
}

int main(void)
{
	unsigned long number = 1, lost, all = 0, wrong = 0;
	char text[1024];

	if (!fgets(text, sizeof(text), stdin) || sscanf(text, "tape 1 hz %u lost %lu", &cc_hz, &lost) != 2 || cc_hz == 0)
		stop(number, "not \"tape 1 hz HZ lost LINES\"");
	while (fgets(text, sizeof(text), stdin)) {
		struct line line = parse(text, ++number);

		compare(&line, number);
	}
	for (unsigned int i = 0; i < CONTROLS; i++) {
		if (compared[i])
			printf("%s: %lu calls, %lu differ\n", controls[i]->name, compared[i], differing[i]);
		all += compared[i];
		wrong += differing[i];
	}
	if (all == 0)
		stop(number, "nothing was recorded");
	return wrong != 0;
}
