"""Models of timm by name, and the pretrained weights that they start with."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ninefold.errors import CheckpointError, ConfigError
from ninefold.extensions import timm

RESNET = "resnet18"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vit_tny_patch16_224", "timm has no such model; did you mean vit_tiny_patch16_224?"),
        ("hf-hub:somebody/resnet18", "timm has no such model; "),
        ("local-dir:/etc", "timm has no such model; "),
        ("resnet18.none", "resnet18 has no such weights; timm has resnet18.a1_in1k"),
    ],
)
def test_a_name_that_timm_does_not_know_is_refused(name, said):
    with pytest.raises(ConfigError) as caught:
        timm.network(name, classes=3)
    assert str(caught.value).startswith(f"error: model.net.name={name}: {said}")


@pytest.fixture
def fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Tensor]]:
    """Makes weights of a model, as if huggingface_hub had fetched them before; returns them."""
    import timm as library
    from safetensors.torch import save_file

    def make(name: str, part: str = "", renamed: str = "") -> dict[str, Tensor]:
        torch.manual_seed(1)
        weights = library.create_model(name).state_dict()
        weights = {key.replace(part, renamed): value for key, value in weights.items()}
        repository = library.models.get_pretrained_cfg(name).hf_hub_id
        folder = tmp_path / f"models--{repository.replace('/', '--')}"
        snapshot = folder / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text(snapshot.name)
        save_file(weights, snapshot / "model.safetensors")
        return weights

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return make


@pytest.mark.parametrize(
    ("name", "channels", "size"), [("resnet18", 1, 32), ("vit_tiny_patch16_224", 3, 32)]
)
def test_timm_fits_its_weights_to_classes_and_sizes(fetched, name, channels, size):
    theirs = fetched(name)
    timm.fetch(name, True)  # it is here already
    model = timm.network(name, 5, channels, size)
    found = timm.pretrained(model, name, 5, channels, size)
    own = model.state_dict()
    assert {k: v.shape for k, v in own.items() if k not in found.drawn} == {
        k: v.shape for k, v in found.tensors.items()
    }
    head = "fc" if name == "resnet18" else "head"
    assert found.drawn == [f"{head}.weight", f"{head}.bias"]
    same = [k for k, v in found.tensors.items() if torch.equal(v, theirs[k])]
    other = found.tensors.keys() - set(same)
    assert other == ({"conv1.weight"} if channels == 1 else {"pos_embed"})
    if channels == 1:
        summed = theirs["conv1.weight"].sum(dim=1, keepdim=True)
        assert torch.allclose(found.tensors["conv1.weight"], summed, atol=1e-6)


def test_weights_whose_names_do_not_match_are_refused_for_other_classes_too(fetched):
    fetched(RESNET, "layer4.", "stage4.")
    with pytest.raises(CheckpointError, match=r"do not fit timm's resnet18; .*layer4\.0\.conv1"):
        timm.pretrained(timm.network(RESNET, classes=5), RESNET, classes=5)


def test_timms_own_arguments_reach_the_model():
    model = timm.network("resnet10t", 3, drop_rate=0.25)
    assert getattr(model, "drop_rate") == 0.25  # noqa: B009
