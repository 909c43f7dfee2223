/* The element-wise passes of a training step, each once over its rows, for float32 on a CPU.

   A matrix is (rows, units), row by row. Between two matrix products torch would walk over such a matrix many times, and
   at K = 50 each walk leaves the cache; here a formula and its derivative are one walk each, in tiles that stay in it.
   Sums over rows are kept per thread and added in the order of the threads, so that a result depends on the number of
   threads alone. The functions that operations.py lists have the operands that stand there, and return an error code.
   tests/accelerate/test_steps.py holds them to plain torch. */

#include <omp.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#define PAUSE _mm_pause()
#define ORDERED _mm_sfence() /* others see what was written past the caches */
#else
#define PAUSE (void)0
#define ORDERED (void)0
#endif

/* What an operation returns. */
enum { DONE = 0, NO_MEMORY = 1, OUT_OF_RANGE = 2 };

/* Memory that is zero, or NULL if there is none; NO_MEMORY_AT_ALL is for tests. */
static void *zeros(size_t count, size_t size) {
#ifdef NO_MEMORY_AT_ALL
    return (void)count, (void)size, NULL;
#else
    return calloc(count ? count : 1, size);
#endif
}

#if defined(__AVX512F__)
#define WIDTH 16
#if __GNUC__ >= 8 && !defined(__clang__)
#pragma GCC target("prefer-vector-width=512") /* in loops that the compiler takes together itself, too */
#endif
#else
#define WIDTH 8 /* wider vectors than the processor's the compiler takes apart, comparisons number by number */
#endif
#define TILE 32 /* rows; 32 x 500 floats stay in a core's own cache */
#define FEW 8   /* rows; measured: a third faster than 32 in mlp_backward */
#define EACH(i, n) for (long i = 0; i < (n); i++)
typedef float V __attribute__((vector_size(4 * WIDTH)));
typedef int32_t I __attribute__((vector_size(4 * WIDTH)));
typedef V Unaligned __attribute__((aligned(4)));
static inline I lanes(void) {
    I v;
    EACH(i, WIDTH) v[i] = i;
    return v;
}

/* k = how many of the WIDTH units exist; the others read as zero and are not written. */
#if WIDTH == 16
static inline __mmask16 existing(long k) { return k >= WIDTH ? 0xffff : (1u << k) - 1; }
static inline V load(const float *p, long k) { return (V)_mm512_maskz_loadu_ps(existing(k), p); }
static inline void store(float *p, V v, long k) { _mm512_mask_storeu_ps(p, existing(k), (__m512)v); }
#else
static inline V load(const float *p, long k) {
    if (k >= WIDTH) return *(const Unaligned *)p;
    V v = {0};
    memcpy(&v, p, 4 * k);
    return v;
}
static inline void store(float *p, V v, long k) {
    if (k >= WIDTH) *(Unaligned *)p = v;
    else memcpy(p, &v, 4 * k);
}
#endif
/* Several rows at a time are more than a processor foresees by itself, so it is told what comes next, once for every 64
   bytes: measured, without this mlp_backward takes 2.3 times as long where the rows come out of memory. */
static inline void soon(const float *p, long j) {
    if (j % 16 < WIDTH) __builtin_prefetch(p + 32);
}
static inline V all(float x) { return x - (V){0}; }
static inline V choose(I mask, V yes, V no) { return (V)((mask & (I)yes) | (~mask & (I)no)); }
/* AVX-512 has an instruction for each of these, which the compiler does not find. An x that is NaN stays one, where it is not
   replaced by 0. */
#if WIDTH == 16
static inline V at_least(float low, V x) { return (V)_mm512_max_ps((__m512)all(low), (__m512)x); }
static inline V at_most(float high, V x) { return (V)_mm512_min_ps((__m512)all(high), (__m512)x); }
static inline V times_power_of_2(V x, V n) { return (V)_mm512_scalef_ps((__m512)x, (__m512)n); }
/* x where `condition` is positive, else 0 */
static inline V where_positive(V condition, V x) {
    return (V)_mm512_maskz_mov_ps(_mm512_cmp_ps_mask((__m512)condition, (__m512)all(0), _CMP_GT_OQ), (__m512)x);
}
#else
static inline V at_least(float low, V x) { return choose(x < low, all(low), x); }
static inline V at_most(float high, V x) { return choose(x > high, all(high), x); }
static inline V times_power_of_2(V x, V n) { return x * (V)((__builtin_convertvector(n, I) + 127) << 23); }
static inline V where_positive(V condition, V x) { return choose(condition > 0, x, all(0)); }
#endif
static inline V positive(V x) { return at_least(0, x); }
static inline float sum_of(V v) {
    float s = 0;
    EACH(i, WIDTH) s += v[i];
    return s;
}

