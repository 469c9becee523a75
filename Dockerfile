# Two images: `server`, the default, has no torch; `export`, which makes bundles, has it.
#
#   docker build --tag headwaiter-server .
#   docker build --tag headwaiter-server-cpu --build-arg EXTRAS=server,cli .
#   docker build --tag headwaiter-export --target export .

# Any image with Python 3.11 or newer, venv and glibc 2.28 or newer.
ARG PYTHON_IMAGE=python:3.12-slim-bookworm

FROM ${PYTHON_IMAGE} AS base
# ONNX Runtime reports home unless told not to.
ENV PATH=/opt/headwaiter/bin:$PATH PYTHONUNBUFFERED=1 ORT_DISABLE_TELEMETRY=1
# A named volume takes the owner of the folder it is first mounted on, so both images must agree on it.
RUN python3 -m venv /opt/headwaiter \
    && useradd --uid 10001 --user-group --no-create-home headwaiter \
    && install --directory --owner headwaiter --group headwaiter /bundles

# The requirements without the code: they get a layer of gigabytes that a change of code does not touch.
FROM base AS requirements
WORKDIR /source
COPY pyproject.toml ./
RUN touch README.md && pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM base AS code
WORKDIR /source
COPY pyproject.toml README.md ./
COPY proto proto
COPY server server
COPY export export
COPY client client
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM base AS export
ARG TORCH=torch==2.13.0
# The index torch comes from; a CPU build is all an export needs.
ARG TORCH_INDEX_URL=
RUN pip install --no-cache-dir ${TORCH_INDEX_URL:+--index-url "${TORCH_INDEX_URL}"} "${TORCH}"
COPY --from=requirements /wheels /wheels/requirements
RUN pip install --no-cache-dir "$(ls /wheels/requirements/*.whl)[export,cli]"
COPY --from=code /wheels /wheels/code
RUN pip install --no-cache-dir --no-deps --no-index --force-reinstall /wheels/code/*.whl
USER 10001:10001
ENTRYPOINT ["headwaiter-export"]

FROM base AS server
# `server,cli` leaves out NVIDIA's libraries, for hosts without a GPU.
ARG EXTRAS=server,cuda,cli
COPY --from=requirements /wheels /wheels/requirements
RUN pip install --no-cache-dir "$(ls /wheels/requirements/*.whl)[${EXTRAS}]"
COPY --from=code /wheels /wheels/code
RUN pip install --no-cache-dir --no-deps --no-index --force-reinstall /wheels/code/*.whl
# What batches cost is measured once a machine, where a volume is mounted here.
RUN install --directory --owner headwaiter --group headwaiter /cache
# `compute` is what makes the container runtime mount the driver's libcuda.
ENV HEADWAITER_BUNDLE=/bundles/default HEADWAITER_CACHE_DIR=/cache NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
EXPOSE 50051 9464
STOPSIGNAL SIGTERM
# Loading, warm-up and the golden self-check come before SERVING; a large model takes its time over them.
HEALTHCHECK --start-period=180s --interval=15s --timeout=5s --retries=3 \
    CMD ["headwaiter-client", "probe", "--address", "localhost:50051"]
ENTRYPOINT ["headwaiter-server"]
