/* gpreempt: priorities for processes that share a GPU.
 *
 * Generated from the source by `cargo xtask header`: do not edit. See docs/reference/c-api.md.
 *
 * Functions that return int return GPREEMPT_OK or an error below zero; after an error nothing has
 * changed. gpreempt_strerror() and gpreempt_last_message() explain it. Every function is
 * thread-safe. The library prints nothing, never ends the program, and starts no thread.
 */

#ifndef GPREEMPT_H
#define GPREEMPT_H

#include <stddef.h>
#include <stdint.h>

// The version of the library: major, minor and patch, a byte each, as 0x00MMmmpp.
#define GPREEMPT_VERSION 256

// Success.
#define GPREEMPT_OK 0

// An argument is NULL or out of range.
#define GPREEMPT_ERROR_ARGUMENT -1

// gpreemptd is not running.
#define GPREEMPT_ERROR_NO_DAEMON -2

// gpreemptd is older or newer than this library.
#define GPREEMPT_ERROR_VERSION -3

// The caller may not do that.
#define GPREEMPT_ERROR_NOT_PERMITTED -4

// There is no such process, or its pid was reused.
#define GPREEMPT_ERROR_NO_SUCH_PROCESS -5

// There is no such queue, or it was destroyed.
#define GPREEMPT_ERROR_NO_SUCH_QUEUE -6

// The process is not under gpreemptd's control.
#define GPREEMPT_ERROR_NOT_CONTROLLED -7

// The device does not support the operation.
#define GPREEMPT_ERROR_UNSUPPORTED -8

// The operation is already in progress, or the ring is full.
#define GPREEMPT_ERROR_BUSY -9

// A limit is reached: sessions, suspensions, threads that give hints, memory of a device or of the
// host.
#define GPREEMPT_ERROR_LIMIT -10

// The operation did not finish in time.
#define GPREEMPT_ERROR_TIMED_OUT -11

// The connection to gpreemptd or the device was lost. The next call connects again.
#define GPREEMPT_ERROR_DISCONNECTED -12

// The device did not carry out the command, or reports a fault.
#define GPREEMPT_ERROR_DEVICE -13

// The array is too small; the count holds the number of elements.
#define GPREEMPT_ERROR_TOO_SMALL -14

// Not possible in the present state: an end without a begin, a resume of a queue that this process
// did not suspend, a queue that a parent process created.
#define GPREEMPT_ERROR_STATE -15

// There is no such device, or its driver cannot be loaded.
#define GPREEMPT_ERROR_NO_DEVICE -16

// Out of memory.
#define GPREEMPT_ERROR_NO_MEMORY -17

// The operating system refused the operation.
#define GPREEMPT_ERROR_SYSTEM -18

// An internal error of this library. Nothing was changed.
#define GPREEMPT_ERROR_INTERNAL -19

// The lowest priority.
#define GPREEMPT_PRIORITY_LOWEST 0

// The priority of a scheduled process without a setting.
#define GPREEMPT_PRIORITY_DEFAULT 4

// The highest priority that every user may set. The high class begins above it.
#define GPREEMPT_PRIORITY_LOW_HIGHEST 7

// The highest priority.
#define GPREEMPT_PRIORITY_HIGHEST 15

// A queue has the priority of its process.
#define GPREEMPT_PRIORITY_OF_PROCESS -1

// The queue may run.
#define GPREEMPT_QUEUE_ON 1

// The queue has work.
#define GPREEMPT_QUEUE_ACTIVE 2

// A client suspended the queue or its process.
#define GPREEMPT_QUEUE_SUSPENDED 4

// The queue has a priority of its own.
#define GPREEMPT_QUEUE_OWN_PRIORITY 8

// The queue was suspended by this process.
#define GPREEMPT_QUEUE_SUSPENDED_BY_US 16

// A device of an unknown kind.
#define GPREEMPT_DEVICE_OTHER 0

// An NVIDIA GPU.
#define GPREEMPT_DEVICE_NVIDIA 1

// An AMD GPU.
#define GPREEMPT_DEVICE_AMD 2

// An emulated GPU.
#define GPREEMPT_DEVICE_EMULATED 3

// Level 1: new launches wait, submitted launches run.
#define GPREEMPT_LEVEL_BLOCK 1

// Level 2: the device stops fetching, the running kernel finishes first.
#define GPREEMPT_LEVEL_DEACTIVATE 2

// Level 3: the running kernel is saved in the middle.
#define GPREEMPT_LEVEL_INTERRUPT 3

// Submit to the emulated GPU.
#define GPREEMPT_BACKEND_EMULATED 1

// Submit to CUDA. libcuda is loaded by the first such queue.
#define GPREEMPT_BACKEND_CUDA 2

// A launch that would have to wait is GPREEMPT_ERROR_BUSY instead.
#define GPREEMPT_LAUNCH_NO_WAIT 1

