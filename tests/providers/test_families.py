"""What the list of families says of models that exist, by the names they have at their vendors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai.values.model import CAPABILITIES, Model, Models
from kernai_providers import capabilities_of, families
from kernai_providers.families import FAMILIES, Family


def names(listed: str) -> list[str]:
    return listed.split()


TEXT = names("""
    gpt-3.5-turbo gpt-3.5-turbo-0125 gpt-4 gpt-4-0613 gpt-4-turbo-preview gpt-oss-120b openai/gpt-oss-20b o1-mini
    o1-mini-2024-09-12 o1-preview o3-mini o3-mini-2025-01-31 text-embedding-3-large text-embedding-3-small davinci-002
    gpt-4o-transcribe gpt-4o-mini-tts gpt-4o-search-preview ft:gpt-3.5-turbo-0125:acme::Ab1
    claude-2.1 claude-2.0 claude-instant-1.2 anthropic.claude-v2:1 anthropic.claude-instant-v1
    gemini-embedding-001 text-embedding-004 gemma2:9b gemma-2-27b-it gemma3:1b gemma3:270m google/gemma-3-1b-it gemma3n:e4b
    llama3 llama3.1 llama3.1:70b llama3.2 llama3.2:1b llama-3.3-70b-versatile meta-llama/Llama-3.3-70B-Instruct-Turbo
    llama-3.1-8b-instant accounts/fireworks/models/llama-v3p1-405b-instruct codellama:13b meta.llama3-1-70b-instruct-v1:0
    deepseek-chat deepseek-reasoner deepseek-ai/DeepSeek-V3.1 deepseek-r1:32b
    qwen2.5 qwen2.5-coder qwen2.5-coder:32b qwen3:30b qwen-max Qwen/QwQ-32B qwen3-coder-480b-a35b-instruct
    mistral mistral:7b mistral-large-2411 mistral-nemo open-mixtral-8x22b codestral-latest mistral-embed ministral-3b-2410
    grok-3 grok-3-mini grok-2-1212 grok-code-fast-1 sonar-deep-research command-r-plus-08-2024 command-a-03-2025
    amazon.nova-micro-v1:0 us.amazon.nova-micro-v1:0 amazon.titan-text-express-v1 phi3 phi-4 phi4-mini moonshotai/kimi-k2-instruct
    zai-org/GLM-4.5 glm-4.6 nomic-embed-text whisper-1 tts-1 text-only
""")

SEES = names("""
    gpt-4-turbo gpt-4-turbo-2024-04-09 gpt-4-vision-preview
    gemma3 gemma3:4b gemma3:12b google/gemma-3-27b-it
    llava llava:13b llava-llama3 bakllava moondream minicpm-v:8b llama3.2-vision llama3.2-vision:11b llama-3.2-90b-vision-preview
    meta-llama/Llama-3.2-11B-Vision-Instruct-Turbo llama4:scout meta-llama/llama-4-maverick-17b-128e-instruct
    accounts/fireworks/models/llama4-maverick-instruct-basic meta.llama4-maverick-17b-instruct-v1:0 us.meta.llama4-scout-17b-instruct-v1:0
    pixtral-12b-2409 pixtral-large-latest mistral-small-3.2-24b-instruct mistral-small3.1:24b mistral-medium-3
    mistral-medium-2508 mistral-medium-latest mistral-small-2506 mistral-small-latest mistral-large-2512 magistral-small-1.2
    qwen2.5vl:7b qwen2.5-vl-72b-instruct Qwen/Qwen2.5-VL-32B-Instruct qwen-vl-max qwen3-vl-235b-a22b-instruct qvq-72b-preview
    accounts/fireworks/models/qwen2p5-vl-32b-instruct phi-4-multimodal-instruct microsoft/phi-4-multimodal-instruct
    grok-4 grok-4-0709 grok-4-fast-reasoning grok-2-vision-1212 x-ai/grok-4 sonar sonar-pro sonar-reasoning-pro
    amazon.nova-lite-v1:0 us.amazon.nova-pro-v1:0 amazon.nova-premier-v1:0 amazon.nova-2-lite-v1:0 glm-4.5v zai-org/GLM-4.6V internvl3-78b
    command-a-vision-07-2025
