"""A model's graph by symbolic tracing with ``torch.fx``: fast, and it sees every layer as a module."""

import inspect
from threading import get_ident
from typing import Any

from torch import Tensor, fx, nn

from bayesprune.example_inputs import tensors_in
from bayesprune.gates import Gate
from bayesprune.gates.hooks import picked_inputs
from bayesprune.graph.transformers import (
    HiddenControlFlowError,
    attention_steps,
    check_written_out,
    encoder_layer_steps,
    encoder_steps,
    projection_layers,
)
from bayesprune.state import as_before

HEAD_GATE = "head_gate"


class LayerTracer(fx.Tracer):
    """Layers of ``torch.nn`` and gates are leaves; what is hooked onto a leaf here becomes nodes of its own; attention is written out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.thread = get_ident()
        attentions = {path: module for path, module in model.named_modules() if isinstance(module, nn.MultiheadAttention)}
        # Made before tracing starts, which turns every parameter that is read into a node.
        self.projections = {path: projection_layers(attention) for path, attention in attentions.items()}
        self.made_in_forward: dict[str, nn.Module] = {}

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if isinstance(m, Gate):
            return True
        return type(m).__module__.startswith("torch.nn") and not isinstance(m, (nn.Sequential, nn.ModuleList, nn.ModuleDict))

    def path_of_module(self, mod: nn.Module) -> str:
        """Also of a layer without tensors that the model's code makes anew in every call, such as ``nn.MaxPool2d(2)(x)``."""
        try:
            return super().path_of_module(mod)
        except NameError:
            if any(True for _ in (*mod.parameters(), *mod.buffers())):
                raise
        known = next((path for path, made in self.made_in_forward.items() if made is mod), f"made_in_forward_{len(self.made_in_forward)}")
        self.made_in_forward[known] = mod
        return known

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val if self._is_of_others() else super().getattr(attr, attr_val, parameter_proxy_cache)

    def _is_of_others(self) -> bool:
        """Whether another thread calls one of its modules meanwhile: tracing reaches all modules of the process."""
        return get_ident() != self.thread

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._is_of_others():
            return forward(*args, **kwargs)
        if isinstance(m, nn.MultiheadAttention):
            return self._attention(m, *args, **kwargs)
        if type(m) is nn.TransformerEncoderLayer:
            return self._encoder_layer(m, *args, **kwargs)
        if type(m) is nn.TransformerEncoder:
            return self._encoder(m, *args, **kwargs)
        path = self.path_of_module(m)
        if isinstance(m, Gate) or not self.is_leaf_module(m, path):
            return super().call_module(m, forward, args, kwargs)
        if any(
            not isinstance(child, (Gate, nn.ParameterList, nn.ModuleDict)) and any(True for _ in child.parameters())
            for child in m.children()
        ):
            raise HiddenControlFlowError(f"{path} ({type(m).__name__}) consists of several layers")
        pick = picked_inputs(m)
        if pick is not None:
            args = (pick.pick(args[0]), *args[1:])
        if m._modules.get("input_gate") is not None:
            args = (self._call(f"{path}.input_gate", args[0]), *args[1:])
        result = self.create_proxy("call_module", path, args, kwargs)
        return result if m._modules.get("output_gate") is None else self._call(f"{path}.output_gate", result)

    def _call(self, path: str, x: Any) -> Any:
        return self.create_proxy("call_module", path, (x,), {})

    def _attention(
        self,
        m: nn.MultiheadAttention,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        check_written_out(m, key_padding_mask=key_padding_mask, attn_mask=attn_mask, is_causal=is_causal)
        path = self.path_of_module(m)

        def heads(merged: Any) -> Any:
            return merged if m._modules.get(HEAD_GATE) is None else self._call(f"{path}.{HEAD_GATE}", merged)

        projections = [lambda x, name=name: self._call(f"{path}.{name}", x) for name in self.projections[path]]
        result = attention_steps(m, (query, key, value), projections, heads, lambda x: self._call(f"{path}.out_proj", x))
        return result, _Unavailable()

    def _encoder_layer(
        self, m: nn.TransformerEncoderLayer, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False
    ) -> Any:
        check_written_out(m.self_attn, src_mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=is_causal)
        return encoder_layer_steps(m, src)

    def _encoder(
        self, m: nn.TransformerEncoder, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: Any = None
    ) -> Any:
        check_written_out(m.layers[0].self_attn, mask=mask, src_key_padding_mask=src_key_padding_mask)
        return encoder_steps(m, src)


class _Unavailable:
    """Stands for the attention weights, which the written-out form does not compute."""

    def __getattr__(self, name: str) -> Any:
        raise HiddenControlFlowError("the weights of nn.MultiheadAttention are used")


def fx_graph(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[fx.Graph, dict[str, nn.Module | Tensor]]:
    """The graph of the model, and every module and tensor that it refers to by path.

    Parameters of ``forward`` that the example does not give keep their defaults.
    """
    signature = inspect.signature(model.forward)
    given = signature.bind_partial(*args, **kwargs).arguments
    fixed = {name: value for name, value in given.items() if not tensors_in(value)}
    for name, parameter in signature.parameters.items():
        if name not in given and parameter.default is not inspect.Parameter.empty:
            fixed[name] = parameter.default
    tracer = LayerTracer(model)
    with as_before(model):  # Where the model writes into itself, what it holds now are proxies.
        graph = tracer.trace(model, concrete_args=fixed)
    _drop_fixed_arguments(graph, set(fixed))
    made = dict(tracer.made_in_forward)
    made |= {f"{path}.{name}": layer for path, layers in tracer.projections.items() for name, layer in layers.items()}
    constants = {path: value for value, path in tracer.tensor_attrs.items() if isinstance(value, Tensor)}
    referred: dict[str, nn.Module | Tensor] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            referred[node.target] = made.get(node.target) or model.get_submodule(node.target)
        elif node.op == "get_attr":
            owner, _, name = node.target.rpartition(".")
            known = constants.get(node.target)
            referred[node.target] = getattr(model.get_submodule(owner), name) if known is None else known
    return graph, referred


def _drop_fixed_arguments(graph: fx.Graph, names: set[str]) -> None:
    """Take out the placeholders of arguments that tracing held constant, and the assertions that guard them."""
    for node in list(graph.nodes):
        if node.op == "placeholder" and str(node.target).removesuffix("_1") in names:
            _erase_guards(graph, node)
            if not node.users:
                graph.erase_node(node)


def _erase_guards(graph: fx.Graph, node: fx.Node) -> None:
    for user in list(node.users):
        _erase_guards(graph, user)
        if not user.users and user.op == "call_function":
            graph.erase_node(user)
