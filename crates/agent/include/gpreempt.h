/* gpreempt: priorities for processes that share a GPU.
 *
 * Made from the source by `cargo xtask header`: do not edit. See docs/c-api.md.
 *
 * Functions that return int return GPREEMPT_OK or an error below zero, and then nothing has
 * changed; gpreempt_strerror() and gpreempt_last_message() say more. Any thread may call any of
 * them. The library prints nothing, never ends the program, and starts no thread.
 */

#ifndef GPREEMPT_H
#define GPREEMPT_H

#include <stddef.h>
#include <stdint.h>

// The version of the library: major, minor and patch, a byte each, as 0x00MMmmpp.
#define GPREEMPT_VERSION 256

// It worked.
#define GPREEMPT_OK 0

// An argument is NULL or out of range.
#define GPREEMPT_ERROR_ARGUMENT -1

// gpreemptd is not running.
#define GPREEMPT_ERROR_NO_DAEMON -2

// gpreemptd is older or newer than this library.
#define GPREEMPT_ERROR_VERSION -3

// The caller may not do that.
#define GPREEMPT_ERROR_NOT_PERMITTED -4

// There is no such process, or it is not the one it was.
#define GPREEMPT_ERROR_NO_SUCH_PROCESS -5

// There is no such queue, or it is gone.
#define GPREEMPT_ERROR_NO_SUCH_QUEUE -6

// The process is not under gpreemptd's control.
#define GPREEMPT_ERROR_NOT_CONTROLLED -7

// The device cannot do that.
#define GPREEMPT_ERROR_UNSUPPORTED -8

// What was asked for is going on already, or the ring is full.
#define GPREEMPT_ERROR_BUSY -9

// Too much: sessions, suspensions, threads that give hints.
#define GPREEMPT_ERROR_LIMIT -10

// It did not happen in time.
#define GPREEMPT_ERROR_TIMED_OUT -11

// gpreemptd or the device went away in the middle. The next call connects again.
#define GPREEMPT_ERROR_DISCONNECTED -12

// The device was told and did not, or reports a fault.
#define GPREEMPT_ERROR_DEVICE -13

// The array is too small; the count says how many there are.
#define GPREEMPT_ERROR_TOO_SMALL -14

// Not in this state: an end without a begin, a resume of what was not suspended by this process,
// a queue that a parent process created.
#define GPREEMPT_ERROR_STATE -15

// There is no such device, or its driver cannot be loaded.
#define GPREEMPT_ERROR_NO_DEVICE -16

// There is no memory left.
#define GPREEMPT_ERROR_NO_MEMORY -17

// The operating system refuses.
#define GPREEMPT_ERROR_SYSTEM -18

// A mistake in this library. Nothing else happened.
#define GPREEMPT_ERROR_INTERNAL -19

// The lowest priority.
#define GPREEMPT_PRIORITY_LOWEST 0

// The priority of those of whom nothing is known.
#define GPREEMPT_PRIORITY_DEFAULT 4

// The highest priority that everybody may have. Above it begins the high class.
#define GPREEMPT_PRIORITY_LOW_HIGHEST 7

// The highest priority.
#define GPREEMPT_PRIORITY_HIGHEST 15

// A queue has the priority of its process.
#define GPREEMPT_PRIORITY_OF_PROCESS -1

// The queue may run.
#define GPREEMPT_QUEUE_ON 1

// The queue has work.
#define GPREEMPT_QUEUE_ACTIVE 2

// Somebody suspended the queue or its process.
#define GPREEMPT_QUEUE_SUSPENDED 4

// The queue has a priority of its own.
#define GPREEMPT_QUEUE_OWN_PRIORITY 8

// The queue was suspended by this process.
#define GPREEMPT_QUEUE_SUSPENDED_BY_US 16

// A device of no known kind.
#define GPREEMPT_DEVICE_OTHER 0

// An NVIDIA GPU.
#define GPREEMPT_DEVICE_NVIDIA 1

// An AMD GPU.
#define GPREEMPT_DEVICE_AMD 2

// An emulated GPU.
#define GPREEMPT_DEVICE_EMULATED 3

// Level 1: new launches wait, what is submitted runs.
#define GPREEMPT_LEVEL_BLOCK 1

