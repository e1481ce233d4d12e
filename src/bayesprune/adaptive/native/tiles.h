/* Convolutions of a few channels as sums that stay in registers: a tile is some places of the result times some outputs. Weights are read
 * once for all places of a tile, and lie in the order in which they are read. REAL is float or double. */

#include <stddef.h>

#define BLOCK ((ptrdiff_t)(64 / sizeof(REAL))) /* outputs whose weights lie together */

#if defined(__AVX512F__)
#define BYTES 64  /* of a register */
#define TOGETHER 2 /* blocks of a tile */
#define MANY 12   /* places of a tile: with two registers of outputs each, as many as there are registers for */
#define FEW 4     /* places of a tile where fewer are left */
#elif defined(__AVX__)
#define BYTES 32
#define TOGETHER 1
#define MANY 6
#define FEW 2
#elif defined(__aarch64__)
#define BYTES 16
#define TOGETHER 1
#define MANY 6
#define FEW 2
#else
#define BYTES 16
#define TOGETHER 1
#define MANY 2
#define FEW 1
#endif

#define LANES ((ptrdiff_t)(BYTES / sizeof(REAL)))
#define VECTORS (64 / BYTES) /* of a block */

typedef REAL Vector __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));

typedef struct {
    const REAL *padded;         /* those that are needed, with their borders, one behind the other */
    ptrdiff_t size;             /* of one */
    const ptrdiff_t *numbers;   /* of those that are needed, among all */
    ptrdiff_t needed, units;    /* how many are, of how many */
    const ptrdiff_t *taps_at;   /* where the elements lie that a place reads of a channel, counted from the place's first */
    ptrdiff_t taps;
} Channels;

typedef struct {
    const REAL *start, *scale, *shift; /* what each output's sum begins with; of the normalisation of its result */
} Ends;

static inline const Vector *vector_at(const REAL *place)
{
    return (const Vector *)place;
}

/* The results of a tile, (places, vectors, LANES), from what its places read first and from the weights and ends of its first block on. */
#define DEFINE_TILE(NAME, PLACES, WIDTH)                                                                                                  \
    static void NAME(const Channels *channels, const REAL *const *first, const REAL *weights, const Ends *ends, REAL *results)            \
    {                                                                                                                                      \
        const ptrdiff_t taps = channels->taps, block = channels->units * taps * BLOCK;                                                    \
        Vector parts[PLACES][WIDTH];                                                                                                       \
        for (int place = 0; place < PLACES; place++)                                                                                      \
            for (int vector = 0; vector < WIDTH; vector++)                                                                                \
                parts[place][vector] = *vector_at(ends->start + vector * LANES);                                                          \
        for (ptrdiff_t number = 0; number < channels->needed; number++) {                                                                 \
            const REAL *rows = weights + channels->numbers[number] * taps * BLOCK;                                                        \
            for (ptrdiff_t tap = 0; tap < taps; tap++, rows += BLOCK) {                                                                    \
                const ptrdiff_t at = number * channels->size + channels->taps_at[tap];                                                    \
                Vector row[WIDTH];                                                                                                         \
                for (int vector = 0; vector < WIDTH; vector++)                                                                            \
                    row[vector] = *vector_at(rows + vector / VECTORS * block + vector % VECTORS * LANES);                                  \
                for (int place = 0; place < PLACES; place++)                                                                              \
                    for (int vector = 0; vector < WIDTH; vector++)                                                                        \
                        parts[place][vector] += first[place][at] * row[vector];                                                            \
            }                                                                                                                              \
        }                                                                                                                                  \
        for (int place = 0; place < PLACES; place++)                                                                                      \
            for (int vector = 0; vector < WIDTH; vector++)                                                                                \
                *(Vector *)(results + (place * WIDTH + vector) * LANES) =                                                                  \
                    parts[place][vector] * *vector_at(ends->scale + vector * LANES) + *vector_at(ends->shift + vector * LANES);            \
    }

