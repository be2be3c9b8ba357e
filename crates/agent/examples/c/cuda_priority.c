/* Submits to CUDA with two priorities and measures: cuda_priority [REQUESTS [KERNEL_US]]
 *
 * A thread keeps an unimportant queue full of long kernels; this thread sends short requests
 * through an important one, first alone, then beside them, with the gate of the unimportant queue
 * and without. Prints one line of JSON. Needs an NVIDIA GPU and its driver, but no gpreemptd:
 * streams of one process have priorities by themselves, and the gate is level 1. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpreempt.h"

/* Every thread is busy for a number of nanoseconds; thread 0 of each block counts itself. */
static const char PTX[] =
    ".version 6.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".visible .entry busy(.param .u64 counter, .param .u64 nanoseconds)\n"
    "{\n"
    "  .reg .pred %p<3>;\n"
    "  .reg .u32 %r<3>;\n"
    "  .reg .u64 %d<7>;\n"
    "  ld.param.u64 %d1, [counter];\n"
    "  ld.param.u64 %d2, [nanoseconds];\n"
    "  mov.u64 %d3, %globaltimer;\n"
    "  add.u64 %d4, %d3, %d2;\n"
    "again:\n"
    "  mov.u64 %d5, %globaltimer;\n"
    "  setp.lt.u64 %p1, %d5, %d4;\n"
    "  @%p1 bra again;\n"
    "  mov.u32 %r1, %tid.x;\n"
    "  setp.ne.u32 %p2, %r1, 0;\n"
    "  @%p2 bra done;\n"
    "  cvta.to.global.u64 %d6, %d1;\n"
    "  red.global.add.u32 [%d6], 1;\n"
    "done:\n"
    "  ret;\n"
    "}\n";

#define BLOCKS 1056 /* more than any GPU runs at once, so that a kernel fills it */
#define THREADS 1024

typedef int (*init_t)(unsigned);
typedef int (*get_device_t)(int *, int);
typedef int (*retain_t)(void **, int);
typedef int (*set_current_t)(void *);
typedef int (*load_t)(void **, const void *);
typedef int (*function_t)(void **, void *, const char *);
typedef int (*allocate_t)(uint64_t *, size_t);
typedef int (*fill_t)(uint64_t, unsigned, size_t);
typedef int (*read_t)(void *, uint64_t, size_t);

static void *driver;
static void *context;
static void *kernel;
static uint64_t counters;
static atomic_int is_over;
static atomic_uint low_launches;
static uint64_t low_ns;

static void *symbol(const char *name) {
    void *found = dlsym(driver, name);
    if (found == NULL) {
        fprintf(stderr, "cuda_priority: libcuda has no %s\n", name);
        exit(1);
    }
    return found;
}

static void check(const char *what, int code) {
    if (code != 0) {
        char why[256];
        gpreempt_last_message(why, sizeof why);
        fprintf(stderr, "cuda_priority: %s: %d (%s)\n", what, code, why);
        exit(1);
    }
}

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void submit(gpreempt_queue *queue, uint64_t counter, unsigned blocks, uint64_t ns) {
    void *arguments[2] = {&counter, &ns};
    gpreempt_launch launch;
    memset(&launch, 0, sizeof launch);
    launch.size = sizeof launch;
    launch.kernel = (size_t)kernel;
    launch.grid[0] = blocks;
    launch.grid[1] = launch.grid[2] = 1;
    launch.block[0] = THREADS;
    launch.block[1] = launch.block[2] = 1;
    launch.arguments = arguments;
    check("launch", gpreempt_launch_kernel(queue, &launch));
}

static void *keep_full(void *queue) {
    set_current_t set_current;
    *(void **)&set_current = symbol("cuCtxSetCurrent");
    check("cuCtxSetCurrent", set_current(context));
    while (!atomic_load(&is_over)) {
        submit((gpreempt_queue *)queue, counters, BLOCKS, low_ns);
        atomic_fetch_add(&low_launches, 1);
    }
    return NULL;
}

static int compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Requests of one short kernel; prints their latency in microseconds. */
static void measure(const char *name, gpreempt_queue *queue, double *us, int requests) {
    for (int i = 0; i < requests; i++) {
        double begun = now_us();
        submit(queue, counters + 4, 4, 20000);
        check("synchronize", gpreempt_queue_synchronize(queue, GPREEMPT_FOREVER));
        us[i] = now_us() - begun;
        struct timespec gap = {0, 200000};
        nanosleep(&gap, NULL);
    }
    qsort(us, (size_t)requests, sizeof *us, compare);
    printf("\"%s\":{\"n\":%d,\"p50_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f},", name, requests,
           us[requests / 2], us[requests * 99 / 100], us[requests - 1]);
}