// Level 2: the device stops fetching, the running kernel ends first.
#define GPREEMPT_LEVEL_DEACTIVATE 2

// Level 3: the running kernel is saved in the middle.
#define GPREEMPT_LEVEL_INTERRUPT 3

// Submit to the emulated GPU.
#define GPREEMPT_BACKEND_EMULATED 1

// Submit to CUDA. libcuda is loaded then, not before.
#define GPREEMPT_BACKEND_CUDA 2

// A launch that would have to wait is GPREEMPT_ERROR_BUSY instead.
#define GPREEMPT_LAUNCH_NO_WAIT 1

// No limit to a wait.
#define GPREEMPT_FOREVER UINT64_MAX

// A queue to submit to. Any thread may use it. It belongs to the process that created it.
typedef struct gpreempt_queue gpreempt_queue;

// One queue: what the hardware can stop. On NVIDIA that is a context's channel group, with all of
// its streams.
typedef struct gpreempt_queue_info {
  // Bytes of this structure, as the library knows it.
  uint32_t size;
  // The process.
  uint32_t pid;
  // Its number in gpreemptd. No two queues ever have the same.
  uint64_t id;
  // Its number on the device, where it has one.
  uint64_t native;
  // When the process started, in clock ticks since boot.
  uint64_t start_ticks;
  // Work that waits in its ring.
  uint64_t pending;
  // Time it had the device so far, in microseconds.
  uint64_t ran_us;
  // Times it was preempted so far.
  uint64_t preempts;
  // Whose process it is.
  uint32_t uid;
  // The device's number in gpreemptd.
  uint32_t device;
  // What kind of device: GPREEMPT_DEVICE_*.
  uint32_t device_kind;
  // 0 (lowest) to 15 (highest).
  int32_t priority;
  // How deep a preempt reaches on its device: GPREEMPT_LEVEL_*.
  int32_t level;
  // GPREEMPT_QUEUE_*, added up.
  uint32_t flags;
  // The name of the process, ended by a zero.
  char name[16];
  // Zero.
  uint64_t reserved[4];
} gpreempt_queue_info;

// How a queue for submitting is made. Set everything to zero first, then `size`.
typedef struct gpreempt_queue_options {
  // Bytes of this structure: sizeof(gpreempt_queue_options).
  uint32_t size;
  // GPREEMPT_BACKEND_*.
  int32_t backend;
  // 0 (lowest) to 15 (highest).
  int32_t priority;
  // The device: its number on the emulated GPU. CUDA takes that of the current context.
  uint32_t device;
  // How many launches may be in flight: further ones wait. 0 is 4 for priorities from 0 to 7,
  // and as many as fit for higher ones.
  uint32_t depth;
  // Memory on the emulated GPU, all zero at first. 0 is 64 KiB.
  uint32_t memory_bytes;
  // The socket of the emulated GPU. NULL: the variable GPREEMPT_EMULATED_SOCKET says it.
  const char *socket;
  // Zero.
  uint64_t reserved[4];
} gpreempt_queue_options;

// One launch of a kernel. Set everything to zero first, then `size`.
typedef struct gpreempt_launch {
  // Bytes of this structure: sizeof(gpreempt_launch).
  uint32_t size;
  // CUDA: bytes of dynamic shared memory. Emulated: 0.
  uint32_t shared_bytes;
  // CUDA: a CUfunction. Emulated: a kernel's number.
  size_t kernel;
  // Work-groups. Emulated: the first number counts, the others are 1.
  uint32_t grid[3];
  // CUDA: threads in a group. Emulated: waves in a group, then 1 and 1.
  uint32_t block[3];
  // Pointers to the arguments, as cuLaunchKernel takes them. Emulated: four pointers to
  // uint32_t: the region's address, a number, busy nanoseconds of a wave, the region's bytes.
  void **arguments;
  // Emulated: 4. CUDA: not looked at, the kernel knows.
  uint32_t argument_count;
  // GPREEMPT_LAUNCH_*, added up.
  uint32_t flags;
  // Zero.
  uint32_t reserved[6];
} gpreempt_launch;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library that is loaded: compare it with GPREEMPT_VERSION.
uint32_t gpreempt_version(void);

// What a code means, in a sentence that lives for ever. Also for numbers that are no code.
const char *gpreempt_strerror(int code);