DEFINE_TILE(many_places, MANY, VECTORS)
DEFINE_TILE(few_places, FEW, VECTORS)
#if TOGETHER == 2
DEFINE_TILE(many_places_twice, MANY, 2 * VECTORS)
DEFINE_TILE(few_places_twice, FEW, 2 * VECTORS)
#else
#define many_places_twice many_places
#define few_places_twice few_places
#endif

typedef struct {
    ptrdiff_t count, width;     /* of all places of a result, and of those in a row */
    ptrdiff_t right, down;      /* from one place to the next, and from one row to the next, in a channel with its border */
} Places;

/* Turned round: (places, width) of a tile into (outputs, all places). */
static inline void put(const REAL *restrict tile, ptrdiff_t width, ptrdiff_t count, ptrdiff_t outputs, REAL *restrict results, ptrdiff_t places)
{
    for (ptrdiff_t output = 0; output < outputs; output++)
        for (ptrdiff_t number = 0; number < count; number++)
            results[output * places + number] = tile[number * width + output];
}

/* A part of the results, (outputs, places): those of some blocks, from one place to another. */
static void convolve_part(const Channels *channels, const Places *all, const REAL *weights, const REAL *ends, ptrdiff_t outputs, ptrdiff_t block,
                          ptrdiff_t from, ptrdiff_t to, REAL *results)
{
    const ptrdiff_t blocks = (outputs + BLOCK - 1) / BLOCK, wide = blocks * BLOCK, begin = block * BLOCK;
    const ptrdiff_t together = blocks - block < TOGETHER ? 1 : TOGETHER, width = together * BLOCK;
    const ptrdiff_t some = outputs - begin < width ? outputs - begin : width;
    const REAL *own = weights + block * channels->units * channels->taps * BLOCK;
    const Ends its = {ends + begin, ends + wide + begin, ends + 2 * wide + begin};
    const REAL *row = channels->padded + from / all->width * all->down;
    ptrdiff_t column = from % all->width;
    for (ptrdiff_t place = from, count; place < to; place += count) {
        const ptrdiff_t room = to - place < MANY ? FEW : MANY;
        count = to - place < room ? to - place : room;
        const REAL *first[MANY];
        for (ptrdiff_t number = 0; number < room; number++) {
            if (number >= count) { /* What is too much computes the last one again. */
                first[number] = first[count - 1];
                continue;
            }
            first[number] = row + column++ * all->right;
            if (column == all->width) {
                column = 0;
                row += all->down;
            }
        }
        REAL tile[MANY * TOGETHER * 64 / sizeof(REAL)], *target = results + begin * all->count + place;
        if (room == MANY) {
            (together == 1 ? many_places : many_places_twice)(channels, first, own, &its, tile);
            put(tile, width, MANY, some, target, all->count);
        } else {
            (together == 1 ? few_places : few_places_twice)(channels, first, own, &its, tile);
            put(tile, width, count, some, target, all->count);
        }
    }
}

/* The results, (outputs, places), of all that is needed; see gated_convolution.c. Every one is computed by one thread, in the same way
 * whatever their number. */
static void convolve(const Channels *channels, const Places *all, const REAL *weights, const REAL *ends, ptrdiff_t outputs, ptrdiff_t threads,
                     REAL *results)
{
    const ptrdiff_t steps = ((outputs + BLOCK - 1) / BLOCK + TOGETHER - 1) / TOGETHER;
    if (threads == 1) { /* Perhaps one of several that compute an image each. */
        for (ptrdiff_t step = 0; step < steps; step++)
            convolve_part(channels, all, weights, ends, outputs, step * TOGETHER, 0, all->count, results);
        return;
    }
    const ptrdiff_t pieces = all->count >= 2 * MANY * threads ? threads : 1, length = (all->count + pieces - 1) / pieces;
#ifdef _OPENMP
#pragma omp parallel for num_threads((int)threads) schedule(static)
#endif
    for (ptrdiff_t part = 0; part < steps * pieces; part++) {
        const ptrdiff_t from = part % pieces * length, to = from + length < all->count ? from + length : all->count;
        convolve_part(channels, all, weights, ends, outputs, part / pieces * TOGETHER, from, to, results);
    }
}
