"""What a reproduction trains: every row of the tables, once."""

from dataclasses import replace

import pytest

from bayesprune.errors import InputError
from bayesprune.experiments.protocol import OWN_TARGETS, QUICK, SEEDS, Entry, Fleet, own_protocol, protocol
from bayesprune.experiments.published import METHODS, published_rows
from bayesprune.training.recipes import CONSISTENT, PAPER, SMOOTH

NETWORKS = ("lenet-500-300", "lenet5-caffe")
ORDER = ["dense", "dbb", "sbp", "vib", "l0", "gd", "cd"]


@pytest.mark.parametrize("network", NETWORKS)
def test_all_rows_of_the_tables(network):
    asked = protocol(network)
    printed = [(row.method, row.tradeoff) for row in published_rows(network, "mnist", "appendix")]
    expected = {Entry(method, tradeoff, seed) for method, tradeoff in [("dense", None), *printed] for seed in (0, 1, 2)}
    entries = asked.all_entries()
    assert len(entries) == len(set(entries)) == 31 * 3
    assert set(entries) == expected
    assert (asked.name, asked.recipe, asked.images) == (f"{network}-mnist", PAPER, None)
    assert [entry.method for entry in entries[::3]] == sorted((entry.method for entry in entries[::3]), key=METHODS.index)
    assert entries[0] == Entry("dense", None, 0)


@pytest.mark.parametrize("side_by_side", [None, 1, 2, 4, 7, 100])
@pytest.mark.parametrize("network", NETWORKS)
def test_fleets_train_each_row_once(network, side_by_side):
    asked = protocol(network)
    fleets = asked.fleets(side_by_side)
    entries = [entry for fleet in fleets for entry in fleet.entries]
    assert sorted(entries, key=str) == sorted(asked.all_entries(), key=str)
    assert list(dict.fromkeys(fleet.method for fleet in fleets)) == ORDER
    assert len({fleet.name for fleet in fleets}) == len(fleets)
    for fleet in fleets[1:]:
        assert len(fleet.members) <= (side_by_side or 100)
    assert fleets[0] == Fleet("dense", "dense", ((None, 0), (None, 1), (None, 2)))  # Whatever is asked for: all others start from them.


def test_names_and_titles_of_fleets():
    asked = protocol("lenet-500-300", methods=["cd", "dense"])
    assert [(fleet.name, fleet.title) for fleet in asked.fleets()] == [
        ("dense", "pretraining, 3 models side by side"),
        ("cd", "CD, 3 models side by side"),
    ]
    assert [(fleet.name, fleet.title) for fleet in asked.fleets(2)[1:]] == [
        ("cd-1-to-2", "CD, 2 models side by side"),
        ("cd-3-to-3", "CD, seed 2"),
    ]
    assert protocol("lenet-500-300", methods=["dbb"]).fleets()[0].title == "BB, then DBB, 15 models side by side"
    assert [entry.title for entry in asked.fleets(2)[2].entries] == ["cd, seed 2"]
    assert Entry("vib", "1e-4", 1).title == "vib at 1e-4, seed 1"


@pytest.mark.parametrize(
    ("methods", "trained"),
    [
        (["dbb"], ["dbb"]),
        (["bb"], ["bb"]),
        (["bb", "dbb"], ["dbb"]),
        (["l0", "bb", "l0"], ["bb", "l0"]),
        (["cd", "dense"], ["dense", "cd"]),
    ],
)
def test_some_methods(methods, trained):
    asked = protocol("lenet5-caffe", methods=methods)
    fleets = asked.fleets()
    assert [fleet.method for fleet in fleets] == trained
    assert len(asked.all_entries()) == 93
    rows = {entry.method for fleet in fleets for entry in fleet.entries}
    assert rows == set(methods) | ({"bb"} if "dbb" in methods else set())


def test_bb_comes_before_dbb_of_the_same_models():
    (fleet,) = protocol("lenet-500-300", methods=["dbb"], seeds=[4]).fleets()
    entries = fleet.entries
    assert [entry.method for entry in entries] == ["bb"] * 5 + ["dbb"] * 5
    assert [replace(entry, method="dbb") for entry in entries[:5]] == entries[5:]


def test_what_is_missing_of_a_fleet():
    fleet = Fleet("dbb", "dbb", (("1", 0), ("2", 0), ("4", 0)))
    rows = {Entry(method, "2", 0) for method in ("bb", "dbb")} | {Entry("bb", "1", 0), Entry("dbb", "4", 0)}
    assert fleet.without(rows) == Fleet("dbb", "dbb", (("1", 0), ("4", 0)))
    assert fleet.without(()) == fleet
    assert fleet.without(set(fleet.entries)) is None


