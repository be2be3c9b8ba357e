/* SPDX-License-Identifier: GPL-2.0 */
/* Calls with random arguments. */
#ifndef FUZZ_H_
#define FUZZ_H_

#include "call.h"

#define FUZZ_CALLS	100000

static uint64_t dice = 1;

static uint32_t roll(void)
{
	dice = dice * 6364136223846793005ULL + 1442695040888963407ULL;
	return dice >> 33;
}

/* Random bytes, small numbers, and pointers to something. */
static void fill(void *block, size_t size, char *array)
{
	uint64_t pointers[] = { 0, 8, ~0ULL, (uintptr_t)array, (uintptr_t)fill };
	uint32_t *words = block;
	size_t i;

	for (i = 0; i < size / 4; i++)
		words[i] = roll() % 3 ? roll() % 5 : roll();
	if (roll() % 8)
		*(uint64_t *)block = pointers[roll() % 5];
	if (roll() % 2)
		words[3] = sizeof(struct kfd_preempt_queue_entry);
}

static void fuzz(int kfd)
{
	unsigned long requests[] = {
		AMDKFD_IOC_PREEMPT_QUEUE, AMDKFD_IOC_RESUME_QUEUE,
		AMDKFD_IOC_SET_PREEMPT_PRIORITY,
	};
	static const int known[] = {
		0, EINVAL, EFAULT, EPERM, ESRCH, ENOENT, ENOTTY, ENOMEM,
	};
	static char array[KFD_IOC_PREEMPT_MAX_QUEUES *
			  sizeof(struct kfd_preempt_queue_entry)];
	int seen[256] = {};
	int i;

	for (i = 0; i < FUZZ_CALLS; i++) {
		unsigned long request = requests[roll() % 3];
		uint64_t block[32];
		size_t j;
		int error;

		/* The array first: its own first word is no pointer. */
		fill(array, 256, array);
		fill(block, sizeof(block), array);
		if (!(roll() % 4))
			request = _IOC(roll() % 4, AMDKFD_IOCTL_BASE,
				       0x27 + roll() % 0x20, roll() % 256);
		error = call(kfd, request, block);
		for (j = 0; j < sizeof(known) / sizeof(*known); j++)
			if (error == known[j])
				break;
		if (j == sizeof(known) / sizeof(*known))
			expect("fuzz", error, 0);
		seen[error & 255]++;
	}
	printf("fuzz: %d calls:", FUZZ_CALLS);
	for (i = 0; i < 256; i++)
		if (seen[i])
			printf(" %s %d", i ? strerrorname_np(i) : "ok", seen[i]);
	printf("\n");
	checks++;
}

#endif
