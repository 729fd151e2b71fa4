"""Run by torchrun: the same study by processes that each hold all weights, and by ones that each hold a part (FSDP).

Each run is stopped at its third step and gone on with. accelerate offers FSDP on a GPU only, while torch shards on a CPU
as well, so here accelerate is told that this is one.
"""

import sys
from pathlib import Path

from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

from whence.lab import runner, training
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


def main():
    path, out = Path(sys.argv[1]), Path(sys.argv[2])
    (study,) = load_study_file(path)
    run, whole, training.SYNC_INTERVAL = study.runs()[0], training.train, 1
    for kind, accelerator_for in (("copied", training.build_accelerator), ("sharded", sharding)):
        training.build_accelerator = accelerator_for
        training.train = lambda *given, **named: whole(
            *given[:5], stop, save_every=0.0
        )  # in every process, not the first alone
        try:
            runner.execute_run(run, out / kind)
        except Stopped:
            training.train = whole
            runner.execute_run(run, out / kind)


if __name__ == "__main__":  # tests are also searched for examples, and that imports them
    main()
