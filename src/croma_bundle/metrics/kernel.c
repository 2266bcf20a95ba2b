/* The two inner loops of the neighbour search, for a machine that has a C compiler when the package is built.
 *
 * The numpy code in candidates.py and selection.py is the reference: the same pairs, and the same bytes of every sum.
 * Nothing is allocated and no Python is called here; kernel.py checks the arguments.
 */
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#ifndef SOURCE
#define SOURCE "unknown"
#endif

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#define FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#endif
#ifndef FOR_EACH_CPU
#define FOR_EACH_CPU
#endif
#define INLINE static inline __attribute__((always_inline))

#define LANES 8   /* numpy's pairwise sum has eight running sums ... */
#define LEAF 128  /* ... over at most so many terms; longer sums are halved */
#define DEPTH 64
#define ABREAST 4 /* partners at a time: four independent sums keep the adders busy */
#define STRIP 16  /* columns looked at together */

typedef double wide __attribute__((vector_size(8 * LANES)));

/* sha256 of the source that this was built from. */
const char *croma_kernel_source(void) { return SOURCE; }

INLINE wide term(const double *row, const float *partner) {
  wide own, other;
  memcpy(&own, row, sizeof own);
  for (int l = 0; l < LANES; l++) other[l] = partner[l]; /* becomes one instruction, as __builtin_convertvector does not */
  return own * other;
}

/* The sums over terms [from, from + n), n <= LEAF, of row * partner. A product of two float32 is exact in float64. */
INLINE void leaf(const double *row, const float *const partner[ABREAST], int64_t from, int64_t n, double out[ABREAST]) {
  int64_t whole = n - n % LANES;
  wide sum[ABREAST];
  if (whole)
    for (int a = 0; a < ABREAST; a++) sum[a] = term(row + from, partner[a] + from);
  for (int64_t i = from + LANES; i < from + whole; i += LANES)
    for (int a = 0; a < ABREAST; a++) sum[a] += term(row + i, partner[a] + i);
  for (int a = 0; a < ABREAST; a++) {
    double s = -0.0;
    if (whole) s = ((sum[a][0] + sum[a][1]) + (sum[a][2] + sum[a][3])) + ((sum[a][4] + sum[a][5]) + (sum[a][6] + sum[a][7]));
    for (int64_t i = from + whole; i < from + n; i++) s += row[i] * (double)partner[a][i];
    out[a] = s;
  }
}

/* Dot products of one row with ABREAST partners, as numpy.add.reduce sums the products. Halves are taken from a stack:
 * `left` terms of the second half wait until the first is summed. */
INLINE void dot(const double *row, const float *const partner[ABREAST], int64_t width, double out[ABREAST]) {
  int64_t size[DEPTH];
  int waiting[DEPTH]; /* 1: this is a second half, whose sum is added to the one before */
  double sums[DEPTH][ABREAST];
  int top = 0, done = 0;
  int64_t from = 0;
  size[top] = width, waiting[top++] = 0;
  while (top) {
    int64_t n = size[--top];
    int adds = waiting[top];
    if (n > LEAF) {
      int64_t half = n / 2 - n / 2 % LANES;
      size[top] = n - half, waiting[top++] = adds + 1;
      size[top] = half, waiting[top++] = 0;
      continue;
    }
    leaf(row, partner, from, n, sums[done++]);
    from += n;
    for (; adds; adds--, done--)
      for (int a = 0; a < ABREAST; a++) sums[done - 2][a] += sums[done - 1][a];
  }
  for (int a = 0; a < ABREAST; a++) out[a] = 0.0 + sums[0][a];
}

