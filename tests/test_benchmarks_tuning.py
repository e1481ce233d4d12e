"""Searches for settings, in a small form: they see training and validation images, and nothing else."""

from dataclasses import replace

import pytest
import torch

from bayesprune.data import Split, load_dataset
from bayesprune.experiments.published import published_rows
from bayesprune.experiments.settings import LAYER_PRICES, Price
from bayesprune.storage import read_rows
from bayesprune.training.recipes import PAPER
from benchmarks import tune_baselines
from benchmarks.recipe_search import __main__ as recipe_search
from benchmarks.recipe_search import searching
from benchmarks.recipe_search.candidates import Candidate, Program
from benchmarks.recipe_search.tried_network import candidate_loss

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def whole(digits_folder):
    return load_dataset("mnist", digits_folder)


@pytest.fixture
def untouchable(whole, monkeypatch):
    """The data set as the searches load it, without test images to look at."""

    class Untouchable:
        def __getattr__(self, name):
            raise AssertionError("the test images were looked at")

    data = replace(whole)
    object.__setattr__(data, "test", Untouchable())
    for search in (tune_baselines, recipe_search):
        monkeypatch.setattr(search, "load_dataset", lambda name, folder: data)
        monkeypatch.setattr(search, "VALIDATION", 100)


def mislabelled(whole):
    """The last 100 training images have labels that nobody can guess."""
    labels = whole.train.labels.clone()
    labels[-100:] = (labels[-100:] + 1) % 10
    return replace(whole, train=Split(whole.train.images, labels))


def timeless(rows):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def tuned(data, network="lenet-500-300", methods=("cd",)):
    recipe = PAPER.with_epochs(1)
    return timeless(tune_baselines.tune(network, list(methods), recipe, data.for_tuning(100), CPU, [0]))


def test_baselines_are_tuned_on_validation_images(whole, monkeypatch):
    monkeypatch.setattr(tune_baselines, "LENGTH_SCALES", (1e-2, 1.0))
    rows = tuned(whole)
    assert len(rows) == 2 * len(tune_baselines.ENTROPY_WEIGHTS)
    assert {(row["length_scale"], row["entropy_weight"]) for row in rows} == {(s, w) for s in (1e-2, 1.0) for w in (0.1, 1.0)}
    for row in rows:
        assert (row["benchmark"], row["network"], row["method"], row["tradeoff"]) == ("tune_baselines", "lenet-500-300", "cd", None)
        assert row["validation_error"] < 20
        assert "error" not in row
    assert all(row["validation_error"] > 80 for row in tuned(mislabelled(whole)))


def test_tuning_never_looks_at_the_test_images(untouchable, monkeypatch, tmp_path):
    monkeypatch.setattr(tune_baselines, "LENGTH_SCALES", (1.0,))
    rows = tmp_path / "new" / "rows.jsonl"
    monkeypatch.setattr("sys.argv", ["tune", "--networks", "lenet-500-300", "--epochs", "1", "--device", "cpu", "--rows", str(rows)])
    tune_baselines.main()
    assert [row["method"] for row in read_rows(rows)] == ["cd", "cd"]  # L0 is tuned on LeNet5-Caffe.


def test_prices_of_l0_are_tuned_for_each_layer(whole, monkeypatch):
    printed = [row.tradeoff for row in published_rows("lenet5-caffe", "mnist", "appendix") if row.method == "l0"]
    tried = list(tune_baselines.candidates("lenet5-caffe", "l0", 60_000))
    assert len(tried) == len(tune_baselines.PRICES) * len(printed)
    assert [len(settings["price"]) for _, _, settings in tried] == [4] * len(tried)
    told, tradeoff, settings = tried[len(printed)]
    assert (told, tradeoff) == ({"prices": ["20x", "8x", "1x", "1x"]}, "0.1/60000")
    assert settings["price"] == pytest.approx([2.0, 0.8, 0.1, 0.1])
    fixed = [(tradeoff, settings["price"]) for told, tradeoff, settings in tried if told["prices"] == ["10", "0.5", "1x", "10x"]]
    assert [tradeoff for tradeoff, _ in fixed] == printed
    assert fixed[0][1] == pytest.approx([10.0, 0.5, 0.1, 1.0])
    assert fixed[-1][1] == pytest.approx([10.0, 0.5, 0.005, 0.05])
    chosen = LAYER_PRICES["lenet5-caffe"]
    assert chosen in tune_baselines.PRICES
    monkeypatch.setattr(tune_baselines, "PRICES", ((Price(1),) * 4, chosen))
    few = replace(whole, train=Split(whole.train.images[:150], whole.train.labels[:150]))
    rows = list(tune_baselines.tune("lenet5-caffe", ["l0"], PAPER.with_epochs(1), few.for_tuning(50), CPU, [0]))
    told = (["1x"] * 4, [str(price) for price in chosen])
    assert [(row["prices"], row["tradeoff"]) for row in rows] == [(prices, tradeoff) for prices in told for tradeoff in printed]
    assert all(len(row["kept"]) == 4 for row in rows)


