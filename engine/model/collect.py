"""Looking into the real forward pass: named activations, recorded while a block of code runs.

The idea is the seed of all debugging here: never keep a second, hand-copied forward path for looking inside, for it
will differ. Owns forward hooks and a wrapper around `attend`; when no collector is active the model runs without
either, so looking costs nothing when nobody looks. Names are those of the modules: `embed_tokens`,
`layers.0.self_attn.q_proj`, `layers.0.mlp` ..., and beside them, from the attention seam, `layers.0.self_attn.q_rope`,
`.k_rope`, `.v` and `.attention`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from engine.model.attention import Attend
from engine.model.llama import Llama


class Collector:
    """Records what the modules of a model answer, in the order in which they answer, while the `with` block runs.

    `wants` picks by name; a name that occurs again (a second pass) gets a suffix `#2`, `#3` ... Tensors are kept as
    float32 copies on the CPU.
    """

    def __init__(self, model: Llama, wants: Callable[[str], bool] = lambda name: True) -> None:
        self.model = model
        self.wants = wants
        self.activations: dict[str, Tensor] = {}
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> Collector:
        for name, module in self.model.named_modules():
            if name and not isinstance(module, (nn.ModuleList, nn.Identity)):
                self._hooks.append(module.register_forward_hook(self._recorder(name)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def watching(self, attend: Attend) -> Attend:
        """`attend`, with its queries, keys, values and answer recorded as well."""

        def watched(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            answer = attend(layer, q, k, v)
            for what, tensor in (("q_rope", q), ("k_rope", k), ("v", v), ("attention", answer)):
                self.record(f"layers.{layer}.self_attn.{what}", tensor)
            return answer

        return watched

    def record(self, name: str, tensor: Tensor) -> None:
        """Keep a copy under `name`, or under the next free `name#n`."""
        if not self.wants(name):
            return
        key, count = name, 1
        while key in self.activations:
            count += 1
            key = f"{name}#{count}"
        self.activations[key] = tensor.detach().float().cpu().clone()

    def _recorder(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor):  # the rotary module answers with a pair; its effect shows in q_rope
                self.record(name, output)

        return hook
