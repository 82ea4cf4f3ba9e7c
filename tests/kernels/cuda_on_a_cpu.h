// What the kernels in book/playbook_book/kernels/cuda use of CUDA, for a C++20 compiler and a CPU: a thread for each thread of a
// block, one block after the other. A fragment of 16 x 16 is held by every thread of its warp, and not shared among them.
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

struct dim3 {
  int x, y, z;
  dim3(int x = 1, int y = 1, int z = 1) : x(x), y(y), z(z) {}
};
struct uint4 { unsigned x, y, z, w; };
struct float4 { float x, y, z, w; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
typedef _Float16 half;
typedef void *cudaStream_t;
enum { cudaSuccess, cudaErrorInvalidValue };
enum { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
inline int cudaGetLastError() { return cudaSuccess; }
inline void cudaMalloc(float **to, size_t bytes) { *to = (float *)std::malloc(bytes); }
inline void cudaMemcpy(void *to, const void *from, size_t bytes, int) { std::memcpy(to, from, bytes); }
inline void cudaFree(void *memory) { std::free(memory); }

static dim3 blockIdx, blockDim, gridDim;
static thread_local dim3 threadIdx;
static std::barrier<> *together;

#define __global__ static
#define __launch_bounds__(threads)
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __syncthreads() together->arrive_and_wait()

template <class Kernel>
void launch(dim3 grid, dim3 block, Kernel kernel) {
  gridDim = grid, blockDim = block;
  for (int y = 0; y < grid.y; ++y)
    for (int x = 0; x < grid.x; ++x) {
      blockIdx = dim3(x, y);
      std::barrier<> all(block.x * block.y);
      together = &all;
      std::vector<std::thread> threads;
      for (int j = 0; j < block.y; ++j)
        for (int i = 0; i < block.x; ++i)
          threads.emplace_back([=] {
            threadIdx = dim3(i, j);
            kernel();
            together->arrive_and_drop();
          });
      for (auto &thread : threads) thread.join();
    }
}

namespace nvcuda::wmma {
struct accumulator {};
struct matrix_a {};
struct matrix_b {};
struct row_major {};
enum { mem_row_major };
template <class Use, int, int, int, class T, class Layout = void>
struct fragment {
  T v[16][16];
};
template <class F>
void fill_fragment(F &f, float value) {
  for (auto &row : f.v) std::fill(row, row + 16, value);
}
template <class F, class T>
void load_matrix_sync(F &f, const T *from, int apart) {
  if ((size_t)from % 32 || apart * sizeof(T) % 16) throw "a fragment begins at a multiple of 32 bytes";
  for (int i = 0; i < 16; ++i) std::copy(from + i * apart, from + i * apart + 16, f.v[i]);
}
template <class D, class A, class B>
void mma_sync(D &d, const A &a, const B &b, const D &) {
  for (int i = 0; i < 16; ++i)
    for (int p = 0; p < 16; ++p)
      for (int j = 0; j < 16; ++j) d.v[i][j] += (float)a.v[i][p] * (float)b.v[p][j];
}
template <class F>
void store_matrix_sync(float *to, const F &f, int apart, int) {
  for (int i = 0; i < 16; ++i) std::copy(f.v[i], f.v[i] + 16, to + i * apart);
}
}  // namespace nvcuda::wmma
