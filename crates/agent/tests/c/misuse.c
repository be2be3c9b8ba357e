/* Everything that can be called wrongly, called wrongly. With an argument: the pid of a process
 * with one queue that gpreemptd controls; without one there must be no gpreemptd. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpreempt.h"

static int failures;

static void expect(int line, const char *call, int got, int wanted) {
    if (got != wanted) {
        char why[256];
        gpreempt_last_message(why, sizeof why);
        fprintf(stderr, "line %d: %s is %d, not %d (%s)\n", line, call, got, wanted, why);
        failures++;
    }
}

#define EXPECT(wanted, call) expect(__LINE__, #call, (call), (wanted))
#define NO_QUEUE 0x7ffffffffffULL

static void without_arguments_that_make_sense(void) {
    size_t count = 7;
    int number = 7;
    uint64_t ids[2] = {1, 2};
    gpreempt_queue_info info;
    gpreempt_queue *queue = NULL;
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_get_all_queues(NULL, 0, NULL));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_get_all_queues(NULL, 4, &count));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_get_all_queues(&info, 1, NULL));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_get_queue(1, NULL));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_find_queues_by_priority(0, 15, NULL, 1, &count));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_find_queues_by_priority(-1, 15, ids, 2, &count));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_find_queues_by_priority(0, 16, ids, 2, &count));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_find_queues_by_priority(9, 8, ids, 2, &count));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_suspend_queues(NULL, 1, 0));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_suspend_queues(ids, 2, 60000001));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_resume_queues(NULL, 1));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_level(1, NULL));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_set_queue_priority(1, 16));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_set_queue_priority(1, -2));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_amd_update_queue(1, 0, 4096, 1, 7));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_amd_update_queue(1, 4096, 100, 1, 7));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_amd_update_queue(1, 4096, 4096, 0, 16));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_amd_pipe_priority(16));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_amd_pipe_priority(-1));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_set_priority(0, 16));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_set_priority(0, -1));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_set_priority(0x80000000u, 4));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_set_latency_budget(0, 401));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_set_latency_budget(0, -1));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_set_latency_budget(0, 65536));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_set_latency_budget(0x80000000u, 20));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_get_priority(0, NULL));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_suspend_process(1, 0));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_evict(0x80000000u, 0, 0, 0));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_evict(1, 86400001, 0, 0));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_evict(1, 0, 2, 0));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_evict(1, 0, GPREEMPT_EVICT_TREE, GPREEMPT_FOREVER));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_restore_process(1, 86400000001));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_make_room(1, GPREEMPT_ANY_DEVICE, 86400000001));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_set_evictable(0, 2));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_set_evictable(0, -1));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_set_lease(0));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_set_lease(86400001));
    EXPECT(GPREEMPT_OK, gpreempt_set_lease(600000));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_queue_create(0, 4, &queue));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_queue_create(GPREEMPT_BACKEND_EMULATED, 4, NULL));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_queue_create(GPREEMPT_BACKEND_EMULATED, 16, &queue));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_queue_create_with(NULL, &queue));
    gpreempt_queue_options options;
    memset(&options, 0, sizeof options);
    options.backend = GPREEMPT_BACKEND_EMULATED;
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_queue_create_with(&options, &queue));
    options.size = sizeof options;
    options.reserved[3] = 1;
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_queue_create_with(&options, &queue));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_launch_kernel(NULL, NULL));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_queue_synchronize(NULL, 0));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_queue_block(NULL));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_queue_unblock(NULL));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_queue_read(NULL, 0, &number, 4));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_queue_id(NULL, NULL));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_queue_stream(NULL, NULL));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_queue_progress(NULL, NULL, NULL));
    EXPECT(GPREEMPT_OK, gpreempt_queue_destroy(NULL));
    EXPECT(GPREEMPT_OK, gpreempt_suspend_queues(NULL, 0, 0));
    EXPECT(GPREEMPT_OK, gpreempt_resume_queues(NULL, 0));
    EXPECT(GPREEMPT_ERROR_STATE, gpreempt_hint_end());
    if (count != 7 || number != 7 || queue != NULL) {
        fprintf(stderr, "something was written in spite of an error\n");
        failures++;
    }
}

static void without_a_daemon(void) {
    size_t count;
    int number;
    uint64_t id = 1;
    gpreempt_queue_info info;
    gpreempt_queue *queue;
    EXPECT(GPREEMPT_ERROR_NO_DAEMON, gpreempt_connect(NULL));
    EXPECT(GPREEMPT_ERROR_NO_DAEMON, gpreempt_connect("/nowhere/gpreemptd.sock"));
    EXPECT(GPREEMPT_OK, gpreempt_disconnect());
    EXPECT(GPREEMPT_OK, gpreempt_disconnect());
    EXPECT(GPREEMPT_ERROR_NO_DAEMON, gpreempt_get_all_queues(NULL, 0, &count));
    EXPECT(GPREEMPT_ERROR_NO_DAEMON, gpreempt_get_queue(1, &info));
    EXPECT(GPREEMPT_ERROR_NO_DAEMON, gpreempt_suspend_queues(&id, 1, 0));
    EXPECT(GPREEMPT_ERROR_NO_DAEMON, gpreempt_resume_queues(&id, 1));
    EXPECT(GPREEMPT_ERROR_NO_DAEMON, gpreempt_preempt(1, 0));
    EXPECT(GPREEMPT_ERROR_NO_DAEMON, gpreempt_preempt_async(1));
    EXPECT(GPREEMPT_ERROR_NO_DAEMON, gpreempt_interrupt(1));
    EXPECT(GPREEMPT_ERROR_NO_DAEMON, gpreempt_restore(1));
    EXPECT(GPREEMPT_ERROR_NO_DAEMON, gpreempt_level(1, &number));
    EXPECT(GPREEMPT_ERROR_NO_DAEMON, gpreempt_set_priority(0, 4));
    EXPECT(GPREEMPT_ERROR_NO_DAEMON, gpreempt_set_latency_budget(0, 20));
    EXPECT(GPREEMPT_ERROR_NO_DAEMON, gpreempt_get_priority(0, &number));
    EXPECT(GPREEMPT_ERROR_NO_DAEMON, gpreempt_detach(0));
    EXPECT(GPREEMPT_ERROR_NO_DAEMON, gpreempt_evict(1, 0, 0, 0));
    EXPECT(GPREEMPT_ERROR_NO_DAEMON, gpreempt_restore_process(1, 0));
    EXPECT(GPREEMPT_ERROR_NO_DAEMON, gpreempt_make_room(1, 0, 0));
    EXPECT(GPREEMPT_ERROR_NO_DAEMON, gpreempt_set_evictable(0, 1));
    EXPECT(GPREEMPT_ERROR_NO_DAEMON, gpreempt_hint_begin(0));
    EXPECT(GPREEMPT_ERROR_STATE, gpreempt_hint_end());
    EXPECT(GPREEMPT_ERROR_NO_DAEMON, gpreempt_queue_create(GPREEMPT_BACKEND_EMULATED, 4, &queue));
    char why[64];
    if (gpreempt_last_message(why, sizeof why) < 20 || strlen(why) != 63 ||
        gpreempt_last_message(NULL, 0) < 20) {
        fprintf(stderr, "the message is missing or not cut: %s\n", why);
        failures++;
    }
}

static void with_ids_that_never_were(void) {
    int number;
    uint64_t ids[300];
    gpreempt_queue_info info;
    for (int i = 0; i < 300; i++) {
        ids[i] = NO_QUEUE + (uint64_t)i;
    }
    EXPECT(GPREEMPT_OK, gpreempt_connect(NULL));
    EXPECT(GPREEMPT_OK, gpreempt_connect(NULL));
    EXPECT(GPREEMPT_ERROR_NO_SUCH_QUEUE, gpreempt_get_queue(NO_QUEUE, &info));
    EXPECT(GPREEMPT_ERROR_NO_SUCH_QUEUE, gpreempt_get_queue(0, &info));
    EXPECT(GPREEMPT_ERROR_NO_SUCH_QUEUE, gpreempt_suspend_queues(ids, 2, 0));
    EXPECT(GPREEMPT_ERROR_LIMIT, gpreempt_suspend_queues(ids, 300, 0));
    EXPECT(GPREEMPT_ERROR_NO_SUCH_QUEUE, gpreempt_resume_queues(ids, 1));
    EXPECT(GPREEMPT_ERROR_NO_SUCH_QUEUE, gpreempt_preempt(NO_QUEUE, GPREEMPT_FOREVER));
    EXPECT(GPREEMPT_ERROR_NO_SUCH_QUEUE, gpreempt_preempt_async(0));
    EXPECT(GPREEMPT_ERROR_NO_SUCH_QUEUE, gpreempt_interrupt(NO_QUEUE));
    EXPECT(GPREEMPT_ERROR_NO_SUCH_QUEUE, gpreempt_restore(NO_QUEUE));
    EXPECT(GPREEMPT_ERROR_NO_SUCH_QUEUE, gpreempt_deactivate(NO_QUEUE));
    EXPECT(GPREEMPT_ERROR_NO_SUCH_QUEUE, gpreempt_reactivate(NO_QUEUE));
    EXPECT(GPREEMPT_ERROR_NO_SUCH_QUEUE, gpreempt_level(NO_QUEUE, &number));
    EXPECT(GPREEMPT_ERROR_NO_SUCH_QUEUE, gpreempt_set_queue_priority(NO_QUEUE, 3));
    EXPECT(GPREEMPT_ERROR_NO_SUCH_PROCESS, gpreempt_set_priority(0x7fffffff, 3));
    EXPECT(GPREEMPT_ERROR_NO_SUCH_PROCESS, gpreempt_set_latency_budget(0x7fffffff, 20));
    EXPECT(GPREEMPT_ERROR_NO_SUCH_PROCESS, gpreempt_suspend_process(0x7fffffff, 100));
    EXPECT(GPREEMPT_ERROR_NOT_CONTROLLED, gpreempt_get_priority(0, &number));
    EXPECT(GPREEMPT_ERROR_NOT_CONTROLLED, gpreempt_suspend_process(0, 100));
    EXPECT(GPREEMPT_OK, gpreempt_hint_begin(1000));
    EXPECT(GPREEMPT_OK, gpreempt_hint_begin(1000));
    EXPECT(GPREEMPT_OK, gpreempt_hint_end());
    EXPECT(GPREEMPT_OK, gpreempt_hint_end());
    EXPECT(GPREEMPT_ERROR_STATE, gpreempt_hint_end());
    for (int i = 0; i < 10000; i++) {
        EXPECT(GPREEMPT_OK, gpreempt_hint_begin(0));
    }
    EXPECT(GPREEMPT_ERROR_LIMIT, gpreempt_hint_begin(0));
    EXPECT(GPREEMPT_OK, gpreempt_disconnect());
    /* They ended with the connection, and this thread may end them all the same. */
    for (int i = 0; i < 10000; i++) {
        EXPECT(GPREEMPT_OK, gpreempt_hint_end());
    }
    EXPECT(GPREEMPT_ERROR_STATE, gpreempt_hint_end());
}

