// C = A * B five times, each kernel asking less of memory than the one before. A (m, k), B (k, n), C (m, n), row by row.
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <mma.h>

// 1. Naive: a thread for each number of C, and threadIdx.x, in which the threads of a warp are neighbours, is its row.
__global__ void naive(const float *A, const float *B, float *C, int m, int n, int k) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  int column = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= m || column >= n) return;
  float sum = 0.0f;
  for (int p = 0; p < k; ++p) sum += A[row * k + p] * B[p * n + column];
  C[row * n + column] = sum;
}

// 2. Coalesced: x and y change places. A warp reads numbers of B that lie side by side, and one number of A.
__global__ void coalesced(const float *A, const float *B, float *C, int m, int n, int k) {
  int row = blockIdx.y * blockDim.y + threadIdx.y;
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= m || column >= n) return;
  float sum = 0.0f;
  for (int p = 0; p < k; ++p) sum += A[row * k + p] * B[p * n + column];
  C[row * n + column] = sum;
}

// 3. Tiled: a block copies 32 x 32 numbers of A and of B to shared memory, where 32 of its threads read each of them.
#define TILE 32
__global__ void __launch_bounds__(TILE *TILE)
tiled(const float *A, const float *B, float *C, int m, int n, int k) {
  __shared__ float As[TILE][TILE];
  __shared__ float Bs[TILE][TILE];
  int x = threadIdx.x, y = threadIdx.y;
  int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
  float sum = 0.0f;
  for (int start = 0; start < k; start += TILE) {
    As[y][x] = row < m && start + x < k ? A[row * k + start + x] : 0.0f;
    Bs[y][x] = start + y < k && column < n ? B[(start + y) * n + column] : 0.0f;
    __syncthreads();  // nobody reads before all have written
    for (int p = 0; p < TILE; ++p) sum += As[y][p] * Bs[p][x];
    __syncthreads();  // nobody overwrites before all have read
  }
  if (row < m && column < n) C[row * n + column] = sum;
}

// 4. Coarsened: 256 threads compute 128 x 128 numbers, 8 x 8 each, which stay in registers with what they are made of:
// 16 reads of shared memory for 64 multiplications, where the tiled kernel has 2 for each. A thread's numbers are 16 apart,
// so that neighbouring threads read neighbouring banks.
#define SIDE 128
#define DEPTH 8
#define EACH 8
#define APART (SIDE / EACH)
__global__ void __launch_bounds__(APART *APART)
coarsened(const float *A, const float *B, float *C, int m, int n, int k) {
  __shared__ float As[SIDE][DEPTH];
  __shared__ float Bs[DEPTH][SIDE];
  int thread = threadIdx.x, x = thread % APART, y = thread / APART;
  int row = blockIdx.y * SIDE, column = blockIdx.x * SIDE;
  float sum[EACH][EACH] = {};
  for (int start = 0; start < k; start += DEPTH) {
    for (int at = thread; at < SIDE * DEPTH; at += APART * APART) {
      int i = at / DEPTH, p = at % DEPTH;
      As[i][p] = row + i < m && start + p < k ? A[(row + i) * k + start + p] : 0.0f;
    }
    for (int at = thread; at < DEPTH * SIDE; at += APART * APART) {
      int p = at / SIDE, j = at % SIDE;
      Bs[p][j] = start + p < k && column + j < n ? B[(start + p) * n + column + j] : 0.0f;
    }
    __syncthreads();
    for (int p = 0; p < DEPTH; ++p) {
      float a[EACH], b[EACH];
      for (int i = 0; i < EACH; ++i) a[i] = As[y + APART * i][p];
      for (int j = 0; j < EACH; ++j) b[j] = Bs[p][x + APART * j];
      for (int i = 0; i < EACH; ++i)
        for (int j = 0; j < EACH; ++j) sum[i][j] += a[i] * b[j];
    }
    __syncthreads();
  }
  for (int i = 0; i < EACH; ++i)
    for (int j = 0; j < EACH; ++j) {
      int r = row + y + APART * i, c = column + x + APART * j;
      if (r < m && c < n) C[r * n + c] = sum[i][j];
    }
}

