/* The inner loops of the neighbour search, for a machine that has a C compiler when the package is built.
 *
 * The numpy code in arrangement.py, candidates.py and selection.py is the reference: the same pairs, and the same bytes
 * of every sum. Nothing is allocated and no Python is called here; kernel.py checks the arguments.
 */
#include <math.h>
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
#define DIGITS 4  /* of eight bits, of a float32 that is sorted */
#define SINGLES 16 /* running sums of a float32 dot product */
#define TILE 128   /* partners, and ... */
#define CHUNK 1536  /* ... columns of them at a time, which a core's cache holds */

typedef double wide __attribute__((vector_size(8 * LANES)));
typedef float narrow __attribute__((vector_size(4 * SINGLES)));
typedef float eight __attribute__((vector_size(4 * SINGLES / 2)));

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

/* The sum of the squares of n float64, as numpy.add.reduce sums them. */
FOR_EACH_CPU static double squares(const double *value, int64_t n) {
  if (n > LEAF) {
    const int64_t half = n / 2 - n / 2 % LANES;
    return squares(value, half) + squares(value + half, n - half);
  }
  const int64_t whole = n - n % LANES;
  wide sum, next;
  double total = 0.0;
  if (whole) {
    memcpy(&sum, value, sizeof sum);
    sum *= sum;
    for (int64_t i = LANES; i < whole; i += LANES) memcpy(&next, value + i, sizeof next), sum += next * next;
    total = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
  }
  for (int64_t i = whole; i < n; i++) total += value[i] * value[i];
  return total;
}

/* Of n rows of x: 1 / length, 0 for a row that has none; the unit row less the centre, to held (unless that is null);
 * and half the squared length of that, 1/2 more for a row without length. unit: `width` doubles. */
