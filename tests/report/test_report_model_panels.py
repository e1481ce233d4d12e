"""The figures of one model: pixels, classes, probabilities."""

import pytest
import torch

from bayesprune.analysis import FOR_NO_INPUT, NOT_FOR_THIS_INPUT, USED, ClassAverages, UnitRecord, probability_stages
from bayesprune.gates.dependent_beta_bernoulli import DependentBetaBernoulli
from bayesprune.report.figures.class_correlation import draw_class_correlation, panel_title
from bayesprune.report.figures.filter_use import draw_filter_use
from bayesprune.report.figures.input_regions import average_use, class_examples, draw_input_regions, input_regions
from bayesprune.report.figures.probabilities import draw_probabilities, highlighted_units

PNG = b"\x89PNG\r\n\x1a\n"


def pixel_gate(side=6):
    gate = DependentBetaBernoulli(side * side, keep_init=2.0, shift_init=0.2).eval()
    gate.running_mean.fill_(0.5)
    gate.running_var.fill_(0.1)
    gate.prune(torch.arange(side))  # The first line of the image.
    return gate


def some_images(count=4, side=6):
    return torch.rand(count, 1, side, side, generator=torch.Generator().manual_seed(0))


def test_examples_are_the_first_correct_ones():
    labels = torch.tensor([7, 1, 1, 4, 4, 0])
    predicted = torch.tensor([1, 7, 1, 9, 9, 0])
    assert class_examples(labels, predicted, (0, 1, 4, 7, 8)) == [5, 2, 3, 0]


def test_pixels_are_counted_as_the_gate_keeps_them():
    gate, images = pixel_gate(), some_images()
    regions = input_regions(gate, images, torch.tensor([0, 1, 2, 3]), torch.tensor([0, 1, 2, 9]))
    kept = gate.keep(images.flatten(1))
    assert [region.used for region in regions] == kept.sum(dim=1).tolist()
    for region, mask in zip(regions, kept.view(4, 6, 6), strict=True):
        assert torch.equal(region.use == USED, mask)
        assert torch.equal((region.use == FOR_NO_INPUT).nonzero(), torch.tensor([[0, column] for column in range(6)]))
        assert bool((region.use == NOT_FOR_THIS_INPUT).any())
    assert [region.title for region in regions] == ["0", "1", "2", "3, taken for 9"]
    assert average_use(gate, images) == pytest.approx(kept.sum(dim=1).double().mean().item())


def test_regions_are_drawn_with_their_counts(tmp_path, words_of):
    gate, images = pixel_gate(), some_images()
    labels = torch.arange(4)
    regions = input_regions(gate, images, labels, labels)
    words = words_of(draw_input_regions, regions, 12.6, tmp_path / "regions.png")
    for region in regions:
        assert f"{region.used} of 36 pixels used" in words
    assert any("BB keeps 30 of 36 pixels" in text and "DBB uses 13 " in text for text in words)
    assert "kept by BB, pruned by DBB for this image" in words
    assert (tmp_path / "regions.png").read_bytes().startswith(PNG)


def test_blank_image_can_be_drawn(tmp_path):
    blank = torch.zeros(1, 1, 6, 6)
    draw_input_regions(input_regions(pixel_gate(), blank, torch.tensor([1]), torch.tensor([1])), 0.0, tmp_path / "regions.png")


def averages(units, classes=10):
    random = torch.Generator().manual_seed(0)
    return ClassAverages(
        torch.rand(classes, units, generator=random, dtype=torch.float64), torch.rand(units, generator=random, dtype=torch.float64)
    )


def test_titles_state_the_mean_correlation_with_and_without_pi():
    own = averages(8)
    means = []
    for values in (own.pi * own.phi, own.phi):
        matrix = torch.corrcoef(values)
        means.append(float((matrix.sum() - 10) / 90))
    assert panel_title("conv1.output_gate", own).splitlines() == [
        "conv1 output, 8 kept",
        f"between classes {means[0]:.2f}",
        f"of φ(x) alone {means[1]:.2f}",
    ]


def test_titles_say_what_is_undefined():
    assert "correlation undefined" in panel_title("a", averages(0))
    assert "1 kept\ncorrelation undefined" in panel_title("a", averages(1))
    flat = ClassAverages(torch.ones(10, 5, dtype=torch.float64), torch.ones(5, dtype=torch.float64))
    assert "between classes undefined\nof φ(x) alone undefined" in panel_title("a", flat)
    own = averages(5)
    own.phi[3] = 1.0
    assert "(1 undefined)" in panel_title("a", own).splitlines()[2]
    assert "undefined" not in panel_title("a", own).splitlines()[1]