/* e^x = 2^n e^r with |r| <= log(2)/2 and a Taylor polynomial of degree 7: relative error below 2e-7. */
static inline V exp_(V x) {
    x = at_least(-87.0f, at_most(88.0f, x));
    V n = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* rounds to the nearest whole number */
    V r = (x - n * 0.693359375f) + n * 2.12194440e-4f;   /* log(2) in two parts, so that r keeps its digits */
    V p = all(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return times_power_of_2(p, n);
}
static inline V sigmoid_(V x) { return 1.0f / (1.0f + exp_(-x)); }

/* log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), and a sum of such logarithms is the logarithm of a product, whose factors are
   2 at most: a hundred of them cannot overflow. Measured, twice as fast as a logarithm each; rounding a factor costs 6e-8. */
#define FACTORS 100
static inline V factor(V x) { return 1.0f + exp_(at_most(0, x) - positive(x)); }
static inline float sum_of_logs(V factors, long k) {
    float s = 0;
    EACH(i, k) s += __builtin_logf(factors[i]);
    return s;
}

/* BODY for a thread's rows: `few` rows (from ... to) and WIDTH units (from j on) at a time, so that what
   belongs to a unit stays in registers. The last units of a row are done together with some before them, which were done
   already: `fresh` is 1 for those that count in a sum and 0 for the others. Fewer than WIDTH units: k of them. */
#define BLOCKS(few, rows, units, t, threads, ...)                                                                     \
    for (long from = (rows) * (t) / (threads), end = (rows) * ((t) + 1) / (threads), to; from < end; from = to) {     \
        to = from + (few) < end ? from + (few) : end;                                                                 \
        for (long done = 0; done < (units); done += WIDTH) {                                                          \
            if ((units) >= WIDTH) {                                                                                   \
                const long j = done + WIDTH <= (units) ? done : (units) - WIDTH, k = WIDTH;                           \
                const V fresh = choose(lanes() < (int32_t)(done - j), all(0), all(1));                                \
                (void)fresh; /* not all operations sum */                                                                 \
                __VA_ARGS__                                                                                           \
            } else {                                                                                                  \
                const long j = 0, k = (units);                                                                        \
                const V fresh = all(1);                                                                               \
                (void)fresh;                                                                                          \
                __VA_ARGS__                                                                                           \
            }                                                                                                         \
        }                                                                                                             \
    }

/* Small matrices are done by one thread: waking the others takes longer. So is what a worker has (program.c). */
static int threads_for(long entries) { return entries < 16384 || omp_in_parallel() ? 1 : omp_get_max_threads(); }

/* If the rows are divided among threads, each is a worker with a list of calls. Some sums are over the rows of all
   workers: they wait at a barrier, and then each reads the tables of all. There are two sets of tables, because one
   worker may write for the next barrier while another still reads. */
typedef struct {
    long workers, size;   /* threads; floats of a table */
    float *tables;        /* 2 x workers x size */
    long arrived, passed; /* workers at the barrier, and completed barriers */
} Barrier;
typedef struct {
    Barrier *barrier;
    long index, passed; /* number of the worker, and of the barriers it has passed */
} Worker;               /* NULL: no other worker */

static float *table(const Worker *worker, long index) {
    const Barrier *all = worker->barrier;
    return all->tables + (worker->passed % 2 * all->workers + index) * all->size;
}
/* The barrier: wait for all workers. */
static void wait_for_all(Worker *worker) {
    Barrier *all = worker->barrier;
    long passed = worker->passed;
    if (__atomic_add_fetch(&all->arrived, 1, __ATOMIC_ACQ_REL) == all->workers) {
        all->arrived = 0;
        __atomic_store_n(&all->passed, passed + 1, __ATOMIC_RELEASE);
    }
    for (long tries = 0; __atomic_load_n(&all->passed, __ATOMIC_ACQUIRE) == passed; tries++) {
        PAUSE;
        /* A late worker may need this processor, so this one yields. It sleeps only after many tries: the host of a
           virtual machine gives an idle processor away, and the thread then continues some milliseconds late. */
        if (tries > 30000) nanosleep(&(struct timespec){0, 10000}, 0);
        else if (tries > 100) sched_yield();
    }
}
static int barrier(Worker *worker) {
    if (!worker) return DONE;
    wait_for_all(worker);
    worker->passed++;
    return DONE;
}
/* Sum over the workers, in their order: every worker's `sums` become the sum. */
static void add_all(float *sums, long size, Worker *worker) {
    if (!worker) return;
    memcpy(table(worker, worker->index), sums, 4 * size);
    wait_for_all(worker);
    memcpy(sums, table(worker, 0), 4 * size);
    for (long t = 1; t < worker->barrier->workers; t++) EACH(j, size) sums[j] += table(worker, t)[j];
    worker->passed++;
}

/* out = the parts of all threads together, each `size` floats, or, to `accumulate`, that is added to it; the parts are let go of. */
static void put_parts(float *parts, int threads, long size, int accumulate, float *out) {
    for (int t = 1; t < threads; t++) EACH(j, size) parts[j] += parts[t * size + j];
    if (accumulate) EACH(j, size) out[j] += parts[j];
    else memcpy(out, parts, 4 * size);
    free(parts);
}

/* Mean and biased variance of every unit over all rows. Tile by tile in two passes, then Chan's update. */
static int moments(const float *h, long rows, long units, float *mean, float *variance) {
    int most = threads_for(rows * units), threads = 1;
    most = most < rows ? most : rows; /* every thread has a row */
    float *parts = zeros((size_t)most * 4 * units, 4);
    if (!parts) return NO_MEMORY;
    #pragma omp parallel num_threads(most)
    {
        #pragma omp single
        threads = omp_get_num_threads(); /* may be fewer than requested */
        int t = omp_get_thread_num();
        float *m = parts + t * 4 * units, *squares = m + units, *tile_mean = m + 2 * units, *tile_squares = m + 3 * units;
        long first = rows * t / threads, last = rows * (t + 1) / threads;
        for (long from = first; from < last; from += TILE) {
            long to = from + TILE < last ? from + TILE : last;
            float n = to - from, before = from - first;
            memset(tile_mean, 0, 8 * units);
            for (long i = from; i < to; i++) EACH(j, units) tile_mean[j] += h[i * units + j];
            EACH(j, units) tile_mean[j] /= n;
            for (long i = from; i < to; i++) EACH(j, units) {
                float e = h[i * units + j] - tile_mean[j];
                tile_squares[j] += e * e;
            }
            EACH(j, units) {
                float shift = tile_mean[j] - m[j];
                m[j] += shift * (n / (before + n));
                squares[j] += tile_squares[j] + shift * shift * (before * n / (before + n));
            }
        }
    }
    memcpy(mean, parts, 4 * units);
    memcpy(variance, parts + units, 4 * units);
    for (int t = 1; t < threads; t++) {
        const float *m = parts + t * 4 * units, *squares = m + units;
        float before = rows * t / threads, n = rows * (t + 1) / threads - before;
        EACH(j, units) {
            float shift = m[j] - mean[j];
            mean[j] += shift * (n / (before + n));
            variance[j] += squares[j] + shift * shift * (before * n / (before + n));
        }
    }
    EACH(j, units) variance[j] /= rows;
    free(parts);
    return DONE;
}

/* Mean and variance of `before` rows become those of n more rows, too: Chan's update, here of the variance itself. */
static void merge(float *mean, float *variance, float before, const float *m, const float *v, float n, long units) {
    const float part = n / (before + n);
    EACH(j, units) {
        float shift = m[j] - mean[j];
        mean[j] += shift * part;
        variance[j] += part * (v[j] - variance[j]) + shift * shift * part * (1 - part);
    }
}

/* numbers: mean, variance and three buffers, `units` each. The first two become those of these rows and of the `before` rows
   that have been gathered already. */
static int gather(const float *h, long rows, long units, long before, float *numbers) {
    float *variance = numbers + units, *m = numbers + 3 * units, *v = m + units;
    if (before == 0) return moments(h, rows, units, numbers, variance);
    const int error = moments(h, rows, units, m, v);
    if (error) return error;
    merge(numbers, variance, before, m, v, rows, units);
    return DONE;
}

/* The gathered mean and variance of this thread's rows become the mean of the rows of all, 1 / sqrt(variance + epsilon) and,
   if there is a gamma, gamma times that. */
static int settle(float *numbers, long rows, long units, const float *gamma, float epsilon, Worker *worker) {
    float *inverse = numbers + units, before = 0;
    if (worker) {
        float *entry = table(worker, worker->index);
        entry[0] = rows;
        memcpy(entry + 1, numbers, 8 * units);
        wait_for_all(worker);
        EACH(t, worker->barrier->workers) {
            const float *m = table(worker, t) + 1, n = m[-1];
            if (t == 0) memcpy(numbers, m, 8 * units);
            else merge(numbers, inverse, before, m, m + units, n, units);
            before += n;
        }
        worker->passed++;
    }
    EACH(j, units) inverse[j] = 1 / __builtin_sqrtf(inverse[j] + epsilon);
    if (gamma) EACH(j, units) inverse[units + j] = gamma[j] * inverse[j];
    return DONE;
}

/* out = max(0, (h - mean) * scale + beta); numbers: mean, 1 / sigma and the scale gamma / sigma, `units` each. */
static int normalise(const float *h, long rows, long units, const float *numbers, const float *beta, float *out) {
    const float *mean = numbers, *scale = numbers + 2 * units;
    #pragma omp parallel for num_threads(threads_for(rows * units))
    for (long i = 0; i < rows; i++) EACH(j, units) {
        float y = (h[i * units + j] - mean[j]) * scale[j] + beta[j];
        out[i * units + j] = y < 0 ? 0 : y;
    }
    return DONE;
}

/* h = max(0, h + bias), in place */
static int add_bias_relu(float *h, long rows, long units, const float *bias) {
    #pragma omp parallel for num_threads(threads_for(rows * units)) schedule(static)
    for (long i = 0; i < rows; i++) EACH(j, units) {
        float y = h[i * units + j] + bias[j];
        h[i * units + j] = y < 0 ? 0 : y;
    }
    return DONE;
}

/* The gradient of `normalise` through mean and variance too. With g the gradient where the output is positive:
   d beta = sum g,  d gamma = sum g xhat,  d h = gamma / sigma * (g - mean g - xhat mean(g xhat)),  xhat = (h - mean) / sigma
   The means are over all rows, so there are three steps: the sums of g and g (h - mean), which may `accumulate`;
   what they are of all rows; and d h. numbers: mean, 1 / sigma and gamma / sigma. */
static int normalise_sums(const float *gradient, const float *h, long rows, long units, const float *numbers,
                           const float *beta, int accumulate, float *sums) {
    int most = threads_for(rows * units);
    float *parts = zeros((size_t)most * 2 * units, 4);
    if (!parts) return NO_MEMORY;
    #pragma omp parallel num_threads(most)
    {
        float *sums_ = parts + omp_get_thread_num() * 2 * units;
        BLOCKS(FEW, rows, units, omp_get_thread_num(), omp_get_num_threads(),
            V mu = load(numbers + j, k), times = load(numbers + 2 * units + j, k), plus = load(beta + j, k);
            V s0 = {0}, s1 = {0};
            for (long i = from; i < to; i++) {
                soon(h + i * units + j, j);
                soon(gradient + i * units + j, j);
                V centred = load(h + i * units + j, k) - mu;
                V g = where_positive(centred * times + plus, load(gradient + i * units + j, k));
                s0 += g, s1 += g * centred;
            }
            store(sums_ + j, load(sums_ + j, k) + s0 * fresh, k);
            store(sums_ + units + j, load(sums_ + units + j, k) + s1 * fresh, k);)
    }
    put_parts(parts, most, 2 * units, accumulate, sums);
    return DONE;
}
/* sums: with a buffer of one float at the end. They become mean g and mean(g xhat) / sigma. */
static int normalise_settle(float *sums, long rows, long units, const float *numbers, float *to_gamma, float *to_beta,
                             Worker *worker) {
    const float *inverse = numbers + units;
    EACH(j, units) {
        to_beta[j] = sums[j];
        to_gamma[j] = sums[units + j] * inverse[j];
    }
    sums[2 * units] = rows;
    add_all(sums, 2 * units + 1, worker);
    const float all_rows = sums[2 * units];
    EACH(j, units) {
        sums[j] /= all_rows;
        sums[units + j] *= inverse[j] * inverse[j] / all_rows;
    }
    return DONE;
}
static int normalise_to_input(const float *gradient, const float *h, long rows, long units, const float *numbers,
                               const float *beta, const float *sums, float *to_h) {
    #pragma omp parallel num_threads(threads_for(rows * units))
    BLOCKS(FEW, rows, units, omp_get_thread_num(), omp_get_num_threads(),
        V mu = load(numbers + j, k), times = load(numbers + 2 * units + j, k), plus = load(beta + j, k);
        V shift = load(sums + j, k), slope = load(sums + units + j, k);
        for (long i = from; i < to; i++) {
            soon(h + i * units + j, j);
            soon(gradient + i * units + j, j);
            V centred = load(h + i * units + j, k) - mu;
            V g = where_positive(centred * times + plus, load(gradient + i * units + j, k));
            store(to_h + i * units + j, times * (g - shift - centred * slope), k);
        })
    return DONE;
}
/* The mlp composition; c[0..8] are a1, a2, a3, a4, b1, c1, c2, c3, c4, one entry per unit each. */
#define COEFFICIENTS(j, k)                                                                                            \
    V a1 = load(c[0] + j, k), a2 = load(c[1] + j, k), a3 = load(c[2] + j, k), a4 = load(c[3] + j, k),                 \
      b1 = load(c[4] + j, k), c1 = load(c[5] + j, k), c2 = load(c[6] + j, k), c3 = load(c[7] + j, k),                 \
      c4 = load(c[8] + j, k)
/* Rows at a time for which the coefficients are loaded once: with 16 registers there is no room to keep them. */
#if WIDTH == 16
#define MLP_ROWS FEW /* measured: 0.8 of the time of row by row */
#else
#define MLP_ROWS 1
#endif

static int mlp(const float *h_g, const float *h_m, long rows, long units, const float *const *c, float *out) {
    #pragma omp parallel num_threads(threads_for(rows * units))
    BLOCKS(MLP_ROWS, rows, units, omp_get_thread_num(), omp_get_num_threads(),
        COEFFICIENTS(j, k);
        for (long i = from; i < to; i++) {
            V g = load(h_g + i * units + j, k), m = load(h_m + i * units + j, k);
            V s = sigmoid_(c1 + c3 * g + (c2 + c4 * g) * m);
            store(out + i * units + j, positive(a1 + a3 * g + (a2 + a4 * g) * m + b1 * s), k);
        })
    return DONE;
}

/* Gradients to h_g, h_m and, summed over rows, to the nine coefficients (in their order, `units` each), which may `accumulate`. */
static int mlp_backward(const float *gradient, const float *h_g, const float *h_m, long rows, long units,
                  const float *const *c, float *to_g, float *to_m, int accumulate, float *to_c) {
    int most = threads_for(rows * units);
    float *parts = zeros((size_t)most * 9 * units, 4);
    if (!parts) return NO_MEMORY;
    #pragma omp parallel num_threads(most)
    {
        int t = omp_get_thread_num(), threads = omp_get_num_threads();
        float *sums_ = parts + t * 9 * units;
        BLOCKS(FEW, rows, units, t, threads,
            COEFFICIENTS(j, k);
            V s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0}, s4 = {0}, s5 = {0}, s6 = {0}, s7 = {0}, s8 = {0};
            for (long i = from; i < to; i++) {
                soon(gradient + i * units + j, j);
                soon(h_g + i * units + j, j);
                soon(h_m + i * units + j, j);
                soon(to_g + i * units + j, j);
                soon(to_m + i * units + j, j);
                V g = load(h_g + i * units + j, k), m = load(h_m + i * units + j, k);
                V s = sigmoid_(c1 + c3 * g + (c2 + c4 * g) * m);
                V y = a1 + a3 * g + (a2 + a4 * g) * m + b1 * s;
                V a = where_positive(y, load(gradient + i * units + j, k)); /* to a; and to c before its sigmoid: */
                V u = a * b1 * s * (1.0f - s);
                V ag = a * g, am = a * m, ug = u * g, um = u * m;
                store(to_g + i * units + j, a * (a3 + a4 * m) + u * (c3 + c4 * m), k);
                store(to_m + i * units + j, a * (a2 + a4 * g) + u * (c2 + c4 * g), k);
                s0 += a, s1 += am, s2 += ag, s3 += ag * m, s4 += a * s, s5 += u, s6 += um, s7 += ug, s8 += ug * m;
            }
            V sums[9] = {s0, s1, s2, s3, s4, s5, s6, s7, s8};
            EACH(n, 9) store(sums_ + n * units + j, load(sums_ + n * units + j, k) + sums[n] * fresh, k);)
    }
    put_parts(parts, most, 9 * units, accumulate, to_c);
    return DONE;
}

