# SGLang's own image with the overlay in it. Build it from a checkout; a .zip archive loses the symbolic links.
#
#   docker build -t sglang-sm120 .
#
# SGLang's documents say: tags are v<release>, and images after 0.5.19 have CUDA 13 (so the driver must, too). That this
# very tag exists, and that it serves arm64 (DGX Spark) as well, was not checked here. `--build-arg SGLANG_IMAGE=...`
# takes another one; take a release that docs/COMPAT.md lists, and a digest (lmsysorg/sglang@sha256:...) to deploy.
ARG SGLANG_IMAGE=lmsysorg/sglang:v0.5.23

FROM ${SGLANG_IMAGE} AS build
WORKDIR /src
COPY . .
# The image's Python may be marked as managed by its distribution.
ENV PIP_BREAK_SYSTEM_PACKAGES=1
RUN python3 -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${SGLANG_IMAGE}
ENV PIP_BREAK_SYSTEM_PACKAGES=1
COPY --from=build /wheels /wheels
# --no-deps: SGLang and its stack stay as the image has them.
# doctor has no GPU to look at here; a plugin that SGLang would not find fails the build.
RUN python3 -m pip install --no-cache-dir --no-deps /wheels/*.whl \
    && sglang-sm120 doctor
COPY scripts/recipes/*.sh /opt/sglang-sm120/scripts/recipes/
WORKDIR /opt/sglang-sm120
EXPOSE 30000
CMD ["scripts/recipes/target.sh", "--help"]