static void with_a_queue(uint32_t pid) {
    gpreempt_queue_info infos[16];
    size_t count;
    int number = 0;
    EXPECT(GPREEMPT_OK, gpreempt_get_all_queues(infos, 16, &count));
    uint64_t id = 0;
    for (size_t i = 0; i < count; i++) {
        if (infos[i].pid == pid) {
            id = infos[i].id;
            EXPECT((int)sizeof infos[i], (int)infos[i].size);
            EXPECT(GPREEMPT_DEVICE_EMULATED, (int)infos[i].device_kind);
        }
    }
    uint64_t both[3] = {id, id, NO_QUEUE};
    EXPECT(GPREEMPT_OK, gpreempt_level(id, &number));
    EXPECT(GPREEMPT_LEVEL_INTERRUPT, number);
    EXPECT(GPREEMPT_ERROR_STATE, gpreempt_resume_queues(&id, 1));
    EXPECT(GPREEMPT_ERROR_NO_SUCH_QUEUE, gpreempt_suspend_queues(both, 3, 0));
    EXPECT(GPREEMPT_OK, gpreempt_get_queue(id, infos));
    EXPECT(0, (int)(infos[0].flags & GPREEMPT_QUEUE_SUSPENDED));
    /* Twice the same is once. */
    EXPECT(GPREEMPT_OK, gpreempt_suspend_queues(both, 2, 100));
    EXPECT(GPREEMPT_OK, gpreempt_suspend_queues(both, 1, 0));
    EXPECT(GPREEMPT_OK, gpreempt_get_queue(id, infos));
    EXPECT(GPREEMPT_QUEUE_SUSPENDED | GPREEMPT_QUEUE_SUSPENDED_BY_US,
           (int)(infos[0].flags & (GPREEMPT_QUEUE_SUSPENDED | GPREEMPT_QUEUE_SUSPENDED_BY_US |
                                   GPREEMPT_QUEUE_ON)));
    EXPECT(GPREEMPT_ERROR_NO_SUCH_QUEUE, gpreempt_resume_queues(both, 3));
    EXPECT(GPREEMPT_OK, gpreempt_resume_queues(both, 2));
    EXPECT(GPREEMPT_ERROR_STATE, gpreempt_resume_queues(both, 1));
    /* A time-out withdraws the preempt. */
    number = gpreempt_preempt(id, 0);
    if (number == GPREEMPT_ERROR_TIMED_OUT) {
        EXPECT(GPREEMPT_ERROR_STATE, gpreempt_resume_queues(&id, 1));
    } else {
        EXPECT(GPREEMPT_OK, number);
        EXPECT(GPREEMPT_OK, gpreempt_resume_queues(&id, 1));
    }
    EXPECT(GPREEMPT_OK, gpreempt_preempt(id, GPREEMPT_FOREVER));
    EXPECT(GPREEMPT_OK, gpreempt_restore(id));
    EXPECT(GPREEMPT_OK, gpreempt_preempt_async(id));
    EXPECT(GPREEMPT_OK, gpreempt_resume_queues(&id, 1));
    EXPECT(GPREEMPT_OK, gpreempt_set_queue_priority(id, 7));
    EXPECT(GPREEMPT_OK, gpreempt_get_queue(id, infos));
    EXPECT(7, infos[0].priority);
    EXPECT(GPREEMPT_ERROR_NOT_CONTROLLED, gpreempt_get_priority(pid, &number));
    EXPECT(GPREEMPT_OK, gpreempt_set_queue_priority(id, GPREEMPT_PRIORITY_OF_PROCESS));
    EXPECT(GPREEMPT_OK, gpreempt_set_priority(pid, 3));
    EXPECT(GPREEMPT_OK, gpreempt_set_latency_budget(pid, 400));
    EXPECT(GPREEMPT_OK, gpreempt_set_latency_budget(pid, 0));
    EXPECT(GPREEMPT_OK, gpreempt_get_priority(pid, &number));
    EXPECT(3, number);
    EXPECT(GPREEMPT_ERROR_NOT_CONTROLLED, gpreempt_resume_process(pid));
    EXPECT(GPREEMPT_OK, gpreempt_suspend_process(pid, 60000));
    EXPECT(GPREEMPT_OK, gpreempt_resume_process(pid));
    EXPECT(GPREEMPT_OK, gpreempt_get_all_queues(NULL, 0, &count));
    EXPECT(1, count >= 1);
    if (count > 1) {
        EXPECT(GPREEMPT_ERROR_TOO_SMALL, gpreempt_get_all_queues(infos, 1, &count));
    }
}