/* out (rows, units) = sum over the samples of h (samples, rows, units), or that is added to it. */
static int sum_samples(const float *h, long samples, long rows, long units, int accumulate, float *out) {
    long size = rows * units;
    #pragma omp parallel for num_threads(threads_for(samples * size))
    for (long j = 0; j < size; j += WIDTH) {
        V s = accumulate ? load(out + j, size - j) : all(0);
        EACH(i, samples) s += load(h + i * size + j, size - j);
        store(out + j, s, size - j);
    }
    return DONE;
}

/* out = (share * total - mean) * inverse; numbers: mean and inverse, `units` each. */
static int centre(const float *total, long rows, long units, float share, const float *numbers, float *out) {
    EACH(i, rows) EACH(j, units)
        out[i * units + j] = (share * total[i * units + j] - numbers[j]) * numbers[units + j];
    return DONE;
}

/* Each of the standardised samples receives its part of the gradient; the rest is that of batch norm. Added to to_h:
   factor * inverse * (share * gradient[b] - mean g - (h[k, b] - mean) * inverse * mean(g out)), share is 1 / samples.
   The means are over the rows of all, and come first. sums: mean g, mean(g out) * inverse and factor * inverse, and a place for
   one float more. */
static int standardise_sums(const float *gradient, const float *out, long samples, long rows, long units,
                             const float *numbers, float factor, float *sums, Worker *worker) {
    float *shift = sums, *slope = shift + units, *scale = slope + units;
    memset(sums, 0, 8 * units);
    EACH(i, rows) EACH(j, units) {
        shift[j] += gradient[i * units + j];
        slope[j] += gradient[i * units + j] * out[i * units + j];
    }
    slope[units] = samples * rows;
    add_all(shift, 2 * units + 1, worker);
    const float all_rows = slope[units];
    EACH(j, units) {
        shift[j] /= all_rows;
        slope[j] *= numbers[units + j] / all_rows;
        scale[j] = factor * numbers[units + j];
    }
    return DONE;
}
static int standardise_to_input(const float *gradient, const float *h, long samples, long rows, long units,
                                 const float *numbers, const float *sums, float share, float *to_h) {
    const float *mean = numbers, *shift = sums, *slope = shift + units, *scale = slope + units;
    #pragma omp parallel for num_threads(threads_for(samples * rows * units)) schedule(static)
    for (long i = 0; i < samples * rows; i++) {
        const float *g = gradient + i % rows * units, *h_row = h + i * units;
        float *to = to_h + i * units;
        EACH(j, units) to[j] += scale[j] * (g[j] * share - shift[j] - (h_row[j] - mean[j]) * slope[j]);
    }
    return DONE;
}
/* z[k, b] = mean[b] + s[b] * noise[k, b] with s = exp(log_variance / 2), and
   log_q[k, b] = -1/2 sum_d (log 2 pi + log_variance[b, d] + noise[k, b, d]^2) */
