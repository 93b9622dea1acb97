/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libdtrain: collective operations for the workers of one job, in plain C.
 *
 * Bootstrap  The launcher gives each worker a PMI-1 socket (`dtrain launch`, `mpiexec.hydra`,
 *            Flux). A program that was started without one is a job of one rank.
 * Buffers    belong to the caller and are dense and naturally aligned: host memory, or GPU
 *            memory if the job runs on NCCL. A blocking call keeps no pointer; an asynchronous
 *            one may use its buffers until its handle is done. Counts are elements, never bytes.
 * Order      Every rank of a group makes the same blocking calls on it, in the same order, with
 *            the same count, type, operation and root. If a rank differs, all fail with
 *            DTRAIN_ERROR_MISMATCH, which names the ranks; no rank gets a wrong result.
 *            Asynchronous collectives of a group are matched by name, and unnamed ones by their
 *            position among the unnamed, so ranks may make them in different orders. If ranks
 *            mean different things by one name, that collective fails with
 *            DTRAIN_ERROR_MISMATCH, and nothing else is affected.
 * Results    of an all-reduce are the same bits on every rank, and on CPUs also from run to run
 *            with the same inputs, ranks and nodes.
 * Threads    Any thread may call anything. Calls take turns: a second one waits until the first
 *            has returned. While dtrain_wait or dtrain_group_create waits, asynchronous
 *            collectives can be started and awaited, several threads each; dtrain_test never
 *            waits. The rank and size functions, marks, dtrain_backend, dtrain_last_error,
 *            dtrain_status_name and dtrain_version do not take turns.
 * Failure    A call either succeeds or leaves a message in dtrain_last_error(). If a blocking
 *            collective fails, or the connection of an asynchronous one breaks, all connections
 *            are closed, so that the other ranks fail at once, too; output buffers are then
 *            undefined, and only dtrain_finalize is left to call. An asynchronous collective
 *            that the ranks could not agree on has not begun: its buffers are unchanged, and the
 *            job goes on.
 * Versions   Within one SONAME, values and functions are added, never renumbered or removed.
 */
#ifndef DTRAIN_DTRAIN_H_
#define DTRAIN_DTRAIN_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DTRAIN_API __attribute__((visibility("default")))

typedef enum dtrain_status {
  DTRAIN_OK = 0,
  DTRAIN_ERROR_INVALID_ARGUMENT = 1, /* NULL, negative root, overlapping buffers, unknown value */
  DTRAIN_ERROR_STATE = 2,            /* before dtrain_init, twice, after dtrain_finalize, forked */
  DTRAIN_ERROR_UNSUPPORTED = 3,      /* an unsupported combination, such as avg of integers */
  DTRAIN_ERROR_ENVIRONMENT = 4, /* an environment variable or the launcher's socket is invalid */
  DTRAIN_ERROR_LAUNCHER = 5,    /* the launcher's PMI server refused, or has gone away */
  DTRAIN_ERROR_NETWORK = 6,     /* another rank could not be reached, or its connection broke */
  DTRAIN_ERROR_TIMEOUT = 7,     /* the other ranks did not arrive in time */
  DTRAIN_ERROR_BUSY = 8,        /* no longer returned: calls take turns */
  DTRAIN_ERROR_RESOURCES = 9,   /* out of memory, descriptors or threads */
  DTRAIN_ERROR_INTERNAL = 10,   /* a bug in libdtrain: please report it */
  DTRAIN_ERROR_MISMATCH = 11,   /* the ranks ask for different things */
  DTRAIN_ERROR_DEVICE = 12      /* a GPU, its driver or NCCL */
} dtrain_status;

typedef enum dtrain_type {
  DTRAIN_INT32 = 0,
  DTRAIN_INT64 = 1,
  DTRAIN_FLOAT16 = 2,  /* IEEE binary16; sums are accumulated in float32 */
  DTRAIN_BFLOAT16 = 3, /* the upper half of a float32; likewise */
  DTRAIN_FLOAT32 = 4,
  DTRAIN_FLOAT64 = 5,
  DTRAIN_BYTE = 6 /* of anything: broadcast, all-gather and all-to-all only */
} dtrain_type;