@pytest.mark.parametrize("gates", [1, 4, 15])
def test_correlations_are_drawn_without_a_nan(tmp_path, words_of, gates):
    drawn = {f"layer{index}.output_gate": averages(index, classes=10) for index in range(gates)}
    words = words_of(draw_class_correlation, drawn, "a network", tmp_path / "classes.png")
    assert "a network" in words
    assert not any("nan" in text.lower() for text in words)
    assert sum("kept" in text for text in words) == gates
    assert (tmp_path / "classes.png").read_bytes().startswith(PNG)


def test_what_is_drawn_has_pi_in_it(tmp_path, figure_of):
    own = averages(8)
    figure = figure_of(draw_class_correlation, {"conv1.output_gate": own}, "one", tmp_path / "classes.png")
    (image,) = figure.axes[0].images
    torch.testing.assert_close(torch.from_numpy(image.get_array().data), torch.corrcoef(own.pi * own.phi))


def test_undefined_correlations_are_not_painted(tmp_path, figure_of):
    own = averages(8)
    own.phi[3] = torch.nan
    figure = figure_of(draw_class_correlation, {"conv1.output_gate": own}, "one", tmp_path / "classes.png")
    masked = figure.axes[0].images[0].get_array().mask
    assert masked.sum() == 19
    assert masked[3].all()


def test_a_hundred_classes_are_not_numbered(tmp_path, words_of):
    words = words_of(draw_class_correlation, {"fc2.input_gate": averages(6, classes=100)}, "many", tmp_path / "classes.png")
    assert "17" not in words


def test_highlighted_units_reach_from_the_least_to_the_most_probable():
    phi = torch.tensor([[0.9, 0.1, 0.5, 0.3, 0.2, 0.7, 0.6, 0.8, 0.4]])
    assert highlighted_units(phi).tolist() == [1, 3, 2, 5, 0]
    assert highlighted_units(phi[:, :2]).tolist() == [1, 0]


@pytest.mark.parametrize(("units", "inputs"), [(12, 400), (1, 3), (3, 1)])
def test_probabilities_are_drawn(tmp_path, words_of, units, inputs):
    gate = DependentBetaBernoulli(20, keep_init=2.0).eval()
    stages = probability_stages(gate, torch.randn(inputs, 20, generator=torch.Generator().manual_seed(0)))
    numbers = torch.arange(100, 100 + units)
    words = words_of(draw_probabilities, stages.of(torch.arange(units)), numbers, "a gate", tmp_path / "steps.png")
    expected = {f"unit {100 + unit}" for unit in highlighted_units(stages.phi[:, :units]).tolist()}
    assert {text for text in words if text.startswith("unit ")} == expected
    assert [text for text in words if text[:2] in ("1.", "2.", "3.", "4.") and " " in text] == [
        "1. activation",
        "2. standardised",
        "3. scaled and shifted",
        "4. probability",
    ]
    assert (tmp_path / "steps.png").read_bytes().startswith(PNG)


def test_constant_activations_can_be_drawn(tmp_path):
    stages = probability_stages(DependentBetaBernoulli(4).eval(), torch.zeros(10, 4))
    draw_probabilities(stages, torch.arange(4), "constant", tmp_path / "steps.png")


def test_uses_of_two_classes_are_drawn_with_what_they_share(tmp_path, words_of):
    uses = torch.tensor([[0.9, 0.8, 0.0], [0.9, 0.0, 0.0], [0.0, 0.0, 0.7], [0.0, 0.0, 0.4]])
    labels = torch.tensor([13, 13, 0, 0])
    record = UnitRecord({}, labels, {"features.block3.conv.output_gate": uses, "fc2.input_gate": torch.zeros(4, 0)})
    classes = (("bus", 13), ("apple", 0))
    words = words_of(draw_filter_use, record, (3, 15), classes, "what it shows", tmp_path / "uses.png")
    assert "what it shows" in words
    first = next(text for text in words if text.startswith("layer 3"))
    assert first == (
        "layer 3 (block3 conv output): 3 kept by BB, 1 used by an input\n"
        "units in common: two of bus 50 %, two of apple 100 %, bus and apple 0 %"
    )
    assert any(text.startswith("layer 15 (fc2 input): 0 kept by BB") for text in words)
    assert "no unit is left" in words
    assert {"bus", "apple"} <= set(words)
