"""What was tried, as data."""

from dataclasses import replace

from benchmarks.recipe_search.candidates import Candidate, Program

BY_COST = (0.9, 1.35, 0.36)
"""FLOPs that a unit of each gate costs in a network of 190-105-50 units, over the mean that keeps the sum of divergences about the same."""
FEW_HIDDEN = (0.4, 1.8, 0.6)
"""DBB computes all units that BB keeps of a hidden layer, but only the pixels that an input needs: so many pixels cost little."""
FEW = Candidate("few hidden", consistency=0.5, gate_weights=FEW_HIDDEN)
LIGHT = replace(FEW, name="light", consistency=1.0, second_consistency=0.3, weight_decay=3e-5)
LIGHTER = Candidate("lighter, in proportion", weight_decay=1e-5, consistency=1.0, gate_weights=FEW_HIDDEN, in_proportion=True)


def less_in_dbb(weight: float) -> Candidate:
    """The lighter candidate with a factor below 1 on the divergences of the stage of DBB, which prunes little then."""
    return replace(LIGHTER, name="lighter, less in DBB", second_weights=(weight, weight, weight))


def moved(distance: float) -> Candidate:
    """The lighter candidate with the second showing of every image moved."""
    return replace(LIGHTER, name=f"lighter, moved {distance}", perturbation=distance)