/* out[i] = x[rows[i]] . x[partners[i]] in float64; fast where equal rows follow each other. own: `width` doubles. */
FOR_EACH_CPU void croma_dots(const float *x, int64_t width, const int64_t *rows, const int64_t *partners, int64_t count,
                             double *own, double *out) {
  for (int64_t start = 0, end; start < count; start = end) {
    const float *row = x + rows[start] * width;
    for (int64_t c = 0; c < width; c++) own[c] = row[c];
    for (end = start; end < count && rows[end] == rows[start]; end++) {}
    for (int64_t i = start; i < end; i += ABREAST) {
      const int64_t n = end - i < ABREAST ? end - i : ABREAST;
      const float *partner[ABREAST];
      double sums[ABREAST];
      for (int64_t a = 0; a < ABREAST; a++) partner[a] = x + partners[i + (a < n ? a : 0)] * width;
      dot(own, partner, width, sums);
      for (int64_t a = 0; a < n; a++) out[i + a] = sums[a];
    }
  }
}

struct pairs {
  int16_t *row;
  int32_t *partner;
  float *closeness;
  int64_t count;
};

struct rows {
  const int64_t *label, *confounder, *group;
  const int64_t *cell_end; /* of each row: the first row after it that is of another cell */
  const float *limit;      /* 4 x n: of each row, for pairs of each type */
  int64_t n;
};

INLINE void add(struct pairs *to, int64_t row, int64_t partner, float closeness) {
  to->row[to->count] = (int16_t)row;
  to->partner[to->count] = (int32_t)partner;
  to->closeness[to->count++] = closeness;
}

/* One bit for each of n <= STRIP values: whether it is at least the limit, the i-th of `step` apart. */
INLINE unsigned reaching(const float *value, const float *limit, int step, int64_t n) {
  unsigned bits = 0;
#ifdef __SSE2__
  if (n == STRIP) {
    __m128i hit[4];
    for (int q = 0; q < 4; q++) {
      const __m128 other = step ? _mm_loadu_ps(limit + 4 * q) : _mm_set1_ps(*limit);
      hit[q] = _mm_castps_si128(_mm_cmpge_ps(_mm_loadu_ps(value + 4 * q), other));
    }
    const __m128i low = _mm_packs_epi32(hit[0], hit[1]), high = _mm_packs_epi32(hit[2], hit[3]);
    return (unsigned)_mm_movemask_epi8(_mm_packs_epi16(low, high));
  }
#endif
  for (int64_t t = 0; t < n; t++) bits |= (unsigned)(value[t] >= limit[t * step]) << t;
  return bits;
}

/* Every pair of candidates of a block of the product (rows from `first`, columns from `second`, lines `stride` apart)
 * that is within the row's limit, to own; and within the column's, to theirs, unless that is null. */
FOR_EACH_CPU void croma_gather(const float *product, int64_t stride, int64_t first, int64_t n, int64_t second, int64_t p,
                               const struct rows *all, struct pairs *own, struct pairs *theirs) {
  for (int64_t row = first; row < first + n; row++) {
    const float *line = product + (row - first) * stride;
    for (int64_t j = 0, end; j < p; j = end) {
      end = all->cell_end[second + j] - second;
      if (end > p) end = p;
      const int same_label = all->label[row] == all->label[second + j];
      const int same_confounder = all->confounder[row] == all->confounder[second + j];
      const int type = same_label ? (same_confounder ? 2 : 0) : (same_confounder ? 1 : 3);
      const float *limits = all->limit + type * all->n;
      for (; j < end; j += STRIP) {
        const int64_t width = end - j < STRIP ? end - j : STRIP;
        unsigned mine = reaching(line + j, limits + row, 0, width);
        unsigned back = theirs ? reaching(line + j, limits + second + j, 1, width) : 0;
        for (; mine; mine &= mine - 1) {
          const int64_t column = j + __builtin_ctz(mine);
          if (all->group[row] != all->group[second + column]) add(own, row - first, second + column, line[column]);
        }
        for (; back; back &= back - 1) {
          const int64_t column = j + __builtin_ctz(back);
          if (all->group[row] != all->group[second + column]) add(theirs, column, row, line[column]);
        }
      }
    }
  }
}
