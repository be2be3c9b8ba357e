// SPDX-License-Identifier: GPL-2.0
/*
 * Calls the ioctls that the patches add, in every way that needs no device:
 * bad arguments, missing rights, unknown processes and queues, random bytes.
 *
 * With the argument "stock" it expects a KFD without the patches.
 */

#include <limits.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "call.h"
#include "fuzz.h"

#define PARAMETERS	"/sys/module/amdgpu/parameters/"

static struct kfd_preempt_queue_entry entry;

static struct kfd_ioctl_preempt_queue_args preempt_args(void)
{
	memset(&entry, 0, sizeof(entry));
	return (struct kfd_ioctl_preempt_queue_args) {
		.entries_ptr = (uintptr_t)&entry,
		.num_entries = 1,
		.entry_size = sizeof(entry),
	};
}

static struct kfd_ioctl_resume_queue_args resume_args(void)
{
	memset(&entry, 0, sizeof(entry));
	return (struct kfd_ioctl_resume_queue_args) {
		.entries_ptr = (uintptr_t)&entry,
		.num_entries = 1,
		.entry_size = sizeof(entry),
	};
}

static void check_numbers(int kfd, int is_stock)
{
	struct kfd_ioctl_get_version_args version = {};
	char block[256];
	unsigned int nr;

	expect("version", call(kfd, AMDKFD_IOC_GET_VERSION, &version), 0);
	expect("major version", version.major_version, 1);
	for (nr = 0x27; nr < 0x80; nr++) {
		unsigned long request = _IOWR(AMDKFD_IOCTL_BASE, nr, block);
		int is_ours = !is_stock && nr >= 0x40 && nr < 0x43;

		memset(block, 0, sizeof(block));
		/* Ours refuse a block of another size. */
		expect("number", call(kfd, request, block),
		       is_ours ? EINVAL : ENOTTY);
	}
}

#define BAD(what, field, value) do {					\
	args = preempt_args();						\
	(field) = (value);						\
	expect(what, call(kfd, AMDKFD_IOC_PREEMPT_QUEUE, &args), EINVAL); \
} while (0)

static void check_bad_preempts(int kfd)
{
	struct kfd_ioctl_preempt_queue_args args;

	BAD("no array", args.entries_ptr, 0);
	BAD("no entries", args.num_entries, 0);
	BAD("too many entries", args.num_entries, KFD_IOC_PREEMPT_MAX_QUEUES + 1);
	BAD("all entries", args.num_entries, UINT_MAX);
	BAD("small entries", args.entry_size, sizeof(entry) - 4);
	BAD("large entries", args.entry_size, sizeof(entry) + 4);
	BAD("no size", args.entry_size, 0);
	BAD("unknown flag", args.flags, 2);
	BAD("all flags", args.flags, UINT_MAX);
	BAD("grace without flag", args.grace_period, 1);
	BAD("long time", args.timeout_ms, KFD_IOC_PREEMPT_MAX_TIMEOUT_MS + 1);
	BAD("num_done", args.num_done, 1);
	BAD("reserved", entry.reserved, 1);
	BAD("negative pid", entry.pid, UINT_MAX);

	args = preempt_args();
	args.flags = KFD_IOC_PREEMPT_FLAG_GRACE;
	args.grace_period = KFD_IOC_PREEMPT_MAX_GRACE + 1;
	expect("long grace", call(kfd, AMDKFD_IOC_PREEMPT_QUEUE, &args), EINVAL);
}

static void check_bad_resumes(int kfd)
{
	struct kfd_ioctl_resume_queue_args args = resume_args();

	args.flags = 2;
	expect("resume flag", call(kfd, AMDKFD_IOC_RESUME_QUEUE, &args), EINVAL);
	args = resume_args();
	args.num_entries = 0;
	expect("resume none", call(kfd, AMDKFD_IOC_RESUME_QUEUE, &args), EINVAL);
	args = resume_args();
	args.num_done = 1;
	expect("resume done", call(kfd, AMDKFD_IOC_RESUME_QUEUE, &args), EINVAL);
	args = resume_args();
	entry.reserved = 7;
	expect("resume reserved", call(kfd, AMDKFD_IOC_RESUME_QUEUE, &args),
	       EINVAL);
}

