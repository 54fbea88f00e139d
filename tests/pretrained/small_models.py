"""Small models of transformers with the settings of published ones, and their folders."""

import json

from tests.pretrained.peers import torch, transformers, varied
from tests.pretrained.published import POOLING, PUBLISHED, small

PROCESSORS = {
    "dinov2": {"crop_size": {"height": 8, "width": 16}, "size": {"shortest_edge": 16}},
    "resnet": {"size": {"height": 40, "width": 48}},
}
"""Sizes of prepared images, of other sizes than the config has, or of any."""


def write_small(name, folder):
    """Write the folder of the small model ``name`` with the config's own keys; return the model."""
    config = small(PUBLISHED[name])
    (folder / "config.json").write_text(json.dumps(config))
    settings = transformers.AutoConfig.from_pretrained(folder)
    architecture = (config.get("architectures") or ["DebertaV2Model"])[0]
    architecture = {"MPTForCausalLM": "MptForCausalLM"}.get(architecture, architecture)
    if name in POOLING:
        architecture = type(transformers.AutoModel.from_config(settings)).__name__
    torch.manual_seed(0)
    model = varied(getattr(transformers, architecture)(settings))
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    if config["model_type"] in PROCESSORS:
        processor = json.dumps(PROCESSORS[config["model_type"]])
        (folder / "preprocessor_config.json").write_text(processor)
    if name in POOLING:
        _write_pooling(folder, *POOLING[name])
        model.register_forward_hook(_pooled(*POOLING[name]), with_kwargs=True)
    return model


def _write_pooling(folder, mode, unit):
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": k, "name": str(k), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for k, (path, kind) in enumerate(kinds[: 2 + unit])
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 16, f"pooling_mode_{mode}": True}
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))


def _pooled(mode, unit):
    """A hook that adds the embedding of sentence-transformers to the outputs of a model."""

    def add(_, args, given, outputs):
        states, mask = outputs.last_hidden_state, given["attention_mask"]
        if mode == "cls_token":
            found = states[:, 0]
        elif mode == "mean_tokens":
            weights = mask[..., None].to(states.dtype)
            found = (states * weights).sum(1) / weights.sum(1)
        else:
            last = (mask * torch.arange(mask.shape[1])).argmax(1)
            found = states[torch.arange(len(states)), last]
        outputs["sentence_embedding"] = torch.nn.functional.normalize(found) if unit else found
        return outputs

    return add
