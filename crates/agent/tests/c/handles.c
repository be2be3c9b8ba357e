/* Handles, sizes and strings that are wrong, calls during a destroy, in a child and in signal
 * handlers: every one returns a code at once. Needs gpreemptd and an emulated GPU. The alarm ends
 * a program that hangs. */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpreempt.h"

#define THREADS 8
#define PATH_BYTES 4096

#define MUST(wanted, call)                                                                        \
    do {                                                                                          \
        long got = (call);                                                                        \
        if (got != (wanted)) {                                                                    \
            char why[256];                                                                        \
            gpreempt_last_message(why, sizeof why);                                               \
            fprintf(stderr, "line %d: %s is %ld (%s)\n", __LINE__, #call, got, why);             \
            _exit(1);                                                                             \
        }                                                                                         \
    } while (0)

static gpreempt_queue *create(void) {
    gpreempt_queue *queue = NULL;
    MUST(GPREEMPT_OK, gpreempt_queue_create(GPREEMPT_BACKEND_EMULATED, 2, &queue));
    return queue;
}

static int launch_for(gpreempt_queue *queue, uint32_t work_ns) {
    uint32_t zero = 0, bytes = 32;
    void *arguments[4] = {&zero, &zero, &work_ns, &bytes};
    gpreempt_launch launch;
    memset(&launch, 0, sizeof launch);
    launch.size = sizeof launch;
    launch.grid[0] = launch.grid[1] = launch.grid[2] = 1;
    launch.block[0] = launch.block[1] = launch.block[2] = 1;
    launch.arguments = arguments;
    launch.argument_count = 4;
    return gpreempt_launch_kernel(queue, &launch);
}

/* Every function that takes a queue. */
static void must_all_be(int wanted, gpreempt_queue *queue) {
    uint64_t number = 7;
    void *stream = NULL;
    char memory[8];
    MUST(wanted, launch_for(queue, 1000));
    MUST(wanted, gpreempt_queue_synchronize(queue, GPREEMPT_FOREVER));
    MUST(wanted, gpreempt_queue_block(queue));
    MUST(wanted, gpreempt_queue_unblock(queue));
    MUST(wanted, gpreempt_queue_progress(queue, &number, &number));
    MUST(wanted, gpreempt_queue_id(queue, &number));
    MUST(wanted, gpreempt_queue_stream(queue, &stream));
    MUST(wanted, gpreempt_queue_read(queue, 0, memory, sizeof memory));
    MUST(7, (long)number);
}

static void handles(void) {
    int local = 0;
    gpreempt_queue *queue = create();
    gpreempt_queue *wild[] = {(gpreempt_queue *)1, (gpreempt_queue *)&local,
                              (gpreempt_queue *)UINTPTR_MAX,
                              (gpreempt_queue *)((uintptr_t)queue + 1),
                              (gpreempt_queue *)((uintptr_t)queue ^ (uintptr_t)1 << 50)};
    for (size_t i = 0; i < sizeof wild / sizeof *wild; i++) {
        must_all_be(GPREEMPT_ERROR_ARGUMENT, wild[i]);
        MUST(GPREEMPT_ERROR_ARGUMENT, gpreempt_queue_destroy(wild[i]));
    }
    must_all_be(GPREEMPT_ERROR_ARGUMENT, NULL);
    MUST(GPREEMPT_OK, gpreempt_queue_synchronize(queue, 0));
    MUST(GPREEMPT_OK, gpreempt_queue_destroy(queue));
    MUST(GPREEMPT_ERROR_NO_SUCH_QUEUE, gpreempt_queue_destroy(queue));
    must_all_be(GPREEMPT_ERROR_NO_SUCH_QUEUE, queue);
    /* Another queue does not bring it back. */
    gpreempt_queue *other = create();
    must_all_be(GPREEMPT_ERROR_NO_SUCH_QUEUE, queue);
    MUST(GPREEMPT_OK, gpreempt_queue_destroy(other));
}

static void sizes(void) {
    gpreempt_queue *queue = create();
    uint64_t ids[2] = {1, 2}, same = 7;
    gpreempt_queue_info infos[16];
    char memory[64], why[512];
    size_t count = 0;
    size_t huge[] = {SIZE_MAX, SIZE_MAX / 2, (size_t)1 << 32, 65537};
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        MUST(GPREEMPT_ERROR_ARGUMENT, gpreempt_queue_read(queue, 0, memory, huge[i]));
        MUST(GPREEMPT_ERROR_LIMIT, gpreempt_suspend_queues(ids, huge[i], 0));
        MUST(GPREEMPT_ERROR_LIMIT, gpreempt_resume_queues(ids, huge[i]));
        MUST(GPREEMPT_OK, gpreempt_get_all_queues(infos, huge[i], &count));
        MUST(1, gpreempt_last_message(why, huge[i]) < sizeof why);
    }
    MUST(GPREEMPT_ERROR_ARGUMENT, gpreempt_queue_read(queue, 65536 - 7, memory, 8));
    MUST(GPREEMPT_ERROR_ARGUMENT, gpreempt_queue_read(queue, UINT32_MAX, memory, 2));
    MUST(GPREEMPT_OK, gpreempt_queue_read(queue, 65536 - 8, memory, 8));
    char *all = (char *)malloc(65536);
    memset(all, 1, 65536);
    MUST(GPREEMPT_OK, gpreempt_queue_read(queue, 0, all, 65536));
    MUST(0, all[0] | all[32767] | all[32768] | all[65535]);
    free(all);
    /* Results that overlap, and a pointer into the middle of a number. */
    MUST(GPREEMPT_OK, gpreempt_queue_progress(queue, &same, &same));
    MUST(GPREEMPT_ERROR_ARGUMENT, gpreempt_queue_id(queue, (uint64_t *)(memory + 1)));
    MUST(GPREEMPT_ERROR_ARGUMENT, gpreempt_get_queue(1, (gpreempt_queue_info *)(memory + 1)));
    MUST(GPREEMPT_OK, gpreempt_queue_destroy(queue));
}

