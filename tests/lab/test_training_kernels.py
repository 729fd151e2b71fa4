"""Training chooses kernels for its own time only."""

import platform

import pytest
import torch

from whence.lab.kernels import training_kernels


def settings():
    return (
        torch.backends.mkldnn.enabled,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )


@pytest.mark.parametrize("machine, gpu", [("aarch64", False), ("x86_64", False), ("x86_64", True)])
def test_what_was_set_comes_back_even_after_a_failure(monkeypatch, machine, gpu):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    before, inside = settings(), []

    @training_kernels()
    def fails():
        inside.append(settings())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert settings() == before
    [(onednn, repeatable, warnings_alone, fused, filling)] = inside
    assert onednn == (before[0] and machine != "aarch64")
    assert (repeatable, warnings_alone, fused, filling) == ((True, True, False, False) if gpu else before[1:])
