/* Operations that only whole steps have, the wrappers of all, and lists of calls that run without Python in between.

   The rows are divided among the threads. Each thread is a worker with separate calls, rows, activations and gradients,
   and waits at a barrier only for sums over all rows. A thread reads the activations that it wrote itself, so that they
   stay in the cache of its core. Each worker computes the gradients of the matrices from its rows, and they are added at
   the end; with few rows each worker computes a part of every gradient from all rows. The matrix products are those of
   products.c or, on unsupported processors, those of torch's BLAS, on one thread each. With one list only, large
   products are the BLAS's on all threads. */

#include "kernels.c"
#include "products.c"

typedef void (*Sgemm)(const char *, const char *, const int *, const int *, const int *, const float *, const float *,
                      const int *, const float *, const int *, const float *, float *, const int *);
static Sgemm sgemm;
static int (*set_threads)(int);

/* The BLAS's product of matrices and its number of threads for the calling thread. */
void use_blas(Sgemm product, int (*threads)(int)) {
    sgemm = product;
    set_threads = threads;
}

#define SMALL 4e6 /* multiplications, at most, that are done before others have been woken; measured: 0.74 of a step of 10 faces */
/* out (m, n) = a (m, k) b (k, n) + keep * out. across_a: a is stored as (k, m), across_b: b as (n, k); and how far two stored
   rows are apart. BLAS counts along columns, for which these are the transposed matrices: out' = b' a'. */
static int product(const float *a, int across_a, long row_of_a, const float *b, int across_b, long row_of_b, float *out,
                   long row_of_out, long m, long n, long k, float keep, Worker *worker) {
    /* Those of products.c use one thread: for a worker, without other threads, or for a small product. */
    const int alone = worker || omp_get_max_threads() == 1 || (double)m * n * k <= SMALL;
    if (own_enabled && alone && k > 0 && (keep == 0 || keep == 1) && own_available()) {
        const Product p = {across_a, across_b, m, n, k, row_of_a, row_of_b, row_of_out, a, b, out, keep != 0};
        multiply(&p);
        own_done++;
        return DONE;
    }
    const long sizes[] = {m, n, k, row_of_a, row_of_b, row_of_out};
    EACH(i, 6) if (sizes[i] > INT32_MAX) return OUT_OF_RANGE;
    if (!sgemm) return OUT_OF_RANGE;
    const int rows = m, columns = n, inner = k, of_a = row_of_a, of_b = row_of_b, of_out = row_of_out;
    const float one = 1;
    sgemm(across_b ? "T" : "N", across_a ? "T" : "N", &columns, &rows, &inner, &one, b, &of_b, a, &of_a, &keep, out, &of_out);
    return DONE;
}

/* Every row of out (rows, units) = bias */
static int bias(float *out, long rows, long units, const float *bias) {
    EACH(i, rows) memcpy(out + i * units, bias, 4 * units);
    return DONE;
}

/* out[j] = or += sum of h (rows, units) over rows */
static int sum_rows(const float *h, long rows, long units, int accumulate, float *out) {
    if (!accumulate) memset(out, 0, 4 * units);
    EACH(i, rows) EACH(j, units) out[j] += h[i * units + j];
    return DONE;
}

/* difference = a - b, and `share` of the sum of its squares */
static int compare(const float *a, const float *b, long rows, long units, double share, float *difference, float *error) {
    double total = 0;
    #pragma omp simd reduction(+ : total)
    for (long i = 0; i < rows * units; i++) {
        difference[i] = a[i] - b[i];
        total += (double)difference[i] * difference[i];
    }
    *error = share * total;
    return DONE;
}

static int sigmoid(const float *scores, long rows, long slots, float *out) {
    for (long i = 0, n = rows * slots; i < n; i += WIDTH) store(out + i, sigmoid_(load(scores + i, n - i)), n - i);
    return DONE;
}
static int sigmoid_backward(const float *gradient, const float *h_a, long rows, long slots, float *out) {
    EACH(i, rows * slots) out[i] = gradient[i] * h_a[i] * (1 - h_a[i]);
    return DONE;
}
static int softmax(const float *scores, long rows, long slots, float *out) {
    EACH(i, slots ? rows : 0) {
        const float *from = scores + i * slots;
        float *to = out + i * slots, most = from[0], total = 0;
        EACH(j, slots) most = from[j] > most ? from[j] : most;
        for (long j = 0; j < slots; j += WIDTH) store(to + j, exp_(load(from + j, slots - j) - most), slots - j);
        EACH(j, slots) total += to[j];
        EACH(j, slots) to[j] /= total;
    }
    return DONE;
}
static int softmax_backward(const float *gradient, const float *h_a, long rows, long slots, float *out) {
    EACH(i, rows) {
        const float *g = gradient + i * slots, *a = h_a + i * slots;
        float *to = out + i * slots, mean = 0;
        EACH(j, slots) mean += g[j] * a[j];
        EACH(j, slots) to[j] = a[j] * (g[j] - mean);
    }
    return DONE;
}

