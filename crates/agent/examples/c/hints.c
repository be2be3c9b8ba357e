/* Says "a request is coming" and "it is done", many times: hints COUNT
 *
 * A hint costs no system call unless gpreemptd sleeps. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "gpreempt.h"

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

int main(int argc, char **argv) {
    long count = argc > 1 ? atol(argv[1]) : 1000;
    /* The first one connects. */
    int code = gpreempt_hint_begin(0);
    if (code == GPREEMPT_OK) {
        code = gpreempt_hint_end();
    }
    double begun = now_ns();
    for (long i = 0; i < count && code == GPREEMPT_OK; i++) {
        code = gpreempt_hint_begin(5000);
        /* Here the program would launch its kernels and wait for them. */
        if (code == GPREEMPT_OK) {
            code = gpreempt_hint_end();
        }
    }
    double ended = now_ns();
    if (code != GPREEMPT_OK) {
        fprintf(stderr, "hints: %s\n", gpreempt_strerror(code));
        return 1;
    }
    double each = count > 0 ? (ended - begun) / (double)(2 * count) : 0;
    printf("%ld hints, %.0f ns each\n", 2 * count, each);
    return gpreempt_disconnect() == GPREEMPT_OK ? 0 : 1;
}
