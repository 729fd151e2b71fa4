"""The formulas of quotes, which are LaTeX in the sources, as Unicode text for pages and terminals."""

from __future__ import annotations

import re

SYMBOLS = {
    r"\alpha": "α", r"\beta": "β", r"\gamma": "γ", r"\epsilon": "ε", r"\theta": "θ", r"\phi": "φ", r"\cdot": "·", r"\times": "×",
    r"\to": "→", r"\in": "∈", r"\sin": "sin", r"\cos": "cos", r"\{": "{", r"\}": "}", r"\|": "‖", r"\left": "", r"\right": "",
}  # fmt: skip
SUBSCRIPTS = str.maketrans("0123456789aeijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉ₐₑᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ")
SUPERSCRIPTS = str.maketrans("0123456789+-TLαβγ*", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ᵀᴸᵅᵝᵞ*")
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|.")


def plain_quote(quote: str) -> str:
    r"""A quote on one line, its LaTeX as text. A quote with commands and without dollar signs is one formula.

    >>> plain_quote(r"weight $\frac{\alpha}{1+\gamma}$ of $A_{ij}$,  $e^{-\beta \cdot |i-j|/L} \to 0$")
    'weight α/(1+γ) of Aᵢⱼ, e^(-β · |i-j|/L) → 0'
    >>> plain_quote(r"PE(i, 2d) = \sin\left(\frac{i}{d_{model}}\right)")
    'PE(i, 2d) = sin(i/d_model)'
    """
    line = " ".join(quote.split())
    if "$" in line:
        return re.sub(r"\$(.+?)\$", lambda found: _format_formula(found[1]), line)
    return _format_formula(line) if re.search(r"\\[A-Za-z]", line) else line


def _format_formula(latex: str) -> str:
    return _read_group(_TOKEN.findall(latex)[::-1])


def _read_group(tokens: list[str]) -> str:
    """The text up to the end of a group. The next token is the last of the list, and tokens that are read are removed."""
    parts = []
    while tokens and (token := tokens.pop()) != "}":
        parts.append(_format_token(token, tokens))
    return "".join(parts)


def _read_argument(tokens: list[str]) -> str:
    return _format_token(tokens.pop(), tokens) if tokens else ""


def _format_token(token: str, tokens: list[str]) -> str:
    if token == "{":
        return _read_group(tokens)
    if token in (r"\text", r"\operatorname"):
        return _read_argument(tokens)
    if token == r"\frac":
        top, bottom = _read_argument(tokens), _read_argument(tokens)
        return f"{_enclose(top)}/{_enclose(bottom)}"
    if token in "_^":
        script, small = _read_argument(tokens), SUBSCRIPTS if token == "_" else SUPERSCRIPTS
        return script.translate(small) if all(ord(one) in small for one in script) else f"{token}{_enclose(script)}"
    return SYMBOLS.get(token, token)


def _enclose(text: str) -> str:
    """A text in parentheses, unless it is a number or a word."""
    return text if re.fullmatch(r"\w+", text) else f"({text})"
