"""The closed list of functions that the internal graph is written in; that of layers is in ``layer_types``.

Tracers translate whatever a model calls into these words; removal has a rule for each; an artifact may contain nothing else. A function has
one spelling here, with the tensors it reads as positional arguments and everything else by keyword.
"""

import ast
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Function:
    """One word of the vocabulary.

    Attributes:
        name: how it is called here and in artifacts.
        target: what computes it: a function, or the name of a tensor method.
        parameters: its parameters in order; the first ``tensors`` of them are tensors (or sequences of tensors).
        defaults: values of the parameters that may be left out.
        gathers: the name of a parameter that may be given as several positional arguments, as in ``x.view(2, 3)``.
    """

    name: str
    target: Callable[..., Any] | str
    parameters: tuple[str, ...]
    tensors: int
    defaults: dict[str, Any]
    gathers: str | None = None

    @property
    def opcode(self) -> str:
        return "call_method" if isinstance(self.target, str) else "call_function"


RESIZING = (
    {f"upsample_nearest{rank}d": "nearest" for rank in (1, 2, 3)}
    | {f"_upsample_nearest_exact{rank}d": "nearest-exact" for rank in (1, 2, 3)}
    | {
        "upsample_linear1d": "linear",
        "upsample_bilinear2d": "bilinear",
        "upsample_trilinear3d": "trilinear",
        "upsample_bicubic2d": "bicubic",
    }
)
"""Operators of ATen for which we say ``interpolate``, and the mode that each stands for."""

FUNCTIONS: dict[str, Function] = {}
"""Functions by name."""
BY_CALLABLE: dict[Any, Function] = {}
BY_METHOD: dict[str, Function] = {}
BY_ATEN: dict[str, Function] = {}


def _word(
    name: str,
    target: Callable[..., Any] | str,
    signature: str = "input",
    *,
    tensors: int = 1,
    aliases: tuple[Any, ...] = (),
    methods: str = "",
    aten: str = "",
    gathers: str | None = None,
) -> None:
    parameters, defaults = [], {}
    for part in signature.split():
        parameter, _, default = part.partition("=")
        parameters.append(parameter)
        if default:
            defaults[parameter] = _literal(default)
    function = Function(name, target, tuple(parameters), tensors, defaults, gathers)
    FUNCTIONS[name] = function
    for alias in (*aliases, *(() if isinstance(target, str) else (target,))):
        BY_CALLABLE[alias] = function
    for method in methods.split() or ([target] if isinstance(target, str) else []):
        BY_METHOD[method] = function
    for overload in aten.split():
        BY_ATEN[overload] = function


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except ValueError:
        return text


# Element by element.
for _name in ("sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "abs", "neg", "square", "sin", "cos", "erf", "reciprocal", "floor", "ceil",
              "round", "sign", "log1p", "expm1", "logical_not"):  # fmt: skip
    _aliases = tuple(f for f in (getattr(F, _name, None), getattr(torch, f"{_name}_", None), getattr(torch.special, _name, None)) if f)
    _word(_name, getattr(torch, _name), aliases=_aliases, methods=f"{_name} {_name}_", aten=f"{_name}.default {_name}_.default")
