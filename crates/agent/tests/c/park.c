/* Level 2 until standard input is closed: park ID */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpreempt.h"

int main(int argc, char **argv) {
    uint64_t id = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    int code = gpreempt_deactivate(id);
    printf("%d\n", code);
    fflush(stdout);
    getchar();
    code = gpreempt_reactivate(id);
    printf("%d\n", code);
    return 0;
}
