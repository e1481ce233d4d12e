/* A convolution of images behind an input-dependent gate, with what stands between them: means of the channels, masks, ReLU, pooling, and
 * for every position the sum of the weights of the channels that are needed. What is zero, as half of what leaves a ReLU is, is left out. */

#include "rows.h"

#define PARTS 8

typedef struct {
    ptrdiff_t units, height, width;         /* of the images */
    ptrdiff_t rectified, rectify, pool;     /* ReLU before the mask, ReLU behind it, side and stride of the pooling; 1 for none */
    ptrdiff_t outputs, kernel_height, kernel_width;
    ptrdiff_t stride_y, stride_x, padding_y, padding_x, dilation_y, dilation_x;
    ptrdiff_t result_height, result_width;
} Geometry;

static REAL value_of(REAL element, ptrdiff_t rectified)
{
    return rectified && element < 0 ? 0 : element;
}

static REAL mean_of(const REAL *channel, ptrdiff_t positions, ptrdiff_t rectified)
{
    double parts[PARTS] = {0}, sum = 0; /* Large images have many elements. */
    ptrdiff_t position = 0;
    for (; position + PARTS <= positions; position += PARTS)
        for (int part = 0; part < PARTS; part++)
            parts[part] += value_of(channel[position + part], rectified);
    for (; position < positions; position++)
        sum += value_of(channel[position], rectified);
    for (int part = 0; part < PARTS; part++)
        sum += parts[part];
    return (REAL)(sum / (double)positions);
}

/* The greatest element of a window, or one that is not a number. */
static REAL greatest(const REAL *window, ptrdiff_t width, ptrdiff_t pool, ptrdiff_t rectified)
{
    REAL best = value_of(window[0], rectified);
    for (ptrdiff_t y = 0; y < pool; y++)
        for (ptrdiff_t x = 0; x < pool; x++) {
            const REAL value = value_of(window[y * width + x], rectified);
            if (value > best || value != value)
                best = value;
        }
    return best;
}

/* A channel as the convolution reads it, inside a border of zeros that is there already. A mask is positive, so it does not matter whether
 * it multiplies before ReLU and pooling or behind them. */
static void prepare(const Geometry *g, const REAL *channel, REAL mask, REAL *padded, ptrdiff_t across)
{
    const ptrdiff_t height = g->height / g->pool, width = g->width / g->pool;
    for (ptrdiff_t y = 0; y < height; y++)
        for (ptrdiff_t x = 0; x < width; x++) {
            const REAL *window = channel + y * g->pool * g->width + x * g->pool;
            const REAL value = g->pool == 1 ? value_of(*window, g->rectified) : greatest(window, g->width, g->pool, g->rectified);
            padded[(y + g->padding_y) * across + x + g->padding_x] = value_of(value * mask, g->rectify);
        }
}

/* images:     (batch, units, height, width), before their ReLU if it is rectified
 * rule:       scale, shift and greatest value of each unit's mask, (3, units); what does not exceed the threshold is zero
 * weights:    (units, kernel height, kernel width, outputs)
 * bias:       (outputs), or NULL
 * numbers:    (units), to work with
 * padded:     (units, height behind pooling and with padding, width likewise), to work with
 * sums:       (outputs), to work with
 * results:    (batch, outputs, result height, result width) */
void gated_convolution(const REAL *images, ptrdiff_t batch, const Geometry *g, const REAL *rule, double threshold, const REAL *weights,
                       const REAL *bias, ptrdiff_t *numbers, REAL *padded, REAL *sums, REAL *results)
{
    const REAL least = (REAL)threshold;
    const ptrdiff_t positions = g->height * g->width, places = g->result_height * g->result_width;
    const ptrdiff_t across = g->width / g->pool + 2 * g->padding_x, size = (g->height / g->pool + 2 * g->padding_y) * across;
    const ptrdiff_t taps = g->kernel_height * g->kernel_width;
    for (ptrdiff_t element = 0; element < g->units * size; element++)
        padded[element] = 0;
    for (ptrdiff_t input = 0; input < batch; input++, images += g->units * positions, results += g->outputs * places) {
        ptrdiff_t needed = 0;
        for (ptrdiff_t unit = 0; unit < g->units; unit++) {
            const REAL *channel = images + unit * positions;
            const REAL mask = mask_of(mean_of(channel, positions, g->rectified), rule, unit, g->units);
            if (mask <= least)
                continue;
            prepare(g, channel, mask, padded + needed * size, across);
            numbers[needed++] = unit;
        }
        for (ptrdiff_t place = 0; place < places; place++) {
            const ptrdiff_t top = place / g->result_width * g->stride_y, left = place % g->result_width * g->stride_x;
            Terms terms;
            start(&terms, sums, bias, g->outputs);
            for (ptrdiff_t number = 0; number < needed; number++) {
                const REAL *channel = padded + number * size, *rows = weights + numbers[number] * taps * g->outputs;
                for (ptrdiff_t y = 0; y < g->kernel_height; y++) {
                    const REAL *line = channel + (top + y * g->dilation_y) * across + left;
                    for (ptrdiff_t x = 0; x < g->kernel_width; x++, rows += g->outputs)
                        if (line[x * g->dilation_x] != 0)
                            add(&terms, sums, rows, line[x * g->dilation_x], g->outputs);
                }
            }
            finish(&terms, sums, g->outputs);
            for (ptrdiff_t o = 0; o < g->outputs; o++)
                results[o * places + place] = sums[o];
        }
    }
}
