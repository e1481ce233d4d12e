/* A linear layer behind an input-dependent gate, for vectors: what the gate multiplies each unit by, and the sum of the weights of the
 * units that are needed, in one pass. */

#include "masks.h"
#include "rows.h"

/* inputs:    (batch, units), before their ReLU if rectified is not zero
 * rule:      scale, shift and greatest value of each unit's mask, (3, units); what does not exceed the threshold is zero
 * weights:   (units, outputs)
 * bias:      (outputs), or NULL
 * results:   (batch, outputs) */
void gated_linear(const REAL *inputs, ptrdiff_t batch, ptrdiff_t units, ptrdiff_t outputs, int rectified, const REAL *rule, double threshold,
                  const REAL *weights, const REAL *bias, REAL *results)
{
    const REAL least = (REAL)threshold;
    for (ptrdiff_t input = 0; input < batch; input++, inputs += units, results += outputs) {
        Terms terms;
        start(&terms, results, bias, outputs);
        for (ptrdiff_t unit = 0; unit < units; unit++) {
            const REAL value = rectified && inputs[unit] < 0 ? 0 : inputs[unit];
            const REAL mask = mask_of(value, rule, unit, units);
            if (!(mask <= least))
                add(&terms, results, weights + unit * outputs, value * mask, outputs);
        }
        finish(&terms, results, outputs);
    }
}
