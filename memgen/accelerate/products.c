/* Matrix products on one thread, for processors with vectors of 8 floats (AVX2) or, from AMD, of 16 (AVX-512).

   In a step at K = 1 a thread has 50 rows, and the matrix that it multiplies them with comes out of memory. MKL, which expects
   more rows, reaches 53 GFLOP/s there on a processor with AVX2, this 66, because it asks for the next columns while it works
   on some. On AMD's processors MKL leaves half of each vector of AVX-512 alone: 108 GFLOP/s, this 230 (docs/performance.md).
   A number of the result is always summed in the same order, wherever its row stands. */

typedef struct {
    int across_a, across_b; /* A is stored as (k, m), B as (n, k) */
    long m, n, k, row_of_a, row_of_b, row_of_c;
    const float *A, *B;
    float *C;
    int accumulate;
} Product;

/* Whether these products are used; benchmarks/pieces.py measures the gain from them. */
static int own_enabled = 1;
static int own_available(void);
static int use_own_products(int on, int64_t *available) {
    own_enabled = on;
    *available = own_available();
    return DONE;
}
/* Number of products by the calling thread, for tests. */
static __thread int64_t own_done;
static int own_products_done(int64_t *count) {
    *count = own_done;
    return DONE;
}

#if defined(__FMA__)
#define DEEP 200 /* of the inner dimension at a time: a panel of B, 200 x 32 floats, stays in the nearest cache */
#define TALL 256 /* rows at a time, of which as much as belongs to that stays in the core's own cache */
#define PANEL 32 /* columns at a time; tiles of 3 x 32 numbers fill 16 registers of 8, tiles of 12 x 32 32 registers of 16 */
#define VECTORS (PANEL / WIDTH)

/* For 1 to 12 rows, and for 1 to 4 vectors of each: written out, because only then the sums stay in registers. */
#define ROWS_1(X, n) X(0, n)
#define ROWS_2(X, n) ROWS_1(X, n) X(1, n)
#define ROWS_3(X, n) ROWS_2(X, n) X(2, n)
#define ROWS_4(X, n) ROWS_3(X, n) X(3, n)
#define ROWS_5(X, n) ROWS_4(X, n) X(4, n)
#define ROWS_6(X, n) ROWS_5(X, n) X(5, n)
#define ROWS_7(X, n) ROWS_6(X, n) X(6, n)
#define ROWS_8(X, n) ROWS_7(X, n) X(7, n)
#define ROWS_9(X, n) ROWS_8(X, n) X(8, n)
#define ROWS_10(X, n) ROWS_9(X, n) X(9, n)
#define ROWS_11(X, n) ROWS_10(X, n) X(10, n)
#define ROWS_12(X, n) ROWS_11(X, n) X(11, n)
#define VECTORS_1(X, r) X(r, 0)
#define VECTORS_2(X, r) VECTORS_1(X, r) X(r, 1)
#define VECTORS_3(X, r) VECTORS_2(X, r) X(r, 2)
#define VECTORS_4(X, r) VECTORS_3(X, r) X(r, 3)

#define BEGIN(r, v) V t##r##_##v = {0};
#define BEGIN_ROW(r, n)                                                                                               \
    const float *a##r = a + r * step;                                                                                 \
    __builtin_prefetch(c + r * row, 1);                                                                               \
    if (n * WIDTH > 16) __builtin_prefetch(c + r * row + 16, 1);                                                      \
    VECTORS_##n(BEGIN, r)
#define LOAD(r, v) V b##v = *(const V *)(b + v * WIDTH);
#define ADD(r, v) t##r##_##v += x##r * b##v;
#define SPREAD(r, n) V x##r = all(a##r[at]);
#define ADD_ROW(r, n) SPREAD(r, n) VECTORS_##n(ADD, r)
#define INNER(rows, n) VECTORS_##n(LOAD, 0) ROWS_##rows(ADD_ROW, n)
#define COLUMN(v, rows) { LOAD(0, v) ROWS_##rows(ADD, v) }
#define END(r, v) put(c + r * row + v * WIDTH, t##r##_##v, room(columns, v), accumulate);
#define END_ROW(r, n) VECTORS_##n(END, r)
/* How many columns there are for vector v. */
static inline long room(long columns, long v) {
    const long k = columns - v * WIDTH;
    return k < 0 ? 0 : k;
}
static inline void put(float *to, V sum, long k, int accumulate) { store(to, accumulate ? load(to, k) + sum : sum, k); }

