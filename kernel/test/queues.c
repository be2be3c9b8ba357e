// SPDX-License-Identifier: GPL-2.0
/*
 * Preempts, resumes and schedules queues of a node without hardware (node.c): who
 * owns them, when they are resumed, what the scheduler makes of their rings.
 */

#include "target.h"

#define MOST		4

static void check_several(void)
{
	struct target targets[MOST];
	struct kfd_preempt_queue_entry entries[2 * MOST + 2] = {};
	struct kfd_ioctl_preempt_queue_args args = {
		.entries_ptr = (uintptr_t)entries,
		.num_entries = 2 * MOST + 2,
		.entry_size = sizeof(entries[0]),
	};
	int i;

	for (i = 0; i < MOST; i++)
		targets[i] = start_target(2);
	for (i = 0; i < 2 * MOST; i++) {
		entries[i].pid = targets[i / 2].pid;
		entries[i].queue_id = i % 2;
	}
	entries[2 * MOST].pid = targets[0].pid;
	entries[2 * MOST].queue_id = 7;
	entries[2 * MOST + 1].pid = 1;
	expect("several", call(kfd, AMDKFD_IOC_PREEMPT_QUEUE, &args), 0);
	expect("how many", args.num_done, 2 * MOST);
	expect("no such queue", entries[2 * MOST].result, -ENOENT);
	expect("no such process", entries[2 * MOST + 1].result, -ESRCH);
	for (i = 0; i < 2 * MOST; i++) {
		expect("result", entries[i].result, 0);
		expect("off", is_off(targets[i / 2].pid, i % 2), 1);
	}
	for (i = 0; i < 2 * MOST; i++)
		expect("resume", resume(targets[i / 2].pid, i % 2, 0), 0);
	for (i = 0; i < 2 * MOST; i++)
		expect("on", is_off(targets[i / 2].pid, i % 2), 0);
	/* They end while they are off. */
	for (i = 0; i < MOST; i++) {
		expect("off again", preempt(targets[i].pid, 0, i ? 100 : 0), 0);
		end_target(&targets[i]);
	}
	for (i = 0; i < MOST; i++)
		until("gone", targets[i].pid, 0, -1);
}

static void check_owners(void)
{
	struct target target = start_target(2);
	pid_t owner = start_owner(target.pid, 0, 0);

	expect("theirs", is_off(target.pid, 0), 1);
	expect("preempt theirs", preempt(target.pid, 0, 0), EBUSY);
	expect("resume theirs", resume(target.pid, 0, 0), EBUSY);
	expect("preempt another", preempt(target.pid, 1, 0), 0);
	end_owner(owner);
	until("their death", target.pid, 0, 0);
	expect("ours stays off", is_off(target.pid, 1), 1);
	expect("ours", resume(target.pid, 1, 0), 0);

	owner = start_owner(target.pid, 0, 0);
	expect("any owner", resume(target.pid, 0, KFD_IOC_RESUME_FLAG_ANY_OWNER), 0);
	expect("resumed", is_off(target.pid, 0), 0);
	end_owner(owner);

	owner = start_owner(target.pid, 0, 1);
	until("another program", target.pid, 0, 0);
	end_owner(owner);
	end_target(&target);
}

static void check_times(void)
{
	struct target target = start_target(2);
	int i;

	expect("for a time", preempt(target.pid, 0, 300), 0);
	expect("for ever", preempt(target.pid, 1, 0), 0);
	expect("off for a time", is_off(target.pid, 0), 1);
	until("the time is over", target.pid, 0, 0);
	expect("not the other", is_off(target.pid, 1), 1);
	/* A new time each time it is asked for. */
	for (i = 0; i < 10; i++) {
		expect("again", preempt(target.pid, 0, 2000), 0);
		usleep(300000);
		expect("still off", is_off(target.pid, 0), 1);
	}
	until("the last time is over", target.pid, 0, 0);
	expect("resume", resume(target.pid, 1, 0), 0);

	expect("reset", write_text(CONTROL, "reset 1"), 0);
	expect("in a reset", preempt(target.pid, 0, 0), EIO);
	expect("reset over", write_text(CONTROL, "reset 0"), 0);
	expect("ours all the same", is_off(target.pid, 0), 1);
	expect("resume after it", resume(target.pid, 0, 0), 0);
	expect("on after it", is_off(target.pid, 0), 0);
	end_target(&target);
}

static void check_scheduler(void)
{
	struct target low = start_target(1), high = start_target(1);
	char text[4096] = "";
	int file;

	set_priority(low.pid, 2);
	set_priority(high.pid, 12);
	low.indices[1] = 1000;
	enable_scheduler(1);
	usleep(300000);
	expect("low alone", is_off(low.pid, 0), 0);
	high.indices[1] = 10;
	until("high has work", low.pid, 0, 1);
	expect("high runs", is_off(high.pid, 0), 0);
	high.indices[0] = 10;
	until("high is done", low.pid, 0, 0);
	high.indices[1] = 20;
	until("high has more", low.pid, 0, 1);

	/* What somebody preempted stays off whatever the scheduler wants. */
	expect("preempt low", preempt(low.pid, 0, 0), 0);
	high.indices[0] = 20;
	usleep(300000);
	expect("low stays off", is_off(low.pid, 0), 1);
	expect("resume low", resume(low.pid, 0, 0), 0);
	until("low is on", low.pid, 0, 0);

	high.indices[1] = 30;
	until("once more", low.pid, 0, 1);
	enable_scheduler(0);
	until("disabled", low.pid, 0, 0);
	enable_scheduler(1);
	until("enabled", low.pid, 0, 1);
	/* The more important one dies, and nobody stays off for it. */
	end_target(&high);
	until("high is dead", low.pid, 0, 0);

	file = open(STATISTICS, O_RDONLY);
	if (file < 0 || read(file, text, sizeof(text) - 1) < 0)
		perror("FAILED statistics");
	close(file);
	expect("statistics", !!strstr(text, "gpu_id 40961\n"), 1);
	expect("faults", !!strstr(text, " faults 0 "), 1);
	end_target(&low);
}

/* The device is lost while the scheduler and somebody else keep queues off. */
static void check_loss(void)
{
	struct target low = start_target(2), high = start_target(1);

	set_priority(high.pid, 12);
	low.indices[1] = 1000;
	low.indices[3] = 1000;
	high.indices[1] = 10;
	until("before the loss", low.pid, 0, 1);
	expect("ours before it", preempt(low.pid, 1, 300), 0);
	expect("loss", write_text(CONTROL, "gone"), 0);
	/* Nobody visits it any more: not the list, not the end of a time. */
	expect("not listed", is_off(low.pid, 0), -1);
	usleep(500000);
	expect("nor when its time is over", is_off(low.pid, 1), -1);
	end_target(&low);
	end_target(&high);
	until("gone", low.pid, 0, -1);
}

int main(void)
{
	kfd = open_kfd();
	check_several();
	check_owners();
	check_times();
	check_scheduler();
	check_loss();
	printf("%d checks of queues, %d failures\n", checks, failures);
	return failures ? 1 : 0;
}
