// What Python calls: torch.utils.cpp_extension.load builds this file and elu.cu into one module.
#include <c10/cuda/CUDAStream.h>
#include <torch/extension.h>

extern "C" int launch_elu(const float *x, float *y, float alpha, int n, cudaStream_t stream);

torch::Tensor elu(torch::Tensor x, double alpha) {
  TORCH_CHECK(x.is_cuda() && x.is_contiguous() && x.scalar_type() == torch::kFloat, "x must be fp32, contiguous, on a GPU");
  auto y = torch::empty_like(x);
  int error = launch_elu(x.data_ptr<float>(), y.data_ptr<float>(), alpha, x.numel(), c10::cuda::getCurrentCUDAStream());
  TORCH_CHECK(!error, "elu failed with error ", error);
  return y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("elu", &elu); }
