"""Rejects Python that lets a view of C memory outlive its owner.

    python tools/cdata_lint.py [FILE ...]    by default all of logstore/, tests/, tools/ and benchmarks/

In cffi only the results of ``ffi.new``, ``ffi.from_buffer`` and allocators own memory. A slice of an owner, an item or
a field that is a struct or an array, a pointer made from it, and an ``ffi.buffer`` of any of these own nothing: they
are views. Three things are rejected:

* A view that leaves the function in which its owner was made, or the object that keeps the owner: returned, yielded,
  stored in an attribute, or kept by an object made from it. Arguments of other calls count as copied.
* A view of an owner that no name holds: ``made().field``, ``ffi.new(...)[0]``, ``ffi.from_buffer(...) + 8``.
* A pointer field set to an owner that no name holds, and a struct returned without what its fields point to.

``ffi.gc`` is rejected as well: the garbage collector runs its destructor while other finalizers of the same
cycle may still use the memory. ``logstore.core.native.owned`` makes an owner that is freed last.

Types are looked up in the core's module and in further headers, because numbers are copies and allowed everywhere. The
check does not follow a view into a called function. Exit status: 0, or 1 if something is rejected.
"""

from __future__ import annotations

import ast
import functools
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cffi import FFI

from logstore import _build_core
from logstore._core import ffi

ROOT = Path(__file__).resolve().parent.parent
# Further declarations: those that only tests build, and those of the consensus engine.
FURTHER = (ROOT / "csrc/tests/sim/testing.h", ROOT / "csrc/consensus/engine.h")
FOLDERS = ("logstore", "tests", "tools", "benchmarks")
LAZY = frozenset({"enumerate", "filter", "iter", "list", "map", "reversed", "set", "sorted", "tuple", "zip"})
KEEPING = frozenset({"add", "append", "appendleft", "extend", "insert", "setdefault", "update"})
NUMBERS = frozenset({"primitive", "enum", "pointer", "function"})
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Memory:
    """The value of an expression: an owner or a view, and its C type if known."""

    type: Any
    owner: bool = False
    held: bool = True
    """A name refers to it; otherwise it is freed with the expression."""
    points: bool = False
    """A field of it points to another owner."""
    buffer: bool = False


@functools.cache
def further() -> FFI:
    """The declarations that the core's module lacks."""
    found = FFI()
    headers = "".join(_build_core.declarations(path.read_text(encoding="utf-8")) for path in FURTHER)
    found.cdef(f"typedef struct vfs vfs;{headers}")
    return found


def type_of(spec: ast.expr | None) -> Any:
    """The C type that this literal names; None if it is not a literal."""
    if not isinstance(spec, ast.Constant) or not isinstance(spec.value, str):
        return None
    try:
        return ffi.typeof(spec.value)
    except ffi.error:
        return further().typeof(spec.value)


def view_of(item: Any) -> Memory | None:
    """The value for this type; numbers and pointers are copies, not views."""
    return None if item is not None and item.kind in NUMBERS else Memory(item)


