/* SPDX-License-Identifier: GPL-2.0 */
/* A process with queues on the node without hardware (node.c), which does as it is told. */
#ifndef TARGET_H_
#define TARGET_H_

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "call.h"

#define CONTROL		"/sys/kernel/debug/kfd_node"
#define QUEUES		"/sys/kernel/debug/kfd/queues"
#define STATISTICS	"/sys/kernel/debug/kfd/preempt"
#define PARAMETERS	"/sys/module/amdgpu/parameters/"

/* What it may be told. */
enum order {
	DESTROY = 'd',	/* its queue 0 */
	CREATE = 'c',	/* another queue, where queue 0 was */
	HIDE = 'h',	/* the memory with its indices */
	SHOW = 's',	/* it again */
};

/* Its indices are in memory that we share with it: read, written, read, ... */
struct target {
	pid_t pid;
	volatile uint64_t *indices;
	size_t size;
	int queues;
	int orders;
	int answers;
};

static int kfd;

static int write_text(const char *path, const char *text)
{
	int file = open(path, O_WRONLY);
	int error = file < 0 || write(file, text, strlen(text)) < 0 ? errno : 0;

	close(file);
	return error;
}

static int create_queue(const struct target *self, int place)
{
	char line[64];

	snprintf(line, sizeof(line), "queue %lx %lx",
		 (unsigned long)&self->indices[2 * place],
		 (unsigned long)&self->indices[2 * place + 1]);
	return write_text(CONTROL, line);
}

static int obey(const struct target *self, char order)
{
	void *indices = (void *)self->indices;

	switch (order) {
	case DESTROY:
		return write_text(CONTROL, "destroy 0");
	case CREATE:
		return create_queue(self, 0);
	case HIDE:
		return mprotect(indices, self->size, PROT_NONE);
	case SHOW:
		return mprotect(indices, self->size, PROT_READ | PROT_WRITE);
	}
	return 1;
}

static void *serve(void *arg)
{
	struct target *self = arg;
	char order = 0;
	char answer;

	do {
		answer = order ? obey(self, order) : 0;
		if (write(self->answers, &answer, 1) != 1)
			exit(1);
	} while (read(self->orders, &order, 1) == 1);
	exit(0);
}

/* Its answer, or -1 if it does not answer within ten seconds. */
static int answer_of(const struct target *target)
{
	struct pollfd wire = { .fd = target->answers, .events = POLLIN };
	char answer;

	if (poll(&wire, 1, 10000) != 1 || read(target->answers, &answer, 1) != 1)
		return -1;
	return answer;
}

static inline void tell(const struct target *target, enum order order)
{
	char byte = order;

	expect("order", write(target->orders, &byte, 1), 1);
	expect("obeyed", answer_of(target), 0);
}

/* Without a first thread, which has its number, others go on in it. */
static void become_target(struct target *self, int has_first_thread)
{
	pthread_t other;
	int i;

	/* Its page tables are its own: they have to be filled. */
	memset((void *)self->indices, 0, self->size);
	kfd = open_kfd();
	for (i = 0; i < self->queues; i++)
		if (create_queue(self, i))
			exit(1);
	if (has_first_thread)
		serve(self);
	if (pthread_create(&other, NULL, serve, self))
		exit(1);
	pthread_exit(NULL);
}

/* Waits until the first thread has ended, ten seconds at the most. */
static void until_headless(pid_t pid)
{
	char path[64], text[256], *end;
	int i;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	for (i = 0; i < 1000; i++) {
		FILE *file = fopen(path, "r");

		end = file && fgets(text, sizeof(text), file) ? strchr(text, ')') : NULL;
		if (file)
			fclose(file);
		if (end && end[2] == 'Z')
			break;
		usleep(10000);
	}
	expect("the first thread ends", i < 1000, 1);
}

static struct target start(int queues, int has_first_thread)
{
	struct target new = { .queues = queues };
	int to[2], from[2];