BY_CALLABLE[operator.neg] = FUNCTIONS["neg"]
_word(
    "relu",
    torch.relu,
    "input inplace=False",
    aliases=(F.relu, F.relu_, torch.relu_),
    methods="relu relu_",
    aten="relu.default relu_.default",
)
_word("relu6", F.relu6, "input inplace=False", aten="relu6.default relu6_.default")
_word("leaky_relu", F.leaky_relu, "input negative_slope=0.01 inplace=False", aten="leaky_relu.default leaky_relu_.default")
_word("elu", F.elu, "input alpha=1.0 inplace=False", aten="elu.default elu_.default")
_word("selu", F.selu, "input inplace=False", aliases=(torch.selu,), aten="selu.default selu_.default")
_word("celu", F.celu, "input alpha=1.0 inplace=False", aliases=(torch.celu,), aten="celu.default celu_.default")
_word("gelu", F.gelu, "input approximate=none", aten="gelu.default")
_word("silu", F.silu, "input inplace=False", aten="silu.default silu_.default")
_word("mish", F.mish, "input inplace=False", aten="mish.default mish_.default")
_word("hardswish", F.hardswish, "input inplace=False", aten="hardswish.default hardswish_.default")
_word("hardsigmoid", F.hardsigmoid, "input inplace=False", aten="hardsigmoid.default hardsigmoid_.default")
_word("hardtanh", F.hardtanh, "input min_val=-1.0 max_val=1.0 inplace=False", aten="hardtanh.default hardtanh_.default")
_word("softplus", F.softplus, "input beta=1.0 threshold=20.0", aten="softplus.default")
_word("softsign", F.softsign)
_word("logsigmoid", F.logsigmoid, aten="log_sigmoid.default")
_word("hardshrink", F.hardshrink, "input lambd=0.5", aliases=(torch.hardshrink,), aten="hardshrink.default")
_word("softshrink", F.softshrink, "input lambd=0.5", aten="softshrink.default")
_word("tanhshrink", F.tanhshrink)
_word("threshold", F.threshold, "input threshold value inplace=False", aten="threshold.default")
_word("clamp", torch.clamp, "input min=None max=None", methods="clamp clamp_ clip", aten="clamp.default clamp_.default")
_word(
    "to",
    "to",
    "input dtype",
    methods="to float half double bfloat16 long int bool type type_as",
    aten="to.dtype to.dtype_layout to.device to.other _to_copy.default type_as.default",
)
_word("detach", torch.detach, methods="detach", aten="detach.default")

# Several tensors, element by element with broadcasting; ``other`` may be a number.
_word(
    "add",
    torch.add,
    "input other alpha=1",
    tensors=2,
    aliases=(operator.add, operator.iadd),
    methods="add add_ __add__ __radd__",
    aten="add.Tensor add_.Tensor add.Scalar",
)
_word(
    "sub",
    torch.sub,
    "input other alpha=1",
    tensors=2,
    aliases=(operator.sub, operator.isub, torch.subtract),
    methods="sub sub_",
    aten="sub.Tensor sub_.Tensor sub.Scalar",
)
_word("rsub", torch.rsub, "input other alpha=1", tensors=2, methods="__rsub__", aten="rsub.Scalar rsub.Tensor")
_word(
    "mul",
    torch.mul,
    "input other",
    tensors=2,
    aliases=(operator.mul, operator.imul, torch.multiply),
    methods="mul mul_",
    aten="mul.Tensor mul_.Tensor mul.Scalar",
)
_word(
    "div",
    torch.div,
    "input other rounding_mode=None",
    tensors=2,
    aliases=(operator.truediv, operator.itruediv, torch.divide, torch.true_divide),
    methods="div div_ divide",
    aten="div.Tensor div_.Tensor div.Tensor_mode div.Scalar",
)
_word(
    "pow",
    torch.pow,
    "input other",
    tensors=2,
    aliases=(operator.pow,),
    methods="pow",
    aten="pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar",
)
_word("maximum", torch.maximum, "input other", tensors=2, methods="maximum", aten="maximum.default max.other")
_word("minimum", torch.minimum, "input other", tensors=2, methods="minimum", aten="minimum.default min.other")
_word("where", torch.where, "condition input other", tensors=3, aten="where.self where.ScalarOther where.ScalarSelf")
_word(
    "masked_fill",
    torch.masked_fill,
    "input mask value",
    tensors=2,
    methods="masked_fill masked_fill_",
    aten="masked_fill.Scalar masked_fill_.Scalar",
)
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or"):
    _aliases = (getattr(operator, _name),) if hasattr(operator, _name) else ()
    _word(
        _name,
        getattr(torch, _name),
        "input other",
        tensors=2,
        aliases=_aliases,
        methods=_name,
        aten=f"{_name}.Tensor {_name}.Scalar {_name}.default",
    )
