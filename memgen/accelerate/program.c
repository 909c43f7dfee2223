/* A whole training step as a list of calls, made without Python in between (memgen/fused writes such lists).

   The rows are shared between the threads: each goes through a list of its own with its own rows, activations and
   gradients, and meets the others only where sums over all rows are needed. What a thread has written it reads again
   itself, so that activations stay in the cache of its core. The gradients of the matrices each makes of its own rows, and
   they are added up at the end; where there are few rows all threads make them together, a part of each. The matrix
   products are our own (products.c) or, on processors for which these are not made, those of torch's BLAS, on one thread each;
   where there is one list only, large ones are the BLAS's on all threads. */

#include "kernels.c"
#include "products.c"

typedef void (*Sgemm)(const char *, const char *, const int *, const int *, const int *, const float *, const float *,
                      const int *, const float *, const int *, const float *, float *, const int *);
typedef union {
    int64_t n;
    double f;
    void *p;
} Operand;
#define OPERANDS 16
typedef struct {
    void (*work)(const Operand *, Seat *);
    Operand o[OPERANDS];
} Call;

static Sgemm sgemm;
static int (*set_threads)(int);

/* The BLAS's product of matrices and its number of threads for the calling thread. */
void use_blas(void *product, void *threads) {
    sgemm = (Sgemm)product;
    set_threads = (int (*)(int))threads;
}

#define CALL(name) void call_##name(const Operand *o, Seat *seat)
#define P(i) ((float *)o[i].p)
#define N(i) ((long)o[i].n)
#define F(i) ((float)o[i].f)

#define SMALL 4e6 /* multiplications, at most, that are done before others have been woken; measured: 0.74 of a step of 10 faces */
/* C (m, n) = A (m, k) B (k, n) + more * C; across_a: A is stored as (k, m), across_b: B as (n, k); and how far two stored rows
   are apart. BLAS counts along columns, for which these are the transposed matrices: C' = B' A'. */
CALL(product) {
    const int across_a = N(0), across_b = N(1), m = N(2), n = N(3), k = N(4), row_of_a = N(5), row_of_b = N(6), row_of_c = N(7);
    const float one = 1, more = F(11);
    /* Our own are for one thread: where it is not expected to share the work with others, or would rather not. */
    const int alone = seat || omp_get_max_threads() == 1 || (double)m * n * k <= SMALL;
    if (own_wanted && alone && k > 0 && (more == 0 || more == 1) && own_available()) {
        const Product p = {across_a, across_b, m, n, k, row_of_a, row_of_b, row_of_c, P(8), P(9), P(10), more != 0};
        multiply(&p);
        own_done++;
        return;
    }
    sgemm(across_b ? "T" : "N", across_a ? "T" : "N", &n, &m, &k, &one, P(9), &row_of_b, P(8), &row_of_a, &more, P(10), &row_of_c);
}

/* Wait until all have come to this place. */
CALL(meet) {
    (void)o;
    meet(seat);
    seat->met++;
}

/* out (samples, rows, units) = some rows, from `first` on, of the numbers (samples, every, units) whose address stands in `given`:
   each thread fetches its own. */
CALL(take) {
    (void)seat;
    const long first = N(1), every = N(2), samples = N(3), size = N(4) * N(5), units = N(5);
    const float *given = *(const float *const *)o[0].p;
    EACH(k, samples) memcpy(P(6) + k * size, given + (k * every + first) * units, 4 * size);
}

/* Every row of out (rows, units) = bias */
CALL(bias) {
    (void)seat;
    EACH(i, N(1)) memcpy(P(0) + i * N(2), P(3), 4 * N(2));
}

/* out[j] = sum of h (rows, units) over rows, or `more` by that than it was */
CALL(sum_rows) {
    (void)seat;
    const long units = N(2);
    const float *h = P(0);
    float *out = P(4);
    if (!N(3)) memset(out, 0, 4 * units);
    EACH(i, N(1)) EACH(j, units) out[j] += h[i * units + j];
}

