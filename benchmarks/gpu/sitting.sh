#!/usr/bin/env bash
# One call on a bare machine with a GPU and torch, in the folder that `python -m benchmarks.gpu --pack` made:
#
#   bash sitting.sh first            what the machine is, a run, a recorded step, ddp over NCCL, the default
#                                    against the CPU, the tests that need a GPU, and as much as there is time
#                                    for of what reading the code left open (doubts, beside)
#   bash sitting.sh doubts study     these parts or checks, in MINUTES (8); with two GPUs or more smoke/several
#                                    smoke/failing_rank several first
#
# It leaves $OUT/log.txt and $OUT/found.tgz (OUT: ./found), for `python -m benchmarks.gpu --unpack`. What is
# done is not repeated while $WORK stays. Exit code 90: the packages cannot be unpacked, 91: one is missing or
# torch finds no GPU, 92: the first run fails; each in the first minute.
set -o pipefail
cd "$(dirname "$0")" || exit 89
: "${OUT:=found}" "${WORK:=/tmp/ninefold-gpu}" "${MINUTES:=8}"
mkdir -p "$OUT" "$WORK/runs"
export PYTHONUNBUFFERED=1 PYTHONPATH="$WORK/packages${PYTHONPATH:+:$PYTHONPATH}"

train() {  # NAME SECONDS OVERRIDES...
  local name=$1 seconds=$2
  shift 2
  timeout "$seconds" python3 train.py "$@" epochs=2 logger=quiet "hydra.run.dir=$WORK/runs/$name" \
    || { tail -n 60 "$WORK/runs/$name/run.log"; return 1; }
}

sitting() {
  date
  echo "commit $(cat COMMIT)"
  nvidia-smi
  nproc
  free -g
  df -h "$WORK" /dev/shm
  python3 -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade \
    --target "$WORK/packages" --find-links wheels \
    hydra-core omegaconf antlr4-python3-runtime msgspec || return 90
  python3 - <<'PYTHON' || return 91
import shutil, sys
from importlib.util import find_spec
from pathlib import Path
from sysconfig import get_path
from benchmarks.gpu.command import NEEDED
missing = [name for name in NEEDED if find_spec(name) is None]
print(f"Python {sys.version}; missing packages: {', '.join(missing) or 'none'}")
print(f"pytest {bool(find_spec('pytest'))}, compiler {shutil.which('cc')}, "
      f"Python.h {Path(get_path('include'), 'Python.h').exists()}")
if missing:
    sys.exit(1)
import torch
print(f"torch {torch.__version__}, GPUs {torch.cuda.device_count()}")
sys.exit(not torch.cuda.is_available())
PYTHON
  if [ "$1" = first ]; then
    MINUTES=6
    train plain 120 || return 92
    train ddp 90 parallel=ddp amp=autocast
    set -- smoke/machine smoke/default smoke/tests doubts beside
  fi
  timeout $((60 * MINUTES + 40)) python3 -m benchmarks.gpu "$@" --minutes "$MINUTES" --output "$WORK/gpu"
}

sitting "$@" 2>&1 | tee "$OUT/log.txt"
code=${PIPESTATUS[0]}
echo "exit code $code" | tee -a "$OUT/log.txt"
tar czf "$OUT/found.tgz" --exclude='*.pt' -C "$WORK" gpu runs 2>/dev/null || tar czf "$OUT/found.tgz" -C "$WORK" runs
exit "$code"