#define ORDER_1 INNER
#define ORDER_2 INNER
#define ORDER_3 INNER
/* Where 12 of 16 registers are sums and there are 4 vectors, only one of these at a time, and the numbers of all rows. */
#define ORDER_4(rows, n) ROWS_##rows(SPREAD, n) COLUMN(0, rows) COLUMN(1, rows) COLUMN(2, rows) COLUMN(3, rows)

/* c (rows, columns) = or += a b; b: a panel, row by row, PANEL floats each; a: its rows are `step` apart, and its columns
   `along`. With every number of the inner dimension one line of what comes later is asked for, from `ahead` on, `stride` apart:
   many at once would keep the tile waiting. */
#define TILES(rows, n)                                                                                                \
    static void tile_##rows##_##n(const float *a, long step, long along, const float *b, long depth, float *c,        \
                                  long row, long columns, int accumulate, const float *ahead, long stride) {          \
        ROWS_##rows(BEGIN_ROW, n)                                                                                     \
        _Pragma("GCC unroll 4") for (long k = 0, at = 0; k < depth; k++, at += along, b += PANEL) {                   \
            __builtin_prefetch(ahead + k * stride);                                                                   \
            ORDER_##n(rows, n)                                                                                        \
        }                                                                                                             \
        ROWS_##rows(END_ROW, n)                                                                                       \
    }
typedef void (*Tile)(const float *, long, long, const float *, long, float *, long, long, int, const float *, long);
TILES(1, 1) TILES(2, 1) TILES(3, 1) TILES(4, 1) TILES(5, 1) TILES(6, 1)
TILES(1, 2) TILES(2, 2) TILES(3, 2) TILES(4, 2) TILES(5, 2) TILES(6, 2)
#define SIX(n) tile_1_##n, tile_2_##n, tile_3_##n, tile_4_##n, tile_5_##n, tile_6_##n
#if WIDTH == 16
TILES(7, 1) TILES(8, 1) TILES(9, 1) TILES(10, 1) TILES(11, 1) TILES(12, 1)
TILES(7, 2) TILES(8, 2) TILES(9, 2) TILES(10, 2) TILES(11, 2) TILES(12, 2)
#define TWELVE(n) SIX(n), tile_7_##n, tile_8_##n, tile_9_##n, tile_10_##n, tile_11_##n, tile_12_##n
static const Tile tile_of[VECTORS][12] = {{TWELVE(1)}, {TWELVE(2)}};
static const long highest[VECTORS] = {12, 12};
#else
TILES(1, 3) TILES(2, 3) TILES(3, 3) TILES(4, 3)
TILES(1, 4) TILES(2, 4) TILES(3, 4)
static const Tile tile_of[VECTORS][6] = {
    {SIX(1)}, {SIX(2)}, {tile_1_3, tile_2_3, tile_3_3, tile_4_3}, {tile_1_4, tile_2_4, tile_3_4}};
static const long highest[VECTORS] = {6, 6, 4, 3};
#endif

/* Numbers of two vectors, `which` of both one after the other. */
static inline __attribute__((always_inline)) V pick(V first, V second, I which) {
#if defined(__clang__)
    V out;
    EACH(j, WIDTH) out[j] = which[j] < WIDTH ? first[which[j]] : second[which[j] - WIDTH];
    return out;
#else
    return __builtin_shuffle(first, second, which);
#endif
}
/* Blocks of d numbers change places between rows that are d apart: the second of the one with the first of the other. */
static inline __attribute__((always_inline)) void swap_blocks(V *rows, const int d) {
    I low, high;
    EACH(j, WIDTH) low[j] = j & d ? WIDTH + j - d : j, high[j] = j & d ? WIDTH + j : j + d;
    for (int i = 0; i < WIDTH; i++)
        if (!(i & d)) {
            const V first = rows[i], second = rows[i + d];
            rows[i] = pick(first, second, low);
            rows[i + d] = pick(first, second, high);
        }
}
/* WIDTH rows of WIDTH numbers become columns: halves change places, then quarters, ... */
static inline void transpose_square(const float *from, long row, float *to, long out) {
    V rows[WIDTH];
    EACH(i, WIDTH) rows[i] = *(const Unaligned *)(from + i * row);
#if WIDTH == 16
    swap_blocks(rows, 8);
#endif
    swap_blocks(rows, 4);
    swap_blocks(rows, 2);
    swap_blocks(rows, 1);
    EACH(i, WIDTH) *(Unaligned *)(to + i * out) = rows[i];
}
/* to (columns, rows) = from (rows, columns), transposed */
static __attribute__((noinline)) void transpose(const float *from, long rows, long columns, long row, float *to, long out) {
    long i = 0, j = 0;
    for (; i + WIDTH <= rows; i += WIDTH) {
        for (j = 0; j + WIDTH <= columns; j += WIDTH) transpose_square(from + i * row + j, row, to + j * out + i, out);
        for (; j < columns; j++) EACH(n, WIDTH) to[j * out + i + n] = from[(i + n) * row + j];
    }
    for (; i < rows; i++) EACH(j, columns) to[j * out + i] = from[i * row + j];
}