CALL(add_bias_relu) {
    (void)seat;
    add_bias_relu(P(0), N(1), N(2), P(3));
}
CALL(gather) {
    (void)seat;
    gather(P(0), N(1), N(2), N(3), P(4));
}
CALL(settle) { settle(P(0), N(1), N(2), P(3), F(4), seat); }
CALL(normalise) {
    (void)seat;
    normalise(P(0), N(1), N(2), P(3), P(3) + 2 * N(2), P(4), P(5));
}
CALL(normalise_sums) {
    (void)seat;
    normalise_sums(P(0), P(1), N(2), N(3), P(4), P(5), N(6), P(7));
}
CALL(normalise_settle) { normalise_settle(P(0), N(1), N(2), P(3), P(4), P(5), seat); }
CALL(normalise_to_input) {
    (void)seat;
    normalise_to_input(P(0), P(1), N(2), N(3), P(4), P(5), P(6), P(7));
}
CALL(mlp) {
    (void)seat;
    mlp(P(0), P(1), N(2), N(3), (const float *const *)o[4].p, P(5));
}
CALL(mlp_backward) {
    (void)seat;
    mlp_backward(P(0), P(1), P(2), N(3), N(4), (const float *const *)o[5].p, P(6), P(7), N(8), P(9));
}
CALL(sum_samples) {
    (void)seat;
    sum_samples(P(0), N(1), N(2), N(3), N(4), P(5));
}
CALL(centre) {
    (void)seat;
    centre(P(0), N(1), N(2), F(3), P(4), P(5));
}
CALL(standardise_sums) { standardise_sums(P(0), P(1), N(2), N(3), N(4), P(5), F(6), P(7), seat); }
CALL(standardise_to_input) {
    (void)seat;
    standardise_to_input(P(0), P(1), N(2), N(3), N(4), P(5), P(6), F(7), 1, P(8));
}
CALL(reparameterise) {
    (void)seat;
    reparameterise(P(0), P(1), P(2), N(3), N(4), N(5), P(6), P(7));
}
CALL(reparameterise_backward) {
    (void)seat;
    reparameterise_backward(P(0), P(1), P(2), P(3), N(4), N(5), N(6), P(7), P(8));
}
CALL(bernoulli) {
    (void)seat;
    bernoulli(P(0), P(1), P(2), N(3), N(4), N(5), P(6));
}
CALL(bernoulli_backward) {
    (void)seat;
    bernoulli_backward(P(0), P(1), P(2), P(3), N(4), N(5), N(6), P(7), N(8), P(9));
}

/* difference = a - b, and `share` of the sum of its squares */
CALL(compare) {
    (void)seat;
    const float *a = P(0), *b = P(1);
    float *difference = P(4);
    double total = 0;
    #pragma omp simd reduction(+ : total)
    for (long i = 0; i < N(2); i++) {
        difference[i] = a[i] - b[i];
        total += (double)difference[i] * difference[i];
    }
    *P(5) = o[3].f * total;
}

CALL(sigmoid) {
    (void)seat;
    for (long i = 0, n = N(1); i < n; i += WIDTH) store(P(2) + i, sigmoid(load(P(0) + i, n - i)), n - i);
}
CALL(sigmoid_backward) {
    (void)seat;
    const float *gradient = P(0), *h_a = P(1);
    float *out = P(3);
    EACH(i, N(2)) out[i] = gradient[i] * h_a[i] * (1 - h_a[i]);
}
CALL(softmax) {
    (void)seat;
    const long slots = N(2);
    EACH(i, N(1)) {
        const float *scores = P(0) + i * slots;
        float *out = P(3) + i * slots, most = scores[0], total = 0;
        EACH(j, slots) most = scores[j] > most ? scores[j] : most;
        for (long j = 0; j < slots; j += WIDTH) store(out + j, exp_(load(scores + j, slots - j) - most), slots - j);
        EACH(j, slots) total += out[j];
        EACH(j, slots) out[j] /= total;
    }
}
CALL(softmax_backward) {
    (void)seat;
    const long slots = N(3);
    EACH(i, N(2)) {
        const float *gradient = P(0) + i * slots, *h_a = P(1) + i * slots;
        float *out = P(4) + i * slots, mean = 0;
        EACH(j, slots) mean += gradient[j] * h_a[j];
        EACH(j, slots) out[j] = h_a[j] * (gradient[j] - mean);
    }
}

