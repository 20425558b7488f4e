#!/bin/sh
# An environment with the peers beside the project's own packages: install.sh FOLDER, then pass FOLDER/bin/python to --peers.
# All are Apache-2.0, and Inspect is MIT. All but Inspect are installed without their dependencies, which ask for GPUs, plus what their imports need here.
set -eu
folder=$1
here=$(cd "$(dirname "$0")/../.." && pwd)
python3 -m venv "$folder"
site=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$here/.venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/headrace.pth"
pip="$folder/bin/python -m pip install --quiet --disable-pip-version-check"
$pip --no-deps trl==1.16.0 openrlhf==0.11.2 skyrl==0.3.0 areal==1.0.4
$pip inspect-ai==0.3.285
$pip pandas aiohttp datasets accelerate pylatexenc httpx loguru jaxtyping aiofiles torchdata fastapi uvicorn uvloop \
    pybase64 colorlog orjson tenacity flask lark numba einops omegaconf hydra-core tensordict ray cachetools
