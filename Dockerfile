# Builds two images: `server`, the default target, serves bundles and has no torch; `export` makes bundles with torch, and serves on CPUs what it made with `headwaiter serve`.
#
#   docker build --tag headwaiter-server .
#   docker build --tag headwaiter-server-cpu --build-arg PROVIDER=cpu .
#   docker build --tag headwaiter-export --target export .
#
# docs/how-to/upgrade.md explains tags by version and commit: `export $(deploy/tag.sh)`, then `docker compose build`.

# Any image works that has Python 3.11 or newer, venv, and glibc 2.28 or newer. For security fixes of the base, replace
# the digest by the one that `docker buildx imagetools inspect python:3.12-slim-bookworm` prints.
ARG PYTHON_IMAGE=python:3.12-slim-bookworm@sha256:54c85f3c47607a77f32adec749d3c81d1348bf25833671f512b26a9b6d778cb3

FROM ${PYTHON_IMAGE} AS base
# ONNX Runtime sends telemetry unless this variable disables it.
ENV PATH=/opt/headwaiter/bin:$PATH PYTHONUNBUFFERED=1 ORT_DISABLE_TELEMETRY=1
# A new named volume takes its owner from the folder on which it is first mounted. The folder has the same owner in both
# images, so either image may mount the volume first.
RUN python3 -m venv /opt/headwaiter \
    && useradd --uid 10001 --user-group --no-create-home headwaiter \
    && install --directory --owner headwaiter --group headwaiter /bundles /cache

FROM base AS code
WORKDIR /source
COPY requirements/build.txt /requirements.txt
RUN pip install --no-cache-dir --require-hashes -r /requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY proto proto
COPY playground playground
COPY server server
COPY export export
COPY serve serve
COPY client client
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM base AS export
ARG TORCH=torch==2.13.0
# Package index for torch. An export needs only a CPU build of torch.
ARG TORCH_INDEX_URL=
RUN pip install --no-cache-dir ${TORCH_INDEX_URL:+--index-url "${TORCH_INDEX_URL}"} "${TORCH}"
# `make lock` writes the versions and hashes. A change of the code does not rebuild this layer.
COPY requirements/export.txt /requirements.txt
RUN pip install --no-cache-dir --require-hashes -r /requirements.txt
COPY --from=code /wheels /wheels
RUN pip install --no-cache-dir --no-deps --no-index /wheels/*.whl && pip check
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title=headwaiter-export org.opencontainers.image.licenses=Apache-2.0 \
    org.opencontainers.image.version=$VERSION org.opencontainers.image.revision=$REVISION
# The log of `headwaiter serve` names the commit. The files of hubs, and its bundles, are in /cache.
ENV HEADWAITER_REVISION=$REVISION XDG_CACHE_HOME=/cache
USER 10001:10001
ENTRYPOINT ["headwaiter-export"]

FROM base AS server
# `cpu` is for hosts without a GPU: it omits NVIDIA's libraries, a layer of gigabytes.
ARG PROVIDER=cuda
COPY requirements/server-${PROVIDER}.txt /requirements.txt
RUN pip install --no-cache-dir --require-hashes -r /requirements.txt
COPY --from=code /wheels /wheels
RUN pip install --no-cache-dir --no-deps --no-index /wheels/*.whl && pip check
# With the capability `compute`, the container runtime mounts the driver's libcuda.
ENV HEADWAITER_BUNDLE=/bundles/default NVIDIA_DRIVER_CAPABILITIES=compute,utility
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title=headwaiter-server org.opencontainers.image.licenses=Apache-2.0 \
    org.opencontainers.image.version=$VERSION org.opencontainers.image.revision=$REVISION
# The server's log and metrics name the commit.
ENV HEADWAITER_REVISION=$REVISION
USER 10001:10001
EXPOSE 50051 9464
STOPSIGNAL SIGTERM
# The server loads, warms up and checks the model before it reports SERVING, which takes minutes for a large model.
HEALTHCHECK --start-period=180s --interval=15s --timeout=5s --retries=3 \
    CMD ["headwaiter-client", "probe", "--address", "localhost:50051"]
ENTRYPOINT ["headwaiter-server"]