/* The same beside a full unimportant queue of that depth. Returns how much that one did. */
static unsigned beside(const char *name, unsigned depth, int priority, gpreempt_queue *high,
                       double *us, int requests) {
    gpreempt_queue_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.backend = GPREEMPT_BACKEND_CUDA;
    options.priority = priority;
    options.depth = depth;
    gpreempt_queue *low;
    check("low queue", gpreempt_queue_create_with(&options, &low));
    atomic_store(&is_over, 0);
    atomic_store(&low_launches, 0);
    pthread_t thread;
    check("pthread_create", pthread_create(&thread, NULL, keep_full, low));
    struct timespec warm = {0, 100000000};
    nanosleep(&warm, NULL);
    measure(name, high, us, requests);
    atomic_store(&is_over, 1);
    check("pthread_join", pthread_join(thread, NULL));
    check("synchronize", gpreempt_queue_synchronize(low, GPREEMPT_FOREVER));
    check("destroy", gpreempt_queue_destroy(low));
    return atomic_load(&low_launches);
}

static void open_driver(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        fprintf(stderr, "cuda_priority: no libcuda.so.1: this needs an NVIDIA driver\n");
        exit(77);
    }
    init_t init;
    get_device_t get_device;
    retain_t retain;
    set_current_t set_current;
    load_t load;
    function_t function;
    allocate_t allocate;
    fill_t fill;
    *(void **)&init = symbol("cuInit");
    *(void **)&get_device = symbol("cuDeviceGet");
    *(void **)&retain = symbol("cuDevicePrimaryCtxRetain");
    *(void **)&set_current = symbol("cuCtxSetCurrent");
    *(void **)&load = symbol("cuModuleLoadData");
    *(void **)&function = symbol("cuModuleGetFunction");
    *(void **)&allocate = symbol("cuMemAlloc_v2");
    *(void **)&fill = symbol("cuMemsetD32_v2");
    int device;
    void *module;
    check("cuInit", init(0));
    check("cuDeviceGet", get_device(&device, 0));
    check("cuDevicePrimaryCtxRetain", retain(&context, device));
    check("cuCtxSetCurrent", set_current(context));
    check("cuModuleLoadData", load(&module, PTX));
    check("cuModuleGetFunction", function(&kernel, module, "busy"));
    check("cuMemAlloc", allocate(&counters, 8));
    check("cuMemsetD32", fill(counters, 0, 2));
}

int main(int argc, char **argv) {
    int requests = argc > 1 ? atoi(argv[1]) : 2000;
    low_ns = argc > 2 ? strtoull(argv[2], NULL, 10) * 1000 : 500000;
    double *us = (double *)calloc((size_t)(requests > 0 ? requests : 1), sizeof *us);
    if (requests < 1 || us == NULL) {
        fprintf(stderr, "cuda_priority [REQUESTS [KERNEL_US]]\n");
        return 2;
    }
    open_driver();
    gpreempt_queue *high;
    check("high queue", gpreempt_queue_create(GPREEMPT_BACKEND_CUDA, 12, &high));
    printf("{\"low_kernel_us\":%.0f,", (double)low_ns / 1000);
    measure("alone", high, us, requests);
    unsigned launched = beside("high_beside_low_gated_4", 4, 2, high, us, requests);
    launched += beside("high_beside_low_gated_64", 64, 2, high, us, requests);
    launched += beside("high_beside_high_gated_64", 64, 12, high, us, requests);
    /* What ran is what was launched: nothing lost, nothing twice. */
    uint32_t counts[2];
    read_t read;
    *(void **)&read = symbol("cuMemcpyDtoH_v2");
    check("cuMemcpyDtoH", read(counts, counters, sizeof counts));
    int is_exact = counts[0] == launched * (uint32_t)BLOCKS &&
                   counts[1] == 4u * 4u * (uint32_t)requests;
    printf("\"low_launches\":%u,\"exact\":%s}\n", launched, is_exact ? "true" : "false");
    check("destroy", gpreempt_queue_destroy(high));
    free(us);
    return is_exact ? 0 : 1;
}