static void strings(void) {
    size_t count;
    static char long_path[3 * PATH_BYTES];
    memset(long_path, 'a', sizeof long_path - 1);
    MUST(GPREEMPT_OK, gpreempt_get_all_queues(NULL, 0, &count));
    MUST(GPREEMPT_ERROR_NO_DAEMON, gpreempt_connect("/nowhere/gpreemptd.sock"));
    /* After a failure the connection is the same as before. */
    MUST(GPREEMPT_OK, gpreempt_get_all_queues(NULL, 0, &count));
    MUST(GPREEMPT_ERROR_ARGUMENT, gpreempt_connect(long_path));
    long_path[200] = 0;
    MUST(GPREEMPT_ERROR_ARGUMENT, gpreempt_connect(long_path));
    MUST(1, gpreempt_connect("") != GPREEMPT_OK);
    /* A path without an end, before a page that cannot be read. */
    char *pages = (char *)mmap(NULL, 2 * PATH_BYTES, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(1, pages != MAP_FAILED);
    memset(pages, 'a', PATH_BYTES);
    MUST(0, mprotect(pages + PATH_BYTES, PATH_BYTES, PROT_NONE));
    MUST(GPREEMPT_ERROR_ARGUMENT, gpreempt_connect(pages));
    gpreempt_queue_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.backend = GPREEMPT_BACKEND_EMULATED;
    options.socket = pages;
    gpreempt_queue *queue = NULL;
    MUST(GPREEMPT_ERROR_ARGUMENT, gpreempt_queue_create_with(&options, &queue));
    options.socket = "/nowhere/gpu";
    MUST(GPREEMPT_ERROR_NO_DEVICE, gpreempt_queue_create_with(&options, &queue));
    options.socket = NULL;
    options.memory_bytes = UINT32_MAX;
    MUST(1, gpreempt_queue_create_with(&options, &queue) != GPREEMPT_OK && queue == NULL);
    munmap(pages, 2 * PATH_BYTES);
    MUST(GPREEMPT_OK, gpreempt_get_all_queues(NULL, 0, &count));
}

static gpreempt_queue *shared;
static pthread_barrier_t ready;

static void *launches(void *code) {
    pthread_barrier_wait(&ready);
    *(int *)code = launch_for(shared, 1000);
    return NULL;
}

static void *synchronizes(void *code) {
    pthread_barrier_wait(&ready);
    *(int *)code = gpreempt_queue_synchronize(shared, GPREEMPT_FOREVER);
    return NULL;
}

static void *reads_progress(void *code) {
    uint64_t submitted, completed;
    pthread_barrier_wait(&ready);
    do {
        *(int *)code = gpreempt_queue_progress(shared, &submitted, &completed);
    } while (*(int *)code == GPREEMPT_OK);
    return NULL;
}

static void *destroys(void *code) {
    pthread_barrier_wait(&ready);
    *(int *)code = gpreempt_queue_destroy(shared);
    return NULL;
}

/* Threads use a queue in these ways while this one destroys it. */
static void destroy_during(void *(*first)(void *), void *(*second)(void *), int is_blocked) {
    pthread_t threads[THREADS];
    int codes[THREADS];
    shared = create();
    MUST(GPREEMPT_OK, launch_for(shared, 2000000000));
    if (is_blocked) {
        MUST(GPREEMPT_OK, gpreempt_queue_block(shared));
    }
    MUST(0, pthread_barrier_init(&ready, NULL, THREADS + 1));
    for (int i = 0; i < THREADS; i++) {
        MUST(0, pthread_create(&threads[i], NULL, i % 2 ? first : second, &codes[i]));
    }
    pthread_barrier_wait(&ready);
    usleep(20000);
    int code = gpreempt_queue_destroy(shared);
    int destroyed = code == GPREEMPT_OK;
    MUST(1, code == GPREEMPT_OK || code == GPREEMPT_ERROR_NO_SUCH_QUEUE);
    for (int i = 0; i < THREADS; i++) {
        MUST(0, pthread_join(threads[i], NULL));
        MUST(1, codes[i] == GPREEMPT_OK || codes[i] == GPREEMPT_ERROR_NO_SUCH_QUEUE);
        if (first == destroys) {
            destroyed += codes[i] == GPREEMPT_OK;
        } else {
            MUST(GPREEMPT_ERROR_NO_SUCH_QUEUE, codes[i]);
        }
    }
    MUST(1, destroyed);
    pthread_barrier_destroy(&ready);
}

static void children(void) {
    gpreempt_queue *queue = create();
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        must_all_be(GPREEMPT_ERROR_STATE, queue);
        MUST(GPREEMPT_OK, gpreempt_queue_destroy(queue));
        must_all_be(GPREEMPT_ERROR_ARGUMENT, (gpreempt_queue *)&queue);
        gpreempt_queue *own = create();
        MUST(GPREEMPT_OK, gpreempt_queue_destroy(own));
        must_all_be(GPREEMPT_ERROR_NO_SUCH_QUEUE, own);
        _exit(0);
    }
    int status = 1;
    MUST(child, waitpid(child, &status, 0));
    MUST(0, status);
    MUST(GPREEMPT_OK, gpreempt_queue_synchronize(queue, 0));
    MUST(GPREEMPT_OK, gpreempt_queue_destroy(queue));
}