static void check_memory(int kfd)
{
	struct kfd_ioctl_preempt_queue_args args = preempt_args();
	long page = sysconf(_SC_PAGESIZE);
	char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (pages == MAP_FAILED) {
		perror("FAILED mmap");
		exit(1);
	}
	args.entries_ptr = 8;
	expect("wild array", call(kfd, AMDKFD_IOC_PREEMPT_QUEUE, &args), EFAULT);
	args.entries_ptr = ~0UL << 47;
	expect("kernel array", call(kfd, AMDKFD_IOC_PREEMPT_QUEUE, &args), EFAULT);

	munmap(pages + page, page);
	args.entries_ptr = (uintptr_t)(pages + page - 8);
	expect("array that ends", call(kfd, AMDKFD_IOC_PREEMPT_QUEUE, &args),
	       EFAULT);
	mprotect(pages, page, PROT_READ);
	args.entries_ptr = (uintptr_t)pages;
	expect("array to read", call(kfd, AMDKFD_IOC_PREEMPT_QUEUE, &args), EFAULT);
	munmap(pages, page);
	expect("no arguments", call(kfd, AMDKFD_IOC_PREEMPT_QUEUE, NULL), EFAULT);
}

static void check_unknown(int kfd)
{
	struct kfd_ioctl_preempt_queue_args args = preempt_args();
	struct kfd_ioctl_resume_queue_args resume;
	struct kfd_preempt_queue_entry many[3] = {
		{ .pid = 0, .queue_id = 5 },
		{ .pid = INT_MAX, .queue_id = 5 },
		{ .pid = getpid(), .queue_id = UINT_MAX },
	};

	expect("own queue", call(kfd, AMDKFD_IOC_PREEMPT_QUEUE, &args), 0);
	expect("own queue's result", entry.result, -ENOENT);
	expect("nothing done", args.num_done, 0);

	args = preempt_args();
	args.entries_ptr = (uintptr_t)many;
	args.num_entries = 3;
	args.timeout_ms = 1;
	args.flags = KFD_IOC_PREEMPT_FLAG_GRACE;
	args.grace_period = KFD_IOC_PREEMPT_MAX_GRACE;
	expect("three", call(kfd, AMDKFD_IOC_PREEMPT_QUEUE, &args), 0);
	expect("first of three", many[0].result, -ENOENT);
	expect("second of three", many[1].result, -ESRCH);
	expect("third of three", many[2].result, -ENOENT);

	resume = resume_args();
	entry.pid = 1;
	resume.flags = KFD_IOC_RESUME_FLAG_ANY_OWNER;
	expect("init", call(kfd, AMDKFD_IOC_RESUME_QUEUE, &resume), 0);
	expect("init's result", entry.result, -ESRCH);
}

static int set_priority(int kfd, uint32_t pid, uint32_t queue, uint32_t priority)
{
	struct kfd_ioctl_set_preempt_priority_args args = {
		.pid = pid, .queue_id = queue, .priority = priority,
	};

	return call(kfd, AMDKFD_IOC_SET_PREEMPT_PRIORITY, &args);
}

static void check_priorities(int kfd)
{
	struct kfd_ioctl_set_preempt_priority_args args = { .flags = 1 };
	uint32_t all = KFD_IOC_PREEMPT_ALL_QUEUES;

	expect("priority flag",
	       call(kfd, AMDKFD_IOC_SET_PREEMPT_PRIORITY, &args), EINVAL);
	args = (struct kfd_ioctl_set_preempt_priority_args) { .reserved = 1 };
	expect("priority reserved",
	       call(kfd, AMDKFD_IOC_SET_PREEMPT_PRIORITY, &args), EINVAL);
	args = (struct kfd_ioctl_set_preempt_priority_args) { .num_done = 1 };
	expect("priority done",
	       call(kfd, AMDKFD_IOC_SET_PREEMPT_PRIORITY, &args), EINVAL);
	args = (struct kfd_ioctl_set_preempt_priority_args) {
		.queue_id = all, .serial = 1,
	};
	expect("priority of all with a serial",
	       call(kfd, AMDKFD_IOC_SET_PREEMPT_PRIORITY, &args), EINVAL);
	expect("priority 16", set_priority(kfd, 0, all, 16), EINVAL);
	expect("priority pid", set_priority(kfd, UINT_MAX, all, 1), EINVAL);
	expect("priority 15", set_priority(kfd, 0, all, 15), 0);
	expect("priority back",
	       set_priority(kfd, 0, all, KFD_IOC_PREEMPT_PRIORITY_DEFAULT), 0);
	expect("priority of no queue", set_priority(kfd, 0, 3, 3), ENOENT);
	expect("priority of nobody", set_priority(kfd, INT_MAX, all, 3), ESRCH);
}