// What the last call of this thread that failed had to say beyond its code: what happened, why,
// and what to do. Writes at most `capacity` bytes with the zero at the end, and returns the length
// of the whole sentence without it. Empty if nothing has failed yet.
size_t gpreempt_last_message(char *buffer, size_t capacity);

// Connects to gpreemptd, if that has not happened yet. Every other call does so by itself; this is
// for those who want to know, or who want another socket than the usual one (NULL). What an
// earlier connection to another socket had suspended goes on.
int gpreempt_connect(const char *socket);

// Ends the connection. Whatever this process had suspended goes on, and its hints are over. The
// next call connects again, to the usual socket.
int gpreempt_disconnect(void);

// For how long queues stay suspended at the most, from the next suspension on, in milliseconds
// (1 to 86400000; 600000 at first): a program that hangs keeps nobody off for ever.
int gpreempt_set_lease(uint32_t lease_ms);

// Gives a process, and the children it starts from now on, a priority: 0 (lowest) to 15 (highest).
// `pid` 0 is the calling process. It need not use a GPU yet. Above 7 is for root and the group
// gpreempt.
int gpreempt_set_priority(uint32_t pid, int priority);

// The priority that a process has; GPREEMPT_ERROR_NOT_CONTROLLED if it has no queue that gpreemptd
// controls. `pid` 0 is the calling process.
int gpreempt_get_priority(uint32_t pid, int *priority);

// Restores a process and leaves it alone from now on. `pid` 0 is the calling process.
int gpreempt_detach(uint32_t pid);

// Takes a process off its devices, for at most `lease_ms` milliseconds (1 to 86400000). Does not
// wait. It keeps its memory. Unlike a suspension of queues this one outlives the calling process.
int gpreempt_suspend_process(uint32_t pid, uint32_t lease_ms);

// Ends the suspension of a process.
int gpreempt_resume_process(uint32_t pid);

// Every queue that gpreemptd controls, in the order of their ids. `count` becomes the number there
// is, also if that is more than `capacity` (then GPREEMPT_ERROR_TOO_SMALL, and the first ones are
// there). `out` may be NULL if `capacity` is 0.
int gpreempt_get_all_queues(struct gpreempt_queue_info *out, size_t capacity, size_t *count);

// One queue. GPREEMPT_ERROR_NO_SUCH_QUEUE if it never was or is gone.
int gpreempt_get_queue(uint64_t id, struct gpreempt_queue_info *out);

// The ids of the queues whose priority is between two, both included. As
// gpreempt_get_all_queues() otherwise.
int gpreempt_find_queues_by_priority(int priority_min,
                                     int priority_max,
                                     uint64_t *ids,
                                     size_t capacity,
                                     size_t *count);

// Takes queues off their devices, all of them or, if one of them cannot be, none. Each may finish
// what it has within `grace_us` microseconds (0 to 60000000) and is off after that at the latest.
// Waits until all are off. A queue that this process has suspended already stays so, with a new
// lease.
int gpreempt_suspend_queues(const uint64_t *ids, size_t n, uint32_t grace_us);

// Ends suspensions by this process. GPREEMPT_ERROR_STATE, and nothing changed, if one of the
// queues is not suspended by it. Does not wait: who runs now is gpreemptd's to say.
int gpreempt_resume_queues(const uint64_t *ids, size_t n);

// Takes a queue off its device at once and waits for that, at most `timeout_us` microseconds
// (GPREEMPT_FOREVER: as long as it takes). It stays off until gpreempt_resume_queues(). After
// GPREEMPT_ERROR_TIMED_OUT the preempt is withdrawn.
int gpreempt_preempt(uint64_t id, uint64_t timeout_us);

// As gpreempt_preempt() without waiting: gpreempt_get_queue() tells when the queue is off.
int gpreempt_preempt_async(uint64_t id);

// Gives a queue a priority of its own, 0 to 15, or again that of its process
// (GPREEMPT_PRIORITY_OF_PROCESS). Lasts as long as the queue. Above 7 is for root and the group
// gpreempt.
int gpreempt_set_queue_priority(uint64_t id, int priority);

// Level 3: saves the running kernel in the middle and keeps the queue off until
// gpreempt_restore(). Waits for it. GPREEMPT_ERROR_UNSUPPORTED where the device has no level 3.
int gpreempt_interrupt(uint64_t id);