for _name, _symbol in (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)):
    _long, _aten = f"bitwise_{_name}", f"bitwise_{_name}.Tensor bitwise_{_name}.Scalar __{_name}__.Tensor __{_name}__.Scalar"
    _word(_long, getattr(torch, _long), "input other", tensors=2, aliases=(_symbol,), methods=f"{_long} __{_name}__", aten=_aten)
_word("bitwise_not", torch.bitwise_not, aliases=(operator.invert,), methods="bitwise_not", aten="bitwise_not.default")
for _name, _symbol in (("floor_divide", operator.floordiv), ("remainder", operator.mod)):
    _aten = f"{_name}.default {_name}.Tensor {_name}.Scalar"
    _word(_name, getattr(torch, _name), "input other", tensors=2, aliases=(_symbol,), methods=_name, aten=_aten)

# Elements moved, none computed.
_word(
    "reshape",
    torch.reshape,
    "input shape",
    methods="reshape view",
    aten="reshape.default view.default _unsafe_view.default",
    gathers="shape",
)
_word("flatten", torch.flatten, "input start_dim=0 end_dim=-1", methods="flatten", aten="flatten.using_ints")
_word("unflatten", torch.unflatten, "input dim sizes", methods="unflatten", aten="unflatten.int")
_word("permute", torch.permute, "input dims", methods="permute", aten="permute.default", gathers="dims")
_word(
    "transpose",
    torch.transpose,
    "input dim0 dim1",
    aliases=(torch.swapaxes, torch.swapdims),
    methods="transpose swapaxes swapdims",
    aten="transpose.int",
)
_word("movedim", torch.movedim, "input source destination", methods="movedim", aten="movedim.int movedim.intlist")
_word("unsqueeze", torch.unsqueeze, "input dim", methods="unsqueeze", aten="unsqueeze.default")
_word("squeeze", torch.squeeze, "input dim=None", methods="squeeze", aten="squeeze.default squeeze.dim squeeze.dims")
_word("expand", "expand", "input shape", aten="expand.default", gathers="shape")
_word("getitem", operator.getitem, "input index")
_word("narrow", torch.narrow, "input dim start length", methods="narrow", aten="narrow.default")
_word("chunk", torch.chunk, "input chunks dim=0", methods="chunk", aten="chunk.default")
_word(
    "split",
    torch.split,
    "input sections dim=0",
    aliases=(torch.functional.split,),
    methods="split",
    aten="split.Tensor split_with_sizes.default split.sizes",
)
_word("tensor_split", torch.tensor_split, "input sections dim=0", methods="tensor_split", aten="tensor_split.sections tensor_split.indices")
_word("unbind", torch.unbind, "input dim=0", methods="unbind", aten="unbind.int")
_word("stack", torch.stack, "tensors dim=0", aten="stack.default")
_word("cat", torch.cat, "tensors dim=0", aliases=(torch.concat, torch.concatenate), aten="cat.default")
_word("flip", torch.flip, "input dims", methods="flip", aten="flip.default", gathers="dims")
_word("roll", torch.roll, "input shifts dims", methods="roll", aten="roll.default")
_word("index_select", torch.index_select, "input dim index", methods="index_select", aten="index_select.default")
_word("gather", torch.gather, "input dim index", methods="gather", aten="gather.default")
_word("index_add", torch.index_add, "input dim index source", methods="index_add", aten="index_add.default")
_word("select_scatter", torch.select_scatter, "input src dim index", tensors=2, methods="select_scatter", aten="select_scatter.default")
_word("slice_scatter", torch.slice_scatter, "input src dim=0 start=None end=None step=1", tensors=2, methods="slice_scatter",
      aten="slice_scatter.default")  # fmt: skip
_word("channel_shuffle", F.channel_shuffle, "input groups", aliases=(torch.channel_shuffle,), aten="channel_shuffle.default")
_word("repeat", "repeat", "input repeats", aten="repeat.default", gathers="repeats")
_word(
    "repeat_interleave",
    torch.repeat_interleave,
    "input repeats dim=None",
    methods="repeat_interleave",
    aten="repeat_interleave.self_int",
)
_word("unfold", "unfold", "input dimension size step", aten="unfold.default")
_word("pixel_unshuffle", F.pixel_unshuffle, "input downscale_factor", aliases=(torch.pixel_unshuffle,), aten="pixel_unshuffle.default")
_word("pixel_shuffle", F.pixel_shuffle, "input upscale_factor", aliases=(torch.pixel_shuffle,), aten="pixel_shuffle.default")

