"""Rows of a reproduction, as training writes them."""

import json

from bayesprune.experiments.published import published_rows

NETWORK, DATASET = "lenet-500-300", "mnist"
ROWS = f"{NETWORK}-{DATASET}.jsonl"


def row(method, tradeoff, seed, error, speedup=10.0, memory=5.0, kept=(100, 50, 30), network=NETWORK, **others):
    return {
        "network": network, "dataset": DATASET, "method": method, "tradeoff": tradeoff, "seed": seed, "status": "finished",
        "error": error, "memory": memory, "kept": list(kept), "speedup": speedup, "macs": 1, "parameters": 1,
        "epochs": 200, "seconds": 120.0, "side_by_side": 60, "recipe": "paper", "history": [],
        "hardware": "a machine", "device": "cuda", "torch": "2.9.0", "python": "3.11.7", "version": "0.1",
        **others,
    }  # fmt: skip


def diverged(method, tradeoff, seed, reason="the loss became NaN", **others):
    nothing = dict.fromkeys(("error", "memory", "kept", "speedup", "epochs", "seconds"))
    return row(method, tradeoff, seed, 0.0, **others) | nothing | {"status": "diverged", "reason": reason}


def as_printed(network=NETWORK, seeds=3, **others):
    """The paper's own figures as rows, those of its main table that the appendix does not have first."""
    gates = 3 if network == NETWORK else 4
    printed = [other for other in published_rows(network, DATASET, "main") if other.method == "dense"]
    printed += published_rows(network, DATASET, "appendix")
    return [
        row(other.method, other.tradeoff, seed, other.error, other.speedup, other.memory, [20] * gates, network, **others)
        for other in printed
        for seed in range(seeds)
    ]


def write_results(folder, rows, name=ROWS):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    return folder