static int reparameterise(const float *mean, const float *log_variance, const float *noise, long samples, long rows, long units,
                    float *z, float *log_q) {
    #pragma omp parallel for num_threads(threads_for(samples * rows * units)) schedule(static)
    for (long i = 0; i < samples * rows; i++) {
        const float *m = mean + i % rows * units, *v = log_variance + i % rows * units, *e = noise + i * units;
        float total = 0;
        for (long j = 0; j < units; j += WIDTH) {
            long k = units - j;
            V eps = load(e + j, k), l = load(v + j, k);
            store(z + i * units + j, load(m + j, k) + exp_(0.5f * l) * eps, k);
            V term = l + eps * eps;
            if (k >= WIDTH) total += sum_of(term);
            else EACH(n, k) total += term[n];
        }
        log_q[i] = -0.5f * (total + 1.8378770664f * units);
    }
    return DONE;
}

/* to_mean[b] = sum_k to_z[k, b];  to_log_variance[b] = 1/2 sum_k (to_z[k, b] s[b] noise[k, b] - to_log_q[k, b]) */
static int reparameterise_backward(const float *to_z, const float *to_log_q, const float *log_variance, const float *noise,
                             long samples, long rows, long units, float *to_mean, float *to_log_variance) {
    #pragma omp parallel for num_threads(threads_for(samples * rows * units)) schedule(static)
    for (long b = 0; b < rows; b++) {
        float q = 0;
        EACH(k, samples) q += to_log_q[k * rows + b];
        for (long j = 0; j < units; j += WIDTH) {
            long k = units - j;
            V s = exp_(0.5f * load(log_variance + b * units + j, k)), m = {0}, v = {0};
            EACH(n, samples) {
                V g = load(to_z + (n * rows + b) * units + j, k);
                m += g, v += g * load(noise + (n * rows + b) * units + j, k);
            }
            store(to_mean + b * units + j, m, k);
            store(to_log_variance + b * units + j, 0.5f * (v * s - q), k);
        }
    }
    return DONE;
}

