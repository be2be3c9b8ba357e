// SPDX-License-Identifier: GPL-2.0
/*
 * Preempts, resumes and schedules queues of a node without hardware (node.c): who
 * owns them, when they are resumed, what the scheduler makes of their rings.
 */

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "call.h"

#define CONTROL		"/sys/kernel/debug/kfd_node"
#define QUEUES		"/sys/kernel/debug/kfd/queues"
#define STATISTICS	"/sys/kernel/debug/kfd/preempt"
#define PARAMETERS	"/sys/module/amdgpu/parameters/"
#define MOST		4

/* A process with queues; its indices are in memory that we share with it. */
struct target {
	pid_t pid;
	volatile uint64_t *indices;
};

static int kfd;

static int write_text(const char *path, const char *text)
{
	int file = open(path, O_WRONLY);
	int error = file < 0 || write(file, text, strlen(text)) < 0 ? errno : 0;

	close(file);
	return error;
}

static struct target start_target(int queues)
{
	struct target new = {};
	char line[64], ready;
	int pipes[2], i;

	new.indices = mmap(NULL, 4096, PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (new.indices == MAP_FAILED || pipe(pipes)) {
		perror("FAILED target");
		exit(1);
	}
	new.pid = fork();
	if (new.pid) {
		close(pipes[1]);
		expect("target", read(pipes[0], &ready, 1), 1);
		close(pipes[0]);
		return new;
	}
	open_kfd();
	for (i = 0; i < queues; i++) {
		new.indices[2 * i] = 0;
		snprintf(line, sizeof(line), "queue %lx %lx",
			 (unsigned long)&new.indices[2 * i],
			 (unsigned long)&new.indices[2 * i + 1]);
		if (write_text(CONTROL, line)) {
			perror("FAILED queue");
			exit(1);
		}
	}
	if (write(pipes[1], "", 1) != 1)
		exit(1);
	for (;;)
		pause();
}

static void end_target(struct target *target)
{
	kill(target->pid, SIGKILL);
	waitpid(target->pid, NULL, 0);
}

/* 1 if a queue is off, 0 if not, -1 if there is none. */
static int is_off(pid_t pid, int queue)
{
	FILE *file = fopen(QUEUES, "r");
	char line[256], beginning[64];
	int result = -1;

	snprintf(beginning, sizeof(beginning), "pid %d queue %d ", pid, queue);
	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, beginning, strlen(beginning)))
			result = !!strstr(line, " preempted");
	if (file)
		fclose(file);
	return result;
}

/* Waits until it is so, ten seconds at the most. */
static void until(const char *what, pid_t pid, int queue, int wanted)
{
	int i;

	for (i = 0; i < 1000 && is_off(pid, queue) != wanted; i++)
		usleep(10000);
	expect(what, is_off(pid, queue), wanted);
}

/* The result of one queue, or the error number of the call. */
static int preempt(pid_t pid, int queue, int timeout_ms)
{
	struct kfd_preempt_queue_entry entry = { .pid = pid, .queue_id = queue };
	struct kfd_ioctl_preempt_queue_args args = {
		.entries_ptr = (uintptr_t)&entry,
		.num_entries = 1,
		.entry_size = sizeof(entry),
		.timeout_ms = timeout_ms,
	};
	int r = call(kfd, AMDKFD_IOC_PREEMPT_QUEUE, &args);

	return r ? r : -entry.result;
}

static int resume(pid_t pid, int queue, int flags)
{
	struct kfd_preempt_queue_entry entry = { .pid = pid, .queue_id = queue };
	struct kfd_ioctl_resume_queue_args args = {
		.entries_ptr = (uintptr_t)&entry,
		.num_entries = 1,
		.entry_size = sizeof(entry),
		.flags = flags,
	};
	int r = call(kfd, AMDKFD_IOC_RESUME_QUEUE, &args);

	return r ? r : -entry.result;
}

/* Another process that preempts a queue and stays, or becomes another program. */
static pid_t start_owner(pid_t pid, int queue, int becomes_another)
{
	char *const sleeping[] = { "busybox", "sleep", "1000", NULL };
	int pipes[2];
	char ready;
	pid_t owner;

	if (pipe(pipes))
		exit(1);
	owner = fork();
	if (owner) {
		close(pipes[1]);
		expect("owner", read(pipes[0], &ready, 1), 1);
		close(pipes[0]);
		return owner;
	}
	kfd = open_kfd();
	if (preempt(pid, queue, 0))
		exit(1);
	if (write(pipes[1], "", 1) != 1)
		exit(1);
	if (becomes_another) {
		usleep(200000);
		execv("/bin/busybox", sleeping);
		exit(1);
	}
	for (;;)
		pause();
}

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
	kill(owner, SIGKILL);
	waitpid(owner, NULL, 0);
	until("their death", target.pid, 0, 0);
	expect("ours stays off", is_off(target.pid, 1), 1);
	expect("ours", resume(target.pid, 1, 0), 0);

	owner = start_owner(target.pid, 0, 0);
	expect("any owner", resume(target.pid, 0, KFD_IOC_RESUME_FLAG_ANY_OWNER), 0);
	expect("resumed", is_off(target.pid, 0), 0);
	kill(owner, SIGKILL);
	waitpid(owner, NULL, 0);

	owner = start_owner(target.pid, 0, 1);
	until("another program", target.pid, 0, 0);
	kill(owner, SIGKILL);
	waitpid(owner, NULL, 0);
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
	expect("resume after it", resume(target.pid, 0, 0), 0);
	expect("on after it", is_off(target.pid, 0), 0);
	end_target(&target);
}

static void set_priority(pid_t pid, int priority)
{
	struct kfd_ioctl_set_preempt_priority_args args = {
		.pid = pid,
		.queue_id = KFD_IOC_PREEMPT_ALL_QUEUES,
		.priority = priority,
	};

	expect("priority", call(kfd, AMDKFD_IOC_SET_PREEMPT_PRIORITY, &args), 0);
	expect("its queues", args.num_done, 1);
}

static void check_scheduler(void)
{
	struct target low = start_target(1), high = start_target(1);
	char text[4096] = "";
	int file;

	set_priority(low.pid, 2);
	set_priority(high.pid, 12);
	low.indices[1] = 1000;
	expect("enable", write_text(PARAMETERS "kfd_preempt_enable", "1"), 0);
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
	expect("disable", write_text(PARAMETERS "kfd_preempt_enable", "0"), 0);
	until("disabled", low.pid, 0, 0);
	expect("enable again", write_text(PARAMETERS "kfd_preempt_enable", "1"), 0);
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
	expect("the scheduler's is on", is_off(low.pid, 0), 0);
	usleep(500000);
	expect("its time does not end", is_off(low.pid, 1), 1);
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
