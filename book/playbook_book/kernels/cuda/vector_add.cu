// z = x + y, three ways to share n numbers among threads. Each moves 12 bytes a number.
#include <cuda_runtime.h>

// A number for each thread: neighbours ask for neighbours.
__global__ void add(const float *x, const float *y, float *z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = x[i] + y[i];
}

// A piece of its own for each thread, as one would share work among the cores of a CPU: neighbours are far apart.
__global__ void add_pieces(const float *x, const float *y, float *z, int n, int each) {
  int first = (blockIdx.x * blockDim.x + threadIdx.x) * each;
  for (int i = first; i < first + each && i < n; ++i) z[i] = x[i] + y[i];
}

// Four numbers for each thread, in one request of 16 bytes. Pointers must be multiples of 16, n a multiple of 4.
__global__ void add_vectors(const float4 *x, const float4 *y, float4 *z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (4 * i < n) {
    float4 a = x[i], b = y[i];
    z[i] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
  }
}

// The host's part, for x, y and z in the memory of the CPU.
// A launch returns at once; the last copy waits for the kernel.
extern "C" int add_from_host(const float *x, const float *y, float *z, int n) {
  size_t bytes = n * sizeof(float);
  float *dx, *dy, *dz;
  cudaMalloc(&dx, bytes);
  cudaMalloc(&dy, bytes);
  cudaMalloc(&dz, bytes);
  cudaMemcpy(dx, x, bytes, cudaMemcpyHostToDevice);
  cudaMemcpy(dy, y, bytes, cudaMemcpyHostToDevice);
  int blocks = (n + 255) / 256;
  add<<<blocks, 256>>>(dx, dy, dz, n);
  cudaMemcpy(z, dz, bytes, cudaMemcpyDeviceToHost);
  cudaFree(dx), cudaFree(dy), cudaFree(dz);
  return cudaGetLastError();
}

extern "C" int launch_add(const float *x, const float *y, float *z, int n, cudaStream_t stream) {
  add<<<(n + 255) / 256, 256, 0, stream>>>(x, y, z, n);
  return cudaGetLastError();
}

extern "C" int launch_add_pieces(const float *x, const float *y, float *z, int n, cudaStream_t stream) {
  const int each = 32;
  add_pieces<<<(n + 256 * each - 1) / (256 * each), 256, 0, stream>>>(x, y, z, n, each);
  return cudaGetLastError();
}

extern "C" int launch_add_vectors(const float *x, const float *y, float *z, int n, cudaStream_t stream) {
  if (n % 4) return cudaErrorInvalidValue;
  add_vectors<<<(n / 4 + 255) / 256, 256, 0, stream>>>((const float4 *)x, (const float4 *)y, (float4 *)z, n);
  return cudaGetLastError();
}
