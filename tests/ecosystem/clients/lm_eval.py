import os
import random

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

model = LocalCompletionsAPI(
    model="tiny",
    base_url=f"http://{os.environ['NAIAD_HTTP']}/v1/completions",
    tokenizer_backend="huggingface",
    tokenizer=os.environ["NAIAD_CHECKPOINT"],
    num_concurrent=1,
    max_length=512,
)
source = random.Random(3)
letters = "abcdefghijklmnopqrstuvwxyz "
questions = [
    ("".join(source.choices(letters, k=30)), " " + "".join(source.choices(letters, k=6)))
    for _ in range(50)
]
requests = [Instance("loglikelihood", {}, pair, at) for at, pair in enumerate(questions)]
found = model.loglikelihood(requests)
assert len(found) == 50
assert all(score < 0 and isinstance(is_greedy, bool) for score, is_greedy in found), found[:3]
assert found == model.loglikelihood(requests)
