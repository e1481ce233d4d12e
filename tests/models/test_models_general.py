from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from gallery import GALLERY, randomise_norms
from torch import Tensor, nn

from bayesprune.errors import InputError
from bayesprune.models import (
    NETWORKS,
    BasicBlock,
    Bottleneck,
    DenseNet,
    MobileNetV2,
    ResNet,
    ShuffleNetV2,
    UNet,
    VisionTransformer,
    densenet121,
    mobilenet_v2,
    resnet18,
    resnet50,
    shufflenet_v2,
    vit_b_16,
)
from bayesprune.models.shufflenet import channel_shuffle

CLASSIFIERS: list[Callable[..., nn.Module]] = [ResNet, MobileNetV2, DenseNet, ShuffleNetV2, VisionTransformer]

# Trainable parameters of the published ImageNet networks, as torchvision's documentation states them.
PUBLISHED: list[tuple[Callable[[], nn.Module], int]] = [
    (resnet18, 11_689_512),
    (resnet50, 25_557_032),
    (mobilenet_v2, 3_504_872),
    (densenet121, 7_978_856),
    (shufflenet_v2, 2_278_604),
    (vit_b_16, 86_567_656),
    (lambda: vit_b_16(attention="torch"), 86_567_656),
]


def tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    else:
        for part in output.values() if isinstance(output, dict) else output:
            yield from tensors(part)


@pytest.mark.parametrize("build", CLASSIFIERS)
def test_classifier_shapes(build: Callable[..., nn.Module]) -> None:
    model = build(num_classes=7, in_channels=2)
    assert model(torch.randn(2, 2, 32, 32)).shape == (2, 7)


@pytest.mark.parametrize("build", [ResNet, MobileNetV2, DenseNet, ShuffleNetV2])
def test_imagenet_stem_shrinks_the_image(build: Callable[..., nn.Module]) -> None:
    small, large = (build(small_stem=value).eval() for value in (True, False))
    assert small(torch.randn(1, 3, 32, 32)).shape == large(torch.randn(1, 3, 64, 64)).shape == (1, 10)
    assert activations(large, 64) < activations(small, 64) / 3


