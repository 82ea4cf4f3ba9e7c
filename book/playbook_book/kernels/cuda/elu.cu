// ELU: y = x where x > 0, else alpha * (exp(x) - 1) (Clevert et al. 2015, arXiv 1511.07289).
// The 32 threads of a warp execute together. Where they disagree, the warp goes through both branches, one after the other.
#include <cuda_runtime.h>

__global__ void elu(const float *x, float *y, float alpha, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float value = x[i];
  if (value > 0.0f) {
    y[i] = value;
  } else {
    y[i] = alpha * (expf(value) - 1.0f);
  }
}

// Both are computed and one is chosen: no branch, so nothing diverges.
__global__ void elu_select(const float *x, float *y, float alpha, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float value = x[i];
  float below = alpha * (expf(fminf(value, 0.0f)) - 1.0f);
  y[i] = value > 0.0f ? value : below;
}

extern "C" int launch_elu(const float *x, float *y, float alpha, int n, cudaStream_t stream) {
  elu<<<(n + 255) / 256, 256, 0, stream>>>(x, y, alpha, n);
  return cudaGetLastError();
}

extern "C" int launch_elu_select(const float *x, float *y, float alpha, int n, cudaStream_t stream) {
  elu_select<<<(n + 255) / 256, 256, 0, stream>>>(x, y, alpha, n);
  return cudaGetLastError();
}