#define WHOLE(i) ((int64_t *)o[i].p)
CALL(largest_sums) {
    (void)seat;
    largest_sums(P(0), P(1), WHOLE(2), N(3), N(4), N(5), N(6), N(7), P(8), WHOLE(9));
}
CALL(keys_backward) {
    (void)seat;
    keys_backward(P(0), WHOLE(1), P(2), N(3), N(4), N(5), N(6), N(7), (const float *const *)o[8].p, N(9), (float *const *)o[10].p,
                  P(11));
}
CALL(read_rows) {
    (void)seat;
    read_rows(P(0), WHOLE(1), P(2), N(3), N(4), N(5), P(6));
}
CALL(read_rows_backward_weights) {
    (void)seat;
    read_rows_backward_weights(P(0), P(1), WHOLE(2), N(3), N(4), N(5), P(6));
}

/* The composition sum: out = max(0, h_g + h_m) */
CALL(sum) {
    (void)seat;
    const float *h_g = P(0), *h_m = P(1);
    float *out = P(3);
    EACH(i, N(2)) {
        float y = h_g[i] + h_m[i];
        out[i] = y < 0 ? 0 : y;
    }
}
CALL(sum_backward) {
    (void)seat;
    const float *gradient = P(0), *out = P(1);
    float *to_g = P(3), *to_m = P(4);
    EACH(i, N(2)) to_g[i] = to_m[i] = out[i] > 0 ? gradient[i] : 0;
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

/* log_p[k, b] = -1/2 sum_d log 2 pi + log s^2 + (x[b, d] - mean)^2 / s^2, s^2 = exp(raw) + floor^2 of [k, b, d] */
CALL(gaussian) {
    (void)seat;
    const long samples = N(3), rows = N(4), columns = N(5);
    const float square = F(6);
    EACH(i, samples * rows) {
        const float *mean = P(0) + i * columns, *raw = P(1) + i * columns, *x = P(2) + i % rows * columns;
        float total = 0;
        for (long j = 0; j < columns; j += WIDTH) {
            long k = columns - j;
            V r = load(raw + j, k), v = exp_(r) + square, e = load(x + j, k) - load(mean + j, k);
            V term = (square > 0 ? log_(v) : r) + e * e / v;
            if (k >= WIDTH) total += sum(term);
            else EACH(n, k) total += term[n];
        }
        P(7)[i] = -0.5f * (total + 1.8378770664f * columns);
    }
}
CALL(gaussian_backward) {
    (void)seat;
    const long samples = N(4), rows = N(5), columns = N(6);
    const float square = F(7);
    EACH(i, samples * rows) {
        const long at = i * columns;
        const float w = P(0)[i], *x = P(3) + i % rows * columns;
        for (long j = 0; j < columns; j += WIDTH) {
            long k = columns - j;
            V s = exp_(load(P(2) + at + j, k)), v = s + square, e = load(x + j, k) - load(P(1) + at + j, k);
            store(P(8) + at + j, w * e / v, k);
            store(P(9) + at + j, 0.5f * w * (e * e / v - 1.0f) * s / v, k);
        }
    }
}

/* log w = log p(x|z) + log N(z; 0, I) - log q(z|x) */
static double log_weight(float log_p, const float *z, float log_q, long d) {
    float norm = 0;
    #pragma omp simd reduction(+ : norm)
    for (long j = 0; j < d; j++) norm += z[j] * z[j];
    return (double)log_p - 0.5f * (norm + 1.8378770664f * d) - (double)log_q;
}

/* The same of all rows, in float64. */
CALL(log_weights) {
    (void)seat;
    EACH(i, N(3)) ((double *)o[5].p)[i] = log_weight(P(0)[i], P(1) + i * N(4), P(2)[i], N(4));
}

/* From log w[k, b] to the bound of each row b, the derivatives of the loss by log w, which is
   -1/B of the bound's, and what dreg adds to them for Q (v_k^2 - v_k in place of v_k). */
CALL(weigh) {
    (void)seat;
    const float *log_p = P(0), *z = P(1), *log_q = P(2);
    const long samples = N(3), rows = N(4), d = N(5), importance = N(6);
    const float share = -1.0f / N(7); /* of all rows, not only of those of this thread */
    float *bound = P(8), *weights = P(9), *squares = P(10), *log_w = malloc(4 * samples);
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
}

/* What a share adds to the loss and to the bound: out = its errors - its part of the mean of all bounds, and that part. */
CALL(report) {
    (void)seat;
    double bound = 0, error = 0;
    EACH(b, N(1)) bound += P(0)[b];
    EACH(n, N(4)) error += P(3)[n];
    bound /= N(2); /* all rows */
    P(5)[0] = error - bound, P(5)[1] = bound;
}

/* What log p(z) - log q(z|x) gives to z, added to to_z: -z, and noise / s where the parameters of q are constants in log q
   (`fixed`). Where they are not, log q of z = mu + s * noise depends on s alone. For dreg each z_k has received v_k so far;
   `weighed` is what P gives it of what it lacks. */
CALL(path) {
    (void)seat;
    const float *z = P(1), *noise = P(2), *log_variance = P(3), *weights = P(4), *squares = P(5), *weighed = P(6);
    const long samples = N(7), rows = N(8), d = N(9), fixed = N(10);
    EACH(i, samples * rows) {
        const float w = weights[i] + (weighed ? squares[i] : 0);
        for (long j = 0; j < d; j += WIDTH) {
            long k = d - j, at = i * d + j;
            V path = -load(z + at, k);
            if (fixed) path += load(noise + at, k) * exp_(-0.5f * load(log_variance + i % rows * d + j, k));
            V to = load(P(0) + at, k) + w * path;
            store(P(0) + at, weighed ? to + load(weighed + at, k) : to, k);
        }
        P(11)[i] = fixed ? 0 : -weights[i];
    }
}

/* Go through the lists of calls, one for each share of the rows, then add the gradients of the other shares to those of the
   first. gradients: for each of `count` tensors its addresses in all shares. Returns 1,
   with nothing done, if there are not as many threads. */
int run(Call *const *lists, const long *lengths, long shares, float *tables, long size, float *const *gradients,
        const long *sizes, long count) {
    if (shares == 1) {
        EACH(i, lengths[0]) lists[0][i].work(lists[0][i].o, 0);
        return 0;
    }
    Meeting meeting = {shares, size, tables, 0, 0};
    int few = 0;
    #pragma omp parallel num_threads(shares)
    {
        if (omp_get_num_threads() == shares) {
            Seat seat = {&meeting, omp_get_thread_num(), 0};
            const Call *own = lists[seat.index];
            int before = set_threads(1);
            EACH(i, lengths[seat.index]) own[i].work(own[i].o, &seat);
            set_threads(before);
            #pragma omp barrier
            EACH(n, count) {
                float *const *copies = gradients + n * shares;
                #pragma omp for schedule(static) nowait
                for (long i = 0; i < sizes[n]; i++)
                    for (long t = 1; t < shares; t++) copies[0][i] += copies[t][i];
            }
        } else {
            #pragma omp atomic write
            few = 1;
        }
    }
    return few;
}
