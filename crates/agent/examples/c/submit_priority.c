/* Submits to the emulated GPU with two priorities: submit_priority
 *
 * An unimportant queue is kept full of long kernels; an important one sends short requests. The
 * memory of both proves that every kernel ran exactly once. GPREEMPT_EMULATED_SOCKET says where the
 * emulated GPU listens, GPREEMPT_SOCKET where gpreemptd does. */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpreempt.h"

#define KERNEL_COUNTER 0 /* adds its number and one to eight words for each wave */
#define LOW_KERNELS 40
#define REQUESTS 20

static int check(const char *what, int code) {
    if (code != GPREEMPT_OK) {
        char why[256];
        gpreempt_last_message(why, sizeof why);
        fprintf(stderr, "submit_priority: %s: %s (%s)\n", what, gpreempt_strerror(code), why);
        exit(1);
    }
    return code;
}

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void submit(gpreempt_queue *queue, uint32_t number, uint32_t work_ns) {
    uint32_t region = 0, region_bytes = 32;
    void *arguments[4] = {&region, &number, &work_ns, &region_bytes};
    gpreempt_launch launch;
    memset(&launch, 0, sizeof launch);
    launch.size = sizeof launch;
    launch.kernel = KERNEL_COUNTER;
    launch.grid[0] = launch.grid[1] = launch.grid[2] = 1;
    launch.block[0] = launch.block[1] = launch.block[2] = 1;
    launch.arguments = arguments;
    launch.argument_count = 4;
    check("launch", gpreempt_launch_kernel(queue, &launch));
}

static void check_memory(gpreempt_queue *queue, uint32_t kernels) {
    uint32_t words[8];
    check("read", gpreempt_queue_read(queue, 0, words, sizeof words));
    for (int i = 0; i < 8; i++) {
        if (words[i] != kernels * (kernels + 1) / 2) {
            fprintf(stderr, "submit_priority: word %d is %" PRIu32 "\n", i, words[i]);
            exit(1);
        }
    }
}

int main(void) {
    gpreempt_queue *low, *high;
    check("low queue", gpreempt_queue_create(GPREEMPT_BACKEND_EMULATED, 3, &low));
    check("high queue", gpreempt_queue_create(GPREEMPT_BACKEND_EMULATED, 7, &high));
    uint64_t id = 0, submitted = 0, completed = 0, in_flight_max = 0;
    check("id", gpreempt_queue_id(low, &id));
    double worst = 0, sum = 0;
    uint32_t requests = 0;
    for (uint32_t i = 0; i < LOW_KERNELS; i++) {
        submit(low, i, 2 * 1000 * 1000);
        check("progress", gpreempt_queue_progress(low, &submitted, &completed));
        if (submitted - completed > in_flight_max) {
            in_flight_max = submitted - completed;
        }
        if (i % 2 == 0) {
            double begun = now_us();
            submit(high, requests++, 50 * 1000);
            check("synchronize", gpreempt_queue_synchronize(high, 30 * 1000 * 1000));
            double took = now_us() - begun;
            sum += took;
            worst = took > worst ? took : worst;
        }
    }
    check("synchronize", gpreempt_queue_synchronize(low, 60 * 1000 * 1000));
    check_memory(low, LOW_KERNELS);
    check_memory(high, requests);
    printf("queue %" PRIu64 ": at most %" PRIu64 " of its kernels were in flight\n", id,
           in_flight_max);
    printf("%" PRIu32 " requests: %.0f us on average, %.0f us at worst; memory is exact\n",
           requests, sum / requests, worst);
    check("destroy", gpreempt_queue_destroy(high));
    check("destroy", gpreempt_queue_destroy(low));
    return gpreempt_disconnect() == GPREEMPT_OK && in_flight_max <= 4 ? 0 : 1;
}
