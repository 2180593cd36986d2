// SPDX-License-Identifier: GPL-2.0-only
/*
 * The laboratory's recorder: for each of the kernel's congestion controls a second one, `tape_NAME`, that does what NAME
 * does and writes down every call of it (bpf/tape.h), so that the same control in bpf/ can be given the same calls.
 *
 *   echo 65536 > /proc/tcp_tape     begins an empty tape of so many lines, at most 2^20; lines beyond are counted, not kept
 *   cat /proc/tcp_tape              the tape
 */
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/sock_diag.h>
#include <linux/version.h>
#include <linux/vmalloc.h>
#include <net/tcp.h>

#include "bpf/tape.h"

#define TAPE_MOST (1 << 20)

struct tape_line {
	const char *control;
	u32 socket;
	enum tape_call call;
	u32 argument[2];
	struct tape_before before;
	struct tape_after after;
};

/* Replaced only while no tape_ control is in use: the laboratory begins a tape before its run. */
static struct tape_line *tape;
static u32 tape_length;
static atomic_t tape_used = ATOMIC_INIT(0);

struct tape_control {
	struct tcp_congestion_ops ops;
	const struct tcp_congestion_ops *inner;
};

static const struct tcp_congestion_ops *tape_inner(const struct sock *sk)
{
	return container_of(inet_csk(sk)->icsk_ca_ops, struct tape_control, ops)->inner;
}

static struct tape_line *tape_before(struct sock *sk, enum tape_call call, u32 first, u32 second)
{
	const struct tcp_sock *tp = tcp_sk(sk);
	struct tape_line *line;
	u32 at, cookie;

	if (!tape)
		return NULL;
	cookie = sock_gen_cookie(sk); /* a number of this socket only, unlike its address */
	at = (u32)atomic_inc_return(&tape_used) - 1;
	if (at >= tape_length)
		return NULL;
	line = &tape[at];
	*line = (struct tape_line){
		.control = tape_inner(sk)->name,
		.socket = cookie,
		.call = call,
		.argument = { first, second },
		.before = {
			.jiffies = tcp_jiffies32,
			.mstamp_low = tp->tcp_mstamp,
			.mstamp_high = tp->tcp_mstamp >> 32,
			.ca_state = inet_csk(sk)->icsk_ca_state,
			.is_cwnd_limited = tp->is_cwnd_limited,
			.snd_cwnd = tp->snd_cwnd,
			.snd_cwnd_cnt = tp->snd_cwnd_cnt,
			.snd_ssthresh = tp->snd_ssthresh,
			.snd_cwnd_clamp = tp->snd_cwnd_clamp,
			.prior_cwnd = tp->prior_cwnd,
			.packets_out = tp->packets_out,
			.max_packets_out = tp->max_packets_out,
			.delivered = tp->delivered,
			.srtt_us = tp->srtt_us,
			.mss_cache = tp->mss_cache,
			.snd_una = tp->snd_una,
			.snd_nxt = tp->snd_nxt,
			.write_seq = tp->write_seq,
			.rcv_tsval = tp->rx_opt.rcv_tsval,
			.rcv_tsecr = tp->rx_opt.rcv_tsecr,
		},
	};
	return line;
}

static u32 tape_after(const struct sock *sk, struct tape_line *line, u32 answer)
{
	const struct tcp_sock *tp = tcp_sk(sk);

	if (line)
		line->after = (struct tape_after){
			.snd_cwnd = tp->snd_cwnd,
			.snd_cwnd_cnt = tp->snd_cwnd_cnt,
			.snd_ssthresh = tp->snd_ssthresh,
			.answer = answer,
		};
	return answer;
}

static void tape_init(struct sock *sk)
{
	struct tape_line *line = tape_before(sk, TAPE_init, 0, 0);

	if (tape_inner(sk)->init)
		tape_inner(sk)->init(sk);
	tape_after(sk, line, 0);
}

static u32 tape_ssthresh(struct sock *sk)
{
	struct tape_line *line = tape_before(sk, TAPE_ssthresh, 0, 0);

	return tape_after(sk, line, tape_inner(sk)->ssthresh(sk));
}

static void tape_cong_avoid(struct sock *sk, u32 ack, u32 acked)
{
	struct tape_line *line = tape_before(sk, TAPE_cong_avoid, ack, acked);

	tape_inner(sk)->cong_avoid(sk, ack, acked);
	tape_after(sk, line, 0);
}

static void tape_set_state(struct sock *sk, u8 new_state)
{
	struct tape_line *line = tape_before(sk, TAPE_set_state, new_state, 0);

	tape_inner(sk)->set_state(sk, new_state);
	tape_after(sk, line, 0);
}

static void tape_cwnd_event(struct sock *sk, enum tcp_ca_event event)
{
	struct tape_line *line = tape_before(sk, TAPE_cwnd_event, event, 0);

	tape_inner(sk)->cwnd_event(sk, event);
	tape_after(sk, line, 0);
}

static void tape_in_ack_event(struct sock *sk, u32 flags)
{
	struct tape_line *line = tape_before(sk, TAPE_in_ack_event, flags, 0);

	tape_inner(sk)->in_ack_event(sk, flags);
	tape_after(sk, line, 0);
}

static void tape_pkts_acked(struct sock *sk, const struct ack_sample *sample)
{
	struct tape_line *line = tape_before(sk, TAPE_pkts_acked, sample->pkts_acked, sample->rtt_us);

	tape_inner(sk)->pkts_acked(sk, sample);
	tape_after(sk, line, 0);
}

