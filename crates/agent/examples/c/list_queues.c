/* Lists the queues that gpreemptd controls: list_queues */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpreempt.h"

int main(void) {
    size_t count = 0;
    int code = gpreempt_get_all_queues(NULL, 0, &count);
    gpreempt_queue_info *queues = NULL;
    if (code == GPREEMPT_OK && count > 0) {
        queues = (gpreempt_queue_info *)calloc(count, sizeof *queues);
        if (queues == NULL) {
            return 1;
        }
        size_t room = count;
        /* More may have come since; those that fit are there all the same. */
        code = gpreempt_get_all_queues(queues, room, &count);
        if (code == GPREEMPT_ERROR_TOO_SMALL) {
            code = GPREEMPT_OK;
        }
        count = count < room ? count : room;
    }
    if (code != GPREEMPT_OK) {
        fprintf(stderr, "list_queues: %s\n", gpreempt_strerror(code));
        return 1;
    }
    printf("%20s %8s %-15s %6s %8s %5s %6s %5s\n", "id", "pid", "name", "device", "priority",
           "level", "on", "work");
    for (size_t i = 0; i < count; i++) {
        const gpreempt_queue_info *queue = &queues[i];
        const char *on = (queue->flags & GPREEMPT_QUEUE_SUSPENDED) ? "no(s)"
                         : (queue->flags & GPREEMPT_QUEUE_ON)      ? "yes"
                                                                   : "no";
        printf("%20" PRIu64 " %8" PRIu32 " %-15s %6" PRIu32 " %8" PRId32 " %5" PRId32
               " %6s %5" PRIu64 "\n",
               queue->id, queue->pid, queue->name, queue->device, queue->priority, queue->level,
               on, queue->pending);
    }
    free(queues);
    return gpreempt_disconnect() == GPREEMPT_OK ? 0 : 1;
}
