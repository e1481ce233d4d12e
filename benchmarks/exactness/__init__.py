"""Does removal change what a network computes? Many networks with the same masks, beside Torch-Pruning as an oracle.

Measures every case in processes of its own, writes a row for each into a JSONL file, and the page from the rows:

    .venv/bin/pip install -c constraints.txt -e ".[oracle]"
    .venv/bin/python -m benchmarks.exactness                       # all cases; --only 'ResNet*' for some
    .venv/bin/python -m benchmarks.exactness --report              # docs/exactness.md from results/exactness.jsonl
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
