"""The notebooks run from top to bottom, with the tiny settings that each one names."""

from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def find_cells(notebook, tag):
    return [cell for cell in notebook.cells if tag in cell.metadata.get("tags", ())]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_installs_whence_and_has_no_output(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    (install,) = find_cells(notebook, "install")
    assert install.source.startswith('%pip install -q "whence[')
    assert len(find_cells(notebook, "parameters")) == 1
    for cell in notebook.cells:
        assert cell.cell_type == "markdown" or (not cell.outputs and cell.execution_count is None)


def test_the_notebooks_run(tmp_path, monkeypatch):
    """All in one kernel, which imports torch once, over a socket file."""
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel chooses figures inside the notebook
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "r"))
    manager = KernelManager(transport="ipc", ip=str(tmp_path / "k"))
    cells = []
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        find_cells(notebook, "parameters")[0].source = notebook.metadata["whence"]["tiny"]
        cells += [cell for cell in notebook.cells if "install" not in cell.metadata.get("tags", ())]
        cells.append(nbformat.v4.new_code_cell("%reset -f"))
    joined = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(joined, km=manager, timeout=None, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert not any(output.output_type == "error" for output in outputs)
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 3
    printed = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    assert "the output changed: True" in printed and "the same again: True" in printed
