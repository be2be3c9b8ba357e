// SPDX-License-Identifier: GPL-2.0
/*
 * Attacks on the patches, on a node without hardware (node.c): whoever does these
 * things must not keep a queue of others off, nor escape.
 */

#include <sched.h>
#include <sys/stat.h>

#include "fuzz.h"
#include "target.h"

static uint64_t serial_of(pid_t pid, int queue)
{
	char line[256];
	char *word;

	find_line(pid, queue, line, sizeof(line));
	word = strstr(line, " serial ");
	return word ? strtoull(word + 8, NULL, 10) : 0;
}

static void text_of(const char *path, char *text, size_t size)
{
	FILE *file = fopen(path, "r");
	size_t length = file ? fread(text, 1, size - 1, file) : 0;

	text[length] = 0;
	if (file)
		fclose(file);
}

/* Waits until the node's own file says so, a minute at the most. */
static void until_node(const char *what, const char *wanted)
{
	char text[64];
	int i;

	for (i = 0; i < 6000; i++) {
		text_of(CONTROL, text, sizeof(text));
		if (strstr(text, wanted))
			break;
		usleep(10000);
	}
	expect(what, i < 6000, 1);
}

/* A queue is destroyed and another one gets its number. */
static void check_numbers(void)
{
	struct target target = start_target(1);
	uint64_t old = serial_of(target.pid, 0);
	struct kfd_ioctl_set_preempt_priority_args args = {
		.pid = target.pid, .serial = old, .priority = 9,
	};
	uint64_t new;
	int i;

	expect("by serial", preempt_one(target.pid, 0, old, 0), 0);
	expect("off by serial", is_off(target.pid, 0), 1);
	expect("on by serial", resume_one(target.pid, 0, old, 0), 0);
	expect("its priority", call(kfd, AMDKFD_IOC_SET_PREEMPT_PRIORITY, &args), 0);
	tell(&target, DESTROY);
	expect("destroyed", preempt_one(target.pid, 0, old, 0), ENOENT);
	for (i = 0; i < 5; i++) {
		tell(&target, CREATE);
		new = serial_of(target.pid, 0);
		expect("a new serial", new > old, 1);
		expect("stale preempt", preempt_one(target.pid, 0, old, 0), ESTALE);
		expect("runs", is_off(target.pid, 0), 0);
		expect("its own", preempt_one(target.pid, 0, new, 0), 0);
		expect("stale resume", resume_one(target.pid, 0, old, 0), ESTALE);
		expect("any", resume_one(target.pid, 0, 0, 0), 0);
		args = (struct kfd_ioctl_set_preempt_priority_args) {
			.pid = target.pid, .serial = old, .priority = 9,
		};
		expect("stale priority",
		       call(kfd, AMDKFD_IOC_SET_PREEMPT_PRIORITY, &args), ESTALE);
		/* While it is off, or not. */
		expect("off or not", i & 1 ? preempt(target.pid, 0, 0) : 0, 0);
		tell(&target, DESTROY);
		old = new;
	}
	end_target(&target);
}

/* More queues than there is room for come after one that is off. */
static void check_many(void)
{
	struct target low = start_target(1), high = start_target(1), crowd;
	char text[65536];

	set_priority(low.pid, 2);
	set_priority(high.pid, 12);
	low.indices[1] = high.indices[1] = 10;
	enable_scheduler(1);
	until("before the crowd", low.pid, 0, 1);
	crowd = start_target(1000);
	usleep(300000);
	expect("still off", is_off(low.pid, 0), 1);
	high.indices[0] = 10;
	until("on in spite of the crowd", low.pid, 0, 0);
	/* All of the crowd is looked at. */
	crowd.indices[2 * 999 + 1] = crowd.indices[1] = 10;
	high.indices[1] = 20;
	until("the first of the crowd", crowd.pid, 0, 1);
	until("the last of the crowd", crowd.pid, 999, 1);
	text_of(STATISTICS, text, sizeof(text));
	expect("nobody left alone", !!strstr(text, " left_alone 0\n"), 1);
	end_target(&high);
	until("the crowd goes on", crowd.pid, 999, 0);
	end_target(&crowd);
	until("alone again", low.pid, 0, 0);
	enable_scheduler(0);
	end_target(&low);
}

