"""The model of the records and the source of the items, for the page. Older records lack them; the page states this."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from whence.probe.identity import describe_intervention
from whence.report.html_page import definition_list

UNKNOWN = "identity unknown (older record)"
SOURCE_UNKNOWN = "source unknown (older record)"
DIGITS = 12  # of a checksum


def model_details(model: Mapping[str, Any], identity: Mapping[str, Any] | None) -> str:
    """The model with its identity as a list of terms."""
    return definition_list([("model", html.escape(describe_model(model))), *identity_terms(identity)])


def describe_model(model: Mapping[str, Any]) -> str:
    parts = [str(model["name"])]
    if model.get("type"):
        parts.append(str(model["type"]))
    if model.get("layers"):
        parts.append(f"{model['layers']} layers")
    if model.get("parameters", 0) >= 1e6:
        parts.append(f"{model['parameters'] / 1e6:,.0f} million parameters")
    return ", ".join(parts)


def identity_terms(identity: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Term and HTML for each part of an identity that is known."""
    if not identity:
        return [("identity", html.escape(UNKNOWN))]
    terms = {
        "weights": _weights(identity.get("weights")),
        "revision": _short(identity.get("revision")),
        "served as": _text(identity.get("served_as")),
        "endpoint": _text(identity.get("url")),
        "fingerprint": _text(identity.get("fingerprint")),
        "precision": _text(" on ".join(str(identity[key]) for key in ("dtype", "device") if identity.get(key))),
        "quantization": _text(_quantization(identity.get("quantization"))),
        "attached": describe_attached(identity) if identity.get("kind") != "endpoint" else "",
        "intervention": _intervention(identity.get("intervention")),
        "adapters": "yes" if identity.get("adapters") else "",
        "tokenizer": _short(identity.get("tokenizer")),
        "prompts": _text(("chat template" if identity["chat"] else "raw text") if "chat" in identity else None),
        "chat template": _short(identity.get("chat_template")),
        "hooks": _text("; ".join(map(str, identity.get("hooks") or ()))),
    }
    return [(term, words) for term, words in terms.items() if words]


def describe_attached(identity: Mapping[str, Any] | None) -> str:
    """The positions that whence attached, as HTML."""
    if not identity or "attached" not in identity:
        return ""
    attached = identity["attached"] or []
    parts = [f"{one.get('position', one)} in {len(one.get('layers', ()))} layers" for one in attached]
    return html.escape("; ".join(parts) or "nothing")


def _intervention(intervention: Mapping[str, Any] | None) -> str:
    if not intervention:
        return ""
    code = f" (source SHA-256 {_short(intervention['source_sha256'])})" if intervention.get("source_sha256") else ""
    return _text(describe_intervention(dict(intervention))) + code


def describe_source(task: Mapping[str, Any]) -> str:
    """The source of the items of a task."""
    return f"Data: {task['source']}." if task.get("source") else f"Data: {SOURCE_UNKNOWN}."


def _weights(weights: Any) -> str:
    if not isinstance(weights, Mapping):
        return _short(weights)
    unread = weights.get("unread") or ()
    warned = f" ({len(unread)} of {weights.get('tensors')} tensors were not read)" if unread else ""
    return f"SHA-256 {_short(weights.get('sha256'))}{html.escape(warned)}"


def _quantization(config: Any) -> str:
    return str(config.get("quant_method", "yes")) if isinstance(config, Mapping) else str(config or "")


def _short(checksum: Any) -> str:
    return f"<code>{html.escape(str(checksum)[:DIGITS])}</code>" if checksum else ""


def _text(words: Any) -> str:
    return html.escape(str(words)) if words else ""
