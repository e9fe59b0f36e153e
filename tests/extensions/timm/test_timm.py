"""Models of timm by name, and the pretrained weights that they start with."""

from pathlib import Path

import pytest
import torch

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


def hugging_face(home: Path, repository: str, name: str) -> Path:
    """Where huggingface_hub looks for a file of a repository that it has fetched before."""
    folder = home / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    path = folder / "snapshots" / ("0" * 40) / name
    path.parent.mkdir(parents=True)
    return path


@pytest.mark.parametrize(
    ("name", "channels", "size"), [("resnet18", 1, 32), ("vit_tiny_patch16_224", 3, 32)]
)
def test_timm_fits_its_weights_to_classes_and_sizes(tmp_path, monkeypatch, name, channels, size):
    import timm as library
    from safetensors.torch import save_file

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    torch.manual_seed(1)
    theirs = library.create_model(name).state_dict()
    repository = library.models.get_pretrained_cfg(name).hf_hub_id
    save_file(theirs, hugging_face(tmp_path, repository, "model.safetensors"))
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


def test_weights_whose_names_do_not_match_are_refused_for_other_classes_too(tmp_path, monkeypatch):
    import timm as library
    from safetensors.torch import save_file

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    theirs = library.create_model(RESNET).state_dict()
    theirs = {key.replace("layer4.", "stage4."): value for key, value in theirs.items()}
    repository = library.models.get_pretrained_cfg(RESNET).hf_hub_id
    save_file(theirs, hugging_face(tmp_path, repository, "model.safetensors"))
    with pytest.raises(CheckpointError, match=r"do not fit timm's resnet18; .*layer4\.0\.conv1"):
        timm.pretrained(timm.network(RESNET, classes=5), RESNET, classes=5)


def test_timms_own_arguments_reach_the_model():
    model = timm.network("resnet10t", 3, drop_rate=0.25)
    assert getattr(model, "drop_rate") == 0.25  # noqa: B009
