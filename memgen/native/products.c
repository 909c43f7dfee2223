/* Products of matrices of our own, on one thread, for processors with vectors of 8 floats (AVX2).

   In a step at K = 1 a thread has 50 rows, and the matrix that it multiplies them with comes out of memory. MKL, which expects
   more rows, reaches 53 GFLOP/s there, this 66, because it asks for the next columns while it works on some; all products
   of such a step take 0.74 of the time, at K = 5 0.88, at K = 50 0.90 (docs/performance.md). A number of the result is
   always summed in the same order, wherever its row stands. */

#if WIDTH == 8 && defined(__FMA__)
#define OWN_PRODUCTS 1
#define DEEP 200 /* of the inner dimension at a time: a panel of B, 200 x 32 floats, stays in the nearest cache */
#define TALL 256 /* rows at a time, of which as much as belongs to that stays in the core's own cache */
#define PANEL 32 /* columns at a time; tiles of 3 x 32 numbers fill the registers */

/* For 1 to 6 rows, and for 1 to 4 vectors of each: written out, because only then the sums stay in registers. */
#define ROWS_1(X, n) X(0, n)
#define ROWS_2(X, n) ROWS_1(X, n) X(1, n)
#define ROWS_3(X, n) ROWS_2(X, n) X(2, n)
#define ROWS_4(X, n) ROWS_3(X, n) X(3, n)
#define ROWS_5(X, n) ROWS_4(X, n) X(4, n)
#define ROWS_6(X, n) ROWS_5(X, n) X(5, n)
#define VECTORS_1(X, r) X(r, 0)
#define VECTORS_2(X, r) VECTORS_1(X, r) X(r, 1)
#define VECTORS_3(X, r) VECTORS_2(X, r) X(r, 2)
#define VECTORS_4(X, r) VECTORS_3(X, r) X(r, 3)

#define BEGIN(r, v) V t##r##v = {0};
#define BEGIN_ROW(r, n)                                                                                               \
    const float *a##r = a + r * step;                                                                                 \
    __builtin_prefetch(c + r * row, 1);                                                                               \
    if (n > 2) __builtin_prefetch(c + r * row + 16, 1);                                                               \
    VECTORS_##n(BEGIN, r)
#define LOAD(r, v) V b##v = *(const V *)(b + v * WIDTH);
#define ADD(r, v) t##r##v += x##r * b##v;
#define SPREAD(r, n) V x##r = all(a##r[k]);
#define ADD_ROW(r, n) SPREAD(r, n) VECTORS_##n(ADD, r)
/* 16 registers: where there are 12 sums and 4 vectors, only one of these at a time, and the numbers of all rows. */
#define INNER(rows, n) VECTORS_##n(LOAD, 0) ROWS_##rows(ADD_ROW, n)
#define COLUMN(v, rows) { LOAD(0, v) ROWS_##rows(ADD, v) }
#define END(r, v) put(c + r * row + v * WIDTH, t##r##v, room(columns, v), more);
#define END_ROW(r, n) VECTORS_##n(END, r)
/* How many columns there are for vector v. */
static inline long room(long columns, long v) {
    const long k = columns - v * WIDTH;
    return k < 0 ? 0 : k;
}
static inline void put(float *to, V sum, long k, int more) { store(to, more ? load(to, k) + sum : sum, k); }

#define ORDER_1 INNER
#define ORDER_2 INNER
#define ORDER_3 INNER
#define ORDER_4(rows, n) ROWS_##rows(SPREAD, n) COLUMN(0, rows) COLUMN(1, rows) COLUMN(2, rows) COLUMN(3, rows)

/* c (rows, columns) = or += a b; b: a panel, row by row, PANEL floats each; a: rows that are `step` apart. */
#define TILES(rows, n)                                                                                                \
    static void tile_##rows##n(const float *a, long step, const float *b, long depth, float *c, long row,            \
                               long columns, int more) {                                                              \
        ROWS_##rows(BEGIN_ROW, n)                                                                                     \
        _Pragma("GCC unroll 4") for (long k = 0; k < depth; k++, b += PANEL) {                                        \
            ORDER_##n(rows, n)                                                                                        \
        }                                                                                                             \
        ROWS_##rows(END_ROW, n)                                                                                       \
    }
TILES(3, 4) TILES(2, 4) TILES(1, 4)
TILES(4, 3) TILES(3, 3) TILES(2, 3) TILES(1, 3)
TILES(6, 2) TILES(5, 2) TILES(4, 2) TILES(3, 2) TILES(2, 2) TILES(1, 2)
TILES(6, 1) TILES(5, 1) TILES(4, 1) TILES(3, 1) TILES(2, 1) TILES(1, 1)
typedef void (*Tile)(const float *, long, const float *, long, float *, long, long, int);
static const Tile tile_of[4][6] = {{tile_11, tile_21, tile_31, tile_41, tile_51, tile_61},
                                     {tile_12, tile_22, tile_32, tile_42, tile_52, tile_62},
                                     {tile_13, tile_23, tile_33, tile_43},
                                     {tile_14, tile_24, tile_34}};

