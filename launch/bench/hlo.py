"""What a compiled program starts and moves, from the text of its optimised HLO: kernels and bytes, with trip counts."""

import functools
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

_free = {  # operations that start nothing
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier", "partition-id"),
    *("replica-id", "async-update", "async-done", "copy-done", "slice-done", "all-gather-done", "all-reduce-done"),
}
_bits = {"pred": 8, "token": 0}  # all other types end in their number of bits
_header = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_instruction = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_trips = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


class Work(NamedTuple):
    """Kernels that are started, and bytes that they read and write."""

    kernels: int
    bytes: int

    def times(self, n: int) -> "Work":
        """n times the same."""
        return Work(n * self.kernels, n * self.bytes)


class Instruction(NamedTuple):
    """One line of HLO: its name, the bytes of its result, the operation, the names of its operands, and all that follows."""

    name: str
    bytes: int
    operation: str
    operands: tuple[str, ...]
    attributes: str
    root: bool


def program_work(text: str) -> Work:
    """The work of a compiled program.

    A loop counts as often as it runs, of branches the largest one. Of a table that is only read or written by rows, the rows
    count.

    Args:
        text: `compiled.as_text()`.

    Raises:
        ValueError: a loop without a known number of trips.

    Example:
        >>> program_work('''
        ... body (p: f32[8]) -> f32[8] {
        ...   p = f32[8]{0} parameter(0)
        ...   ROOT e = f32[8]{0} exponential(p)
        ... }
        ... ENTRY main (x: f32[8]) -> f32[8] {
        ...   x = f32[8]{0} parameter(0)
        ...   ROOT w = f32[8]{0} while(x), body=body, backend_config={"known_trip_count":{"n":"5"}}
        ... }
        ... ''')
        Work(kernels=5, bytes=320)
    """
    computations, entry = _parse(text)

    @functools.cache
    def of_computation(name: str) -> Work:
        instructions = computations[name]
        parts = [of_instruction(line, instructions) for line in instructions.values()]
        return Work(sum(part.kernels for part in parts), sum(part.bytes for part in parts))

    def of_instruction(line: Instruction, others: Mapping[str, Instruction]) -> Work:
        if line.operation in _free:
            return Work(0, 0)
        if line.operation == "while":
            return of_computation(_called(line, "body")[0]).times(_trip_count(line, computations))
        if line.operation == "conditional":
            branches = _called(line, "branch_computations") or [
                *_called(line, "true_computation"),
                *_called(line, "false_computation"),
            ]
            return max(map(of_computation, branches), key=lambda work: work.kernels)
        if line.operation in ("call", "async-start"):
            return of_computation((_called(line, "to_apply") or _called(line, "calls"))[0])
        inside = computations[_called(line, "calls")[0]] if line.operation == "fusion" else None
        return Work(1, _bytes_of(line, others, inside))

    return of_computation(entry)


def _bytes_of(line: Instruction, others: Mapping[str, Instruction], inside: Mapping[str, Instruction] | None) -> int:
    """What one kernel reads and writes."""
    if inside is None:
        inside = {name: others[name]._replace(operation="parameter", operands=(), root=False) for name in line.operands}
        inside = {**inside, line.name: line._replace(root=True)}
    parameters = [one for one in inside.values() if one.operation == "parameter"]
    total = 0
    for one in parameters:
        users = [user for user in inside.values() if one.name in user.operands]
        total += min(one.bytes, sum(_read(user, one.name, inside) for user in users))
    return total + _written(next(one for one in inside.values() if one.root), inside)


def _read(user: Instruction, name: str, inside: Mapping[str, Instruction]) -> int:
    """The bytes that an instruction reads of an operand."""
    if user.operation in ("gather", "dynamic-slice") and user.operands[0] == name:
        return user.bytes
    if user.operation in ("scatter", "dynamic-update-slice") and user.operands[0] == name:
        return inside[user.operands[-1] if user.operation == "scatter" else user.operands[1]].bytes
    if user.operation == "bitcast":  # what is done with it
        return sum(_read(other, user.name, inside) for other in inside.values() if user.name in other.operands)
    return inside[name].bytes


def _written(root: Instruction, inside: Mapping[str, Instruction]) -> int:
    """The bytes that the root of a kernel writes."""
    if root.operation == "tuple":
        return sum(_written(inside[name], inside) for name in root.operands)
    if root.operation == "bitcast":
        return _written(inside[root.operands[0]], inside)
    if root.operation == "scatter":
        return inside[root.operands[-1]].bytes
    return inside[root.operands[1]].bytes if root.operation == "dynamic-update-slice" else root.bytes


def _trip_count(loop: Instruction, computations: Mapping[str, Mapping[str, Instruction]]) -> int:
    """Of a loop of lax, whose counter starts at 0: what the compiler wrote beside it, or what the counter is compared with."""
    if known := _trips.search(loop.attributes):
        return int(known[1])
    condition = computations[_called(loop, "condition")[0]]
    root = next(line for line in condition.values() if line.root)
    limits = [condition[name].operands[0] for name in root.operands if condition[name].operation == "constant"]
    if "direction=LT" not in root.attributes or len(limits) != 1:
        raise ValueError(f"loop {loop.name}: its number of trips is not known; write it as a lax.scan")
    return int(limits[0])


def _called(line: Instruction, attribute: str) -> list[str]:
    found = re.search(rf"\b{attribute}=(\{{[^}}]*\}}|%?[\w.\-]+)", line.attributes)
    return re.findall(r"[\w.\-]+", found[1]) if found else []


def _parse(text: str) -> tuple[dict[str, dict[str, Instruction]], str]:
    """Computation -> name -> instruction, and the name of the entry."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry, now = "", {}
    for line in text.splitlines():
        if header := _header.match(line):
            now = computations[header[2]] = {}
            entry = header[2] if header[1] else entry
        elif found := _instruction.match(line):
            kind, rest = _split(found[3])
            operation, _, rest = rest.partition("(")
            inner, attributes = _split(f"({rest}")
            operands = re.findall(r"%?([\w.\-]+)(?=,|\)|$)", re.sub(r"/\*.*?\*/", "", inner))  # of a constant, its value
            now[found[2]] = Instruction(found[2], _size(kind), operation.strip(), tuple(operands), attributes, bool(found[1]))
    return computations, entry


def _split(text: str) -> tuple[str, str]:
    """The first term, in parentheses or up to a space, and what follows."""
    if not text.startswith("("):
        first, _, rest = text.partition(" ")
        return first, rest
    depth = 0
    for n, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[: n + 1], text[n + 1 :].lstrip()
    return text, ""


def _size(kind: str) -> int:
    """The bytes of a type.

    Example:
        >>> _size("(f32[2,3]{1,0:T(8,128)}, pred[])")
        25
    """
    total = 0
    for name, dimensions in re.findall(r"([a-z]\w*)\[([\d,]*)\]", kind):
        bits = _bits.get(name) if name in _bits else int(re.sub(r"^\D+(\d+).*", r"\1", name))
        total += -(-(bits or 0) * int(np.prod([int(d) for d in dimensions.split(",") if d], initial=1)) // 8)
    return total