/* A process without its first thread. */
static void check_headless(void)
{
	struct target headless = start(1, 0), low = start_target(1);
	pid_t owner;

	expect("headless", preempt(headless.pid, 0, 0), 0);
	expect("headless off", is_off(headless.pid, 0), 1);
	expect("headless resume", resume(headless.pid, 0, 0), 0);
	expect("headless on", is_off(headless.pid, 0), 0);
	owner = start_owner(headless.pid, 0, 0);
	expect("headless any", resume(headless.pid, 0, KFD_IOC_RESUME_FLAG_ANY_OWNER), 0);
	expect("headless is on", is_off(headless.pid, 0), 0);
	end_owner(owner);

	set_priority(headless.pid, 12);
	low.indices[1] = 10;
	enable_scheduler(1);
	headless.indices[1] = 10;
	until("its ring is read", low.pid, 0, 1);
	headless.indices[0] = 10;
	until("and read again", low.pid, 0, 0);
	set_priority(headless.pid, 0);
	headless.indices[1] = 20;
	until("it goes", headless.pid, 0, 1);
	low.indices[0] = 10;
	until("and comes back", headless.pid, 0, 0);
	enable_scheduler(0);
	end_target(&headless);
	end_target(&low);
}

/* Processes that hide their indices. */
static void check_hidden(void)
{
	struct target low = start_target(1), high = start_target(1);

	set_priority(low.pid, 2);
	set_priority(high.pid, 12);
	enable_scheduler(1);
	tell(&low, HIDE);
	usleep(100000);
	expect("hidden, nobody else has work", is_off(low.pid, 0), 0);
	high.indices[1] = 10;
	until("nobody escapes by hiding", low.pid, 0, 1);
	high.indices[0] = 10;
	until("it comes back", low.pid, 0, 0);

	tell(&low, SHOW);
	tell(&high, HIDE);
	low.indices[1] = 10;
	usleep(300000);
	expect("who was idle keeps nobody off", is_off(low.pid, 0), 0);
	tell(&high, SHOW);
	high.indices[1] = 20;
	until("it has work", low.pid, 0, 1);
	tell(&high, HIDE);
	usleep(300000);
	expect("who had work has it", is_off(low.pid, 0), 1);
	high.indices[0] = 20;
	tell(&high, SHOW);
	until("until it is seen done", low.pid, 0, 0);
	enable_scheduler(0);
	end_target(&low);
	end_target(&high);
}

/* The device does not take queues back: it is tried again. */
static void check_refusals(int is_mes)
{
	struct target target = start_target(3), high = start_target(1);
	pid_t owner = start_owner(target.pid, 0, 0);

	expect("firmware", write_text(CONTROL, is_mes ? "mes 1" : "mes 0"), 0);
	expect("for a time", preempt(target.pid, 1, 300), 0);
	expect("for ever", preempt(target.pid, 2, 0), 0);
	expect("reset", write_text(CONTROL, "reset 1"), 0);
	expect("refused", resume(target.pid, 2, 0), EIO);
	end_owner(owner);
	usleep(500000);
	if (is_mes) {
		expect("the dead owner's", is_off(target.pid, 0), 1);
		expect("its time is over", is_off(target.pid, 1), 1);
		expect("the refused", is_off(target.pid, 2), 1);
	} else {
		until_node("an update is owed", "owes 1");
	}
	expect("reset over", write_text(CONTROL, "reset 0"), 0);
	until_node("nothing is owed", "owes 0");
	until("the dead owner's goes on", target.pid, 0, 0);
	until("its time was over", target.pid, 1, 0);
	until("the refused goes on", target.pid, 2, 0);

	/* The same when the scheduler lets go. */
	set_priority(high.pid, 12);
	target.indices[1] = high.indices[1] = 10;
	enable_scheduler(1);
	until("the scheduler's", target.pid, 0, 1);
	expect("reset", write_text(CONTROL, "reset 1"), 0);
	enable_scheduler(0);
	usleep(300000);
	expect("reset over", write_text(CONTROL, "reset 0"), 0);
	until("the scheduler's goes on", target.pid, 0, 0);
	until_node("nothing is owed any more", "owes 0");
	expect("firmware", write_text(CONTROL, "mes 0"), 0);
	end_target(&target);
	end_target(&high);
}

static int hold(void *arg)
{
	for (;;)
		pause();
	return !arg;
}