/* Integer sums and products wrap around. With NaN among the inputs, min and max are unspecified. */
typedef enum dtrain_op {
  DTRAIN_SUM = 0,
  DTRAIN_AVG = 1, /* the sum divided by the number of ranks; floating-point types only */
  DTRAIN_MIN = 2,
  DTRAIN_MAX = 3,
  DTRAIN_PROD = 4
} dtrain_op;

/*
 * Settings that take precedence over the environment. Start from DTRAIN_CONFIG_INIT, so that a
 * program built against this header works with a later library that has more fields. A field that
 * is zero or NULL means: as the environment says, else the default.
 */
typedef struct dtrain_config {
  size_t struct_size;            /* sizeof(dtrain_config), filled in by DTRAIN_CONFIG_INIT */
  uint64_t flags;                /* none defined: 0 */
  int64_t init_timeout_ms;       /* for dtrain_init and dtrain_finalize; default 300,000 */
  int64_t collective_timeout_ms; /* for one collective; default 1,800,000 */
  const char* address;           /* numeric address to listen on; only read during dtrain_init */
} dtrain_config;

#define DTRAIN_CONFIG_INIT \
  { sizeof(dtrain_config), 0, 0, 0, NULL }

/*
 * Joins the job: meets the other ranks through the launcher and connects to all of them.
 * Collective. Cannot be repeated after a failure, but after dtrain_finalize it can, if the launcher
 * allows it (`dtrain launch` does). `config` may be NULL. Threads that the library starts block all
 * signals.
 */
DTRAIN_API dtrain_status dtrain_init(const dtrain_config* config);

/*
 * Leaves the job: waits until every rank has called it, closes the connections and informs the
 * launcher. If a rank is in a collective meanwhile, or begins one, that collective and this call
 * fail at once with DTRAIN_ERROR_MISMATCH, which names the rank that leaves. After a failed
 * collective it does not wait. The launcher takes a process that exits without it for failed.
 */
DTRAIN_API dtrain_status dtrain_finalize(void);

/*
 * As dtrain_finalize, for a program that has nothing more to do: waits for as long as the other
 * ranks run, without a timeout. It fails if a rank or the launcher is lost.
 */
DTRAIN_API dtrain_status dtrain_finalize_at_exit(void);

/*
 * For a program that ends without dtrain_finalize: from now on the library calls no function of the
 * program's (see dtrain_allocate), for good. Returns when none is running.
 */
DTRAIN_API void dtrain_abandon(void);

/*
 * Leaves the job and joins it again, also after a failed collective, when every rank has called it.
 * As dtrain_finalize, it makes the collectives fail that other ranks are in or begin: these ranks
 * call it, too. What belonged to the job (groups, handles, memory) has gone. It needs all ranks to
 * be alive, and a launcher that lets a process join again; `config` as for dtrain_init. Waits as
 * long as dtrain_init does. After a failure the process is in no job and cannot join.
 */
DTRAIN_API dtrain_status dtrain_rejoin(const dtrain_config* config);

/* -1 before dtrain_init and after dtrain_finalize. */
DTRAIN_API int dtrain_rank(void);       /* 0 .. dtrain_size() - 1 */
DTRAIN_API int dtrain_size(void);       /* workers in the job */
DTRAIN_API int dtrain_local_rank(void); /* 0 .. dtrain_local_size() - 1, on this node */
DTRAIN_API int dtrain_local_size(void); /* workers on this node */
DTRAIN_API int dtrain_node_rank(void);  /* 0 .. nodes - 1, in the order of their first ranks */
DTRAIN_API int dtrain_node_count(void); /* nodes in the job */

/* Returns when every rank has called it. */
DTRAIN_API dtrain_status dtrain_barrier(void);

/*
 * output[i] = op over all ranks of input[i], for `count` elements, on every rank. `input` may equal
 * `output` (in place) but not overlap it otherwise. With count 0 nothing is read or written. Every
 * rank gets the same bits.
 */
DTRAIN_API dtrain_status dtrain_allreduce(const void* input, void* output, size_t count,
                                          dtrain_type type, dtrain_op op);

/* Copies `count` elements from rank `root`'s buffer into the buffer of every other rank. */
DTRAIN_API dtrain_status dtrain_broadcast(void* buffer, size_t count, dtrain_type type, int root);

