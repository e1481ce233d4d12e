"""How far predictions can be believed: dense networks, pruned ones, and draws of their masks, on upright and on rotated digits.

python -m benchmarks.uncertainty --rows results/uncertainty.jsonl      # train and measure what is missing
python -m benchmarks.uncertainty --report                              # docs/uncertainty.md and its figure, from the rows
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