// Ends gpreempt_interrupt(): the kernel goes on at its next instruction.
int gpreempt_restore(uint64_t id);

// Level 2: the device stops fetching, and the running kernel ends first. Waits for it.
// GPREEMPT_ERROR_UNSUPPORTED where the device has no level 2.
int gpreempt_deactivate(uint64_t id);

// Ends gpreempt_deactivate().
int gpreempt_reactivate(uint64_t id);

// How deep a preempt reaches on a queue's device: GPREEMPT_LEVEL_*.
int gpreempt_level(uint64_t id, int *level);

// Says that this thread is about to submit work that should be done in `deadline_us` microseconds
// (0 if that does not matter), so that the device is made free before the work is there. Costs no
// system call, unless gpreemptd has to be woken, and apart from a thread's first hint.
// GPREEMPT_ERROR_STATE if this thread has begun already and not ended.
int gpreempt_hint_begin(uint64_t deadline_us);

// Says that the work of this thread is done. GPREEMPT_ERROR_STATE if it has not begun.
int gpreempt_hint_end(void);

// A queue with a priority, 0 (lowest) to 15 (highest), on GPREEMPT_BACKEND_*, with the usual
// options. On CUDA a context must be current: the queue is a stream in it, of the device's highest
// or lowest stream priority. On the emulated GPU gpreemptd is told the queue's priority as soon as
// it controls the queue (a process that it does not control yet gets the same priority); without
// gpreemptd that is GPREEMPT_ERROR_NO_DAEMON.
int gpreempt_queue_create(int backend, int priority, struct gpreempt_queue **queue);

// A queue with options.
int gpreempt_queue_create_with(const struct gpreempt_queue_options *options,
                               struct gpreempt_queue **queue);

// Submits a kernel. Waits while as many launches are in flight as the queue is deep, and while it
// is blocked, unless it must not.
int gpreempt_launch_kernel(struct gpreempt_queue *queue, const struct gpreempt_launch *launch);

// Waits until everything that was submitted is complete, at most `timeout_us` microseconds
// (GPREEMPT_FOREVER: as long as it takes).
int gpreempt_queue_synchronize(struct gpreempt_queue *queue, uint64_t timeout_us);

// Level 1: from now on launches wait, until gpreempt_queue_unblock(). What was submitted runs.
int gpreempt_queue_block(struct gpreempt_queue *queue);

// Ends gpreempt_queue_block().
int gpreempt_queue_unblock(struct gpreempt_queue *queue);

// How many launches were submitted, and how many of them are complete.
int gpreempt_queue_progress(struct gpreempt_queue *queue, uint64_t *submitted, uint64_t *completed);

// What gpreemptd calls the queue: an id for gpreempt_suspend_queues() and the others. On CUDA that
// is the queue of the whole context. GPREEMPT_ERROR_NOT_CONTROLLED if gpreemptd does not have it.
int gpreempt_queue_id(struct gpreempt_queue *queue, uint64_t *id);

// The CUstream of a queue on CUDA, for libraries that want one. What they submit passes no gate.
int gpreempt_queue_stream(struct gpreempt_queue *queue, void **stream);

// Reads memory of the queue on the emulated GPU.
int gpreempt_queue_read(struct gpreempt_queue *queue, uint32_t address, void *out, size_t bytes);

// Ends a queue, whatever is in it, and frees it. NULL is not a queue, and no error. No other
// thread may be using it.
int gpreempt_queue_destroy(struct gpreempt_queue *queue);

// Takes a queue of the calling process off an AMD device (`on` 0) in the middle of its kernels, or
// lets it on, and gives it a priority (0 to 15); gpreemptd is not asked. `queue` is KFD's number
// for it. Its ring has to be said each time. Off is off until it is let on, whoever dies.
// GPREEMPT_ERROR_NO_DEVICE without such a device, GPREEMPT_ERROR_NO_SUCH_QUEUE without the queue.
int gpreempt_amd_update_queue(uint32_t queue,
                              uint64_t ring_address,
                              uint32_t ring_bytes,
                              int on,
                              int priority);

// What AMD hardware makes of a priority: 0 (low, from 0), 1 (medium, from 7) or 2 (high, from 11).
int gpreempt_amd_pipe_priority(int priority);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GPREEMPT_H */