FOR_EACH_CPU void croma_centre(const float *x, int64_t width, const int64_t *source, int64_t n, const double *centre,
                               double *unit, double *scale, float *held, double *half) {
  for (int64_t i = 0; i < n; i++) {
    const float *row = x + source[i] * width;
    for (int64_t c = 0; c < width; c++) unit[c] = row[c];
    const double length = sqrt(squares(unit, width));
    scale[i] = length > 0 ? 1.0 / length : 0.0;
    for (int64_t c = 0; c < width; c++) unit[c] = unit[c] * scale[i] - centre[c];
    if (held)
      for (int64_t c = 0; c < width; c++) held[i * width + c] = (float)unit[c];
    half[i] = squares(unit, width) / 2.0 + (scale[i] == 0 ? 0.5 : 0.0);
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

INLINE int type_of(const struct rows *all, int64_t row, int64_t partner) {
  const int same_label = all->label[row] == all->label[partner];
  const int same_confounder = all->confounder[row] == all->confounder[partner];
  return same_label ? (same_confounder ? 2 : 0) : (same_confounder ? 1 : 3);
}

/* Put a value among the `rank` largest, ascending; the first of them drops out. */
INLINE void push(float *largest, int64_t rank, float value) {
  int64_t i = 1;
  for (; i < rank && largest[i] < value; i++) largest[i - 1] = largest[i];
  largest[i - 1] = value;
}

/* Of each row of a block of the product (rows from `first`, columns from 0, lines p apart): the ranks[0]-th largest of
 * its candidates, and the ranks[1]-th largest of its SO and of its OS; minus infinity where there are fewer.
 * best: ranks[0] + 2 ranks[1] floats. */
FOR_EACH_CPU void croma_guess(const float *product, int64_t first, int64_t n, int64_t p, const struct rows *all,
                              const int64_t ranks[2], float *best, float *near, float *so, float *os) {
  float *const typed[2] = {best + ranks[0], best + ranks[0] + ranks[1]};
  for (int64_t row = first; row < first + n; row++) {
    const float *line = product + (row - first) * p;
    for (int64_t r = 0; r < ranks[0] + 2 * ranks[1]; r++) best[r] = -INFINITY;
    for (int64_t j = 0, end; j < p; j = end) {
      end = all->cell_end[j] < p ? all->cell_end[j] : p;
      const int type = type_of(all, row, j);
      float *const own = type < 2 ? typed[type] : 0;
      for (; j < end; j += STRIP) {
        const float least = own && *own < *best ? *own : *best;
        unsigned hits = reaching(line + j, &least, 0, end - j < STRIP ? end - j : STRIP);
        for (; hits; hits &= hits - 1) {
          const int64_t column = j + __builtin_ctz(hits);
          if (all->group[row] == all->group[column]) continue;
          if (line[column] > *best) push(best, ranks[0], line[column]);
          if (own && line[column] > *own) push(own, ranks[1], line[column]);
        }
      }
    }
    near[row - first] = *best, so[row - first] = *typed[0], os[row - first] = *typed[1];
  }
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
      const float *limits = all->limit + type_of(all, row, second + j) * all->n;
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

/* Add to sum, of a < n, the dot product of `width` columns of row and of partner a, in float32. */
INLINE void add_products(const float *row, const float *const partner[ABREAST], int64_t width, float *sum, int64_t n) {
  const int64_t whole = width - width % SINGLES;
  narrow sums[ABREAST] = {{0}};
  for (int64_t i = 0; i < whole; i += SINGLES) {
    narrow own, other;
    memcpy(&own, row + i, sizeof own);
    for (int a = 0; a < ABREAST; a++) memcpy(&other, partner[a] + i, sizeof other), sums[a] += own * other;
  }
  float total[ABREAST]; /* of all, even of those that are not asked for, so that `sums` stay in registers */
  for (int a = 0; a < ABREAST; a++) {
    eight low, high;
    memcpy(&low, &sums[a], sizeof low), memcpy(&high, (const char *)&sums[a] + sizeof low, sizeof high);
    low += high;
    total[a] = ((low[0] + low[4]) + (low[2] + low[6])) + ((low[1] + low[5]) + (low[3] + low[7]));
    for (int64_t i = whole; i < width; i++) total[a] += row[i] * partner[a][i];
  }
  for (int64_t a = 0; a < n; a++) sum[a] += total[a];
}

struct sift {
  const float *mine, *other; /* n x width and p x width: whole rows */
  int64_t width;
  const float *half;   /* of each row, half its squared length */
  int16_t *row, *column; /* room for the pairs of a tile of the block */
  float *sum;
};

/* As croma_gather, of a block that holds no less than the product: pairs that it lets through are multiplied out. */
FOR_EACH_CPU void croma_sift(const float *bound, int64_t stride, int64_t first, int64_t n, int64_t second, int64_t p,
                             const struct rows *all, const struct sift *with, struct pairs *own, struct pairs *theirs) {
  for (int64_t tile = 0; tile < p; tile += TILE) {
    const int64_t last = p - tile < TILE ? p : tile + TILE;
    int64_t count = 0;
    for (int64_t row = first; row < first + n; row++) {
      const float *line = bound + (row - first) * stride;
      for (int64_t j = tile, end; j < last; j = end) {
        end = all->cell_end[second + j] - second;
        if (end > last) end = last;
        const float *limits = all->limit + type_of(all, row, second + j) * all->n;
        for (; j < end; j += STRIP) {
          const int64_t width = end - j < STRIP ? end - j : STRIP;
          unsigned hits = reaching(line + j, limits + row, 0, width);
          if (theirs) hits |= reaching(line + j, limits + second + j, 1, width);
          for (; hits; hits &= hits - 1) {
            const int64_t column = j + __builtin_ctz(hits);
            if (all->group[row] == all->group[second + column]) continue;
            with->row[count] = (int16_t)(row - first), with->column[count] = (int16_t)column, with->sum[count++] = 0;
          }
        }
      }
    }
    for (int64_t from = 0; from < with->width; from += CHUNK) {
      const int64_t width = with->width - from < CHUNK ? with->width - from : CHUNK;
      for (int64_t c = 0, many; c < count; c += many) {
        const float *partner[ABREAST];
        for (many = 0; many < ABREAST && c + many < count && with->row[c + many] == with->row[c]; many++)
          partner[many] = with->other + with->column[c + many] * with->width + from;
        for (int64_t a = many; a < ABREAST; a++) partner[a] = partner[0];
        add_products(with->mine + with->row[c] * with->width + from, partner, width, with->sum + c, many);
      }
    }
    for (int64_t c = 0; c < count; c++) {
      const int64_t row = first + with->row[c], partner = second + with->column[c];
      const float closeness = with->sum[c] - with->half[row] - with->half[partner];
      const float *limits = all->limit + type_of(all, row, partner) * all->n;
      if (closeness >= limits[row]) add(own, row - first, partner, closeness);
      if (theirs && closeness >= limits[partner]) add(theirs, partner - second, row, closeness);
    }
  }
}

/* Sort n keys by their upper halves, stably; `other` is room for as many. Gives the one of the two that holds them. */
INLINE uint64_t *sorted(uint64_t *key, uint64_t *other, int64_t n) {
  int64_t count[DIGITS][256] = {{0}};
  for (int64_t i = 0; i < n; i++)
    for (int d = 0; d < DIGITS; d++) count[d][key[i] >> (32 + 8 * d) & 255]++;
  for (int d = 0; d < DIGITS && n; d++) {
    const int shift = 32 + 8 * d;
    if (count[d][key[0] >> shift & 255] == n) continue;
    for (int64_t v = 0, at = 0, many; v < 256; v++) many = count[d][v], count[d][v] = at, at += many;
    for (int64_t i = 0; i < n; i++) other[count[d][key[i] >> shift & 255]++] = key[i];
    uint64_t *was = key;
    key = other, other = was;
  }
  return key;
}

/* The order of pairs by row, then nearest first, those that are equal as they come. rows: how many there are; start:
 * rows + 1 numbers; key, room: as many as pairs. A distance below 0 counts as 0. */
FOR_EACH_CPU void croma_order(const struct pairs *pairs, int64_t rows, int64_t *start, uint64_t *key, uint64_t *room,
                              int64_t *order) {
  for (int64_t r = 0; r <= rows; r++) start[r] = 0;
  for (int64_t i = 0; i < pairs->count; i++) start[pairs->row[i] + 1]++;
  for (int64_t r = 0; r < rows; r++) start[r + 1] += start[r];
  for (int64_t i = 0; i < pairs->count; i++) {
    const float distance = pairs->closeness[i] < 0 ? -pairs->closeness[i] : 0.0f;
    uint32_t bits; /* non-negative float32 sort like their bits */
    memcpy(&bits, &distance, sizeof bits);
    key[start[pairs->row[i]]++] = (uint64_t)bits << 32 | (uint64_t)i;
  }
  for (int64_t r = 0, from = 0; r < rows; from = start[r++]) { /* by now start[r] is where row r ends */
    const uint64_t *mine = sorted(key + from, room + from, start[r] - from);
    for (int64_t i = from; i < start[r]; i++) order[i] = (int64_t)(uint32_t)mine[i - from];
  }
}