/* out[k, b] = sum_d x[b, d] l - log(1 + e^l) with l = products[k, b, d] + bias[d] */
static int bernoulli(const float *products, const float *bias, const float *x, long samples, long rows, long columns,
               float *out) {
    #pragma omp parallel for num_threads(threads_for(samples * rows * columns)) schedule(static)
    for (long i = 0; i < samples * rows; i++) {
        const float *product = products + i * columns, *target = x + i % rows * columns;
        V s = {0}, factors = all(1);
        float logs = 0;
        long j = 0;
        for (; j + WIDTH <= columns; j += WIDTH) {
            V l = load(product + j, WIDTH) + load(bias + j, WIDTH);
            s += load(target + j, WIDTH) * l - positive(l);
            factors *= factor(l);
            if (j / WIDTH % FACTORS == FACTORS - 1) {
                logs += sum_of_logs(factors, WIDTH);
                factors = all(1);
            }
        }
        float total = sum_of(s) - logs - sum_of_logs(factors, WIDTH);
        if (j < columns) {
            V l = load(product + j, columns - j) + load(bias + j, columns - j);
            V rest = load(target + j, columns - j) * l - positive(l);
            EACH(n, columns - j) total += rest[n];
            total -= sum_of_logs(factor(l), columns - j);
        }
        out[i] = total;
    }
    return DONE;
}

/* to_products[k, b, d] = gradient[k, b] (x[b, d] - sigmoid(l)), and their sums over k and b to the bias */
static int bernoulli_backward(const float *gradient, const float *products, const float *bias, const float *x, long samples,
                        long rows, long columns, float *to_products, int accumulate, float *to_bias) {
    int most = threads_for(samples * rows * columns);
    float *parts = zeros((size_t)most * columns, 4);
    if (!parts) return NO_MEMORY;
    #pragma omp parallel num_threads(most)
    {
        int t = omp_get_thread_num(), threads = omp_get_num_threads();
        float *sums = parts + t * columns;
        for (long i = samples * rows * t / threads; i < samples * rows * (t + 1) / threads; i++)
            for (long j = 0; j < columns; j += WIDTH) {
                long k = columns - j, at = i * columns + j;
                V l = load(products + at, k) + load(bias + j, k);
                V to = gradient[i] * (load(x + i % rows * columns + j, k) - sigmoid_(l));
                store(to_products + at, to, k);
                store(sums + j, load(sums + j, k) + to, k);
            }
    }
    put_parts(parts, most, columns, accumulate, to_bias);
    return DONE;
}

/* Sum of squares of all tensors, in double: there are millions of entries. */
static int squares(const float *const *tensors, const long *sizes, long count, double *out) {
    int most = omp_get_max_threads();
    double *parts = zeros(most, 8), total = 0;
    if (!parts) return NO_MEMORY;
    #pragma omp parallel num_threads(most)
    {
        int t = omp_get_thread_num(), threads = omp_get_num_threads();
        double subtotal = 0;
        EACH(n, count) {
            const float *g = tensors[n];
            double part = 0;
            #pragma omp simd reduction(+ : part)
            for (long i = sizes[n] * t / threads; i < sizes[n] * (t + 1) / threads; i++) part += (double)g[i] * g[i];
            subtotal += part;
        }
        parts[t] = subtotal;
    }
    EACH(t, most) total += parts[t];
    free(parts);
    *out = total;
    return DONE;
}