// Evict a process and its descendants, together.
#define GPREEMPT_EVICT_TREE 1

// gpreemptd chooses the device.
#define GPREEMPT_ANY_DEVICE UINT32_MAX

// A wait without a limit.
#define GPREEMPT_FOREVER UINT64_MAX

// A queue to submit to. Any thread may use it. It belongs to the process that created it. The
// pointer is a number that only the library understands: after gpreempt_queue_destroy() every call
// with it returns GPREEMPT_ERROR_NO_SUCH_QUEUE, and any other number GPREEMPT_ERROR_ARGUMENT.
typedef struct gpreempt_queue gpreempt_queue;

// One queue: the unit that is preempted. On NVIDIA that is a context's channel group, with all of
// its streams.
typedef struct gpreempt_queue_info {
  // Bytes of this structure in the library.
  uint32_t size;
  // The pid of the process.
  uint32_t pid;
  // Its number in gpreemptd, never used for another queue.
  uint64_t id;
  // Its number on the device, where it has one.
  uint64_t native;
  // When the process started, in clock ticks since boot.
  uint64_t start_ticks;
  // Packets in its ring that the device has not fetched.
  uint64_t pending;
  // Time on the device so far, in microseconds.
  uint64_t ran_us;
  // Preempts so far.
  uint64_t preempts;
  // The user of the process.
  uint32_t uid;
  // The device's number in gpreemptd.
  uint32_t device;
  // The kind of the device: GPREEMPT_DEVICE_*.
  uint32_t device_kind;
  // 0 (lowest) to 15 (highest).
  int32_t priority;
  // The highest preempt level of its device: GPREEMPT_LEVEL_*.
  int32_t level;
  // The sum of GPREEMPT_QUEUE_* flags.
  uint32_t flags;
  // The name of the process, terminated by a zero.
  char name[16];
  // Zero.
  uint64_t reserved[4];
} gpreempt_queue_info;

// The options of a queue for submission. Set everything to zero first, then `size`.
typedef struct gpreempt_queue_options {
  // Bytes of this structure: sizeof(gpreempt_queue_options).
  uint32_t size;
  // GPREEMPT_BACKEND_*.
  int32_t backend;
  // 0 (lowest) to 15 (highest).
  int32_t priority;
  // The device: its number on the emulated GPU. CUDA takes that of the current context.
  uint32_t device;
  // Launches in flight at most: further ones wait. 0 stands for 4 with priorities from 0 to 7,
  // and for as many as fit with higher ones.
  uint32_t depth;
  // Memory on the emulated GPU, initially zero. 0 stands for 64 KiB.
  uint32_t memory_bytes;
  // The socket of the emulated GPU. NULL: the value of GPREEMPT_EMULATED_SOCKET.
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
  // Emulated: 4. CUDA: ignored, the kernel defines it.
  uint32_t argument_count;
  // The sum of GPREEMPT_LAUNCH_* flags.
  uint32_t flags;
  // Zero.
  uint32_t reserved[6];
} gpreempt_launch;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the loaded library: compare it with GPREEMPT_VERSION.
uint32_t gpreempt_version(void);

// The meaning of a code, as a static string. Also for numbers that are not a code.
const char *gpreempt_strerror(int code);

// The error message of this thread's last failed call: what happened, why, and what to do. Writes
// at most `capacity` bytes with the terminating zero, and returns the length of the whole message
// without it. Empty if no call has failed yet.
size_t gpreempt_last_message(char *buffer, size_t capacity);

// Connects to gpreemptd, if not connected yet. Every other call connects by itself; this one is
// for programs that check the connection, or use another socket than the usual one (NULL). Queues
// that were suspended over an earlier connection to another socket are resumed. If it fails, an
// earlier connection and its socket stay in use.
int gpreempt_connect(const char *socket);

// Closes the connection. Queues that this process suspended are resumed, and its hints end. The
// next call connects again, to the usual socket.
int gpreempt_disconnect(void);

// Sets the lease of later suspensions of queues, in milliseconds (1 to 86400000; 600000 at first).
// When it is over the queues are resumed, so a program that hangs cannot keep them off for ever.
int gpreempt_set_lease(uint32_t lease_ms);

// Gives a process, and the children it starts from now on, a priority: 0 (lowest) to 15 (highest).
// `pid` 0 is the calling process. It need not use a GPU yet. A priority above 7 needs root or the
// group gpreempt.
int gpreempt_set_priority(uint32_t pid, int priority);

// Sets how much slower a process, and the children it starts from now on, may become in exchange
// for throughput of others: 0 (as fast as possible) to 400 per cent. It counts while the process
// has a priority of 8 or more and no other process on its GPU has one. `pid` 0 is the caller.
int gpreempt_set_latency_budget(uint32_t pid, int percent);

