# On CPU:  docker build --tag embedkit .
# On CUDA: docker build --tag embedkit --build-arg TORCH=https://download.pytorch.org/whl/cu130 .
#
#     docker run --user "$(id -u):$(id -g)" --volume "$PWD:/work" embedkit extract corpus.tsv --out vectors
#
# --user: what is written belongs to you, and not to the user 1000 of the image, who may not write
# to your folder.

FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY embedkit embedkit
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist .

FROM python:3.12-slim
# the OpenMP of LightGBM, which its wheel does not carry
RUN apt-get update && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*
# torch 2.13.0+cpu comes before the 2.13.0 of PyPI, which brings gigabytes of CUDA packages
ARG TORCH=https://download.pytorch.org/whl/cpu
COPY constraints.txt /dist/
COPY --from=build /dist /dist
RUN pip install --no-cache-dir --extra-index-url "$TORCH" -c /dist/constraints.txt \
    "$(echo /dist/*.whl)[multilingual,remote,sheets]"
# models are kept in the home folder, which a --user that the image does not know has to write to
RUN useradd --create-home user && chmod 1777 /home/user
ENV HOME=/home/user
USER user
WORKDIR /work
ENTRYPOINT ["embedkit"]