#if WIDTH == 16
#define PAST(to, from) _mm512_stream_ps(to, _mm512_loadu_ps(from))
#elif defined(__AVX__)
#define PAST(to, from) _mm256_stream_ps(to, _mm256_loadu_ps(from))
#else
#define PAST(to, from) memcpy(to, from, 4 * WIDTH)
#endif
static void put_values(float *to, const float *from, long n) { memcpy(to, from, 4 * n); }
/* The same past the caches. The weights have been read by all cores; one that is to write them would first have to take every
   line away from the others, 160 ns each where cores are far apart, and the others would have to ask it for them afterwards.
   Measured on two such cores, for the 1.55 million weights of the MNIST MEM-VAE: Adam takes 0.26 ms in place of 0.84, and the
   next step reads them no more slowly. */
static void put_past(float *to, const float *from, long n) {
    long i = 0;
    if ((uintptr_t)to % (4 * WIDTH) == 0)
        for (; i + WIDTH <= n; i += WIDTH) PAST(to + i, from + i);
    put_values(to + i, from + i, n - i);
}

/* Adam. s: rate, beta1, beta2, epsilon, scale of the gradient, its greatest entry (0: any), 1 - rate * weight decay, and 1 - beta1,
   1 - beta2, 1 - decay of the average, which a float of the other would lose. Rate and epsilon have been multiplied by
   sqrt(1 - beta2^t), by which sqrt(v) would have to be divided, and the rate divided by 1 - beta1^t: one division is enough.
   The average may be missing. */
#define BLOCK 1024 /* numbers at a time: new values stay in the nearest cache until the average and the weights have them */
static void adam_range(float *restrict p, const float *restrict g, float *restrict m, float *restrict v,
                       float *restrict average, long n, const float *s, int past) {
    const float rate = s[0], beta1 = s[1], beta2 = s[2], epsilon = s[3], scale = s[4];
    const float most = s[5] > 0 ? s[5] : __builtin_inff(), keep = s[6], rest1 = s[7], rest2 = s[8], rest = s[9];
    for (long from = 0; from < n; from += BLOCK) {
        const long to = from + BLOCK < n ? from + BLOCK : n;
        float fresh[BLOCK];
        for (long i = from; i < to; i++) {
            float e = g[i] * scale;
            e = e > most ? most : e;
            e = e < -most ? -most : e;
            m[i] = beta1 * m[i] + rest1 * e;
            v[i] = beta2 * v[i] + rest2 * e * e;
            fresh[i - from] = p[i] * keep - rate * m[i] / (__builtin_sqrtf(v[i]) + epsilon);
        }
        if (average)
            for (long i = from; i < to; i++) average[i] += rest * (fresh[i - from] - average[i]);
        (past ? put_past : put_values)(p + from, fresh, to - from);
    }
}

/* Of `count` tensors. Every thread has the part of each tensor of which it has made the gradient (program.c; but for matrices
   of few rows, which are cut by columns there), in whole lines of 16 numbers: what another core has written it would have to
   wait for. */
static int adam(float *const *values, const float *const *gradients, float *const *first, float *const *second,
                float *const *averages, const long *sizes, long count, const float *s) {
    #pragma omp parallel
    {
        const long t = omp_get_thread_num(), threads = omp_get_num_threads();
        EACH(n, count) {
            const long lines = (sizes[n] + 15) / 16, from = lines * t / threads * 16, end = lines * (t + 1) / threads * 16;
            const long length = (end < sizes[n] ? end : sizes[n]) - from;
            float *average = averages && averages[n] ? averages[n] + from : 0;
            adam_range(values[n] + from, gradients[n] + from, first[n] + from, second[n] + from, average, length, s, threads > 1);
        }
        ORDERED;
    }
    return DONE;
}

/* Whether every entry of an index is a slot. */
static int all_below(const int64_t *index, long entries, long slots) {
    long wrong = 0;
    EACH(e, entries) wrong += index[e] < 0 || index[e] >= slots;
    return wrong == 0;
}

/* Rows that lie anywhere are asked for before they are needed. */
static inline void fetch(const float *row, long width) {
    for (long j = 0; j < width; j += 16) __builtin_prefetch(row + j);
}

/* The same for some rows of a matrix. The average of row i first catches up with the steps in which the row stood still:
   a = p + (a - p) * missed[i]. */
static int adam_rows(float *p, const float *g, float *m, float *v, float *a, const int64_t *index, const float *missed,
                     long slots, long rows, long width, const float *s) {
    if (!all_below(index, rows, slots)) return OUT_OF_RANGE;
    #pragma omp parallel for num_threads(threads_for(rows * width)) schedule(static)
    for (long i = 0; i < rows; i++) {
        long at = index[i] * width, next = index[i + 1 < rows ? i + 1 : i] * width;
        fetch(p + next, width), fetch(m + next, width), fetch(v + next, width);
        if (a) {
            fetch(a + next, width);
            EACH(j, width) a[at + j] = p[at + j] + (a[at + j] - p[at + j]) * missed[i];
        }
        adam_range(p + at, g + i * width, m + at, v + at, a ? a + at : 0, width, s, 0);
    }
    return DONE;
}

/* Slots are read four at a time, while the next four are on their way: measured, 0.7 to 0.8 of the time of one after the other. */
static inline void fetch_slots(const float *M, const int64_t *index, long from, long entries, long width) {
    for (long e = from; e < from + 4 && e < entries; e++) fetch(M + index[e] * width, width);
}

