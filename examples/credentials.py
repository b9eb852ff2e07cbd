"""A skill that needs a key and a setting. Neither the model nor the recording ever contains the key."""

from __future__ import annotations

import kernai
from kernai import Credential, MappingResolver, Setting, SkillContext


@kernai.skill(
    register=False,
    credentials={"api_key": Credential(description="of the weather service")},
    settings={"timeout": Setting(int, default=30), "cities": Setting(list[str], default=["Lyon"])},
)
def forecast(city: str, ctx: SkillContext) -> str:
    """Forecast the weather."""
    key = ctx.credential("api_key")  # looked up at each call, so a changed key takes effect at the next one
    if city not in ctx.setting("cities"):
        # with the key in its text, as some HTTP clients have it; the model reads [credential api_key] instead
        raise LookupError(f"GET /{city}?key={key} gave 404 within {ctx.setting('timeout')} s")
    return "sunny"


agent = kernai.Agent(
    instructions="You forecast.",
    provider=kernai.MockProvider(
        '<command name="forecast">Oslo</command>', '<command name="forecast">Lyon</command>', "<final>Sunny.</final>"
    ),
    skills=[forecast],
)

if __name__ == "__main__":
    # By default both come from the environment: KERNAI_SKILL_FORECAST_API_KEY, KERNAI_SKILL_FORECAST_TIMEOUT.
    values = MappingResolver({"forecast": {"api_key": "s3cret", "timeout": "5"}})
    with kernai.isolated():
        kernai.configure(credential_resolver=values, setting_resolver=values)
        recorder = kernai.Recorder()
        result = kernai.execute(agent, "Will it rain?", recorder=recorder)
        print(result.messages[2].text)
        print(result.messages[4].text)
        print(f"the key is in the recording: {'s3cret' in recorder.to_json()}")

    # In a test, make a context by hand and call the skill like a function.
    ctx = SkillContext(forecast, credentials={"api_key": "k"}, settings={"cities": '["Oslo"]'})
    print(f"called by hand: {forecast('Oslo', ctx)}")

    kernai.configure(credential_resolver=MappingResolver({}))
    try:
        forecast.call({"city": "Lyon"})
    except kernai.CredentialMissingError as error:
        print(error)
