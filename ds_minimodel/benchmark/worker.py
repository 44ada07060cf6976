"""A contestant's process: builds it, then obeys commands on standard input with JSON lines on standard output.

    python -m ds_minimodel.benchmark.worker '{"contestant": …, "recipe": …, …}'

Each contestant has a process of its own, so that environment, memory and what libraries change in torch are its own.
Commands: `step N` takes N optimizer steps and answers with seconds, losses and bytes on the wire a step; `memory`
answers with the peak; `peaks` measures the device; `kernels OP REPEATS COMPILED` times an operator at all its shapes.
The last two are for the contestants "peaks" and "kernels", which have no model.
"""

import json
import os
import resource
import sys
import time


def main(task):
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to standard error
    import torch

    from ds_minimodel.benchmark import kernels, peaks
    from ds_minimodel.benchmark.contestants import contestant
    from ds_minimodel.benchmark.traffic import Traffic
    from ds_minimodel.benchmark.workloads import workload
    from ds_minimodel.recipe.reading import load_recipe

    torch.set_num_threads(task["threads"])
    clock = time.process_time if task["clock"] == "cpu" else time.perf_counter
    traffic, number, step = Traffic(), 0, None
    if task["contestant"] not in ("peaks", "kernels"):
        engine = [f"engine.{key}={task[key]}" for key in ("zero_stage", "precision")]
        recipe = load_recipe(task["recipe"], [*task["overrides"], *engine, "engine.micro_batch_size=1000000"])
        work = workload(recipe, task["workload"], task["tokens"], task["seq_length"])
        step = contestant(task["contestant"], work, recipe)
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "step":
            sent, seconds, losses = traffic.bytes, [], []
            for _ in range(int(arguments[0])):
                peaks.synchronize()
                start = clock()
                loss = step(number)
                peaks.synchronize()
                seconds.append(clock() - start)
                losses.append(float(loss))
                number += 1
            answer = {"seconds": seconds, "losses": losses, "wire_bytes": (traffic.bytes - sent) / int(arguments[0])}
        elif command == "peaks":
            answer = {"matmul": peaks.matmul_peak(task["precision"], clock), "copy": peaks.copy_bandwidth(clock)}
        elif command == "kernels":
            op, repeats, compiled = arguments
            answer = list(kernels.measure(op, task["precision"], int(repeats), compiled == "True", clock))
        elif command == "memory":
            answer = {
                "memory": torch.cuda.max_memory_allocated()
                if torch.cuda.is_available()
                else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            }
        else:
            break
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