static void submitting(void) {
    gpreempt_queue *queue;
    EXPECT(GPREEMPT_OK, gpreempt_queue_create(GPREEMPT_BACKEND_EMULATED, 2, &queue));
    gpreempt_launch launch;
    memset(&launch, 0, sizeof launch);
    uint32_t zero = 0;
    void *arguments[4] = {&zero, &zero, &zero, NULL};
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_launch_kernel(queue, NULL));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_launch_kernel(queue, &launch));
    launch.size = sizeof launch;
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_launch_kernel(queue, &launch));
    launch.argument_count = 4;
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_launch_kernel(queue, &launch));
    launch.arguments = arguments;
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_launch_kernel(queue, &launch));
    arguments[3] = &zero;
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_launch_kernel(queue, &launch));
    launch.grid[0] = launch.grid[1] = launch.grid[2] = 1;
    launch.block[0] = launch.block[1] = launch.block[2] = 1;
    launch.kernel = 99;
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_launch_kernel(queue, &launch));
    launch.kernel = 0;
    launch.flags = 2;
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_launch_kernel(queue, &launch));
    launch.flags = GPREEMPT_LAUNCH_NO_WAIT;
    void *stream;
    char memory[8];
    EXPECT(GPREEMPT_ERROR_UNSUPPORTED, gpreempt_queue_stream(queue, &stream));
    EXPECT(GPREEMPT_ERROR_ARGUMENT, gpreempt_queue_read(queue, 0xfffffff0u, memory, 8));
    EXPECT(GPREEMPT_OK, gpreempt_queue_read(queue, 0, NULL, 0));
    EXPECT(GPREEMPT_ERROR_STATE, gpreempt_queue_unblock(queue));
    EXPECT(GPREEMPT_OK, gpreempt_queue_block(queue));
    EXPECT(GPREEMPT_ERROR_STATE, gpreempt_queue_block(queue));
    EXPECT(GPREEMPT_ERROR_BUSY, gpreempt_launch_kernel(queue, &launch));
    EXPECT(GPREEMPT_OK, gpreempt_queue_unblock(queue));
    EXPECT(GPREEMPT_OK, gpreempt_queue_synchronize(queue, 0));
    EXPECT(GPREEMPT_OK, gpreempt_queue_destroy(queue));
    int code = gpreempt_queue_create(GPREEMPT_BACKEND_CUDA, 2, &queue);
    EXPECT(1, code == GPREEMPT_ERROR_NO_DEVICE || code == GPREEMPT_ERROR_STATE);
}

int main(int argc, char **argv) {
    if (gpreempt_version() != GPREEMPT_VERSION || gpreempt_last_message(NULL, 0) != 0) {
        return 2;
    }
    for (int code = -30; code < 5; code++) {
        if (strlen(gpreempt_strerror(code)) < 5) {
            return 2;
        }
    }
    without_arguments_that_make_sense();
    if (argc > 1) {
        with_ids_that_never_were();
        with_a_queue((uint32_t)atoi(argv[1]));
        submitting();
        EXPECT(GPREEMPT_OK, gpreempt_disconnect());
    } else {
        without_a_daemon();
    }
    printf("%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}