@pytest.mark.parametrize("network", NETWORKS)
def test_quick(network):
    asked = protocol(network, quick=True)
    assert (asked.recipe, asked.seeds, asked.images) == (QUICK, (0,), (5_000, 1_000))
    assert asked.recipe.name == "quick"
    assert {method: len(values) for method, values in asked.tradeoffs.items()} == dict.fromkeys(METHODS, 2) | {"dense": 1, "cd": 1}
    assert asked.tradeoffs["bb"] == asked.tradeoffs["dbb"] == ("1", "2")
    assert asked.tradeoffs["l0"] == ("0.005/60000", "0.01/60000")
    assert all(set(values) <= set(protocol(network).tradeoffs[method]) for method, values in asked.tradeoffs.items())
    assert protocol(network, quick=True, seeds=[3, 4]).seeds == (3, 4)
    assert sum(stage.epochs for stage in QUICK.stages.values()) <= 15


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("recipe", [CONSISTENT, SMOOTH], ids=lambda recipe: recipe.name)
def test_own_recipe(network, recipe):
    asked = own_protocol(network, recipe.name)
    assert (asked.name, asked.recipe, asked.seeds) == (f"own-recipe-{recipe.name}-{network}", recipe, (0, 1, 2, 3, 4))
    assert asked.tradeoffs["bb"] == asked.tradeoffs["dbb"] == tuple(target.tradeoff for target in OWN_TARGETS[recipe.name][network])
    assert [fleet.method for fleet in asked.fleets()] == ["dense", "dbb"]
    assert own_protocol(network, recipe.name, [7]).seeds == (7,)


def test_a_part_at_some_tradeoffs():
    whole = own_protocol("lenet-500-300", "smooth")
    first, *_, last = whole.tradeoffs["dbb"]
    part = whole.at([last])
    assert [fleet.members for fleet in part.fleets()] == [
        tuple((None, seed) for seed in range(5)),
        tuple((last, seed) for seed in range(5)),
    ]
    assert part.all_entries() == whole.all_entries()
    assert part.at([last]).fleets() == part.fleets() != whole.at([first, last]).fleets()
    with pytest.raises(InputError, match=f"has no trade-off '{first}'; it has {last}"):
        part.at([first])
    with pytest.raises(InputError, match="no trade-off '1e-3'; it has 1, 2, 4"):
        protocol("lenet-500-300", methods=["sbp"]).at(["1e-3"])
    assert {fleet.method for fleet in protocol("lenet-500-300").at(["1"]).fleets()} == {"dense", "dbb", "sbp", "cd"}
    assert protocol("lenet-500-300", methods=["cd", "bb"]).at(["2"]).fleets()[-1].members == ((None, 0), (None, 1), (None, 2))
    with pytest.raises(InputError, match="own-recipe-smooth-lenet-500-300 has no trade-off '7'; it has 11, 16, 2"):
        whole.at(["7"])


def test_own_recipe_of_another_network(monkeypatch):
    monkeypatch.setitem(OWN_TARGETS, "consistent", {"lenet-500-300": OWN_TARGETS["consistent"]["lenet-500-300"]})
    with pytest.raises(InputError, match="made for lenet-500-300; try it on lenet5-caffe with 'bayesprune run"):
        own_protocol("lenet5-caffe", "consistent")


def test_seeds():
    assert protocol("lenet-500-300").seeds == SEEDS == (0, 1, 2)
    assert {entry.seed for entry in protocol("lenet-500-300", seeds=[7]).all_entries()} == {7}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"network": "vgg-like"}, r"are of lenet-500-300, lenet5-caffe, vgg-cifar10, vgg-cifar100, not of 'vgg-like'"),
        ({"network": "lenet5-cafe"}, r"not of 'lenet5-cafe'\..*Did you mean 'lenet5-caffe'"),
        ({"network": ""}, r"not of ''"),
        ({"methods": ["bb", "ddb"]}, r"no method 'ddb'; they have dense, cd.*Did you mean 'dbb'"),
        ({"methods": [""]}, r"no method ''"),
        ({"methods": ["BB"]}, r"no method 'BB'"),
        ({"seeds": [0, 1, 0]}, r"each once, not \[0, 1, 0\]"),
        ({"seeds": []}, "at least one seed"),
    ],
)
def test_what_the_tables_do_not_have(arguments, message):
    with pytest.raises(InputError, match=message):
        protocol(**{"network": "lenet-500-300", **arguments})