PROGRAM = Program(
    [
        Candidate("paper"),
        Candidate("other", smoothing=0.1, consistency=1.0, weight_decay=1e-3, rate=0.5, gate_weights=(1.0, 2.0, 3.0)),
    ],
    tradeoffs=(1.0,),
    seeds=(0,),
    epochs=(2, 1),
    twice=True,
)


def test_candidates_may_have_tradeoffs_of_their_own():
    program = replace(PROGRAM, tradeoffs=(1.0, 4.0), seeds=(0, 1), more=[(Candidate("light"), (0.5,))])
    tried = [(candidate.name, gamma, seed) for candidate, gamma, seed in program.tried()]
    assert tried[:4] == [("paper", 1.0, 0), ("paper", 1.0, 1), ("paper", 4.0, 0), ("paper", 4.0, 1)]
    assert tried[8:] == [("light", 0.5, 0), ("light", 0.5, 1)]


def searched(data, program=PROGRAM):
    data = data.for_tuning(100)
    pretrained = searching.pretrain(program.network, data, (0,), 1, CPU)
    return timeless(searching.search("small", program, program.tried(), data, pretrained, CPU))


def test_recipes_are_searched_on_validation_images(whole):
    rows = searched(whole)
    assert [(row["name"], row["stage"]) for row in rows] == [(name, stage) for stage in ("bb", "dbb") for name in ("paper", "other")]
    assert [row["epochs"] for row in rows] == [2, 2, 1, 1]
    assert [row["weight_decay"] for row in rows] == [1e-4, 1e-3] * 2
    for row in rows:
        assert 0 <= row["validation_error"] <= 100
        assert 0 <= row["averaged_error"] <= 100
        assert "error" not in row
    others = searched(mislabelled(whole))
    assert [row["validation_error"] for row in others] != [row["validation_error"] for row in rows]
    assert [row["kept"] for row in others[:2]] == [row["kept"] for row in rows[:2]]


def test_images_are_moved_by_the_trainer(whole, monkeypatch):
    told, trainer = [], searching.StageTrainer
    monkeypatch.setattr(searching, "StageTrainer", lambda *given, **named: (told.append(named), trainer(*given, **named))[1])
    light = Candidate("still", weight_decay=1e-5, consistency=1.0, second_consistency=0.5, in_proportion=True)
    program = replace(PROGRAM, candidates=[light, replace(light, name="moved", perturbation=2.0)], tradeoffs=(4.0,), gate_speed=5.0)
    rows = searched(whole, program)
    assert [(row["name"], row["stage"]) for row in rows] == [(name, stage) for stage in ("bb", "dbb") for name in ("still", "moved")]
    assert [row["perturbation"] for row in rows] == [0.0, 2.0] * 2
    assert all(row["weight_decay"] == 1e-5 and row["gate_speed"] == 5.0 for row in rows)
    assert [(each["consistency"], each["perturbation"]) for each in told[1:]] == [([1.0, 1.0], [0.0, 2.0]), ([0.125, 0.125], [0.0, 2.0])]
    with pytest.raises(ValueError, match="one weight decay"):
        searched(whole, replace(program, candidates=[*program.candidates, replace(light, smoothing=0.1)]))


