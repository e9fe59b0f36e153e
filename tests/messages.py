"""All sentences of errors in the code, as tests/messages.txt lists them.

    python -m tests.messages

writes that file anew: a change of words is then read as a difference of it. A value in a sentence
stands in braces, as the expression that it comes from.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from ninefold.errors import KINDS

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).parent / "messages.txt"


def text(node: ast.expr) -> str:
    """The text of an expression: what is constant as it is, the rest in braces."""
    match node:
        case ast.Constant(value=str(said)):
            return said
        case ast.JoinedStr(values=parts):
            return "".join(map(text, parts))
        case ast.FormattedValue(value=value):
            return f"{{{ast.unparse(value)}}}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return text(left) + text(right)
        case ast.IfExp(body=body, orelse=other):
            return f"({text(body)} | {text(other)})"
    return f"{{{ast.unparse(node)}}}"


def sites(tree: ast.AST) -> Iterator[str]:
    """A line for each failure that is made in a module: its kind, and its line as it is printed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (kind := ast.unparse(node.func)) in KINDS and node.args:
            field, *more = [text(argument) for argument in node.args]
            value, sentence = (more[0], "; ".join(more[1:])) if more else ("", "")
            yield f"{kind}: {field}={value}: {sentence}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "Combination":
            field, _, *sentence = map(text, node.args[:5])
            yield f"ConfigError: {field}={{{field.strip('{}')}}}: {'; '.join(sentence)}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "Known":
            kind, field, value, wrong, do = map(text, node.args[1:])
            yield f"{kind.strip('{}')}: {field}={value}: {wrong}; {do}"


def catalog() -> str:
    """What tests/messages.txt is to hold."""
    lines: list[str] = []
    for path in sorted(ROOT.glob("ninefold/**/*.py")):
        if found := sorted(sites(ast.parse(path.read_text()))):
            lines += [
                path.relative_to(ROOT).as_posix().removeprefix("ninefold/"),
                *(f"  {line}" for line in found),
                "",
            ]
    return "\n".join(lines)


if __name__ == "__main__":
    FILE.write_text(catalog())
