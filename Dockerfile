# powerphase on CPUs. By default the container runs the quickstart, which needs no network:
#
#     docker build --tag powerphase .
#     docker run --name quickstart powerphase
#     docker cp quickstart:/home/powerphase/data/quickstart/site .
#
# Any other command of powerphase can be given instead, such as `docker run powerphase grids`.
FROM python:3.11-slim

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /src
COPY constraints.txt ./
# The build of torch for CPUs is much smaller than the one on the Python Package Index. Its version
# ends with +cpu, which pip prefers to the same version without a suffix.
RUN pip install --constraint constraints.txt \
    --extra-index-url https://download.pytorch.org/whl/cpu torch
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN pip install --constraint constraints.txt .

# Compiled kernels and data sets are written below the user's home.
RUN useradd --create-home powerphase
USER powerphase
WORKDIR /home/powerphase

ENTRYPOINT ["powerphase"]
CMD ["quickstart"]
