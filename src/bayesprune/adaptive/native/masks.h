/* What gates multiply units by. REAL is float or double. */

#include <stddef.h>

#if defined(__FMA__) || defined(__aarch64__)
#define FUSED(a, b, c) _Generic((a), float: __builtin_fmaf, double: __builtin_fma)(a, b, c)
#else
#define FUSED(a, b, c) ((a) * (b) + (c)) /* There is no such instruction, so no compiler makes one operation of the two. */
#endif

/* Comparisons are such that what is not a number stays so, as in torch. Product and sum are rounded once where the machine can, as
 * torch.addcmul does there: where a mask is close to its threshold, rounding decides. */
static inline REAL mask_of(REAL activation, const REAL *rule, ptrdiff_t unit, ptrdiff_t units)
{
    const REAL *scale = rule, *shift = rule + units, *most = rule + 2 * units;
    const REAL open = FUSED(activation, scale[unit], shift[unit]);
    return open > most[unit] ? most[unit] : open;
}