	new.size = (queues * 16 + 4095) / 4096 * 4096;
	new.indices = mmap(NULL, new.size, PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (new.indices == MAP_FAILED || pipe(to) || pipe(from)) {
		perror("FAILED target");
		exit(1);
	}
	memset((void *)new.indices, 0, new.size);
	fflush(stdout);
	new.pid = fork();
	if (!new.pid) {
		close(to[1]);
		close(from[0]);
		new.orders = to[0];
		new.answers = from[1];
		become_target(&new, has_first_thread);
	}
	close(to[0]);
	close(from[1]);
	new.orders = to[1];
	new.answers = from[0];
	expect("target", answer_of(&new), 0);
	if (!has_first_thread)
		until_headless(new.pid);
	return new;
}

static struct target start_target(int queues)
{
	return start(queues, 1);
}

static void end_target(struct target *target)
{
	kill(target->pid, SIGKILL);
	waitpid(target->pid, NULL, 0);
	close(target->orders);
	close(target->answers);
	munmap((void *)target->indices, target->size);
}

/* The line of a queue, or an empty one. */
static void find_line(pid_t pid, int queue, char *line, int size)
{
	FILE *file = fopen(QUEUES, "r");
	char beginning[64];

	snprintf(beginning, sizeof(beginning), "pid %d queue %d ", pid, queue);
	while (file && fgets(line, size, file))
		if (!strncmp(line, beginning, strlen(beginning))) {
			fclose(file);
			return;
		}
	line[0] = 0;
	if (file)
		fclose(file);
}

/* 1 if a queue is off, 0 if not, -1 if there is none. */
static int is_off(pid_t pid, int queue)
{
	char line[256];

	find_line(pid, queue, line, sizeof(line));
	return line[0] ? !!strstr(line, " preempted") : -1;
}

/* Waits until it is so, twenty seconds at the most. */
static void until(const char *what, pid_t pid, int queue, int wanted)
{
	int i;

	for (i = 0; i < 2000 && is_off(pid, queue) != wanted; i++)
		usleep(10000);
	expect(what, is_off(pid, queue), wanted);
}

/* The result of one queue, or the error number of the call. */
static int preempt_one(pid_t pid, int queue, uint64_t serial, int timeout_ms)
{
	struct kfd_preempt_queue_entry entry = {
		.pid = pid, .queue_id = queue, .serial = serial,
	};
	struct kfd_ioctl_preempt_queue_args args = {
		.entries_ptr = (uintptr_t)&entry,
		.num_entries = 1,
		.entry_size = sizeof(entry),
		.timeout_ms = timeout_ms,
	};
	int r = call(kfd, AMDKFD_IOC_PREEMPT_QUEUE, &args);

	return r ? r : -entry.result;
}

static int preempt(pid_t pid, int queue, int timeout_ms)
{
	return preempt_one(pid, queue, 0, timeout_ms);
}

static int resume_one(pid_t pid, int queue, uint64_t serial, int flags)
{
	struct kfd_preempt_queue_entry entry = {
		.pid = pid, .queue_id = queue, .serial = serial,
	};
	struct kfd_ioctl_resume_queue_args args = {
		.entries_ptr = (uintptr_t)&entry,
		.num_entries = 1,
		.entry_size = sizeof(entry),
		.flags = flags,
	};
	int r = call(kfd, AMDKFD_IOC_RESUME_QUEUE, &args);

	return r ? r : -entry.result;
}

static int resume(pid_t pid, int queue, int flags)
{
	return resume_one(pid, queue, 0, flags);
}

static void set_priority(pid_t pid, int priority)
{
	struct kfd_ioctl_set_preempt_priority_args args = {
		.pid = pid,
		.queue_id = KFD_IOC_PREEMPT_ALL_QUEUES,
		.priority = priority,
	};

	expect("priority", call(kfd, AMDKFD_IOC_SET_PREEMPT_PRIORITY, &args), 0);
}

static void enable_scheduler(int on)
{
	expect("enable", write_text(PARAMETERS "kfd_preempt_enable", on ? "1" : "0"), 0);
}

/* Another process that preempts a queue and stays, or becomes another program. */
static inline pid_t start_owner(pid_t pid, int queue, int becomes_another)
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

static inline void end_owner(pid_t owner)
{
	kill(owner, SIGKILL);
	waitpid(owner, NULL, 0);
}

#endif
