/* SPDX-License-Identifier: GPL-2.0 */
/* Calls with random arguments. */
#ifndef FUZZ_H_
#define FUZZ_H_

#include "call.h"

static uint64_t dice = 1;

static uint32_t roll(void)
{
	dice = dice * 6364136223846793005ULL + 1442695040888963407ULL;
	return dice >> 33;
}

/* Random bytes and small numbers. */
static void fill(void *block, size_t size)
{
	uint32_t *words = block;
	size_t i;

	for (i = 0; i < size / 4; i++)
		words[i] = roll() % 3 ? roll() % 5 : roll();
}

/* Queues of ourselves, of init, of nobody and of whoever it may be. */
static void fill_entries(struct kfd_preempt_queue_entry *entries)
{
	uint32_t pids[] = { 0, getpid(), 1, 0x7fffffff, roll() };
	int i;

	for (i = 0; i < 16; i++)
		entries[i] = (struct kfd_preempt_queue_entry) {
			.pid = pids[roll() % 4 + !(roll() % 16)],
			.queue_id = roll() % 8 ? roll() % 4 : roll(),
			.serial = roll() % 4 ? 0 : roll() % 8,
			.result = roll(),
			.reserved = roll() % 64 ? 0 : roll(),
		};
}

/* Arguments as they should be, for any of the calls. */
static void fill_well(unsigned long request, void *block, void *entries)
{
	struct kfd_ioctl_preempt_queue_args preempt = {
		.entries_ptr = (uintptr_t)entries,
		.num_entries = 1 + roll() % 16,
		.entry_size = sizeof(struct kfd_preempt_queue_entry),
		.flags = roll() % 2,
		.timeout_ms = roll() % 3 ? 0 : roll() % 5000,
	};
	struct kfd_ioctl_set_preempt_priority_args priority = {
		.pid = roll() % 2 ? 0 : roll() % 4,
		.queue_id = roll() % 2 ? KFD_IOC_PREEMPT_ALL_QUEUES : roll() % 4,
		.serial = roll() % 4 ? 0 : roll() % 8,
		.priority = roll() % 16,
	};
	struct kfd_ioctl_resume_queue_args resume = {
		.entries_ptr = (uintptr_t)entries,
		.num_entries = 1 + roll() % 16,
		.entry_size = sizeof(struct kfd_preempt_queue_entry),
		.flags = roll() % 2,
	};

	preempt.grace_period = preempt.flags ? roll() % 256 : 0;
	if (request == AMDKFD_IOC_PREEMPT_QUEUE)
		memcpy(block, &preempt, sizeof(preempt));
	else if (request == AMDKFD_IOC_RESUME_QUEUE)
		memcpy(block, &resume, sizeof(resume));
	else
		memcpy(block, &priority, sizeof(priority));
}

/* Sometimes nonsense, mostly good arguments of which one thing may be wrong. */
static void fill_args(unsigned long request, void *block, size_t size,
		      void *entries)
{
	uint64_t pointers[] = { 0, 8, ~0ULL, (uintptr_t)fill };

	fill(block, size);
	if (!(roll() % 4))
		return;
	fill_well(request, block, entries);
	if (!(roll() % 4))
		((uint32_t *)block)[roll() % 8] = roll() % 2 ? roll() : roll() % 9;
	else if (!(roll() % 8))
		memcpy(block, &pointers[roll() % 4], sizeof(uint64_t));
}

static void fuzz(int file, int calls)
{
	unsigned long requests[] = {
		AMDKFD_IOC_PREEMPT_QUEUE, AMDKFD_IOC_RESUME_QUEUE,
		AMDKFD_IOC_SET_PREEMPT_PRIORITY,
	};
	static const int known[] = {
		0, EINVAL, EFAULT, EPERM, ESRCH, ENOENT, ENOTTY, ENOMEM,
		ESTALE,
	};
	static struct kfd_preempt_queue_entry entries[KFD_IOC_PREEMPT_MAX_QUEUES];
	int seen[256] = {};
	int i;

	for (i = 0; i < calls; i++) {
		unsigned long request = requests[roll() % 3];
		uint64_t block[32];
		size_t j;
		int error;

		fill_entries(entries);
		fill_args(request, block, sizeof(block), entries);
		if (!(roll() % 8))
			request = _IOC(roll() % 4, AMDKFD_IOCTL_BASE,
				       0x27 + roll() % 0x20, roll() % 256);
		error = call(file, request, block);
		for (j = 0; j < sizeof(known) / sizeof(*known); j++)
			if (error == known[j])
				break;
		if (j == sizeof(known) / sizeof(*known))
			expect("fuzz", error, 0);
		seen[error & 255]++;
	}
	printf("fuzz: %d calls:", calls);
	for (i = 0; i < 256; i++)
		if (seen[i])
			printf(" %s %d", i ? strerrorname_np(i) : "ok", seen[i]);
	printf("\n");
	checks++;
}

#endif