// 5. Tensor cores: a warp multiplies 16 x 16 halves by 16 x 16 with one instruction of C++ and adds up in fp32. 8 warps
// compute 128 x 128, each 32 x 64. A thread copies 16 bytes at a time. Rows in shared memory are 8 halves longer than they
// need be: rows of 32 or 128 halves would begin in the same banks, and fragments take 8 rows at once. (The copies of A,
// two rows by 8 threads, still meet in 4 banks.)
// m and n must be multiples of 128, k of 32.
#define STEP 32
#define PAD 8
__global__ void __launch_bounds__(256)
tensor_cores(const half *A, const half *B, float *C, int m, int n, int k) {
  using namespace nvcuda;
  __shared__ __align__(32) half As[SIDE][STEP + PAD];
  __shared__ __align__(32) half Bs[STEP][SIDE + PAD];
  int thread = threadIdx.x, warp = thread / 32, y = warp / 2 * 32, x = warp % 2 * 64;
  int row = blockIdx.y * SIDE, column = blockIdx.x * SIDE;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[2][4];
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 4; ++j) wmma::fill_fragment(sum[i][j], 0.0f);
  for (int start = 0; start < k; start += STEP) {
    for (int at = 8 * thread; at < SIDE * STEP; at += 8 * 256) {
      int i = at / STEP, p = at % STEP;
      *(uint4 *)&As[i][p] = *(const uint4 *)&A[(row + i) * k + start + p];
    }
    for (int at = 8 * thread; at < STEP * SIDE; at += 8 * 256) {
      int p = at / SIDE, j = at % SIDE;
      *(uint4 *)&Bs[p][j] = *(const uint4 *)&B[(start + p) * n + column + j];
    }
    __syncthreads();
    for (int p = 0; p < STEP; p += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a[2];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> b[4];
      for (int i = 0; i < 2; ++i) wmma::load_matrix_sync(a[i], &As[y + 16 * i][p], STEP + PAD);
      for (int j = 0; j < 4; ++j) wmma::load_matrix_sync(b[j], &Bs[p][x + 16 * j], SIDE + PAD);
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 4; ++j) wmma::mma_sync(sum[i][j], a[i], b[j], sum[i][j]);
    }
    __syncthreads();
  }
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 4; ++j)
      wmma::store_matrix_sync(&C[(row + y + 16 * i) * n + column + x + 16 * j], sum[i][j], n, wmma::mem_row_major);
}

static unsigned pieces(int n, int size) { return (n + size - 1) / size; }

extern "C" int launch_naive(const float *A, const float *B, float *C, int m, int n, int k, cudaStream_t stream) {
  naive<<<dim3(pieces(m, 32), pieces(n, 8)), dim3(32, 8), 0, stream>>>(A, B, C, m, n, k);
  return cudaGetLastError();
}

extern "C" int launch_coalesced(const float *A, const float *B, float *C, int m, int n, int k, cudaStream_t stream) {
  coalesced<<<dim3(pieces(n, 32), pieces(m, 8)), dim3(32, 8), 0, stream>>>(A, B, C, m, n, k);
  return cudaGetLastError();
}

extern "C" int launch_tiled(const float *A, const float *B, float *C, int m, int n, int k, cudaStream_t stream) {
  tiled<<<dim3(pieces(n, TILE), pieces(m, TILE)), dim3(TILE, TILE), 0, stream>>>(A, B, C, m, n, k);
  return cudaGetLastError();
}

extern "C" int launch_coarsened(const float *A, const float *B, float *C, int m, int n, int k, cudaStream_t stream) {
  coarsened<<<dim3(pieces(n, SIDE), pieces(m, SIDE)), APART * APART, 0, stream>>>(A, B, C, m, n, k);
  return cudaGetLastError();
}

extern "C" int launch_tensor_cores(const half *A, const half *B, float *C, int m, int n, int k, cudaStream_t stream) {
  if (m % SIDE || n % SIDE || k % STEP) return cudaErrorInvalidValue;
  tensor_cores<<<dim3(n / SIDE, m / SIDE), 256, 0, stream>>>(A, B, C, m, n, k);
  return cudaGetLastError();
}