/* out[i] = sum_k weights[i, k] M[index[i, k]] */
static int read_rows(const float *M, const int64_t *index, const float *weights, long slots, long rows, long chosen,
                     long width, float *out) {
    if (!all_below(index, rows * chosen, slots)) return OUT_OF_RANGE;
    #pragma omp parallel for num_threads(threads_for(rows * chosen * width)) schedule(static)
    for (long i = 0; i < rows; i++) {
        float *o = out + i * width;
        memset(o, 0, 4 * width);
        long e = i * chosen, end = e + chosen;
        for (; e + 4 <= end; e += 4) {
            fetch_slots(M, index, e + 4, rows * chosen, width);
            const float *a = M + index[e] * width, *b = M + index[e + 1] * width;
            const float *c = M + index[e + 2] * width, *d = M + index[e + 3] * width, *w = weights + e;
            EACH(j, width) o[j] += w[0] * a[j] + w[1] * b[j] + w[2] * c[j] + w[3] * d[j];
        }
        for (; e < end; e++) {
            const float *slot = M + index[e] * width;
            EACH(j, width) o[j] += weights[e] * slot[j];
        }
    }
    return DONE;
}

/* to_weights[i, k] = gradient[i] . M[index[i, k]] */
static int read_rows_backward_weights(const float *gradient, const float *M, const int64_t *index, long slots, long rows,
                                      long chosen, long width, float *to_weights) {
    if (!all_below(index, rows * chosen, slots)) return OUT_OF_RANGE;
    #pragma omp parallel for num_threads(threads_for(rows * chosen * width)) schedule(static)
    for (long i = 0; i < rows; i++) {
        const float *g = gradient + i * width;
        long e = i * chosen, end = e + chosen;
        for (; e + 4 <= end; e += 4) {
            fetch_slots(M, index, e + 4, rows * chosen, width);
            const float *a = M + index[e] * width, *b = M + index[e + 1] * width;
            const float *c = M + index[e + 2] * width, *d = M + index[e + 3] * width;
            float to_a = 0, to_b = 0, to_c = 0, to_d = 0;
            #pragma omp simd reduction(+ : to_a, to_b, to_c, to_d)
            for (long j = 0; j < width; j++) to_a += g[j] * a[j], to_b += g[j] * b[j], to_c += g[j] * c[j], to_d += g[j] * d[j];
            to_weights[e] = to_a, to_weights[e + 1] = to_b, to_weights[e + 2] = to_c, to_weights[e + 3] = to_d;
        }
        for (; e < end; e++) {
            const float *slot = M + index[e] * width;
            float dot = 0;
            #pragma omp simd reduction(+ : dot)
            for (long j = 0; j < width; j++) dot += g[j] * slot[j];
            to_weights[e] = dot;
        }
    }
    return DONE;
}

/* to_slots[u] = sum of weights[e] gradient[e / chosen] over the entries e = order[first[u]] ... order[first[u + 1] - 1] */
static int read_rows_backward_slots(const float *gradient, const float *weights, const int64_t *order, const int64_t *first,
                                    long rows, long chosen, long width, long found, float *to_slots) {
    const long entries = rows * chosen;
    if (!all_below(order, entries, entries) || !all_below(first, found + 1, entries + 1)) return OUT_OF_RANGE;
    #pragma omp parallel for num_threads(threads_for(found * width)) schedule(static)
    for (long u = 0; u < found; u++) {
        float *to = to_slots + u * width;
        for (long e = first[u]; e < first[u + 1]; e++) {
            if (e + 2 < entries) fetch(gradient + order[e + 2] / chosen * width, width);
            const float *g = gradient + order[e] / chosen * width;
            float weight = weights[order[e]];
            if (e == first[u]) EACH(j, width) to[j] = weight * g[j];
            else EACH(j, width) to[j] += weight * g[j];
        }
    }
    return DONE;
}

/* The `top` largest of n numbers, the largest first, and where they are. Most are below all that are kept by then, which
   several show at once. Where all are NaN the first stand there. */
static void largest(const float *h, long n, long top, float *value, int64_t *where) {
    EACH(r, top) value[r] = -__builtin_inff(), where[r] = r;
    for (long from = 0; from < n; from += 4 * WIDTH) {
        long to = from + 4 * WIDTH < n ? from + 4 * WIDTH : n;
        I above = {0};
        for (long j = from; j < to; j += WIDTH) above |= load(h + j, n - j) > all(value[top - 1]);
        int found = n - from < 4 * WIDTH; /* the last may have been filled up with zeros */
        EACH(q, WIDTH) found |= above[q];
        if (!found) continue;
        for (long j = from; j < to; j++) {
            long r = top - 1;
            if (!(h[j] > value[r])) continue;
            for (; r > 0 && value[r - 1] < h[j]; r--) value[r] = value[r - 1], where[r] = where[r - 1];
            value[r] = h[j], where[r] = j;
        }
    }
}

/* The `top` largest sums first[i] + second[j] of every row, and i * side + j of each. ranks: the two of each of
   the `pairs` among which they are, each below `reach`. Few, because they are sorted by insertion. */
#define MOST_PAIRS 1024
static int largest_sums(const float *first, const float *second, const int64_t *ranks, long pairs, long rows, long side,
                        long top, float *sums, int64_t *index) {
    const long reach = top < side ? top : side;
    if (top < 1 || top > pairs || pairs > MOST_PAIRS || !all_below(ranks, 2 * pairs, reach)) return OUT_OF_RANGE;
    #pragma omp parallel for num_threads(threads_for(rows * side)) schedule(static)
    for (long row = 0; row < rows; row++) {
        float a[reach], b[reach], both[pairs];
        int64_t i[reach], j[reach], which[top];
        largest(first + row * side, side, reach, a, i);
        largest(second + row * side, side, reach, b, j);
        EACH(k, pairs) both[k] = a[ranks[k]] + b[ranks[pairs + k]];
        largest(both, pairs, top, sums + row * top, which);
        EACH(k, top) index[row * top + k] = i[ranks[which[k]]] * side + j[ranks[pairs + which[k]]];
    }
    return DONE;
}

/* One half of `keys_backward`: its units of h begin at `from`, its slots are the quotients or the rests of the index by `side`.
   to_scores: a place for `side` floats that are zero, and zero afterwards. */