/* A program whose file survived an execve, and whose old memory somebody holds. */
static void start_survivor(pid_t target, int delay)
{
	static char stack[65536];
	int file = open("/dev/kfd", O_RDWR);
	pid_t holder = clone(hold, stack + sizeof(stack), CLONE_VM | SIGCHLD, NULL);
	char words[4][16];

	snprintf(words[0], 16, "%d", file);
	snprintf(words[1], 16, "%d", holder);
	snprintf(words[2], 16, "%d", target);
	snprintf(words[3], 16, "%d", delay);
	execl("/proc/self/exe", "kfd-attacks", "survivor", words[0], words[1],
	      words[2], words[3], NULL);
	_exit(3);
}

/* Calls until its old memory is gone, says whether that was ever in time, and stays. */
static int survive(char **words)
{
	pid_t holder = atoi(words[1]), target = atoi(words[2]);
	int delay = atoi(words[3]);
	int in_time = 0;
	int i, r = 0;

	kfd = atoi(words[0]);
	if (!fork()) {
		usleep(delay);
		kill(holder, SIGKILL);
		_exit(0);
	}
	for (i = 0; i < 1000000 && r != ESRCH; i++) {
		r = preempt(target, 0, 0);
		in_time += !r;
	}
	printf("%c\n", r != ESRCH ? 'h' : in_time ? 'p' : 'r');
	fflush(stdout);
	for (;;)
		pause();
	return 0;
}

static void check_survivors(void)
{
	struct target target = start_target(1);
	int held = 0;
	int i;

	for (i = 0; i < 40; i++) {
		int pipes[2];
		char said = 0;
		pid_t child;

		if (pipe(pipes))
			exit(1);
		fflush(stdout);
		child = fork();
		if (!child) {
			dup2(pipes[1], 1);
			close(pipes[0]);
			close(pipes[1]);
			start_survivor(target.pid, i * 100);
		}
		close(pipes[1]);
		expect("survivor", read(pipes[0], &said, 1), 1);
		expect("it has no say any more", said == 'r' || said == 'p', 1);
		held += said == 'p';
		until("nobody's queue", target.pid, 0, 0);
		end_owner(child);
		close(pipes[0]);
	}
	printf("survivors: %d of 40 calls were in time\n", held);
	end_target(&target);
}

/* A process in a namespace of its own sees and names only what is there. */
static void check_namespace(void)
{
	struct target outside = start_target(1);
	struct stat info = {};
	int status;
	pid_t child;

	expect("the list", stat(QUEUES, &info), 0);
	expect("is root's", info.st_mode & 07777, 0400);
	fflush(stdout);
	child = fork();
	if (!child) {
		struct target self = { .queues = 1 };
		uint64_t indices[2] = {};

		if (unshare(CLONE_NEWPID))
			_exit(2);
		child = fork();
		if (child) {
			waitpid(child, &status, 0);
			_exit(WEXITSTATUS(status));
		}
		checks = failures = 0;
		kfd = open_kfd();
		self.indices = indices;
		expect("queue inside", create_queue(&self, 0), 0);
		expect("number inside", is_off(1, 0), 0);
		expect("not the outside", is_off(outside.pid, 0), -1);
		expect("by its number", preempt(1, 0, 0), 0);
		expect("off inside", is_off(1, 0), 1);
		expect("not by another", preempt(outside.pid, 0, 0), ESRCH);
		fflush(stdout);
		_exit(failures ? 1 : 0);
	}
	waitpid(child, &status, 0);
	expect("inside", status, 0);
	end_target(&outside);
}

/* Random calls about queues that there are, while the scheduler runs. */
static void check_random(int calls)
{
	struct target self = { .queues = 4 };
	static uint64_t indices[8];
	int i;

	self.indices = indices;
	for (i = 0; i < 4; i++)
		expect("own queue", create_queue(&self, i), 0);
	enable_scheduler(1);
	fuzz(kfd, calls);
	enable_scheduler(0);
	for (i = 0; i < 4; i++) {
		expect("resume all", resume(0, i, KFD_IOC_RESUME_FLAG_ANY_OWNER), 0);
		until("all are on", getpid(), i, 0);
	}
}

int main(int argc, char **argv)
{
	if (argc == 6 && !strcmp(argv[1], "survivor"))
		return survive(argv + 2);
	kfd = open_kfd();
	check_numbers();
	check_many();
	check_headless();
	check_hidden();
	check_refusals(0);
	check_refusals(1);
	check_survivors();
	check_namespace();
	check_random(20000);
	printf("%d checks of attacks, %d failures\n", checks, failures);
	return failures ? 1 : 0;
}
