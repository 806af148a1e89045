/* The plan of a bundle's network, as farm/runtime/plan_text.py writes it. Internal: programs include farm.h.
 *
 * A plan is hostile input. What is read keeps every rule that running it relies on: each number is in its range, each
 * index is below its count, each tensor of a layer fits in its place, each launch takes at least one image, and no file is
 * the code of two kernels.
 */
#ifndef FARM_PLAN_H
#define FARM_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "farm.h"
#include "members.h"

#define PLAN_FILE "network.plan"
#define CONSTANTS_FILE "network.constants"
#define GLUE_FILE "glue.ptx"

/* Limits, which plan_text.py has too. */
#define MOST_PLAN_BYTES ((size_t)1 << 24)
#define MOST_LINES 65536 /* of one kind */
#define MOST_STEPS 16384
#define MOST_ARGUMENTS 32
#define MOST_RANK 16
#define MOST_IMAGES ((int64_t)1 << 30)
#define MOST_TENSOR_BYTES ((int64_t)1 << 33) /* of one image; with all images below 2^63 */
#define MOST_FILE_BYTES ((int64_t)1 << 32)
#define MOST_SHARED_BYTES ((int64_t)1 << 20)
#define MOST_THREADS 1024

/* Blocks in one dimension: `fixed`, times one for each `images` images if that is not 0. */
typedef struct {
    int64_t fixed, images;
} farm_grid_size;

typedef struct {
    int layer, file; /* numbers of the layer and of the file with its code */
    int arch; /* 90 for sm_90 and compute_90 */
    int is_ptx, is_exact;
    int most_rows; /* the largest number of images or rows that it is meant for */
    const char *entry;
    const char *arguments; /* letters: i input, o output, r residual, g gate, n images, s output step, t input step */
    farm_grid_size grid[3];
    unsigned block[3], shared_bytes;
    int waits; /* whether it itself waits for the kernel before it, so that it may begin before that has ended */
    int output_step, input_step;
} farm_kernel;

typedef struct {
    char kind; /* i, o, b or c: the place of a tensor; n: number of rows; d: an integer; f: the bits of a float */
    int64_t value;
} farm_argument;

typedef struct {
    int layer; /* -1 for a glue kernel */
    int rows;
    const char *kernel; /* NULL for a layer */
    farm_grid_size grid[3];
    unsigned threads;
    int count;
    farm_argument arguments[MOST_ARGUMENTS];
} farm_step;

typedef struct {
    char *text; /* names point into it */
    farm_file *files;
    farm_layer *layers;
    farm_kernel *kernels; /* for all architectures, in the order of the layers */
    farm_port *inputs, *outputs;
    size_t *buffer_bytes; /* for each image */
    farm_step *steps;
    int file_count, layer_count, kernel_count, input_count, output_count, buffer_count, step_count;
    const char *refused; /* why the network does not run, or NULL */
    int images; /* the only number of images that the network takes, 0 for any */
    int64_t constants_bytes;
    int constants_file, glue_file; /* numbers of the files with these names, or -1 */
} farm_plan;

/* Reads a plan's text, which ends in a zero and which the plan takes over and frees. */
int farm_read_plan(char *text, size_t bytes, farm_plan *plan);
void farm_free_plan(farm_plan *plan);

/* The largest number of rows for one launch, at least 1. */
int64_t farm_rows_limit(const farm_grid_size grid[3]);

#endif
