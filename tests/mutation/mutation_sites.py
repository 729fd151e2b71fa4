"""Small wrong changes of a Python source, found in its syntax tree: what ``mutation.py`` samples from.

A mutant replaces one expression or statement by its text range, so the rest of the file stays as it was written.
Texts are left alone: annotations, docstrings, f-strings, and what an error says.
"""

import ast
import copy
import hashlib
from dataclasses import dataclass

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Add, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
#: keywords that stay: a second guard, a second device, what an error says
KEPT = (None, "strict", "device", "remedy")
#: calls whose first two arguments may change places
SYMMETRIC = (
    "transpose",
    "promote_types",
    "maximum",
    "minimum",
    "max",
    "min",
    "equal",
    "allclose",
    "logaddexp",
    "broadcast_shapes",
)
#: calls that are not looked into
TEXTS = ("usage_error", "missing_extra", "require_package", "many", "field", "cast", "TypeVar", "Support", "overload")


@dataclass(frozen=True)
class Mutant:
    file: str  # below src/whence
    function: str
    line: int
    kind: str
    original: str
    mutated: str
    number: int  # among equal changes of the same function
    start: int  # byte offsets of what is replaced
    end: int
    text: str  # what is replaced, as written

    @property
    def id(self):
        """The same as long as the function and what is changed in it are."""
        text = "\n".join((self.file, self.function, self.original, self.mutated, str(self.number)))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def applied(self, source):
        data = source.encode()
        if data[self.start : self.end].decode() != self.text:
            raise SystemExit(f"{self.file} was changed while mutants were made of it; start again")
        return (data[: self.start] + self.mutated.encode() + data[self.end :]).decode()


def mutants_of(file, source, function=None):
    """Every mutant of a source, or of one function of it, in the order of the text."""
    finder = Finder(file, source, function)
    finder.visit(ast.parse(source))
    return finder.found


class Finder(ast.NodeVisitor):
    def __init__(self, file, source, function=None):
        self.file, self.source, self.function = file, source, function
        self.lines = [0]
        for line in source.encode().splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))
        self.names, self.found, self.seen = [], [], {}

    # --- where to look ---------------------------------------------------------------------------------------------
    def visit_FunctionDef(self, node):
        if any("overload" in ast.unparse(d) for d in node.decorator_list):
            return
        self.names.append(node.name)
        for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None)):
            self.visit(default)
        self.block(node.body)
        self.names.pop()

    def visit_ClassDef(self, node):
        self.names.append(node.name)
        self.block(node.body)
        self.names.pop()

    def visit_Module(self, node):
        self.block(node.body)

    def block(self, body):
        for statement in body:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue  # a docstring
            self.visit(statement)

    def visit_Import(self, node):
        pass

    visit_ImportFrom = visit_JoinedStr = visit_Assert = visit_Import

    def visit_AnnAssign(self, node):
        if node.value is not None:
            self.visit(node.value)

    def visit_Raise(self, node):
        self.change(node, "pass", "dropped statement")

    def visit_If(self, node):
        if ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
            self.change(node.test, f"not {ast.unparse(node.test)}", "negated condition")
        self.generic_visit(node)

    # --- what to change --------------------------------------------------------------------------------------------
    def visit_Compare(self, node):
        for place, op in enumerate(node.ops):
            if type(op) in COMPARISONS:
                other = copy.deepcopy(node)
                other.ops[place] = COMPARISONS[type(op)]()
                self.change(node, other, "comparison")
        self.generic_visit(node)

    def visit_BinOp(self, node):
        text = any(isinstance(side, ast.JoinedStr) or _is_text(side) for side in (node.left, node.right))
        if type(node.op) in ARITHMETIC and not text:
            other = copy.deepcopy(node)
            other.op = ARITHMETIC[type(node.op)]()
            self.change(node, other, "arithmetic")
        self.generic_visit(node)

    def visit_AugAssign(self, node):
        if type(node.op) in ARITHMETIC and not _is_text(node.value):
            other = copy.deepcopy(node)
            other.op = ARITHMETIC[type(node.op)]()
            self.change(node, other, "arithmetic")
        self.generic_visit(node)

    def visit_BoolOp(self, node):
        other = copy.deepcopy(node)
        other.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self.change(node, other, "and/or")
        self.generic_visit(node)

    def visit_UnaryOp(self, node):
        if isinstance(node.op, ast.Not | ast.Invert | ast.USub) and not isinstance(node.operand, ast.Constant):
            self.change(node, node.operand, "dropped not or minus")
        self.generic_visit(node)

    def visit_IfExp(self, node):
        other = copy.deepcopy(node)
        other.body, other.orelse = other.orelse, other.body
        self.change(node, other, "swapped branches")
        self.generic_visit(node)

    def visit_Constant(self, node):
        if isinstance(node.value, bool):
            self.change(node, repr(not node.value), "True/False")
        elif isinstance(node.value, int):
            self.change(node, str(node.value + 1), "off by one")
        elif isinstance(node.value, float):
            self.change(node, repr(node.value * 2 if node.value else 1.0), "constant")

    def visit_Slice(self, node):
        for bound in (node.lower, node.upper):
            if bound is not None and not isinstance(bound, ast.Constant):
                self.change(bound, f"{ast.unparse(bound)} + 1", "slice bound")
        self.generic_visit(node)

    def visit_Call(self, node):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in TEXTS:
            return
        for place in range(len(node.keywords)):
            if node.keywords[place].arg not in KEPT:
                other = copy.deepcopy(node)
                del other.keywords[place]
                self.change(node, other, "dropped keyword")
        plain = [a for a in node.args[:2] if not isinstance(a, ast.Starred) and not _is_text(a)]
        if len(plain) == 2 and ast.unparse(plain[0]) != ast.unparse(plain[1]) and name not in SYMMETRIC:
            other = copy.deepcopy(node)
            other.args[0], other.args[1] = other.args[1], other.args[0]
            self.change(node, other, "swapped arguments")
        self.generic_visit(node)

    def visit_Expr(self, node):
        if isinstance(node.value, ast.Call):
            self.change(node, "pass", "dropped statement")
        self.generic_visit(node)

    def visit_Assign(self, node):
        if all(isinstance(target, ast.Subscript) for target in node.targets):
            self.change(node, "pass", "dropped statement")
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)

    def visit_Break(self, node):
        self.change(node, "pass", "dropped statement")

    visit_Continue = visit_Break

    def change(self, node, by, kind):
        if isinstance(by, ast.AST):
            by = ast.unparse(by)
            if not isinstance(node, ast.stmt):
                by = f"({by})"
        start = self.lines[node.lineno - 1] + node.col_offset
        end = self.lines[node.end_lineno - 1] + node.end_col_offset
        original = ast.unparse(node)
        key = (".".join(self.names), original, by)
        if self.function not in (None, key[0]):
            return
        number = self.seen[key] = self.seen.get(key, -1) + 1
        text = self.source.encode()[start:end].decode()
        mutant = Mutant(self.file, key[0], node.lineno, kind, original, by, number, start, end, text)
        try:
            ast.parse(mutant.applied(self.source))
        except SyntaxError:  # for instance a call that is a decorator's line
            return
        self.found.append(mutant)


def _is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
