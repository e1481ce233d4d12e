/* A linear layer behind an input-dependent gate, for vectors: what the gate multiplies each unit by, and the sum of the weights of the
 * units that are needed, in one pass. Compiled with REAL as float or double; multiplications and additions are not contracted, so that
 * masks close to their threshold come out as they do elsewhere. */

#include <stddef.h>

/* The weights of so many units are added at a time, so that a sum is read and written once for all of them. */
#define TOGETHER 4

static void add_rows(REAL *restrict sums, const REAL *const *rows, const REAL *factors, ptrdiff_t outputs)
{
    const REAL *restrict a = rows[0], *restrict b = rows[1], *restrict c = rows[2], *restrict d = rows[3];
    for (ptrdiff_t o = 0; o < outputs; o++)
        sums[o] += (factors[0] * a[o] + factors[1] * b[o]) + (factors[2] * c[o] + factors[3] * d[o]);
}

static void add_row(REAL *restrict sums, const REAL *restrict row, REAL factor, ptrdiff_t outputs)
{
    for (ptrdiff_t o = 0; o < outputs; o++)
        sums[o] += factor * row[o];
}

/* inputs:    (batch, units), before their ReLU if rectified is not zero
 * rule:      scale, shift and greatest value of each unit's mask, (3, units); what does not exceed the threshold is zero
 * weights:   (units, outputs)
 * bias:      (outputs), or NULL
 * results:   (batch, outputs) */
void gated_linear(const REAL *inputs, ptrdiff_t batch, ptrdiff_t units, ptrdiff_t outputs, int rectified, const REAL *rule, double threshold,
                  const REAL *weights, const REAL *bias, REAL *results)
{
    const REAL *scale = rule, *shift = rule + units, *most = rule + 2 * units;
    const REAL least = (REAL)threshold;
    for (ptrdiff_t input = 0; input < batch; input++, inputs += units, results += outputs) {
        const REAL *rows[TOGETHER];
        REAL factors[TOGETHER];
        int waiting = 0;
        for (ptrdiff_t o = 0; o < outputs; o++)
            results[o] = bias ? bias[o] : 0;
        for (ptrdiff_t unit = 0; unit < units; unit++) {
            /* Comparisons are such that what is not a number stays so, as in torch. */
            const REAL value = rectified && inputs[unit] < 0 ? 0 : inputs[unit];
            const REAL open = shift[unit] + value * scale[unit];
            const REAL mask = open > most[unit] ? most[unit] : open;
            if (mask <= least)
                continue;
            factors[waiting] = value * mask;
            rows[waiting++] = weights + unit * outputs;
            if (waiting == TOGETHER) {
                add_rows(results, rows, factors, outputs);
                waiting = 0;
            }
        }
        for (int last = 0; last < waiting; last++)
            add_row(results, rows[last], factors[last], outputs);
    }
}