def test_other_networks_are_searched_too(whole):
    candidate = Candidate("moved", perturbation=0.5, gate_weights=(20.0, 8.0, 1.0, 1.0))
    few = replace(whole, train=Split(whole.train.images[:150], whole.train.labels[:150]))
    rows = searched(few, replace(PROGRAM, candidates=[candidate], network="lenet5-caffe", epochs=(1, 1)))
    assert [(row["network"], len(row["kept"]), row["second_weights"]) for row in rows] == [("lenet5-caffe", 4, (1.0,) * 4)] * 2
    assert not any("averaged_error" in row for row in rows), "a single model shrinks on a processor"


def test_searching_never_looks_at_the_test_images(untouchable, monkeypatch, tmp_path):
    asked, pretrain = [], searching.pretrain
    monkeypatch.setattr(recipe_search, "PROGRAMS", {"small": PROGRAM})
    monkeypatch.setattr(recipe_search, "pretrain", lambda *given: (asked.append((given[0], *given[2:])), pretrain(*given))[1])
    rows = tmp_path / "rows.jsonl"
    monkeypatch.setattr("sys.argv", ["search", "--device", "cpu", "--rows", str(rows), "--pretraining", "2"])
    recipe_search.main()
    assert [(row["name"], row["stage"], row["pretraining"]) for row in read_rows(rows)] == [
        (name, stage, 2) for name in ("paper", "other") for stage in ("bb", "dbb")
    ]
    assert asked == [("lenet-500-300", [0], 2, CPU)]


@pytest.mark.parametrize(("first", "of", "names"), [(0, 1, ["paper", "other"]), (1, 1, ["other"]), (0, 2, ["paper"]), (1, 2, ["other"])])
def test_several_processes_share_a_program(monkeypatch, tmp_path, whole, first, of, names):
    searched = []

    def search(name, program, tried, *_):
        searched.extend(candidate.name for candidate, *_ in tried)
        yield from ()

    monkeypatch.setattr(recipe_search, "load_dataset", lambda name, folder: whole)
    monkeypatch.setattr(recipe_search, "VALIDATION", 100)
    monkeypatch.setattr(recipe_search, "PROGRAMS", {"small": PROGRAM})
    monkeypatch.setattr(recipe_search, "pretrain", lambda *_: {})
    monkeypatch.setattr(recipe_search, "search", search)
    options = ["--device", "cpu", "--rows", str(tmp_path / "rows.jsonl"), "--first", str(first), "--of", str(of)]
    monkeypatch.setattr("sys.argv", ["search", *options])
    recipe_search.main()
    assert searched == names


def test_a_single_model_shrinks_on_a_processor(whole, monkeypatch):
    told, trainer = [], searching.StageTrainer
    monkeypatch.setattr(searching, "StageTrainer", lambda *given, **named: (told.append(named.get("shrink")), trainer(*given, **named))[1])
    (candidate, _) = PROGRAM.candidates
    searched(whole, replace(PROGRAM, candidates=[candidate], epochs=(1, 1)))
    searched(whole, replace(PROGRAM, epochs=(1, 1)))
    assert told == [None, True, True, None, False, False]


def test_the_losses_of_candidates():
    torch.manual_seed(0)
    logits, targets = torch.randn(8, 10), torch.randint(0, 10, (4,))
    twice, squares = torch.cat([targets, targets]), torch.tensor(3.0)
    plain = candidate_loss(logits[:4], targets)
    assert plain == pytest.approx(torch.nn.functional.cross_entropy(logits[:4], targets).item())

    def loss(decay=0.0, smoothing=0.0, confidence=0.0, consistency=0.0):
        settings = torch.tensor([decay, smoothing, confidence, consistency])
        return candidate_loss((logits, settings, squares), targets).item()

    entropy = torch.nn.functional.cross_entropy
    assert loss() == pytest.approx(entropy(logits, twice).item(), rel=1e-5)
    assert loss(smoothing=0.1) == pytest.approx(entropy(logits, twice, label_smoothing=0.1).item(), rel=1e-5)
    assert loss(decay=0.2) - loss() == pytest.approx(0.3, rel=1e-4)
    probabilities = logits.softmax(1)
    assert loss(confidence=1.0) - loss() == pytest.approx((probabilities * probabilities.log()).sum(1).mean().item(), rel=1e-4)
    one, other = probabilities.chunk(2)
    divergence = ((one * (one / other).log()).sum(1) + (other * (other / one).log()).sum(1)).mean().item() / 2
    assert loss(consistency=1.0) - loss() == pytest.approx(divergence, rel=1e-4)
