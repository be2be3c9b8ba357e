/* A child that was forked has a connection of its own: fork ID, a queue's id.
 *
 * The parent suspends the queue; the child cannot resume it, gives hints, suspends it as well, and
 * ends. Then a second child outlives the parent's connection: the queue must go on all the same. At
 * the end the program is replaced by another (exec), which ends its connection too. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gpreempt.h"

#define MUST(wanted, call)                                                                        \
    do {                                                                                          \
        int got = (call);                                                                         \
        if (got != (wanted)) {                                                                    \
            fprintf(stderr, "line %d: " #call " is %d\n", __LINE__, got);                         \
            _exit(1);                                                                             \
        }                                                                                         \
    } while (0)

static uint32_t flags(uint64_t id) {
    gpreempt_queue_info queue;
    MUST(GPREEMPT_OK, gpreempt_get_queue(id, &queue));
    return queue.flags;
}

static void wait_for(pid_t child) {
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "the child failed\n");
        exit(1);
    }
}

static void until_it_may_run(uint64_t id) {
    for (int i = 0; i < 3000 && (flags(id) & GPREEMPT_QUEUE_SUSPENDED); i++) {
        struct timespec pause = {0, 10000000};
        nanosleep(&pause, NULL);
    }
    MUST(0, (int)(flags(id) & GPREEMPT_QUEUE_SUSPENDED));
}

int main(int argc, char **argv) {
    uint64_t id = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    gpreempt_queue *queue;
    MUST(GPREEMPT_OK, gpreempt_queue_create(GPREEMPT_BACKEND_EMULATED, 2, &queue));
    MUST(GPREEMPT_OK, gpreempt_hint_begin(0));
    MUST(GPREEMPT_OK, gpreempt_suspend_queues(&id, 1, 0));
    pid_t child = fork();
    if (child == 0) {
        MUST(GPREEMPT_ERROR_STATE, gpreempt_hint_end());
        MUST(GPREEMPT_OK, gpreempt_hint_begin(0));
        MUST(GPREEMPT_OK, gpreempt_hint_end());
        MUST(GPREEMPT_QUEUE_SUSPENDED,
             (int)(flags(id) & (GPREEMPT_QUEUE_SUSPENDED | GPREEMPT_QUEUE_SUSPENDED_BY_US)));
        MUST(GPREEMPT_ERROR_STATE, gpreempt_resume_queues(&id, 1));
        MUST(GPREEMPT_OK, gpreempt_suspend_queues(&id, 1, 0));
        MUST(GPREEMPT_ERROR_STATE, gpreempt_queue_synchronize(queue, 0));
        MUST(GPREEMPT_ERROR_STATE, gpreempt_queue_block(queue));
        MUST(GPREEMPT_OK, gpreempt_queue_destroy(queue));
        _exit(0);
    }
    wait_for(child);
    /* What the child had suspended and the child's end are nothing to the parent. */
    MUST(GPREEMPT_QUEUE_SUSPENDED_BY_US, (int)(flags(id) & GPREEMPT_QUEUE_SUSPENDED_BY_US));
    MUST(GPREEMPT_OK, gpreempt_hint_end());
    MUST(GPREEMPT_OK, gpreempt_queue_synchronize(queue, 0));

    /* A child that calls nothing must not keep the parent's connection open. */
    child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    pid_t parent = fork();
    if (parent == 0) {
        /* This one has a connection of its own, and a child of its own that keeps quiet. */
        MUST(GPREEMPT_OK, gpreempt_suspend_queues(&id, 1, 0));
        if (fork() == 0) {
            struct timespec long_time = {5, 0};
            nanosleep(&long_time, NULL);
            _exit(0);
        }
        abort();
    }
    int status;
    waitpid(parent, &status, 0);
    MUST(GPREEMPT_OK, gpreempt_resume_queues(&id, 1));
    until_it_may_run(id);
    kill(child, 9);
    waitpid(child, &status, 0);

    MUST(GPREEMPT_OK, gpreempt_queue_destroy(queue));
    MUST(GPREEMPT_OK, gpreempt_suspend_queues(&id, 1, 0));
    execl("/bin/sh", "sh", "-c", "echo replaced", (char *)NULL);
    return 1;
}