""")

READS = names("""
    gpt-4o gpt-4o-2024-11-20 gpt-4o-mini chatgpt-4o-latest gpt-4.1 gpt-4.1-mini gpt-4.1-nano-2025-04-14 gpt-5 gpt-5-mini gpt-5-nano
    gpt-5-chat-latest gpt-5.1 openai/gpt-5.1 GPT-5 o1 o1-2024-12-17 o1-pro o3 o3-pro openai/o3 o4-mini o4-mini-2025-04-16
    ft:gpt-4o-2024-08-06:acme::Ab1 ft:o4-mini-2025-04-16:acme::Ab1
    claude-3-haiku-20240307 claude-3-5-sonnet-latest claude-3-7-sonnet-20250219 claude-3-7-sonnet@20250219 claude-opus-4-20250514
    claude-opus-4-8 claude-opus-5 claude-sonnet-5-5 claude-haiku-5-5 claude-fable-5-1 claude-mythos-preview gpt-6.2-sol
    claude-opus-4-1 claude-sonnet-4-5 claude-sonnet-4-5-20250929 claude-haiku-4-5-20251001 claude-opus-4-5 claude-4-sonnet
    anthropic/claude-sonnet-4.5 anthropic/claude-3.5-haiku anthropic.claude-3-5-sonnet-20241022-v2:0
    us.anthropic.claude-sonnet-4-20250514-v1:0 eu.anthropic.claude-3-7-sonnet-20250219-v1:0
    apac.anthropic.claude-sonnet-4-20250514-v1:0 global.anthropic.claude-sonnet-4-5-20250929-v1:0
    arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-sonnet-4-20250514-v1:0
""")

ALL_IN = names("""
    gemini-1.5-pro gemini-2.0-flash gemini-2.0-flash-lite gemini-2.5-flash gemini-2.5-flash-lite gemini-2.5-pro google/gemini-2.5-pro
    gemini-3-pro-preview models/gemini-2.5-flash gemini-flash-latest
""")

HEARS = names("gpt-4o-audio-preview gpt-4o-mini-audio-preview gpt-audio gpt-audio-mini gpt-4o-audio-preview-2024-12-17")
DRAWS = names("gemini-2.5-flash-image gemini-3-pro-image-preview google/gemini-2.5-flash-image-preview")

READING = ("text", "vision", "document_in")
EVERYTHING = ("text", "vision", "audio_in", "video_in", "document_in")


@pytest.mark.parametrize(
    "id,capabilities",
    [
        *((id, ("text",)) for id in TEXT),
        *((id, ("text", "vision")) for id in SEES),
        *((id, READING) for id in READS),
        *((id, EVERYTHING) for id in ALL_IN),
        *((id, ("text", "audio_in", "audio_out")) for id in HEARS),
        *((id, (*EVERYTHING, "image_gen")) for id in DRAWS),
    ],
)
def test_a_model_that_exists_can_do_what_its_vendor_says(id: str, capabilities: tuple[str, ...]) -> None:
    assert capabilities_of(id) == capabilities
    assert capabilities_of(f"some/router/{id}") == capabilities


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.pattern)
def test_without_any_one_family_some_model_here_would_be_misjudged(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    every = TEXT + SEES + READS + ALL_IN + HEARS + DRAWS
    before = [capabilities_of(id) for id in every]
    monkeypatch.setattr(families, "FAMILIES", [one for one in FAMILIES if one is not family])
    assert [capabilities_of(id) for id in every] != before


@given(st.text(max_size=40) | st.from_regex(r"(gpt|claude|gemini|o[0-9]|qwen|llama)[-0-9a-z./:]{0,20}", fullmatch=True))
def test_any_name_gives_capabilities_that_a_model_may_have(id: str) -> None:
    found = capabilities_of(id)
    assert found[0] == "text"
    assert set(found) <= set(CAPABILITIES)
    assert not id.strip() or Model(id, found).capabilities == found


@pytest.mark.parametrize("name", [name for name in vars(Models) if name.isupper()])
def test_the_list_never_says_less_than_the_catalogue_of_the_core(name: str) -> None:
    model: Model = getattr(Models, name)
    # audio of gpt-4o is a model of its own by now
    assert set(model.capabilities) - {"audio_in", "audio_out"} <= set(capabilities_of(model.id))