static u32 tape_min_tso_segs(struct sock *sk)
{
	struct tape_line *line = tape_before(sk, TAPE_min_tso_segs, 0, 0);

	return tape_after(sk, line, tape_inner(sk)->min_tso_segs(sk));
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
static void tape_cong_control(struct sock *sk, u32 ack, int flag, const struct rate_sample *rs)
{
	struct tape_line *line = tape_before(sk, TAPE_cong_control, 0, 0);

	tape_inner(sk)->cong_control(sk, ack, flag, rs);
	tape_after(sk, line, 0);
}
#else
static void tape_cong_control(struct sock *sk, const struct rate_sample *rs)
{
	struct tape_line *line = tape_before(sk, TAPE_cong_control, 0, 0);

	tape_inner(sk)->cong_control(sk, rs);
	tape_after(sk, line, 0);
}
#endif

static u32 tape_undo_cwnd(struct sock *sk)
{
	struct tape_line *line = tape_before(sk, TAPE_undo_cwnd, 0, 0);

	return tape_after(sk, line, tape_inner(sk)->undo_cwnd(sk));
}

static void *tape_start(struct seq_file *file, loff_t *at)
{
	u32 used = min_t(u32, atomic_read(&tape_used), tape_length);

	return *at == 0 ? SEQ_START_TOKEN : *at <= used ? &tape[*at - 1] : NULL;
}

static void *tape_next(struct seq_file *file, void *value, loff_t *at)
{
	++*at;
	return tape_start(file, at);
}

static void tape_stop(struct seq_file *file, void *value)
{
}

#define TAPE_NAME(name) #name,
#define TAPE_PRINT(name) seq_printf(file, " %u", line->before.name);

static int tape_show(struct seq_file *file, void *value)
{
	static const char *const calls[] = { TAPE_CALLS(TAPE_NAME) };
	const struct tape_line *line = value;

	if (value == SEQ_START_TOKEN) {
		u32 used = atomic_read(&tape_used);

		seq_printf(file, "tape 1 hz %u lost %u\n", HZ, used > tape_length ? used - tape_length : 0);
		return 0;
	}
	seq_printf(file, "%s %u %s %u %u", line->control, line->socket, calls[line->call], line->argument[0],
		   line->argument[1]);
	TAPE_FIELDS(TAPE_PRINT)
	seq_printf(file, " > %u %u %u %u\n", line->after.snd_cwnd, line->after.snd_cwnd_cnt, line->after.snd_ssthresh,
		   line->after.answer);
	return 0;
}

static ssize_t tape_begin(struct file *file, const char __user *text, size_t size, loff_t *at)
{
	unsigned int length;
	int error = kstrtouint_from_user(text, size, 0, &length);

	if (error)
		return error;
	if (length == 0 || length > TAPE_MOST)
		return -EINVAL;
	vfree(tape);
	tape_length = 0;
	tape = vzalloc(array_size(length, sizeof(*tape)));
	if (!tape)
		return -ENOMEM;
	tape_length = length;
	atomic_set(&tape_used, 0);
	return size;
}

static const struct seq_operations tape_seq = {
	.start = tape_start,
	.next = tape_next,
	.stop = tape_stop,
	.show = tape_show,
};

static int tape_open(struct inode *inode, struct file *file)
{
	return seq_open(file, &tape_seq);
}

static const struct proc_ops tape_proc = {
	.proc_open = tape_open,
	.proc_read = seq_read,
	.proc_write = tape_begin,
	.proc_lseek = seq_lseek,
	.proc_release = seq_release,
};

static const char *const tape_names[] = { "vegas", "bic",      "westwood",  "veno", "htcp",
					  "hybla", "scalable", "highspeed", "lp",   "thalweg" };
static struct tape_control tape_controls[ARRAY_SIZE(tape_names)];

/* Late: after every control has registered itself. */
static int __init tape_register(void)
{
	int i, error;

	for (i = 0; i < ARRAY_SIZE(tape_names); i++) {
		struct tape_control *control = &tape_controls[i];
		const struct tcp_congestion_ops *inner;

		rcu_read_lock();
		inner = tcp_ca_find(tape_names[i]);
		rcu_read_unlock();
		if (!inner) {
			pr_warn("tcp_tape: this kernel has no %s\n", tape_names[i]);
			continue;
		}
		control->inner = inner;
		control->ops = (struct tcp_congestion_ops){
			.init = tape_init,
			.ssthresh = tape_ssthresh,
			.cong_avoid = inner->cong_avoid ? tape_cong_avoid : NULL,
			.set_state = inner->set_state ? tape_set_state : NULL,
			.cwnd_event = inner->cwnd_event ? tape_cwnd_event : NULL,
			.in_ack_event = inner->in_ack_event ? tape_in_ack_event : NULL,
			.pkts_acked = inner->pkts_acked ? tape_pkts_acked : NULL,
			.min_tso_segs = inner->min_tso_segs ? tape_min_tso_segs : NULL,
			.cong_control = inner->cong_control ? tape_cong_control : NULL,
			.undo_cwnd = tape_undo_cwnd,
			.flags = inner->flags | TCP_CONG_NON_RESTRICTED,
			.owner = THIS_MODULE,
		};
		snprintf(control->ops.name, sizeof(control->ops.name), "tape_%s", tape_names[i]);
		error = tcp_register_congestion_control(&control->ops);
		if (error)
			return error;
	}
	return proc_create("tcp_tape", 0600, NULL, &tape_proc) ? 0 : -ENOMEM;
}
late_initcall_sync(tape_register);

MODULE_LICENSE("GPL");
