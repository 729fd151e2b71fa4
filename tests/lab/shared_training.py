"""Studies by processes that train together, launched as by torchrun: a whole command, and single runs that are resumed.

Single runs are trained by processes that each hold all weights, and by ones that each hold a part (FSDP). Each run is
stopped at its third step and gone on with. accelerate offers FSDP on a GPU only, while torch shards on a CPU as well, so
here accelerate is told that this is one.

torchrun starts a program for each process, and each takes seconds to load torch. Its launcher also forks a function.
"""

import sys
from pathlib import Path

import torch._dynamo  # noqa: F401, once for all: training imports it
from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from whence.cli import main
from whence.lab import run_execution, training
from whence.lab.study_files import load_study_file


class Stopped(Exception):
    pass


def sharding(budget):
    instance = Accelerator(cpu=True)
    instance.state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    instance.state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
    return instance


def stop(progress):
    if progress.step == 3:
        raise Stopped


def train_and_resume(path, out):
    (study,) = load_study_file(path)
    run, whole, training.SYNC_INTERVAL = study.runs()[0], training.train, 1
    for kind, accelerator_for in (("copied", training.build_accelerator), ("sharded", sharding)):
        training.build_accelerator = accelerator_for
        training.train = lambda *given, **named: whole(
            *given[:5], stop, save_every=0.0
        )  # in every process, not the first alone
        try:
            run_execution.execute_run(run, out / kind)
        except Stopped:
            training.train = whole
            run_execution.execute_run(run, out / kind)


def run_command(*arguments):
    sys.argv = ["whence", *map(str, arguments)]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise


def launch(processes, function, *arguments):
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=processes, run_id=function.__name__, rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", start_method="fork", max_restarts=0, monitor_interval=0.1,
    )  # fmt: skip
    elastic_launch(config, function)(*arguments)


if __name__ == "__main__":  # tests are also searched for examples, and that imports them
    base = Path(sys.argv[1])
    launch(2, run_command, "run", base / "decided.py", "--jobs", 1, "--out", base / "decided by 2")
    for count in (1, 2):
        launch(count, train_and_resume, base / "shared.py", base / f"resumed by {count}")