/* Eight rows of eight become columns. */
static inline void transpose_8(const float *from, long row, float *to, long out) {
    V a[8], b[8];
    const I low = {0, 8, 1, 9, 4, 12, 5, 13}, high = {2, 10, 3, 11, 6, 14, 7, 15};
    const I even = {0, 1, 8, 9, 4, 5, 12, 13}, odd = {2, 3, 10, 11, 6, 7, 14, 15};
    const I left = {0, 1, 2, 3, 8, 9, 10, 11}, right = {4, 5, 6, 7, 12, 13, 14, 15};
    EACH(i, 8) a[i] = *(const Unaligned *)(from + i * row);
    for (long i = 0; i < 8; i += 2) {
        b[i] = __builtin_shuffle(a[i], a[i + 1], low);
        b[i + 1] = __builtin_shuffle(a[i], a[i + 1], high);
    }
    for (long i = 0; i < 8; i += 4) {
        a[i] = __builtin_shuffle(b[i], b[i + 2], even);
        a[i + 1] = __builtin_shuffle(b[i], b[i + 2], odd);
        a[i + 2] = __builtin_shuffle(b[i + 1], b[i + 3], even);
        a[i + 3] = __builtin_shuffle(b[i + 1], b[i + 3], odd);
    }
    EACH(i, 4) {
        *(Unaligned *)(to + i * out) = __builtin_shuffle(a[i], a[i + 4], left);
        *(Unaligned *)(to + (i + 4) * out) = __builtin_shuffle(a[i], a[i + 4], right);
    }
}
/* to (columns, rows) = from (rows, columns), transposed */
static __attribute__((noinline)) void transpose(const float *from, long rows, long columns, long row, float *to, long out) {
    long i = 0, j = 0;
    for (; i + 8 <= rows; i += 8) {
        for (j = 0; j + 8 <= columns; j += 8) transpose_8(from + i * row + j, row, to + j * out + i, out);
        for (; j < columns; j++) EACH(n, 8) to[j * out + i + n] = from[(i + n) * row + j];
    }
    for (; i < rows; i++) EACH(j, columns) to[j * out + i] = from[i * row + j];
}

/* The rows `first` ... of B (k, n), or across of its columns, and some of its columns from `left` on: into a panel, row by row. */
static void fill(const float *B, int across, long row, long first, long depth, long left, long columns, float *panel) {
    if (columns < PANEL) memset(panel, 0, 4 * depth * PANEL);
    if (across) transpose(B + left * row + first, columns, depth, row, panel, PANEL);
    else if (columns == PANEL) EACH(i, depth) {
        const float *from = B + (first + i) * row + left;
        EACH(v, PANEL / WIDTH) *(V *)(panel + i * PANEL + v * WIDTH) = *(const Unaligned *)(from + v * WIDTH);
    } else EACH(i, depth) memcpy(panel + i * PANEL, B + (first + i) * row + left, 4 * columns);
}
/* Ask for a part of what the next panel is made of. */
static void fetch_part(const float *B, int across, long row, long first, long depth, long left, long columns, long part,
                       long parts) {
    const long lines = across ? columns : depth, floats = across ? depth : columns;
    for (long l = lines * part / parts; l < lines * (part + 1) / parts; l++) {
        const float *from = across ? B + (left + l) * row + first : B + (first + l) * row + left;
        for (long j = 0; j < floats + 15; j += 16) __builtin_prefetch(from + j, 0, 2);
    }
}

typedef struct {
    int across_a, across_b; /* A is stored as (k, m), B as (n, k) */
    long m, n, k, row_of_a, row_of_b, row_of_c;
    const float *A, *B;
    float *C;
    int more;
} Product;

/* C (m, n) = A (m, k) B (k, n), or `more` by that than it was */
static void multiply(const Product *p) {
    V panel_[DEEP * PANEL / WIDTH], turned_[p->across_a ? TALL * DEEP / WIDTH : 1];
    float *panel = (float *)panel_, *turned = (float *)turned_;
    const long parts = (p->k + DEEP - 1) / DEEP;
    for (long top = 0; top < p->m; top += TALL) EACH(part, parts) {
        const long rows = p->m - top < TALL ? p->m - top : TALL;
        const long first = p->k * part / parts, depth = p->k * (part + 1) / parts - first;
        if (p->across_a) transpose(p->A + first * p->row_of_a + top, depth, rows, p->row_of_a, turned, depth);
        const float *a = p->across_a ? turned : p->A + top * p->row_of_a + first;
        const long step = p->across_a ? depth : p->row_of_a;
        for (long left = 0; left < p->n; left += PANEL) {
            const long columns = p->n - left < PANEL ? p->n - left : PANEL, vectors = (columns + WIDTH - 1) / WIDTH;
            const long next = left + PANEL, ahead = p->n - next < PANEL ? p->n - next : PANEL;
            const long high = vectors == 4 ? 3 : vectors == 3 ? 4 : 6, tiles = (rows + high - 1) / high;
            fill(p->B, p->across_b, p->row_of_b, first, depth, left, columns, panel);
            EACH(i, tiles) {
                if (ahead > 0) fetch_part(p->B, p->across_b, p->row_of_b, first, depth, next, ahead, i, tiles);
                const long height = rows - i * high < high ? rows - i * high : high;
                float *c = p->C + (top + i * high) * p->row_of_c + left;
                tile_of[vectors - 1][height - 1](a + i * high * step, step, panel, depth, c, p->row_of_c, columns, p->more || part);
            }
        }
    }
}

#else
#define OWN_PRODUCTS 0
#endif
