"""Reproductions of a large network: one model after the other, what is left of each as a file, what figures show as numbers."""

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
import torch
from refusals import refused
from reproducing import Stopping, Untrained, places, reproduce
from torch import nn

import bayesprune.experiments.compacted as compacted
import bayesprune.experiments.main_job as main_job
import bayesprune.experiments.settings as settings
import bayesprune.models.zoo as zoo
from bayesprune import load
from bayesprune.cost import relative_cost
from bayesprune.data import CIFAR100
from bayesprune.errors import InputError, ResultsError, RunFolderError, StorageError
from bayesprune.experiments.evidence import load_record
from bayesprune.experiments.fleets import Fleets
from bayesprune.experiments.main_job import RunConfig, data_of
from bayesprune.experiments.other_counts import both_memories
from bayesprune.experiments.protocol import OWN_TARGETS, Entry, Fleet, Target, own_protocol, protocol
from bayesprune.experiments.reproduction import run_reproduction
from bayesprune.experiments.rows import read_result_rows
from bayesprune.experiments.tables import TABLES
from bayesprune.models import VGGLike, build_network
from bayesprune.report import write_report
from bayesprune.storage import read_rows, write_rows, write_tensors
from bayesprune.training.recipes import Recipe, StageRecipe
from bayesprune.training.watching import Silent

pytestmark = pytest.mark.filterwarnings("ignore:the outputs no longer depend")  # Networks as small as these may lose a whole layer.

GROUPS, HIDDEN = ((6, 6), (8,), (8,), (8,), (8,)), 10
UNITS = [6, 6, 8, 8, 8, 8, 8, 10]
EPOCHS = {"dense": 2, "pruned": 4, "dependent": 2}
RECIPE = Recipe("paper", {name: StageRecipe(epochs=epochs, lr=5e-3, gate_speed=12.0) for name, epochs in EPOCHS.items()}, batch_size=10)
N_DATA = 500
"""What divergences are divided by: so little that in a few steps some units go."""
TRADEOFFS = {"dense": (None,), "l0": ("1e-7",), "bb": ("1", "6"), "dbb": ("1", "6")}