// Reads the priority of a process; GPREEMPT_ERROR_NOT_CONTROLLED if it has no queue that gpreemptd
// controls. `pid` 0 is the calling process.
int gpreempt_get_priority(uint32_t pid, int *priority);

// Restores a process and stops scheduling it. `pid` 0 is the calling process.
int gpreempt_detach(uint32_t pid);

// Suspends a process for at most `lease_ms` milliseconds (1 to 86400000). Returns when it is off
// its devices. It keeps its memory. Unlike a suspension of queues this one outlives the calling
// process.
int gpreempt_suspend_process(uint32_t pid, uint32_t lease_ms);

// Ends the suspension of a process.
int gpreempt_resume_process(uint32_t pid);

// Announces that this thread will submit work that should finish within `deadline_us`
// microseconds (0: no deadline), so that the device is free before the work arrives. Costs no
// system call, except for a thread's first hint and when gpreemptd has to be woken. A thread may
// begin several, such as one for each request of an event loop: each has its own end, and the
// deadline of the last one counts from then on.
int gpreempt_hint_begin(uint64_t deadline_us);

// Announces that the work of one hint of this thread is done. GPREEMPT_ERROR_STATE if this thread
// has ended all that it began.
int gpreempt_hint_end(void);

// Preempts a queue of the calling process on an AMD device in the middle of its kernels (`on`
// 0) or resumes it, and sets its priority (0 to 15), without gpreemptd. `queue` is KFD's number
// for it. Every call needs its ring. A preempted queue stays off until it is resumed, also if
// the caller's threads end. GPREEMPT_ERROR_NO_DEVICE without an AMD device,
// GPREEMPT_ERROR_NO_SUCH_QUEUE without the queue.
int gpreempt_amd_update_queue(uint32_t queue,
                              uint64_t ring_address,
                              uint32_t ring_bytes,
                              int on,
                              int priority);

// The hardware's level of a priority on AMD: 0 (low, from 0), 1 (medium, from 7) or 2 (high, from
// 11).
int gpreempt_amd_pipe_priority(int priority);

// Moves the GPU memory of a process to the host. It does no GPU work until its memory is back, at
// the same addresses and with the same contents. Returns when the memory is on the host, after at
// most `timeout_us` microseconds (0 to 86400000000); after GPREEMPT_ERROR_TIMED_OUT the move
// continues. The memory returns after `lease_ms` milliseconds (0 to 86400000; 0: without a lease)
// or with gpreempt_restore_process(). `flags`: 0, or GPREEMPT_EVICT_TREE.
int gpreempt_evict(uint32_t pid, uint32_t lease_ms, uint32_t flags, uint64_t timeout_us);

// Ends gpreempt_evict(). Returns when the memory is on the GPU, after at most `timeout_us`
// microseconds (0 to 86400000000). After GPREEMPT_ERROR_TIMED_OUT it returns as soon as the GPU
// has room for it. GPREEMPT_ERROR_STATE if the process is not evicted.
int gpreempt_restore_process(uint32_t pid, uint64_t timeout_us);

// Makes room for the calling process: returns when `bytes` of memory are free on a device, after
// at most `timeout_us` microseconds (0 to 86400000000). Processes with a lower priority that are
// evictable are evicted for it. They return when this process ends, or claims 0 bytes. The memory
// is not reserved: allocate it at once. `device` is its number in gpreemptd, or
// GPREEMPT_ANY_DEVICE. After an error, GPREEMPT_ERROR_LIMIT for memory that is short, nothing
// stays evicted.
int gpreempt_make_room(uint64_t bytes, uint32_t device, uint64_t timeout_us);

// Says whether a process, and the children it starts from now on, may be evicted when processes
// with a higher priority need room: 0 or 1. `pid` 0 is the calling process.
int gpreempt_set_evictable(uint32_t pid, int evictable);

// Lists every queue that gpreemptd controls, by ascending id. `count` becomes their number,
// also if that is more than `capacity` (then GPREEMPT_ERROR_TOO_SMALL, and the first ones are
// written). `out` may be NULL if `capacity` is 0.
int gpreempt_get_all_queues(struct gpreempt_queue_info *out, size_t capacity, size_t *count);

// Reads one queue. GPREEMPT_ERROR_NO_SUCH_QUEUE if it does not exist.
int gpreempt_get_queue(uint64_t id, struct gpreempt_queue_info *out);

// Lists the ids of the queues with a priority from `priority_min` to `priority_max`. Otherwise as
// gpreempt_get_all_queues().
int gpreempt_find_queues_by_priority(int priority_min,
                                     int priority_max,
                                     uint64_t *ids,
                                     size_t capacity,
                                     size_t *count);

