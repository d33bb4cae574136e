"""Run the packaged example on one CUDA device, trainer and both replicas together; or say why not.

Usage: python docs/examples/one_gpu.py [key=value ...]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

ON_ONE_GPU = (
    "executor.device=cuda",
    # trainer device and rollout device are the same GPU, and take turns as they like
    "executor.share_devices=true",
)


def main() -> int:
    """Return the exit status of the run, or 0 where there is nothing to run on."""
    if not torch.cuda.is_available():
        sys.stdout.write("no CUDA device here: nothing was run\n")
        return 0
    sys.stdout.write(f"running on {torch.cuda.get_device_name()}\n")
    command = [str(Path(sys.executable).with_name("swingshift")), "train", "copy", "--plain"]
    return subprocess.run([*command, *ON_ONE_GPU, *sys.argv[1:]], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