@pytest.fixture
def narrow(monkeypatch):
    """A VGG-like network of a few units in the place of the large one."""
    networks = dict(zoo.NETWORKS) | {"vgg-like": zoo.Network(lambda classes: VGGLike(classes, GROUPS, HIDDEN), ("cifar10", "cifar100"))}
    zoo.gate_places.cache_clear()
    monkeypatch.setattr(zoo, "NETWORKS", MappingProxyType(networks))
    monkeypatch.setitem(TABLES, "vgg-cifar100", replace(TABLES["vgg-cifar100"], n_data=N_DATA))
    yield
    zoo.gate_places.cache_clear()


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder with a few images of CIFAR-100's form: three classes, each of one colour under noise."""
    folder = tmp_path_factory.mktemp("data")
    (folder / CIFAR100.folder).mkdir()
    generator = np.random.default_rng(0)
    for name, count in zip(CIFAR100.files, (60, 40), strict=True):
        fine = generator.permutation(np.arange(count) % 3 * 13)
        pixels = generator.integers(0, 80, (count, 3, 1024))
        pixels[np.arange(count), fine // 13] += 150
        records = np.hstack([np.zeros((count, 1)), fine[:, None], pixels.reshape(count, -1)]).astype(np.uint8)
        (folder / CIFAR100.folder / name).write_bytes(records.tobytes())
    return folder


def small(methods=("dense", "l0", "bb", "dbb"), seeds=(0,), **changes):
    options = {name: changes.pop(name) for name in ("after_activation", "shrink") if name in changes}
    whole = protocol("vgg-cifar100", methods=methods, seeds=seeds, **options)
    return replace(whole, recipe=replace(RECIPE, shrink=whole.recipe.shrink), tradeoffs=TRADEOFFS, **changes)


def test_one_after_the_other_the_main_table_first():
    hundred = protocol("vgg-cifar100", seeds=[0]).fleets()
    assert [fleet.name for fleet in hundred[:5]] == ["dense-seed-0", *(f"dbb-at-{value}-seed-0" for value in "146"), "sbp-at-8-seed-0"]
    fleets = protocol("vgg-cifar10", seeds=[3, 0]).fleets()
    assert all(len(fleet.members) == 1 for fleet in fleets)
    assert fleets[0] == Fleet("dense-seed-3", "dense", ((None, 3),))
    seeds = [fleet.members[0][1] for fleet in fleets]
    assert seeds == [3] * (len(fleets) // 2) + [0] * (len(fleets) // 2)
    first = [(fleet.method, fleet.members[0][0]) for fleet in fleets[:9]]
    assert first[:4] == [("dense", None), ("dbb", "1"), ("dbb", "6"), ("sbp", "4")]
    assert first[4:7] == [("vib", "1e-6"), ("l0", "1e-7"), ("gd", first[6][1])]
    assert first[7:] == [("cd", None), ("dbb", "2")]
    assert len({fleet.name for fleet in fleets}) == len(fleets)
    assert [fleet.name for fleet in fleets[1:2]] == ["dbb-at-1-seed-3"]


def test_main_table_alone():
    hundred = protocol("vgg-cifar100", seeds=[0]).of_main_table()
    asked = {(entry.method, entry.tradeoff) for fleet in hundred.fleets() for entry in fleet.entries}
    assert {pair for pair in asked if pair[0] != "gd"} == {
        ("dense", None), ("cd", None), ("sbp", "8"), ("vib", "1e-8"), ("l0", "5e-9"),
        *((method, tradeoff) for method in ("bb", "dbb") for tradeoff in ("1", "4", "6")),
    }  # fmt: skip
    assert sum(method == "gd" for method, _ in asked) == 1
    assert len(hundred.all_entries()) == len(protocol("vgg-cifar100", seeds=[0]).all_entries()) == 31
    with pytest.raises(InputError, match="has no trade-off '2'; it has 1, 6"):
        protocol("vgg-cifar10", methods=["bb"]).of_main_table().at(["2"])
    assert [fleet.name for fleet in protocol("vgg-cifar10", methods=["bb"]).of_main_table().at(["6"]).fleets()][:1] == ["bb-at-6-seed-0"]
    assert {m for fleet in protocol("lenet-500-300", methods=["bb"]).of_main_table().fleets() for m, _ in fleet.members} == {"1", "8"}


def test_rows_networks_and_figures(narrow, images, tmp_path):
    rows = reproduce(small(), tmp_path, images)
    assert [(row["method"], row["tradeoff"]) for row in rows] == [
        ("dense", None), ("l0", "1e-7"), ("bb", "1"), ("bb", "6"), ("dbb", "1"), ("dbb", "6"),
    ]  # fmt: skip
    for row in rows:
        assert (row["placement"], row["shrink"], row["precision"], row["side_by_side"]) == ("before norm", False, "float32", 1)
        assert ("compacted" in row) == (row["method"] != "dense")
        assert ("right_memory" in row) == (row["method"] == "dbb")
    where = places(tmp_path)
    bb, dbb = rows[3], rows[5]
    assert all(units > 0 for units in bb["kept"])
    assert sum(bb["kept"]) < 0.75 * sum(UNITS), "some are pruned"
    assert dbb["static_kept"] == bb["kept"]
    assert sum(dbb["kept"]) < sum(bb["kept"])
    assert bb["compacted"]["macs"] < 0.5 * rows[0]["macs"]
    for row in rows[1:]:
        said = row["compacted"]
        network = load(where.networks / said["file"])
        assert sum(parameter.numel() for parameter in network.parameters()) <= said["parameters"]
        assert said["difference"] < 1e-4
        if row["method"] != "dbb":
            assert said["error"] == row["error"], "the same network, on the same images"
    read = read_result_rows(where.rows)
    assert {row.placement for row in read} == {"before norm"}
    assert [row.right_memory is not None for row in read] == [False] * 4 + [True] * 2
    record = load_record(where.models / "vgg-like-cifar100-units.safetensors")
    assert list(record.averages) == [f"features.block{n}.conv.output_gate" for n in range(1, 7)] + ["fc1.input_gate", "fc2.input_gate"]
    assert list(record.uses) == ["features.block3.conv.output_gate", "fc2.input_gate"], "the third and the eighth; there is no fifteenth"
    assert sorted(record.labels.tolist(), reverse=True) == record.labels.tolist()  # Buses (13), then apples (0).
    assert set(record.labels.tolist()) == {0, 13}
    assert [path.name for path in where.work.iterdir() if path.is_dir()] == ["dense-of-dense-seed-0"], "for other seeds and variants"
    where.rows.rename(where.rows.with_name("vgg-like-cifar100.jsonl"))
    written = {path.name for path in write_report(where.rows.parent, tmp_path / "report")}
    assert {"filter-use-vgg-like-cifar100.png", "class-correlation-vgg-like-cifar100.png", "results.md"} <= written
    text = (tmp_path / "report" / "results.md").read_text(encoding="utf-8")
    assert "Two ways to count DBB's memory" in text
    assert "gates of convolutions: before norm" in text


def test_own_recipe(narrow, images, tmp_path, monkeypatch):
    monkeypatch.setitem(OWN_TARGETS, "deep", {"vgg-cifar100": (Target(29.0, 2.5, "3"),)})
    monkeypatch.setitem(settings._OF_RECIPES, ("deep", "vgg-like", "bb"), (4.0, 4.0, 2.0, 1.0, 0.5, 0.25, 0.125, 0.125))
    asked = replace(own_protocol("vgg-cifar100", "deep", [0]), recipe=replace(RECIPE, name="deep", shrink=True))
    assert (asked.name, asked.placement, asked.variant) == ("own-recipe-deep-vgg-cifar100", "after activation", "")
    mine = replace(places(tmp_path), rows=tmp_path / "results" / f"{asked.name}.jsonl")
    rows = run_reproduction(asked, mine, Silent(), device="cpu", data_dir=str(images))
    assert [(row["method"], row["tradeoff"], row["recipe"], row["shrink"]) for row in rows] == [
        ("dense", None, "deep", True), ("bb", "3", "deep", True), ("dbb", "3", "deep", True),
    ]  # fmt: skip
    assert list(rows[1]["gates"]["kl_scale"]) == [3.0 * weight for weight in settings.gate_weights("vgg-like", "bb", "deep")]
    assert [path.name for path in mine.models.iterdir()] == ["own-recipe-deep-vgg-cifar100-units.safetensors"]
    written = {path.name for path in write_report(mine.rows.parent, tmp_path / "report")}
    figures = {f"{name}-own-recipe-deep-vgg-cifar100.png" for name in ("filter-use", "class-correlation", "kept-units")}
    assert figures <= written
    text = (tmp_path / "report" / "results.md").read_text(encoding="utf-8")
    assert all(f"](figures/{name})" in text for name in figures)


@pytest.mark.parametrize(("asked", "device", "used"), [
    (None, "cpu", "float32"), (None, "cuda", "bfloat16"), ("bfloat16", "cpu", "bfloat16"), ("float32", "cuda:1", "float32"),
])  # fmt: skip
def test_precision(asked, device, used):
    assert protocol("vgg-cifar10", precision=asked).on(device).precision == used


def test_precision_on_a_processor(narrow, images, tmp_path, monkeypatch):
    computed_in = set()
    forward = nn.Conv2d.forward
    monkeypatch.setattr(nn.Conv2d, "forward", lambda layer, x: (result := forward(layer, x), computed_in.add(result.dtype))[0])
    (row,) = reproduce(replace(small(["dense"]), precision="bfloat16"), tmp_path, images)
    assert row["precision"] == "bfloat16"
    assert torch.bfloat16 in computed_in


def test_network_that_cannot_be_compacted_costs_no_row(narrow, images, tmp_path, monkeypatch):
    def refuse(*_):
        raise InputError("it does not compute the same twice")

    monkeypatch.setattr(compacted, "compact", refuse)
    (row,) = reproduce(small(["bb"]).at(["6"]), tmp_path, images)
    assert row["status"] == "finished"
    assert row["compacted"] == {"reason": "it does not compute the same twice"}
    assert not list(places(tmp_path).networks.iterdir())


def test_complete_seed_leaves_the_checkpoints_of_others_alone(narrow, images, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        reproduce(small(["dbb"], seeds=[1]).at(["6"]), tmp_path, images, Stopping("stage_started", 3))
    whole = {"dense": (None,), "bb": ("6",), "dbb": ("6",)}
    reproduce(replace(small(["dense", "dbb"]), tradeoffs=whole), tmp_path, images)
    started = []

    class Seeing(Silent):
        def stage_started(self, stage, epochs, steps, done):
            started.append(stage)

    reproduce(small(["dbb"], seeds=[1]).at(["6"]), tmp_path, images, Seeing())
    assert started == ["dependent"]


def test_rows_that_were_trained_otherwise_are_refused(narrow, images, tmp_path):
    reproduce(small(["bb"], after_activation=True).at(["1"]), tmp_path, images)
    with pytest.raises(ResultsError, match="line 1 was trained in another way: placement after activation, not before norm"):
        reproduce(small(["bb"]).at(["1"]), tmp_path, images)
    (row,) = read_rows(places(tmp_path).rows)
    write_rows(places(tmp_path).rows, [row | {"placement": "before norm", "precision": "bfloat16"}])
    with pytest.raises(ResultsError, match="precision bfloat16, not float32"):
        reproduce(small(["bb"]).at(["1"]), tmp_path, images)
    assert len(reproduce(small(["bb"], after_activation=True).at(["1"]), tmp_path / "again", images)) == 1


def test_another_seed_goes_on_in_the_same_folder(narrow, images, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        reproduce(small(), tmp_path, images, Stopping("stage_started", 3))
    assert (tmp_path / "work" / "dense-of-dense-seed-0").is_dir()
    first = reproduce(small(["dense"]), tmp_path, images, Untrained())
    rows = reproduce(small(["dense"], seeds=[0, 1]), tmp_path, images)
    assert [row["seed"] for row in rows] == [0, 1]
    assert rows[0] == first[0]
    with pytest.raises(RunFolderError, match="precision"):
        reproduce_in_bfloat16(tmp_path, images)


def reproduce_in_bfloat16(folder, images):
    """As on a GPU that there is not: the folder is looked at before the device."""
    return run_reproduction(small(["bb"]), places(folder), Silent(), device="cuda", data_dir=str(images))


@pytest.mark.parametrize(("options", "name"), [
    ({"after_activation": True}, "after-activation"),
    ({"shrink": True}, "shrinking"),
    ({"after_activation": True, "shrink": True}, "after-activation-shrinking"),
])  # fmt: skip
def test_variants_start_from_the_same_pretrained_networks(narrow, images, tmp_path, options, name):
    dense = reproduce(small(["dense"]), tmp_path, images)
    work = tmp_path / "work"
    asked = small(["bb", "dbb"], **options).at(["1"])
    assert asked.name == f"vgg-like-cifar100-{name}"
    mine = replace(places(tmp_path), rows=tmp_path / "results" / f"{asked.name}.jsonl")
    seen = []

    class Seeing(Silent):
        def stage_started(self, stage, epochs, steps, done):
            seen.append((stage, sorted(path.name for path in work.iterdir() if path.is_dir())))

    rows = run_reproduction(asked, mine, Seeing(), device="cpu", data_dir=str(images))
    assert [stage for stage, _ in seen] == ["pruned", "dependent"], "pretrained before"
    assert seen[0][1] == [f"bb-of-dbb-at-1-seed-0-{name}", "dense-of-dense-seed-0"]
    for row in rows:
        assert row["placement"] == ("after activation" if "after_activation" in options else "before norm")
        assert row["shrink"] is bool(options.get("shrink"))
        assert sum(row["kept"]) < sum(UNITS)
    assert read_rows(tmp_path / "results" / "rows.jsonl") == dense
    assert not list((tmp_path / "results").glob("models/*")), "figures show the paper's protocol"
    assert [path.name for path in work.iterdir() if path.is_dir()] == ["dense-of-dense-seed-0"]


def test_divergences_are_divided_as_in_the_published_code(narrow, images, tmp_path):
    common = RunConfig(network="vgg-like", dataset="cifar100", recipe="paper", data_dir=str(images), before_norm=True, shrink=False)
    fleets = Fleets(small(), common, data_of(common), torch.device("cpu"), tmp_path, None, None, lambda *_: Silent())
    for method, stage in (("bb", "pruned"), ("dbb", "dependent")):
        plan = fleets.plan(method, "6", 0)
        assert plan.before_norm
        factor = plan.scale(stage) / fleets.training.n_data
        assert factor == pytest.approx((6 if method == "bb" else 1) / N_DATA)
    gd = fleets.plan("gd", "1e-3", 0)
    assert gd.scale("pruned") / fleets.training.n_data == pytest.approx(1 / fleets.whole), "which that code does not have"
    price = fleets.plan("l0", "1e-7", 0)
    assert price.hyperparameters["price"] * price.scale("pruned") / fleets.training.n_data == pytest.approx(1e-7)


def test_memory_of_dbb_is_counted_in_two_ways():
    vgg = build_network("vgg-like")
    kept, used = [place.units // 2 for place in vgg.gate_places()], [place.units / 4 for place in vgg.gate_places()]
    both = both_memories(vgg, kept, used, 20.0)
    assert both["right_memory"] == 20.0
    assert both["memory"] == round(relative_cost(vgg.layers(), kept, used, published_memory_indexing=True).memory_percent, 4)
    assert both["memory"] > relative_cost(vgg.layers(), kept, used).memory_percent + 0.5
    lenet = build_network("lenet5-caffe")
    assert both_memories(lenet, [10, 20, 300, 100], [5.0, 10.0, 100.0, 50.0], 20.0) == {}


def test_what_is_refused(images, tmp_path):
    with pytest.raises(InputError, match="lenet5-caffe has no norms"):
        protocol("lenet5-caffe", after_activation=True)
    with pytest.raises(InputError, match="one after the other: leave --side-by-side out"):
        reproduce(small(), tmp_path, images, side_by_side=2)


def test_damaged_record(tmp_path):
    (tmp_path / "damaged.safetensors").write_bytes(b"nothing")
    write_tensors(tmp_path / "other.safetensors", {"labels": torch.zeros(2)}, {"gates": ["fc1"], "shown": []})
    for name in ("missing", "damaged", "other"):
        with pytest.raises(StorageError, match=f"{name}.safetensors"):
            load_record(tmp_path / f"{name}.safetensors")


def test_command(narrow, images, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    common = ("--data-dir", images, "--device", "cpu", "--quick", "--methods", "bb")
    assert refused(command("reproduce", "vgg-cifar100", "--main-table", *common), "leave --main-table out")
    result = command("reproduce", "vgg-cifar100", *common)
    assert result.code == 0
    assert "1 of 1: BB at 1, seed 0" in result.err
    (row,) = read_rows(tmp_path / "reproductions" / "quick" / "vgg-like-cifar100.jsonl")
    assert Entry(row["method"], row["tradeoff"], row["seed"]) == Entry("bb", "1", 0)
    moved = command("reproduce", "vgg-cifar100", "--tradeoffs", "1", "--after-activation", *common)
    assert moved.code == 0
    (row,) = read_rows(tmp_path / "reproductions" / "quick" / "vgg-like-cifar100-after-activation.jsonl")
    assert row["placement"] == "after activation"
    report = command("report", "--results", "reproductions/quick", "--out", "page")
    assert report.code == 0
    assert "Gates in another place" in (tmp_path / "page" / "results.md").read_text(encoding="utf-8")
    assert refused(command("reproduce", "vgg-cifar100", "--seeds", "9" * 20, *common), "a seed is a whole number")
    monkeypatch.setattr(main_job, "gains_from_bfloat16", lambda _device: False)
    assert refused(command("reproduce", "vgg-cifar100", "--precision", "bfloat16", *common), "bfloat16 is for GPUs, and for processors of")
    assert refused(command("reproduce", "lenet-500-300", "--after-activation"), "leave --after-activation out")
    assert refused(command("reproduce", "lenet-500-300", "--recipe", "smooth", "--shrink"), "leave --shrink out")
    assert refused(command("reproduce", "vgg-cifar10", "--recipe", "smooth"), "made for lenet-500-300, lenet5-caffe")