/* The composition sum: out = max(0, h_g + h_m) */
static int add(const float *h_g, const float *h_m, long rows, long units, float *out) {
    EACH(i, rows * units) {
        float y = h_g[i] + h_m[i];
        out[i] = y < 0 ? 0 : y;
    }
    return DONE;
}
static int add_backward(const float *gradient, const float *out, long rows, long units, float *to_g, float *to_m) {
    EACH(i, rows * units) to_g[i] = to_m[i] = out[i] > 0 ? gradient[i] : 0;
    return DONE;
}

/* log x = n log 2 + log(1 + r), 1 + r between sqrt(1/2) and sqrt(2); the series of log((1 + s) / (1 - s)) with s = r / (2 + r),
   |s| < 0.172: relative error below 3e-7. */
static inline V log_(V x) {
    I bits = (I)x, n = (bits - 0x3f3504f3) >> 23;
    V r = (V)(bits - (n << 23)) - 1.0f, s = r / (2.0f + r), q = s * s;
    V p = all(1.0f / 9);
    p = p * q + 1.0f / 7;
    p = p * q + 1.0f / 5;
    p = p * q + 1.0f / 3;
    p = p * q + 1.0f;
    return __builtin_convertvector(n, V) * 0.69314718f + 2.0f * s * p;
}

/* log_p[k, b] = -1/2 sum_d log 2 pi + log s^2 + (x[b, d] - mean)^2 / s^2, s^2 = exp(raw) + square of [k, b, d] */
static int gaussian(const float *mean, const float *raw, const float *x, long samples, long rows, long columns, float square,
                    float *out) {
    EACH(i, samples * rows) {
        const float *m = mean + i * columns, *r = raw + i * columns, *target = x + i % rows * columns;
        float total = 0;
        for (long j = 0; j < columns; j += WIDTH) {
            long k = columns - j;
            V raw = load(r + j, k), v = exp_(raw) + square, e = load(target + j, k) - load(m + j, k);
            V term = (square > 0 ? log_(v) : raw) + e * e / v;
            if (k >= WIDTH) total += sum_of(term);
            else EACH(n, k) total += term[n];
        }
        out[i] = -0.5f * (total + 1.8378770664f * columns);
    }
    return DONE;
}
static int gaussian_backward(const float *gradient, const float *mean, const float *raw, const float *x, long samples, long rows,
                             long columns, float square, float *to_mean, float *to_raw) {
    EACH(i, samples * rows) {
        const long at = i * columns;
        const float w = gradient[i], *target = x + i % rows * columns;
        for (long j = 0; j < columns; j += WIDTH) {
            long k = columns - j;
            V s = exp_(load(raw + at + j, k)), v = s + square, e = load(target + j, k) - load(mean + at + j, k);
            store(to_mean + at + j, w * e / v, k);
            store(to_raw + at + j, 0.5f * w * (e * e / v - 1.0f) * s / v, k);
        }
    }
    return DONE;
}

/* log w = log p(x|z) + log N(z; 0, I) - log q(z|x) */
static double log_weight(float log_p, const float *z, float log_q, long d) {
    float norm = 0;
    #pragma omp simd reduction(+ : norm)
    for (long j = 0; j < d; j++) norm += z[j] * z[j];
    return (double)log_p - 0.5f * (norm + 1.8378770664f * d) - (double)log_q;
}

/* The same for all rows, in float64. */
static int log_weights(const float *log_p, const float *z, const float *log_q, long samples, long rows, long d, double *out) {
    EACH(i, samples * rows) out[i] = log_weight(log_p[i], z + i * d, log_q[i], d);
    return DONE;
}

/* From log w[k, b] to the bound of each row b, the derivatives of the loss by log w, which is -1/B of the bound's with B = every,
   and what dreg adds to them for Q (v_k^2 - v_k in place of v_k). */
