# rlrun for CPUs, without extras.
#
#   docker build --tag rlrun .
#   docker run --rm --volume "$PWD:/work" rlrun train ppo/cartpole
#
# The runs are in runs/ of the directory that is mounted, which the user 1000 must be able to write.
# Where pip would take torch with CUDA, name PyTorch's index of CPU builds:
# --build-arg PIP_EXTRA_INDEX_URL=...; env runners want shared memory: docker run --shm-size 1g ...
FROM python:3.11-slim

ARG PIP_EXTRA_INDEX_URL=""

COPY pyproject.toml requirements.lock README.md LICENSE /src/
COPY configs /src/configs
COPY rlrun /src/rlrun

RUN pip install --no-cache-dir --constraint /src/requirements.lock /src \
    && useradd --create-home --uid 1000 rlrun \
    && install --directory --owner rlrun /work

USER 1000
WORKDIR /work
ENTRYPOINT ["rlrun"]
CMD ["--help"]
