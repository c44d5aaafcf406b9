# SGLang's own image with the overlay in it. Built from a checkout (not from a .zip archive: it loses the symbolic links):
#
#   docker build -t sglang-sm120 .
#
# The tag follows SGLang's scheme v<release>; since 0.5.20 its images are CUDA 13 only, for amd64 and arm64 under one tag.
# Choose one of the releases in docs/COMPAT.md, and pin a digest (lmsysorg/sglang@sha256:...) for what you deploy.
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
RUN python3 -m pip install --no-cache-dir --no-deps /wheels/*.whl
# No GPU while building, so doctor finds nothing to do; a plugin that SGLang would not find fails the build.
RUN sglang-sm120 doctor
COPY scripts/serve_*.sh /opt/sglang-sm120/scripts/
WORKDIR /opt/sglang-sm120
EXPOSE 30000
CMD ["scripts/serve_target.sh", "--help"]