static int weigh(const float *log_p, const float *z, const float *log_q, long samples, long rows, long d, int importance,
                 long every, float *bound, float *weights, float *squares) {
    const float share = -1.0f / every; /* of all rows, not only of those of this worker */
    float *log_w = zeros(samples, 4);
    if (!log_w) return NO_MEMORY;
    EACH(b, rows) {
        float most = -__builtin_inff();
        EACH(k, samples) {
            long i = k * rows + b;
            log_w[k] = log_weight(log_p[i], z + i * d, log_q[i], d);
            most = log_w[k] > most || log_w[k] != log_w[k] ? log_w[k] : most; /* a NaN stays one */
        }
        double total = 0;
        if (importance) {
            EACH(k, samples) total += __builtin_expf(log_w[k] - most);
            bound[b] = most + __builtin_log(total / samples);
        } else {
            EACH(k, samples) total += log_w[k];
            bound[b] = total / samples;
        }
        EACH(k, samples) {
            float v = importance ? __builtin_expf(log_w[k] - most) / total : 1.0f / samples;
            weights[k * rows + b] = share * v;
            squares[k * rows + b] = importance ? share * (v * v - v) : 0;
        }
    }
    free(log_w);
    return DONE;
}

/* The worker's contribution to loss and bound: out = its errors - its part of the mean bound, and that part. */
static int report(const float *bounds, long rows, long every, const float *errors, long layers, float *out) {
    double bound = 0, error = 0;
    EACH(b, rows) bound += bounds[b];
    EACH(n, layers) error += errors[n];
    bound /= every;
    out[0] = error - bound, out[1] = bound;
    return DONE;
}

/* What log p(z) - log q(z|x) gives to z, added to to_z: -z, and noise / s where the parameters of q are constants in log q
   (`fixed`). Where they are not, log q of z = mu + s * noise depends on s alone. For dreg each z_k has received v_k so far;
   `weighed` is what P gives it of what it lacks. */
static int path(float *to_z, const float *z, const float *noise, const float *log_variance, const float *weights,
                const float *squares, const float *weighed, long samples, long rows, long d, int fixed, float *to_log_q) {
    EACH(i, samples * rows) {
        const float w = weights[i] + (weighed ? squares[i] : 0);
        for (long j = 0; j < d; j += WIDTH) {
            long k = d - j, at = i * d + j;
            V slope = -load(z + at, k);
            if (fixed) slope += load(noise + at, k) * exp_(-0.5f * load(log_variance + i % rows * d + j, k));
            V to = load(to_z + at, k) + w * slope;
            store(to_z + at, weighed ? to + load(weighed + at, k) : to, k);
        }
        to_log_q[i] = fixed ? 0 : -weights[i];
    }
    return DONE;
}

typedef union {
    int64_t n;
    double f;
    void *p;
} Operand;
#include "operations.h" /* generated by operations.py: OPERANDS, and call_NAME(operands, worker) for each operation */
typedef struct {
    int (*work)(const Operand *, Worker *);
    Operand o[OPERANDS];
} Call;

/* Execute the lists of calls, one per worker, then add the gradients of the other workers to those of the first.
   gradients: for each of `count` tensors its addresses in all lists. Returns -1, with nothing executed, if there are
   fewer threads than workers, otherwise an error code. After an error a list continues, because others wait for it. */
int run(Call *const *lists, const long *lengths, long workers, float *tables, long size, float *const *gradients,
        const long *sizes, long count) {
    int error = DONE;
    if (workers == 1) {
        EACH(i, lengths[0]) {
            const int code = lists[0][i].work(lists[0][i].o, 0);
            error = code ? code : error;
        }
        return error;
    }
    Barrier barrier = {workers, size, tables, 0, 0};
    int few = 0;
    #pragma omp parallel num_threads(workers)
    {
        if (omp_get_num_threads() == workers) {
            Worker worker = {&barrier, omp_get_thread_num(), 0};
            const Call *calls = lists[worker.index];
            int before = set_threads ? set_threads(1) : 0, wrong = DONE;
            EACH(i, lengths[worker.index]) {
                const int code = calls[i].work(calls[i].o, &worker);
                wrong = code ? code : wrong;
            }
            if (set_threads) set_threads(before);
            if (wrong) {
                #pragma omp atomic write
                error = wrong;
            }
            #pragma omp barrier
            EACH(n, count) {
                float *const *copies = gradients + n * workers;
                #pragma omp for schedule(static) nowait
                for (long i = 0; i < sizes[n]; i++)
                    for (long t = 1; t < workers; t++) copies[0][i] += copies[t][i];
            }
        } else {
            #pragma omp atomic write
            few = 1;
        }
    }
    return few ? -1 : error;
}