# Sums and products over whole dimensions.
_word("mean", torch.mean, "input dim=None keepdim=False", methods="mean", aten="mean.dim mean.default", gathers="dim")
_word("sum", torch.sum, "input dim=None keepdim=False", methods="sum", aten="sum.dim_IntList sum.default", gathers="dim")
_word("amax", torch.amax, "input dim=None keepdim=False", methods="amax", aten="amax.default", gathers="dim")
_word("amin", torch.amin, "input dim=None keepdim=False", methods="amin", aten="amin.default", gathers="dim")
for _name in ("argmax", "argmin"):
    _word(_name, getattr(torch, _name), "input dim=None keepdim=False", methods=_name, aten=f"{_name}.default")
_word("topk", torch.topk, "input k dim=-1 largest=True sorted=True", methods="topk", aten="topk.default")
for _name in ("sort", "argsort"):
    _aten = f"{_name}.default {_name}.stable"
    _word(_name, getattr(torch, _name), "input dim=-1 descending=False stable=False", methods=_name, aten=_aten)
for _name in ("any", "all"):
    _word(_name, getattr(torch, _name), "input dim=None keepdim=False", methods=_name, aten=f"{_name}.default {_name}.dim {_name}.dims")
_word("var", torch.var, "input dim=None correction=1 keepdim=False", methods="var", aten="var.dim var.correction", gathers="dim")
_word("vector_norm", torch.linalg.vector_norm, "input ord=2 dim=None keepdim=False", aten="linalg_vector_norm.default")
_word("diff", torch.diff, "input n=1 dim=-1 prepend=None append=None", methods="diff", aten="diff.default")
_word("cumsum", torch.cumsum, "input dim dtype=None", methods="cumsum", aten="cumsum.default")
_word("softmax", torch.softmax, "input dim dtype=None", aliases=(F.softmax,), methods="softmax", aten="softmax.int _softmax.default")
_word(
    "log_softmax",
    torch.log_softmax,
    "input dim dtype=None",
    aliases=(F.log_softmax,),
    methods="log_softmax",
    aten="log_softmax.int _log_softmax.default",
)
_word("normalize", F.normalize, "input p=2.0 dim=1 eps=1e-12")
_word(
    "matmul",
    torch.matmul,
    "input other",
    tensors=2,
    aliases=(operator.matmul, torch.bmm, torch.mm),
    methods="matmul bmm mm __matmul__",
    aten="matmul.default bmm.default mm.default",
)
_word("linear", F.linear, "input weight bias=None", tensors=3, aten="linear.default")  # With a weight that is computed.
for _dims in (1, 2, 3):  # Likewise.
    _conv = f"conv{_dims}d"
    _word(_conv, getattr(F, _conv), "input weight bias=None stride=1 padding=0 dilation=1 groups=1", tensors=3,
          aliases=(getattr(torch, _conv),), aten=f"{_conv}.default {_conv}.padding")  # fmt: skip
_word("einsum", torch.einsum, "equation operands", tensors=2, aten="einsum.default", gathers="operands")
_word(
    "attention",
    F.scaled_dot_product_attention,
    "query key value attn_mask=None dropout_p=0.0 is_causal=False scale=None enable_gqa=False",
    tensors=4,
    aten="scaled_dot_product_attention.default",
)

