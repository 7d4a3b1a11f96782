#!/usr/bin/env bash
# make gpu-kit: the wheels that a GPU machine without a network lacks, into .gpu/, which git ignores and which must travel
# with the checkout. That machine has torch, numpy, pyarrow, pandas, safetensors, xxhash, pytest, xdist, hypothesis and
# psutil. PYTHON_VERSION: of its Python; default 3.12.
set -euo pipefail
mkdir -p .gpu/whl
names='^(pydantic|pydantic.core|annotated.types|annotated.doc|typing.inspection|crc32c|typing.extensions|typer|rich|shellingham)=='
platforms=()
for name in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014 manylinux1; do
    platforms+=(--platform "${name}_x86_64")
done
rm -f .gpu/whl/*.whl
# shellcheck disable=SC2046 # each pin is an argument
python3 -m pip download --quiet --no-deps --only-binary=:all: --implementation cp \
    --python-version "${PYTHON_VERSION:-3.12}" "${platforms[@]}" -d .gpu/whl $(grep -iE "$names" constraints.txt)
du -sh .gpu
