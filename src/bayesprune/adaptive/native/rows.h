/* Sums of rows of weights, a few rows at a time, so that a sum is read and written once for all of them. REAL is float or double. */

#include <stddef.h>

#define TOGETHER 4

typedef struct {
    const REAL *rows[TOGETHER];
    REAL factors[TOGETHER];
    int waiting;
} Terms;

static void add_all(REAL *restrict sums, const Terms *terms, ptrdiff_t outputs)
{
    const REAL *restrict a = terms->rows[0], *restrict b = terms->rows[1], *restrict c = terms->rows[2], *restrict d = terms->rows[3];
    const REAL e = terms->factors[0], f = terms->factors[1], g = terms->factors[2], h = terms->factors[3];
    for (ptrdiff_t o = 0; o < outputs; o++)
        sums[o] += (e * a[o] + f * b[o]) + (g * c[o] + h * d[o]);
}

static void add_one(REAL *restrict sums, const REAL *restrict row, REAL factor, ptrdiff_t outputs)
{
    for (ptrdiff_t o = 0; o < outputs; o++)
        sums[o] += factor * row[o];
}

static void start(Terms *terms, REAL *sums, const REAL *bias, ptrdiff_t outputs)
{
    terms->waiting = 0;
    for (ptrdiff_t o = 0; o < outputs; o++)
        sums[o] = bias ? bias[o] : 0;
}

static inline void add(Terms *terms, REAL *sums, const REAL *row, REAL factor, ptrdiff_t outputs)
{
    terms->rows[terms->waiting] = row;
    terms->factors[terms->waiting++] = factor;
    if (terms->waiting == TOGETHER) {
        add_all(sums, terms, outputs);
        terms->waiting = 0;
    }
}

static void finish(Terms *terms, REAL *sums, ptrdiff_t outputs)
{
    for (int last = 0; last < terms->waiting; last++)
        add_one(sums, terms->rows[last], terms->factors[last], outputs);
    terms->waiting = 0;
}