/*
 * Every rank contributes `count` elements; `output`, dtrain_size() * count elements long, gets them
 * in rank order. In place: input == output + dtrain_rank() * count elements.
 */
DTRAIN_API dtrain_status dtrain_allgather(const void* input, void* output, size_t count,
                                          dtrain_type type);

/*
 * output = block number dtrain_rank() of the element-wise `op` over all ranks' inputs. `input` is
 * dtrain_size() * count elements long, `output` count. In place: output == input + dtrain_rank() *
 * count elements.
 */
DTRAIN_API dtrain_status dtrain_reduce_scatter(const void* input, void* output, size_t count,
                                               dtrain_type type, dtrain_op op);

/*
 * Block r of `input` goes to rank r, which gets it as block dtrain_rank() of its output. Both
 * buffers are dtrain_size() * count elements long. In place: input == output.
 */
DTRAIN_API dtrain_status dtrain_alltoall(const void* input, void* output, size_t count,
                                         dtrain_type type);

/* Like dtrain_allreduce, but only rank `root` gets the result; elsewhere `output` may be NULL. */
DTRAIN_API dtrain_status dtrain_reduce(const void* input, void* output, size_t count,
                                       dtrain_type type, dtrain_op op, int root);

/* ---- Groups: collectives among some of the ranks ---- */

/* NULL stands for all ranks of the job. */
typedef struct dtrain_group_state* dtrain_group;

/*
 * Collective over all ranks of the job: ranks that pass the same `color` form a group, ranked by
 * `key`, then by dtrain_rank(). With a negative color the rank is in no group, and *group is NULL.
 * Free it with dtrain_group_free (collective over the group) or leave that to dtrain_finalize.
 *
 * Matched like an asynchronous collective (see below), so that others may be pending before it, and
 * other threads may make more while it waits. If several threads of a rank make groups, they take
 * turns: all ranks must make them in the same order.
 */
DTRAIN_API dtrain_status dtrain_group_create(int color, int key, dtrain_group* group);
DTRAIN_API dtrain_status dtrain_group_free(dtrain_group group);
/*
 * How long this rank's collectives on the group wait for its other ranks from now on; 0: for
 * collective_timeout_ms, which breaks the job. On CPUs, a timeout that was set here on a group that
 * is not NULL affects this group alone: its collectives fail on all its ranks from then on, as this
 * call does, and the job goes on.
 */
DTRAIN_API dtrain_status dtrain_group_set_timeout(dtrain_group group, int64_t timeout_ms);
DTRAIN_API int dtrain_group_rank(dtrain_group group); /* in the group, or -1: no such group */
DTRAIN_API int dtrain_group_size(dtrain_group group);

/* ---- Asynchronous calls ---- */

/* Identifies a collective of this process in flight; never 0. */
typedef uint64_t dtrain_handle;

/* Start from DTRAIN_OPTIONS_INIT. A field that is zero or NULL has its default. */
typedef struct dtrain_options {
  size_t struct_size;
  uint64_t flags;     /* none is defined: 0 */
  dtrain_group group; /* default: all ranks */
  const char* name;   /* matches it between ranks, and appears in errors and the timeline; must
                         differ from others in flight on the group, and from
                         "dtrain_group_create"; copied; default none */
  void* stream;       /* cudaStream_t that device buffers are used on; default: the legacy stream */
  const char* shape;  /* describes the arrays beyond count and type, such as "(2, 3)": must be the
                         same on all ranks, or DTRAIN_ERROR_MISMATCH; copied; default none */
} dtrain_options;

#define DTRAIN_OPTIONS_INIT \
  { sizeof(dtrain_options), 0, NULL, NULL, NULL, NULL }