static volatile sig_atomic_t signals, refused, wrong, is_over;

static void *sends_signals(void *to) {
    while (!is_over) {
        pthread_kill(*(pthread_t *)to, SIGUSR1);
        usleep(300);
    }
    return NULL;
}

static void on_signal(int number) {
    (void)number;
    uint64_t submitted, completed;
    int code = gpreempt_queue_progress(shared, &submitted, &completed);
    signals++;
    refused += code == GPREEMPT_ERROR_STATE;
    wrong += code != GPREEMPT_ERROR_STATE && code != GPREEMPT_OK;
}

/* A handler that calls the library is refused where it interrupts a call, and never hangs; calls
 * that a signal interrupts go on. */
static void in_signal_handlers(void) {
    shared = create();
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    MUST(0, sigaction(SIGUSR1, &action, NULL));
    pthread_t sender, self = pthread_self();
    MUST(0, pthread_create(&sender, NULL, sends_signals, &self));
    size_t count;
    int code = GPREEMPT_OK;
    /* Nothing but calls of the library: it may not be called from inside malloc(). */
    for (int i = 0; i < 300 && code == GPREEMPT_OK; i++) {
        code = gpreempt_get_all_queues(NULL, 0, &count);
        if (code == GPREEMPT_OK) {
            code = launch_for(shared, 1000);
        }
        if (code == GPREEMPT_OK) {
            code = gpreempt_queue_synchronize(shared, GPREEMPT_FOREVER);
        }
    }
    is_over = 1;
    MUST(0, pthread_join(sender, NULL));
    MUST(GPREEMPT_OK, code);
    MUST(0, wrong);
    MUST(1, signals > 0 && refused > 0);
    MUST(GPREEMPT_OK, gpreempt_queue_destroy(shared));
}

int main(void) {
    alarm(120);
    handles();
    sizes();
    strings();
    destroy_during(launches, launches, 1);
    destroy_during(synchronizes, reads_progress, 0);
    destroy_during(destroys, destroys, 0);
    children();
    in_signal_handlers();
    MUST(GPREEMPT_OK, gpreempt_disconnect());
    printf("every misuse has its code\n");
    return 0;
}
