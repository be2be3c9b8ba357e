/* What it costs to be linked with the library and not to use it: memory and threads. */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

static long resident_kib(void) {
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%ld %ld", &pages, &resident) != 2) {
        return -1;
    }
    fclose(file);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static int entries(const char *path) {
    DIR *folder = opendir(path);
    int count = 0;
    while (folder != NULL && readdir(folder) != NULL) {
        count++;
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return count - 2;
}

int main(int argc, char **argv) {
    int files = entries("/proc/self/fd");
    long before = resident_kib();
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    long cost = resident_kib() - before;
    int threads = entries("/proc/self/task");
    files = entries("/proc/self/fd") - files;
    printf("%ld KiB, %d threads, %d files\n", cost, threads, files);
    return before >= 0 && cost < 4096 && threads == 1 && files == 0 ? 0 : 1;
}
