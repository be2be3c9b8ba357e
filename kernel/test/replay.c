// SPDX-License-Identifier: GPL-2.0
/* Replays the table of cases with the kernel's policy, in user space. */

#include <stdio.h>

#include "kfd_preempt_replay.h"
#include "kfd_preempt_vectors.h"

int main(void)
{
	static struct kfd_replay replay = { .row = kfd_preempt_vectors };
	unsigned int differences = 0;
	u32 off, active;

	while (kfd_replay_next(&replay, &off, &active)) {
		if (replay.off == off && replay.active == active)
			continue;
		fprintf(stderr, "case %u, step %u: off %#x should be %#x, active %#x should be %#x\n",
			replay.cases, replay.steps, replay.off, off, replay.active, active);
		if (++differences == 10)
			break;
	}
	printf("%u cases with %u steps, %u differences\n", replay.cases, replay.steps,
	       differences);
	return differences ? 1 : replay.cases < 500;
}