/* What somebody without rights may do. */
static void check_user(void)
{
	struct kfd_ioctl_preempt_queue_args args;
	struct kfd_ioctl_resume_queue_args resume;
	uint32_t all = KFD_IOC_PREEMPT_ALL_QUEUES;
	int kfd;

	if (setgid(1000) || setuid(1000)) {
		perror("FAILED setuid");
		exit(1);
	}
	kfd = open_kfd();
	args = preempt_args();
	expect("user, own", call(kfd, AMDKFD_IOC_PREEMPT_QUEUE, &args), 0);
	expect("user, own result", entry.result, -ENOENT);
	args = preempt_args();
	entry.pid = getppid();
	expect("user, other", call(kfd, AMDKFD_IOC_PREEMPT_QUEUE, &args), EPERM);
	args = preempt_args();
	entry.pid = INT_MAX;
	expect("user, nobody", call(kfd, AMDKFD_IOC_PREEMPT_QUEUE, &args), EPERM);
	resume = resume_args();
	entry.pid = getppid();
	expect("user, resume", call(kfd, AMDKFD_IOC_RESUME_QUEUE, &resume), EPERM);
	resume = resume_args();
	resume.flags = KFD_IOC_RESUME_FLAG_ANY_OWNER;
	expect("user, any owner", call(kfd, AMDKFD_IOC_RESUME_QUEUE, &resume),
	       EPERM);
	expect("user, low", set_priority(kfd, 0, all, 7), 0);
	expect("user, high", set_priority(kfd, 0, all, 8), EPERM);
	expect("user, other's", set_priority(kfd, getppid(), all, 1), EPERM);
}

static void in_child(void (*run)(void))
{
	int status;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (!child) {
		checks = failures = 0;
		run();
		fflush(stdout);
		_exit(failures ? 1 : 0);
	}
	waitpid(child, &status, 0);
	expect("child", status, 0);
}

static int inherited;

static void check_inherited(void)
{
	struct kfd_ioctl_preempt_queue_args args = preempt_args();

	expect("inherited file",
	       call(inherited, AMDKFD_IOC_PREEMPT_QUEUE, &args), EBADF);
}

static int write_parameter(const char *name, const char *value)
{
	char path[128];
	int file, error;

	snprintf(path, sizeof(path), PARAMETERS "%s", name);
	file = open(path, O_WRONLY);
	if (file < 0)
		return errno;
	error = write(file, value, strlen(value)) < 0 ? errno : 0;
	close(file);
	return error;
}

static void check_scheduler(void)
{
	char text[64] = {};
	int file;

	expect("interval 0", write_parameter("kfd_preempt_interval_ms", "0"), EINVAL);
	expect("interval 11", write_parameter("kfd_preempt_interval_ms", "11"),
	       EINVAL);
	expect("interval 1", write_parameter("kfd_preempt_interval_ms", "1"), 0);
	expect("no slice", write_parameter("kfd_preempt_slice_ms", "0"), EINVAL);
	expect("no aging", write_parameter("kfd_preempt_aging_ms", "0"), 0);
	expect("enable nonsense", write_parameter("kfd_preempt_enable", "x"), EINVAL);
	expect("enable", write_parameter("kfd_preempt_enable", "1"), 0);
	file = open("/sys/kernel/debug/kfd/preempt", O_RDONLY);
	expect("debugfs", file >= 0, 1);
	if (file >= 0 && read(file, text, sizeof(text) - 1) < 0)
		perror("FAILED debugfs");
	expect("statistics", strncmp(text, "enabled 1\n", 10), 0);
	close(file);
	expect("disable", write_parameter("kfd_preempt_enable", "0"), 0);
}

/* Without a device there are no queues to show, but there is the file. */
static void check_queues(void)
{
	int file = open("/sys/kernel/debug/kfd/queues", O_RDONLY);
	char text[64];

	expect("queues", file >= 0, 1);
	if (file < 0)
		return;
	expect("no queues", read(file, text, sizeof(text)), 0);
	close(file);
}

int main(int argc, char **argv)
{
	int is_stock = argc > 1 && !strcmp(argv[1], "stock");
	int kfd = open_kfd();

	check_numbers(kfd, is_stock);
	if (!is_stock) {
		check_bad_preempts(kfd);
		check_bad_resumes(kfd);
		check_memory(kfd);
		check_unknown(kfd);
		check_priorities(kfd);
		check_scheduler();
		check_queues();
		inherited = kfd;
		in_child(check_inherited);
		in_child(check_user);
		fuzz(kfd, 100000);
	}
	printf("%d checks, %d failures\n", checks, failures);
	return failures ? 1 : 0;
}
