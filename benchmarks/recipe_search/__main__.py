"""The search for a better recipe, on the last 10,000 training images of MNIST; the test images are never looked at.

A candidate is a set of settings that differ from the paper's; each is trained with BB and then DBB at some trade-offs and seeds, on a GPU
many candidates side by side. What differs between models of one program enters as tensors. Appends a row for each model and stage, with
the validation error of the last weights and of their average over the second half of the stage. On a processor only the seeds of a
candidate at a trade-off are trained side by side; they shrink meanwhile, and nothing is averaged.

    python -m benchmarks.recipe_search --programs regularisers consistency --rows results/recipe-search.jsonl
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from bayesprune.cli import as_command
from bayesprune.data import load_dataset
from bayesprune.storage import append_row, make_folder
from benchmarks.recipe_search.programs import PROGRAMS
from benchmarks.recipe_search.searching import pretrain, search

VALIDATION = 10_000


def main() -> None:
    """Train the programs that are asked for, and append the rows."""
    parser = argparse.ArgumentParser(description="Candidates for a recipe, on validation images.")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=Path, required=True, help="append raw numbers to this JSONL file")
    parser.add_argument("--pretraining", type=int, default=100, help="epochs of the networks that all start from")
    parser.add_argument("--seeds", nargs="+", type=int, help="instead of the programs' own")
    parser.add_argument("--first", type=int, default=0, help="on a processor: begin with this candidate and trade-off")
    parser.add_argument("--of", type=int, default=1, help="on a processor: take one of so many, for several processes")
    arguments = parser.parse_args()
    make_folder(arguments.rows.parent)
    device, data = torch.device(arguments.device), load_dataset("mnist", None).for_tuning(VALIDATION)
    programs = [PROGRAMS[name] for name in arguments.programs]
    if arguments.seeds is not None:
        programs = [replace(program, seeds=arguments.seeds) for program in programs]
    pretrained = {}
    for network in dict.fromkeys(program.network for program in programs):
        seeds = sorted({seed for program in programs if program.network == network for seed in program.seeds})
        pretrained[network] = pretrain(network, data, seeds, arguments.pretraining, device)
    for name, program in zip(arguments.programs, programs, strict=True):
        # Side by side no model shrinks below the widest, so on a processor only those of about the same size are.
        fleets = program.alike()[arguments.first :: arguments.of] if device.type == "cpu" else [program.tried()]
        for fleet in fleets:
            for row in search(name, program, fleet, data, pretrained[program.network], device):
                append_row(arguments.rows, {**row, "pretraining": arguments.pretraining})


if __name__ == "__main__":
    as_command(main)
