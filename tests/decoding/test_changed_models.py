"""A model that is changed after it was checked is checked again; adapters give PEFT's own text or are refused by name."""

import peft
import pytest
import torch

from specdec_lib import UnsupportedModel, custom_generate, generate
from specdec_lib.decoding import target
from specdec_lib.drafters import PromptLookup
from tests.families import build, prompt

IDS = prompt(3, 14)
LORA = {"target_modules": ["q_proj", "v_proj"], "init_lora_weights": False, "task_type": "CAUSAL_LM", "lora_alpha": 64}


def _dropout(model):
    return peft.get_peft_model(model, peft.LoraConfig(lora_dropout=0.5, **LORA))


def _part_in_training(model):
    model.model.layers[0].mlp = torch.nn.Sequential(model.model.layers[0].mlp, torch.nn.Dropout(0.5)).train()
    return model


def _hook_that_looks_ahead(model):
    model.model.layers[0].register_forward_hook(lambda module, args, out: out + out.mean(1, keepdim=True))
    return model


def _forward_that_looks_ahead(model):
    layer, before = model.model.layers[0].mlp, model.model.layers[0].mlp.forward
    layer.forward = lambda states: before(states) + states.mean(1, keepdim=True)
    return model


@pytest.mark.parametrize("used_before", [False, True])
@pytest.mark.parametrize(
    "change",
    [_dropout, _part_in_training, _hook_that_looks_ahead, _forward_that_looks_ahead, lambda model: model.train()],
)
def test_a_model_that_is_changed_is_checked_again(change, used_before):
    model = build("llama-gqa")
    if used_before:
        generate(model, IDS, max_new_tokens=2)
    model = change(model)
    for drafter in (None, PromptLookup()):
        with pytest.raises(UnsupportedModel, match="in training mode|not causal|differ"):
            generate(model, IDS, drafter, max_new_tokens=4)


def test_a_model_that_is_not_changed_is_checked_once(monkeypatch):
    model = build("llama-gqa")
    generate(model, IDS, max_new_tokens=2)
    monkeypatch.setattr(target, "_check", lambda model: pytest.fail("checked again"))
    model.model.layers[0].mlp.down_proj.weight.data.mul_(1.1)
    for drafter in (None, PromptLookup()):
        generate(model, IDS, drafter, max_new_tokens=4)


def _through_peft(model, **how):
    ids = torch.tensor([IDS])
    out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12, **how)
    return out[0, len(IDS) :].tolist()


@pytest.mark.parametrize(
    "config, reason",
    [
        (peft.PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"), "PROMPT_TUNING"),
        (peft.PromptEncoderConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"), "P_TUNING"),
        (peft.PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"), "PREFIX_TUNING"),
        (peft.LoraConfig(alora_invocation_tokens=IDS[3:5], **LORA), "activated LoRA"),
    ],
)
def test_adapters_that_do_more_than_change_weights_are_refused_by_name(config, reason):
    model = peft.get_peft_model(build("llama-gqa"), config).eval()
    for drafter in (None, PromptLookup()):
        with pytest.raises(UnsupportedModel, match=reason):
            generate(model, IDS, drafter, max_new_tokens=4)
        with pytest.raises(UnsupportedModel, match=reason):
            _through_peft(model, custom_generate=custom_generate(drafter))


@pytest.mark.parametrize(
    "config",
    [
        peft.LoraConfig(**LORA),
        peft.LoraConfig(use_dora=True, **LORA),
        peft.IA3Config(
            target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"], task_type="CAUSAL_LM"
        ),
        peft.LoHaConfig(target_modules=["q_proj"], task_type="CAUSAL_LM", init_weights=False),
    ],
    ids=["LoRA", "DoRA", "IA3", "LoHa"],
)
def test_adapters_that_change_weights_give_the_text_of_peft(config):
    torch.manual_seed(0)
    model = peft.get_peft_model(build("llama-gqa"), config).eval()
    model.generation_config.eos_token_id = None
    for weights in model.parameters():
        if weights.requires_grad:
            weights.data += 0.3 * torch.randn_like(weights)
    theirs = _through_peft(model)
    for drafter in (None, PromptLookup()):
        assert _through_peft(model, custom_generate=custom_generate(drafter)) == theirs
        assert generate(model, IDS, drafter, max_new_tokens=12, eos_token_id=[]).tokens == theirs


def test_a_wrapper_that_computes_more_than_the_model_inside_is_refused():
    class Doubled(peft.PeftModelForCausalLM):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            out.logits = out.logits.flip(-1)
            return out

    model = Doubled(build("llama-gqa"), peft.LoraConfig(**LORA)).eval()
    with pytest.raises(UnsupportedModel, match="Doubled gives other logits than the LlamaForCausalLM inside"):
        generate(model, IDS, max_new_tokens=2)