FILTERS_DEAR = (20.0, 8.0, 0.25, 0.25)
"""The paper's weights on LeNet5's filters, whose FLOPs are those of a hundred units of the other layers, and less on those."""
LENET5_BY_COST = Candidate("filters dear", gate_weights=FILTERS_DEAR)
LENET5 = Program([], tradeoffs=(5.0,), seeds=(0,), epochs=(100, 60), gate_speed=2.0, network="lenet5-caffe")
MOVED_SHORT = Program([LIGHTER, moved(0.25), moved(0.5)], tradeoffs=(2.0, 6.0), seeds=(0,), epochs=(60, 60), gate_speed=5.0, twice=True)
PROGRAMS = {
    "regularisers": Program(
        [
            Candidate("paper"),
            Candidate("no decay", weight_decay=0.0),
            Candidate("decay 3e-4", weight_decay=3e-4),
            Candidate("decay 1e-3", weight_decay=1e-3),
            Candidate("smoothing 0.05", smoothing=0.05),
            Candidate("smoothing 0.15", smoothing=0.15),
            Candidate("confidence 0.1", confidence=0.1),
            Candidate("confidence 0.4", confidence=0.4),
            Candidate("by cost", gate_weights=BY_COST),
            Candidate("smoothing 0.1, decay 3e-5", smoothing=0.1, weight_decay=3e-5),
        ]
    ),
    "consistency": Program(
        [
            Candidate("twice"),
            Candidate("consistency 0.3", consistency=0.3),
            Candidate("consistency 1", consistency=1.0),
            Candidate("consistency 4", consistency=4.0),
        ],
        tradeoffs=(1.0, 2.0),
        twice=True,
    ),
    "combinations": Program(
        [
            Candidate("consistency 1", consistency=1.0),
            Candidate("consistency 1, no decay", consistency=1.0, weight_decay=0.0),
            Candidate("consistency 1, confidence 0.1", consistency=1.0, confidence=0.1),
            Candidate("consistency 1, few hidden", consistency=1.0, gate_weights=FEW_HIDDEN),
            Candidate("consistency 0.5, few hidden", consistency=0.5, gate_weights=FEW_HIDDEN),
            Candidate("twice, few hidden", gate_weights=FEW_HIDDEN),
        ],
        tradeoffs=(1.0, 3.0, 8.0),
        seeds=(0, 1),
        twice=True,
    ),
    "refinements": Program(
        [
            FEW,
            replace(FEW, name="few hidden, pixels dear in DBB", second_weights=(3.0, 1.0, 1.0)),
            replace(FEW, name="few hidden, all dear in DBB", second_weights=(3.0, 3.0, 3.0)),
            replace(FEW, name="few hidden, consistency 0.5 then 1", second_consistency=1.0),
            replace(FEW, name="few hidden, consistency 1 then 0.3", consistency=1.0, second_consistency=0.3),
            replace(FEW, name="few hidden, decay 3e-5", weight_decay=3e-5),
            replace(FEW, name="fewer hidden", gate_weights=(0.2, 2.2, 0.6)),
            replace(FEW, name="a little fewer hidden", gate_weights=(1.0, 1.5, 0.5)),
        ],
        tradeoffs=(1.0, 3.0, 5.0),
        seeds=(0, 1),
        twice=True,
    ),
    "combined refinements": Program(
        [
            LIGHT,
            replace(LIGHT, name="light, consistency 1 then 0.5", second_consistency=0.5),
            replace(LIGHT, name="light, consistency 0.5 then 0.3", consistency=0.5),
            replace(LIGHT, name="light, decay 1e-5", weight_decay=1e-5),
            replace(LIGHT, name="light, pixels dear in DBB", second_weights=(3.0, 1.0, 1.0)),
            replace(LIGHT, name="light, a little fewer hidden", gate_weights=(1.0, 1.5, 0.5)),
        ],
        tradeoffs=(1.0, 4.0, 6.0),
        epochs=(200, 200),
        twice=True,
    ),
    "longer": Program(
        [LIGHTER],
        tradeoffs=(0.5, 1.0, 3.5, 6.0),
        epochs=(300, 300),
        twice=True,
        more=[(less_in_dbb(0.4), (1.0,))],
    ),
    "gentler": Program(
        [],
        seeds=(0, 1, 2, 3, 4),
        epochs=(300, 300),
        twice=True,
        more=[(less_in_dbb(0.2), (0.5, 1.0)), (less_in_dbb(0.4), (0.5,))],
    ),
    "longer, less regular": Program(
        [
            Candidate("paper, longer"),
            replace(LIGHTER, name="lighter, no consistency", consistency=0.0),
            replace(LIGHTER, name="lighter, consistency 0.2", consistency=0.2),
            replace(LIGHTER, name="lighter, consistency 0.2, decay 1e-4", consistency=0.2, weight_decay=1e-4),
            replace(LIGHTER, name="lighter, consistency 1 then 0", second_consistency=0.0),
        ],
        tradeoffs=(2.0,),
        epochs=(300, 300),
        twice=True,
    ),
    "moved, short": MOVED_SHORT,
    "moved further, short": replace(MOVED_SHORT, candidates=[], more=[(moved(0.75), (6.0,)), (moved(0.5), (10.0,))]),
    "moved furthest, short": replace(MOVED_SHORT, candidates=[], more=[(moved(0.75), (10.0,)), (moved(1.0), (6.0,))]),
    "moved, heavy": replace(MOVED_SHORT, candidates=[moved(0.5)], tradeoffs=(9.0, 13.0), seeds=(0, 1)),
    "moved, heavy, longer": replace(
        MOVED_SHORT, candidates=[moved(0.5)], tradeoffs=(9.0, 13.0), seeds=(0, 1), epochs=(120, 100), gate_speed=2.5
    ),
    "moved": Program(
        [moved(0.35), moved(0.5), moved(0.75)],
        tradeoffs=(2.0, 8.0, 12.0),
        seeds=(0, 1),
        epochs=(200, 200),
        twice=True,
    ),
    "LeNet5, moved, short": Program(
        [
            replace(LIGHTER, name=name, perturbation=0.5, gate_weights=weights)
            for name, weights in (("filters dear", FILTERS_DEAR), ("the paper's weights", (20.0, 8.0, 1.0, 1.0)))
        ],
        tradeoffs=(8.0,),
        seeds=(0,),
        epochs=(40, 20),
        gate_speed=6.0,
        twice=True,
        network="lenet5-caffe",
    ),
    "LeNet5": replace(LENET5, candidates=[Candidate("the paper's weights", gate_weights=(20.0, 8.0, 1.0, 1.0)), LENET5_BY_COST]),
    "LeNet5, filters dear": replace(LENET5, candidates=[LENET5_BY_COST], seeds=(1, 2)),
    "LeNet5, consistent": replace(
        LENET5,
        candidates=[
            replace(LIGHTER, name="filters dear, consistent", gate_weights=FILTERS_DEAR),
            replace(LIGHTER, name="filters dear, a little consistent", gate_weights=FILTERS_DEAR, consistency=0.3),
        ],
        twice=True,
    ),
    "cosine": Program([LIGHTER], tradeoffs=(1.0, 2.0, 3.5, 5.0), schedule="cosine", twice=True),
    "warm-up": Program([LIGHTER], tradeoffs=(1.0, 2.0, 3.5, 5.0), warmup=0.1, twice=True),
}