def activations(model: nn.Module, side: int) -> int:
    """How many numbers the convolutions of a network produce."""
    total = 0

    def count(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        total += output.numel()

    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(count)
    model(torch.randn(1, 3, side, side))
    return total


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_unet_keeps_the_size_of_the_image(depth: int) -> None:
    model = UNet(depth=depth, width=4, num_classes=3, in_channels=2)
    assert model(torch.randn(2, 2, 16, 24)).shape == (2, 3, 16, 24)


@pytest.mark.parametrize(("build", "parameters"), PUBLISHED)
def test_published_parameter_counts(build: Callable[[], nn.Module], parameters: int) -> None:
    with torch.device("meta"):
        model = build()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.parametrize("build", [build for build, _ in PUBLISHED])
def test_published_sizes_take_imagenet_images(build: Callable[[], nn.Module]) -> None:
    with torch.device("meta"):
        assert build().eval()(torch.empty(1, 3, 224, 224)).shape == (1, 1000)


def test_resnet_strides_once_a_stage() -> None:
    model = ResNet(Bottleneck, (2, 2, 1), width=4)
    assert [block.conv2.stride[0] for block in model.modules() if isinstance(block, Bottleneck)] == [1, 1, 2, 1, 2]
    blocks = [block for block in ResNet(BasicBlock, (2, 2), width=4).modules() if isinstance(block, BasicBlock)]
    assert [block.downsample is None for block in blocks] == [True, True, False, True]


def test_channel_shuffle_deals_out_in_turn() -> None:
    x = torch.arange(6.0).view(1, 6, 1, 1)
    assert channel_shuffle(x, 2).flatten().tolist() == [0, 3, 1, 4, 2, 5]


def test_both_attentions_agree() -> None:
    torch.manual_seed(0)
    own = VisionTransformer(16, 8, 24, 2, 3, 32, attention="own").eval()
    theirs = VisionTransformer(16, 8, 24, 2, 3, 32, attention="torch").eval()
    renamed = {
        name.replace("attention.qkv.", "attention.attention.in_proj_").replace("attention.proj", "attention.attention.out_proj"): tensor
        for name, tensor in own.state_dict().items()
    }
    theirs.load_state_dict(renamed)
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(own(x), theirs(x))


def test_paper_networks_stay_apart() -> None:
    assert set(NETWORKS) == {"lenet-500-300", "lenet5-caffe", "vgg-like"}


@pytest.mark.parametrize(
    ("build", "arguments", "message"),
    [
        (ResNet, {"width": 0}, "width must be a whole number"),
        (ResNet, {"depths": ()}, r"len\(depths\)"),
        (ResNet, {"depths": (1, 0)}, r"depths\[1\]"),
        (MobileNetV2, {"stages": ()}, r"len\(stages\)"),
        (MobileNetV2, {"stages": ((1, 8, 1),)}, r"stages\[0\] is \(1, 8, 1\)"),
        (MobileNetV2, {"stages": ((1, 8, 1, 0),)}, r"stages\[0\]\[3\]"),
        (DenseNet, {"growth": -1}, "growth"),
        (DenseNet, {"depths": (2, 0)}, r"depths\[1\]"),
        (ShuffleNetV2, {"depths": (2,), "channels": (8, 16)}, "as many depths as channels"),
        (ShuffleNetV2, {"depths": (), "channels": ()}, "as many depths as channels"),
        (ShuffleNetV2, {"channels": (16, 33)}, r"channels\[1\] must be even"),
        (UNet, {"depth": 0}, "depth"),
        (UNet, {"num_classes": 2.0}, "num_classes"),
        (VisionTransformer, {"patch_size": 5}, "must divide image_size"),
        (VisionTransformer, {"heads": 5}, "must divide width"),
        (VisionTransformer, {"attention": "flash"}, "'own' or 'torch'"),
        (VisionTransformer, {"mlp_width": 0}, "mlp_width"),
    ],
)
def test_impossible_sizes_are_refused(build: Callable[..., nn.Module], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(**arguments)


@pytest.mark.parametrize("name", GALLERY)
def test_gallery_runs(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = GALLERY[name].build(), GALLERY[name].inputs()
    assert all(tensor.shape[0] in (2, 3) for tensor in inputs)
    model.eval()
    with torch.no_grad():
        first, second = list(tensors(model(*inputs))), list(tensors(model(*inputs)))
    for one, other in zip(first, second, strict=True):
        assert one.isfinite().all()
        assert one.std() > 1e-3, "the output hardly varies: a mistake would not show in it"
        assert torch.equal(one, other)
    model.train()
    outputs = list(tensors(model(*inputs)))
    assert [tensor.shape for tensor in outputs] == [tensor.shape for tensor in first]
    if name != "frozen":
        loss = torch.stack([tensor.square().sum() for tensor in outputs]).sum()
        torch.autograd.grad(loss, list(model.parameters()))


@pytest.mark.parametrize("name", GALLERY)
def test_gallery_has_no_zero_parameter(name: str) -> None:
    torch.manual_seed(0)
    assert all(parameter.any() for parameter in GALLERY[name].build().parameters())


def test_gallery_is_reproducible() -> None:
    for example in GALLERY.values():
        torch.manual_seed(1)
        first, first_inputs = example.build().state_dict(), example.inputs()
        torch.manual_seed(1)
        second, second_inputs = example.build().state_dict(), example.inputs()
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert all(torch.equal(one, other) for one, other in zip(first_inputs, second_inputs, strict=True))


def test_control_flow_defeats_fx_and_not_export() -> None:
    example = GALLERY["functional_control_flow"]
    model, inputs = example.build().eval(), example.inputs()
    with pytest.raises(torch.fx.proxy.TraceError):
        torch.fx.symbolic_trace(model)
    torch.testing.assert_close(torch.export.export(model, inputs).module()(*inputs), model(*inputs))


def test_randomise_norms_fills_statistics_and_both_signs() -> None:
    batch_norm, group_norm, rms_norm, linear = nn.BatchNorm2d(32), nn.GroupNorm(2, 32), nn.RMSNorm(32), nn.Linear(32, 32)
    before = linear.weight.clone()
    model = nn.Sequential(batch_norm, group_norm, nn.InstanceNorm1d(32), rms_norm, linear)
    assert randomise_norms(model) is model
    assert batch_norm.running_mean is not None
    assert batch_norm.running_var is not None
    assert batch_norm.running_mean.std() > 0.1
    assert batch_norm.running_var.min() > 0
    assert batch_norm.running_var.std() > 0.1
    for weight in (batch_norm.weight, group_norm.weight, rms_norm.weight):
        assert 0 < torch.count_nonzero(weight < 0) < 32
        assert weight.abs().min() >= 0.5
    assert torch.equal(linear.weight, before)