/* The rows `first` ... of B (k, n), or across of its columns, and some of its columns from `left` on: into a panel, row by row. */
static void fill(const float *B, int across, long row, long first, long depth, long left, long columns, float *panel) {
    if (across) {
        if (columns < PANEL) memset(panel, 0, 4 * depth * PANEL);
        transpose(B + left * row + first, columns, depth, row, panel, PANEL);
    } else EACH(i, depth) {
        const float *from = B + (first + i) * row + left;
        EACH(v, VECTORS) *(V *)(panel + i * PANEL + v * WIDTH) = load(from + v * WIDTH, room(columns, v));
    }
}
/* Where a tile is to look for its part of the next panel: `from` and, for every number of the inner dimension, `stride`. */
typedef struct {
    const float *from;
    long stride;
} Ahead;
/* Columns from `next` on; the tile is the one before which `done` of `total` numbers of the inner dimension, tile by tile, have
   been gone through, and the `turn`th of those with rows `first` ... of B. */
static Ahead look_ahead(const Product *p, long next, long first, long turn, long done, long total) {
    if (p->across_b) { /* the columns lie one after the other */
        const long stride = PANEL * p->row_of_b / total + 1;
        return (Ahead){p->B + next * p->row_of_b + done * stride, stride};
    }
    /* PANEL floats of a row lie in two lines, or in three */
    return (Ahead){p->B + first * p->row_of_b + next + (turn < 2 ? 16 * turn : PANEL - 1), turn < 3 ? p->row_of_b : 0};
}

/* C (m, n) = or += A (m, k) B (k, n), in blocks of rows, of columns and of the inner dimension. */
static void multiply(const Product *p) {
    V panel_[DEEP * VECTORS];
    float *panel = (float *)panel_;
    const long parts = (p->k + DEEP - 1) / DEEP;
    const long step = p->across_a ? 1 : p->row_of_a, along = p->across_a ? p->row_of_a : 1;
    for (long top = 0; top < p->m; top += TALL)
        for (long left = 0; left < p->n; left += PANEL) {
            const long rows = p->m - top < TALL ? p->m - top : TALL;
            const long columns = p->n - left < PANEL ? p->n - left : PANEL, kind = (columns - 1) / WIDTH;
            const long next = left + PANEL < p->n ? left + PANEL : left;
            const long tiles = (rows + highest[kind] - 1) / highest[kind];
            EACH(part, parts) {
                const long first = p->k * part / parts, depth = p->k * (part + 1) / parts - first;
                const float *a = p->A + top * step + first * along;
                fill(p->B, p->across_b, p->row_of_b, first, depth, left, columns, panel);
                EACH(i, tiles) { /* of about the same height */
                    const long from = rows * i / tiles, height = rows * (i + 1) / tiles - from;
                    const Ahead ahead = look_ahead(p, next, first, i, first * tiles + i * depth, p->k * tiles);
                    float *c = p->C + (top + from) * p->row_of_c + left;
                    tile_of[kind][height - 1](a + from * step, step, along, panel, depth, c, p->row_of_c, columns,
                                              p->accumulate || part, ahead.from, ahead.stride);
                }
            }
        }
}

/* On Intel's processors MKL fills the vectors of AVX-512 itself, and these products have not been measured there. */
static int own_available(void) { return WIDTH == 8 || __builtin_cpu_is("amd"); }

#else
static void multiply(const Product *p) { (void)p; }
static int own_available(void) { return 0; }
#endif