def ffi_call(node: ast.AST) -> str:
    """``new`` of ``ffi.new(...)``, or nothing."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
        return node.func.attr if node.func.value.id == "ffi" else ""
    return ""


def name_of(node: ast.expr) -> str:
    """The last part of the name of a function or attribute."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def root_of(node: ast.expr) -> str:
    """The name that an expression begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


class Owners(ast.NodeVisitor):
    """The names in a file that make or keep an owner: allocators, functions, attributes of ``self``."""

    def __init__(self, tree: ast.AST) -> None:
        self.makers: dict[str, Any] = {}
        self.attributes: dict[str, Any] = {}
        self.functions = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
        self.visit(tree)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assigned(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._assigned(node.target, node.value)

    def _assigned(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name) and ffi_call(value or target) == "new_allocator":
            self.makers[target.id] = None
        elif isinstance(target, ast.Attribute) and isinstance(value, ast.Call) and ffi_call(value) == "new":
            self.attributes[target.attr] = type_of(value.args[0])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        made = {
            target.id: type_of(each.value.args[0])
            for each in ast.walk(node)
            if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call) and ffi_call(each.value) == "new"
            for target in each.targets
            if isinstance(target, ast.Name)
        }
        for each in ast.walk(node):
            if isinstance(each, ast.Return) and each.value is not None:
                if isinstance(each.value, ast.Name) and each.value.id in made:
                    self.makers[node.name] = made[each.value.id]
                elif isinstance(each.value, ast.Call) and ffi_call(each.value) in ("new", "from_buffer"):
                    self.makers[node.name] = type_of(each.value.args[0])
        self.generic_visit(node)


class Function(ast.NodeVisitor):
    """Checks one function, statement by statement."""

    def __init__(self, owners: Owners) -> None:
        self.owners = owners
        self.known: dict[str, Memory] = {}
        self.found: dict[tuple[int, int], str] = {}

    def reject(self, node: ast.AST, why: str) -> None:
        self.found.setdefault((node.lineno, node.col_offset), why)  # type: ignore[attr-defined]

    # ---- The values of expressions

    def memory(self, node: ast.AST) -> Memory | None:
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if isinstance(node, ast.Call):
            return self._called(node)
        if isinstance(node, ast.Attribute):
            base = self.memory(node.value)
            if base is None:
                kept = self.owners.attributes
                return Memory(kept[node.attr], owner=True) if node.attr in kept else None
            return self._part(node, base, self._field(base.type, node.attr))
        if isinstance(node, ast.Subscript):
            base = self.memory(node.value)
            if base is None or base.buffer:
                return None
            item = getattr(base.type, "item", None) if base.type is not None else None
            if isinstance(node.slice, ast.Slice):
                return self._part(node, base, None if item is None else ffi.typeof(ffi.getctype(item, "[]")))
            return self._part(node, base, item)
        if isinstance(node, ast.BinOp):
            base = self.memory(node.left)
            return base and self._part(node, base, None)
        if isinstance(node, ast.NamedExpr):
            return self.memory(node.value)
        return None

    def _called(self, node: ast.Call) -> Memory | None:
        kind, args = ffi_call(node), node.args
        if kind in ("new", "from_buffer"):
            return Memory(type_of(args[0]), owner=True, held=False)
        if kind in ("addressof", "cast", "buffer"):
            base = self.memory(args[1 if kind == "cast" else 0])
            if base is None or (kind == "buffer" and base.owner):
                return None  # a buffer keeps its owner
            made = type_of(args[0]) if kind == "cast" else None
            number = made is not None and made.kind == "primitive"
            part = self._part(node, base, made)
            return None if number else Memory(made, buffer=kind == "buffer") if part is None else part
        if not kind and name_of(node.func) in self.owners.makers:
            return Memory(self.owners.makers[name_of(node.func)], owner=True, held=False)
        return None

    @staticmethod
    def _field(kind: Any, name: str) -> Any:
        if kind is not None and kind.kind == "pointer":
            kind = kind.item
        fields = dict(kind.fields or ()) if kind is not None and kind.kind == "struct" else {}
        return fields[name].type if name in fields else None

    def _part(self, node: ast.AST, base: Memory, item: Any) -> Memory | None:
        if base.owner and not base.held:
            self.reject(node, "no name holds the owner of this memory: bind it to one first")
        return view_of(item)

    # ---- Uses that a view must not have

    def escapes(self, node: ast.expr | None) -> None:
        """This value leaves the function."""
        if node is None or isinstance(node, ast.Constant):
            return
        found = self.memory(node)
        if found is not None:
            if found.points:
                self.reject(node, "its fields point to memory that is freed with this function")
            elif not found.owner:
                self.reject(node, "a view leaves the function or object of its owner: copy it")
        elif isinstance(node, ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp):
            self._comprehended(node)
        elif isinstance(node, ast.Lambda):
            if any(isinstance(each, ast.Name) and self._is_view(each) for each in ast.walk(node.body)):
                self.reject(node, "this function keeps a view without its owner")
        elif isinstance(node, ast.Call):
            self._called_with(node)
        elif isinstance(node, ast.IfExp):
            self.escapes(node.body)
            self.escapes(node.orelse)
        elif isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict | ast.BoolOp | ast.Starred | ast.NamedExpr):
            for each in ast.iter_child_nodes(node):
                if isinstance(each, ast.expr):
                    self.escapes(each)

    def _is_view(self, node: ast.expr) -> bool:
        found = self.memory(node)
        return found is not None and not found.owner

    def _called_with(self, node: ast.Call) -> None:
        """The result of a call leaves the function: classes and iterators keep their arguments."""
        if isinstance(node.func, ast.Name) and node.func.id in LAZY:
            for each in node.args:
                self._iterated(each)
        elif name_of(node.func)[:1].isupper():
            for each in (*node.args, *(keyword.value for keyword in node.keywords)):
                if self._is_view(each):
                    self.reject(each, "an object keeps a view of memory that it does not own: copy it")

    def _iterated(self, node: ast.expr) -> None:
        """The items of this value leave the function."""
        found = self.memory(node)
        if found is None:
            self.escapes(node)
        elif not found.buffer and view_of(getattr(found.type, "item", None)) is not None:
            self.reject(node, "its items are views of memory that is freed with this function: copy them")

    def _comprehended(self, node: Any) -> None:
        before = dict(self.known)
        for each in node.generators:
            self._bind_items(each.target, each.iter)
        if isinstance(node, ast.GeneratorExp) and self.memory(node.generators[0].iter) is not None:
            self.reject(node, "a generator keeps a view without its owner: make a list")
        else:
            for element in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
                self.escapes(element)
        self.known = before

    # ---- Statements

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, other in zip(target.elts, value.elts, strict=True):
                self._bind(one, other)
            return
        found = self.memory(value)
        if isinstance(target, ast.Name):
            self.known.pop(target.id, None)
            if found is not None:
                self.known[target.id] = Memory(found.type, found.owner, points=found.points, buffer=found.buffer)
            return
        into = self.known.get(root_of(target))
        if into is not None and found is not None and found.owner:
            if not found.held:
                self.reject(value, "no name holds the memory that this field points to: bind it to one first")
            elif into.owner:
                self.known[root_of(target)] = Memory(into.type, owner=True, points=True)
        elif into is None and root_of(target) == "self":
            self.escapes(value)
        elif into is None and found is not None and not found.owner:
            self.known[root_of(target)] = found

    def _bind_items(self, target: ast.expr, iterated: ast.expr) -> None:
        found = self.memory(iterated)
        if isinstance(target, ast.Name):
            self.known.pop(target.id, None)
            item = found and view_of(getattr(found.type, "item", None))
            if item is not None:
                self.known[target.id] = item

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, FUNCTIONS):
            return  # of its own
        self.memory(node)
        if isinstance(node, ast.For | ast.AsyncFor):
            self._bind_items(node.target, node.iter)
        self.generic_visit(node)
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, node.value)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._bind(node.target, node.value)
        elif isinstance(node, ast.Return | ast.Yield):
            self.escapes(node.value)
        elif isinstance(node, ast.YieldFrom):
            self._iterated(node.value)
        elif isinstance(node, ast.Call):
            self._call(node)

    def _call(self, node: ast.Call) -> None:
        if ffi_call(node) == "gc":
            self.reject(
                node, "the garbage collector would free this before the last finalizer that uses it: use owned()"
            )
        if name_of(node.func) == "setattr" and len(node.args) == 3:
            value = self.memory(node.args[2])
            if value is not None and value.owner and not value.held:
                self.reject(node.args[2], "no name holds the memory that this field points to: bind it to one first")
        elif isinstance(node.func, ast.Attribute) and node.func.attr in KEEPING:
            for each in node.args:
                found = self.memory(each)
                if found is not None and not found.owner:
                    if root_of(node.func) in ("", "self"):
                        self.escapes(each)
                    else:
                        self.known[root_of(node.func)] = found


def check(sources: dict[Path, str]) -> list[str]:
    """One line for each rejected place in these files."""
    trees = {path: ast.parse(text) for path, text in sources.items() if "ffi" in text}
    by_path = {path: Owners(tree) for path, tree in trees.items()}
    shared = {name: kind for owners in by_path.values() for name, kind in owners.makers.items()}
    told = []
    for path, tree in trees.items():
        owners = by_path[path]
        owners.makers |= {name: kind for name, kind in shared.items() if name not in owners.functions}
        for function in ast.walk(tree):
            if isinstance(function, FUNCTIONS):
                looked = Function(owners)
                body = function.body if isinstance(function.body, list) else [ast.Return(function.body)]
                for statement in body:
                    looked.visit(statement)
                told += [f"{path}:{line}: {why}" for (line, _), why in sorted(looked.found.items())]
    return told


def main() -> int:
    paths = [Path(name) for name in sys.argv[1:]] or [p for f in FOLDERS for p in sorted((ROOT / f).rglob("*.py"))]
    told = check({path: path.read_text(encoding="utf-8") for path in paths})
    print("\n".join(told), file=sys.stderr, end="\n" if told else "")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
