/* Many threads at once: hints, lists, suspensions, launches: threads ID, a queue's id. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gpreempt.h"

#define THREADS 8
#define ROUNDS 200

static uint64_t id;
static gpreempt_queue *queue;

#define MUST(wanted, call)                                                                        \
    do {                                                                                          \
        int got = (call);                                                                         \
        if (got != (wanted)) {                                                                    \
            fprintf(stderr, "line %d: " #call " is %d\n", __LINE__, got);                         \
            _exit(1);                                                                             \
        }                                                                                         \
    } while (0)

static int launch(uint32_t flags) {
    uint32_t zero = 0, bytes = 32, busy = 1000;
    void *arguments[4] = {&zero, &zero, &busy, &bytes};
    gpreempt_launch launch;
    memset(&launch, 0, sizeof launch);
    launch.size = sizeof launch;
    launch.grid[0] = launch.grid[1] = launch.grid[2] = 1;
    launch.block[0] = launch.block[1] = launch.block[2] = 1;
    launch.arguments = arguments;
    launch.argument_count = 4;
    launch.flags = flags;
    return gpreempt_launch_kernel(queue, &launch);
}

static void *work(void *number) {
    (void)number;
    for (int i = 0; i < ROUNDS; i++) {
        gpreempt_queue_info info;
        MUST(GPREEMPT_OK, gpreempt_hint_begin(1000));
        MUST(GPREEMPT_OK, gpreempt_hint_begin(1000));
        MUST(GPREEMPT_OK, launch(0));
        MUST(GPREEMPT_OK, gpreempt_hint_end());
        MUST(GPREEMPT_OK, gpreempt_get_queue(id, &info));
        MUST(GPREEMPT_OK, gpreempt_hint_end());
    }
    return NULL;
}

static void *keep_hint(void *barrier) {
    int code = gpreempt_hint_begin(0);
    pthread_barrier_wait((pthread_barrier_t *)barrier);
    pthread_barrier_wait((pthread_barrier_t *)barrier);
    /* It ends without an end: the slot is given back all the same. */
    return (void *)(intptr_t)code;
}

static void *launch_once(void *result) {
    *(int *)result = launch(0);
    return NULL;
}

int main(int argc, char **argv) {
    id = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    MUST(GPREEMPT_OK, gpreempt_queue_create(GPREEMPT_BACKEND_EMULATED, 7, &queue));
    pthread_t threads[70];
    for (int i = 0; i < THREADS; i++) {
        MUST(0, pthread_create(&threads[i], NULL, work, NULL));
    }
    for (int i = 0; i < 20; i++) {
        MUST(GPREEMPT_OK, gpreempt_suspend_queues(&id, 1, 0));
        MUST(GPREEMPT_OK, gpreempt_resume_queues(&id, 1));
    }
    for (int i = 0; i < THREADS; i++) {
        MUST(0, pthread_join(threads[i], NULL));
    }
    MUST(GPREEMPT_OK, gpreempt_queue_synchronize(queue, 30000000));
    uint64_t submitted, completed;
    MUST(GPREEMPT_OK, gpreempt_queue_progress(queue, &submitted, &completed));
    MUST(THREADS * ROUNDS, (int)submitted);
    MUST(THREADS * ROUNDS, (int)completed);
    uint32_t words[8];
    MUST(GPREEMPT_OK, gpreempt_queue_read(queue, 0, words, sizeof words));
    MUST(THREADS * ROUNDS, (int)words[0]);

    /* Level 1: a launch waits at the gate until another thread opens it. */
    int result = 1;
    MUST(GPREEMPT_OK, gpreempt_queue_block(queue));
    MUST(0, pthread_create(&threads[0], NULL, launch_once, &result));
    struct timespec pause = {0, 50000000};
    nanosleep(&pause, NULL);
    MUST(GPREEMPT_OK, gpreempt_queue_progress(queue, &submitted, &completed));
    MUST(THREADS * ROUNDS, (int)submitted);
    MUST(GPREEMPT_ERROR_BUSY, launch(GPREEMPT_LAUNCH_NO_WAIT));
    MUST(GPREEMPT_OK, gpreempt_queue_unblock(queue));
    MUST(0, pthread_join(threads[0], NULL));
    MUST(GPREEMPT_OK, result);
    MUST(GPREEMPT_OK, gpreempt_queue_destroy(queue));

    /* 63 threads have room on the page, and their slots come back. */
    for (int round = 0; round < 2; round++) {
        pthread_barrier_t barrier;
        MUST(0, pthread_barrier_init(&barrier, NULL, 71));
        for (int i = 0; i < 70; i++) {
            MUST(0, pthread_create(&threads[i], NULL, keep_hint, &barrier));
        }
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        int good = 0, full = 0;
        for (int i = 0; i < 70; i++) {
            void *code;
            MUST(0, pthread_join(threads[i], &code));
            good += (intptr_t)code == GPREEMPT_OK;
            full += (intptr_t)code == GPREEMPT_ERROR_LIMIT;
        }
        MUST(63, good);
        MUST(7, full);
        pthread_barrier_destroy(&barrier);
    }
    MUST(GPREEMPT_OK, gpreempt_disconnect());
    printf("all threads are through\n");
    return 0;
}
