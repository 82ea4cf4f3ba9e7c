# The book and its library in a container; .devcontainer/ uses its first part, for editors. book/run-it.md says more.
#   docker build -t playbook .                                        for CPUs
#   docker build --build-arg DEVICE=cuda -t playbook .                for NVIDIA's GPUs
#   docker run --rm -p 8000:8000 --shm-size 4g [--gpus all] playbook  serves the book on port 8000
ARG DEVICE=cpu

FROM debian:bookworm-slim AS cpu
# PyPI's torch for Linux brings gigabytes of CUDA's libraries; this index has one that satisfies the same pin.
ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu

# With nvcc, for the kernels in CUDA C++. torch brings CUDA's other libraries itself, of this version.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04 AS cuda

FROM ${DEVICE} AS system
# Triton compiles with a C compiler and Python's headers.
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        ca-certificates g++ git make python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

FROM system
WORKDIR /playbook
COPY . .
# Caches would be as large again.
ARG UV_NO_CACHE=1 PIP_NO_CACHE_DIR=1 npm_config_cache=/tmp/npm
RUN python3 tools/bootstrap.py lab && rm -rf /tmp/npm
ENV PATH=/playbook/.venv/bin:$PATH OMP_WAIT_POLICY=PASSIVE
EXPOSE 8000 8888
# What `make serve` calls: make would keep Ctrl-C to itself.
CMD ["python", "tools/build_book.py", "--serve", "--host", "0.0.0.0", "--port", "8000"]