static void half_backward(const float *gradient, const int64_t *index, const float *h, long rows, long units, long top,
                          long side, int second, long from, long width, const float *A, float *to_A, float *to_b,
                          float *to_h, float *to_scores) {
    EACH(row, rows) {
        const float *h_row = h + row * units + from;
        float *to_own = to_h + row * units + from;
        for (long e = row * top; e < (row + 1) * top; e++)
            to_scores[second ? index[e] % side : index[e] / side] += gradient[e];
        for (long e = row * top; e < (row + 1) * top; e++) {
            const long i = second ? index[e] % side : index[e] / side;
            const float to_score = to_scores[i], *key = A + i * width;
            if (to_score == 0) continue; /* it had its turn, with all of its pairs, or has nothing to give */
            to_scores[i] = 0;
            EACH(j, width) to_own[j] += to_score * key[j];
            if (to_A) {
                float *to_key = to_A + i * width;
                EACH(j, width) to_key[j] += to_score * h_row[j];
            }
            if (to_b) to_b[i] += to_score;
        }
    }
}
/* The derivative of `largest_sums` where the scores are A_1 h_1 + b_1 and A_2 h_2 + b_2, h_1 the first `half` units of h and h_2
   the others: what the chosen pairs give to the keys, and to h, added to to_h. Of the scores of a row all but some are not
   chosen, and the products of matrices would be of zeros: measured on 2 x 1,024 keys, 32 pairs and 500 units, a sixth of their
   time. */
static int keys_backward(const float *gradient, const int64_t *index, const float *h, long rows, long top, long side,
                         long half, long rest, const float *A_1, const float *A_2, int accumulate, float *to_A_1,
                         float *to_b_1, float *to_A_2, float *to_b_2, float *to_h) {
    if (!all_below(index, rows * top, side * side)) return OUT_OF_RANGE;
    float *to_scores = zeros(side, 4);
    if (!to_scores) return NO_MEMORY;
    if (!accumulate) {
        if (to_A_1) memset(to_A_1, 0, 4 * side * half);
        if (to_b_1) memset(to_b_1, 0, 4 * side);
        if (to_A_2) memset(to_A_2, 0, 4 * side * rest);
        if (to_b_2) memset(to_b_2, 0, 4 * side);
    }
    const long units = half + rest;
    half_backward(gradient, index, h, rows, units, top, side, 0, 0, half, A_1, to_A_1, to_b_1, to_h, to_scores);
    half_backward(gradient, index, h, rows, units, top, side, 1, half, rest, A_2, to_A_2, to_b_2, to_h, to_scores);
    free(to_scores);
    return DONE;
}

/* Sort the entries of an index by their slots: their order, the different slots, and where each begins in the order, with
   the end of the last behind; `found` is how many there are. DIGITS bits at a time, the lowest first, each time keeping the
   order of equals. */
#define DIGITS 11
static int sort_slots(const int64_t *index, long entries, long slots, int64_t *order, int64_t *different, int64_t *first,
                      int64_t *found) {
    if (!all_below(index, entries, slots)) return OUT_OF_RANGE;
    int64_t most = 0, *other = zeros(entries, 8), *from = other, *to = order;
    if (!other) return NO_MEMORY;
    int passes = 1;
    EACH(e, entries) most = index[e] > most ? index[e] : most;
    while (most >> (DIGITS * passes)) passes++;
    if (passes % 2 == 0) from = order, to = other; /* the last pass is to end in `order` */
    EACH(e, entries) from[e] = e;
    EACH(pass, passes) {
        long at[1 << DIGITS] = {0}, before = 0;
        #define DIGIT(e) (index[e] >> (DIGITS * pass) & ((1 << DIGITS) - 1))
        EACH(e, entries) at[DIGIT(e)]++;
        EACH(d, 1 << DIGITS) {
            long count = at[d];
            at[d] = before;
            before += count;
        }
        EACH(e, entries) to[at[DIGIT(from[e])]++] = from[e];
        #undef DIGIT
        int64_t *was = from;
        from = to, to = was;
    }
    free(other);
    long count = 0;
    EACH(e, entries)
        if (e == 0 || index[order[e]] != different[count - 1]) different[count] = index[order[e]], first[count++] = e;
    first[count] = entries;
    *found = count;
    return DONE;
}

/* How far apart the cores of two threads are: the seconds from when one writes a number to when the other sees it. Each waits
   for the other's in turn, that many times. 0 if there are not two threads. */
static int apart(long turns, double *seconds) {
    static long number __attribute__((aligned(128))); /* with a line of the cache for itself */
    double taken = 0;
    number = 0;
    #pragma omp parallel num_threads(2)
    if (omp_get_num_threads() == 2) {
        const long t = omp_get_thread_num();
        #pragma omp barrier
        const double started = omp_get_wtime();
        for (long i = t; i < 2 * turns; i += 2) {
            for (long tries = 0; __atomic_load_n(&number, __ATOMIC_ACQUIRE) != i; tries++)
                if (tries > 10000) sched_yield(); /* both may be on one core */
            __atomic_store_n(&number, i + 1, __ATOMIC_RELEASE);
        }
        if (t == 0) taken = (omp_get_wtime() - started) / (2 * turns);
    }
    *seconds = taken;
    return DONE;
}

/* Flush denormal numbers to zero, or not, on every thread of the pool. */
static int flush_denormals(int on) {
#if defined(__x86_64__)
    #pragma omp parallel
    {
        unsigned both = 0x8040; /* flush to zero, denormals are zero */
        _mm_setcsr(on ? _mm_getcsr() | both : _mm_getcsr() & ~both);
    }
#else
    (void)on;
#endif
    return DONE;
}

/* How many threads of the pool flush denormal numbers. */
static int flushing(int64_t *threads) {
    int64_t found = 0;
#if defined(__x86_64__)
    #pragma omp parallel reduction(+ : found)
    found += (_mm_getcsr() & 0x8040) == 0x8040;
#endif
    *threads = found;
    return DONE;
}
