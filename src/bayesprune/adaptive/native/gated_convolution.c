/* A convolution of images behind an input-dependent gate, with what stands around it, in one pass: means of the channels, masks, ReLU and
 * pooling, then, for some places of the result and some outputs at a time, the sum over the channels that are needed, whose parts stay in
 * registers until it is complete, and at last a normalisation. */

#include "masks.h"
#include "tiles.h"

#define PARTS 8
#define PRODUCTS 2e6 /* for which a further thread is woken up: some ten microseconds */

typedef struct {
    ptrdiff_t units, height, width;         /* of the images */
    ptrdiff_t rectified, rectify, pool;     /* ReLU before the mask, ReLU behind it, side and stride of the pooling; 1 for none */
    ptrdiff_t padding_y, padding_x;
    ptrdiff_t size;                         /* of a channel behind the pooling, with its border */
    ptrdiff_t outputs, taps;                /* of the result, of a channel's kernel */
    Places places;
} Geometry;

static inline REAL no_less(REAL value, REAL least)
{
    return value < least ? least : value; /* What is not a number stays so. */
}

static REAL mean_of(const REAL *channel, ptrdiff_t positions, REAL least)
{
    double parts[PARTS] = {0}, sum = 0; /* Large images have many elements. */
    ptrdiff_t position = 0;
    for (; position + PARTS <= positions; position += PARTS)
        for (int part = 0; part < PARTS; part++)
            parts[part] += no_less(channel[position + part], least);
    for (; position < positions; position++)
        sum += no_less(channel[position], least);
    for (int part = 0; part < PARTS; part++)
        sum += parts[part];
    return (REAL)(sum / (double)positions);
}

/* The greatest element of a window, or one that is not a number. */
static inline REAL greatest(const REAL *window, ptrdiff_t width, ptrdiff_t pool)
{
    REAL best = window[0];
    for (ptrdiff_t y = 0; y < pool; y++)
        for (ptrdiff_t x = 0; x < pool; x++) {
            const REAL value = window[y * width + x];
            best = value > best || value != value ? value : best;
        }
    return best;
}

static inline REAL *zeros(REAL *place, ptrdiff_t count)
{
    for (ptrdiff_t element = 0; element < count; element++)
        place[element] = 0;
    return place + count;
}

/* A channel as the convolution reads it, in a border of zeros. A mask is positive, so it does not matter whether it multiplies before ReLU
 * and pooling or behind them. */
static inline void prepare(const Geometry *g, const REAL *restrict channel, REAL mask, REAL *restrict padded, ptrdiff_t pool)
{
    const ptrdiff_t height = g->height / pool, width = g->width / pool, border = g->padding_y * (width + 2 * g->padding_x);
    const REAL before = g->rectified ? 0 : -(REAL)__builtin_inf(), behind = g->rectify ? 0 : -(REAL)__builtin_inf();
    padded = zeros(padded, border);
    for (ptrdiff_t y = 0; y < height; y++) {
        const REAL *line = channel + y * pool * g->width;
        padded = zeros(padded, g->padding_x);
        for (ptrdiff_t x = 0; x < width; x++) {
            const REAL value = pool == 1 ? line[x] : greatest(line + x * pool, g->width, pool);
            padded[x] = no_less(no_less(value, before) * mask, behind);
        }
        padded = zeros(padded + width, g->padding_x);
    }
    zeros(padded, border);
}

/* How many of the threads are worth waking up for one image. */
static ptrdiff_t helpful(ptrdiff_t threads, const Geometry *g, ptrdiff_t needed)
{
    const double products = (double)needed * g->taps * g->places.count * g->outputs;
    return products < PRODUCTS * (threads - 1) ? 1 + (ptrdiff_t)(products / PRODUCTS) : threads;
}

static void prepare_all(const Geometry *g, const REAL *channel, REAL mask, REAL *padded)
{
    if (g->pool == 1) /* Known numbers make for faster loops. */
        prepare(g, channel, mask, padded, 1);
    else if (g->pool == 2)
        prepare(g, channel, mask, padded, 2);
    else
        prepare(g, channel, mask, padded, g->pool);
}

/* One image; see below. */
static void convolve_image(const REAL *image, const Geometry *g, const REAL *rule, REAL threshold, const REAL *weights, const REAL *ends,
                           const ptrdiff_t *taps_at, ptrdiff_t threads, ptrdiff_t *numbers, REAL *padded, REAL *results)
{
    const REAL floor = g->rectified ? 0 : -(REAL)__builtin_inf();
    const ptrdiff_t positions = g->height * g->width;
    ptrdiff_t needed = 0;
    for (ptrdiff_t unit = 0; unit < g->units; unit++) {
        const REAL *channel = image + unit * positions;
        const REAL mask = rule ? mask_of(mean_of(channel, positions, floor), rule, unit, g->units) : 1;
        if (rule && mask <= threshold)
            continue;
        prepare_all(g, channel, mask, padded + needed * g->size);
        numbers[needed++] = unit;
    }
    const Channels channels = {padded, g->size, numbers, needed, g->units, taps_at, g->taps};
    convolve(&channels, &g->places, weights, ends, g->outputs, helpful(threads, g, needed), results);
}

/* images:     (batch, units, height, width), before their ReLU if it is rectified
 * rule:       scale, shift and greatest value of each unit's mask, (3, units), or NULL where there are no masks; what does not exceed the
 *             threshold is zero
 * weights:    (blocks, units, taps, BLOCK), with zeros in the place of outputs that are missing in the last block
 * ends:       what a sum begins with, and scale and shift of the normalisation of its result, (3, blocks, BLOCK)
 * taps_at:    (taps), where an element lies that a place reads, counted from the place's first
 * threads:    to compute with, at most
 * parts:      of the batch, each computed by one thread; if it is one part, all threads compute each of its images
 * numbers:    (parts, units), to work with
 * padded:     (parts, units, size), to work with
 * results:    (batch, outputs, places) */
void gated_convolution(const REAL *images, ptrdiff_t batch, const Geometry *g, const REAL *rule, double threshold, const REAL *weights,
                       const REAL *ends, const ptrdiff_t *taps_at, ptrdiff_t threads, ptrdiff_t parts, ptrdiff_t *numbers, REAL *padded,
                       REAL *results)
{
    const ptrdiff_t length = (batch + parts - 1) / parts, elements = g->units * g->height * g->width;
    if (parts == 1) { /* Not as one part of several: threads of a team inside another would be started anew for every image. */
        for (ptrdiff_t input = 0; input < batch; input++)
            convolve_image(images + input * elements, g, rule, (REAL)threshold, weights, ends, taps_at, threads, numbers, padded,
                           results + input * g->outputs * g->places.count);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel for num_threads((int)parts) schedule(static)
#endif
    for (ptrdiff_t part = 0; part < parts; part++)
        for (ptrdiff_t input = part * length; input < (part + 1) * length && input < batch; input++)
            convolve_image(images + input * elements, g, rule, (REAL)threshold, weights, ends, taps_at, 1, numbers + part * g->units,
                           padded + part * g->units * g->size, results + input * g->outputs * g->places.count);
}