/*
 * Like the blocking call of the same name, but on options->group, and they return at once: the
 * collective is done when dtrain_wait or dtrain_test says so. `options` may be NULL; ranks and
 * counts are the group's. A blocking call runs after all asynchronous ones of all ranks that were
 * made before it. Groups do not wait for each other: each rank may use its groups in any order; on
 * GPUs, groups whose order differs between ranks need streams of their own.
 * Buffers of calls that are in flight at the same time must not overlap, unless they are only read.
 *
 * A name that is already in flight is DTRAIN_ERROR_INVALID_ARGUMENT, on this rank alone. If no
 * collective is pending on all ranks and every rank has waited for one for 5 seconds, each gets
 * DTRAIN_ERROR_MISMATCH, which says who waits for what (if several threads of a rank have made
 * some: DTRAIN_ERROR_TIMEOUT, in the end). The job goes on.
 *
 * All-reduces that are pending at the same time, with the same type, operation and group, may
 * travel as one (fusion): up to DTRAIN_FUSION_THRESHOLD bytes (or HOROVOD_FUSION_THRESHOLD; default
 * 128 MiB, 0 turns it off), gathered for DTRAIN_CYCLE_TIME milliseconds (or HOROVOD_CYCLE_TIME;
 * default 1). On CPUs, other collectives that no thread waits for are delayed as long.
 *
 * With device buffers the collective waits for the work that options->stream has now, and runs
 * concurrently with what is enqueued there later; work enqueued after dtrain_wait sees the result,
 * without synchronising the host. If the stream is being captured into a CUDA graph, the collective
 * becomes part of the graph, and so does dtrain_wait; what was made before is started first, in all
 * groups: all ranks must have made the same, and waited for rows of unequal numbers. While another
 * thread of the rank makes a group, that is DTRAIN_ERROR_STATE.
 */
DTRAIN_API dtrain_status dtrain_barrier_async(const dtrain_options* options, dtrain_handle* handle);
DTRAIN_API dtrain_status dtrain_allreduce_async(const void* input, void* output, size_t count,
                                                dtrain_type type, dtrain_op op,
                                                const dtrain_options* options,
                                                dtrain_handle* handle);
DTRAIN_API dtrain_status dtrain_broadcast_async(void* buffer, size_t count, dtrain_type type,
                                                int root, const dtrain_options* options,
                                                dtrain_handle* handle);
DTRAIN_API dtrain_status dtrain_allgather_async(const void* input, void* output, size_t count,
                                                dtrain_type type, const dtrain_options* options,
                                                dtrain_handle* handle);
DTRAIN_API dtrain_status dtrain_reduce_scatter_async(const void* input, void* output, size_t count,
                                                     dtrain_type type, dtrain_op op,
                                                     const dtrain_options* options,
                                                     dtrain_handle* handle);
DTRAIN_API dtrain_status dtrain_alltoall_async(const void* input, void* output, size_t count,
                                               dtrain_type type, const dtrain_options* options,
                                               dtrain_handle* handle);
DTRAIN_API dtrain_status dtrain_reduce_async(const void* input, void* output, size_t count,
                                             dtrain_type type, dtrain_op op, int root,
                                             const dtrain_options* options, dtrain_handle* handle);

/*
 * Memory for the rows that all ranks have for this one, one rank's after another's. `rows`: how
 * many of them come from each rank of the group; valid during the call. Called once for each
 * collective, when the ranks have told each other, by a thread of the library's or one that waits;
 * it must not call the library. The memory lies where the input does, on the host or on the device.
 * NULL: there is none, which ends the job, unless nothing comes.
 */
typedef void* (*dtrain_allocate)(void* context, const uint64_t* rows);

/*
 * Like dtrain_allgather_async and dtrain_alltoall_async, with any number of rows, of `length`
 * elements each. A rank knows its own numbers only. For the all-to-all, `rows` has a number for
 * each rank of the group, and is copied; the blocks lie one after another.
 */
DTRAIN_API dtrain_status dtrain_allgatherv_async(const void* input, uint64_t rows, size_t length,
                                                 dtrain_type type, dtrain_allocate allocate,
                                                 void* context, const dtrain_options* options,
                                                 dtrain_handle* handle);
DTRAIN_API dtrain_status dtrain_alltoallv_async(const void* input, const uint64_t* rows,
                                                size_t length, dtrain_type type,
                                                dtrain_allocate allocate, void* context,
                                                const dtrain_options* options,
                                                dtrain_handle* handle);

