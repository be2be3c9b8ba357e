/* Stops one queue between two kernels, then in the middle of one: interrupt_restore ID
 *
 * Levels 2 and 3 of the XSched interface. gpreempt_level() says how deep a device's preempts
 * reach. */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "gpreempt.h"

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

int main(int argc, char **argv) {
    uint64_t id = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    int level = 0;
    int code = gpreempt_level(id, &level);
    if (code != GPREEMPT_OK) {
        fprintf(stderr, "interrupt_restore: %s\n", gpreempt_strerror(code));
        return 1;
    }
    printf("queue %" PRIu64 ": level %d\n", id, level);
    /* A device that saves kernels in the middle need not offer the shallower level 2. */
    uint64_t asked = now_us();
    code = gpreempt_deactivate(id);
    if (code == GPREEMPT_OK) {
        printf("level 2: its kernel has ended after %" PRIu64 " us\n", now_us() - asked);
        code = gpreempt_reactivate(id);
    } else if (code == GPREEMPT_ERROR_UNSUPPORTED) {
        printf("level 2: %s\n", gpreempt_strerror(code));
        code = GPREEMPT_OK;
    }
    uint64_t begun = now_us();
    if (code == GPREEMPT_OK && level >= GPREEMPT_LEVEL_INTERRUPT) {
        code = gpreempt_interrupt(id);
        uint64_t done = now_us();
        gpreempt_queue_info queue;
        if (code == GPREEMPT_OK && gpreempt_get_queue(id, &queue) == GPREEMPT_OK) {
            printf("off after %" PRIu64 " us, %" PRIu64 " launches wait\n", done - begun,
                   queue.pending);
            code = gpreempt_restore(id);
        }
    }
    if (code != GPREEMPT_OK) {
        fprintf(stderr, "interrupt_restore: %s\n", gpreempt_strerror(code));
        return 1;
    }
    printf("restored\n");
    return gpreempt_disconnect() == GPREEMPT_OK ? 0 : 1;
}