# Feature maps.
_word(
    "interpolate",
    F.interpolate,
    "input size=None scale_factor=None mode=nearest align_corners=None recompute_scale_factor=None antialias=False",
    aten=" ".join(f"{operator_name}.vec" for operator_name in RESIZING),
)
for _dims in (1, 2, 3):  # With windows that are computed from sizes; all others are layers.
    _max, _mean, _adaptive = f"max_pool{_dims}d", f"avg_pool{_dims}d", f"adaptive_avg_pool{_dims}d"
    _window = "input kernel_size stride=None padding=0 "
    _word(_max, getattr(torch, _max), f"{_window}dilation=1 ceil_mode=False", aliases=(getattr(F, _max),), aten=f"{_max}.default")
    _word(_mean, getattr(F, _mean), f"{_window}ceil_mode=False count_include_pad=True", aten=f"{_mean}.default")
    _word(_adaptive, getattr(F, _adaptive), "input output_size", aten=f"{_adaptive}.default")
_word("pad", F.pad, "input pad mode=constant value=None", aten="pad.default constant_pad_nd.default")

# Sizes, which are numbers, and tensors made from them.
_word("size", "size", "input dim", aten="sym_size.int")
_word("arange", torch.arange, "start end=None step=1 dtype=None", tensors=0, aten="arange.default arange.start arange.start_step")
_word("zeros", torch.zeros, "shape dtype=None", tensors=0, aten="zeros.default", gathers="shape")
_word("ones", torch.ones, "shape dtype=None", tensors=0, aten="ones.default", gathers="shape")
_word("full", torch.full, "shape fill_value dtype=None", tensors=0, aten="full.default")
_word("eye", torch.eye, "n m=None dtype=None", tensors=0, aten="eye.default eye.m")
CREATING = frozenset({"arange", "zeros", "ones", "full", "eye"})
"""Functions that make tensors from numbers alone: on the device of the network's inputs."""
for _name in ("new_zeros", "new_ones"):
    _word(_name, _name, "input shape dtype=None", aten=f"{_name}.default", gathers="shape")
_word("new_full", "new_full", "input shape fill_value dtype=None", aten="new_full.default")
_word("zeros_like", torch.zeros_like, "input dtype=None", aten="zeros_like.default")
_word("ones_like", torch.ones_like, "input dtype=None", aten="ones_like.default")
_word("full_like", torch.full_like, "input fill_value dtype=None", aten="full_like.default")
_word("outer", torch.outer, "input other", tensors=2, methods="outer", aten="outer.default")
_word("triu", torch.triu, "input diagonal=0", methods="triu", aten="triu.default")
_word("tril", torch.tril, "input diagonal=0", methods="tril", aten="tril.default")

INT_ARITHMETIC: frozenset[Callable[..., Any]] = frozenset((
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, operator.truediv, operator.neg, operator.pow,
    math.ceil, math.floor, math.trunc, torch.sym_max, torch.sym_min, torch.sym_float, torch.sym_int,
))  # fmt: skip
"""Arithmetic with sizes; ``torch``'s own forms of max, min, float and int let it be followed once more."""

# fmt: off
ELEMENTWISE = frozenset((
    "sigmoid", "tanh", "exp", "log", "sqrt", "rsqrt", "abs", "neg", "square", "sin", "cos", "erf", "reciprocal", "floor", "ceil", "round",
    "sign", "log1p", "expm1", "logical_not", "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "hardswish",
    "hardsigmoid", "hardtanh", "softplus", "softsign", "logsigmoid", "threshold", "hardshrink", "softshrink",
    "tanhshrink", "clamp", "to", "detach",
))
MOVEMENT = frozenset((
    "reshape", "flatten", "unflatten", "permute", "transpose", "movedim", "unsqueeze", "squeeze", "expand", "getitem", "narrow", "chunk",
    "split", "tensor_split", "unbind", "stack", "flip", "roll", "channel_shuffle", "pixel_shuffle", "pixel_unshuffle",
    "repeat", "repeat_interleave",
))
# fmt: on
POOLING = frozenset(f"{kind}{dims}d" for kind in ("max_pool", "avg_pool", "adaptive_avg_pool") for dims in (1, 2, 3))
HOMOGENEOUS = frozenset({"relu", "leaky_relu"})
"""f(s x) = s f(x) for s > 0, among the functions that work element by element."""


def pooled_dimensions(word: str | None) -> int | None:
    """How many dimensions of positions a pooling among the functions works on; None for another one. See ``positional_dimensions``."""
    return int(word[-2]) if word in POOLING else None
