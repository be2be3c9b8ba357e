/* Suspends all queues up to a priority for a while: suspend_resume PRIORITY MILLISECONDS
 *
 * If this program is killed meanwhile, gpreemptd lets them go on. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "gpreempt.h"

#define QUEUES_MAX 256

static int fail(const char *what, int code) {
    char why[256];
    gpreempt_last_message(why, sizeof why);
    fprintf(stderr, "suspend_resume: %s: %s (%s)\n", what, gpreempt_strerror(code), why);
    return 1;
}

int main(int argc, char **argv) {
    int priority = argc > 1 ? atoi(argv[1]) : GPREEMPT_PRIORITY_LOW_HIGHEST;
    long ms = argc > 2 ? atol(argv[2]) : 1000;
    uint64_t ids[QUEUES_MAX];
    size_t count = 0;
    int code = gpreempt_find_queues_by_priority(GPREEMPT_PRIORITY_LOWEST, priority, ids, QUEUES_MAX,
                                                &count);
    if (code != GPREEMPT_OK) {
        return fail("find", code);
    }
    /* Half a millisecond to finish what they have; they are off when this returns. */
    code = gpreempt_suspend_queues(ids, count, 500);
    if (code != GPREEMPT_OK) {
        return fail("suspend", code);
    }
    printf("%zu queues are off\n", count);
    fflush(stdout);
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
    for (size_t i = 0; i < count; i++) {
        gpreempt_queue_info queue;
        code = gpreempt_get_queue(ids[i], &queue);
        if (code == GPREEMPT_OK && (queue.flags & GPREEMPT_QUEUE_ON)) {
            fprintf(stderr, "suspend_resume: a queue came back by itself\n");
            return 1;
        }
    }
    code = gpreempt_resume_queues(ids, count);
    if (code != GPREEMPT_OK) {
        return fail("resume", code);
    }
    printf("%zu queues may run\n", count);
    return gpreempt_disconnect() == GPREEMPT_OK ? 0 : 1;
}