/* Returns when the collective is done, with its status. The handle is then invalid. */
DTRAIN_API dtrain_status dtrain_wait(dtrain_handle handle);
/* Sets *done to 1 and does the same if the collective is done; otherwise sets it to 0. */
DTRAIN_API dtrain_status dtrain_test(dtrain_handle handle, int* done);

/*
 * For a rank that has no more data while others still have some: contributes zeros to the
 * asynchronous all-reduces over all ranks that the others make, until every rank has called it;
 * *last (may be NULL) is then the rank that called it last. An average is still over all ranks. Any
 * other asynchronous call meanwhile, including a minimum, maximum or product, fails with
 * DTRAIN_ERROR_MISMATCH on the ranks that make it, and the job goes on; a blocking call makes both
 * fail. Calls on groups are not served: they wait. Needs memory for as many zeros as travel at
 * once.
 */
DTRAIN_API dtrain_status dtrain_join(int* last);

/* ---- Memory that other ranks access without a copy ---- */

/*
 * Allocates `bytes` of zeroed memory, aligned to 4096, that collectives handle fastest: memory that
 * the ranks of the node share, or with dtrain_alloc_device memory of the GPU. Not collective, but
 * waits for the asynchronous calls in flight. Free it with dtrain_free, or leave it to
 * dtrain_finalize. Shared memory is also shared with a child after fork, and is not touched here.
 */
DTRAIN_API dtrain_status dtrain_alloc(size_t bytes, void** memory);
DTRAIN_API dtrain_status dtrain_alloc_device(size_t bytes, void** memory);
DTRAIN_API dtrain_status dtrain_free(void* memory);

/*
 * Registered memory: NCCL (2.19.1 or newer) lets the GPUs work in the ranks' own buffers, without
 * copies and with fewer of the GPU's processors (NVLink SHARP, GPUs of a node, RDMA).
 *
 * dtrain_alloc_registrable is dtrain_alloc_device for memory that can be registered; on CPUs it is
 * dtrain_alloc. It takes whole multiples of 2 MiB and is mapped by all GPUs of the node, so use
 * it for a few large buffers. Do not free it while a stream is being captured.
 *
 * dtrain_register is collective over the group (NULL: all ranks): each rank passes the beginning of
 * such memory, of the same length. *registered (may be NULL) is then 1 on all ranks, or 0 on all if
 * there is nothing to gain: on CPUs, with an older NCCL, or if NCCL has declined. An error is
 * the same on every rank, and the job goes on. Memory may be registered with several groups.
 *
 * NCCL works directly in registered memory if all ranks use the same registrations, at the same
 * offsets. If they do not, and with dtrain_reduce, the collective copies: the result is the same,
 * but it takes longer. A collective in registered memory cannot become part of a CUDA graph.
 *
 * dtrain_deregister is not collective; dtrain_free and dtrain_group_free imply it. It waits for the
 * group's collectives in flight. For memory that is not registered it does nothing and succeeds.
 */
DTRAIN_API dtrain_status dtrain_alloc_registrable(size_t bytes, void** memory);
DTRAIN_API dtrain_status dtrain_register(void* memory, dtrain_group group, int* registered);
DTRAIN_API dtrain_status dtrain_deregister(void* memory, dtrain_group group);

/* ---- Timeline ---- */

/*
 * A span of the program's own on the job's timeline (dtrain launch --timeline), from begin to end;
 * spans of one thread nest. `name` is cut after 39 bytes. Cheap; does nothing without a timeline.
 */
DTRAIN_API void dtrain_mark_begin(const char* name);
DTRAIN_API void dtrain_mark_end(void);

/* "cpu" or "nccl": what carries the collectives of this job; "none" outside a job. */
DTRAIN_API const char* dtrain_backend(void);

/*
 * Why this thread's last failed call failed: one line in English, valid until this thread's
 * next call into the library; "" if none has failed. Never NULL.
 */
DTRAIN_API const char* dtrain_last_error(void);

/* "DTRAIN_OK" and so on; "unknown status" for any other number. A constant string. */
DTRAIN_API const char* dtrain_status_name(dtrain_status status);

/* "0.1.0": the version of the library that was loaded. A constant string. */
DTRAIN_API const char* dtrain_version(void);

#ifdef __cplusplus
}
#endif

#endif /* DTRAIN_DTRAIN_H_ */
