/* What gates multiply units by. REAL is float or double. */

#include <stddef.h>

/* Comparisons are such that what is not a number stays so, as in torch. Product and sum are rounded one after the other, as they are
 * elsewhere: where a mask is close to its threshold, rounding decides. */
static inline REAL mask_of(REAL activation, const REAL *rule, ptrdiff_t unit, ptrdiff_t units)
{
    const REAL *scale = rule, *shift = rule + units, *most = rule + 2 * units;
    volatile REAL product = activation * scale[unit]; /* A compiler may make one operation of the two otherwise. */
    const REAL open = shift[unit] + product;
    return open > most[unit] ? most[unit] : open;
}
