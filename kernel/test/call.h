/* SPDX-License-Identifier: GPL-2.0 */
/* Calling KFD, and comparing the answer with what it should be. */
#ifndef CALL_H_
#define CALL_H_

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <linux/kfd_ioctl.h>

static int failures;
static int checks;

static void expect(const char *what, long got, long wanted)
{
	checks++;
	if (got == wanted)
		return;
	failures++;
	printf("FAILED %s: %ld, not %ld\n", what, got, wanted);
}

/* 0 or the error number. */
static int call(int kfd, unsigned long request, void *args)
{
	return ioctl(kfd, request, args) < 0 ? errno : 0;
}

static int open_kfd(void)
{
	int kfd = open("/dev/kfd", O_RDWR | O_CLOEXEC);

	if (kfd < 0) {
		perror("FAILED /dev/kfd");
		exit(1);
	}
	return kfd;
}

#endif