// Suspends queues: all of them, or none if one of them cannot be. Each may finish its work within
// `grace_us` microseconds (0 to 60000000) and is preempted after that. Waits until all are off. A
// queue that this process has suspended already gets a new lease.
int gpreempt_suspend_queues(const uint64_t *ids, size_t n, uint32_t grace_us);

// Ends suspensions by this process. GPREEMPT_ERROR_STATE, and no change, if one of the queues is
// not suspended by it. Does not wait: gpreemptd decides which queue runs next.
int gpreempt_resume_queues(const uint64_t *ids, size_t n);

// Preempts a queue and waits until it is off, for at most `timeout_us` microseconds
// (GPREEMPT_FOREVER: without a limit). It stays off until gpreempt_resume_queues(). After
// GPREEMPT_ERROR_TIMED_OUT the preempt is withdrawn.
int gpreempt_preempt(uint64_t id, uint64_t timeout_us);

// As gpreempt_preempt() without waiting: gpreempt_get_queue() tells when the queue is off.
int gpreempt_preempt_async(uint64_t id);

// Gives a queue a priority of its own, 0 to 15, or restores that of its process
// (GPREEMPT_PRIORITY_OF_PROCESS). Lasts as long as the queue. A priority above 7 needs root or the
// group gpreempt.
int gpreempt_set_queue_priority(uint64_t id, int priority);

// Level 3: saves the running kernel in the middle and keeps the queue off until
// gpreempt_restore(). Waits for it. GPREEMPT_ERROR_UNSUPPORTED where the device has no level 3.
int gpreempt_interrupt(uint64_t id);

// Ends gpreempt_interrupt(): the kernel continues at its next instruction.
int gpreempt_restore(uint64_t id);

// Level 2: the device stops fetching, and the running kernel finishes first. Waits for it.
// GPREEMPT_ERROR_UNSUPPORTED where the device has no level 2.
int gpreempt_deactivate(uint64_t id);

// Ends gpreempt_deactivate().
int gpreempt_reactivate(uint64_t id);

// Reads the highest preempt level of a queue's device: GPREEMPT_LEVEL_*.
int gpreempt_level(uint64_t id, int *level);

// Creates a queue with a priority, 0 (lowest) to 15 (highest), on GPREEMPT_BACKEND_*, with default
// options. On CUDA a context must be current: the queue is a stream in it, of the device's highest
// or lowest stream priority. On the emulated GPU gpreemptd gets the queue's priority as soon as it
// controls the queue (a process that it does not control yet gets the same priority); without
// gpreemptd that is GPREEMPT_ERROR_NO_DAEMON.
int gpreempt_queue_create(int backend, int priority, struct gpreempt_queue **queue);

// Creates a queue with options.
int gpreempt_queue_create_with(const struct gpreempt_queue_options *options,
                               struct gpreempt_queue **queue);

// Submits a kernel. Waits while the queue has as many launches in flight as its depth, and
// while it is blocked, unless GPREEMPT_LAUNCH_NO_WAIT is set.
int gpreempt_launch_kernel(struct gpreempt_queue *queue, const struct gpreempt_launch *launch);

// Waits until all submitted launches are complete, for at most `timeout_us` microseconds
// (GPREEMPT_FOREVER: without a limit).
int gpreempt_queue_synchronize(struct gpreempt_queue *queue, uint64_t timeout_us);

// Level 1: from now on launches wait, until gpreempt_queue_unblock(). Submitted launches run.
int gpreempt_queue_block(struct gpreempt_queue *queue);

// Ends gpreempt_queue_block().
int gpreempt_queue_unblock(struct gpreempt_queue *queue);

// Reads how many launches were submitted, and how many of them are complete.
int gpreempt_queue_progress(struct gpreempt_queue *queue, uint64_t *submitted, uint64_t *completed);

// Reads the id of the queue in gpreemptd, for gpreempt_suspend_queues() and the others. On CUDA
// that is the queue of the whole context. GPREEMPT_ERROR_NOT_CONTROLLED if gpreemptd does not
// control it.
int gpreempt_queue_id(struct gpreempt_queue *queue, uint64_t *id);

// Reads the CUstream of a queue on CUDA, for libraries that need one. The queue's depth does not
// limit what they submit.
int gpreempt_queue_stream(struct gpreempt_queue *queue, void **stream);

// Reads memory of the queue on the emulated GPU. GPREEMPT_ERROR_ARGUMENT if it has no such range.
int gpreempt_queue_read(struct gpreempt_queue *queue, uint32_t address, void *out, size_t bytes);

// Destroys a queue with everything that is in it. NULL is ignored. Calls of other threads that use
// it at this moment finish, or return GPREEMPT_ERROR_NO_SUCH_QUEUE. In a child process the queue
// of its parent is left alone.
int gpreempt_queue_destroy(struct gpreempt_queue *queue);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GPREEMPT_H */
